//! Checkpoints that survive lost nodes, with the real session on ranks that are threads of this process. Each "node" has its own memory
//! folder and local folder; losing the node means deleting both.

#[path = "common/limit.rs"]
mod limit;

use bivouac_core::base::{CheckpointKey, Generation};
use bivouac_core::comm::threads::world;
use bivouac_core::config::{PartStore, Scheme};
use bivouac_core::format::shard::Head;
use bivouac_core::segment::{OldSegment, SlotState};
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::tier::TierId;
use bivouac_core::{Config, Level, Pending, Session, Stats};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;

const NAME: &str = "state";
const NEVER: u64 = 1 << 40;

/// Some nodes with their own folders.
struct Machine {
    root: TempDir,
    scheme: Scheme,
    local_every: u64,
    peers_every: u64,
    global_every: u64,
    /// The size of node memory in bytes, by node.
    memory_bytes: fn(u32) -> u64,
    workers: Workers,
    store: PartStore,
    interval_steps: u64,
}

/// The result of a restart on one rank.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    version: Option<u64>,
    tier: Option<&'static str>,
    stats: Stats,
    error: Option<String>,
}

impl Machine {
    fn new(scheme: Scheme) -> Machine {
        let root = TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).expect("a folder");
        Machine {
            root,
            scheme,
            local_every: NEVER,
            peers_every: 1,
            global_every: NEVER,
            memory_bytes: |_| 64 << 20,
            workers: Workers::Threads,
            store: PartStore::Memory,
            interval_steps: 0,
        }
    }

    fn memory(&self, node: u32) -> PathBuf {
        self.root.path().join(format!("memory-{node}"))
    }

    fn local(&self, node: u32) -> PathBuf {
        self.root.path().join(format!("local-{node}"))
    }

    fn lose(&self, node: u32) {
        std::fs::remove_dir_all(self.memory(node)).expect("its memory goes");
        std::fs::remove_dir_all(self.local(node)).expect("its disk goes");
    }

    fn config(&self, node: u32) -> Config {
        let mut config = Config::default();
        config.job.name = Some("redundancy".into());
        config.job.block_bytes = 16 << 10;
        config.job.take_over = true;
        config.job.interval.steps = self.interval_steps;
        config.job.redundancy.scheme = self.scheme;
        config.job.redundancy.store = self.store;
        config.job.redundancy.every = self.peers_every.into();
        config.job.local.every = self.local_every.into();
        // The first checkpoint of a run goes to every enabled tier, and a level includes those below it.
        config.job.global_enabled = self.global_every < NEVER;
        config.job.global.every = self.global_every.into();
        config.job.global_directory = self.root.path().join("global");
        config.job.timeouts.abandon = limit::LIMIT;
        config.job.timeouts.room = Duration::from_secs(2);
        config.node.memory_budget = bivouac_core::config::Budget::Bytes((self.memory_bytes)(node));
        config.node.memory_directory = self.memory(node);
        config.node.local_directory = Some(self.local(node));
        config.node.local_allow_tmpfs = true;
        config
    }

    /// Runs `body` on all ranks, each on its own thread; `nodes[r]` is the node of rank r.
    fn run<T: Send>(&self, nodes: &[u32], body: impl Fn(u32, &Session) -> T + Sync) -> Vec<T> {
        for node in nodes {
            for folder in [self.memory(*node), self.local(*node)] {
                std::fs::create_dir_all(folder).expect("a folder");
            }
        }
        let body = &body;
        std::thread::scope(|scope| {
            let started: Vec<_> = world(nodes)
                .into_iter()
                .enumerate()
                .map(|(rank, comm)| {
                    let config = self.config(nodes[rank]);
                    scope.spawn(move || {
                        let mut place = Place::here(&config, self.workers, "ranks".into()).expect("a place");
                        place.host = format!("node-{}", nodes[rank]);
                        let session = Session::open_on(Box::new(comm), &place, config).expect("opens");
                        body(rank as u32, &session)
                    })
                })
                .collect();
            started.into_iter().map(|rank| rank.join().expect("a rank failed")).collect()
        })
    }
}

/// The data of a rank at a version; ranks have different amounts.
fn data(rank: u32, version: u64) -> Vec<u64> {
    let length = 40_000 + 7_001 * rank as usize;
    (0..length as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(rank) << 32) ^ version).collect()
}

