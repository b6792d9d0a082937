//! What a checkpoint leaves at each level: memory that is given back or kept, files and manifests, and the versions that are deleted or
//! stay.

use super::*;
use crate::base::Rank;
use crate::base::clock::SimulatedClock;
use crate::base::units::MIB;
use crate::config::PartStore;
use crate::coordination::{Ballot, Outcome, Payload, Phase, Round};
use crate::format::ContainerInfo;
use crate::segment::BOARD_OPERATIONS;
use crate::tier::Tier;
use crate::tier::wrappers::{Counts, Faults};

fn rank_of(session: &Session) -> u32 {
    session.engine.identity().rank.0
}

impl Bed {
    /// The names of a version's files below a folder.
    fn names(&self, top: &str, version: u64) -> Vec<String> {
        let folder = format!("-v{version:010}-");
        let paths = self.disk.files(Path::new(top)).into_iter().map(|(path, _)| path);
        let of_version = paths.filter(|path| path.to_string_lossy().contains(&folder));
        let mut names: Vec<_> =
            of_version.map(|path| path.file_name().expect("a file").to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// The versions that have folders with files.
    fn versions(&self, top: &str) -> Vec<u64> {
        (1..100).filter(|version| !self.names(top, *version).is_empty()).collect()
    }

    /// The containers that the manifest of a version on a tier names, each with its ranks.
    fn containers(&self, tier: TierId, root: &str, version: u64) -> Vec<(String, Vec<Rank>)> {
        let directory = DirectoryTier::new(tier, Arc::new(self.disk.clone()), PathBuf::from(root));
        let series = directory.all_series().expect("listed").remove(0);
        let folders = directory.folders(&series).expect("listed");
        let (generation, version, operation) =
            folders.into_iter().find(|(_, found, _)| *found == version).expect("it has a folder");
        let key = CheckpointKey { generation, version, operation, ..CheckpointKey::default() };
        let manifest = directory.read_manifest(&series, &key.folder()).expect("a manifest");
        manifest.containers.into_iter().map(|container| (container.file, container.ranks)).collect()
    }
}

/// Communication broke down, and the root gave up a checkpoint on which it had voted. The votes of the other ranks arrived nevertheless.
#[test]
fn the_root_agrees_on_no_level_of_what_it_has_given_up() {
    let bed = Bed::new();
    let session = bed.open(&bed.place(), bed.config());
    let round = Round { operation: 999, phase: Phase::Level(TierId::GLOBAL.index()) };
    let payload = Payload::gathered(Vec::<ContainerInfo>::new()).expect("it has none");
    let (outcome, _) = session.engine.decide_level(round, Ballot::of(Rank::ROOT, 0, "", payload));
    let Outcome::Abandoned(culprits) = outcome else { panic!("agreed on a level without a manifest") };
    assert!(culprits[0].text.contains("has given this checkpoint up"), "{culprits:?}");
}

// ------------------------------------------------------------------------------------------ memory

/// The memory has room for two checkpoints, so the memory of a call that came to nothing must be given back.
#[test]
fn ranks_that_take_different_versions_are_named_and_their_memory_is_given_back() {
    let bed = Bed::new();
    let change = |config: &mut Config| {
        in_memory_alone(config);
        config.node.memory_budget = Budget::Bytes(8 * MIB);
    };
    bed.on_two_nodes(TierId::GLOBAL, &Arc::default(), change, |session| {
        for call in 1..=6 {
            let pending = take_bytes(&session, 2 * call + u64::from(rank_of(&session)), 3 << 20).expect("captured");
            let ended = ended(&pending);
            let [(Level::Captured, Some(reason))] = &ended[..] else { panic!("{ended:?}") };
            assert!((0..2).all(|rank| reason.contains(&format!("version {} ", 2 * call + rank))), "{reason}");
        }
        let stats = session.stats();
        assert_eq!((stats.abandoned, stats.captured, stats.room_waits), (6, 6, 0));
        session.close().expect("closes");
    });
}

/// The memory of the next capture is populated in advance, unless another rank of the node would need that memory.
#[test]
fn memory_for_the_next_capture_is_prepared_out_of_a_ranks_own_share() {
    let (bed, gate, together) = (Bed::new(), Arc::new(Gate::default()), Barrier::new(2));
    let place = bed.place();
    let places = [(); 2].map(|()| behind(place.clone(), TierId::LOCAL, &gate));
    let mut config = bed.config();
    config.job.global_enabled = false;
    config.node.memory_budget = Budget::Bytes(32 * MIB);
    // A share is 16 MiB and has room for two arrays of this size.
    let large = 6 << 20;
    let forced = gate.watch_over(|| {
        on_one_node(&places, &config, |rank, session| {
            gate.close();
            // No rank closes the gate again once the other has continued.
            together.wait();
            let populated = || session.engine.memory().expect("it is on").populated_bytes();
            let take = |version| take_bytes(&session, version, if rank == 0 { large } else { 8 }).expect("captured");
            let first = take(1);
            if rank == 0 {
                wait_until("the next one's memory is populated", || populated() >= 2 * large as u64);
                // Populated memory is counted piece by piece. This call waits for the call that is preparing memory, and finds that all of
                // it is populated.
                assert!(session.engine.memory().expect("it is on").prepare(large as u64).expect("open"));
            }
            let before = populated();
            let second = take(2);
            if rank == 0 {
                gate.open();
            }
            // Memory is prepared before anything is written.
            [first, second].iter().for_each(settle);
            assert!(rank == 1 || populated() == before, "{} after {before}", populated());
            session.close().expect("closes");
        });
    });
    assert!(!forced, "something waited for the local file system");
}

/// Versions that only memory holds stay there. A capture that has no room beside them fails at once and does not wait.
#[test]
fn a_capture_does_not_wait_for_memory_that_nobody_gives_back() {
    let bed = Bed::new();
    let mut config = bed.config();
    in_memory_alone(&mut config);
    config.job.timeouts.room = Duration::from_secs(1);
    let session = bed.open(&bed.place(), config);
    let first = take_bytes(&session, 1, 6 << 20).expect("captured");
    assert_eq!(first.wait(Level::Process).expect("committed"), Level::Process);
    let refused = take_bytes(&session, 2, 12 << 20).map(drop).expect_err("there is no room").to_string();
    assert!(refused.contains("no room"), "{refused}");
    assert_eq!(session.stats().room_waits, 0);
    session.close().expect("closes");
}

#[test]
fn with_the_local_tier_alone_each_version_gives_its_memory_to_a_later_one() {
    let bed = Bed::new();
    let mut config = bed.config();
    config.job.global_enabled = false;
    let session = bed.open(&bed.place(), config);
    for version in 1..=12 {
        settle(&take_bytes(&session, version, 3 << 20).expect("captured"));
    }
    let stats = session.stats();
    assert_eq!((stats.committed[TierId::MEMORY], stats.committed[TierId::LOCAL], stats.direct_captures), (12, 12, 0));
    session.close().expect("closes");
}

fn protected(config: &mut Config) {
    config.job.redundancy.scheme = Scheme::Partner { copies: 1 };
    config.job.global_enabled = false;
    config.job.block_bytes = 1 << 16;
}

/// Memory is short, and the later versions do not survive the loss of a node. The memory with which an earlier version survives it is not
/// given up for them.
#[test]
fn what_survives_the_loss_of_a_node_stays_in_memory_while_later_versions_do_not() {
    let bed = Bed::new();
    let change = |config: &mut Config| {
        protected(config);
        config.job.redundancy.every = 1000.into();
        config.node.memory_budget = Budget::Bytes(14 * MIB);
    };
    bed.on_two_nodes(TierId::GLOBAL, &Arc::default(), change, |session| {
        for version in 1..=5 {
            settle(&take_bytes(&session, version, 3 << 20).expect("captured"));
        }
        assert_eq!((session.stats().newest[TierId::PEERS], session.stats().newest[TierId::LOCAL]), (Some(1), Some(5)));
        drop(session);
    });
    bed.disk.drop_locks();
    bed.disk.lose(Path::new("/local-1")).expect("it is there");
    std::fs::remove_dir_all(bed.memory.path().join("node-1")).expect("our own folder");
    bed.on_two_nodes(TierId::GLOBAL, &Arc::default(), change, |session| {
        assert_eq!(restart(&session).map(|restored| restored.version), Some(1));
        session.close().expect("closes");
    });
}

/// The local tier has everything, but would be lost together with a node.
#[test]
fn a_session_leaves_the_memory_that_protects_from_the_loss_of_nodes_if_the_global_tier_has_no_copy() {
    for (is_global, kept) in [(false, 1), (true, 0)] {
        let bed = Bed::new();
        let change = |config: &mut Config| {
            protected(config);
            config.job.global_enabled = is_global;
        };
        bed.on_two_nodes(TierId::GLOBAL, &Arc::default(), change, |session| {
            for version in [1, 2] {
                settle(&take(&session, version));
            }
            assert_eq!(session.stats().newest[TierId::PEERS], Some(2));
            session.close().expect("closes");
        });
        for node in ["node-0", "node-1"] {
            let left = std::fs::read_dir(bed.memory.path().join(node)).expect("our own folder").count();
            assert_eq!(left, kept, "{node}, global: {is_global}");
        }
    }
}

// ------------------------------------------------------------------------------------------ plans

#[test]
fn a_version_goes_to_the_tiers_whose_turn_it_is_and_to_no_other() {
    let bed = Bed::new();
    let change = |config: &mut Config| {
        protected(config);
        config.job.global_enabled = true;
        (config.job.local.every, config.job.global.every) = (3.into(), 2.into());
    };
    bed.on_two_nodes(TierId::GLOBAL, &Arc::default(), change, |session| {
        for version in 1..=4 {
            settle(&take(&session, version));
        }
        let committed = session.stats().committed;
        assert_eq!(
            committed,
            PerTier::from([(TierId::MEMORY, 4), (TierId::LOCAL, 2), (TierId::PEERS, 4), (TierId::GLOBAL, 2)]),
            "parts are in memory"
        );
        session.close().expect("closes");
    });
}

// ------------------------------------------------------------------------------------------ files and manifests

/// Boards are rings of 64 entries. The entries determine the layout of a node's container. If an older checkpoint still needs the entry of
/// a new one, each rank writes a file of its own.
#[test]
fn the_ranks_of_a_node_write_one_container_unless_an_older_checkpoint_needs_their_board_entry() {
    let (bed, gate) = (Bed::new(), Arc::new(Gate::default()));
    let place = bed.place();
    let places = [(); 2].map(|()| behind(place.clone(), TierId::GLOBAL, &gate));
    let mut config = bed.config();
    config.job.local_enabled = false;
    (config.job.global.every, config.job.global.keep_last) = (BOARD_OPERATIONS.into(), 3);
    let last = BOARD_OPERATIONS + 1;
    let forced = gate.watch_over(|| {
        on_one_node(&places, &config, |_, session| {
            gate.close();
            let first = take(&session, 1);
            commit(&session, &(2..last).collect::<Vec<_>>(), Level::Process);
            let second = take(&session, last);
            second.wait(Level::Process).expect("committed");
            gate.open();
            for pending in [first, second] {
                assert_eq!(pending.wait(Level::System).expect("committed"), Level::System);
            }
            session.close().expect("closes");
        });
    });
    assert!(!forced, "something waited for the global file system");
    let container = |name: &str, ranks: &[u32]| (name.to_owned(), ranks.iter().copied().map(Rank).collect());
    for (version, containers) in [
        (1, vec![container("c000000.bvc", &[0, 1])]),
        (last, vec![container("r000000.bvs", &[0]), container("r000001.bvs", &[1])]),
    ] {
        let named: Vec<String> = containers.iter().map(|(name, _): &(String, Vec<Rank>)| name.clone()).collect();
        let files: Vec<String> = bed.names("/global", version).into_iter().filter(|name| name != "manifest").collect();
        assert_eq!(files, named);
        assert_eq!(bed.containers(TierId::GLOBAL, "/global", version), containers);
    }
}

#[test]
fn a_local_manifest_names_the_files_of_the_node_and_is_written_for_what_was_committed_only() {
    let (bed, faults) = (Bed::new(), Arc::new(Faults::default()));
    let place = bed.place();
    let places = [place.clone(), behind(place, TierId::LOCAL, &faults)];
    let config = bed.config();
    on_one_node(&places, &config, |rank, session| {
        let flushed = || session.stats().flushed_bytes[TierId::LOCAL];
        settle(&take(&session, 1));
        let before = flushed();
        assert!(before > 0);
        if rank == 1 {
            faults.fail_nth(Call::Sync, Path::new("/local"), 1, rustix::io::Errno::NOSPC.raw_os_error());
        }
        let verdicts = ended(&take(&session, 2));
        assert_eq!(levels(&verdicts, true), [Level::Process, Level::System]);
        assert_eq!(flushed() > before, rank == 0, "what failed is not counted");
        session.close().expect("closes");
    });
    let expected = [("r000000.bvs".to_owned(), vec![Rank(0)]), ("r000001.bvs".to_owned(), vec![Rank(1)])];
    assert_eq!(bed.containers(TierId::LOCAL, "/local", 1), expected);
    assert_eq!(bed.names("/local", 2), ["r000000.bvs"]);
}

// ------------------------------------------------------------------------------------------ what goes and what stays

/// Starts a run that restarts and commits a version on the local tier, after the version that it found there.
fn next_run(bed: &Bed, version: u64, level: Level, change: impl Fn(&mut Config)) {
    bed.disk.drop_locks();
    bed.on_two_nodes(TierId::GLOBAL, &Arc::default(), change, |session| {
        restart(&session);
        let pending = take(&session, version);
        settle(&pending);
        assert_eq!(pending.level(), level, "version {version}");
        session.close().expect("closes");
    });
}

fn local_versions(bed: &Bed) -> [Vec<u64>; 2] {
    ["/local-0", "/local-1"].map(|top| bed.versions(top))
}

#[test]
fn without_redundancy_the_local_versions_of_older_runs_go_with_the_first_one_of_a_new_run() {
    let bed = Bed::new();
    let change = |config: &mut Config| {
        on_local_alone(config);
        config.job.local.keep_last = 1;
    };
    for version in 1..=3 {
        next_run(&bed, version, Level::NodeReboot, change);
        assert_eq!(local_versions(&bed), [vec![version], vec![version]]);
    }
}

#[test]
fn parts_on_the_local_tier_stay_until_a_later_version_has_some_also_those_of_older_runs() {
    let bed = Bed::new();
    let change = |scheme| {
        move |config: &mut Config| {
            config.job.redundancy.scheme = scheme;
            config.job.redundancy.store = PartStore::Local;
            config.job.global_enabled = false;
            config.job.local.keep_last = 1;
        }
    };
    let partner = Scheme::Partner { copies: 1 };
    next_run(&bed, 1, Level::NodeLoss, change(partner));
    next_run(&bed, 2, Level::NodeReboot, change(Scheme::None));
    assert_eq!(local_versions(&bed), [vec![1, 2], vec![1, 2]], "version 2 survives no lost node");
    next_run(&bed, 3, Level::NodeLoss, change(partner));
    assert_eq!(local_versions(&bed), [vec![3], vec![3]]);
    bed.disk.drop_locks();
    bed.on_two_nodes(TierId::GLOBAL, &Arc::default(), change(partner), |session| {
        restart(&session);
        for version in 4..=6 {
            settle(&take(&session, version));
            // A manifest that is still being written keeps its folder.
            assert!(session.engine.drain(LIMIT));
        }
        session.close().expect("closes");
    });
    assert_eq!(local_versions(&bed), [vec![6], vec![6]]);
}

/// Holds up calls that delete.
#[derive(Default)]
struct OnRemoval(Gate);

impl Observer for OnRemoval {
    fn before(&self, call: Call, path: &Path, bytes: u64) -> io::Result<()> {
        if !matches!(call, Call::RemoveFile | Call::RemoveDir) {
            return Ok(());
        }
        self.0.held.fetch_add(1, Ordering::Relaxed);
        self.0.before(call, path, bytes)
    }
}

/// Otherwise, a closed session would stop the thread that checks the claims, and files that it was about to delete would stay.
#[test]
fn who_waits_for_the_end_of_all_work_waits_for_what_is_in_hand_as_well() {
    let (bed, removal) = (Bed::new(), Arc::new(OnRemoval::default()));
    let mut config = bed.config();
    on_local_alone(&mut config);
    config.job.local.keep_last = 1;
    let session = bed.open(&behind(bed.place(), TierId::LOCAL, &removal), config);
    settle(&take(&session, 1));
    assert!(session.engine.drain(LIMIT), "its manifest is written before it goes");
    removal.0.close();
    let forced = removal.0.watch_over(|| {
        settle(&take(&session, 2));
        wait_until("version 1 is about to go", || removal.0.held.load(Ordering::Relaxed) > 0);
        assert!(!session.engine.drain(Duration::ZERO));
        removal.0.open();
        assert!(session.engine.drain(LIMIT));
        assert_eq!(bed.versions("/local"), [2]);
    });
    assert!(!forced);
    session.close().expect("closes");
}

/// A manifest is written after the commit, and may be late or lost. A version that this run knows to be committed counts.
#[test]
fn a_committed_version_without_a_manifest_is_kept_like_the_others() {
    let bed = Bed::new();
    let mut config = bed.config();
    on_local_alone(&mut config);
    let session = bed.open(&bed.place(), config);
    settle(&take(&session, 1));
    wait_until("its manifest has its name", || bed.names("/local", 1).iter().any(|name| name == "manifest"));
    let manifest = bed.disk.files(Path::new("/local")).into_iter().find(|(path, _)| path.ends_with("manifest"));
    bed.disk.lose(&manifest.expect("there is one").0).expect("it is there");
    settle(&take(&session, 2));
    session.close().expect("closes");
    assert_eq!(bed.versions("/local"), [1, 2]);
}

// ------------------------------------------------------------------------------------------ claims

/// Claims prevent wasted work; names protect the data.
#[test]
fn while_claims_cannot_be_read_the_local_level_is_committed_and_the_global_one_is_not() {
    let (bed, faults) = (Bed::new(), Arc::new(Faults::default()));
    let place = behind(bed.place(), TierId::GLOBAL, &faults);
    let config = bed.config();
    let session = bed.open(&place, config.clone());
    let claims = bed.job(&place, &config, "/global").join("claims");
    faults.fail_all(Call::List, &claims, rustix::io::Errno::IO.raw_os_error());
    let verdicts = ended(&take(&session, 1));
    assert_eq!(levels(&verdicts, true), [Level::Process, Level::NodeReboot]);
    let reason = verdicts.last().and_then(|(_, reason)| reason.as_ref()).expect("the global level");
    assert!(reason.contains("rank 0") && reason.contains("claims"), "{reason}");
    faults.clear();
    commit(&session, &[2], Level::System);
    session.close().expect("closes");
}

#[test]
fn a_run_that_another_one_has_taken_over_commits_nothing_more() {
    let bed = Bed::new();
    let mut config = bed.config();
    config.job.take_over = true;
    let old = bed.open(&bed.place(), config.clone());
    commit(&old, &[1], Level::System);
    let new = bed.open(&bed.place(), config);
    // The old run learns of it when it next looks at the claims, at the latest for the next level.
    let refused = (2..20).find_map(|version| match take_bytes(&old, version, 8) {
        Ok(pending) => {
            assert_eq!(levels(&ended(&pending), false), [Level::NodeReboot, Level::System]);
            None
        }
        Err(error) => Some(error.to_string()),
    });
    let refused = refused.expect("it is not the newest any more");
    assert!(refused.contains("superseded"), "{refused}");
    new.close().expect("closes");
}

/// Another host considers a run dead if its claim does not move. In a session with threads, one of the threads sees to that.
#[test]
fn without_threads_the_calls_of_a_session_renew_its_claim_once_per_heartbeat() {
    let (bed, counts, clock) = (Bed::new(), Arc::new(Counts::default()), Arc::new(SimulatedClock::default()));
    let place = Place { workers: Workers::Inline, clock: clock.clone(), ..bed.place() };
    let session = bed.open(&behind(place, TierId::GLOBAL, &counts), bed.config());
    session.progress();
    let before = counts.calls(Call::Touch);
    for renewed in 0..4 {
        for _ in 0..4 {
            session.progress();
            assert_eq!(counts.calls(Call::Touch) - before, renewed);
        }
        clock.advance(crate::tier::claims::HEARTBEAT);
        session.progress();
    }
    session.close().expect("closes");
}

// ------------------------------------------------------------------------------------------ calls

/// The machine's clock at a fiftieth of its speed.
#[derive(Default)]
struct Slow(SystemClock);

impl Clock for Slow {
    fn now(&self) -> Duration {
        self.0.now() / 50
    }

    fn sleep(&self, pause: Duration) {
        self.0.sleep(pause);
    }
}

/// No thread steps, and the ranks call at about the same time. In each call, they linger for a millisecond. A slow machine with two cores
/// would hold up some of the eight ranks for that long each time, so the ranks use a clock at a fiftieth of its speed.
#[test]
fn what_all_ranks_have_written_is_committed_when_their_next_call_returns() {
    const VERSIONS: usize = 400;
    let bed = Bed::new();
    let place = Place { workers: Workers::Writers, clock: Arc::new(Slow::default()), ..bed.place() };
    let nodes = [0, 0, 1, 1, 2, 2, 3, 3];
    let together = Barrier::new(nodes.len());
    // For each version, the number of further calls until all levels were committed on the slowest rank.
    let calls: Vec<AtomicU64> = (0..VERSIONS).map(|_| AtomicU64::new(0)).collect();
    let settled: Vec<AtomicU64> = (0..VERSIONS).map(|_| AtomicU64::new(0)).collect();
    let is_seen = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (comm, node) in threads::world(&nodes).into_iter().zip(nodes) {
            let mut config = bed.config();
            config.node.memory_directory = bed.memory.path().join(format!("node-{node}"));
            std::fs::create_dir_all(&config.node.memory_directory).expect("our own folder");
            config.node.local_directory = Some(PathBuf::from(format!("/local-{node}")));
            let (place, together, calls, settled, is_seen) = (&place, &together, &calls, &settled, &is_seen);
            scope.spawn(move || {
                let session = Session::open_on(Box::new(comm), place, config).expect("opens");
                let mut open: Vec<(usize, Pending)> = Vec::new();
                for version in 0..VERSIONS {
                    together.wait();
                    open.push((version, take(&session, version as u64 + 1)));
                    open.retain(|(of, pending)| {
                        calls[*of].fetch_max((version - of) as u64, Ordering::Relaxed);
                        let is_open = pending.verdicts().len() < 3;
                        let ranks = settled[*of].fetch_add(u64::from(!is_open), Ordering::SeqCst) + u64::from(!is_open);
                        if ranks == nodes.len() as u64 && calls[*of].load(Ordering::SeqCst) <= 1 {
                            is_seen.store(true, Ordering::SeqCst);
                        }
                        is_open
                    });
                    together.wait();
                    if is_seen.load(Ordering::SeqCst) {
                        break;
                    }
                    // The pause is for the writers, and for ranks that another program holds up.
                    std::thread::sleep(Duration::from_millis(5));
                }
                together.wait();
                session.close().expect("closed");
            });
        }
    });
    let calls: Vec<u64> = calls.into_iter().map(AtomicU64::into_inner).collect();
    assert!(is_seen.into_inner(), "{calls:?}");
}

