//! A shot: versions written forward at an interval, then read back in a known order, as in HPDC'23 section 5 and HiPC'22
//! section V, by Bivouac and by its peers, with the same budgets, in the same binary.
//!
//! `mpirun -n GPUS target/release/shot --help` lists the options; `benches/shots.sh` runs the settings whose results are
//! stored. One rank uses one GPU (its number on the node, modulo the GPUs there). The root prints one JSON line for each run.
//!
//! | engine | what it does |
//! |---|---|
//! | `bivouac` | histories |
//! | `blocking` | (a) a copy to pinned host memory, or to the file once that memory is full; each copy is waited for |
//! | `on-demand` | (b) no GPU cache: a copy to pinned host memory, written to the file in the background, and read on demand |
//! | `managed` | (c) managed memory: advice and prefetch in both directions, throttled at the GPU budget; no file is needed |
//! | `direct` | (d) histories; one call of the driver allocates all host memory pinned before the shot, which is the initialisation |
//! | `memset` | (e) histories; all host memory is mapped, set to zero and registered before the shot, which is the initialisation |
//! | `floor` | (f) bare copies inside the device |
//! | `copy` | the same with digests, as histories copy, without the rest of a history |
//! | `file` | raw writes and reads of what does not fit, past the page cache, on 1, 2 and 4 threads: the rate of the disk |
//!
//! Blocking time is the time that the application's thread spends in appends and restores. Initialisation is stated separately,
//! and so is the wait for flushes between the passes.
//!
//! With `--enqueue`, the application's thread is not timed: the computation is a kernel on the application's stream, one step ahead,
//! and appends and restores are enqueued after it. The figure is how much longer a pass takes than the kernels alone (`kernels_s`),
//! which are run first.

#[cfg(not(feature = "cuda"))]
fn main() {
    eprintln!("SKIPPED: built without the feature `cuda`");
}

#[cfg(feature = "cuda")]
#[path = "shot/compute.rs"]
mod compute;
#[cfg(feature = "cuda")]
#[path = "shot/node.rs"]
mod node;
#[cfg(feature = "cuda")]
#[path = "shot/ours.rs"]
mod ours;
#[cfg(feature = "cuda")]
#[path = "shot/peers.rs"]
mod peers;
#[cfg(feature = "cuda")]
#[path = "shot/sizes.rs"]
mod sizes;

#[cfg(feature = "cuda")]
fn main() {
    shot::main();
}

#[cfg(feature = "cuda")]
mod shot {
    use super::compute::{Kernels, idle};
    use super::node::{self, median, warm};
    use super::ours::Bivouac;
    use super::peers::{self, Blocking, Floor, Managed, OnDemand};
    use super::sizes::{random, variable};
    use bivouac_core::device::cuda::CudaDevice;
    use bivouac_core::device::{Device, DeviceSpan};
    use bivouac_core::segment::Segment;
    use clap::{Parser, ValueEnum};
    use cudarc::driver::CudaStream;
    use mpi::topology::SimpleCommunicator;
    use mpi::traits::*;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Instant;

    #[derive(Clone, Copy, ValueEnum, Debug, PartialEq)]
    enum EngineKind {
        Bivouac,
        Blocking,
        OnDemand,
        Managed,
        Direct,
        Memset,
        Floor,
        Copy,
        File,
    }

    #[derive(Clone, Copy, ValueEnum, Debug, PartialEq)]
    enum Order {
        Sequential,
        Reverse,
        Irregular,
    }

    #[derive(Clone, Copy, ValueEnum, Debug, PartialEq)]
    enum Hints {
        None,
        One,
        All,
    }

    #[derive(Clone, Copy, ValueEnum, Debug, PartialEq)]
    enum Sizes {
        Uniform,
        Variable,
    }

    #[derive(Clone, Copy, ValueEnum, Debug, PartialEq)]
    pub enum TouchKind {
        Auto,
        Beside,
        Between,
    }

    #[derive(Clone, Copy, ValueEnum, Debug, PartialEq)]
    pub enum PinKind {
        Turns,
        AtOnce,
    }

    /// One shot.
    #[derive(Clone, Copy, Debug)]
    struct Case {
        order: Order,
        hints: Hints,
        sizes: Sizes,
        interval: f64,
        wait: bool,
        tight: bool,
    }