fn capture(session: &Session, rank: u32, version: u64) -> Result<Pending, String> {
    let values = data(rank, version);
    let mut checkpoint = session.begin_checkpoint(NAME, version).map_err(|error| error.to_string())?;
    checkpoint.save("values", &values).map_err(|error| error.to_string())?;
    checkpoint.value("version", &version).map_err(|error| error.to_string())?;
    checkpoint.capture().map_err(|error| error.to_string())
}

fn take(session: &Session, rank: u32, version: u64, level: Level) -> Result<Level, String> {
    capture(session, rank, version)?.wait(level).map_err(|error| error.to_string())
}

fn restart(session: &Session, rank: u32) -> Seen {
    let restored = session.begin_restore(NAME).run(|restorer| {
        let version: u64 = restorer.value("version")?;
        let values: Vec<u64> = restorer.load_vec("values")?;
        assert_eq!(values, data(rank, version), "rank {rank} got wrong data");
        Ok(())
    });
    let stats = session.stats();
    match restored {
        Ok(restored) => {
            let version = restored.as_ref().map(|restored| restored.version);
            Seen { version, tier: restored.map(|restored| restored.tier.name()), stats, error: None }
        }
        Err(error) => Seen { version: None, tier: None, stats, error: Some(error.to_string()) },
    }
}

const NODES: [u32; 8] = [0, 0, 1, 1, 2, 2, 3, 3];
/// The same ranks after node 2 was lost and node 4 has replaced it.
const WITH_SPARE: [u32; 8] = [0, 0, 1, 1, 4, 4, 3, 3];

fn scheme(text: &str) -> Scheme {
    text.parse().expect("a scheme")
}

fn take_two(machine: &Machine, nodes: &[u32]) {
    for ended in machine.run(nodes, |rank, session| {
        take(session, rank, 1, Level::NodeLoss).and_then(|_| take(session, rank, 2, Level::NodeLoss))
    }) {
        assert_eq!(ended, Ok(Level::NodeLoss));
    }
}

fn survives_one(text: &str) {
    let machine = Machine::new(scheme(text));
    take_two(&machine, &NODES);
    machine.lose(2);
    for (rank, seen) in machine.run(&WITH_SPARE, |rank, session| restart(session, rank)).iter().enumerate() {
        assert_eq!((seen.version, &seen.error), (Some(2), &None), "rank {rank}");
        let from_peers = seen.stats.restored_bytes[TierId::PEERS];
        assert_eq!(from_peers > 0, rank == 4 || rank == 5, "rank {rank} read {from_peers} bytes from peers");
        assert_eq!(seen.stats.restored_bytes[TierId::GLOBAL], 0);
        assert_eq!(seen.tier, Some(if rank == 4 || rank == 5 { "peers" } else { "memory" }));
    }
}

#[test]
fn one_node_is_lost_with_partner() {
    survives_one("partner");
}

#[test]
fn one_node_is_lost_with_xor() {
    survives_one("xor(4)");
}

#[test]
fn one_node_is_lost_with_reed_solomon() {
    survives_one("rs(2,2)");
}

#[test]
fn after_a_restart_with_shards_of_other_nodes_a_checkpoint_is_due_at_once() {
    let mut machine = Machine::new(scheme("xor(4)"));
    take_two(&machine, &NODES);
    let due = |session: &Session| [(); 3].map(|()| session.should_checkpoint().expect("an answer"));
    let restart_and_ask = |machine: &Machine, nodes: &[u32]| {
        machine.run(nodes, |rank, session| {
            assert_eq!(restart(session, rank).version, Some(2));
            due(session)
        })
    };
    machine.interval_steps = 3;
    assert!(restart_and_ask(&machine, &NODES).iter().all(|due| *due == [false, false, true]));
    machine.lose(2);
    assert!(restart_and_ask(&machine, &WITH_SPARE).iter().all(|due| *due == [true, false, true]));
    // With an interval of 0, no checkpoint is ever due.
    machine.lose(4);
    machine.interval_steps = 0;
    assert!(restart_and_ask(&machine, &WITH_SPARE).iter().all(|due| *due == [false; 3]));
}