/// Without a configured local directory, the folder's name depends on the store's id. When the store could not be read, the run began anew
/// instead.
#[test]
fn a_run_whose_global_directory_cannot_be_used_goes_on_from_the_local_copies_of_that_store() {
    let bed = Bed::new();
    let mut config = bed.config();
    config.node.local_directory = None;
    config.job.memory_enabled = false;
    let first = bed.open(&bed.place(), config.clone());
    commit(&first, &[1, 2], Level::System);
    first.close().expect("closes");
    // Another store of this user has a folder beside it.
    let other =
        Config { job: JobConfig { global_directory: "/elsewhere".into(), ..config.job.clone() }, ..config.clone() };
    bed.open(&bed.place(), other).close().expect("closes");

    bed.disk.inject(Path::new("/global"), Fault::ReadOnly).expect("it is a path");
    let cut_off = bed.open(&bed.place(), config.clone());
    assert_eq!(restart(&cut_off).map(|restored| (restored.version, restored.tier.name())), Some((2, "local")));
    commit(&cut_off, &[3], Level::NodeReboot);
    cut_off.close().expect("closes");
    // The version that was taken meanwhile is found when the store is available again.
    bed.disk.heal(Path::new("/global")).expect("it is a path");
    let back = bed.open(&bed.place(), config);
    assert_eq!(restart(&back).map(|restored| (restored.version, restored.tier.name())), Some((3, "local")));
}
