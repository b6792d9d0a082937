//! `bivouac rebuild`, and `bivouac drain` with redundancy. Real sessions, on ranks that are threads, write checkpoints on four "nodes" that
//! have their own folders. Then nodes are lost, the command runs, everything except the global directory is deleted, and the real session
//! restarts from that directory.

use crate::limit;
use crate::limit::wait_until;
use bivouac_core::comm::threads::world;
use bivouac_core::config::{PartStore, Scheme};
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::{Config, Level, Session};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const NAME: &str = "state";
const NODES: [u32; 8] = [0, 0, 1, 1, 2, 2, 3, 3];
const NEVER: u64 = 1 << 40;
const JOB: &[&str] = &["--job", "rebuild", "--create"];

struct Machine {
    root: TempDir,
    scheme: Scheme,
    store: PartStore,
    peers_every: u64,
    local_every: u64,
}

struct Ran {
    status: i32,
    out: String,
    err: String,
}

impl Ran {
    fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {} {}", self.out, self.err))
    }
}

fn bivouac(args: &[String]) -> Ran {
    let mut command = assert_cmd::Command::cargo_bin("bivouac").expect("the program");
    command.args(args).env_remove("BIVOUAC_CONFIG");
    let output = command.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let status = output.status.code().expect("it ends by itself");
    Ran { status, out: text(&output.stdout), err: text(&output.stderr) }
}