#[test]
fn ranks_land_on_other_nodes_and_no_redundancy_is_needed_for_that() {
    let machine = Machine { local_every: 1, ..Machine::new(Scheme::None) };
    for ended in machine.run(&NODES, |rank, session| take(session, rank, 1, Level::NodeReboot)) {
        assert_eq!(ended, Ok(Level::NodeReboot));
    }
    // All ranks are on other nodes. The memory of node 1 is gone, but its disk is not.
    std::fs::remove_dir_all(machine.memory(1)).expect("its memory goes");
    let moved = [3, 2, 1, 0, 3, 2, 1, 0];
    for (rank, seen) in machine.run(&moved, |rank, session| restart(session, rank)).iter().enumerate() {
        assert_eq!((seen.version, &seen.error), (Some(1), &None), "rank {rank}");
        assert_eq!(seen.stats.restored_bytes[TierId::PEERS] > 0, moved[rank] != NODES[rank], "rank {rank}");
        assert_eq!(seen.stats.restored_bytes[TierId::GLOBAL], 0);
    }
}

#[test]
fn nobody_is_where_it_was() {
    let machine = Machine::new(scheme("partner"));
    take_two(&machine, &NODES);
    let moved = [1, 2, 2, 3, 3, 0, 0, 1];
    for (rank, seen) in machine.run(&moved, |rank, session| restart(session, rank)).iter().enumerate() {
        assert_eq!((seen.version, &seen.error), (Some(2), &None), "rank {rank}");
    }
}

#[test]
fn without_a_thread_for_messages_the_calls_themselves_move_shards_and_parity() {
    for text in ["partner", "xor(4)", "rs(2,2)"] {
        let machine = Machine { workers: Workers::Writers, ..Machine::new(scheme(text)) };
        take_two(&machine, &NODES);
        machine.lose(2);
        for (rank, seen) in machine.run(&WITH_SPARE, |rank, session| restart(session, rank)).iter().enumerate() {
            assert_eq!((seen.version, &seen.error), (Some(2), &None), "{text}, rank {rank}");
        }
    }
}

#[test]
fn parts_on_the_local_tier_survive_a_reboot_of_all_nodes_and_the_loss_of_one() {
    for text in ["partner", "xor(4)", "rs(2,2)"] {
        let machine = Machine { store: PartStore::Local, ..Machine::new(scheme(text)) };
        // There are several versions, so that retention has something to do.
        for ended in machine.run(&NODES, |rank, session| {
            (1..=4).try_for_each(|version| take(session, rank, version, Level::NodeLoss).map(drop))
        }) {
            assert_eq!(ended, Ok(()), "{text}");
        }
        for node in 0..4 {
            std::fs::remove_dir_all(machine.memory(node)).expect("its memory goes");
        }
        std::fs::remove_dir_all(machine.local(2)).expect("and one disk");
        for (rank, seen) in machine.run(&WITH_SPARE, |rank, session| restart(session, rank)).iter().enumerate() {
            assert_eq!((seen.version, &seen.error), (Some(4), &None), "{text}, rank {rank}");
            assert_eq!(seen.tier, Some(if rank == 4 || rank == 5 { "peers" } else { "local" }), "{text}, rank {rank}");
        }
    }
}

/// The folder of the series that holds a version, and the version's operation.
fn find(folder: &Path, version: u64) -> Option<(PathBuf, u64)> {
    let inside = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    inside.filter(|path| path.is_dir()).find_map(|path| {
        match CheckpointKey::parse_folder(path.file_name()?.to_str()?) {
            Some((_, found, operation)) => (found == version).then(|| (folder.to_owned(), operation)),
            None => find(&path, version),
        }
    })
}

/// Node 0 has more ranks than the other nodes together, so some of its ranks keep no parts.
#[test]
fn a_rank_whose_own_shard_did_not_reach_the_local_tier_votes_no_also_when_it_keeps_no_parts() {
    let nodes = [0, 0, 0, 0, 1, 2];
    for victim in 0..4 {
        let machine = Machine { store: PartStore::Local, ..Machine::new(scheme("partner")) };
        let barrier = std::sync::Barrier::new(nodes.len());
        let ended = machine.run(&nodes, |rank, session| {
            let first = take(session, rank, 1, Level::NodeLoss);
            barrier.wait();
            if rank == victim {
                // A folder is in the place of this rank's file of the next version: only its own rename fails.
                let (series, operation) = find(&machine.local(0), 1).expect("version 1");
                let key = CheckpointKey {
                    generation: Generation(1),
                    version: 2,
                    operation: operation + 1,
                    ..Default::default()
                };
                let file = series.join(key.folder()).join(format!("r{rank:06}.bvs"));
                std::fs::create_dir_all(file.join("in the way")).expect("made");
            }
            barrier.wait();
            (first, take(session, rank, 2, Level::NodeLoss), take(session, rank, 3, Level::NodeLoss))
        });
        for (rank, (first, second, third)) in ended.into_iter().enumerate() {
            let which = format!("rank {rank} when the shard of rank {victim} was not written");
            assert_eq!((first, third), (Ok(Level::NodeLoss), Ok(Level::NodeLoss)), "{which}");
            let error = second.expect_err(&which);
            assert!(
                error.contains(&format!("rank {victim}")) && error.contains("did not reach the local tier"),
                "{error}"
            );
        }
    }
}

