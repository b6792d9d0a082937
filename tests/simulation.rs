//! The simulation: whole jobs run again and again on machines that fail; each job follows from one seed.
//!
//! Each seed makes a machine ([`world`]), and a job of 1 to 64 ranks runs on it several times. Runs are killed, their
//! machines lose power or are replaced, disks fill up or fail, and files rot. Messages are lost, late, doubled or in
//! disorder, ranks fall behind, and runs that everybody believes dead continue to write. After each run the checkers
//! ([`world::truth`]) compare what the ranks were told with what the next run gets back:
//!
//! - restored data is the data that was saved (compared byte by byte with the model);
//! - all ranks restore the same checkpoint;
//! - this is at least the newest checkpoint that an application was told was committed, at a level that the damage has
//!   not reached;
//! - this also holds while the run that was told so is still alive, at levels where a run checks the claims before it
//!   commits;
//! - if redundancy between nodes was reported, this also holds after the loss of as many machines as it allows;
//! - all ranks hear the same verdict, unless they hear none;
//! - node memory stays within its budget;
//! - every call ends, and if no process was killed and no message lost, every rank reaches the end of its
//!   work;
//! - without faults there are no errors;
//! - all of this holds with another number of ranks than before, element by element.
//!
//! A seed can be replayed: the same turns happen in the same order at the same times.
//!
//! ```text
//! BIVOUAC_TEST_SEED=17 cargo nextest run --test simulation --no-capture     one seed, with the log if RUST_LOG is set
//! BIVOUAC_TEST_SEEDS=5000 cargo nextest run --test simulation               seeds 0 to 4999
//! BIVOUAC_TEST_PAIRS=64 cargo nextest run --test simulation pairs           what each of 1 to 64 ranks saved, on each of 1 to 64
//! ```
#![forbid(unsafe_code)]

mod world;

use bivouac_core::base::Level;
use bivouac_core::base::rng::Rng;
use bivouac_core::comm::faulty::FaultPlan;
use bivouac_core::config::{Budget, Choice, Compress, Method, PartStore, Scheme};
use bivouac_core::redundancy::placement::place;
use bivouac_core::tier::simulated::Fault;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use world::rank::{Action, Script};
use world::truth::{Counts, Truth, Weather};
use world::{GLOBAL_ROOT, Landings, Run, Running, World, local_root};

/// The number of seeds in an ordinary run of the tests, which takes about half a minute on two cores. `ci/test.sh whole` runs more.
const SEEDS: u64 = 100;
/// The maximum number of ranks in a job whose number of ranks changes.
const RANKS_MAX: u32 = 8;
/// More turns than any run that does not hang needs; a rank takes some hundreds per call that times out.
const TURNS_PER_RANK: u64 = 150_000;

/// The properties that all runs of one seed share.
struct Job {
    world: World,
    truth: Truth,
    rng: Rng,
    ranks: u32,
    per_machine: u32,
    config: bivouac_core::Config,
    series: usize,
    large: bool,
    budget: u64,
    machines: Vec<u32>,
    /// Shards land later than their captures, in half of the seeds.
    lands_later: bool,
    /// Runs have another number of ranks than earlier runs, in a quarter of the seeds.
    is_elastic: bool,
    generation_max: u64,
    zombie: Option<Zombie>,
    story: Vec<String>,
}

/// A run that everybody believes dead, but that continues.
struct Zombie {
    running: Running,
    machines: Vec<u32>,
    tolerates: u32,
    weather: Weather,
    /// Whether it had claimed its generation before it was cut off.
    is_open: bool,
}

/// The faults during one run.
#[derive(Default, Debug)]
struct Trouble {
    weather: Weather,
    messages: FaultPlan,
    kill_all_at: Option<Duration>,
    /// The rank that is killed, the point at which this happens, and the time until the others follow.
    kill_one: Option<(u32, u64, Duration)>,
    /// A machine that is lost with everything that runs on it, the time of the loss, and the time until the other ranks follow.
    lose: Option<(u32, Duration, Duration)>,
    faults: Vec<(Duration, Duration, String, Fault)>,
    stall: Option<u32>,
    gives_up: bool,
    landings_fail: bool,
    cut_off: Option<Duration>,
}

fn millis(rng: &mut Rng, below: u64) -> Duration {
    Duration::from_micros(rng.below(below * 1000))
}