fn utf8(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

impl Machine {
    fn new(scheme: &str, store: PartStore) -> Machine {
        let root = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("a folder");
        Machine { root, scheme: scheme.parse().expect("a scheme"), store, peers_every: 1, local_every: NEVER }
    }

    fn memory(&self, node: u32) -> PathBuf {
        self.root.path().join(format!("memory-{node}"))
    }

    fn local(&self, node: u32) -> PathBuf {
        self.root.path().join(format!("local-{node}"))
    }

    fn global(&self) -> PathBuf {
        self.root.path().join("global")
    }

    fn lose(&self, node: u32) {
        std::fs::remove_dir_all(self.memory(node)).expect("its memory goes");
        std::fs::remove_dir_all(self.local(node)).expect("its disk goes");
    }

    fn config(&self, node: u32, with_global: bool) -> Config {
        let mut config = Config::default();
        config.job.name = Some("rebuild".into());
        config.job.block_bytes = 16 << 10;
        config.job.redundancy.scheme = self.scheme;
        config.job.redundancy.store = self.store;
        config.job.redundancy.every = self.peers_every.into();
        config.job.local.every = self.local_every.into();
        config.job.global.every = NEVER.into();
        config.job.global_enabled = with_global;
        config.job.global_directory = self.global();
        config.job.timeouts.abandon = limit::LIMIT;
        config.job.timeouts.room = Duration::from_secs(2);
        config.node.memory_budget = bivouac_core::config::Budget::Bytes(64 << 20);
        config.node.memory_directory = self.memory(node);
        config.node.local_directory = Some(self.local(node));
        config.node.local_allow_tmpfs = true;
        config
    }

    /// Runs `body` on all ranks, each on its own thread, and abandons the sessions as killed processes would.
    fn run<T: Send>(&self, with_global: bool, body: impl Fn(u32, &Session) -> T + Sync) -> Vec<T> {
        for node in NODES {
            for folder in [self.memory(node), self.local(node)] {
                std::fs::create_dir_all(folder).expect("a folder");
            }
        }
        let (body, end) = (&body, &std::sync::Barrier::new(NODES.len()));
        let results = std::thread::scope(|scope| {
            let started: Vec<_> = world(&NODES)
                .into_iter()
                .enumerate()
                .map(|(rank, comm)| {
                    let config = self.config(NODES[rank], with_global);
                    scope.spawn(move || {
                        let mut place = Place::here(&config, Workers::Threads, "ranks".into()).expect("a place");
                        place.host = format!("node-{}", NODES[rank]);
                        let session = Session::open_on(Box::new(comm), &place, config).expect("opens");
                        let result = body(rank as u32, &session);
                        // No rank leaves while another still needs its votes.
                        end.wait();
                        drop(session);
                        result
                    })
                })
                .collect();
            started.into_iter().map(|rank| rank.join().expect("a rank failed")).collect()
        });
        wait_until("nothing of a session is left", || !self.is_held());
        results
    }

    fn is_held(&self) -> bool {
        (0..4).any(|node| {
            let folder = self.memory(node);
            names(&folder).iter().any(|name| bivouac_core::segment::is_held(&folder, name).is_ok_and(|held| held))
        })
    }

    /// Versions 1 and 2, protected against the loss of nodes. The global tier holds neither of them.
    fn taken(scheme: &str, store: PartStore) -> Machine {
        let machine = Machine::new(scheme, store);
        let ended = machine.run(false, |rank, session| [1, 2].map(|version| take(session, rank, version)));
        for ended in ended {
            assert_eq!(ended, [Ok(Level::NodeLoss), Ok(Level::NodeLoss)], "{scheme}");
        }
        machine
    }

    /// Version 1, protected against the loss of nodes, and version 2, which is in memory and on the local tier only.
    fn taken_and_one_without_protection(scheme: &str, store: PartStore) -> Machine {
        let machine = Machine { peers_every: NEVER, local_every: 1, ..Machine::new(scheme, store) };
        let levels = [(1, Level::NodeLoss), (2, Level::NodeReboot)];
        let take = |rank, session: &Session| levels.map(|(version, level)| take_to(session, rank, version, level));
        for ended in machine.run(false, take) {
            assert_eq!(ended, levels.map(|(_, level)| Ok(level)), "{scheme}");
        }
        machine
    }

    /// All folders of the remaining nodes.
    fn left(&self) -> Vec<String> {
        let all = (0..4).flat_map(|node| [self.memory(node), self.local(node)]);
        all.filter(|path| path.exists()).map(|path| utf8(&path)).collect()
    }

    fn rebuild(&self, more: &[&str]) -> Ran {
        let mut args = vec!["rebuild".to_owned()];
        args.extend(self.left());
        args.extend(["--global".into(), utf8(&self.global())]);
        args.extend(more.iter().map(|more| (*more).to_owned()));
        bivouac(&args)
    }

    fn rebuild_json(&self, more: &[&str]) -> (i32, Value) {
        let ran = self.rebuild(&[JOB, more, &["--json"]].concat());
        (ran.status, ran.json())
    }

    fn drain(&self, node: u32, more: &[&str]) -> Ran {
        let mut args = vec!["drain".to_owned(), "--global".into(), utf8(&self.global())];
        args.extend(["--memory".into(), utf8(&self.memory(node)), "--local".into(), utf8(&self.local(node))]);
        args.extend([JOB, more].concat().iter().map(|more| (*more).to_owned()));
        bivouac(&args)
    }

    /// Deletes everything except the global directory, and returns the version that a new run restores from it.
    fn restart_from_global(&self) -> Option<u64> {
        for folder in (0..4).flat_map(|node| [self.memory(node), self.local(node)]).filter(|folder| folder.exists()) {
            std::fs::remove_dir_all(folder).expect("it goes");
        }
        let versions = self.run(true, |rank, session| {
            let restored = session.begin_restore(NAME).run(|restorer| {
                let version: u64 = restorer.value("version")?;
                let values: Vec<u64> = restorer.load_vec("values")?;
                assert_eq!(values, data(rank, version), "rank {rank} got wrong data");
                Ok(())
            });
            let restored = restored.expect("a restart")?;
            assert_eq!(restored.tier.name(), "global");
            Some(restored.version)
        });
        assert!(versions.iter().all(|version| *version == versions[0]), "{versions:?}");
        versions[0]
    }

    /// The folder of a version on the global tier.
    fn folder(&self, version: u64) -> Option<PathBuf> {
        let job = only(&self.global(), |name| name != "store")?;
        let series = job.join("ranks").join(NAME);
        names(&series).iter().find(|name| name.contains(&format!("-v{version:010}-"))).map(|name| series.join(name))
    }

    fn verify(&self) {
        let verified = bivouac(&["verify".into(), utf8(&self.global())]);
        assert_eq!(verified.status, 0, "{}", verified.out);
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_str().expect("UTF-8").to_owned()).collect();
    names.sort();
    names
}

fn only(folder: &Path, is_wanted: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let names: Vec<String> = names(folder).into_iter().filter(|name| is_wanted(name)).collect();
    assert!(names.len() < 2, "{names:?}");
    names.first().map(|name| folder.join(name))
}

fn data(rank: u32, version: u64) -> Vec<u64> {
    let length = 40_000 + 7_001 * rank as usize;
    (0..length as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(rank) << 32) ^ version).collect()
}

