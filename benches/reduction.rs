//! Files that refer to earlier ones: how much they store, and what it costs, by method and by what changes.
//!
//! ```sh
//! cargo bench --bench reduction -- --dir DIR       # DIR on the disk to measure; one thread captures, two write
//! ```
//!
//! One rank with node memory and the local tier takes `--versions` checkpoints of one region of `--mib` MiB for each method and input. The
//! input changes between checkpoints: in `sparse` 8 bytes in every tenth block of 64 KiB, in `blocks` all of every hundredth block, and in
//! `random` everything; in `shifted` all bytes move by 33 chunks of 128, and in `twice` a tenth becomes a copy of another tenth. The first
//! checkpoint, which is whole, is left out. The figures for each method and input are the bytes of the shards over the bytes stored, the
//! median of the time that `capture` blocks, the median from its return to the commit on the local tier, and the time of a restart that
//! reads the last checkpoint from files. With `--gpu` the region is in the memory of the first GPU, and the time of the look at its chunks
//! there is given as well. One JSON object is printed per line.
//!
//! `--captures` instead measures what a capture into node memory costs where nothing, every hundredth block or everything has changed, with
//! `full` and `basic`: the median time that it blocks, and the median from its return until the shard is sealed. A plain copy in the same
//! run serves for comparison: by the processor, or with `--gpu` inside the device and down to pinned memory.
//!
//! `--random` compares settings where nothing can be gained: the input `random` with `full`, `auto` and `tree`, and with `full` and
//! compression, in `--rounds` rounds.
#![forbid(unsafe_code)]

use bivouac_core::base::rng::Rng;
use bivouac_core::comm::threads::world;
use bivouac_core::config::{Budget, Compress, Method};
use bivouac_core::device::cuda::CudaDevice;
use bivouac_core::device::{Device, DeviceSpan, HostRange, Priority, Run, Stream};
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::{Caches, Config, Level, Pending, Session};
use clap::Parser;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

const BLOCK: usize = 64 << 10;

#[derive(Parser)]
struct Options {
    /// A folder on the disk to measure.
    #[arg(long, default_value = "target/tmp")]
    dir: PathBuf,
    /// Size of the region, in MiB.
    #[arg(long, default_value_t = 256)]
    mib: usize,
    /// Checkpoints for each method and input.
    #[arg(long, default_value_t = 9)]
    versions: u64,
    /// Bytes of a chunk.
    #[arg(long, default_value_t = 128)]
    chunk: u64,
    /// Keep the region in GPU memory.
    #[arg(long)]
    gpu: bool,
    /// Measure what captures cost, without files.
    #[arg(long)]
    captures: bool,
    /// Measure what reduction costs where everything changes, by method and with compression, in rounds.
    #[arg(long)]
    random: bool,
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Passed by `cargo bench`.
    #[arg(long, hide = true)]
    bench: bool,
}

fn median(times: &[f64]) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn change(input: &str, bytes: &mut [u8], rng: &mut Rng) {
    let length = bytes.len();
    match input {
        "sparse" => {
            bytes.chunks_mut(10 * BLOCK).for_each(|part| part[..8].copy_from_slice(&rng.next_u64().to_le_bytes()))
        }
        "blocks" => bytes.chunks_mut(100 * BLOCK).for_each(|part| fill(&mut part[..BLOCK], rng)),
        "shifted" => bytes.rotate_left(33 * 128),
        "twice" => {
            let from = rng.below(9) as usize * (length / 10) / 4096 * 4096;
            bytes.copy_within(from..from + length / 10, length / 10 * 9 / 4096 * 4096);
        }
        _ => fill(bytes, rng),
    }
}

fn fill(bytes: &mut [u8], rng: &mut Rng) {
    bytes.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
}

fn config(options: &Options, method: Method, memory: &Path, local: &Path) -> Config {
    let mut config = Config::default();
    config.job.name = Some("bench-reduction".into());
    config.job.block_bytes = BLOCK as u64;
    config.job.global_enabled = false;
    (config.job.reduction.method, config.job.reduction.chunk) = (method, Some(options.chunk));
    config.node.reduction_budget = Budget::Bytes(8 << 30);
    config.node.local_directory = Some(local.to_owned());
    config.node.local_allow_tmpfs = true;
    config.node.device_budget = Budget::Bytes(((2 * options.mib + 64) as u64) << 20);
    config.node.device_tables = Budget::Bytes(8 << 30);
    config.node.memory_directory = memory.to_owned();
    config.node.memory_budget = Budget::Bytes(((4 * (options.mib + 16)) as u64) << 20);
    config
}

/// The GPU that holds the region.
struct Gpu {
    device: Arc<dyn Device>,
    stream: Arc<dyn Stream>,
    span: DeviceSpan,
}

