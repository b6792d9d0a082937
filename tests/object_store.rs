//! Object stores as a tier: sessions, tools and faults are tested on servers that this project did not write.
#![cfg(feature = "object-store")]

#[path = "common/limit.rs"]
mod limit;
mod object;

use assert_cmd::Command;
use bivouac_core::comm::threads::world;
use bivouac_core::config::{Budget, Compress};
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::tier::object::ObjectTier;
use bivouac_core::tier::{Tier, TierId, Writers};
use bivouac_core::{Config, Error, Level, Session, Stats};
use object::proxy::{Fault, Proxy};
use object::{BUCKET, SECRET, Server, environment, url};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NAME: &str = "state";
const NODES: [u32; 4] = [0, 0, 1, 1];

/// The environment of a process cannot be changed safely once it has threads, so a test that needs another environment runs in a child
/// process. Returns true in the child.
fn is_child(test: &str, change: &[(&str, &str)]) -> bool {
    const CHILD: &str = "BIVOUAC_TEST_OBJECT_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(CHILD, "1").envs(environment()).envs(change.iter().copied());
    assert!(command.status().unwrap().success(), "{test} failed in its child");
    false
}

/// Two nodes with their own folders, and a prefix in a bucket.
struct Machine {
    root: TempDir,
    endpoint: String,
    has_local: bool,
    has_global: bool,
    change: fn(&mut Config),
}

/// The result of a restart on one rank.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    version: Option<u64>,
    tier: Option<&'static str>,
}

impl Machine {
    fn on(endpoint: String) -> Machine {
        let root = TempDir::new_in("/dev/shm").expect("a folder");
        Machine { root, endpoint, has_local: false, has_global: false, change: |_| () }
    }

    fn folder(&self, name: &str, node: u32) -> PathBuf {
        self.root.path().join(format!("{name}-{node}"))
    }

    /// Removes everything that the nodes have.
    fn lose_nodes(&self) {
        for folder in NODES.iter().flat_map(|node| [self.folder("memory", *node), self.folder("local", *node)]) {
            _ = std::fs::remove_dir_all(folder);
        }
    }

    fn config(&self, node: u32) -> Config {
        let mut config = Config::default();
        config.job.name = Some("bucket".into());
        config.job.block_bytes = 16 << 10;
        config.job.take_over = true;
        config.job.local_enabled = self.has_local;
        config.job.global_enabled = self.has_global;
        config.job.global_directory = self.root.path().join("global");
        config.job.object_url = Some(url("runs"));
        config.job.object_endpoint = Some(self.endpoint.clone());
        config.job.timeouts.abandon = Duration::from_secs(40);
        config.job.timeouts.room = Duration::from_secs(2);
        config.node.memory_budget = Budget::Bytes(256 << 20);
        config.node.memory_directory = self.folder("memory", node);
        config.node.local_directory = Some(self.folder("local", node));
        config.node.local_allow_tmpfs = true;
        (self.change)(&mut config);
        config
    }

    /// Runs `body` on all ranks, each on its own thread. Sessions that `body` does not close end like those of killed processes.
    fn try_run<T: Send>(&self, body: impl Fn(u32, Session) -> T + Sync) -> Vec<Result<T, Error>> {
        for folder in NODES.iter().flat_map(|node| [self.folder("memory", *node), self.folder("local", *node)]) {
            std::fs::create_dir_all(folder).expect("a folder");
        }
        let body = &body;
        std::thread::scope(|scope| {
            let started: Vec<_> = world(&NODES)
                .into_iter()
                .enumerate()
                .map(|(rank, comm)| {
                    let config = self.config(NODES[rank]);
                    scope.spawn(move || {
                        let mut place = Place::here(&config, Workers::Threads, "ranks".into()).expect("a place");
                        place.host = format!("node-{}", NODES[rank]);
                        Ok(body(rank as u32, Session::open_on(Box::new(comm), &place, config)?))
                    })
                })
                .collect();
            started.into_iter().map(|rank| rank.join().expect("a rank failed")).collect()
        })
    }

    fn run<T: Send>(&self, body: impl Fn(u32, Session) -> T + Sync) -> Vec<T> {
        self.try_run(body).into_iter().map(|ended| ended.expect("it opens")).collect()
    }