fn take(session: &Session, rank: u32, version: u64) -> Result<Level, String> {
    take_to(session, rank, version, Level::NodeLoss)
}

fn take_to(session: &Session, rank: u32, version: u64, level: Level) -> Result<Level, String> {
    let values = data(rank, version);
    let mut checkpoint = session.begin_checkpoint(NAME, version).map_err(|error| error.to_string())?;
    checkpoint.save("values", &values).map_err(|error| error.to_string())?;
    checkpoint.value("version", &version).map_err(|error| error.to_string())?;
    let pending = checkpoint.capture().map_err(|error| error.to_string())?;
    pending.wait(level).map_err(|error| error.to_string())
}

fn rank_at(head: &[u8]) -> u32 {
    u32::from_le_bytes([head[76], head[77], head[78], head[79]])
}

fn version_at(head: &[u8]) -> u64 {
    let header = bivouac_core::format::ShardHeader::decode(head).expect("a header");
    header.key.version
}

/// Flips a bit, `at` bytes after the start, in every shard or part in a folder of segments for which `is_wanted` holds.
fn flip(folder: &Path, at: usize, is_wanted: impl Fn(&[u8]) -> bool) -> usize {
    let mut flipped = 0;
    for name in names(folder) {
        let path = folder.join(name);
        let mut bytes = std::fs::read(&path).expect("its bytes");
        let heads: Vec<usize> = (0..bytes.len()).step_by(4096).filter(|at| is_wanted(&bytes[*at..])).collect();
        for head in heads {
            bytes[head + at] ^= 4;
            flipped += 1;
        }
        std::fs::write(&path, bytes).expect("written back");
    }
    flipped
}

fn is_shard(bytes: &[u8]) -> bool {
    bytes.starts_with(b"BVKSHRD1")
}

fn is_parity(bytes: &[u8]) -> bool {
    bytes.starts_with(b"BVKPRTY1")
}

// ------------------------------------------------------------------------------------------- what it is for

#[test]
fn the_shards_of_lost_nodes_are_made_again_from_memory() {
    for (scheme, lost) in [("partner", &[2][..]), ("xor(4)", &[2]), ("rs(2,2)", &[2]), ("rs(2,2)", &[0, 3])] {
        let machine = Machine::taken(scheme, PartStore::Memory);
        lost.iter().for_each(|node| machine.lose(*node));
        let (status, document) = machine.rebuild_json(&[]);
        assert_eq!(status, 0, "{scheme} {document}");
        let row = &document["checkpoints"][0];
        let gone: Vec<usize> = (0..8).filter(|rank| lost.contains(&NODES[*rank])).collect();
        let rebuilt = if scheme == "partner" { json!([]) } else { json!(gone) };
        assert_eq!(
            (&row["version"], &row["complete"], &row["rebuilt"]),
            (&json!(2), &json!(true), &rebuilt),
            "{scheme}"
        );
        let folder = machine.folder(2).expect("a folder");
        assert_eq!(names(&folder).len(), 9, "{:?}", names(&folder));
        machine.verify();
        assert_eq!(machine.restart_from_global(), Some(2), "{scheme}");
    }
}

#[test]
fn parts_on_local_disks_do_it_too() {
    for scheme in ["partner", "xor(4)", "rs(2,2)"] {
        let machine = Machine::taken(scheme, PartStore::Local);
        // All nodes reboot, and one is lost.
        (0..4).for_each(|node| std::fs::remove_dir_all(machine.memory(node)).expect("its memory goes"));
        std::fs::remove_dir_all(machine.local(1)).expect("its disk goes");
        let (status, document) = machine.rebuild_json(&[]);
        assert_eq!((status, &document["checkpoints"][0]["complete"]), (0, &json!(true)), "{scheme} {document}");
        machine.verify();
        assert_eq!(machine.restart_from_global(), Some(2), "{scheme}");
    }
}

