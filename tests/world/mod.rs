//! A simulated machine for the real session: ranks, nodes, disks, memory, and their faults.
//!
//! - [`baton`]: one thread at a time, simulated time, and death.
//! - [`rank`]: the application, on the real [`bivouac_core::Session`].
//! - [`journal`]: the events that ranks write down, and the data that they should have.
//! - [`truth`]: the checkers.
//! - this file: machines, and one run of the application on them.
//!
//! The session is real, with coordination, engine, tiers, claims, election and the node segment. Processes (which are threads), time,
//! messages between processes, and the file systems, which forget data that was not synced, are simulated. Memory segments are real files
//! in a private directory of /dev/shm, with one folder per machine.
#![allow(dead_code)] // Each test program uses a part of this.

pub mod baton;
pub mod journal;
pub mod rank;
pub mod truth;

use baton::{Baton, Seat, TaskId, WallClock};
use bivouac_core::Config;
use bivouac_core::base::rng::Rng;
use bivouac_core::base::{Clock, Incarnation};
use bivouac_core::comm::Comm;
use bivouac_core::comm::faulty::{FaultPlan, Faulty};
use bivouac_core::comm::threads;
use bivouac_core::config::Budget;
use bivouac_core::format::shard::Head;
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::tier::simulated::Simulated;
use bivouac_core::tier::storage::Storage;
use bivouac_core::tier::wrappers::Watched;
use bivouac_core::transfer::{Lands, Later};
use journal::Journal;
use rank::{Hands, Overheard, Rank, Script};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Control words of a segment: 12 KiB per rank and at most 256 KiB for the extents, in whole pages.
fn control_bytes(ranks: u64) -> u64 {
    ranks * 16 * 1024 + 300 * 1024
}

/// The machines, with their disks and their memory.
pub struct World {
    pub seed: u64,
    pub baton: Arc<Baton>,
    pub disk: Simulated,
    pub memory: tempfile::TempDir,
    /// The number of boots of each machine so far.
    boots: Vec<u32>,
    runs: u64,
    frozen_at: Option<u64>,
}

/// The inputs of one run of the application.
pub struct Run {
    pub script: Script,
    pub config: Config,
    /// The machine of each rank.
    pub machines: Vec<u32>,
    /// The faults of messages.
    pub messages: FaultPlan,
    /// The memory of each node, for all its ranks.
    pub budget: u64,
    /// Shards land some time after their captures.
    pub landings: Option<Landings>,
}

/// What happens to shards after their captures.
#[derive(Clone, Copy, Debug)]
pub struct Landings {
    /// Some shards do not land, or their outcome is never reported.
    pub fail: bool,
}

/// A run whose ranks are waiting for their turns.
pub struct Running {
    pub group: u32,
    pub tasks: Vec<TaskId>,
    pub journal: Journal,
}

/// Zeros for the sector or page of a file that contains a byte, and the offset of that sector or page.
fn lost(byte: u64, length: u64, rng: &mut Rng) -> (Vec<u8>, u64) {
    let size = if rng.chance(1, 2) { 512 } else { 4096 };
    let at = byte / size * size;
    (vec![0; size.min(length - at) as usize], at)
}

/// The folder of a machine's local storage.
pub fn local_root(machine: u32) -> PathBuf {
    PathBuf::from(format!("/local-{machine}"))
}

/// The folder of the global storage.
pub const GLOBAL_ROOT: &str = "/global";

impl World {
    pub fn new(seed: u64, machines: u32, turns_max: u64) -> World {
        let baton = Baton::new(seed, turns_max);
        let disk = Simulated::with_clock(Arc::new(WallClock(baton.clone())));
        let memory = tempfile::Builder::new().prefix("bivouac-simulation-").tempdir_in("/dev/shm");
        let world = World {
            seed,
            baton,
            disk,
            memory: memory.expect("/dev/shm is writable"),
            boots: vec![0; machines as usize],
            runs: 0,
            frozen_at: None,
        };
        for machine in 0..machines {
            world.disk.create_dir_all(&local_root(machine)).expect("an empty disk has room");
            std::fs::create_dir(world.memory_of(machine)).expect("our own folder");
        }
        world.disk.create_dir_all(Path::new(GLOBAL_ROOT)).expect("an empty disk has room");
        world
    }

    pub fn machine_count(&self) -> u32 {
        self.boots.len() as u32
    }

    pub fn memory_of(&self, machine: u32) -> PathBuf {
        self.memory.path().join(format!("machine-{machine}"))
    }

    /// Stops everything when the disk has made this many more steps.
    pub fn freeze_after(&mut self, steps: u64) {
        self.disk.freeze_after(steps);
        self.frozen_at = Some(self.disk.steps() + steps);
    }

    pub fn thaw(&mut self) {
        self.disk.thaw();
        self.frozen_at = None;
    }

    /// The number of the next run, which is part of the data of its checkpoints.
    pub fn next_run(&mut self) -> u64 {
        self.runs += 1;
        self.runs
    }

    /// Empties a machine's memory.
    pub fn wipe_memory(&mut self, machine: u32) {
        let folder = self.memory_of(machine);
        std::fs::remove_dir_all(&folder).expect("our own folder");
        std::fs::create_dir(folder).expect("our own folder");
    }