    fn take(&self, versions: &[u64], level: Level) {
        self.run(|rank, session| {
            versions.iter().for_each(|version| _ = take(&session, rank, *version, level).expect("reached"))
        });
    }

    fn restart(&self) -> Vec<Seen> {
        self.run(|rank, session| restart(&session, rank))
    }

    fn tier(&self) -> Arc<dyn Tier> {
        let limit = Duration::from_secs(20);
        Arc::new(ObjectTier::open_with(&url("runs"), Some(&self.endpoint), limit, &environment()).expect("opened"))
    }

    /// The objects of each version in the bucket.
    fn objects(&self) -> Vec<(u64, Vec<String>)> {
        let tier = self.tier();
        let series = tier.all_series().expect("listed").into_iter().find(|series| series.name == NAME).expect("there");
        let mut folders = tier.survey(&series).expect("surveyed");
        folders.sort_by_key(|folder| folder.version);
        let names = |folder: &bivouac_core::catalog::Folder| {
            let bivouac_core::catalog::Folder { generation, version, operation, .. } = *folder;
            let key = bivouac_core::base::CheckpointKey { generation, version, operation, ..Default::default() };
            let entries = tier.entries(&tier.folder_path(&series, &key)).expect("listed");
            (version, entries.into_iter().map(|entry| entry.name).collect())
        };
        folders.iter().map(names).collect()
    }
}

/// The data of a rank at a version: about five MiB, so that a node's upload has several parts.
fn data(rank: u32, version: u64) -> Vec<u64> {
    let length = 700_000 + 7_001 * rank as usize;
    (0..length as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(rank) << 32) ^ version).collect()
}

fn take(session: &Session, rank: u32, version: u64, level: Level) -> Result<Level, String> {
    let values = data(rank, version);
    let mut checkpoint = session.begin_checkpoint(NAME, version).map_err(|error| error.to_string())?;
    checkpoint.save("values", &values).map_err(|error| error.to_string())?;
    checkpoint.value("version", &version).map_err(|error| error.to_string())?;
    let pending = checkpoint.capture().map_err(|error| error.to_string())?;
    pending.wait(level).map_err(|error| error.to_string())
}

fn restart(session: &Session, rank: u32) -> Seen {
    let restored = session.begin_restore(NAME).run(|restorer| {
        let version: u64 = restorer.value("version")?;
        let values: Vec<u64> = restorer.load_vec("values")?;
        assert!(values == data(rank, version), "rank {rank} got wrong data");
        Ok(())
    });
    let restored = restored.expect("a restart");
    Seen { version: restored.as_ref().map(|of| of.version), tier: restored.map(|of| of.tier.name()) }
}

fn from_bucket(version: u64) -> Vec<Seen> {
    vec![Seen { version: Some(version), tier: Some("object") }; NODES.len()]
}

// ------------------------------------------------------------------------------------------- sessions

#[test]
fn a_job_goes_on_from_the_bucket_alone_and_each_node_has_one_object() {
    if !is_child("a_job_goes_on_from_the_bucket_alone_and_each_node_has_one_object", &[]) {
        return;
    }
    let Some(server) = Server::s3s_fs() else { return };
    let mut machine = Machine::on(server.endpoint());
    machine.change = |config| config.job.object.keep_last = 2;
    let node_objects = ["c000000.bvc", "c000002.bvc", "manifest"].map(String::from).to_vec();
    machine.run(|rank, session| {
        (1..4).for_each(|version| _ = take(&session, rank, version, Level::System).expect("reached"));
        limit::wait_until("retention has let version 1 go", || machine.objects().len() == 2);
    });
    assert_eq!(machine.objects(), [(2, node_objects.clone()), (3, node_objects)]);
    // The nodes return empty.
    machine.lose_nodes();
    let stats: Vec<(Seen, Stats)> = machine.run(|rank, session| {
        let seen = restart(&session, rank);
        take(&session, rank, 4, Level::System).expect("reached");
        (seen, session.stats())
    });
    assert_eq!(stats.iter().map(|(seen, _)| seen.clone()).collect::<Vec<_>>(), from_bucket(3));
    assert!(
        stats
            .iter()
            .all(|(_, stats)| stats.restored_bytes[TierId::OBJECT] > 5 << 20 && stats.committed[TierId::OBJECT] == 1)
    );
    // The first rank of each node has written for both of its ranks.
    let flushed = |rank: usize| stats[rank].1.flushed_bytes[TierId::OBJECT];
    assert!(flushed(0) > 10 << 20 && flushed(1) == 0 && flushed(2) > 10 << 20 && flushed(3) == 0);
    machine.lose_nodes();
    assert_eq!(machine.restart(), from_bucket(4));
}