#[test]
fn a_dry_run_checks_everything_and_writes_nothing() {
    let machine = Machine::taken("xor(4)", PartStore::Memory);
    machine.lose(1);
    let (status, document) = machine.rebuild_json(&["--dry-run"]);
    let row = &document["checkpoints"][0];
    assert_eq!((status, &row["rebuilt"], &row["complete"]), (0, &json!([2, 3]), &json!(true)), "{document}");
    assert_eq!((&document["bytes"], machine.global().exists()), (&json!(0), false));
    let text = machine.rebuild(&[JOB, &["-n"]].concat()).out;
    assert!(text.contains("would rebuild ranks 2-3; would then be complete"), "{text}");
    assert!(flip(&machine.memory(3), 70_000, |bytes| is_parity(bytes) && rank_at(bytes) == 6) > 0);
    let (status, document) = machine.rebuild_json(&["--dry-run"]);
    assert_eq!(status, 1, "{document}");
    assert!(!machine.global().exists());
}

#[test]
fn it_may_be_run_again_and_repairs_what_was_damaged_since() {
    let machine = Machine::taken("xor(4)", PartStore::Memory);
    machine.lose(1);
    assert_eq!(machine.rebuild(JOB).status, 0);
    let all = json!((0..8).collect::<Vec<_>>());
    let (status, document) = machine.rebuild_json(&[]);
    assert_eq!((status, &document["checkpoints"][0]["there"], &document["bytes"]), (0, &all, &json!(0)), "{document}");
    let folder = machine.folder(2).expect("a folder");
    std::fs::remove_file(folder.join("manifest")).expect("removed");
    std::fs::remove_file(folder.join("r000005.bvs")).expect("removed");
    let mut bytes = std::fs::read(folder.join("r000002.bvs")).expect("read");
    bytes[100_000] ^= 1;
    std::fs::write(folder.join("r000002.bvs"), bytes).expect("written");
    let (status, document) = machine.rebuild_json(&[]);
    let row = &document["checkpoints"][0];
    assert_eq!((status, &row["rebuilt"], &row["copied"]), (0, &json!([2]), &json!([5])), "{document}");
    machine.verify();
    assert_eq!(machine.restart_from_global(), Some(2));
}

// ------------------------------------------------------------------------------------------- damage, and too little left

#[test]
fn flipped_bits_are_done_without_where_the_scheme_has_enough_left() {
    for kind in [is_shard as fn(&[u8]) -> bool, is_parity] {
        let machine = Machine::taken("rs(2,2)", PartStore::Memory);
        machine.lose(2);
        assert!(flip(&machine.memory(1), 70_000, kind) >= 2);
        let (status, document) = machine.rebuild_json(&[]);
        assert_eq!((status, &document["checkpoints"][0]["complete"]), (0, &json!(true)), "{document}");
        machine.verify();
        assert_eq!(machine.restart_from_global(), Some(2));
    }
}

#[test]
fn two_copies_that_are_damaged_in_different_places_make_a_whole_one() {
    let machine = Machine::taken("partner", PartStore::Memory);
    let third = |bytes: &[u8]| is_shard(bytes) && rank_at(bytes) == 3;
    let mut flipped = Vec::new();
    for node in 0..4 {
        flipped.push(flip(&machine.memory(node), 70_000 + 40_000 * node as usize, third));
    }
    assert!(flipped.iter().filter(|count| **count > 0).count() == 2, "{flipped:?}");
    let (status, document) = machine.rebuild_json(&[]);
    assert_eq!((status, &document["checkpoints"][0]["rebuilt"]), (0, &json!([3])), "{document}");
    machine.verify();
    assert_eq!(machine.restart_from_global(), Some(2));
}