impl Job {
    fn new(seed: u64) -> Job {
        let mut rng = Rng::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1);
        let ranks: u32 = [1, 2, 2, 3, 3, 3, 2, 8, 8, 3][rng.below(10) as usize];
        let scheme = scheme(&mut rng);
        // Redundancy needs several machines.
        let ranks = if scheme == Scheme::None { ranks } else { [2, 3, 4, 4, 5, 6, 8][rng.below(7) as usize] };
        let ranks = if seed % 40 == 39 { 64 } else { ranks };
        let most = if scheme == Scheme::None { 4 } else { 2 };
        let per_machine = 1 + rng.below(u64::from(ranks.min(most))) as u32;
        let per_machine = if ranks == 64 { 8 } else { per_machine };
        let used = ranks.div_ceil(per_machine);
        let mut config = world::config();
        match rng.below(12) {
            0 => config.job.memory_enabled = false,
            1 => config.job.local_enabled = false,
            2 => config.job.global_enabled = false,
            3 => (config.job.memory_enabled, config.job.local_enabled) = (false, false),
            4 => (config.job.local_enabled, config.job.global_enabled) = (false, false),
            _ => {}
        }
        config.job.local.every = (1 + rng.below(3)).into();
        config.job.global.every = (1 + rng.below(3)).into();
        if config.job.memory_enabled && scheme != Scheme::None {
            config.job.redundancy.scheme = scheme;
            config.job.redundancy.every = (1 + rng.below(2) * rng.below(3)).into();
            if config.job.local_enabled && rng.chance(1, 3) {
                config.job.redundancy.store = PartStore::Local;
            }
            // Only the first version goes to the local tier.
            if rng.chance(1, 2) {
                config.job.local.every = (1 << 40).into();
            }
            if rng.chance(2, 3) {
                config.job.global.every = (1 << 40).into();
            }
        }
        config.job.local.keep_last = 1 + rng.below(3);
        config.job.global.keep_last = 1 + rng.below(3);
        config.job.interval.seconds = Duration::from_millis(rng.below(2) * 30).into();
        // This uses a generator of its own, so that the other half of the seeds does not change.
        let mut reduction = Rng::new(seed ^ 0x7ed0);
        if reduction.chance(1, 2) {
            config.job.reduction.method =
                [Method::Basic, Method::List, Method::Tree, Method::Auto][reduction.below(4) as usize];
            config.job.reduction.chunk = [None, Some(64), Some(1024)][reduction.below(3) as usize];
            config.node.reduction_budget = Budget::Bytes([1 << 20, 30_000][reduction.below(2) as usize]);
            config.job.reduction.sources = 1 + reduction.below(8);
            config.job.reduction.live = [0.01, 0.25, 1.0][reduction.below(3) as usize];
            config.job.reduction.whole_every = [0, 0, 3][reduction.below(3) as usize];
            config.job.reduction.compress = Compress::ALL[reduction.below(3) as usize];
            if reduction.chance(1, 2) {
                config.job.local.every = (1 + reduction.below(5)).into();
                config.job.global.every = (1 + reduction.below(5)).into();
            }
        }
        // Another generator decides which settings the session chooses itself.
        let mut auto = Rng::new(seed ^ 0xa070);
        if auto.chance(1, 3) {
            let job = &mut config.job;
            job.interval.seconds = if auto.chance(2, 3) { Choice::Auto } else { job.interval.seconds };
            (job.interval.least, job.interval.most) = (Duration::from_millis(1), Duration::from_millis(60));
            job.interval.mtbf = auto.chance(1, 2).then(|| Duration::from_millis(1 + auto.below(2000)));
            for every in [&mut job.local.every, &mut job.global.every, &mut job.redundancy.every] {
                *every = if auto.chance(1, 2) { Choice::Auto } else { *every };
            }
        }
        // If memory is the only tier, it must have room; otherwise a shard that finds no room goes to the other tiers.
        let is_alone = !config.job.local_enabled && !config.job.global_enabled;
        let is_roomy = rng.chance(1, 2) || is_alone;
        let is_elastic = ranks < 64 && Rng::new(seed ^ 0xe1a5).chance(1, 4);
        let most_ranks = if is_elastic { RANKS_MAX } else { ranks };
        let budget = if is_roomy {
            // All ranks may be on one machine.
            u64::from(most_ranks.min(8)) * (16 << 20)
        } else {
            (2 << 20) * (1 + rng.below(u64::from(per_machine) + 1))
        };
        if ranks == 64 {
            // The root watches an older claim for nine seconds, and time passes while so many ranks watch.
            config.job.timeouts.abandon = Duration::from_secs(20);
        }
        let is_stored = config.job.redundancy.store == PartStore::Local;
        let truth = Truth::new(config.job.global.keep_last as usize, is_roomy, is_stored);
        Job {
            world: World::new(
                seed,
                used + 1 + u32::from(scheme != Scheme::None),
                u64::from(most_ranks + 2) * TURNS_PER_RANK,
            ),
            truth,
            ranks,
            per_machine,
            config,
            series: 1 + rng.below(2) as usize,
            large: rng.chance(1, 4),
            budget,
            machines: (0..ranks).map(|rank| rank / per_machine).collect(),
            lands_later: Rng::new(seed ^ 0x1a4d).chance(1, 2),
            is_elastic,
            generation_max: 0,
            zombie: None,
            story: Vec::new(),
            rng,
        }
    }

    fn tell(&mut self, text: String) {
        log::info!("STORY {text}");
        self.story.push(text);
    }

    /// Damages the machines between two runs.
    fn damage(&mut self) {
        let scheme = self.config.job.redundancy.scheme;
        if scheme == Scheme::None {
            return self.damage_something();
        }
        // Mostly, no more machines are lost than redundancy allows; sometimes, more are.
        for _ in 0..self.rng.below(u64::from(scheme.parity()) + 2) {
            match self.rng.below(8) {
                0..=3 => {
                    let machine = self.rng.below(u64::from(self.world.machine_count())) as u32;
                    self.lose_machine(machine);
                }
                4 => self.flip_in_memory(),
                _ => self.damage_something(),
            }
        }
        if self.rng.chance(1, 4) {
            self.move_ranks();
        }
    }

    fn lose_machine(&mut self, machine: u32) {
        self.tell(format!("machine {machine} is replaced"));
        self.world.replace(machine);
        self.truth.lose_memory(machine, self.generation_max);
        self.truth.lose_local(machine, self.generation_max);
    }

    fn flip_in_memory(&mut self) {
        let machine = self.rng.below(u64::from(self.world.machine_count())) as u32;
        if let Some((series, key, what)) = self.world.flip_in_memory(machine, &mut self.rng) {
            self.tell(format!("a bit flips: {what}"));
            self.truth.memory_damaged.insert((series, key));
        }
    }

    /// Gives the next run another number of ranks, on the machines used before or on any.
    fn resize(&mut self) {
        let used: Vec<u32> =
            self.machines.iter().copied().collect::<std::collections::BTreeSet<u32>>().into_iter().collect();
        self.ranks = 1 + self.rng.below(u64::from(RANKS_MAX)) as u32;
        let count = self.world.machine_count();
        let machines = if self.rng.chance(2, 3) { used } else { (0..count).collect() };
        let ranks = self.ranks as usize;
        self.machines = (0..ranks).map(|rank| machines[rank * machines.len() / ranks]).collect();
        let text = format!("{ranks} ranks from now on, on machines {:?}", self.machines);
        self.tell(text);
    }

    /// Moves ranks to other machines: whole machines are exchanged, or each rank goes to any machine.
    fn move_ranks(&mut self) {
        let count = u64::from(self.world.machine_count());
        if self.rng.chance(1, 2) {
            let mut order: Vec<u32> = (0..count as u32).collect();
            for last in (1..order.len()).rev() {
                order.swap(last, self.rng.below(last as u64 + 1) as usize);
            }
            self.machines.iter_mut().for_each(|machine| *machine = order[*machine as usize]);
        } else {
            self.machines = (0..self.ranks).map(|_| self.rng.below(count) as u32).collect();
        }
        let text = format!("ranks move to machines {:?}", self.machines);
        self.tell(text);
    }

    fn damage_something(&mut self) {
        let machine = self.rng.below(u64::from(self.world.machine_count())) as u32;
        let generation = self.generation_max;
        match self.rng.below(10) {
            0 => self.lose_machine(machine),
            1 => {
                self.tell(format!("machine {machine} loses power"));
                self.world.power_cut(machine, &mut self.rng);
                self.truth.lose_memory(machine, generation);
            }
            2 => {
                self.tell("everything loses power".into());
                for machine in 0..self.world.machine_count() {
                    self.world.power_cut(machine, &mut self.rng);
                    self.truth.lose_memory(machine, generation);
                }
                self.world.disk.power_cut(&mut self.rng);
            }
            3 => {
                self.tell(format!("machine {machine} loses its memory"));
                self.world.wipe_memory(machine);
                self.truth.lose_memory(machine, generation);
            }
            4 => self.rot(&local_root(machine)),
            5 => self.rot(Path::new(GLOBAL_ROOT)),
            6 => {
                // The spare machine replaces one.
                let spare = (0..self.world.machine_count()).find(|id| !self.machines.contains(id));
                if let Some(spare) = spare {
                    self.tell(format!("machine {machine} is drained, {spare} takes its place"));
                    self.machines.iter_mut().filter(|id| **id == machine).for_each(|id| *id = spare);
                }
            }
            7 => self.flip_in_memory(),
            _ => {}
        }
    }

    /// Flips bits in files, truncates them, loses writes to them, or removes them.
    fn rot(&mut self, top: &Path) {
        let is_local = top != Path::new(GLOBAL_ROOT);
        for _ in 0..=self.rng.below(2) {
            let files = self.world.disk.files(top);
            let Some((path, length)) = files.get(self.rng.below(files.len() as u64) as usize).cloned() else { return };
            let disk = &self.world.disk;
            let how = self.rng.below(6);
            // This is the file that a restart will read first.
            let newest = if how == 3 { self.world.newest_container(top) } else { None };
            let path = newest.unwrap_or(path);
            let done = match how {
                0 => disk.lose(&path).map(|()| "lost"),
                1 if length > 0 => disk.truncate(&path, self.rng.below(length)).map(|()| "cut short"),
                2 | 3 if disk.files(&path).iter().any(|(_, length)| *length > 0) => {
                    self.world.lose_write(&path, &mut self.rng)
                }
                _ if length > 0 => disk.flip_bit(&path, self.rng.below(length * 8)).map(|()| "hit by a bit flip"),
                _ => Ok("spared"),
            };
            let done = done.expect("the file is there");
            self.tell(format!("{} is {done}", path.display()));
            if path == Path::new(GLOBAL_ROOT).join("store") && done != "spared" {
                // Another id makes another store: runs do not touch the memory and disks of the old one.
                for machine in 0..self.world.machine_count() {
                    self.truth.lose_memory(machine, self.generation_max);
                    self.truth.lose_local(machine, self.generation_max);
                }
            }
            let mut names = path.iter().rev().map(|name| name.to_string_lossy().into_owned());
            let (file, folder, series) = (names.next(), names.next(), names.next());
            let (Some(file), Some(folder), Some(series)) = (file, folder, series) else { continue };
            // A manifest is only a record; the checkpoint consists of the shards and, if a node is lost, of the parity.
            if let (Some((generation, version, _)), true) = (
                bivouac_core::base::CheckpointKey::parse_folder(&folder),
                [".bvs", ".bvc", ".bvp"].iter().any(|ending| file.ends_with(ending)),
            ) {
                let set = if is_local { &mut self.truth.local_damaged } else { &mut self.truth.global_damaged };
                // Later versions of the run may refer to this one.
                let is_referred_to = self.config.job.reduction.method != Method::Full;
                let last = if is_referred_to { version + 1000 } else { version };
                set.extend((version..=last).map(|version| (series.clone(), (generation.0, version))));
            }
        }
    }

    fn trouble(&mut self) -> Trouble {
        let mut trouble = Trouble::default();
        let is_protected = self.config.job.redundancy.scheme != Scheme::None;
        let rng = &mut self.rng;
        if rng.chance(1, 2) {
            // A correct protocol does not even notice these faults.
            let (duplicate, delay) = (rng.below(100) as u16, rng.below(200) as u16);
            let reorder = if rng.chance(1, 2) { rng.below(200) as u16 } else { 0 };
            trouble.messages = FaultPlan { duplicate, delay, reorder, hold_calls: 8, ..FaultPlan::NONE };
        }
        let kind = rng.below(12);
        if [3, 4, 9].contains(&kind) {
            trouble.kill_all_at = Some(millis(rng, 700));
            trouble.weather.hard = true;
        }
        if [5, 6].contains(&kind) {
            // Half of the kills happen during the restart.
            let points = if rng.chance(1, 2) { 100 } else { 600 };
            let (rank, point) = (rng.below(u64::from(self.ranks)) as u32, rng.below(points));
            let later = if rng.chance(1, 2) { millis(rng, 40) } else { Duration::from_secs(60) };
            trouble.kill_one = Some((rank, point, later));
            trouble.weather.hard = true;
        }
        if is_protected && rng.chance(1, 4) {
            let machine = self.machines[rng.below(u64::from(self.ranks)) as usize];
            let at = if rng.chance(1, 3) { millis(rng, 60) } else { millis(rng, 600) };
            let later = if rng.chance(3, 4) { millis(rng, 40) } else { Duration::from_secs(60) };
            trouble.lose = Some((machine, at, later));
            trouble.weather.hard = true;
        }
        if [7, 9].contains(&kind) {
            for _ in 0..=rng.below(3) {
                let machine = rng.below(u64::from(self.world.machine_count())) as u32;
                let is_global = rng.chance(1, 2);
                let fault = [Fault::Full, Fault::Dead, Fault::ReadOnly, Fault::Denied][rng.below(4) as usize];
                let from = if rng.chance(1, 4) { Duration::ZERO } else { millis(rng, 400) };
                // A restart needs the tiers all the time, so only a fault that begins later does not affect it.
                let top = if is_global { GLOBAL_ROOT.into() } else { local_root(machine).display().to_string() };
                if is_global {
                    trouble.weather.global_out = true;
                } else {
                    trouble.weather.local_out = true;
                }
                trouble.faults.push((from, millis(rng, 300), top, fault));
            }
            trouble.weather.storage = true;
        }
        if kind == 8 {
            trouble.messages.drop = 1 + rng.below(30) as u16;
            trouble.weather.lossy = true;
            trouble.weather.hard = true;
        }
        if kind == 10 && rng.chance(1, 2) {
            trouble.stall = Some(rng.below(u64::from(self.ranks)) as u32);
            trouble.weather.hard = true;
        } else if kind == 10 {
            trouble.gives_up = true;
            trouble.weather.late = true;
        }
        if kind == 10 || kind == 2 {
            trouble.landings_fail = self.lands_later;
            trouble.weather.late |= self.lands_later;
        }
        if kind == 11 {
            trouble.cut_off = Some(millis(rng, 300));
            trouble.weather.hard = true;
        }
        trouble
    }

    fn script(&mut self, trouble: &Trouble) -> Script {
        let run = self.world.next_run();
        let rng = &mut self.rng;
        let series = self.series as u64;
        let count = 4 + rng.below(if self.ranks > 8 { 6 } else { 14 });
        let mut actions = Vec::new();
        for _ in 0..count {
            let series = rng.below(series) as usize;
            actions.push(match rng.below(10) {
                0..=4 => {
                    let wait = match rng.below(7) {
                        0 => Some(Level::Process),
                        1 => Some(Level::NodeReboot),
                        2 => Some(Level::System),
                        3 => Some(Level::NodeLoss),
                        _ => None,
                    };
                    Action::Checkpoint { series, wait }
                }
                5 if rng.chance(1, 3) => Action::List { series },
                6 => Action::Ask,
                _ => Action::Compute { millis: 1 + rng.below(40) },
            });
        }
        let middle = rng.below(count) as usize;
        if let Some(rank) = trouble.stall {
            actions.insert(middle, Action::Stall { rank, millis: 5000 + rng.below(15_000) });
        }
        if trouble.gives_up {
            let rank = rng.below(u64::from(self.ranks)) as u32;
            actions.insert(middle, Action::GiveUp { series: 0, rank });
        }
        Script {
            seed: self.world.seed,
            run,
            series: self.series,
            actions,
            back: rng.chance(1, 8).then(|| 1 + rng.below(2)),
            large: self.large,
            elastic: self.is_elastic.then_some(self.ranks),
            closes: rng.chance(3, 4),
        }
    }

    /// Makes one run of the application, from its start to its end or its death.
    fn run(&mut self) {
        if self.is_elastic && self.generation_max > 0 && self.rng.chance(2, 3) {
            self.resize();
        }
        self.damage();
        let mut trouble = self.trouble();
        let zombie = self.zombie.take();
        if let Some(zombie) = &zombie {
            trouble.weather.overtakes = self.is_fenced(zombie, &trouble.weather);
            // The zombie may be the run that takes over.
            trouble.weather.hard |= !trouble.weather.overtakes;
        }
        let landings = self.lands_later.then_some(Landings { fail: trouble.landings_fail });
        let script = self.script(&trouble);
        // A rank that vanishes takes with it verdicts that it should have passed on.
        trouble.weather.hard |= !script.closes;
        let text = format!("run {} on machines {:?}: {trouble:?} {:?}", script.run, self.machines, script.actions);
        self.tell(text);
        let number = script.run;
        let mut config = self.config.clone();
        config.job.take_over = zombie.is_some();
        let running = self.world.start(Run {
            script,
            config,
            machines: self.machines.clone(),
            messages: trouble.messages,
            budget: self.budget,
            landings,
        });
        let is_lost = Arc::new(AtomicBool::new(false));
        self.start_trouble(&running, &trouble, &is_lost, 1_000_000 + number as u32);
        let ended = self.world.run(&running, trouble.cut_off);
        let machines = self.machines.clone();
        self.world.baton.doom(1_000_000 + number as u32);
        if ended || trouble.cut_off.is_none() {
            self.world.kill(&running);
        }
        self.heal();
        let is_promised = zombie.is_none() || trouble.weather.overtakes;
        if let Some(zombie) = zombie {
            self.end_zombie(&zombie, trouble.weather.overtakes);
        }
        // These are the promises at the beginning of the run: its own results have not been read yet.
        let promises = is_promised.then(|| self.truth.promises(&self.machines, &trouble.weather));
        self.truth.read(&running.journal, &machines, self.tolerates(), promises.as_ref(), &trouble.weather);
        self.note_generation(&running);
        if let (Some((machine, ..)), true) = (trouble.lose, is_lost.load(Ordering::Relaxed)) {
            self.tell(format!("machine {machine} was lost meanwhile"));
            self.world.rebooted(machine);
            self.truth.lose_memory(machine, self.generation_max);
            self.truth.lose_local(machine, self.generation_max);
        }
        if !ended && trouble.cut_off.is_some() {
            self.tell("its network is cut off; it goes on".into());
            let is_open = |(_, entry)| matches!(entry, world::journal::Entry::Opened { .. });
            let is_open = running.journal.entries().into_iter().any(is_open);
            let (tolerates, weather) = (self.tolerates(), trouble.weather);
            self.zombie = Some(Zombie { running, machines, tolerates, weather, is_open });
        }
    }

    fn end_zombie(&mut self, zombie: &Zombie, is_fenced: bool) {
        self.tell("the run of before is found and killed".into());
        self.world.kill(&zombie.running);
        if is_fenced {
            self.truth.read_on(&zombie.running.journal, &zombie.machines, zombie.tolerates);
        }
    }

    /// Are the claims of the zombie and of the run that follows it in the same place?
    fn is_fenced(&self, zombie: &Zombie, weather: &Weather) -> bool {
        let is_out = |weather: &Weather| match self.config.job.global_enabled {
            true => weather.global_out,
            false => weather.local_out || !self.config.job.local_enabled,
        };
        let is_one_place = self.config.job.global_enabled || zombie.machines[0] == self.machines[0];
        zombie.is_open && is_one_place && !is_out(&zombie.weather) && !is_out(weather)
    }

    /// How many machines may be lost at once, which follows from the scheme and the places of the ranks.
    fn tolerates(&self) -> u32 {
        let mut seen: Vec<u32> = Vec::new();
        let number = |machine: &u32| match seen.iter().position(|known| known == machine) {
            Some(number) => number as u32,
            None => {
                seen.push(*machine);
                seen.len() as u32 - 1
            }
        };
        let nodes: Vec<u32> = self.machines.iter().map(number).collect();
        place(&nodes, &[], self.config.job.redundancy.scheme).tolerates_nodes
    }

    fn start_trouble(&mut self, running: &Running, trouble: &Trouble, is_lost: &Arc<AtomicBool>, group: u32) {
        let baton = &self.world.baton;
        if let Some((machine, at, later)) = trouble.lose {
            let victims: Vec<_> =
                running.tasks.iter().zip(&self.machines).filter(|(_, on)| **on == machine).map(|(id, _)| *id).collect();
            let (lose, is_lost, others) = (self.world.loss_of(machine), is_lost.clone(), running.group);
            baton.spawn(group, move |seat| {
                use bivouac_core::base::Clock;
                seat.sleep(at);
                victims.iter().for_each(|victim| seat.baton().doom_at(*victim, 0));
                while !victims.iter().all(|victim| seat.baton().is_finished(*victim)) {
                    seat.sleep(Duration::from_millis(3));
                }
                lose();
                is_lost.store(true, Ordering::Relaxed);
                seat.sleep(later);
                seat.baton().doom(others);
            });
        }
        for (from, length, top, fault) in trouble.faults.clone() {
            let disk = self.world.disk.clone();
            let storm = move |seat: &world::baton::Seat| {
                use bivouac_core::base::Clock;
                seat.sleep(from);
                disk.inject(Path::new(&top), fault).expect("it is a path");
                seat.sleep(length);
                disk.heal(Path::new(&top)).expect("it is a path");
            };
            baton.spawn(group, storm);
        }
        if let Some(at) = trouble.kill_all_at {
            let victims = running.group;
            baton.spawn(group, move |seat| {
                use bivouac_core::base::Clock;
                seat.sleep(at);
                seat.baton().doom(victims);
            });
        }
        if let Some((rank, point, later)) = trouble.kill_one {
            let (victim, others) = (running.tasks[rank as usize], running.group);
            baton.doom_at(victim, point);
            baton.spawn(group, move |seat| {
                use bivouac_core::base::Clock;
                while !seat.baton().is_finished(victim) {
                    seat.sleep(Duration::from_millis(3));
                }
                seat.sleep(later);
                seat.baton().doom(others);
            });
        }
    }

    fn heal(&self) {
        for machine in 0..self.world.machine_count() {
            self.world.disk.heal(&local_root(machine)).expect("it is a path");
        }
        self.world.disk.heal(Path::new(GLOBAL_ROOT)).expect("it is a path");
    }

    fn note_generation(&mut self, running: &Running) {
        for (_, entry) in running.journal.entries() {
            if let world::journal::Entry::Opened { generation } = entry {
                self.generation_max = self.generation_max.max(generation);
            }
        }
    }

    fn problems(&self) -> Vec<String> {
        self.world.baton.failures().into_iter().chain(self.truth.problems.iter().cloned()).collect()
    }
}

