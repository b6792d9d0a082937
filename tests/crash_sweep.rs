//! Stops at every durable step of flush and commit in turn, cuts the power, and restarts.
//!
//! Two ranks on two machines (or on one) take checkpoints with the tightest retention. The file systems are one simulated disk that counts
//! its steps: each write, sync, rename and removal. The run is first made once to count the steps. Then it is made once for each step and
//! stopped there: no process does anything afterwards. Then either only the processes are dead, or the power is cut as well: memory is
//! gone, and random parts of the unsynced data are lost. In each case a new run must find what promise 3 of the design says: for each
//! level, the last checkpoint that was reported as committed, or a newer one, the same on all ranks, with the right data ([`world::truth`]
//! checks it). No manifest may promise missing data, not even the manifest of a version that retention was just removing. Nor may a crash
//! leave anything that takes room for good.
//!
//! ```text
//! BIVOUAC_TEST_SWEEPS=40 cargo nextest run --test crash_sweep        forty power cuts per step and configuration
//! ```
#![forbid(unsafe_code)]

mod world;

use bivouac_core::base::rng::Rng;
use bivouac_core::base::{CheckpointKey, Level};
use bivouac_core::comm::faulty::FaultPlan;
use bivouac_core::config::{Compress, Method};
use bivouac_core::format::Manifest;
use bivouac_core::tier::directory::DirectoryTier;
use bivouac_core::tier::names::Series;
use bivouac_core::tier::source::Source;
use bivouac_core::tier::storage::Storage;
use bivouac_core::tier::{Tier, TierError, TierId};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use world::rank::{Action, Script};
use world::truth::{Counts, Truth, Weather};
use world::{GLOBAL_ROOT, Run, World, local_root};

/// One shape of the job.
#[derive(Clone, Copy, Debug)]
struct Shape {
    machines: [u32; 2],
    /// The machines of the run that is stopped and of the one after it; their numbers of ranks differ from the first run's.
    resized: Option<[&'static [u32]; 2]>,
    memory: bool,
    local: bool,
    global: bool,
    budget: u64,
    reduction: Method,
}

const TWO_MACHINES: Shape = Shape {
    machines: [0, 1],
    resized: None,
    memory: true,
    local: true,
    global: true,
    budget: 8 << 20,
    reduction: Method::Full,
};

/// The way in which a stopped run ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// The processes are dead; machines stay up.
    Killed,
    /// All machines and the file server lose power; the seed decides which unsynced writes survive.
    PowerCut(u64),
    /// The power is cut, and the machines come back with empty disks: only the global tier is left.
    MachinesLost(u64),
}

/// A run of a job, by its place in the sweep: before the stopped run, the stopped run itself, and the run after it.
#[derive(Clone, Copy)]
enum Turn {
    Before,
    Stopped,
    Behind,
}

impl Shape {
    /// The machine of each rank of a run.
    fn machines_of(&self, turn: Turn) -> Vec<u32> {
        match (turn, self.resized) {
            (Turn::Stopped, Some([stopped, _])) => stopped.to_vec(),
            (Turn::Behind, Some([_, behind])) => behind.to_vec(),
            _ => self.machines.to_vec(),
        }
    }
}

fn run(shape: Shape, turn: Turn, world: &mut World, actions: Vec<Action>) -> Run {
    let mut config = world::config();
    config.job.memory_enabled = shape.memory;
    config.job.local_enabled = shape.local;
    config.job.global_enabled = shape.global;
    config.job.local.keep_last = 1;
    config.job.global.keep_last = 1;
    config.job.reduction.method = shape.reduction;
    config.job.reduction.compress = if shape.reduction == Method::Tree { Compress::On } else { Compress::Off };
    let run = world.next_run();
    let machines = shape.machines_of(turn);
    let elastic = shape.resized.map(|_| machines.len() as u32);
    let script = Script { seed: 5, run, series: 1, actions, back: None, large: false, elastic, closes: true };
    Run { script, config, machines, messages: FaultPlan::NONE, budget: shape.budget, landings: None }
}

/// The actions of the stopped run: after a resize, only the first checkpoint and time to complete its levels.
fn checkpoints(shape: Shape) -> Vec<Action> {
    let checkpoint = |wait| Action::Checkpoint { series: 0, wait };
    if shape.resized.is_some() {
        return vec![checkpoint(Some(Level::System)), Action::Compute { millis: 5 }];
    }
    vec![
        checkpoint(None),
        Action::Compute { millis: 3 },
        checkpoint(Some(Level::Process)),
        checkpoint(Some(Level::System)),
        Action::Compute { millis: 5 },
        checkpoint(None),
    ]
}

/// Runs once without a stop and returns the number of steps since the beginning of the swept run.
fn steps(shape: Shape) -> u64 {
    let mut world = World::new(1, 2, 2_000_000);
    let before = first_run(shape, &mut world, &mut Truth::new(1, true, false));
    let second = run(shape, Turn::Stopped, &mut world, checkpoints(shape));
    let running = world.start(second);
    world.run(&running, None);
    world.kill(&running);
    let steps = world.disk.steps() - before;
    world.baton.end();
    assert!(world.baton.failures().is_empty(), "{:?}", world.baton.failures());
    steps
}