    /// Reboots a machine without notice: its memory is lost, and so is the data on its disk that was not synced.
    pub fn power_cut(&mut self, machine: u32, rng: &mut Rng) {
        self.wipe_memory(machine);
        self.boots[machine as usize] += 1;
        self.disk.power_cut_below(&local_root(machine), rng).expect("it is there");
    }

    /// Replaces a machine by a new one.
    pub fn replace(&mut self, machine: u32) {
        self.wipe_memory(machine);
        self.boots[machine as usize] += 1;
        self.disk.lose(&local_root(machine)).expect("it is there");
        self.disk.create_dir_all(&local_root(machine)).expect("there is room");
    }

    /// The effects of [`World::replace`], for a task to cause while a run continues; the caller reports it with
    /// [`World::rebooted`] afterwards.
    pub fn loss_of(&self, machine: u32) -> impl FnOnce() + Send + 'static {
        let (folder, disk, local) = (self.memory_of(machine), self.disk.clone(), local_root(machine));
        move || {
            std::fs::remove_dir_all(&folder).expect("our own folder");
            std::fs::create_dir(folder).expect("our own folder");
            // Earlier faults of the disk end with it.
            disk.heal(&local).expect("it is a path");
            disk.lose(&local).expect("it is there");
            disk.create_dir_all(&local).expect("there is room");
        }
    }

    /// Records that a machine has booted again.
    pub fn rebooted(&mut self, machine: u32) {
        self.boots[machine as usize] += 1;
    }

    /// The container of the newest version at or below a directory.
    pub fn newest_container(&self, top: &Path) -> Option<PathBuf> {
        let files = self.disk.files(top).into_iter().map(|(path, _)| path);
        let is_container = |path: &PathBuf| path.extension().is_some_and(|end| end == "bvs" || end == "bvc");
        let order = |path: &PathBuf| path.parent().and_then(Path::file_name).map(|folder| folder.to_owned());
        files.filter(is_container).max_by_key(order)
    }

    /// Loses a write to a file: a sector or page becomes zeros, or what it is in the same file of another version. Returns a text
    /// that names the damage.
    pub fn lose_write(&self, path: &Path, rng: &mut Rng) -> std::io::Result<&'static str> {
        let bytes = self.disk.read_all(path, 1 << 30)?;
        let (mut lost, at) = lost(rng.below(bytes.len() as u64), bytes.len() as u64, rng);
        let stale = if rng.chance(1, 2) { self.older(path) } else { None };
        let there = stale.as_ref().and_then(|stale| stale.get(at as usize..at as usize + lost.len()));
        let is_stale = there.is_some();
        if let Some(there) = there {
            lost.copy_from_slice(there);
        }
        self.disk.overwrite(path, at, &lost)?;
        Ok(if is_stale { "hit by a write that went astray" } else { "missing a write" })
    }

    /// The file of the same name in another version of a series.
    fn older(&self, path: &Path) -> Option<Vec<u8>> {
        let (folder, name) = (path.parent()?, path.file_name()?);
        let others = self.disk.files(folder.parent()?).into_iter().map(|(other, _)| other);
        let is_it = |other: &PathBuf| other != path && other.file_name() == Some(name);
        self.disk.read_all(&others.into_iter().find(is_it)?, 1 << 30).ok()
    }

    /// Flips a bit in a machine's memory: in a shard, a copy or parity. Returns the series, the generation and the
    /// version to which it belongs.
    pub fn flip_in_memory(&self, machine: u32, rng: &mut Rng) -> Option<(String, (u64, u64), String)> {
        let mut files: Vec<PathBuf> = std::fs::read_dir(self.memory_of(machine))
            .expect("our own folder")
            .map(|entry| entry.expect("our own folder").path())
            .collect();
        files.sort();
        let mut found = Vec::new();
        for path in files {
            let bytes = std::fs::read(&path).expect("our own file");
            for at in (0..bytes.len()).step_by(4096) {
                let Ok(head) = Head::decode(&bytes[at..]) else { continue };
                found.push((path.clone(), at as u64, head));
            }
        }
        let pick = rng.below(found.len().max(1) as u64) as usize;
        let (path, start, head) = found.into_iter().nth(pick)?;
        let header = &head.header;
        // Half of the hits are in the small parts that describe the rest.
        let length = if rng.chance(1, 2) { header.total_len } else { header.body_offset };
        let bit = rng.below(length * 8);
        let file = std::fs::File::options().read(true).write(true).open(&path).expect("our own file");
        let (mut lost, at) = if rng.chance(1, 3) { lost(bit / 8, header.total_len, rng) } else { (vec![0], bit / 8) };
        if lost.len() == 1 {
            file.read_exact_at(&mut lost, start + at).expect("it is there");
            lost[0] ^= 1 << (bit % 8);
        }
        file.write_all_at(&lost, start + at).expect("our own file");
        let what = format!(
            "{:?} of rank {} of {} version {} of generation {} in the memory of machine {machine}, bit {bit} of {} and {} bytes",
            header.content,
            header.rank,
            head.meta.name,
            header.key.version,
            header.key.generation,
            header.total_len * 8,
            lost.len()
        );
        Some((head.meta.name.clone(), (header.key.generation.0, header.key.version), what))
    }

    /// Puts the ranks of a run in their places; nothing happens before the baton is lent.
    pub fn start(&mut self, run: Run) -> Running {
        let number = run.script.run;
        let group = u32::try_from(number).expect("few runs");
        let journal = Journal::default();
        let mut rng = Rng::new(self.seed ^ number << 32);
        let fresh = Incarnation(std::array::from_fn(|_| rng.next_u64() as u8));
        let mut tasks = Vec::new();
        for (rank, comm) in threads::world(&run.machines).into_iter().enumerate() {
            let (rank, machine) = (rank as u32, run.machines[rank]);
            let is_first = run.machines.iter().position(|other| *other == machine) == Some(rank as usize);
            let peers = run.machines.iter().filter(|other| **other == machine).count() as u64;
            let directory = self.memory_of(machine);
            let memory = is_first.then(|| (directory.clone(), run.budget + control_bytes(peers)));
            let mut config = run.config.clone();
            config.node.memory_directory = directory;
            config.node.memory_budget = Budget::Bytes(run.budget);
            config.node.local_directory = Some(local_root(machine));
            let (script, journal) = (run.script.clone(), journal.clone());
            let (boot, plan, seed) = (self.boots[machine as usize], run.messages, rng.next_u64());
            let disk = self.disk.process(number << 16 | u64::from(rank));
            let (frozen, landings) = (self.frozen(), run.landings);
            tasks.push(self.baton.spawn(group, move |seat| {
                let mut place = place(seat, disk, frozen, fresh, machine, boot);
                place.later = landings.map(|landings| later(seat.clone(), group, landings));
                let comm: Box<dyn Comm> =
                    Box::new(Overheard { inner: Faulty::new(comm, plan, Rng::new(seed)), seat: seat.clone() });
                rank::run(seat, Rank { rank, place, config, script, journal, memory }, comm);
            }));
        }
        Running { group, tasks, journal }
    }

    fn frozen(&self) -> Option<Arc<dyn Fn() -> bool + Send + Sync>> {
        let (at, disk) = (self.frozen_at?, self.disk.clone());
        Some(Arc::new(move || disk.steps() >= at))
    }

    /// Runs until all ranks have ended, but for at most `limit`.
    pub fn run(&self, running: &Running, limit: Option<Duration>) -> bool {
        self.baton.run(running.group, limit)
    }

    /// Kills the remaining ranks of a run.
    pub fn kill(&self, running: &Running) {
        self.baton.doom(running.group);
        self.baton.run(running.group, None);
        for rank in 0..running.tasks.len() as u64 {
            self.disk.kill(u64::from(running.group) << 16 | rank);
        }
    }
}