impl Gpu {
    fn open(bytes: u64) -> Gpu {
        let device: Arc<dyn Device> = Arc::new(CudaDevice::open(0).expect("a GPU"));
        let stream = device.stream(Priority::High).expect("a stream");
        let span = device.allocate(bytes).expect("room");
        Gpu { device, stream, span }
    }
}

/// The median time of some calls in seconds; the first is left out.
fn timed(mut call: impl FnMut()) -> f64 {
    let time = |_| {
        let begun = Instant::now();
        call();
        begun.elapsed().as_secs_f64()
    };
    median(&(0..8).map(time).collect::<Vec<_>>()[1..])
}

/// The times of plain copies of the region.
fn copies(gpu: Option<&Gpu>, bytes: &[u8]) -> serde_json::Value {
    let target: &'static mut [u8] = vec![1u8; bytes.len()].leak();
    let Some(Gpu { device, stream, span }) = gpu else {
        return json!({ "memcpy_s": timed(|| target.copy_from_slice(bytes)) });
    };
    let other = device.allocate(span.bytes()).expect("room");
    let copy = timed(|| {
        stream.copy(span, &other).expect("enqueued");
        stream.finish().expect("copied");
    });
    let whole = target.len() / 4096 * 4096;
    let at = target.as_ptr().align_offset(4096);
    let (range, memory) = HostRange::leaked(&mut target[at..whole - 4096 + at]);
    let _pinned = device.pin(&range).expect("pinned");
    let part = span.part(0, memory.len() as u64).expect("inside");
    let down = timed(|| stream.download(&mut [(part.clone(), memory)], None).expect("copied"));
    let digests = timed(|| {
        let runs = vec![Run::whole(span.clone(), None, 0)];
        stream.copy_blocks(runs, BLOCK as u64).and_then(|copied| copied.wait()).expect("read");
    });
    json!({ "device_copy_s": copy, "download_s": down, "digest_pass_s": digests })
}

fn captures(options: &Options, gpu: Option<&Gpu>) {
    for input in ["same", "blocks", "random"] {
        for method in [Method::Full, Method::Basic] {
            let folder = tempfile::tempdir_in(&options.dir).expect("a folder");
            let memory = tempfile::tempdir_in("/dev/shm").expect("node memory");
            let mut config = config(options, method, memory.path(), folder.path());
            config.job.local_enabled = false;
            let (mut rng, mut bytes) = (Rng::new(1), vec![0u8; options.mib << 20]);
            fill(&mut bytes, &mut rng);
            let session = open(config);
            let caches = gpu.map(|gpu| session.caches(gpu.device.clone()).expect("caches"));
            let (mut blocked, mut sealed) = (Vec::new(), Vec::new());
            for version in 0..options.versions {
                let began = Instant::now();
                let pending = capture(&session, version, &bytes, gpu, caches.as_ref());
                let returned = began.elapsed().as_secs_f64();
                assert!(pending.wait(Level::Process).expect("committed") >= Level::Process);
                // The first checkpoints have no memory yet, and nothing to compare with.
                if version > 2 {
                    blocked.push(returned);
                    sealed.push(began.elapsed().as_secs_f64() - returned);
                }
                if input != "same" {
                    change(input, &mut bytes, &mut rng);
                    if let Some(Gpu { stream, span, .. }) = gpu {
                        stream.upload(&[(&bytes, span.clone())], None).expect("uploaded");
                    }
                }
            }
            let line = json!({
                "figure": if options.gpu { "captures on a GPU" } else { "captures on the CPU" }, "input": input, "method": method.name(),
                "mib": options.mib, "blocked_s": median(&blocked), "sealed_s": median(&sealed),
                "partial": session.stats().reduction.partial_captures, "copies": copies(gpu, &bytes),
            });
            println!("{line}");
            drop(caches);
            session.close().expect("closes");
        }
    }
}

/// Takes a version of the region, which is in `bytes` or on the GPU.
fn capture(session: &Session, version: u64, bytes: &[u8], gpu: Option<&Gpu>, caches: Option<&Caches>) -> Pending {
    let mut checkpoint = session.begin_checkpoint("bench", version).expect("begun");
    let pending = match (gpu, caches) {
        (Some(Gpu { stream, span, .. }), Some(caches)) => {
            let mut checkpoint = checkpoint.with_device(caches, &**stream);
            checkpoint.save_device::<u8>("array", span).expect("saved");
            checkpoint.capture()
        }
        _ => {
            checkpoint.save("array", bytes).expect("saved");
            checkpoint.capture()
        }
    };
    pending.expect("captured")
}

fn open(config: Config) -> Session {
    let place = Place::here(&config, Workers::Threads, "ranks".into()).expect("a place");
    Session::open_on(Box::new(world(&[0]).remove(0)), &place, config).expect("opens")
}

