//! Sessions whose ranks are threads, on simulated storage: what a run leaves to the next one, and what storage does to them.

use super::place::{Place, Workers};
use super::{Error, Pending, Restored, Session};
use crate::base::clock::SystemClock;
use crate::base::limit::LIMIT;
use crate::base::rng;
use crate::base::{CheckpointKey, Clock, Generation, Level};
use crate::comm::threads;
use crate::config::{Budget, Config, JobConfig, Scheme};
use crate::segment;
use crate::tier::directory::DirectoryTier;
use crate::tier::simulated::{Fault, Simulated};
use crate::tier::storage::Storage;
use crate::tier::wrappers::{Call, Observer, Watched};
use crate::tier::{PerTier, Tier, TierId};
use crate::transfer::report::REPORTS_MAX;
use crate::transfer::{LevelVerdict, Report};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex};
use std::time::{Duration, Instant};

mod damage;
mod decomposed;
mod files;
mod hangs;
mod held;
mod levels;
mod lookups;
mod numbered;
mod profile;
mod reduction;
mod resized;
mod rows;
mod states;
mod streams;
mod tuning;
mod wanted;

/// One disk with `/local` and `/global`, a folder for segments, and a clock.
struct Bed {
    disk: Simulated,
    memory: tempfile::TempDir,
    sessions: AtomicU64,
    clock: Arc<Leaping>,
}

/// The machine's clock, which a test may put forward. Outlasting a time-out then takes no time, and time-outs can be so long that no busy
/// machine runs into them.
#[derive(Default)]
struct Leaping {
    real: SystemClock,
    ahead_ms: AtomicU64,
}

impl Leaping {
    fn leap(&self, by: Duration) {
        self.ahead_ms.fetch_add(by.as_millis() as u64, Ordering::Relaxed);
    }
}

impl Clock for Leaping {
    fn now(&self) -> Duration {
        self.real.now() + Duration::from_millis(self.ahead_ms.load(Ordering::Relaxed))
    }

    fn sleep(&self, pause: Duration) {
        self.real.sleep(pause);
    }
}

impl Bed {
    fn new() -> Bed {
        let memory = tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").expect("a folder");
        Bed { disk: Simulated::new(), memory, sessions: AtomicU64::new(1), clock: Arc::default() }
    }

    fn config(&self) -> Config {
        let mut config = Config::default();
        config.job.name = Some("tests".into());
        config.job.block_bytes = 4096;
        config.job.global_directory = PathBuf::from("/global");
        config.node.local_directory = Some(PathBuf::from("/local"));
        config.node.memory_directory = self.memory.path().to_owned();
        config.node.memory_budget = Budget::Bytes(16 << 20);
        config
    }

    /// A place of a new process on the disk.
    fn place(&self) -> Place {
        let disk: Arc<dyn Storage> = Arc::new(self.disk.process(self.sessions.fetch_add(1, Ordering::Relaxed)));
        Place {
            clock: self.clock.clone(),
            local: disk.clone(),
            global: disk,
            workers: Workers::Threads,
            later: None,
            group: "world".into(),
            fresh: rng::incarnation().expect("randomness"),
            host: "machine".into(),
            boot: "boot".into(),
            program: "tests".into(),
            command: "tests".into(),
            directory: PathBuf::from("/"),
            temporary: PathBuf::from("/tmp"),
            user: 1000,
            is_real: false,
        }
    }

    /// Runs a session on two nodes with one rank each. All calls to a tier's storage pass `gate`.
    fn on_two_nodes(
        &self,
        tier: TierId,
        gate: &Arc<Gate>,
        change: impl Fn(&mut Config),
        work: impl Fn(Session) + Sync,
    ) {
        let place = self.place();
        std::thread::scope(|scope| {
            for (node, comm) in (0..2).zip(threads::world(&[0, 1])) {
                let mut config = self.config();
                config.node.memory_directory = self.memory.path().join(format!("node-{node}"));
                std::fs::create_dir_all(&config.node.memory_directory).expect("our own folder");
                config.node.local_directory = Some(PathBuf::from(format!("/local-{node}")));
                change(&mut config);
                let place = behind(place.clone(), tier, gate);
                let work = &work;
                scope.spawn(move || work(Session::open_on(Box::new(comm), &place, config).expect("opens")));
            }
        });
    }

    /// Opens a session of one rank.
    fn open(&self, place: &Place, config: Config) -> Session {
        let comm = threads::world(&[0]).remove(0);
        Session::open_on(Box::new(comm), place, config).expect("opens")
    }

    /// The job's folder on a tier.
    fn job(&self, place: &Place, config: &Config, tier: &str) -> PathBuf {
        Path::new(tier).join(super::place::job_key(config, place)).join("world")
    }
}

/// A place in which `observer` sees all calls to a tier's storage.
fn behind<O: Observer + 'static>(mut place: Place, tier: TierId, observer: &Arc<O>) -> Place {
    let storage = if tier == TierId::LOCAL { &mut place.local } else { &mut place.global };
    *storage = Arc::new(Watched::new(storage.clone(), observer.clone()));
    place
}