#[test]
fn what_goes_to_a_bucket_is_compressed_for_the_whole_node_if_that_is_asked_for() {
    if !is_child("what_goes_to_a_bucket_is_compressed_for_the_whole_node_if_that_is_asked_for", &[]) {
        return;
    }
    let Some(server) = Server::s3s_fs() else { return };
    let mut machine = Machine::on(server.endpoint());
    machine.change = |config| {
        config.job.reduction.compress = Compress::On;
        config.node.reduction_budget = Budget::Bytes(64 << 20);
    };
    let stats: Vec<Stats> = machine.run(|rank, session| {
        take(&session, rank, 1, Level::System).expect("reached");
        session.stats()
    });
    let sent = |rank: usize| stats[rank].flushed_bytes[TierId::OBJECT];
    for rank in [0, 2] {
        let reduction = &stats[rank].reduction;
        assert_eq!((reduction.packed, sent(rank)), (2, reduction.stored_bytes), "{reduction:?}");
        assert!(reduction.compressed_from > 10 << 20, "{reduction:?}");
        assert!(reduction.stored_bytes < reduction.shard_bytes * 15 / 16, "{reduction:?}");
        assert_eq!(sent(rank + 1), 0);
    }
    assert_eq!(machine.objects(), [(1, ["c000000.bvc", "c000002.bvc", "manifest"].map(String::from).to_vec())]);
    machine.lose_nodes();
    assert_eq!(machine.restart(), from_bucket(1));
}

#[test]
fn a_shard_that_no_slot_holds_goes_to_the_bucket_before_capture_returns() {
    if !is_child("a_shard_that_no_slot_holds_goes_to_the_bucket_before_capture_returns", &[]) {
        return;
    }
    let Some(server) = Server::s3s_fs() else { return };
    let mut machine = Machine::on(server.endpoint());
    machine.change = |config| config.job.memory_enabled = false;
    let direct = machine.run(|rank, session| {
        take(&session, rank, 1, Level::System).expect("reached");
        session.stats().direct_captures
    });
    assert_eq!(direct, [1; 4]);
    let own = ["manifest", "r000000.bvs", "r000001.bvs", "r000002.bvs", "r000003.bvs"].map(String::from).to_vec();
    assert_eq!(machine.objects(), [(1, own)]);
    assert_eq!(machine.restart(), from_bucket(1));
}

#[test]
fn below_a_parallel_file_system_the_bucket_is_the_last_resort_and_both_are_one_store() {
    if !is_child("below_a_parallel_file_system_the_bucket_is_the_last_resort_and_both_are_one_store", &[]) {
        return;
    }
    let Some(server) = Server::s3s_fs() else { return };
    let mut machine = Machine::on(server.endpoint());
    (machine.has_local, machine.has_global) = (true, true);
    let stats = machine.run(|rank, session| {
        take(&session, rank, 1, Level::System).expect("reached");
        limit::wait_until("the bucket has it, too", || session.stats().committed[TierId::OBJECT] == 1);
        let levels: BTreeSet<Level> = session.reports().into_iter().map(|report| report.level).collect();
        (session.stats(), levels)
    });
    for (stats, levels) in stats {
        let tiers = [TierId::MEMORY, TierId::LOCAL, TierId::GLOBAL, TierId::OBJECT];
        assert!(tiers.iter().all(|tier| stats.committed[*tier] == 1), "{:?}", stats.committed);
        assert_eq!(levels, BTreeSet::from([Level::Process, Level::NodeReboot, Level::System]));
    }
    machine.lose_nodes();
    let seen = machine.restart();
    assert!(seen.iter().all(|seen| seen.tier == Some("global")), "{seen:?}");
    // The file system is gone as well. A new directory in its place belongs to the same store.
    machine.lose_nodes();
    std::fs::remove_dir_all(machine.root.path().join("global")).expect("it goes");
    let seen = machine.run(|rank, session| {
        let seen = restart(&session, rank);
        take(&session, rank, 2, Level::System).expect("reached");
        seen
    });
    assert_eq!(seen, from_bucket(1));
    machine.lose_nodes();
    let seen = machine.restart();
    assert_eq!((seen[0].version, seen[0].tier), (Some(2), Some("global")));
}