    impl Options {
        /// Bytes of each version of a rank.
        fn sizes_of(&self, sizes: Sizes, rank: u64) -> Vec<u64> {
            match sizes {
                Sizes::Uniform => vec![self.mb * 1_000_000 / 4096 * 4096; self.count as usize],
                Sizes::Variable => variable(self.count, self.gb, self.seed + 77 * rank),
            }
        }

        /// Every combination.
        fn cases(&self) -> Vec<Case> {
            let mut cases = Vec::new();
            for sizes in self.sizes.iter().copied() {
                for order in self.order.iter().copied() {
                    for hints in self.hints.iter().copied() {
                        for interval in self.interval.iter().copied() {
                            for wait in self.wait.iter().copied() {
                                let case = |tight| Case { order, hints, sizes, interval, wait, tight };
                                cases.extend(self.tight.iter().copied().map(case));
                            }
                        }
                    }
                }
            }
            cases
        }
    }

    #[derive(Parser, Debug)]
    #[command(args_override_self = true)]
    pub struct Options {
        #[arg(long, value_enum, default_value = "bivouac")]
        engine: EngineKind,
        /// Orders of reading, separated by commas. Every combination of all options with several values is a shot.
        #[arg(long, value_enum, value_delimiter = ',', default_value = "reverse")]
        order: Vec<Order>,
        #[arg(long, value_enum, value_delimiter = ',', default_value = "all")]
        hints: Vec<Hints>,
        #[arg(long, value_enum, value_delimiter = ',', default_value = "uniform")]
        sizes: Vec<Sizes>,
        /// Number of versions.
        #[arg(long, default_value_t = 384)]
        count: u64,
        /// Bytes of a version of uniform size, in units of 10^6.
        #[arg(long, default_value_t = 128)]
        mb: u64,
        /// Bytes of a shot of variable sizes, in units of 10^9.
        #[arg(long, default_value_t = 44.0)]
        gb: f64,
        /// Milliseconds between two versions.
        #[arg(long, value_delimiter = ',', default_value = "10")]
        interval: Vec<f64>,
        /// Size of the GPU cache, in GiB.
        #[arg(long, default_value_t = 4.0)]
        pub gpu: f64,
        /// Size of the host cache of each rank, in GiB.
        #[arg(long, default_value_t = 32.0)]
        pub host: f64,
        /// Wait for flushes before the backward pass.
        #[arg(long, value_delimiter = ',', action = clap::ArgAction::Set, default_value = "false")]
        wait: Vec<bool>,
        /// Meet at a barrier after each version.
        #[arg(long, value_delimiter = ',', action = clap::ArgAction::Set, default_value = "false")]
        tight: Vec<bool>,
        /// Compute with a kernel on the application's stream, and enqueue copies after it (engines bivouac, blocking, on-demand, floor).
        #[arg(long)]
        pub enqueue: bool,
        /// Keep the application's thread awake between two versions.
        #[arg(long)]
        awake: bool,
        /// Fields of equal size that make up a version.
        #[arg(long, default_value_t = 1)]
        pub fields: u64,
        /// A name under which the figures are shown.
        #[arg(long, default_value = "")]
        set: String,
        /// First touch the machine's memory once: a virtual machine receives it from its host only then, which is slow and not
        /// what is measured.
        #[arg(long)]
        warm: bool,
        /// Keep what was restored.
        #[arg(long)]
        pub persist: bool,
        /// Begin when all memory is mapped and pinned.
        #[arg(long)]
        pub ready: bool,
        /// When host memory is touched: auto, during flushes, or between them.
        #[arg(long, value_enum, default_value = "auto")]
        pub touch: TouchKind,
        /// How host memory is pinned: in turns, or at once.
        #[arg(long, value_enum, default_value = "turns")]
        pub pin: PinKind,
        /// Use small pages for host memory.
        #[arg(long)]
        pub small_pages: bool,
        /// Directory for the file.
        #[arg(long, default_value = ".")]
        pub directory: PathBuf,
        /// Also print every call of rank 0.
        #[arg(long)]
        each: bool,
        /// Seed of sizes and of the irregular order.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Passed by `cargo bench`.
        #[arg(long, hide = true)]
        bench: bool,
    }

