//! A shot: versions written forward at an interval, then read back in a known order, as in HPDC'23 section 5 and HiPC'22
//! section V, by Bivouac and by its peers, with the same budgets, in the same binary.
//!
//! `mpirun -n GPUS target/release/shot --help`; `benches/shot.sh` runs the settings whose results are stored. One rank uses one
//! GPU (its number on the node, modulo the GPUs there). The root prints one JSON line for each run.
//!
//! | engine | what it does |
//! |---|---|
//! | `bivouac` | histories |
//! | `blocking` | (a) a copy to pinned host memory, and to the file once that is full, each waited for |
//! | `on-demand` | (b) no GPU cache: a copy to pinned host memory, written to the file behind the application's back; read when asked for |
//! | `managed` | (c) managed memory: advice and prefetch both ways, throttled at the GPU budget, no file needed |
//! | `floor` | (f) bare copies inside the device |
//!
//! Blocking time is what the application's thread spends in appends and restores. Initialisation is stated apart, and so is the
//! wait for flushes between the passes.

#[cfg(not(feature = "cuda"))]
fn main() {
    eprintln!("SKIPPED: built without the feature `cuda`");
}

#[cfg(feature = "cuda")]
#[path = "shot/peers.rs"]
mod peers;

#[cfg(feature = "cuda")]
fn main() {
    shot::main();
}

#[cfg(feature = "cuda")]
mod shot {
    use super::peers::{Blocking, Floor, Managed, OnDemand};
    use bivouac::base::ids::{Generation, Incarnation};
    use bivouac::cache::{Keep, Tier};
    use bivouac::config::{PinOrder, Touch};
    use bivouac::device::cuda::CudaDevice;
    use bivouac::device::{Device, DeviceSpan, Stream};
    use bivouac::segment::{Segment, SegmentSpec};
    use bivouac::transfer::history::{CacheConfig, Caches, Field, FieldMut, History, Operation};
    use clap::{Parser, ValueEnum};
    use cudarc::driver::CudaContext;
    use mpi::traits::*;
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    #[derive(Clone, Copy, ValueEnum, Debug, PartialEq)]
    enum EngineKind {
        Bivouac,
        Blocking,
        OnDemand,
        Managed,
        Floor,
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

    #[derive(Parser, Debug)]
    struct Options {
        #[arg(long, value_enum, default_value = "bivouac")]
        engine: EngineKind,
        #[arg(long, value_enum, default_value = "reverse")]
        order: Order,
        #[arg(long, value_enum, default_value = "all")]
        hints: Hints,
        #[arg(long, value_enum, default_value = "uniform")]
        sizes: Sizes,
        /// Versions.
        #[arg(long, default_value_t = 384)]
        count: u64,
        /// Bytes of a version of uniform size, in units of 10^6.
        #[arg(long, default_value_t = 128)]
        mb: u64,
        /// Bytes of a shot of variable sizes, in units of 10^9.
        #[arg(long, default_value_t = 44.0)]
        gb: f64,
        /// Between two versions, in milliseconds.
        #[arg(long, default_value_t = 10.0)]
        interval: f64,
        /// GPU cache, in GiB.
        #[arg(long, default_value_t = 4.0)]
        gpu: f64,
        /// Host cache of each rank, in GiB.
        #[arg(long, default_value_t = 32.0)]
        host: f64,
        /// Wait for flushes before the backward pass.
        #[arg(long)]
        wait: bool,
        /// A barrier after each version.
        #[arg(long)]
        tight: bool,
        /// Keep what was restored.
        #[arg(long)]
        persist: bool,
        /// Begin when all memory is mapped and pinned.
        #[arg(long)]
        ready: bool,
        /// Touch host memory between flushes instead of beside them.
        #[arg(long)]
        between: bool,
        /// Pin at once instead of in turns.
        #[arg(long)]
        at_once: bool,
        /// Host memory in small pages.
        #[arg(long)]
        small_pages: bool,
        /// Where the file goes.
        #[arg(long, default_value = ".")]
        directory: PathBuf,
        /// Steps of rank 0 as CSV.
        #[arg(long)]
        steps: Option<PathBuf>,
        /// Seed of sizes and of the irregular order.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Given by cargo.
        #[arg(long, hide = true)]
        bench: bool,
    }