/// Waits until a condition holds.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a session of two ranks on one node. Each rank has its own place.
fn on_one_node(places: &[Place; 2], config: &Config, work: impl Fn(usize, Session) + Sync) {
    std::thread::scope(|scope| {
        for (rank, (comm, place)) in threads::world(&[0, 0]).into_iter().zip(places).enumerate() {
            let (work, config) = (&work, config.clone());
            scope.spawn(move || work(rank, Session::open_on(Box::new(comm), place, config).expect("opens")));
        }
    });
}

/// Runs a session with one rank for each entry of `nodes`, which is the node of that rank. Returns what each rank returned, by rank. A node
/// keeps its memory and its node-local storage from run to run.
fn on_nodes<T: Send>(
    bed: &Bed,
    nodes: &[u32],
    change: impl Fn(&mut Config),
    work: impl Fn(u32, Session) -> T + Sync,
) -> Vec<T> {
    let place = bed.place();
    let mut distinct = nodes.to_vec();
    distinct.dedup();
    let numbered = |node: &u32| distinct.iter().position(|known| known == node).expect("one of them") as u32;
    let world: Vec<u32> = nodes.iter().map(numbered).collect();
    std::thread::scope(|scope| {
        let ranks = (0..).zip(threads::world(&world)).map(|(rank, comm)| {
            let mut config = bed.config();
            let node = nodes[rank as usize];
            config.node.memory_directory = bed.memory.path().join(format!("node-{node}"));
            _ = std::fs::create_dir_all(&config.node.memory_directory);
            config.node.local_directory = Some(PathBuf::from(format!("/local-{node}")));
            change(&mut config);
            let (work, place) = (&work, place.clone());
            scope.spawn(move || work(rank, Session::open_on(Box::new(comm), &place, config).expect("opens")))
        });
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().expect("no panic")).collect()
    })
}

/// Takes a version of `heat` whose content is its number.
fn take(session: &Session, version: u64) -> Pending {
    let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
    checkpoint.value("step", &version).expect("saved");
    checkpoint.capture().expect("captured")
}

/// Takes a version with an array of `bytes` bytes.
fn take_bytes(session: &Session, version: u64, bytes: usize) -> Result<Pending, Error> {
    let array = vec![7u8; bytes];
    let mut checkpoint = session.begin_checkpoint("heat", version)?;
    checkpoint.save("array", &array)?;
    checkpoint.value("step", &version)?;
    checkpoint.capture()
}

/// Takes versions and waits until they are committed at a level.
fn commit(session: &Session, versions: &[u64], level: Level) {
    for version in versions {
        let reached = take(session, *version).wait(level).expect("committed");
        assert!(reached >= level, "version {version} came to {reached}");
    }
}

/// How each level of a checkpoint ended: `None` if it was reached, otherwise the reason.
fn ended(pending: &Pending) -> Vec<(Level, Option<String>)> {
    wait_until("all levels end", || pending.poll());
    let reason = |verdict| match verdict {
        LevelVerdict::Unknown(why) => panic!("unknown: {why}"),
        verdict => verdict.reason(),
    };
    let mut ended: Vec<_> = pending.verdicts().into_iter().map(|(level, verdict)| (level, reason(verdict))).collect();
    ended.sort();
    ended
}

fn levels(verdicts: &[(Level, Option<String>)], is_committed: bool) -> Vec<Level> {
    verdicts.iter().filter(|(_, reason)| reason.is_none() == is_committed).map(|(level, _)| *level).collect()
}

/// Restarts `heat` and checks that the value is that of the restored version.
fn restart(session: &Session) -> Option<Restored> {
    let mut step = 0u64;
    let load = |r: &mut crate::recovery::Attempt| {
        step = r.value("step")?;
        Ok(())
    };
    let restored = session.begin_restore("heat").run(load).expect("restarts");
    assert_eq!(restored.as_ref().map(|restored| restored.version), restored.as_ref().map(|_| step));
    restored
}

// ------------------------------------------------------------------------------------------ claims and generations

/// A series was copied to a new store, or a purge removed the small old files: the numbers of runs must continue above those of the
/// checkpoints. Otherwise, each new run would be older than the checkpoint from which it started, and the next run would start from there
/// again.
#[test]
fn a_run_on_checkpoints_without_claims_takes_a_generation_above_theirs() {
    let bed = Bed::new();
    let mut config = bed.config();
    (config.job.memory_enabled, config.job.local_enabled) = (false, false);
    let run = |version, from| {
        let place = bed.place();
        let session = bed.open(&place, config.clone());
        assert_eq!(restart(&session).map(|restored| restored.version), from);
        commit(&session, &[version], Level::System);
        let generation = session.generation();
        session.close().expect("closes");
        let claims = bed.job(&place, &config, "/global").join("claims");
        bed.disk.lose(&claims).expect("it is there");
        generation
    };
    assert_eq!([run(12, None), run(13, Some(12)), run(14, Some(13))], [1, 2, 3]);
}