#[test]
fn a_protected_version_stays_on_disk_when_memory_had_to_give_it_up_and_later_ones_are_not_protected() {
    // A node has room for two shards but not for three: the shard and the copy of version 1 make room for the shard of version 2.
    let machine = Machine {
        store: PartStore::Local,
        local_every: 1,
        peers_every: NEVER,
        memory_bytes: |_| 10 << 20,
        ..Machine::new(scheme("partner"))
    };
    let values = |rank: u32, version: u64| vec![u64::from(rank) << 32 | version; (4 << 20) / 8];
    let nodes = [0, 1, 2, 3];
    let ended = machine.run(&nodes, |rank, session| {
        (1..=5).try_for_each(|version| {
            let values = values(rank, version);
            let mut checkpoint = session.begin_checkpoint(NAME, version).map_err(|error| error.to_string())?;
            checkpoint.save("values", &values).map_err(|error| error.to_string())?;
            checkpoint.value("version", &version).map_err(|error| error.to_string())?;
            let level = if version == 1 { Level::NodeLoss } else { Level::NodeReboot };
            let pending = checkpoint.capture().map_err(|error| error.to_string())?;
            let reached = pending.wait(level).map_err(|error| error.to_string())?;
            if reached == level { Ok(()) } else { Err(format!("version {version} is at {reached}")) }
        })?;
        Ok::<u64, String>(session.stats().direct_captures)
    });
    assert!(ended.iter().all(|ended| *ended == Ok(0)), "{ended:?}");
    machine.lose(2);
    let restored = machine.run(&[0, 1, 4, 3], |rank, session| {
        let restored = session.begin_restore(NAME).run(|restorer| {
            let version: u64 = restorer.value("version")?;
            let loaded: Vec<u64> = restorer.load_vec("values")?;
            assert!(loaded == values(rank, version), "rank {rank} got wrong data");
            Ok(())
        });
        restored.map(|restored| restored.map(|restored| restored.version)).map_err(|error| error.to_string())
    });
    assert!(restored.iter().all(|version| *version == Ok(Some(1))), "{restored:?}");
}

#[test]
fn two_nodes_are_lost_at_once_with_two_parities_or_two_copies() {
    for text in ["rs(2,2)", "partner(2)"] {
        let machine = Machine::new(scheme(text));
        take_two(&machine, &NODES);
        machine.lose(1);
        machine.lose(2);
        let nodes = [0, 0, 5, 5, 4, 4, 3, 3];
        for (rank, seen) in machine.run(&nodes, |rank, session| restart(session, rank)).iter().enumerate() {
            assert_eq!((seen.version, &seen.error), (Some(2), &None), "{text}, rank {rank}");
            assert_eq!(seen.stats.restored_bytes[TierId::PEERS] > 0, (2..6).contains(&rank), "{text}, rank {rank}");
        }
    }
}

#[test]
fn two_lost_nodes_are_too_many_for_xor_which_falls_back_to_the_global_tier() {
    let machine = Machine { global_every: 2, ..Machine::new(scheme("xor(4)")) };
    // Version 1 goes to the global tier, and version 2 does not.
    for ended in machine.run(&NODES, |rank, session| {
        take(session, rank, 1, Level::System).and_then(|_| take(session, rank, 2, Level::NodeLoss))
    }) {
        assert_eq!(ended, Ok(Level::NodeLoss));
    }
    machine.lose(1);
    machine.lose(2);
    let nodes = [0, 0, 5, 5, 4, 4, 3, 3];
    for (rank, seen) in machine.run(&nodes, |rank, session| restart(session, rank)).iter().enumerate() {
        assert_eq!((seen.version, &seen.error), (Some(1), &None), "rank {rank}");
    }
    // Without the global tier nothing can be restored, and the error says so.
    let machine = Machine::new(scheme("xor(4)"));
    let taken = machine.run(&NODES, |rank, session| take(session, rank, 1, Level::NodeLoss));
    assert!(taken.iter().all(Result::is_ok));
    machine.lose(1);
    machine.lose(2);
    for seen in machine.run(&nodes, |rank, session| restart(session, rank)) {
        let error = seen.error.expect("nothing can be restored");
        assert!(error.contains("nothing can be restored"), "{error}");
    }
}