/// Lands shards of a rank, each in a task of its own that dies with the rank.
fn later(rank: Seat, group: u32, landings: Landings) -> Later {
    Arc::new(move |lands: Lands| {
        let fate = rank.below(8);
        if fate == 0 {
            return lands(Ok(()));
        }
        let (rank, delay) = (rank.clone(), Duration::from_micros(rank.below(if fate == 1 { 400_000 } else { 30_000 })));
        let baton = rank.shared();
        baton.spawn(group, move |own| {
            own.sleep(delay);
            own.touch();
            match fate {
                // A process that has died does nothing more.
                _ if rank.is_over() => std::mem::forget(lands),
                2 if landings.fail => lands(Err("the device is gone".to_owned())),
                3 if landings.fail => drop(lands),
                _ => lands(Ok(())),
            }
        });
    })
}

fn place(
    seat: &Seat,
    disk: Simulated,
    frozen: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
    fresh: Incarnation,
    machine: u32,
    boot: u32,
) -> Place {
    let storage: Arc<dyn Storage> = Arc::new(Watched::new(disk, Arc::new(Hands { seat: seat.clone(), frozen })));
    Place {
        clock: Arc::new(seat.clone()),
        local: storage.clone(),
        global: storage,
        workers: Workers::Inline,
        later: None,
        group: "world".into(),
        fresh,
        host: format!("machine-{machine}"),
        boot: format!("boot-{machine}-{boot}"),
        program: "simulation".into(),
        command: "simulation".into(),
        directory: PathBuf::from("/"),
        temporary: PathBuf::from("/tmp"),
        user: 1000,
        is_real: false,
    }
}

/// A configuration with small blocks and short time-outs, on simulated storage.
pub fn config() -> Config {
    let mut config = Config::default();
    config.job.name = Some("simulation".into());
    config.job.block_bytes = 4096;
    config.job.global_directory = PathBuf::from(GLOBAL_ROOT);
    config.job.timeouts.warn = Duration::from_secs(2);
    config.job.timeouts.abandon = Duration::from_secs(12);
    config.job.timeouts.room = Duration::from_secs(1);
    config.job.timeouts.drain = Duration::from_secs(20);
    config.node.write_bytes = 64 << 10;
    config
}