/// Somebody removes the global directory to begin anew, while the versions that the killed run had in node memory still exist.
#[test]
fn a_new_store_begins_without_the_memory_of_the_old_one() {
    let bed = Bed::new();
    let mut config = bed.config();
    config.job.local_enabled = false;
    let begin = || {
        let session = bed.open(&bed.place(), config.clone());
        (restart(&session).map(|restored| restored.version), session)
    };
    let (none, first) = begin();
    commit(&first, &[1], Level::System);
    commit(&first, &[2], Level::Process);
    drop(first);
    bed.disk.drop_locks();
    let (same_store, second) = begin();
    assert_eq!((none, same_store), (None, Some(2)), "on its own store it goes on");
    drop(second);
    bed.disk.lose(Path::new("/global")).expect("it is there");
    let (other_store, third) = begin();
    assert_eq!((other_store, third.generation()), (None, 3));
    third.close().expect("closes");
}

/// The run goes back to version 3 and takes 4 and 5; it goes back to 3 again and takes 4, 5 and 6. The three newest versions that count are
/// kept.
#[test]
fn a_run_that_goes_back_twice_keeps_what_it_took_last() {
    let bed = Bed::new();
    let mut config = bed.config();
    (config.job.memory_enabled, config.job.local_enabled) = (false, false);
    config.job.global.keep_last = 3;
    let place = bed.place();
    let session = bed.open(&place, config.clone());
    commit(&session, &[1, 2, 3], Level::System);
    for taken in [&[4, 5][..], &[4, 5], &[4, 5, 6]] {
        let restored = session.begin_restore("heat").version(3).run(|_| Ok(())).expect("restarts");
        assert_eq!(restored.map(|restored| restored.version), Some(3));
        commit(&session, taken, Level::System);
    }
    session.close().expect("closes");
    let series = bed.job(&place, &config, "/global").join("heat");
    let folders = bed.disk.list(&series).expect("it is there");
    let kept: Vec<_> = folders.iter().filter_map(|entry| CheckpointKey::parse_folder(&entry.name)).collect();
    let first = kept.first().expect("some").2;
    let expected: Vec<_> = (0..3).map(|i| (Generation(1), 4 + i, first + i)).collect();
    assert_eq!(kept, expected, "version 4 was taken first, and 5 and 6 after it");
}

/// Two jobs, or two halves of a communicator, open sessions at the same moment, and each finds that it can write to the directory.
#[test]
fn sessions_that_try_a_local_directory_at_the_same_moment_all_keep_it() {
    let bed = Bed::new();
    let together = Arc::new(Together::default());
    std::thread::scope(|scope| {
        for group in ["left", "right"] {
            let (bed, together) = (&bed, together.clone());
            scope.spawn(move || {
                let mut config = bed.config();
                config.job.group = Some(group.into());
                config.job.global_enabled = false;
                let place = bed.place();
                let place = Place { local: Arc::new(Watched::new(place.local.clone(), together)), ..place };
                let session = bed.open(&place, config);
                commit(&session, &[1], Level::NodeReboot);
                session.close().expect("closes");
            });
        }
    });
}

/// Keeps each probe file from getting its final name until two probe files are being written.
#[derive(Default)]
struct Together {
    written: Mutex<u32>,
    changed: Condvar,
}

impl Observer for Together {
    fn before(&self, call: Call, path: &Path, _: u64) -> io::Result<()> {
        if call == Call::Sync && path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("probe")) {
            let mut written = self.written.lock().expect("no panic");
            *written += 1;
            self.changed.notify_all();
            drop(self.changed.wait_timeout_while(written, LIMIT, |written| *written < 2));
        }
        Ok(())
    }
}

#[test]
fn verdicts_that_nobody_asks_for_are_kept_up_to_a_number() {
    let bed = Bed::new();
    let mut config = bed.config();
    (config.job.local_enabled, config.job.global_enabled) = (false, false);
    let session = bed.open(&bed.place(), config);
    let last = REPORTS_MAX as u64 + 100;
    commit(&session, &(1..=last).collect::<Vec<_>>(), Level::Process);
    let reports = session.reports();
    assert_eq!((reports.len(), reports.last().map(|report| report.key.version)), (REPORTS_MAX, Some(last)));
    assert!(session.reports().is_empty());
    session.close().expect("closes");
}

// ------------------------------------------------------------------------------------------ never a mixed state

/// Runs a session on two nodes that takes versions 1 and 2, each with the run's number in it.
fn run_on_two_nodes(bed: &Bed, number: u64, change: impl Fn(&mut Config), level: Level) {
    bed.on_two_nodes(TierId::GLOBAL, &Arc::default(), change, |session| {
        for version in [1, 2] {
            let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
            checkpoint.value("run", &number).expect("saved");
            let reached = checkpoint.capture().expect("captured").wait(level).expect("committed");
            assert!(reached >= level, "version {version} came to {reached}");
        }
        session.close().expect("closes");
    });
}

/// What the two ranks of a new run restore, each as the version and the number of the run that took it, and the versions that they tried.
fn restart_on_two_nodes(bed: &Bed, change: impl Fn(&mut Config)) -> (Vec<Option<(u64, u64)>>, Vec<u64>) {
    let (restored, tried): (Mutex<Vec<_>>, Mutex<Vec<_>>) = Default::default();
    bed.on_two_nodes(TierId::GLOBAL, &Arc::default(), change, |session| {
        let mut found = None;
        let load = |r: &mut crate::recovery::Attempt| {
            tried.lock().expect("no panic").push(r.version());
            found = Some((r.version(), r.value("run")?));
            Ok(())
        };
        let is_restored = session.begin_restore("heat").run(load).is_ok_and(|restored| restored.is_some());
        restored.lock().expect("no panic").push(found.filter(|_| is_restored));
        session.close().expect("closes");
    });
    (restored.into_inner().expect("no panic"), tried.into_inner().expect("no panic"))
}