    /// What all engines can do.
    pub trait Engine {
        fn append(&mut self, version: u64, bytes: u64);
        fn hint(&mut self, _versions: &[u64]) {}
        fn start_prefetch(&mut self) {}
        fn wait_flushed(&mut self) {}
        fn restore(&mut self, version: u64, bytes: u64);
    }

    fn random(state: &mut u64) -> f64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Sizes of the papers' shape (HPDC'23, figure 4): small early, growing, with spread; scaled to the sum asked for.
    fn sizes(options: &Options, rank: u64) -> Vec<u64> {
        if options.sizes == Sizes::Uniform {
            return vec![options.mb * 1_000_000 / 4096 * 4096; options.count as usize];
        }
        let mut state = (options.seed + 77 * rank).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let raw: Vec<f64> = (0..options.count)
            .map(|index| {
                let along = index as f64 / options.count as f64;
                (0.04 + along.powf(0.8)) * (0.85 + 0.3 * random(&mut state))
            })
            .collect();
        let scale = options.gb * 1e9 / raw.iter().sum::<f64>();
        raw.iter().map(|size| ((size * scale) as u64).max(4096) / 4096 * 4096).collect()
    }

    fn order(options: &Options) -> Vec<u64> {
        let mut order: Vec<u64> = (0..options.count).collect();
        match options.order {
            Order::Sequential => {}
            Order::Reverse => order.reverse(),
            Order::Irregular => {
                let mut state = options.seed.wrapping_mul(0x2545_f491_4f6c_dd1d) | 1;
                for index in (1..order.len()).rev() {
                    order.swap(index, (random(&mut state) * (index + 1) as f64) as usize);
                }
            }
        }
        order
    }