#[test]
fn a_bucket_that_belongs_to_another_store_is_not_used() {
    if !is_child("a_bucket_that_belongs_to_another_store_is_not_used", &[]) {
        return;
    }
    let Some(server) = Server::s3s_fs() else { return };
    let mut machine = Machine::on(server.endpoint());
    machine.take(&[1], Level::System);
    machine.lose_nodes();
    std::fs::create_dir_all(machine.root.path().join("global")).unwrap();
    std::fs::write(machine.root.path().join("global/store"), format!("{}\n", "07".repeat(16))).unwrap();
    machine.has_global = true;
    let told = machine.run(|rank, session| {
        let told: Vec<String> = session.reports().iter().filter_map(|report| report.verdict.reason()).collect();
        (restart(&session, rank).version, told)
    });
    for (version, told) in told {
        assert_eq!(version, None);
        assert!(told.iter().any(|why| why.contains("belongs to another store")), "{told:?}");
    }
}

/// A run renews its claims; the next run watches these, and is refused.
#[test]
fn of_two_runs_at_once_the_second_is_refused() {
    if !is_child("of_two_runs_at_once_the_second_is_refused", &[]) {
        return;
    }
    let Some(server) = Server::moto() else { return };
    let mut machine = Machine::on(server.endpoint());
    machine.change = |config| config.job.take_over = false;
    let other = Machine { root: TempDir::new_in("/dev/shm").unwrap(), ..Machine::on(server.endpoint()) };
    let other = Machine { change: machine.change, ..other };
    let refused = machine.run(|rank, session| {
        let refused = (rank == 0).then(|| other.try_run(|_, _| ()));
        take(&session, rank, 1, Level::System).expect("it is still the newest");
        refused
    });
    for refused in refused[0].as_ref().expect("of rank 0") {
        let why = refused.as_ref().expect_err("somebody is alive").to_string();
        // The claim in the bucket shows that the session belongs to this very process.
        assert!(why.contains("has a session of job") && why.contains("as generation 1"), "{why}");
    }
}

// ------------------------------------------------------------------------------------------- faults

/// Takes a checkpoint through a proxy that has these rules, and restores it from the bucket.
fn survives(test: &str, rules: impl Fn(&Proxy)) {
    if !is_child(test, &[]) {
        return;
    }
    let Some(server) = Server::s3s_fs() else { return };
    let proxy = Proxy::before(server.address);
    let machine = Machine::on(proxy.endpoint());
    machine.take(&[1], Level::System);
    rules(&proxy);
    machine.take(&[2], Level::System);
    let hit = proxy
        .seen()
        .iter()
        .filter(|line| ["Status", "Late", "Cut", "NoAnswer", "Instead"].iter().any(|fault| line.contains(fault)))
        .count();
    assert!(hit > 0, "no fault was met");
    proxy.clear();
    machine.lose_nodes();
    assert_eq!(machine.restart(), from_bucket(2));
}

#[test]
fn errors_of_the_server_that_pass_are_waited_for() {
    survives("errors_of_the_server_that_pass_are_waited_for", |proxy| {
        for method in ["PUT", "POST", "GET", "HEAD"] {
            proxy.add(method, "", 1, 3, Fault::Status(500, "<Error><Code>InternalError</Code></Error>"));
            proxy.add(method, "", 2, 2, Fault::Status(503, "<Error><Code>SlowDown</Code></Error>"));
        }
    });
}

#[test]
fn slow_answers_are_waited_for() {
    survives("slow_answers_are_waited_for", |proxy| proxy.add("", "", 0, 40, Fault::Late(Duration::from_millis(300))));
}

#[test]
fn a_connection_that_is_cut_in_the_middle_of_a_part_costs_that_part() {
    survives("a_connection_that_is_cut_in_the_middle_of_a_part_costs_that_part", |proxy| {
        proxy.add("PUT", "partnumber", 0, 3, Fault::CutRequest(1 << 20));
    });
}