/// The files below `top` that belong to version 2 and end in `name`.
fn of_version_2(bed: &Bed, top: &str, name: &str) -> Vec<PathBuf> {
    let files = bed.disk.files(Path::new(top)).into_iter().map(|(path, _)| path);
    files.filter(|path| path.ends_with(name) && path.to_string_lossy().contains("-v0000000002-")).collect()
}

fn on_local_alone(config: &mut Config) {
    (config.job.memory_enabled, config.job.global_enabled) = (false, false);
    config.job.local.keep_last = 2;
}

fn on_global_alone(config: &mut Config) {
    (config.job.memory_enabled, config.job.local_enabled) = (false, false);
    config.job.global.keep_last = 2;
}

fn in_memory_alone(config: &mut Config) {
    (config.job.local_enabled, config.job.global_enabled) = (false, false);
}

/// A failed attempt costs as much as one that succeeds, and the ranks that have the version would pay for it.
#[test]
fn a_version_that_one_rank_cannot_restore_is_tried_by_none() {
    let bed = Bed::new();
    run_on_two_nodes(&bed, 7, on_local_alone, Level::NodeReboot);
    let lost = of_version_2(&bed, "/local-1", "r000001.bvs");
    assert_eq!(lost.len(), 1, "{lost:?}");
    bed.disk.lose(&lost[0]).expect("it is there");
    assert_eq!(restart_on_two_nodes(&bed, on_local_alone), (vec![Some((1, 7)); 2], vec![1, 1]));
}

/// Two runs had the same number, because the claims were removed or lost with a disk. They wrote the same version in the same operation:
/// one rank's file comes from one run, and the other's from the other run.
#[test]
fn two_incarnations_in_one_folder_are_not_mixed() {
    for (top, has_manifest) in [("/local-1", true), ("/global", true), ("/global", false)] {
        let (change, level): (fn(&mut Config), _) = match top {
            "/global" => (on_global_alone, Level::System),
            _ => (on_local_alone, Level::NodeReboot),
        };
        let (one, other) = (Bed::new(), Bed::new());
        run_on_two_nodes(&one, 1, change, level);
        run_on_two_nodes(&other, 2, change, level);
        let foreign = of_version_2(&one, top, "r000001.bvs");
        assert_eq!((foreign.len(), &foreign), (1, &of_version_2(&other, top, "r000001.bvs")));
        let key = |bed: &Bed| {
            let tier = DirectoryTier::new(TierId::LOCAL, Arc::new(bed.disk.clone()), PathBuf::from("/"));
            tier.open_container(&foreign[0]).expect("sound").0.entries[0].key
        };
        assert_ne!(key(&one), key(&other));
        let bytes = one.disk.read_all(&foreign[0], 1 << 20).expect("it is there");
        other.disk.write_all(&foreign[0], &bytes).expect("there is room");
        if !has_manifest {
            other.disk.lose(&of_version_2(&other, top, "manifest")[0]).expect("it is there");
        }
        let (restored, tried) = restart_on_two_nodes(&other, change);
        assert_eq!(restored, [Some((1, 2)); 2], "{top}, manifest: {has_manifest}");
        // A manifest of the global tier is believed until the shard is opened.
        assert_eq!(tried.contains(&2), top == "/global" && has_manifest, "{tried:?}");
    }
}

/// Checkpoints of two runs with the same number are not mixed in node memory either: one node was away while another run took the number of
/// the previous run.
#[test]
fn two_incarnations_in_the_memory_of_two_nodes_are_not_mixed() {
    let (one, other) = (Bed::new(), Bed::new());
    run_on_two_nodes(&one, 1, in_memory_alone, Level::Process);
    run_on_two_nodes(&other, 2, in_memory_alone, Level::Process);
    let [from, to] = [&one, &other].map(|bed| bed.memory.path().join("node-1"));
    std::fs::remove_dir_all(&to).expect("our own folder");
    std::fs::rename(from, to).expect("our own folders");
    assert_eq!(restart_on_two_nodes(&other, in_memory_alone).0, [None; 2]);
}

// ------------------------------------------------------------------------------------------ what a session counts

/// Waits until every level of a checkpoint has been reached or given up.
fn settle(pending: &Pending) {
    let clock = SystemClock::default();
    while !pending.poll() {
        assert!(clock.now() < LIMIT, "{:?}", pending.verdicts());
        clock.sleep(Duration::from_millis(1));
    }
}

fn take_and_settle(session: &Session, version: u64) -> Level {
    let pending = take(session, version);
    settle(&pending);
    pending.level()
}