fn main() {
    let options = Options::parse();
    std::fs::create_dir_all(&options.dir).expect("a folder");
    let gpu = options.gpu.then(|| Gpu::open((options.mib as u64) << 20));
    if options.captures {
        if let Some(Gpu { stream, span, .. }) = &gpu {
            let (mut rng, mut bytes) = (Rng::new(1), vec![0u8; options.mib << 20]);
            fill(&mut bytes, &mut rng);
            stream.upload(&[(&bytes, span.clone())], None).expect("uploaded");
        }
        return captures(&options, gpu.as_ref());
    }
    if options.random {
        return everything_changes(&options, gpu.as_ref());
    }
    for input in ["sparse", "blocks", "shifted", "twice", "random"] {
        for method in Method::ALL {
            println!("{}", series(&options, gpu.as_ref(), input, method, Compress::Off));
        }
    }
}

/// What reduction costs where it finds nothing, relative to `full`: the time from the call to the commit on the local tier, measured in
/// rounds because disks have moods.
fn everything_changes(options: &Options, gpu: Option<&Gpu>) {
    const SETTINGS: [(Method, Compress); 5] = [
        (Method::Full, Compress::Off),
        (Method::Auto, Compress::Off),
        (Method::Tree, Compress::Off),
        (Method::Full, Compress::Auto),
        (Method::Full, Compress::On),
    ];
    let mut all = [const { Vec::new() }; SETTINGS.len()];
    for round in 0..options.rounds {
        for at in 0..SETTINGS.len() {
            // No setting is always the first.
            let at = (at + round) % SETTINGS.len();
            let (method, compress) = SETTINGS[at];
            let line = series(options, gpu, "random", method, compress);
            let seconds = |key: &str| line[key].as_f64().expect("a number");
            all[at].push(seconds("blocked_s") + seconds("commit_s"));
            println!("{line}");
        }
    }
    let full = median(&all[0]);
    for ((method, compress), times) in SETTINGS.iter().zip(&all) {
        let line = json!({
            "figure": if options.gpu { "everything changes on a GPU" } else { "everything changes on the CPU" },
            "method": method.name(), "compress": compress.name(), "chunk": options.chunk, "mib": options.mib,
            "rounds": options.rounds, "versions": options.versions, "end_to_end_s": median(times), "over_full": median(times) / full,
        });
        println!("{line}");
    }
}

/// Takes all versions with a method and restores the last one.
fn series(options: &Options, gpu: Option<&Gpu>, input: &str, method: Method, compress: Compress) -> serde_json::Value {
    let folder = tempfile::tempdir_in(&options.dir).expect("a folder");
    let memory = tempfile::tempdir_in("/dev/shm").expect("node memory");
    let config = || {
        let mut config = config(options, method, memory.path(), folder.path());
        config.job.reduction.compress = compress;
        config
    };
    let (mut rng, mut bytes) = (Rng::new(1), vec![0u8; options.mib << 20]);
    fill(&mut bytes, &mut rng);
    let session = open(config());
    let caches = gpu.map(|gpu| session.caches(gpu.device.clone()).expect("caches"));
    let (mut blocked, mut committed) = (Vec::new(), Vec::new());
    let mut first = Default::default();
    for version in 0..options.versions {
        if let Some(Gpu { stream, span, .. }) = gpu {
            stream.upload(&[(&bytes, span.clone())], None).expect("uploaded");
        }
        let begun = Instant::now();
        let pending = capture(&session, version, &bytes, gpu, caches.as_ref());
        let captured = begun.elapsed().as_secs_f64();
        assert!(pending.wait(Level::NodeReboot).expect("committed") >= Level::NodeReboot);
        if version == 0 {
            first = session.stats().reduction;
        } else {
            blocked.push(captured);
            committed.push(begun.elapsed().as_secs_f64() - captured);
        }
        change(input, &mut bytes, &mut rng);
    }
    let last = session.stats().reduction;
    drop(caches);
    session.close().expect("closes");
    let mut away = config();
    away.job.memory_enabled = false;
    let session = open(away);
    let begun = Instant::now();
    session.begin_restore("bench").run(|r| Ok(r.load("array", &mut bytes)?)).expect("restored").expect("the last one");
    let restart = begun.elapsed().as_secs_f64();
    session.close().expect("closes");
    let shards = (last.shard_bytes - first.shard_bytes) as f64;
    let stored = (last.stored_bytes - first.stored_bytes) as f64;
    json!({
        "figure": if options.gpu { "reduction on a GPU" } else { "reduction on the CPU" }, "input": input, "method": method.name(),
        "compress": compress.name(), "mib": options.mib, "chunk": options.chunk, "versions": options.versions,
        "ratio": if stored > 0.0 { shards / stored } else { 1.0 },
        "blocked_s": median(&blocked), "commit_s": median(&committed), "restart_s": restart,
        "looked": last.looked_on_device - first.looked_on_device,
        "look_s": (last.device_time - first.device_time).as_secs_f64() / (options.versions - 1) as f64,
    })
}