#[test]
fn too_little_left_is_said_by_rank_and_set_and_nothing_is_written() {
    let machine = Machine::taken("xor(4)", PartStore::Memory);
    machine.lose(1);
    machine.lose(2);
    let (status, document) = machine.rebuild_json(&[]);
    assert_eq!(status, 1, "{document}");
    let row = &document["checkpoints"][0];
    assert_eq!(
        (&row["missing"], &row["complete"], &document["bytes"]),
        (&json!([[2, 2], [3, 3], [4, 4], [5, 5]]), &json!(false), &json!(0))
    );
    let why = row["lacking"][0]["why"].as_str().expect("a reason");
    assert!(why.contains("its redundancy set (ranks ") && why.contains("can do without 1 of them"), "{why}");
    assert!(why.contains("lacks the shards of ") && why.contains("and the parity of "), "{why}");
    assert!(document["damage"].to_string().contains("can be completed"), "{document}");
    assert_eq!(machine.folder(2), None);
    assert_eq!(machine.restart_from_global(), None);
}

#[test]
fn damage_that_cannot_be_repaired_is_told_with_status_1() {
    let machine = Machine::taken("xor(4)", PartStore::Memory);
    machine.lose(2);
    assert_eq!(flip(&machine.memory(1), 70_000, |bytes| is_parity(bytes) && version_at(bytes) == 2), 2);
    let (status, document) = machine.rebuild_json(&[]);
    assert_eq!(status, 1, "{document}");
    let rows = document["checkpoints"].as_array().expect("a list");
    let rows: Vec<_> = rows.iter().map(|row| (row["version"].clone(), row["complete"].clone())).collect();
    assert_eq!(rows[0], (json!(2), json!(false)), "{document}");
    let damage = document["damage"].to_string();
    assert!(
        damage.contains("the shard of rank 4 is damaged") && damage.contains("rebuilt from the set of ranks"),
        "{damage}"
    );
    assert!(damage.contains("region \\\"parity.0\\\" of rank"), "{damage}");
    // The parts of version 1 are deleted as soon as version 2 is protected, which may or may not have happened.
    if rows.get(1) == Some(&(json!(1), json!(true))) {
        assert_eq!(machine.restart_from_global(), Some(1));
    }
}

// ------------------------------------------------------------------------------------------- arguments

#[test]
fn a_named_version_is_taken_and_bad_arguments_are_refused() {
    let machine = Machine::taken("partner", PartStore::Local);
    machine.lose(2);
    let (status, document) = machine.rebuild_json(&["--version", "7"]);
    assert_eq!(status, 3, "{document}");
    assert!(document["problems"].to_string().contains("nothing of version 7 was found"), "{document}");
    let (status, document) = machine.rebuild_json(&["--name", "other"]);
    assert_eq!(status, 3, "{document}");
    // Without `--job`, a job that has never used the store is passed over.
    let ran = machine.rebuild(&[]);
    assert!(ran.status == 2 && ran.out.contains("it has never used this global directory"), "{} {}", ran.out, ran.err);
    // A typing error must not hide the loss of a node.
    let typo = utf8(&machine.root.path().join("local-9"));
    let ran = machine.rebuild(&[JOB, &[&typo]].concat());
    assert!(ran.status == 2 && ran.err.contains("local-9") && machine.folder(2).is_none(), "{} {}", ran.out, ran.err);
    let job = only(&machine.local(0), |name| name != "of-store").expect("a job");
    let ran = machine.rebuild(&[JOB, &[&utf8(&job)]].concat());
    assert!(ran.status == 2 && ran.err.contains("give its root directory"), "{} {}", ran.out, ran.err);
    let ran = bivouac(&["rebuild".into(), utf8(&machine.local(0))]);
    assert!(ran.status == 2 && ran.err.contains("--global"), "{}", ran.err);
    let elsewhere = utf8(&machine.root.path().join("elsewhere"));
    let ran = bivouac(&["rebuild".into(), utf8(&machine.local(0)), "--global".into(), elsewhere]);
    assert!(ran.status == 2 && ran.err.contains("not a global directory"), "{}", ran.err);
    // Single segments are accepted as well.
    let mut args: Vec<String> = vec!["rebuild".into(), "--global".into(), utf8(&machine.global())];
    for node in [0, 1, 3] {
        args.extend(names(&machine.memory(node)).iter().map(|name| utf8(&machine.memory(node).join(name))));
    }
    args.extend([JOB, &["--version", "2"]].concat().iter().map(|more| (*more).to_owned()));
    let ran = bivouac(&args);
    assert_eq!(ran.status, 0, "{} {}", ran.out, ran.err);
    assert_eq!(machine.restart_from_global(), Some(2));
}