#[test]
fn a_session_counts_what_it_takes_and_where_that_lies() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), bed.config());
    let mut blocked = Duration::ZERO;
    for version in 1..=3 {
        assert_eq!(take_and_settle(&session, version), Level::System);
        let stats = session.stats();
        blocked += stats.blocked_last;
        assert_eq!((stats.captured, stats.bytes_captured, stats.blocked_total), (version, 8 * version, blocked));
        assert!(stats.blocked_last <= stats.blocked_max && stats.blocked_max <= blocked);
    }
    let stats = session.stats();
    assert_eq!(stats.committed, PerTier::from([(TierId::MEMORY, 3), (TierId::LOCAL, 3), (TierId::GLOBAL, 3)]));
    assert_eq!(
        stats.newest,
        PerTier::from([TierId::MEMORY, TierId::LOCAL, TierId::GLOBAL].map(|tier| (tier, Some(3))))
    );
    assert!(
        stats.flushed_bytes[TierId::LOCAL] > stats.bytes_captured
            && stats.flushed_bytes[TierId::GLOBAL] > stats.bytes_captured
    );
    assert!(stats.flushed_time[TierId::LOCAL] > Duration::ZERO && stats.flushed_time[TierId::GLOBAL] > Duration::ZERO);
    assert_eq!((stats.abandoned, stats.level_failures, stats.write_failures), Default::default());
    assert_eq!((stats.room_waits, stats.room_wait_total, stats.direct_captures), Default::default());
    session.close().expect("closes");
}

/// The first checkpoint of a run is due on all tiers. After that, the tier that had to take the shard has it, whichever tier was due.
#[test]
fn without_memory_a_capture_writes_to_the_nearest_tier_and_that_level_counts() {
    for (local, level) in [(true, Level::NodeReboot), (false, Level::System)] {
        let bed = Bed::new();
        let mut config = bed.config();
        (config.job.memory_enabled, config.job.local_enabled) = (false, local);
        (config.job.local.every, config.job.global.every) = (1000.into(), 1000.into());
        let session = bed.open(&bed.place(), config);
        assert_eq!([1, 2, 3].map(|version| take_and_settle(&session, version)), [Level::System, level, level]);
        let stats = session.stats();
        assert_eq!((stats.direct_captures, stats.committed[TierId::MEMORY]), (3, 0));
        assert_eq!(
            stats.committed,
            PerTier::from([(TierId::LOCAL, if local { 3 } else { 0 }), (TierId::GLOBAL, if local { 1 } else { 3 })])
        );
        let nearest = if local { stats.flushed_bytes[TierId::LOCAL] } else { stats.flushed_bytes[TierId::GLOBAL] };
        assert_eq!(nearest, 0, "nothing of it was written in the background");
        session.close().expect("closes");
    }
}

#[test]
fn a_level_that_some_rank_cannot_reach_is_given_up_and_the_others_are_kept() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), bed.config());
    assert_eq!(take_and_settle(&session, 1), Level::System);
    bed.disk.inject(Path::new("/local"), Fault::Full).expect("it is a path");
    let pending = take(&session, 2);
    settle(&pending);
    assert_eq!(pending.level(), Level::System);
    let said = pending.verdicts();
    assert!(
        said.iter().any(|(level, verdict)| *level == Level::NodeReboot
            && matches!(verdict, LevelVerdict::Abandoned(who) if who[0].text.contains("/local"))),
        "{said:?}"
    );
    let stats = session.stats();
    assert_eq!(stats.committed, PerTier::from([(TierId::MEMORY, 2), (TierId::LOCAL, 1), (TierId::GLOBAL, 2)]));
    assert_eq!(stats.level_failures, PerTier::from([(TierId::LOCAL, 1)]));
    bed.disk.heal(Path::new("/local")).expect("it is a path");
    session.close().expect("closes");
}