/// Flips one bit in the last third of each file below `folder` for which `is_wanted` holds, if that part holds data.
fn flip(folder: &Path, is_wanted: impl Fn(&[u8]) -> bool) -> usize {
    let mut flipped = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let mut bytes = std::fs::read(&path).expect("its bytes");
        let heads: Vec<usize> = (0..bytes.len()).step_by(4096).filter(|at| is_wanted(&bytes[*at..])).collect();
        for head in heads {
            // The bit is well inside the bodies of these shards, which are at least 300 kB long.
            bytes[head + 70_000] ^= 4;
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

/// Flips one bit in a rank's shard of a version, in the memory of a living run.
fn flip_alive(folder: &Path, rank: u32, version: u64) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let bytes = std::fs::read(&path).expect("its bytes");
        let is_it = |at: &usize| {
            let head = Head::decode(&bytes[*at..]).ok();
            head.is_some_and(|head| (head.header.rank.0, head.header.key.version) == (rank, version))
        };
        let at = (0..bytes.len()).step_by(4096).find(is_it).expect("the shard") + 70_000;
        let file = std::fs::File::options().write(true).open(&path).expect("opens");
        file.write_all_at(&[bytes[at] ^ 4], at as u64).expect("written");
    }
}

#[test]
fn a_bit_that_flips_before_a_shard_is_protected_is_found_before_anybody_relies_on_it() {
    for text in ["partner", "xor(4)", "rs(2,2)"] {
        let machine = Machine::new(scheme(text));
        let together = std::sync::Barrier::new(NODES.len());
        let ended = machine.run(&NODES, |rank, session| {
            take(session, rank, 1, Level::NodeLoss)?;
            together.wait();
            // Nothing is sent before all ranks have captured.
            let hit = if rank == 3 { Some(capture(session, rank, 2)?) } else { None };
            hit.iter().for_each(|_| flip_alive(&machine.memory(1), 3, 2));
            together.wait();
            let pending = hit.map_or_else(|| capture(session, rank, 2), Ok)?;
            let second = pending.wait(Level::NodeLoss).map_err(|error| error.to_string());
            take(session, rank, 3, Level::NodeLoss)?;
            Ok::<_, String>(second)
        });
        for (rank, ended) in ended.into_iter().enumerate() {
            let second = ended.unwrap_or_else(|error| panic!("{text}, rank {rank}: {error}"));
            let error = second.expect_err("it is protected with a wrong bit");
            assert!(error.contains("\"values\"") && error.contains("digest"), "{text}, rank {rank}: {error}");
        }
        machine.lose(2);
        for (rank, seen) in machine.run(&WITH_SPARE, |rank, session| restart(session, rank)).iter().enumerate() {
            assert_eq!((seen.version, &seen.error), (Some(3), &None), "{text}, rank {rank}");
        }
    }
}

#[test]
fn a_flipped_bit_in_a_surviving_member_or_in_parity_is_repaired_where_the_scheme_has_enough_left() {
    for kind in [is_shard as fn(&[u8]) -> bool, is_parity] {
        let machine = Machine::new(scheme("rs(2,2)"));
        take_two(&machine, &NODES);
        machine.lose(2);
        assert!(flip(&machine.memory(1), kind) >= 2);
        for (rank, seen) in machine.run(&WITH_SPARE, |rank, session| restart(session, rank)).iter().enumerate() {
            assert_eq!((seen.version, &seen.error), (Some(2), &None), "rank {rank}");
        }
    }
}

/// All containers of parity parts below a folder.
fn parity_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let found = entries.flat_map(|path| if path.is_dir() { parity_files(&path) } else { vec![path] });
    found.filter(|path| path.extension().is_some_and(|end| end == "bvp")).collect()
}