// ------------------------------------------------------------------------------------------- drain

#[test]
fn the_last_drain_rebuilds_what_a_lost_node_had() {
    for (scheme, lost) in [("xor(4)", &[2][..]), ("rs(2,2)", &[1, 2]), ("partner", &[0])] {
        let machine = Machine::taken(scheme, PartStore::Memory);
        lost.iter().for_each(|node| machine.lose(*node));
        let left: Vec<u32> = (0..4).filter(|node| !lost.contains(node)).collect();
        for (at, node) in left.iter().enumerate() {
            let ran = machine.drain(*node, &[]);
            assert_eq!(ran.status, 0, "{scheme} {} {}", ran.out, ran.err);
            let folder = machine.folder(2).expect("a folder");
            let parts = names(&folder).iter().filter(|name| name.ends_with(".bvp")).count();
            let is_last = at + 1 == left.len();
            // With copies, fewer than all nodes may already have everything.
            let is_complete = folder.join("manifest").exists();
            assert!(is_complete == is_last || (is_complete && scheme == "partner"), "{scheme}: {}", ran.out);
            assert_eq!(parts > 0, !is_complete && scheme != "partner", "{scheme}: {:?}", names(&folder));
        }
        machine.verify();
        assert_eq!(machine.restart_from_global(), Some(2), "{scheme}");
    }
}

#[test]
fn an_older_version_that_survives_the_loss_is_brought_and_not_cleaned_away_before() {
    for (scheme, is_rebooted) in
        [("xor(4)", false), ("partner", false), ("rs(2,2)", false), ("xor(4)", true), ("partner", true)]
    {
        let store = if is_rebooted { PartStore::Local } else { PartStore::Memory };
        let machine = Machine::taken_and_one_without_protection(scheme, store);
        machine.lose(2);
        let left = [0, 1, 3];
        let clean = |node: u32| {
            let global = ["--global".to_owned(), utf8(&machine.global())];
            let mut args: Vec<String> = ["clean", "--all-dead", "--yes"].map(Into::into).into();
            args.push(utf8(&machine.memory(node)));
            args.extend(global.into_iter().filter(|_| machine.global().exists()));
            bivouac(&args)
        };
        if is_rebooted {
            // Only the disks remain.
            left.iter().for_each(|node| std::fs::remove_dir_all(machine.memory(*node)).expect("its memory goes"));
        } else {
            for node in left {
                let ran = clean(node);
                let is_named = ran.err.contains("only copy of version 1 of state");
                assert!(
                    ran.status == 2 && is_named && names(&machine.memory(node)).len() == 1,
                    "{} {}",
                    ran.out,
                    ran.err
                );
            }
        }
        for node in left {
            let ran = machine.drain(node, &[]);
            assert_eq!(ran.status, 0, "{scheme} {} {}", ran.out, ran.err);
        }
        assert!(machine.folder(1).expect("version 1").join("manifest").exists(), "{scheme}");
        for node in left.into_iter().filter(|_| !is_rebooted) {
            let ran = clean(node);
            assert!(ran.status == 0 && names(&machine.memory(node)).is_empty(), "{} {}", ran.out, ran.err);
        }
        machine.verify();
        assert_eq!(machine.restart_from_global(), Some(1), "{scheme}");
    }
}