fn scheme(rng: &mut Rng) -> Scheme {
    match rng.below(8) {
        0..=2 => Scheme::None,
        3 => Scheme::Partner { copies: 1 + rng.below(2) as u32 },
        4 | 5 => Scheme::Xor { members: 2 + rng.below(4) as u32 },
        _ => Scheme::Rs { data: 1 + rng.below(3) as u32, parity: 1 + rng.below(2) as u32 },
    }
}

/// The result of one seed.
struct Outcome {
    problems: Vec<String>,
    story: Vec<String>,
    counts: Counts,
    trace: (u64, u64),
}

fn simulate(seed: u64) -> Outcome {
    let mut job = Job::new(seed);
    let about = format!(
        "{} ranks, {} per machine, {} every {:?} in {}, memory {} local {} global {}, keep {}/{}, every {:?}/{:?}, budget {} KiB, {}",
        job.ranks,
        job.per_machine,
        job.config.job.redundancy.scheme,
        job.config.job.redundancy.every,
        job.config.job.redundancy.store,
        job.config.job.memory_enabled,
        job.config.job.local_enabled,
        job.config.job.global_enabled,
        job.config.job.local.keep_last,
        job.config.job.global.keep_last,
        job.config.job.local.every,
        job.config.job.global.every,
        job.budget >> 10,
        job.config.job.reduction.method
    );
    job.tell(about);
    let runs = if job.ranks > 8 { 3 } else { 3 + job.rng.below(5) };
    for _ in 0..runs {
        job.run();
        if !job.problems().is_empty() {
            break;
        }
    }
    job.world.baton.end();
    Outcome { problems: job.problems(), story: job.story, counts: job.truth.counts, trace: job.world.baton.trace() }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no number")))
}