#[test]
fn a_damaged_part_is_no_harm_where_its_holder_has_another_copy_of_it() {
    for is_memory in [true, false] {
        let machine = Machine { store: PartStore::Local, local_every: 1, ..Machine::new(scheme("xor(4)")) };
        take_two(&machine, &NODES);
        machine.lose(2);
        if is_memory {
            assert!(flip(&machine.memory(1), is_parity) >= 2);
        } else {
            for path in parity_files(&machine.local(1)) {
                let mut bytes = std::fs::read(&path).expect("its bytes");
                bytes[70_000] ^= 4;
                std::fs::write(&path, bytes).expect("written back");
            }
        }
        for (rank, seen) in machine.run(&WITH_SPARE, |rank, session| restart(session, rank)).iter().enumerate() {
            assert_eq!((seen.version, &seen.error), (Some(2), &None), "rank {rank}, memory: {is_memory}");
        }
    }
}

#[test]
fn a_flipped_bit_between_the_regions_of_a_surviving_member_is_found_before_it_counts() {
    // The redundancy code decides which survivors a rebuild uses.
    for node in [0, 1, 3] {
        let machine = Machine::new(scheme("rs(2,2)"));
        take_two(&machine, &NODES);
        machine.lose(2);
        let mut flipped = 0;
        for entry in std::fs::read_dir(machine.memory(node)).expect("a folder") {
            let path = entry.expect("an entry").path();
            let mut bytes = std::fs::read(&path).expect("its bytes");
            let heads: Vec<usize> = (0..bytes.len()).step_by(4096).filter(|at| is_shard(&bytes[*at..])).collect();
            for head in heads {
                let length = u64::from_le_bytes(bytes[head + 128..head + 136].try_into().expect("eight bytes"));
                let last = head + length as usize - 1;
                // Memory that an older shard used is used again, so the byte need not be 0.
                if bytes[last] == 0 {
                    bytes[last] = 1;
                    flipped += 1;
                }
            }
            std::fs::write(&path, bytes).expect("written back");
        }
        assert!(flipped >= 2);
        for (rank, seen) in machine.run(&WITH_SPARE, |rank, session| restart(session, rank)).iter().enumerate() {
            assert_eq!((seen.version, &seen.error), (Some(2), &None), "rank {rank}, node {node}");
        }
    }
}

#[test]
fn a_flipped_bit_that_xor_cannot_repair_sends_all_ranks_to_the_next_source() {
    for kind in [is_shard as fn(&[u8]) -> bool, is_parity] {
        let machine = Machine { global_every: 2, ..Machine::new(scheme("xor(4)")) };
        for ended in machine.run(&NODES, |rank, session| {
            take(session, rank, 1, Level::System).and_then(|_| take(session, rank, 2, Level::NodeLoss))
        }) {
            assert_eq!(ended, Ok(Level::NodeLoss));
        }
        machine.lose(2);
        assert!(flip(&machine.memory(1), kind) >= 2);
        for (rank, seen) in machine.run(&WITH_SPARE, |rank, session| restart(session, rank)).iter().enumerate() {
            assert_eq!((seen.version, &seen.error), (Some(1), &None), "rank {rank}");
        }
    }
}

#[test]
fn a_flipped_bit_in_a_ranks_own_memory_is_repaired_from_its_set() {
    for text in ["partner", "xor(4)", "rs(2,2)"] {
        let machine = Machine::new(scheme(text));
        take_two(&machine, &NODES);
        let own =
            |bytes: &[u8]| is_shard(bytes) && u32::from_le_bytes([bytes[76], bytes[77], bytes[78], bytes[79]]) == 3;
        assert!(flip(&machine.memory(1), own) >= 1);
        for (rank, seen) in machine.run(&NODES, |rank, session| restart(session, rank)).iter().enumerate() {
            assert_eq!((seen.version, &seen.error), (Some(2), &None), "{text}, rank {rank}");
            assert_eq!(seen.stats.restored_bytes[TierId::PEERS] > 0, rank == 3, "{text}, rank {rank}");
        }
    }
}