#[test]
fn drains_of_all_nodes_at_once_complete_the_checkpoint() {
    for _ in 0..3 {
        let machine = Machine::taken("rs(2,2)", PartStore::Memory);
        machine.lose(1);
        std::thread::scope(|scope| {
            let machine = &machine;
            let started = [0, 2, 3].map(|node| scope.spawn(move || machine.drain(node, &["--wait", "1min"])));
            for ran in started.map(|thread| thread.join().expect("no panic")) {
                assert_eq!(ran.status, 0, "{} {}", ran.out, ran.err);
            }
        });
        let folder = machine.folder(2).expect("a folder");
        assert!(!names(&folder).iter().any(|name| name.ends_with(".tmp")), "{:?}", names(&folder));
        machine.verify();
        assert_eq!(machine.restart_from_global(), Some(2));
    }
}

#[test]
fn without_a_loss_no_parity_stays_behind() {
    let machine = Machine::taken("xor(4)", PartStore::Memory);
    (0..4).for_each(|node| assert_eq!(machine.drain(node, &[]).status, 0));
    let folder = machine.folder(2).expect("a folder");
    assert_eq!(names(&folder).len(), 9, "{:?}", names(&folder));
    machine.verify();
    assert_eq!(machine.restart_from_global(), Some(2));
}

#[test]
fn what_a_killed_drain_left_is_completed_by_rebuild_from_the_global_directory_alone() {
    let machine = Machine::taken("xor(4)", PartStore::Memory);
    machine.lose(2);
    // Node 3 drains alone to another place. Its files then come here, as if it had been killed before it rebuilt.
    let aside = machine.root.path().join("aside");
    assert_eq!(machine.drain(3, &[]).status, 0);
    std::fs::rename(machine.global(), &aside).expect("put aside");
    [0, 1].into_iter().for_each(|node| assert_eq!(machine.drain(node, &[]).status, 0));
    let folder = machine.folder(2).expect("a folder");
    let other = aside.join(folder.strip_prefix(machine.global()).expect("below it"));
    for name in names(&other) {
        std::fs::copy(other.join(&name), folder.join(&name)).expect("copied");
    }
    assert_eq!(names(&folder).iter().filter(|name| name.ends_with(".bvp")).count(), 6, "{:?}", names(&folder));
    // The files are good, counted by their kind, and shown.
    let global = utf8(&machine.global());
    let verified = bivouac(&["verify".into(), "--json".into(), utf8(&folder)]);
    let checked = &verified.json()["checked"];
    assert_eq!((verified.status, &checked["shards"], &checked["parts"]), (0, &json!(6), &json!(6)), "{}", verified.out);
    let listed = bivouac(&["ls".into(), "--json".into(), utf8(&folder)]).json();
    let row = &listed["checkpoints"][0];
    assert_eq!((&row["state"], &row["ranks"], &row["parts"]), (&json!("incomplete"), &json!(6), &json!(6)), "{listed}");
    let args = |more: &[&str]| -> Vec<String> {
        ["rebuild", &global, "--global", &global].iter().chain(more).map(|word| (*word).to_owned()).collect()
    };
    let ran = bivouac(&args(&["--json"]));
    let document = ran.json();
    let row = &document["checkpoints"][0];
    assert_eq!((ran.status, &row["rebuilt"], &row["complete"]), (0, &json!([4, 5]), &json!(true)), "{document}");
    assert_eq!(names(&folder).len(), 9, "{:?}", names(&folder));
    machine.verify();
    assert_eq!(machine.restart_from_global(), Some(2));
}

// ------------------------------------------------------------------------------------------- looking at it