    /// The computation: nothing, for an exact time.
    fn compute(seconds: f64) {
        let until = Instant::now() + Duration::from_secs_f64(seconds);
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if left > Duration::from_micros(300) {
                std::thread::sleep(left - Duration::from_micros(200));
            }
        }
    }

    struct Bivouac {
        history: History,
        caches: Caches,
        span: DeviceSpan,
        stream: Arc<dyn Stream>,
        _segment: Arc<Segment>,
    }

    impl Engine for Bivouac {
        fn append(&mut self, version: u64, bytes: u64) {
            let span = self.span.part(0, bytes).expect("inside");
            self.history.append(version, &[Field::device::<u8>("p", &span)], &*self.stream).expect("append");
        }

        fn hint(&mut self, versions: &[u64]) {
            self.history.hint(versions.iter().copied());
        }

        fn start_prefetch(&mut self) {
            self.history.start_prefetch();
        }

        fn wait_flushed(&mut self) {
            self.history.wait_flushed();
        }

        fn restore(&mut self, version: u64, bytes: u64) {
            let span = self.span.part(0, bytes).expect("inside");
            let mut fields = [FieldMut::device::<u8>("p", &span)];
            self.history.restore(version, &mut fields, &*self.stream).expect("restore");
        }
    }

    pub fn main() {
        let options = Options::parse();
        let universe = mpi::initialize().expect("MPI");
        let world = universe.world();
        let (rank, size) = (world.rank() as u64, world.size() as u64);
        let gpus = match bivouac::device::cuda::CudaDevice::open(0) {
            Ok(_) => CudaContext::device_count().unwrap_or(1) as u64,
            Err(error) => {
                if rank == 0 {
                    eprintln!("SKIPPED: {error}; run it on a machine with a GPU: benches/shot.sh");
                }
                return;
            }
        };
        let device = Arc::new(CudaDevice::open((rank % gpus) as usize).expect("GPU"));
        let sizes = sizes(&options, rank);
        let order = order(&options);
        let gib = |value: f64| (value * (1u64 << 30) as f64) as u64;
        let (gpu, host) = (gib(options.gpu), gib(options.host));
        let segment = (options.engine == EngineKind::Bivouac).then(|| {
            let pid = std::process::id() as u64;
            let mut name = [pid];
            world.process_at_rank(0).broadcast_into(&mut name);
            let spec = SegmentSpec {
                directory: "/dev/shm".into(),
                name: format!("bivouac-shot-{}", name[0]),
                job: 1,
                group: 1,
                generation: Generation(1),
                incarnation: Incarnation([1; 16]),
                budget: size * (host + (256 << 20)),
                node_ranks: size as u32,
                group_size: size as u32,
            };
            let made = (rank == 0).then(|| Segment::create(&spec).expect("segment"));
            world.barrier();
            let segment = made.unwrap_or_else(|| Segment::attach(&spec, rank as u32).expect("segment"));
            segment.set_huge_pages(!options.small_pages);
            Arc::new(segment)
        });
        let raw = device.context().new_stream().expect("stream");
        let span = device.allocate(*sizes.iter().max().expect("sizes")).expect("room");
        let fill: Vec<u8> = (0..span.bytes()).map(|at| ((at * 31) >> 3) as u8).collect();
        let stream = device.adopt(&raw).expect("own stream");
        stream.upload(&[(&fill, span.clone())], None).expect("upload");
        drop(fill);
        world.barrier();
        let begun = Instant::now();
        let total: u64 = sizes.iter().sum();
        let mut ours = None;
        let mut peer: Box<dyn Engine> = match options.engine {
            EngineKind::Bivouac => {
                let config = CacheConfig {
                    device_bytes: gpu,
                    host_bytes: host,
                    store_directory: Some(options.directory.clone()),
                    touch: if options.between { Touch::Between } else { Touch::Beside },
                    pin: if options.at_once { PinOrder::AtOnce } else { PinOrder::InTurns },
                    trace: true,
                    ..CacheConfig::default()
                };
                let caches = Caches::open(device.clone(), segment.clone(), config).expect("caches");
                let history = caches.history("shot", if options.persist { Keep::Persist } else { Keep::Discard });
                let segment = segment.clone().expect("made above");
                ours = Some(Bivouac { history, caches, span: span.clone(), stream: stream.clone(), _segment: segment });
                Box::new(Floor::new(&device, &raw, span.clone(), 0))
            }
            EngineKind::Blocking => {
                Box::new(Blocking::new(&device, &raw, span.clone(), host, &options.directory, total))
            }
            EngineKind::OnDemand => {
                Box::new(OnDemand::new(&device, &raw, span.clone(), host, &options.directory, total))
            }
            EngineKind::Managed => Box::new(Managed::new(&device, &raw, span.clone(), gpu, &sizes)),
            EngineKind::Floor => Box::new(Floor::new(&device, &raw, span.clone(), gpu)),
        };
        if options.ready
            && let Some(ours) = &ours
        {
            while !ours.caches.is_ready() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let engine: &mut dyn Engine = match &mut ours {
            Some(ours) => ours,
            None => &mut *peer,
        };
        let init = begun.elapsed().as_secs_f64();
        world.barrier();
        let seconds = options.interval / 1e3;
        if options.hints == Hints::All {
            engine.hint(&order);
        }
        let wall = Instant::now();
        let (mut appends, mut restores) = (Vec::new(), Vec::new());
        for version in 0..options.count {
            compute(seconds);
            if options.tight {
                world.barrier();
            }
            let begun = Instant::now();
            engine.append(version, sizes[version as usize]);
            appends.push(begun.elapsed().as_secs_f64());
        }
        let forward_s = wall.elapsed().as_secs_f64();
        let begun = Instant::now();
        if options.wait {
            engine.wait_flushed();
        }
        let flush_s = begun.elapsed().as_secs_f64();
        engine.start_prefetch();
        for version in &order {
            if options.hints == Hints::One {
                engine.hint(&[*version]);
            }
            compute(seconds);
            if options.tight {
                world.barrier();
            }
            let begun = Instant::now();
            engine.restore(*version, sizes[*version as usize]);
            restores.push(begun.elapsed().as_secs_f64());
        }
        let wall_s = wall.elapsed().as_secs_f64();
        let (append_s, restore_s): (f64, f64) = (appends.iter().sum(), restores.iter().sum());
        let mut extra = [0.0; 8];
        if let Some(ours) = &ours {
            let stats = ours.history.stats();
            extra[0] = stats.hits as f64 / stats.restores as f64;
            extra[1] = stats.host_bytes.1 as f64;
            (0..4).for_each(|link| extra[2 + link] = stats.moved_bytes[link] as f64);
            let steps = ours.history.take_steps();
            let distances =
                steps.iter().filter(|step| step.operation == Operation::Restore).map(|step| step.distance as f64);
            extra[6] = distances.sum::<f64>() / options.count as f64;
            if let (Some(path), 0) = (&options.steps, rank) {
                let line = |step: &bivouac::transfer::history::Step| {
                    let tier = match step.tier {
                        Tier::Device => "device",
                        Tier::Host => "memory",
                        Tier::Store => "file",
                    };
                    format!(
                        "{:?},{},{},{:.9},{:.9},{},{}\n",
                        step.operation,
                        step.version,
                        step.bytes,
                        step.seconds,
                        step.device_seconds,
                        tier,
                        step.distance
                    )
                };
                let text: String = steps.iter().map(line).collect();
                std::fs::write(path, format!("call,version,bytes,seconds,device_seconds,tier,distance\n{text}"))
                    .expect("steps");
                let spans = ours.history.take_spans();
                let text: String = spans
                    .iter()
                    .map(|span| {
                        format!("{},{},{},{:.6},{:.6}\n", span.what, span.version, span.bytes, span.from_s, span.to_s)
                    })
                    .collect();
                std::fs::write(path.with_extension("spans.csv"), format!("what,version,bytes,from_s,to_s\n{text}"))
                    .expect("spans");
            }
        }
        let mine = [
            [total as f64, init, append_s, restore_s, flush_s, forward_s, wall_s, appends[0]].as_slice(),
            extra.as_slice(),
        ]
        .concat();
        let mut all = vec![0.0; mine.len() * size as usize];
        if rank == 0 {
            world.process_at_rank(0).gather_into_root(&mine[..], &mut all[..]);
            report(&options, size, &all, mine.len());
        } else {
            world.process_at_rank(0).gather_into(&mine[..]);
        }
        drop((ours, peer));
        if let Some(segment) = segment {
            segment.close(rank == 0).expect("close");
        }
    }

    fn report(options: &Options, ranks: u64, all: &[f64], width: usize) {
        let column = |at: usize| all.chunks(width).map(|row| row[at]).collect::<Vec<f64>>();
        let mean = |at: usize| column(at).iter().sum::<f64>() / ranks as f64;
        let most = |at: usize| column(at).into_iter().fold(0.0, f64::max);
        let rate = |at: usize| {
            let rows = all.chunks(width);
            rows.map(|row| row[0] / row[at].max(1e-9)).sum::<f64>() / ranks as f64 / 1e9
        };
        let both: f64 =
            all.chunks(width).map(|row| 2.0 * row[0] / (row[2] + row[3]).max(1e-9)).sum::<f64>() / ranks as f64 / 1e9;
        let name = |value: String| value.to_lowercase();
        println!(
            "{{\"figure\": \"shot\", \"engine\": \"{}\", \"ranks\": {ranks}, \"sizes\": \"{}\", \"order\": \"{}\", \"hints\": \"{}\", \
             \"interval_ms\": {}, \"count\": {}, \"gpu_gib\": {}, \"host_gib\": {}, \"wait\": {}, \"tight\": {}, \"ready\": {}, \"persist\": {}, \
             \"touch\": \"{}\", \"pin\": \"{}\", \"small_pages\": {}, \"gb\": {:.2}, \"init_s\": {:.4}, \"append_s\": {:.4}, \"restore_s\": {:.4}, \
             \"worst_append_s\": {:.4}, \"worst_restore_s\": {:.4}, \"flush_wait_s\": {:.3}, \"forward_s\": {:.3}, \"wall_s\": {:.3}, \
             \"append_gb_s\": {:.1}, \"restore_gb_s\": {:.1}, \"both_gb_s\": {:.1}, \"first_append_ms\": {:.3}, \"hit_rate\": {:.4}, \
             \"pinned_gb\": {:.1}, \"down_gb\": {:.1}, \"out_gb\": {:.1}, \"in_gb\": {:.1}, \"up_gb\": {:.1}, \"distance\": {:.1}}}",
            name(format!("{:?}", options.engine)),
            name(format!("{:?}", options.sizes)),
            name(format!("{:?}", options.order)),
            name(format!("{:?}", options.hints)),
            options.interval,
            options.count,
            options.gpu,
            options.host,
            options.wait,
            options.tight,
            options.ready,
            options.persist,
            if options.between { "between" } else { "beside" },
            if options.at_once { "at-once" } else { "turns" },
            options.small_pages,
            mean(0) / 1e9,
            mean(1),
            mean(2),
            mean(3),
            most(2),
            most(3),
            mean(4),
            mean(5),
            mean(6),
            rate(2),
            rate(3),
            both,
            mean(7) * 1e3,
            mean(8),
            mean(9) / 1e9,
            mean(10) / 1e9,
            mean(11) / 1e9,
            mean(12) / 1e9,
            mean(13) / 1e9,
            mean(14),
        );
    }
}