    /// What all engines can do.
    pub trait Engine {
        /// Forgets the versions of the previous shot.
        fn reset(&mut self);
        fn append(&mut self, version: u64, bytes: u64);
        fn hint(&mut self, _versions: &[u64]) {}
        fn start_prefetch(&mut self) {}
        fn wait_flushed(&mut self) {}
        fn restore(&mut self, version: u64, bytes: u64);
        /// What the engine reports since the last [`Engine::reset`].
        fn figures(&mut self) -> Figures {
            Figures::default()
        }
    }

    /// Figures that only an engine knows.
    #[derive(Clone, Default)]
    pub struct Figures {
        /// The share of restores that found their version in the GPU cache.
        pub hit_rate: f64,
        /// Bytes of host memory that are pinned.
        pub pinned: f64,
        /// Bytes over each link.
        pub moved: [f64; 4],
        /// At each restore, the number of versions ahead that were in the GPU cache.
        pub distances: Vec<f64>,
        /// Mean seconds of the device per call.
        pub device_append: f64,
        pub device_restore: f64,
    }

    pub fn gib(value: f64) -> u64 {
        (value * (1u64 << 30) as f64) as u64
    }

    /// What an engine is given.
    pub struct Setup {
        pub device: Arc<CudaDevice>,
        pub raw: Arc<CudaStream>,
        /// The application's buffer.
        pub span: DeviceSpan,
        /// Node memory, for the engine that uses it.
        pub segment: Option<Arc<Segment>>,
        pub rank: u64,
        /// Are copies enqueued, and not waited for?
        pub enqueue: bool,
    }

    fn order(options: &Options, order: Order) -> Vec<u64> {
        let mut versions: Vec<u64> = (0..options.count).collect();
        match order {
            Order::Sequential => {}
            Order::Reverse => versions.reverse(),
            Order::Irregular => {
                let mut state = options.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
                for index in (1..versions.len()).rev() {
                    versions.swap(index, (random(&mut state) * (index + 1) as f64) as usize);
                }
            }
        }
        versions
    }

    fn open(options: &Options, setup: &Setup, sizes: &[u64]) -> Box<dyn Engine> {
        let total = options.sizes.iter().map(|kind| options.sizes_of(*kind, setup.rank).iter().sum()).max();
        match options.engine {
            EngineKind::Bivouac => Box::new(Bivouac::open(options, setup, options.ready)),
            EngineKind::Direct | EngineKind::Memset => Box::new(Bivouac::open(options, setup, true)),
            EngineKind::Blocking => Box::new(Blocking::new(setup, gib(options.host), &options.directory)),
            EngineKind::OnDemand => {
                let spills = total.is_some_and(|total: u64| total > gib(options.host));
                Box::new(OnDemand::new(setup, gib(options.host), &options.directory, spills))
            }
            EngineKind::Managed => Box::new(Managed::new(setup, gib(options.gpu), sizes)),
            EngineKind::Copy => Box::new(Floor::with_digests(setup, gib(options.gpu))),
            EngineKind::Floor | EngineKind::File => Box::new(Floor::new(setup, gib(options.gpu))),
        }
    }