fn start_log() {
    if std::env::var_os("RUST_LOG").is_some() {
        // Several tests of one program may make this call.
        let _ = env_logger::try_init();
    }
}

#[test]
fn what_was_promised_is_restored_whatever_happens() {
    start_log();
    let one = number("BIVOUAC_TEST_SEED");
    let (first, count) = one.map_or((0, number("BIVOUAC_TEST_SEEDS").unwrap_or(SEEDS)), |seed| (seed, 1));
    let next = AtomicU64::new(first);
    let failed: Mutex<Vec<(u64, Outcome)>> = Mutex::default();
    let counts: Mutex<Counts> = Mutex::default();
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || failed.lock().unwrap().len() >= 10 {
                        return;
                    }
                    let outcome = simulate(seed);
                    counts.lock().unwrap().add(&outcome.counts);
                    if !outcome.problems.is_empty() {
                        failed.lock().unwrap().push((seed, outcome));
                    }
                }
            });
        }
    });
    let counts = counts.into_inner().unwrap();
    println!("seeds {first}..{}: {counts:#?}", first + count);
    let failed = failed.into_inner().unwrap();
    for (seed, outcome) in &failed {
        println!("\n*** seed {seed} failed:\n{}", outcome.problems.join("\n"));
        println!("--- the story:\n{}", outcome.story.join("\n"));
        println!(
            "--- replay: BIVOUAC_TEST_SEED={seed} RUST_LOG=info cargo nextest run --test simulation --no-capture\n"
        );
    }
    assert!(failed.is_empty(), "{} seeds failed: {:?}", failed.len(), failed.iter().map(|f| f.0).collect::<Vec<_>>());
    if count >= SEEDS {
        // A simulation that tests nothing proves nothing.
        let Counts { captured, committed, abandoned, unknown, restored, promises, protected, overtaken, ended, .. } =
            counts;
        assert!(captured > 500 && committed > 500 && abandoned > 25 && unknown > 2 && ended > 250, "{counts:?}");
        assert!(restored.iter().all(|count| *count > 25) && promises > 150 && protected > 10, "{counts:?}");
        assert!(overtaken > 2, "{counts:?}");
        let resized = world::rank::RESIZED.load(Ordering::Relaxed);
        assert!(resized > 100, "{resized} times a rank restored what another number of ranks had saved");
    }
}