#[test]
fn what_runs_left_that_died_before_their_first_checkpoint_is_removed() {
    let bed = Bed::new();
    let left = || segment::list(bed.memory.path(), "").expect("our own folder");
    let die = |session: Session| {
        drop(session);
        // Writers end by themselves; in a process that died, they would have ended.
        while left().iter().any(|name| segment::is_held(bed.memory.path(), name).expect("ours")) {
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let first = bed.open(&bed.place(), bed.config());
    take(&first, 1).wait(Level::Process).expect("in memory");
    die(first);
    for _ in 0..3 {
        die(bed.open(&bed.place(), Config { job: JobConfig { take_over: true, ..bed.config().job }, ..bed.config() }));
    }
    assert_eq!(left().len(), 2, "that of the first, which holds a checkpoint, and the last one's");
}

#[test]
fn ranks_that_share_processors_are_told_from_those_that_do_not() {
    assert!(super::layer::is_crowded(3, Some(2)) && !super::layer::is_crowded(2, Some(2)));
    assert!(!super::layer::is_crowded(99, None), "nobody knows");
}

#[test]
fn who_talks_over_what_follows_from_the_wish_and_from_what_mpi_grants() {
    use crate::base::log::Level;
    use crate::comm::sockets::Wish;
    use crate::config::Progress;
    let wish = super::layer::wish;
    // With a thread and a processor for each rank, MPI will do. If one of them is missing, streams are needed. In stepped mode, they are
    // refused.
    assert_eq!(wish(Progress::Auto, true, false), Wish::Whatever);
    let needs = [(Progress::Auto, true, true), (Progress::Auto, false, false), (Progress::Sockets, true, false)];
    assert_eq!(needs.map(|(wanted, threaded, crowded)| wish(wanted, threaded, crowded)), [Wish::Need; 3]);
    assert_eq!(wish(Progress::Stepped, false, false), Wish::Refuse);

    let says = |wanted, is_threaded| super::layer::without_streams("no route", wanted, is_threaded, "FUNNELED");
    let (level, line) = says(Progress::Auto, false);
    assert_eq!(level, Level::Warn);
    for word in
        ["no-comm-thread", "FUNNELED", "no route", "only while the application is in a call", "OMPI_MPI_THREAD_LEVEL"]
    {
        assert!(line.contains(word), "{line}");
    }
    assert_eq!(says(Progress::Auto, true).0, Level::Debug, "nothing is lost");
    assert_eq!(says(Progress::Sockets, true).0, Level::Warn, "somebody asked for it");
}

/// A place in which neither node memory nor local files can be created.
fn without_local_tiers(bed: &Bed) -> (Place, Config) {
    let mut config = bed.config();
    config.node.memory_directory = bed.memory.path().join("nowhere");
    bed.disk.inject(Path::new("/local"), Fault::ReadOnly).expect("it is a path");
    (bed.place(), config)
}

#[test]
fn a_tier_that_cannot_be_used_is_reported_and_named_to_who_waits_for_it() {
    let bed = Bed::new();
    let (place, config) = without_local_tiers(&bed);
    on_one_node(&[place.clone(), place], &config, |_, session| {
        let reports = session.reports();
        let [memory, local] = &reports[..] else { panic!("{reports:?}") };
        let reason = |report: &Report| report.verdict.reason().expect("it is off");
        assert_eq!((memory.level, local.level), (Level::Process, Level::NodeReboot));
        assert!(memory.name.is_empty() && matches!(memory.verdict, LevelVerdict::Off(_)));
        assert!(reason(memory).contains("nowhere"), "{}", reason(memory));
        assert!(reason(local).contains("all 2 ranks: local tier: ") && reason(local).contains("/local"), "{reports:?}");
        assert_eq!(session.reports(), [], "once");
        let pending = take(&session, 1);
        assert_eq!(pending.wait(Level::System).expect("the global tier is there"), Level::System);
        session.close().expect("closes");
    });
    bed.disk.heal(Path::new("/local")).expect("it is a path");
    let config = Config { job: JobConfig { global_directory: "/readonly".into(), ..bed.config().job }, ..bed.config() };
    bed.disk.inject(Path::new("/readonly"), Fault::ReadOnly).expect("it is a path");
    let session = bed.open(&bed.place(), config);
    let why = take(&session, 1).wait(Level::System).expect_err("nothing reaches it").to_string();
    assert!(why.contains("system off since the session was opened (rank 0: global tier: "), "{why}");
    assert!(why.contains("/readonly"), "{why}");
    session.close().expect("closes");
}

#[test]
fn a_tier_that_is_required_keeps_the_session_from_opening() {
    let bed = Bed::new();
    let (place, config) = without_local_tiers(&bed);
    for (tier, place_named) in [(TierId::MEMORY, "nowhere"), (TierId::LOCAL, "/local")] {
        let mut config = config.clone();
        *(if tier == TierId::MEMORY { &mut config.job.memory_required } else { &mut config.job.local_required }) = true;
        let heard: Mutex<Vec<String>> = Mutex::default();
        std::thread::scope(|scope| {
            for comm in threads::world(&[0, 0]) {
                let (place, config, heard) = (&place, config.clone(), &heard);
                scope.spawn(move || {
                    let error = Session::open_on(Box::new(comm), place, config).map(drop).expect_err("it is required");
                    heard.lock().expect("whole").push(error.to_string());
                });
            }
        });
        let heard = heard.into_inner().expect("whole");
        assert!(heard.len() == 2 && heard[0] == heard[1], "{heard:?}");
        assert!(heard[0].contains(&format!("{tier} tier: ")) && heard[0].contains(place_named), "{heard:?}");
    }
}

/// Two checkpoints that are being flushed fill the memory: the third capture waits for as long as it may, and then writes to a file.
#[test]
fn a_capture_without_room_waits_for_a_flush_as_long_as_it_may() {
    let (bed, gate) = (Bed::new(), Arc::new(Gate::default()));
    let place = behind(bed.place(), TierId::GLOBAL, &gate);
    let mut config = bed.config();
    config.job.timeouts.room = Duration::from_millis(200);
    let session = bed.open(&place, config);
    let array = vec![7u8; 6 << 20];
    let large = |version| {
        let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
        checkpoint.save("array", &array).expect("saved");
        checkpoint.capture().expect("captured")
    };
    gate.close();
    let forced = gate.watch_over(|| {
        let mut taken: Vec<Pending> = (1..=2).map(large).collect();
        assert_eq!(session.stats().room_waits, 0);
        taken.push(large(3));
        let stats = session.stats();
        assert_eq!((stats.room_waits, stats.direct_captures), (1, 1));
        assert!(stats.room_wait_total >= Duration::from_millis(200) && stats.room_wait_total <= stats.blocked_last);
        gate.open();
        taken.iter().for_each(settle);
        assert_eq!(taken.iter().map(Pending::level).collect::<Vec<_>>(), [Level::System; 3]);
        // Checkpoints that have been flushed give up their memory.
        settle(&large(4));
        assert_eq!((session.stats().room_waits, session.stats().direct_captures), (1, 1));
    });
    assert!(!forced, "something waited for the global file system");
    session.close().expect("closes");
}

/// A checkpoint without regions would be the newest, and would hide those that have regions.
#[test]
fn a_checkpoint_of_nothing_is_refused_and_reported_on_all_ranks() {
    let bed = Bed::new();
    let place = bed.place();
    on_one_node(&[place.clone(), place], &bed.config(), |rank, session| {
        take(&session, 1).wait(Level::System).expect("committed");
        let nothing = session.begin_checkpoint("heat", 2).expect("begun").capture();
        let error = nothing.err().expect("it has no region").to_string();
        assert!(error.contains("version 2 of \"heat\" has no region"), "{error}");
        // One rank gives a wrong name, and the other drops its checkpoint.
        let bad = session.begin_checkpoint(if rank == 0 { "he/at" } else { "heat" }, 3);
        drop(bad);
        let reports = || {
            let told = session.reports().into_iter().filter(|report| report.level == Level::Captured);
            told.map(|report| (report.key.version, report.verdict.reason().expect("a refusal"))).collect::<Vec<_>>()
        };
        let mut heard = Vec::new();
        wait_until("both refusals are reported", || {
            heard.extend(reports());
            heard.len() >= 2
        });
        assert_eq!(heard.iter().map(|(version, _)| *version).collect::<Vec<_>>(), [2, 3], "{heard:?}");
        assert!(heard[0].1.contains("all 2 ranks: version 2 of \"heat\" has no region"), "{heard:?}");
        assert!(heard[1].1.contains("rank 0: ") && heard[1].1.contains("he/at"), "{heard:?}");
        assert_eq!(restart(&session).map(|restored| restored.version), Some(1));
        session.close().expect("closes");
    });
}

#[test]
fn an_error_reads_the_same_in_debug_output() {
    let error = Error::Failed { reason: "the root is silent".into() };
    assert_eq!(format!("{error:?}"), error.to_string());
}

/// Without a pause, each capture waits for a flush, and the flush ends while the capture looks for a flush that it could wait for.
#[test]
fn no_capture_goes_to_a_file_while_a_flush_that_gives_it_room_is_ending() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), bed.config());
    for version in 1..=200 {
        take_bytes(&session, version, 3 << 20).expect("captured");
    }
    let stats = session.stats();
    assert_eq!((stats.captured, stats.direct_captures), (200, 0));
    session.close().expect("closes");
}