#[test]
fn an_upload_whose_completion_was_done_and_not_answered_is_complete() {
    survives("an_upload_whose_completion_was_done_and_not_answered_is_complete", |proxy| {
        proxy.add("POST", "uploadid", 0, 1, Fault::NoAnswer);
        proxy.add("POST", "uploadid", 0, 1, Fault::Instead(500, "<Error><Code>InternalError</Code></Error>"));
    });
}

#[test]
fn a_manifest_that_was_written_and_not_answered_is_ours() {
    survives("a_manifest_that_was_written_and_not_answered_is_ours", |proxy| {
        proxy.add("PUT", "/manifest", 0, 1, Fault::NoAnswer);
        proxy.add("PUT", "/manifest", 0, 1, Fault::Instead(503, "<Error><Code>SlowDown</Code></Error>"));
    });
}

#[test]
fn a_claim_that_was_made_and_not_answered_is_ours() {
    survives("a_claim_that_was_made_and_not_answered_is_ours", |proxy| {
        proxy.add("PUT", "/claims/", 0, 1, Fault::NoAnswer);
    });
}

#[test]
fn a_server_that_is_killed_and_comes_back_is_waited_for() {
    if !is_child("a_server_that_is_killed_and_comes_back_is_waited_for", &[]) {
        return;
    }
    let Some(mut server) = Server::s3s_fs() else { return };
    let machine = Machine::on(server.endpoint());
    machine.take(&[1], Level::System);
    std::thread::scope(|scope| {
        let taken = scope.spawn(|| machine.take(&[2, 3], Level::System));
        std::thread::sleep(Duration::from_millis(150));
        server.restart(Duration::from_secs(2));
        taken.join().expect("all levels were reached");
    });
    machine.lose_nodes();
    assert_eq!(machine.restart(), from_bucket(3));
}

#[test]
fn a_full_bucket_costs_the_level_is_said_with_its_reason_and_the_program_goes_on() {
    if !is_child("a_full_bucket_costs_the_level_is_said_with_its_reason_and_the_program_goes_on", &[]) {
        return;
    }
    let Some(server) = Server::s3s_fs() else { return };
    let proxy = Proxy::before(server.address);
    let machine = Machine::on(proxy.endpoint());
    let gate = std::sync::Barrier::new(NODES.len());
    let told = machine.run(|rank, session| {
        take(&session, rank, 1, Level::System).expect("there is room");
        if gate.wait().is_leader() {
            proxy.add("PUT", "partnumber", 0, 1000, Fault::Status(403, "<Error><Code>QuotaExceeded</Code></Error>"));
        }
        gate.wait();
        let began = Instant::now();
        let refused = take(&session, rank, 2, Level::System).expect_err("there is none");
        assert!(began.elapsed() < Duration::from_secs(20), "it asked again and again");
        gate.wait();
        proxy.clear();
        gate.wait();
        take(&session, rank, 3, Level::System).expect("there is room again");
        refused
    });
    for why in told {
        assert!(
            why.contains("object tier") && why.contains("no room left") && why.contains("free some space"),
            "{why}"
        );
    }
    machine.lose_nodes();
    assert_eq!(machine.restart(), from_bucket(3));
}

#[test]
fn wrong_credentials_are_named_and_never_shown() {
    let secret = "another-secret-that-nobody-may-read";
    if !is_child("wrong_credentials_are_named_and_never_shown", &[("AWS_SECRET_ACCESS_KEY", secret)]) {
        return;
    }
    let Some(server) = Server::s3s_fs() else { return };
    let mut machine = Machine::on(server.endpoint());
    machine.has_local = true;
    let told = machine.run(|rank, session| {
        take(&session, rank, 1, Level::NodeReboot).expect("the node is enough for that");
        let off: Vec<String> = session.reports().iter().filter_map(|report| report.verdict.reason()).collect();
        off.join("; ")
    });
    for why in &told {
        assert!(why.contains("object tier") && why.contains("check the credentials of the object store"), "{why}");
        assert!(!why.contains(secret) && !why.contains(SECRET), "{why}");
    }
    machine.change = |config| config.job.object_required = true;
    for refused in machine.try_run(|_, _| ()) {
        let why = refused.expect_err("it is required").to_string();
        assert!(why.contains("credentials") && !why.contains(secret), "{why}");
    }
}