/// Makes a run before the stopped one, so that retention across runs is part of the sweep. Returns the disk's steps.
fn first_run(shape: Shape, world: &mut World, truth: &mut Truth) -> u64 {
    let first = run(shape, Turn::Before, world, vec![Action::Checkpoint { series: 0, wait: None }]);
    let running = world.start(first);
    world.run(&running, None);
    world.kill(&running);
    let calm = Weather::default();
    truth.read(&running.journal, &shape.machines, 0, Some(&Default::default()), &calm);
    world.disk.steps()
}

/// Checks that every manifest on the disk names sound shards of its ranks. Returns the number of manifests, and the faults.
fn check_manifests(world: &World) -> (u64, Vec<String>) {
    let storage: Arc<dyn Storage> = Arc::new(world.disk.process(u64::MAX));
    let locals = (0..world.machine_count()).map(|machine| (TierId::LOCAL, local_root(machine)));
    let (mut count, mut problems) = (0, Vec::new());
    for (kind, root) in locals.chain([(TierId::GLOBAL, PathBuf::from(GLOBAL_ROOT))]) {
        let tier = DirectoryTier::new(kind, storage.clone(), root);
        for series in tier.all_series().expect("listed") {
            let folders = tier.folders(&series).expect("listed").into_iter();
            let folders = folders.map(|(generation, version, operation)| {
                CheckpointKey { generation, version, operation, ..Default::default() }.folder()
            });
            let manifests: Vec<_> = folders.map(|folder| (tier.read_manifest(&series, &folder), folder)).collect();
            // A folder to which others refer is kept for the bytes in its own files.
            let sources = manifests.iter().flat_map(|(manifest, _)| manifest.iter().flat_map(|found| &found.sources));
            let held: Vec<String> = sources.map(|source| source.key.folder()).collect();
            for (manifest, folder) in manifests {
                if manifest.as_ref().is_err_and(TierError::is_absent) || held.contains(&folder) {
                    continue;
                }
                count += 1;
                if let Err(error) = manifest.and_then(|manifest| check_promised(&tier, &series, &folder, &manifest)) {
                    problems.push(format!("FALSE MANIFEST of {folder}: {error}"));
                }
            }
        }
    }
    (count, problems)
}

/// A run that keeps one checkpoint has committed one and has closed: checks that no tier holds anything else, whatever
/// the crash left behind.
fn check_room(world: &World, shape: Shape) -> Vec<String> {
    let storage: Arc<dyn Storage> = Arc::new(world.disk.process(u64::MAX));
    let locals = (0..world.machine_count()).filter(|_| shape.local).map(|machine| (TierId::LOCAL, local_root(machine)));
    let global = shape.global.then(|| (TierId::GLOBAL, PathBuf::from(GLOBAL_ROOT)));
    let mut problems = Vec::new();
    for (kind, root) in locals.chain(global) {
        let tier = DirectoryTier::new(kind, storage.clone(), root);
        for series in tier.all_series().expect("listed") {
            let folders = tier.folders(&series).expect("listed");
            if folders.len() > 1 {
                problems.push(format!("LEFT BEHIND: {kind:?} keeps {folders:?} of {series:?}"));
            }
        }
    }
    problems
}

fn check_promised(tier: &DirectoryTier, series: &Series, folder: &str, manifest: &Manifest) -> Result<(), TierError> {
    for container in &manifest.containers {
        for rank in &container.ranks {
            Source::File(tier.open_shard(series, folder, &container.file, *rank)?).verify(|_| ())?;
        }
    }
    Ok(())
}

/// Stops the second run at a step. Returns the faults found afterwards, what was done, and the number of manifests that were checked.
fn crash(shape: Shape, step: u64, end: End) -> (Vec<String>, Counts, u64) {
    let mut world = World::new(1, 2, 2_000_000);
    let mut truth = Truth::new(1, true, false);
    first_run(shape, &mut world, &mut truth);
    world.freeze_after(step);
    let second = run(shape, Turn::Stopped, &mut world, checkpoints(shape));
    let machines = second.machines.clone();
    let running = world.start(second);
    world.run(&running, None);
    world.kill(&running);
    world.thaw();
    let hard = Weather { hard: true, ..Weather::default() };
    let promises = truth.promises(&machines, &hard);
    truth.read(&running.journal, &machines, 0, Some(&promises), &hard);
    if let End::PowerCut(seed) | End::MachinesLost(seed) = end {
        let mut rng = Rng::new(seed << 32 ^ step);
        for machine in 0..world.machine_count() {
            world.power_cut(machine, &mut rng);
            truth.lose_memory(machine, u64::MAX);
        }
        world.disk.power_cut(&mut rng);
    }
    if let End::MachinesLost(_) = end {
        for machine in 0..world.machine_count() {
            world.replace(machine);
            truth.lose_local(machine, u64::MAX);
        }
    }
    let (manifests, mut problems) = check_manifests(&world);
    let calm = Weather::default();
    let machines = shape.machines_of(Turn::Behind);
    let promises = truth.promises(&machines, &calm);
    // The third run also takes a checkpoint: leftovers of the crash must not be in its way.
    let third = run(shape, Turn::Behind, &mut world, vec![Action::Checkpoint { series: 0, wait: None }]);
    let running = world.start(third);
    world.run(&running, None);
    world.kill(&running);
    truth.read(&running.journal, &machines, 0, Some(&promises), &calm);
    world.baton.end();
    problems.extend(check_room(&world, shape));
    problems.extend(world.baton.failures().into_iter().chain(truth.problems.iter().cloned()));
    (problems, truth.counts, manifests)
}