/// The memory has room for little more than one checkpoint of each rank. It then counts as no level, and a checkpoint leaves it when it has
/// been flushed. A rank that already knows this, and wants room again, waits for the others.
#[test]
fn memory_that_a_flush_gives_back_is_told_from_memory_that_is_a_level() {
    for (budget, passes) in [(8 << 20, true), (32 << 20, false)] {
        let (bed, gate, together) = (Bed::new(), Arc::new(Gate::default()), Barrier::new(2));
        let places = [(); 2].map(|()| behind(bed.place(), TierId::GLOBAL, &gate));
        let mut config = bed.config();
        config.node.memory_budget = Budget::Bytes(budget);
        let forced = gate.watch_over(|| {
            on_one_node(&places, &config, |_, session| {
                together.wait();
                gate.close();
                let pending = take_bytes(&session, 1, 3 << 20).expect("captured");
                assert_eq!(pending.wait(Level::NodeReboot).expect("committed"), Level::NodeReboot);
                let (memory, next) = (session.engine.memory().expect("it is on"), session.engine.next_operation());
                together.wait();
                assert_eq!(memory.others_give_back(next).expect("asked"), passes);
                together.wait();
                gate.open();
                settle(&pending);
                wait_until("the other one has heard, too", || !memory.others_give_back(next).expect("asked"));
                together.wait();
                session.close().expect("closes");
            });
        });
        assert!(!forced, "something waited for the global file system");
    }
}

/// A dead run's memory may hold the only copy at its level.
#[test]
fn the_memory_of_the_run_before_goes_when_this_run_has_committed_as_much() {
    let (bed, gate) = (Bed::new(), Arc::new(Gate::default()));
    let mut config = bed.config();
    config.job.local_enabled = false;
    let segments = || std::fs::read_dir(bed.memory.path()).expect("our own folder").count();
    let first = bed.open(&bed.place(), config.clone());
    commit(&first, &[1], Level::System);
    drop(first);
    bed.disk.drop_locks();
    let before = segments();
    let place = behind(bed.place(), TierId::GLOBAL, &gate);
    let session = bed.open(&place, config);
    assert_eq!(restart(&session).map(|restored| restored.version), Some(1));
    gate.close();
    let forced = gate.watch_over(|| {
        let pending = take(&session, 2);
        assert_eq!(pending.wait(Level::Process).expect("committed"), Level::Process);
        let both = segments();
        assert!(both > before, "{before}, {both}");
        gate.open();
        assert_eq!(pending.wait(Level::System).expect("committed"), Level::System);
        // A run counts as alive until the last of its threads has ended. Memory that is kept for this reason is given back after a later
        // commit.
        let mut version = 2;
        wait_until("it is gone", || {
            version += 1;
            commit(&session, &[version], Level::System);
            segments() < both
        });
    });
    assert!(!forced, "something waited for the global file system");
    session.close().expect("closes");
}

// ------------------------------------------------------------------------------------------ a file system that hangs