#[test]
fn parts_and_copies_are_shown_as_what_they_are_and_verified() {
    let machine = Machine::taken("xor(4)", PartStore::Local);
    let memory = utf8(&machine.memory(1));
    let listed = bivouac(&["ls".into(), "--json".into(), memory.clone()]).json();
    let slots = listed["segments"][0]["slots"].as_array().expect("a list").clone();
    let count = |content: &str| slots.iter().filter(|slot| slot["content"] == json!(content)).count();
    assert!(count("shard") >= 2 && count("parity") >= 2, "{listed}");
    let table = bivouac(&["ls".into(), memory.clone()]).out;
    assert!(table.contains("CONTENT") && table.contains("parity"), "{table}");
    let text = bivouac(&["inspect".into(), memory.clone()]).out;
    assert!(text.contains("parity part of rank 2") && text.contains("shard of rank 2"), "{text}");
    let verified = bivouac(&["verify".into(), "--json".into(), memory.clone()]).json();
    assert_eq!(
        (&verified["good"], &verified["checked"]["parts"]),
        (&json!(true), &json!(count("parity"))),
        "{verified}"
    );
    // On the local tier, a part is no shard and belongs to no manifest.
    let local = utf8(&machine.local(1));
    let listed = bivouac(&["ls".into(), "--json".into(), local.clone()]).json();
    for row in listed["checkpoints"].as_array().expect("a list") {
        assert_eq!((&row["parts"], &row["copies"]), (&json!(2), &json!(0)), "{listed}");
    }
    let verified = bivouac(&["verify".into(), "--json".into(), local.clone()]);
    assert_eq!(verified.status, 0, "{}", verified.out);
    assert!(!verified.out.contains("does not belong here"), "{}", verified.out);
    // A flipped bit in a part is found, and so is a part that has the name of a shard, which belongs to no rank.
    let part = find(&machine.local(1), "p000002.bvp");
    let inspected = bivouac(&["inspect".into(), utf8(&part)]);
    assert!(inspected.status == 0 && inspected.out.contains("1 parity parts"), "{}", inspected.out);
    let good = std::fs::read(&part).expect("read");
    let mut bad = good.clone();
    bad[70_000] ^= 1;
    std::fs::write(&part, bad).expect("written");
    let verified = bivouac(&["verify".into(), local.clone()]);
    assert!(verified.status == 1 && verified.out.contains("\"parity.0\" of rank 2 is damaged"), "{}", verified.out);
    std::fs::write(&part, &good).expect("written");
    std::fs::write(part.with_file_name("r000007.bvs"), &good).expect("written");
    let verified = bivouac(&["verify".into(), local.clone()]);
    assert!(verified.status == 1 && verified.out.contains("where a shard belongs"), "{}", verified.out);
    let refused = bivouac(&["rm".into(), "--yes".into(), utf8(&part)]);
    assert!(refused.status == 2 && part.exists(), "{}", refused.err);
}

#[test]
fn copies_that_a_disk_keeps_for_others_are_not_counted_as_its_own() {
    let machine = Machine::taken("partner", PartStore::Local);
    let listed = bivouac(&["ls".into(), "--json".into(), utf8(&machine.local(1))]).json();
    let committed: Vec<&Value> = listed["checkpoints"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|row| row["state"] == json!("committed"))
        .collect();
    assert!(!committed.is_empty(), "{listed}");
    for row in committed {
        assert_eq!((&row["ranks"], &row["copies"]), (&json!(2), &json!(2)), "{listed}");
    }
    let table = bivouac(&["ls".into(), utf8(&machine.local(1))]).out;
    assert!(table.contains("FOR OTHERS") && table.contains("2 shards"), "{table}");
}

#[test]
fn what_is_protected_by_the_memory_of_other_nodes_only_is_not_cleaned_away() {
    let machine = Machine::taken("xor(4)", PartStore::Memory);
    let folder = machine.memory(1);
    let before = names(&folder);
    let segment = utf8(&folder.join(&before[0]));
    let refused = bivouac(&["rm".into(), "--yes".into(), segment]);
    assert!(refused.status == 2 && refused.err.contains("only copy of version 2"), "{}", refused.err);
    let kept = bivouac(&["clean".into(), "--all-dead".into(), "--yes".into(), utf8(&folder)]);
    assert!(kept.status == 2 && kept.out.contains("kept"), "{} {}", kept.out, kept.err);
    assert_eq!(names(&folder), before);
}

/// The first file of this name below a folder.
fn find(folder: &Path, name: &str) -> PathBuf {
    fn look(folder: &Path, name: &str) -> Option<PathBuf> {
        names(folder).into_iter().map(|entry| folder.join(entry)).find_map(|path| match path.is_dir() {
            true => look(&path, name),
            false => path.ends_with(name).then_some(path),
        })
    }
    look(folder, name).unwrap_or_else(|| panic!("no {name} in {}", folder.display()))
}