/// A store whose lists lag shows a restart an older version, but nothing wrong.
#[test]
fn a_list_that_lags_costs_a_version_and_no_more() {
    if !is_child("a_list_that_lags_costs_a_version_and_no_more", &[]) {
        return;
    }
    let Some(server) = Server::s3s_fs() else { return };
    let machine = Machine::on(server.endpoint());
    machine.take(&[1, 2], Level::System);
    let hidden = server.bucket().join("runs");
    let series = |root: &Path| -> PathBuf {
        let job = std::fs::read_dir(root).unwrap().flatten().find(|entry| entry.path().join("ranks").is_dir()).unwrap();
        job.path().join("ranks").join(NAME)
    };
    let newest = std::fs::read_dir(series(&hidden)).unwrap().flatten().map(|entry| entry.path()).max().unwrap();
    let claims = series(&hidden).with_file_name("claims");
    machine.lose_nodes();
    // The newest folder, and the claim of the run that made it, are not listed yet.
    let lagging = Lagging::before(server.address, vec![newest.clone(), claims.join("g000001")]);
    let late = Machine {
        endpoint: lagging.endpoint(),
        root: TempDir::new_in("/dev/shm").unwrap(),
        ..Machine::on(String::new())
    };
    assert_eq!(late.restart(), from_bucket(1));
    assert!(claims.join("g000002").exists(), "the number of the run before was taken all the same");
    assert!(newest.join("manifest").exists());
    assert_eq!(Machine::on(server.endpoint()).restart(), from_bucket(2));
}

/// A proxy whose lists omit some names.
struct Lagging(Proxy);

impl Lagging {
    fn before(server: SocketAddr, hidden: Vec<PathBuf>) -> Lagging {
        let names = hidden.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
        Lagging(Proxy::hiding(server, names))
    }

    fn endpoint(&self) -> String {
        self.0.endpoint()
    }
}

/// A store that accepts the condition that an object must not exist, but ignores it.
#[test]
fn a_store_that_cannot_tell_who_came_first_says_so_and_works() {
    if !is_child("a_store_that_cannot_tell_who_came_first_says_so_and_works", &[]) {
        return;
    }
    let Some(server) = Server::moto() else { return };
    let proxy = Proxy::before(server.address);
    proxy.add("PUT", "if-none-match", 0, usize::MAX, Fault::WithoutHeader("if-none-match"));
    let machine = Machine::on(proxy.endpoint());
    assert!(!machine.tier().can_fence());
    machine.take(&[1], Level::System);
    machine.lose_nodes();
    assert_eq!(machine.restart(), from_bucket(1));
}

#[test]
fn what_nobody_finishes_is_seen_by_nobody() {
    let Some(server) = Server::s3s_fs() else { return };
    let limit = Duration::from_secs(5);
    let tier = ObjectTier::open_with(&url("p"), Some(&server.endpoint()), limit, &environment()).unwrap();
    let path = tier.root().join("job/world/heat/g000001-v0000000001-o000001/c000000.bvc");
    let upload = tier.begin(&path, Writers::One).unwrap();
    upload.reserve(40 << 20).unwrap();
    upload.write_at(0, &vec![1; 20 << 20]).unwrap();
    // Some parts are on their way, and some may have arrived.
    std::thread::sleep(Duration::from_millis(500));
    assert!(tier.all_series().unwrap().is_empty() && tier.open(&path).is_err());
    drop(upload);
    limit::wait_until("the store has forgotten the parts", || {
        let left = std::fs::read_dir(server.root.as_ref().unwrap().path()).unwrap().flatten();
        !left.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with(".upload"))
    });
}

// ------------------------------------------------------------------------------------------- tools