/// While the gate is closed, calls to a storage behind it do not return, and no error is reported.
#[derive(Default)]
struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
    /// The number of writers that have found the gate closed, each counted at its first call.
    held: AtomicU64,
}

impl Gate {
    fn close(&self) {
        *self.closed.lock().expect("no panic") = true;
    }

    /// Waits until a writer waits at the gate, and then longer than the limit in [`impatient`] for calls that make no progress.
    fn hold_up(&self) {
        wait_until("a writer comes to the gate", || self.held.load(Ordering::Relaxed) > 0);
        std::thread::sleep(Duration::from_millis(300));
    }

    fn open(&self) {
        *self.closed.lock().expect("no panic") = false;
        self.changed.notify_all();
    }

    /// Opens the gate if nothing else does. Returns true if that was needed.
    fn watch_over(&self, work: impl FnOnce()) -> bool {
        let (done, forced) = (Mutex::new(false), AtomicBool::new(false));
        let changed = Condvar::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let done = done.lock().expect("no panic");
                let (done, _) = changed.wait_timeout_while(done, LIMIT, |done| !*done).expect("no panic");
                forced.store(!*done, Ordering::Relaxed);
                self.open();
            });
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            *done.lock().expect("no panic") = true;
            changed.notify_all();
            caught.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        });
        forced.into_inner()
    }
}

impl Observer for Gate {
    fn before(&self, call: Call, _: &Path, _: u64) -> io::Result<()> {
        let closed = self.closed.lock().expect("no panic");
        self.held.fetch_add(u64::from(*closed && call == Call::CreateDirAll), Ordering::Relaxed);
        drop(self.changed.wait_while(closed, |closed| *closed).expect("no panic"));
        Ok(())
    }
}

fn impatient(config: &mut Config) {
    config.job.timeouts.warn = Duration::from_millis(100);
    config.job.timeouts.abandon = LIMIT;
    config.node.writers = 1;
}

/// Once both ranks are here, advances the clock by longer than the root waits for ranks.
fn leap_on_two(bed: &Bed, together: &Barrier) {
    if together.wait().is_leader() {
        bed.clock.leap(LIMIT + Duration::from_secs(1));
    }
    together.wait();
}

/// A fail-over of the global file system takes longer than the root waits for ranks.
#[test]
fn while_the_global_file_system_hangs_memory_and_local_levels_go_on_and_then_all_do() {
    let (bed, gate, together) = (Bed::new(), Arc::new(Gate::default()), Barrier::new(2));
    let forced = gate.watch_over(|| {
        bed.on_two_nodes(TierId::GLOBAL, &gate, impatient, |session| {
            commit(&session, &[1], Level::System);
            together.wait();
            gate.close();
            for version in 2..6 {
                commit(&session, &[version], Level::NodeReboot);
                leap_on_two(&bed, &together);
            }
            assert_eq!(session.stats().newest[TierId::LOCAL], Some(5));
            together.wait();
            gate.open();
            // Checkpoints on their way to the global tier have been given up, but those that follow have not.
            let is_global =
                |version| take(&session, version).wait(Level::System).is_ok_and(|level| level == Level::System);
            assert!((20..40).any(is_global), "nothing is committed any more");
            session.close().expect("closes");
        });
    });
    assert!(!forced, "something waited for the global file system");
}

#[test]
fn close_does_not_wait_longer_than_it_says_for_a_file_system_that_hangs() {
    close_keeps_its_limit(TierId::GLOBAL, Level::NodeReboot);
}

/// A tier's file system hangs while checkpoints reach the other tier's level, and the session is closed.
fn close_keeps_its_limit(tier: TierId, level: Level) {
    let (bed, gate) = (Bed::new(), Arc::new(Gate::default()));
    let place = behind(bed.place(), tier, &gate);
    let mut config = bed.config();
    impatient(&mut config);
    config.job.timeouts.drain = Duration::from_secs(1);
    let session = bed.open(&place, config);
    let forced = gate.watch_over(|| {
        commit(&session, &[1], Level::System);
        gate.close();
        commit(&session, &[2], level);
        let closed = session.close();
        assert!(matches!(closed, Err(Error::Undrained { .. })), "{closed:?}");
    });
    assert!(!forced, "it waited until the file system was there again");
}

/// Boards are rings of 64 entries: the 64th checkpoint after one that is still being flushed finds its entry in use.
#[test]
fn a_slow_flush_holds_up_no_capture_that_has_room() {
    let (bed, gate) = (Bed::new(), Arc::new(Gate::default()));
    let place = behind(bed.place(), TierId::GLOBAL, &gate);
    let mut config = bed.config();
    config.job.local_enabled = false;
    config.job.global.every = 1000.into();
    config.job.timeouts.room = Duration::from_secs(1);
    let session = bed.open(&place, config);
    gate.close();
    let forced = gate.watch_over(|| {
        let flushed = take(&session, 1);
        commit(&session, &(2..=140).collect::<Vec<_>>(), Level::Process);
        assert_eq!(session.stats().room_waits, 0);
        gate.open();
        assert_eq!(flushed.wait(Level::System).expect("committed"), Level::System);
    });
    assert!(!forced, "a capture waited for the flush");
    session.close().expect("closes");
}