/// The steps that are swept: every third step, unless `BIVOUAC_TEST_EVERY` sets another distance (`ci/test.sh whole`: every step).
fn every() -> u64 {
    number("BIVOUAC_TEST_EVERY").unwrap_or(3).max(1)
}

fn sweep(shape: Shape, first: u64, cuts: u64) {
    if std::env::var_os("RUST_LOG").is_some() {
        let _ = env_logger::try_init();
    }
    let steps = steps(shape);
    let ends: Vec<End> = std::iter::once(End::Killed)
        .chain((0..cuts).map(End::PowerCut))
        .chain((0..cuts.div_ceil(2)).filter(|_| shape.global && shape.local).map(End::MachinesLost))
        .collect();
    let every = every();
    let next = AtomicU64::new(first % every);
    let failed: Mutex<Vec<String>> = Mutex::default();
    let counts: Mutex<Counts> = Mutex::default();
    let manifests = AtomicU64::new(0);
    let workers = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let step = next.fetch_add(every, Ordering::Relaxed);
                    if step > steps || failed.lock().unwrap().len() >= 10 {
                        return;
                    }
                    for end in &ends {
                        let (problems, seen, looked_at) = crash(shape, step, *end);
                        counts.lock().unwrap().add(&seen);
                        manifests.fetch_add(looked_at, Ordering::Relaxed);
                        if !problems.is_empty() {
                            let text = format!("step {step} of {steps}, {end:?}: {}", problems.join("; "));
                            failed.lock().unwrap().push(text);
                        }
                    }
                }
            });
        }
    });
    let (counts, failed) = (counts.into_inner().unwrap(), failed.into_inner().unwrap());
    let manifests = manifests.into_inner();
    println!("{shape:?}: each {every}th of {steps} steps, {} ends each, {manifests} manifests: {counts:?}", ends.len());
    assert!(failed.is_empty(), "{shape:?}:\n{}", failed.join("\n"));
    assert!(
        steps > 40 && [counts.promises, counts.committed, manifests].iter().all(|count| count * every > steps),
        "the sweep has hardly looked at anything: {counts:?}"
    );
}

/// Power cuts per step: few in an ordinary run, more on request.
fn cuts(ordinary: u64) -> u64 {
    number("BIVOUAC_TEST_SWEEPS").unwrap_or(ordinary)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

#[test]
fn a_stop_at_any_durable_step_leaves_the_last_commit_of_each_level() {
    sweep(TWO_MACHINES, 0, cuts(1));
}

#[test]
fn a_stop_at_any_durable_step_where_files_refer_to_earlier_ones() {
    sweep(Shape { reduction: Method::Tree, ..TWO_MACHINES }, 1, cuts(1));
}

#[test]
fn a_stop_at_any_durable_step_of_shared_containers_that_refer_to_earlier_ones() {
    sweep(Shape { machines: [0, 0], local: false, reduction: Method::Basic, ..TWO_MACHINES }, 2, cuts(1));
}

#[test]
fn a_stop_at_any_durable_step_without_the_memory_tier() {
    sweep(Shape { memory: false, ..TWO_MACHINES }, 3, cuts(1));
}

#[test]
fn a_stop_at_any_durable_step_of_a_container_that_two_ranks_share() {
    sweep(Shape { machines: [0, 0], ..TWO_MACHINES }, 4, cuts(1));
}

#[test]
fn a_stop_at_any_durable_step_with_the_global_tier_alone() {
    sweep(Shape { memory: false, local: false, ..TWO_MACHINES }, 5, cuts(1));
}

#[test]
fn a_stop_at_any_durable_step_with_the_local_tier_alone() {
    sweep(Shape { memory: false, global: false, ..TWO_MACHINES }, 6, cuts(1));
}

/// Two ranks become three, which are stopped in their first checkpoint, and then four continue: with the version of the
/// three or of the two, whole.
#[test]
fn a_stop_at_any_step_of_the_first_checkpoint_after_a_resize_leaves_the_old_version_or_the_new_one() {
    sweep(Shape { resized: Some([&[0, 1, 1], &[0, 0, 1, 1]]), ..TWO_MACHINES }, 7, cuts(1));
}

#[test]
fn a_stop_at_any_step_of_the_first_checkpoint_after_a_resize_with_files_alone() {
    sweep(Shape { resized: Some([&[0], &[1, 0, 0]]), memory: false, ..TWO_MACHINES }, 8, cuts(1));
}