#[test]
fn a_seed_replays_turn_by_turn() {
    for seed in [3, 7, 11, 20] {
        let (first, second) = (simulate(seed), simulate(seed));
        assert_eq!(first.trace, second.trace, "seed {seed}");
        assert_eq!(first.story, second.story, "seed {seed}");
    }
    assert_ne!(simulate(3).trace, simulate(4).trace);
}

/// Restores the data that `from` ranks have saved, on each of these numbers of ranks. These runs commit nothing, so each one
/// finds the same checkpoint.
fn pairs(from: u32, to: impl Iterator<Item = u32>) -> Vec<String> {
    const MACHINES: u32 = 3;
    let spread = |ranks: u32| (0..ranks).map(|rank| rank * MACHINES.min(ranks) / ranks).collect::<Vec<u32>>();
    let mut config = world::config();
    // The data is in node memory or in files; the shards of a machine share a file or have one each.
    (config.job.memory_enabled, config.job.local_enabled) =
        [(true, false), (false, true), (false, false)][from as usize % 3];
    let mut world = World::new(u64::from(from), MACHINES, 4096 * TURNS_PER_RANK);
    let budget = 64 << 20;
    let mut problems = Vec::new();
    for ranks in std::iter::once(from).chain(to) {
        let run = world.next_run();
        let is_first = run == 1;
        let wait = Some(Level::System);
        let actions = if is_first { vec![Action::Checkpoint { series: 0, wait }] } else { Vec::new() };
        let script =
            Script { seed: 77, run, series: 1, actions, back: None, large: false, elastic: Some(ranks), closes: false };
        let machines = spread(ranks);
        let run = Run { script, config: config.clone(), machines, messages: FaultPlan::NONE, budget, landings: None };
        let running = world.start(run);
        world.run(&running, None);
        world.kill(&running);
        // The data is compared where it is restored; this checks only that it was.
        let entries = running.journal.entries();
        let restored = |entry: &world::journal::Entry| {
            use world::journal::{Entry, Restart};
            matches!(entry, Entry::Restart { outcome: Restart::Restored { key: (_, 1), run: 1, .. }, .. })
        };
        let count = entries.iter().filter(|(_, entry)| restored(entry)).count();
        if count != if is_first { 0 } else { ranks as usize } {
            problems.push(format!("{count} of {ranks} ranks restored what {from} had saved: {entries:?}"));
        }
    }
    world.baton.end();
    problems.extend(world.baton.failures());
    problems
}

/// Tests all pairs on request; otherwise a few numbers of ranks, with their divisors, other numbers, and their neighbours.
#[test]
fn all_pairs_of_numbers_of_ranks_give_each_other_their_elements() {
    start_log();
    let all = number("BIVOUAC_TEST_PAIRS").map(|most| u32::try_from(most).expect("a number of ranks"));
    let from: Vec<u32> = all.map_or(vec![1, 2, 5, 12, 31], |most| (1..=most).collect());
    let to = |from: u32| match all {
        Some(most) => (1..=most).collect(),
        None => vec![1, from + 1, 7, 64],
    };
    let next = AtomicU64::new(0);
    let failed: Mutex<Vec<String>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(from) = from.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
                    let problems = pairs(*from, to(*from).into_iter());
                    failed.lock().unwrap().extend(problems);
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