    pub fn main() {
        let options = Options::parse();
        let universe = mpi::initialize().expect("MPI");
        let world = universe.world();
        let rank = world.rank() as u64;
        let Some(device) = node::gpu(&world) else { return };
        if options.engine == EngineKind::File {
            let spilled = options.gb * 1e9 - (gib(options.gpu) + gib(options.host)) as f64;
            return peers::raw_file(&options.directory, spilled.max(4e9) as u64, &options.set);
        }
        if options.warm {
            warm(gib(options.host + 6.0));
            world.barrier();
        }
        let is_ours = matches!(options.engine, EngineKind::Bivouac | EngineKind::Direct | EngineKind::Memset);
        let segment = is_ours.then(|| {
            let segment = node::segment(&world, gib(options.host) + (256 << 20));
            segment.set_huge_pages(!options.small_pages);
            segment
        });
        let raw = device.context().new_stream().expect("stream");
        let of = |case: &Case| options.sizes_of(case.sizes, rank);
        let cases = options.cases();
        let largest = cases.iter().flat_map(of).max().expect("a case");
        let span = device.allocate(largest).expect("room");
        let fill: Vec<u8> = (0..largest).map(|at| ((at * 31) >> 3) as u8).collect();
        let filling = device.adopt(&raw).expect("own stream");
        filling.upload(&[(&fill, span.clone())], None).expect("upload");
        drop(fill);
        let can_enqueue = [EngineKind::Bivouac, EngineKind::Blocking, EngineKind::OnDemand, EngineKind::Floor]
            .contains(&options.engine);
        assert!(can_enqueue || !options.enqueue, "this engine waits for each copy");
        let mut kernels = options.enqueue.then(|| Kernels::new(&device, &raw));
        let setup = Setup { device, raw, span, segment, rank, enqueue: options.enqueue };
        world.barrier();
        // The peers that pin all memory first differ in this from the engine whose memory is pinned already.
        let pinning = match options.engine {
            EngineKind::Direct => Some(peers::pin_directly(&setup, gib(options.host))),
            EngineKind::Memset => Some(peers::set_and_register(&setup, gib(options.host))),
            _ => None,
        };
        world.barrier();
        let begun = Instant::now();
        let mut engine = open(&options, &setup, &of(&cases[0]));
        let init = pinning.unwrap_or(begun.elapsed().as_secs_f64());
        for (index, case) in cases.iter().enumerate() {
            let sizes = of(case);
            if index > 0 && options.engine == EngineKind::Managed {
                // The engine's memory is made for the sizes.
                drop(engine);
                engine = open(&options, &setup, &sizes);
            }
            engine.reset();
            // Memory that was pinned for the first shot serves the others as well; each of them would have had to wait for it.
            let init = if index == 0 || pinning.is_some() { init } else { 0.0 };
            let mine = run(&options, case, &mut *engine, &mut kernels, &sizes, &world, init);
            report(&options, case, &world, &mine);
        }
        drop(engine);
        world.barrier();
        if let Some(segment) = setup.segment {
            segment.close(rank == 0).expect("close");
        }
    }

