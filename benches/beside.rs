//! What an application on a GPU feels of work in the background.
//!
//! `mpirun -n GPUS target/release/beside --bench --help` lists the options. The root prints one JSON line for each figure.
//!
//! - `step`: the time of a step whose kernels are bound by the GPU's memory, in turn with and without a flush in the background,
//!   and the rate of the flush against that of a flush with an idle GPU.
//! - `ready`: how fast host memory is made ready while nothing else runs.
//! - `pin`: how long a kernel takes from its launch to its end while host memory is being pinned, against afterwards.

#[cfg(not(feature = "cuda"))]
fn main() {
    eprintln!("SKIPPED: built without the feature `cuda`");
}

#[cfg(feature = "cuda")]
#[path = "shot/node.rs"]
mod node;

#[cfg(feature = "cuda")]
fn main() {
    beside::main();
}

#[cfg(feature = "cuda")]
mod beside {
    use super::node::{self, median, quantile};
    use bivouac_core::cache::Keep;
    use bivouac_core::config::{BurstScope, FlushRate, PinOrder, StaggerConfig};
    use bivouac_core::device::cuda::CudaDevice;
    use bivouac_core::device::{Device, DeviceSpan, Stream};
    use bivouac_core::segment::Segment;
    use bivouac_core::transfer::history::{CacheConfig, Caches, Field, History};
    use clap::{Parser, ValueEnum};
    use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PinnedHostSlice, PushKernelArg, result};
    use cudarc::nvrtc::compile_ptx;
    use mpi::topology::SimpleCommunicator;
    use mpi::traits::*;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    /// Memory-bound: three reads and writes for two operations.
    const TRIAD: &str = "extern \"C\" __global__ void triad(float4 *a, const float4 *b, const float4 *c, size_t n) {
        size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
        if (i < n) {
            float4 x = b[i], y = c[i];
            a[i] = make_float4(x.x + 3 * y.x, x.y + 3 * y.y, x.z + 3 * y.z, x.w + 3 * y.w);
        }
    }";
    /// Bytes of each of its arrays.
    const ARRAY: u64 = 1 << 30;
    const VERSION: u64 = 128 << 20;

    #[derive(Clone, Copy, ValueEnum, Debug, PartialEq)]
    enum Figure {
        Step,
        Ready,
        Pin,
    }

    #[derive(Clone, Copy, ValueEnum, Debug, PartialEq)]
    enum Pin {
        Never,
        Turns,
        AtOnce,
    }

    #[derive(Clone, Copy, ValueEnum, Debug, PartialEq)]
    enum Scope {
        Link,
        Node,
    }

    #[derive(Parser, Debug)]
    struct Options {
        #[arg(value_enum, default_value = "step")]
        figure: Figure,
        /// Kernels in a step; each moves 3 GiB within the GPU.
        #[arg(long, default_value_t = 12)]
        kernels: usize,
        /// MiB that a step also copies to host memory and back, as a halo exchange does.
        #[arg(long, default_value_t = 0)]
        halo: usize,
        /// Versions of 128 MiB that are flushed in one round.
        #[arg(long, default_value_t = 120)]
        versions: u64,
        /// Rounds, each of a flush with steps at the same time, and as many steps without a flush.
        #[arg(long, default_value_t = 20)]
        rounds: usize,
        /// How host memory is pinned.
        #[arg(long, value_enum, default_value = "turns")]
        pin: Pin,
        /// Host memory is leased in steps of this many MiB.
        #[arg(long, default_value_t = 256)]
        line: u64,
        /// How many ranks may flush at once; 0: all.
        #[arg(long, default_value_t = 0)]
        bursts: u32,
        /// Which ranks take turns: those whose GPUs share a link, or all of the node.
        #[arg(long, value_enum, default_value = "node")]
        scope: Scope,
        /// Bytes per second at which a rank flushes: unlimited, auto, or a number.
        #[arg(long, default_value = "unlimited")]
        rate: String,
        /// Passed by `cargo bench`.
        #[arg(long, hide = true)]
        bench: bool,
    }

    struct App {
        stream: Arc<CudaStream>,
        triad: CudaFunction,
        arrays: [DeviceSpan; 3],
        halo: PinnedHostSlice<u8>,
    }

    impl App {
        fn new(device: &CudaDevice, halo: usize) -> App {
            let stream = device.context().new_stream().expect("stream");
            let module = device.context().load_module(compile_ptx(TRIAD).expect("kernel")).expect("module");
            let triad = module.load_function("triad").expect("kernel");
            // SAFETY: bytes may have any value, and they are written before they are read.
            let halo = unsafe { device.context().alloc_pinned(halo.max(1)) }.expect("pinned memory");
            App { stream, triad, arrays: std::array::from_fn(|_| device.allocate(ARRAY).expect("room")), halo }
        }

        fn launch(&self, bytes: u64) {
            let count = bytes / 16;
            let [a, b, c] = self.arrays.each_ref().map(DeviceSpan::address);
            let mut launch = self.stream.launch_builder(&self.triad);
            launch.arg(&a).arg(&b).arg(&c).arg(&count);
            let grid = LaunchConfig {
                grid_dim: (count.div_ceil(256) as u32, 1, 1),
                block_dim: (256, 1, 1),
                shared_mem_bytes: 0,
            };
            // SAFETY: three arrays of at least `bytes`, and their length in elements.
            unsafe { launch.launch(grid) }.expect("launch");
        }

        /// Enqueues the halo's copy to host memory and back.
        fn exchange(&self) {
            let (array, stream) = (self.arrays[0].address(), self.stream.cu_stream());
            let host = self.halo.as_ptr().expect("pinned").cast_mut();
            // SAFETY: the array and the pinned memory are longer than the halo, and both live until the stream is done.
            unsafe {
                let bytes = std::slice::from_raw_parts_mut(host, self.halo.len());
                result::memcpy_dtoh_async(bytes, array, stream).expect("copy");
                result::memcpy_htod_async(array, bytes, stream).expect("copy");
            }
        }

        /// Seconds for `kernels` passes over `bytes` of each array, from the first launch to the end of the last kernel.
        fn step(&self, kernels: usize, bytes: u64) -> f64 {
            let begun = Instant::now();
            (0..kernels).for_each(|_| self.launch(bytes));
            if self.halo.len() > 1 {
                self.exchange();
            }
            self.stream.synchronize().expect("kernels");
            begun.elapsed().as_secs_f64()
        }
    }

    pub fn main() {
        let options = Options::parse();
        let universe = mpi::initialize().expect("MPI");
        let world = universe.world();
        let Some(device) = node::gpu(&world) else { return };
        let app = App::new(&device, options.halo << 20);
        let host = 2 * options.versions * VERSION;
        node::warm(host);
        world.barrier();
        let segment = node::segment(&world, host + (256 << 20));
        match options.figure {
            Figure::Step => step(&options, &world, &device, &segment, &app),
            Figure::Ready => ready(&options, &world, &device, &segment, host),
            Figure::Pin => pin(&options, &world, &device, &segment, &app, host),
        }
        world.barrier();
        segment.close(world.rank() == 0).expect("close");
    }

    fn open(options: &Options, device: &Arc<CudaDevice>, segment: &Arc<Segment>, host: u64) -> Caches {
        let config = CacheConfig {
            device_bytes: (options.versions + 2) * VERSION,
            host_bytes: host,
            pin: match options.pin {
                Pin::Never => PinOrder::Never,
                Pin::Turns => PinOrder::InTurns,
                Pin::AtOnce => PinOrder::AtOnce,
            },
            line_bytes: options.line << 20,
            stagger: StaggerConfig {
                bursts: (options.bursts > 0).then_some(options.bursts),
                scope: match options.scope {
                    Scope::Link => BurstScope::Link,
                    Scope::Node => BurstScope::Node,
                },
                rate: match options.rate.as_str() {
                    "unlimited" => FlushRate::Unlimited,
                    "auto" => FlushRate::Auto,
                    number => FlushRate::Bytes(number.parse().expect("bytes per second")),
                },
                ..StaggerConfig::default()
            },
            ..CacheConfig::default()
        };
        Caches::open(device.clone(), Some(segment.clone()), config).expect("caches")
    }

    /// Appends the versions of a round: the flush begins with the first.
    fn fill(history: &History, span: &DeviceSpan, stream: &dyn Stream, versions: u64) {
        for version in 0..versions {
            history.append(version, &[Field::device::<u8>("p", span)], stream).expect("append");
        }
    }

    /// Bytes that were moved from the device to the host.
    fn down(history: &History) -> u64 {
        history.stats().moved_bytes[0]
    }

    fn step(
        options: &Options,
        world: &SimpleCommunicator,
        device: &Arc<CudaDevice>,
        segment: &Arc<Segment>,
        app: &App,
    ) {
        let caches = open(options, device, segment, 2 * options.versions * VERSION);
        let stream = device.adopt(&app.stream).expect("own stream");
        let span = app.arrays[0].part(0, VERSION).expect("inside");
        let mut history = caches.history("warm-up", Keep::UntilRead);
        while !caches.is_ready() {
            std::thread::sleep(Duration::from_millis(5));
        }
        (0..50).for_each(|_| _ = app.step(options.kernels, ARRAY));
        let (mut quiet, mut loaded, mut idle_rates, mut rates, mut ends) = (vec![], vec![], vec![], vec![], vec![]);
        for round in 0..=options.rounds {
            // The flush with an idle GPU.
            history = next(&caches, history);
            let (begun, before) = (Instant::now(), down(&history));
            fill(&history, &span, &*stream, options.versions);
            history.wait_flushed();
            let rate = (down(&history) - before) as f64 / begun.elapsed().as_secs_f64();
            // The flush during steps, on all ranks at once.
            history = next(&caches, history);
            world.barrier();
            let (begun, before) = (Instant::now(), down(&history));
            fill(&history, &span, &*stream, options.versions);
            let total = before + options.versions * VERSION;
            let (mut beside, mut end) = (Vec::new(), None);
            while end.is_none() && begun.elapsed() < Duration::from_secs(60) {
                let seconds = app.step(options.kernels, ARRAY);
                caches.step();
                match down(&history) {
                    now if now < total => beside.push(seconds),
                    _ => end = Some(begun.elapsed().as_secs_f64()),
                }
            }
            let flush = (down(&history) - before) as f64 / begun.elapsed().as_secs_f64();
            let mut alone: Vec<f64> = Vec::new();
            for _ in 0..beside.len().max(10) {
                alone.push(app.step(options.kernels, ARRAY));
                caches.step();
            }
            if round > 0 {
                quiet.extend(alone);
                loaded.extend(beside);
                idle_rates.push(rate);
                rates.push(flush);
                ends.extend(end);
            }
        }
        drop((history, caches));
        let (alone, beside) = (median(&quiet), median(&loaded));
        let mine = [
            alone * 1e3,
            beside * 1e3,
            quantile(&loaded, 0.95) * 1e3,
            median(&idle_rates) / 1e9,
            median(&rates) / 1e9,
            median(&ends),
        ];
        let names = ["alone_ms", "beside_ms", "beside_p95_ms", "idle_gb_s", "flush_gb_s", "flushed_after_s"];
        let ratios = [("step_ratio", beside / alone), ("flush_ratio", median(&rates) / median(&idle_rates))];
        say(world, "step beside a flush", options, names.into_iter().zip(mine).chain(ratios));
    }

    /// A new history in place of an old one.
    fn next(caches: &Caches, old: History) -> History {
        drop(old);
        caches.history("round", Keep::UntilRead)
    }

    fn ready(
        options: &Options,
        world: &SimpleCommunicator,
        device: &Arc<CudaDevice>,
        segment: &Arc<Segment>,
        host: u64,
    ) {
        let caches = open(options, device, segment, host);
        world.barrier();
        let begun = Instant::now();
        let history = caches.history("ready", Keep::UntilRead);
        let mut leased = None;
        while !caches.is_ready() {
            std::thread::sleep(Duration::from_millis(1));
            if leased.is_none() && caches.host_bytes().0 >= host {
                leased = Some(begun.elapsed());
            }
        }
        let rate = |time: Duration| host as f64 / time.as_secs_f64() / 1e9;
        let (ready, leased) = (begun.elapsed(), leased.unwrap_or(begun.elapsed()));
        drop((history, caches));
        let mine = [("leased_gb_s", rate(leased)), ("ready_gb_s", rate(ready)), ("gb", host as f64 / 1e9)];
        say(world, "making host memory ready", options, mine.into_iter());
    }

    fn pin(
        options: &Options,
        world: &SimpleCommunicator,
        device: &Arc<CudaDevice>,
        segment: &Arc<Segment>,
        app: &App,
        host: u64,
    ) {
        (0..100).for_each(|_| _ = app.step(1, 1 << 20));
        world.barrier();
        let caches = open(options, device, segment, host);
        let history = caches.history("pinned", Keep::UntilRead);
        let (mut during, mut after) = (Vec::new(), Vec::new());
        while !caches.is_ready() {
            during.push(app.step(1, 1 << 20));
        }
        (0..during.len()).for_each(|_| after.push(app.step(1, 1 << 20)));
        drop((history, caches));
        let mine = [
            ("launches", during.len() as f64),
            ("during_median_us", median(&during) * 1e6),
            ("during_p99_us", quantile(&during, 0.99) * 1e6),
            ("during_p999_us", quantile(&during, 0.999) * 1e6),
            ("during_most_us", quantile(&during, 1.0) * 1e6),
            ("after_median_us", median(&after) * 1e6),
            ("after_p99_us", quantile(&after, 0.99) * 1e6),
            ("after_most_us", quantile(&after, 1.0) * 1e6),
        ];
        say(world, "launch beside pinning", options, mine.into_iter());
    }

    /// The root prints the maximum and the minimum over the ranks.
    fn say(
        world: &SimpleCommunicator,
        figure: &str,
        options: &Options,
        mine: impl Iterator<Item = (&'static str, f64)>,
    ) {
        let (names, mine): (Vec<&str>, Vec<f64>) = mine.unzip();
        let mut all = vec![0.0; if world.rank() == 0 { mine.len() * world.size() as usize } else { 0 }];
        if world.rank() != 0 {
            return world.process_at_rank(0).gather_into(&mine[..]);
        }
        world.process_at_rank(0).gather_into_root(&mine[..], &mut all[..]);
        let mut line = serde_json::Map::new();
        line.insert("figure".into(), figure.into());
        line.insert("ranks".into(), world.size().into());
        line.insert("options".into(), format!("{options:?}").into());
        for (at, name) in names.iter().enumerate() {
            let column = || all.chunks(names.len()).map(|row| row[at]);
            let rounded = |value: f64| (value * 1e4).round() / 1e4;
            line.insert((*name).into(), rounded(column().fold(f64::MIN, f64::max)).into());
            if world.size() > 1 {
                line.insert(format!("least_{name}"), rounded(column().fold(f64::MAX, f64::min)).into());
            }
        }
        println!("{}", serde_json::Value::Object(line));
    }
}