#[test]
fn the_tools_take_a_url_where_they_take_a_directory() {
    if !is_child("the_tools_take_a_url_where_they_take_a_directory", &[]) {
        return;
    }
    let Some(server) = Server::s3s_fs() else { return };
    let machine = Machine::on(server.endpoint());
    machine.take(&[1, 2], Level::System);
    let run = |words: &[&str]| {
        let mut command = Command::cargo_bin("bivouac").unwrap();
        command.args(words).env("AWS_ENDPOINT_URL", server.endpoint()).env("AWS_ALLOW_HTTP", "true");
        command.env("BIVOUAC_MEMORY_DIRECTORY", machine.folder("memory", 0)).current_dir(machine.root.path());
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
    };
    let root = url("runs");
    let (status, out, err) = run(&["ls", &root]);
    assert!(status == 0 && out.contains("committed") && out.matches(NAME).count() == 2, "{out}{err}");
    let (status, out, err) = run(&["verify", &root]);
    assert!(status == 0, "{out}{err}");
    // One folder is below the root, and one does not exist.
    let job = machine.tier().all_series().unwrap()[0].job.clone();
    let (status, out, err) = run(&["ls", &format!("{root}/{job}/ranks/{NAME}")]);
    assert!(status == 0 && out.matches(NAME).count() == 2, "{out}{err}");
    let (status, out, err) = run(&["ls", &url("elsewhere")]);
    assert!(status == 2 && err.contains("no Bivouac store"), "{out}{err}");
    // A bit flips in an object.
    let folder = machine.tier().folders(&machine.tier().all_series().unwrap()[0]).unwrap()[0];
    let folder = format!("g{:06}-v{:010}-o{:06}", folder.0.0, folder.1, folder.2);
    let object = server.bucket().join(format!("runs/{job}/ranks/{NAME}/{folder}/c000002.bvc"));
    let mut bytes = std::fs::read(&object).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&object, bytes).unwrap();
    let (status, out, err) = run(&["verify", &root]);
    assert!(status == 1 && (out + &err).contains("damaged"));
    // The newest version stays unless its removal is forced. The run ended without closing its claim, and nobody renews it.
    let (status, out, err) = run(&["rm", "--yes", &format!("{root}/{job}/ranks/{NAME}/{folder}")]);
    assert!(status == 2 && err.contains("--force"), "{out}{err}");
    let (status, out, err) = run(&["rm", "--yes", "--force", &format!("{root}/{job}/ranks/{NAME}/{folder}")]);
    assert!(status == 0, "{out}{err}");
    assert_eq!(machine.objects().iter().map(|(version, _)| *version).collect::<Vec<_>>(), [1]);
    let (status, out, err) = run(&["doctor"]);
    assert!(status < 2, "{out}{err}");
}

#[test]
fn a_drain_brings_what_a_node_still_has_to_the_bucket() {
    if !is_child("a_drain_brings_what_a_node_still_has_to_the_bucket", &[]) {
        return;
    }
    let Some(server) = Server::s3s_fs() else { return };
    let mut machine = Machine::on(server.endpoint());
    machine.change = |config| config.job.object.every = 100.into();
    machine.take(&[1], Level::System);
    // The first version goes to all tiers, the second stays in node memory, and then the job is killed.
    machine.run(|rank, session| {
        restart(&session, rank);
        take(&session, rank, 2, Level::System).expect("the first of a run goes everywhere");
        take(&session, rank, 3, Level::Process).expect("in memory")
    });
    for node in [0, 1] {
        let mut command = Command::cargo_bin("bivouac").unwrap();
        command
            .args(["drain", "--global", &url("runs"), "--even-alive", "--memory"])
            .arg(machine.folder("memory", node));
        let output = command.env("AWS_ENDPOINT_URL", server.endpoint()).env("AWS_ALLOW_HTTP", "true").output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{text}");
    }
    machine.lose_nodes();
    assert_eq!(machine.restart(), from_bucket(3));
}

#[test]
fn what_a_url_may_not_be_is_refused_with_what_it_may_be() {
    for wrong in [
        "bucket/x",
        "ftp://bucket",
        "s3://",
        "s3://me:secret@bucket/x",
        "s3://bucket/a b",
        "s3://bucket/../x",
        "s3://bucket?x",
    ] {
        let error = Config::from_toml(&format!("[object]\nurl = \"{wrong}\"")).expect_err(wrong).to_string();
        assert!(error.contains("object.url") && error.contains("s3://bucket/checkpoints"), "{error}");
    }
    for right in [url("x"), format!("s3://{BUCKET}"), "gs://bucket/a/b".into(), "az://container/prefix/".into()] {
        Config::from_toml(&format!("[object]\nurl = \"{right}\"")).expect(&right);
    }
    let error = Config::from_toml("[object]\nendpoint = \"https://me:pw@host\"").expect_err("a password").to_string();
    assert!(error.contains("object.endpoint") && !error.contains("unset\" is"), "{error}");
}