#[test]
fn a_node_that_comes_back_with_an_old_disk_is_not_believed() {
    let machine = Machine { local_every: 1, ..Machine::new(scheme("xor(4)")) };
    let taken = machine.run(&NODES, |rank, session| take(session, rank, 1, Level::NodeLoss));
    assert!(taken.iter().all(Result::is_ok));
    // Node 2 leaves with version 1 on its disk. The run continues with a spare, and takes version 2.
    let aside = machine.root.path().join("aside");
    std::fs::rename(machine.local(2), &aside).expect("its disk goes with it");
    std::fs::remove_dir_all(machine.memory(2)).expect("its memory goes");
    let ended = machine.run(&WITH_SPARE, |rank, session| {
        let seen = restart(session, rank);
        assert_eq!((seen.version, &seen.error), (Some(1), &None), "rank {rank}");
        take(session, rank, 2, Level::NodeLoss)
    });
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    // Node 2 is back, with its old disk, and node 4 is lost.
    std::fs::rename(&aside, machine.local(2)).expect("its disk is back");
    machine.lose(4);
    for (rank, seen) in machine.run(&NODES, |rank, session| restart(session, rank)).iter().enumerate() {
        assert_eq!((seen.version, &seen.error), (Some(2), &None), "rank {rank}");
        assert_eq!(seen.stats.restored_bytes[TierId::PEERS] > 0, (4..6).contains(&rank), "rank {rank}");
    }
}

#[test]
fn a_loss_before_the_new_run_has_protected_anything_is_survived_as_well() {
    let machine = Machine::new(scheme("rs(2,2)"));
    take_two(&machine, &NODES);
    machine.lose(2);
    // The second run dies after its restart, before its first checkpoint is protected; another node is lost with it.
    let seen = machine.run(&WITH_SPARE, |rank, session| restart(session, rank));
    assert!(seen.iter().all(|seen| seen.version == Some(2)));
    machine.lose(4);
    machine.lose(3);
    let nodes = [0, 0, 1, 1, 5, 5, 6, 6];
    for (rank, seen) in machine.run(&nodes, |rank, session| restart(session, rank)).iter().enumerate() {
        assert_eq!((seen.version, &seen.error), (Some(2), &None), "rank {rank}");
    }
}

#[test]
fn memory_for_redundancy_is_reported_when_it_does_not_suffice() {
    let machine = Machine::new(scheme("partner(3)"));
    let ended = machine.run(&NODES, |rank, session| {
        let values = vec![7u64; 1 << 20];
        let mut last = Ok(Level::Captured);
        for version in 1..4 {
            let mut checkpoint = session.begin_checkpoint(NAME, version).expect("begins");
            checkpoint.save("values", &values).expect("saves");
            let pending = checkpoint.capture().expect("is captured");
            last = pending.wait(Level::NodeLoss).map_err(|error| error.to_string());
        }
        let _ = rank;
        last
    });
    // 64 MiB on a node hold 4 shards of 8 MiB twice, but not 8 of them.
    for ended in ended {
        let error = ended.expect_err("there is no room");
        assert!(error.contains("no room") && error.contains("memory.budget"), "{error}");
    }
}

#[test]
fn what_a_failed_exchange_had_sealed_already_is_given_back() {
    let machine = Machine {
        memory_bytes: |node| if node < 2 { 20 << 20 } else { 64 << 20 },
        ..Machine::new(scheme("partner(2)"))
    };
    // The copies of one rank's shard find no room in the second version.
    let ended = machine.run(&NODES, |rank, session| {
        [1, 2, 3].map(|version| {
            let values = vec![7u64; if (rank, version) == (7, 2) { 2 << 20 } else { 1 << 16 }];
            let mut checkpoint = session.begin_checkpoint(NAME, version).expect("begins");
            checkpoint.save("values", &values).expect("saves");
            checkpoint.capture().expect("is captured").wait(Level::NodeLoss).map_err(|error| error.to_string())
        })
    });
    for ended in ended {
        assert_eq!((&ended[0], &ended[2]), (&Ok(Level::NodeLoss), &Ok(Level::NodeLoss)));
        assert!(ended[1].as_ref().is_err_and(|error| error.contains("no room")), "{ended:?}");
    }
    for node in 0..4 {
        let folder = machine.memory(node);
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let name = entry.expect("an entry").file_name().into_string().expect("UTF-8");
            let segment = OldSegment::open(&folder, &name).expect("a segment");
            let sealed = segment.slots().iter().filter(|slot| slot.state == SlotState::Sealed);
            let operations: BTreeSet<u64> = sealed.map(|slot| slot.operation).collect();
            assert_eq!(operations.len(), 1, "node {node}: {operations:?}, and only the third version is of use");
        }
    }
}