    /// What one rank measured in a shot, by the names that are printed.
    struct Row {
        values: Vec<(&'static str, f64)>,
        /// The values of every call.
        each: [(&'static str, Vec<f64>); 3],
    }

    /// Writes all versions and reads them back.
    fn run(
        options: &Options,
        case: &Case,
        engine: &mut dyn Engine,
        kernels: &mut Option<Kernels>,
        sizes: &[u64],
        world: &SimpleCommunicator,
        init: f64,
    ) -> Row {
        let order = order(options, case.order);
        let seconds = case.interval / 1e3;
        let kernels_s = kernels.as_mut().map_or(0.0, |kernels| {
            let begun = Instant::now();
            (0..options.count).for_each(|_| kernels.step(seconds));
            kernels.end();
            begun.elapsed().as_secs_f64()
        });
        let end = |kernels: &mut Option<Kernels>| kernels.iter_mut().for_each(Kernels::end);
        let step = |kernels: &mut Option<Kernels>, work: &mut dyn FnMut()| {
            match kernels {
                Some(kernels) => kernels.step(seconds),
                None => idle(seconds, options.awake),
            }
            if case.tight {
                world.barrier();
            }
            let begun = Instant::now();
            work();
            begun.elapsed().as_secs_f64()
        };
        world.barrier();
        if case.hints == Hints::All {
            engine.hint(&order);
        }
        let wall = Instant::now();
        let appends: Vec<f64> = (0..options.count)
            .map(|version| step(kernels, &mut || engine.append(version, sizes[version as usize])))
            .collect();
        end(kernels);
        let forward_s = wall.elapsed().as_secs_f64();
        let begun = Instant::now();
        if case.wait {
            engine.wait_flushed();
        }
        let flush_s = begun.elapsed().as_secs_f64();
        engine.start_prefetch();
        let restores: Vec<f64> = order
            .iter()
            .map(|version| {
                if case.hints == Hints::One {
                    engine.hint(&[*version]);
                }
                step(kernels, &mut || engine.restore(*version, sizes[*version as usize]))
            })
            .collect();
        end(kernels);
        let wall_s = wall.elapsed().as_secs_f64();
        let said = engine.figures();
        let total = sizes.iter().sum::<u64>() as f64 / 1e9;
        let (append_s, restore_s): (f64, f64) = (appends.iter().sum(), restores.iter().sum());
        let each = [
            ("append_each_s", appends.clone()),
            ("restore_each_s", restores.clone()),
            ("distance_each", said.distances.clone()),
        ];
        let values = vec![
            ("gb", total),
            ("init_s", init),
            ("append_s", append_s),
            ("restore_s", restore_s),
            ("flush_wait_s", flush_s),
            ("forward_s", forward_s),
            ("wall_s", wall_s),
            ("backward_s", wall_s - forward_s - flush_s),
            ("kernels_s", kernels_s),
            ("append_gb_s", total / append_s.max(1e-9)),
            ("restore_gb_s", total / restore_s.max(1e-9)),
            ("both_gb_s", 2.0 * total / (append_s + restore_s).max(1e-9)),
            ("first_append_ms", appends[0] * 1e3),
            ("median_append_us", median(&appends) * 1e6),
            ("median_restore_us", median(&restores) * 1e6),
            ("device_append_us", said.device_append * 1e6),
            ("device_restore_us", said.device_restore * 1e6),
            ("hit_rate", said.hit_rate),
            ("distance", said.distances.iter().sum::<f64>() / said.distances.len().max(1) as f64),
            ("pinned_gb", said.pinned / 1e9),
            ("down_gb", said.moved[0] / 1e9),
            ("out_gb", said.moved[1] / 1e9),
            ("in_gb", said.moved[2] / 1e9),
            ("up_gb", said.moved[3] / 1e9),
        ];
        Row { values, each }
    }

    /// The root prints the means over the ranks, and the worst rank's blocking time.
    fn report(options: &Options, case: &Case, world: &SimpleCommunicator, mine: &Row) {
        let ranks = world.size() as usize;
        let values: Vec<f64> = mine.values.iter().map(|(_, value)| *value).collect();
        let mut all = vec![0.0; if world.rank() == 0 { values.len() * ranks } else { 0 }];
        if world.rank() != 0 {
            return world.process_at_rank(0).gather_into(&values[..]);
        }
        world.process_at_rank(0).gather_into_root(&values[..], &mut all[..]);
        let name = |value: &dyn std::fmt::Debug| format!("{value:?}").to_lowercase();
        let mut line = serde_json::Map::new();
        let mut say = |key: &str, value: serde_json::Value| drop(line.insert(key.into(), value));
        say("figure", "shot".into());
        say("set", options.set.clone().into());
        say("engine", name(&options.engine).into());
        say("ranks", ranks.into());
        say("gpus", node::gpus().into());
        say("sizes", name(&case.sizes).into());
        say("order", name(&case.order).into());
        say("hints", name(&case.hints).into());
        say("interval_ms", case.interval.into());
        say("count", options.count.into());
        say("fields", options.fields.into());
        say("gpu_gib", options.gpu.into());
        say("host_gib", options.host.into());
        say("wait", case.wait.into());
        say("tight", case.tight.into());
        say("enqueue", options.enqueue.into());
        say("awake", options.awake.into());
        say("ready", options.ready.into());
        say("warm", options.warm.into());
        say("persist", options.persist.into());
        say("touch", name(&options.touch).into());
        say("pin", name(&options.pin).into());
        say("small_pages", options.small_pages.into());
        let column = |at: usize| all.chunks(values.len()).map(move |row| row[at]);
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        for (at, (key, _)) in mine.values.iter().enumerate() {
            say(key, rounded(column(at).sum::<f64>() / ranks as f64).into());
            if matches!(*key, "append_s" | "restore_s") {
                say(&format!("worst_{key}"), rounded(column(at).fold(0.0, f64::max)).into());
            }
        }
        for (key, values) in mine.each.iter().filter(|_| options.each) {
            let short: Vec<f64> = values.iter().map(|value| (value * 1e7).round() / 1e7).collect();
            line.insert((*key).into(), short.into());
        }
        println!("{}", serde_json::Value::Object(line));
    }
}
