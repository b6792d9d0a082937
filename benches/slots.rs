//! Checkpoints of GPU memory into node memory: how long the application waits, and how long it takes until the level `process`
//! is committed, checkpoint by checkpoint. A restart from there, and bare copies of the same bytes for comparison.
//!
//! `mpirun -n GPUS target/release/slots --bench --help` lists the options. The root prints one JSON line: seconds, of the slowest rank.

#[cfg(not(feature = "cuda"))]
fn main() {
    eprintln!("SKIPPED: built without the feature `cuda`");
}

#[cfg(feature = "cuda")]
#[allow(dead_code)] // Other benches use the rest.
#[path = "shot/node.rs"]
mod node;

#[cfg(feature = "cuda")]
fn main() {
    slots::main();
}

#[cfg(feature = "cuda")]
mod slots {
    use super::node::{self, median};
    use bivouac_core::base::units::GIB;
    use bivouac_core::config::ConfigSource;
    use bivouac_core::device::{Device, HostRange, Priority};
    use bivouac_core::{Config, Level, Session};
    use clap::Parser;
    use mpi::collective::SystemOperation;
    use mpi::topology::SimpleCommunicator;
    use mpi::traits::*;
    use serde_json::json;
    use std::time::{Duration, Instant};

    #[derive(Parser, Debug)]
    struct Options {
        /// GiB of device memory in each checkpoint of a rank.
        #[arg(long, default_value_t = 4.0)]
        gib: f64,
        /// GiB of GPU cache.
        #[arg(long, default_value_t = 5.0)]
        cache: f64,
        /// Number of checkpoints.
        #[arg(long, default_value_t = 10)]
        rounds: u64,
        /// Seconds between checkpoints.
        #[arg(long, default_value_t = 1.0)]
        interval: f64,
        /// `history.pin`: never, turns, at-once.
        #[arg(long, default_value = "turns")]
        pin: String,
        /// Divide the device memory into regions of this many KiB; 0: into one.
        #[arg(long, default_value_t = 0)]
        region_kib: u64,
        /// Passed by `cargo bench`.
        #[arg(long, hide = true)]
        bench: bool,
    }

    /// The slowest rank's time.
    fn worst(world: &SimpleCommunicator, mine: f64) -> f64 {
        let mut all = 0.0f64;
        world.all_reduce_into(&mine, &mut all, SystemOperation::max());
        (all * 1e5).round() / 1e5
    }

    pub fn main() {
        let options = Options::parse();
        let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Multiple).expect("MPI starts");
        let world = universe.world();
        let Some(device) = node::gpu(&world) else { return };
        let bytes = (options.gib * GIB as f64) as u64;
        let stream = device.stream(Priority::High).expect("a stream");
        let span = device.allocate(bytes).expect("room");
        let region = if options.region_kib == 0 { bytes } else { options.region_kib << 10 };
        let names: Vec<String> = (0..bytes / region).map(|at| format!("region {at}")).collect();
        // The parts are scattered, like the regions of a program.
        let order = (0..bytes / region).map(|at| (at * 7919) % (bytes / region) * region);
        let parts: Vec<_> = order.map(|at| span.part(at, region).expect("inside")).collect();
        let timed = |work: &mut dyn FnMut()| {
            let times = (0..6).map(|_| {
                world.barrier();
                let begun = Instant::now();
                work();
                worst(&world, begun.elapsed().as_secs_f64())
            });
            median(&times.skip(1).collect::<Vec<_>>())
        };
        let (inside, down, up) = {
            let other = device.allocate(bytes).expect("room");
            let inside = timed(&mut || {
                stream.copy(&span, &other).expect("copied");
                stream.finish().expect("copied");
            });
            drop(other);
            let memory = vec![1u8; bytes as usize + 4096].leak();
            let skip = memory.as_ptr().align_offset(4096);
            let (range, memory) = HostRange::leaked(&mut memory[skip..skip + bytes as usize]);
            let _pinned = device.pin(&range).expect("pinned");
            let down = timed(&mut || stream.download(&mut [(span.clone(), &mut *memory)], None).expect("copied"));
            let up = timed(&mut || stream.upload(&[(&*memory, span.clone())], None).expect("copied"));
            (inside, down, up)
        };

        let group = format!("bivouac-bench-{}", std::os::unix::process::parent_id());
        let memory = format!("/dev/shm/{group}");
        std::fs::create_dir_all(&memory).expect("made");
        world.barrier();
        let settings = [
            ("job.name", "bench-slots".to_owned()),
            ("job.group", group),
            ("memory.directory", memory.clone()),
            ("memory.budget", (u64::from(world.size() as u32) * (4 * bytes + GIB)).to_string()),
            ("device.budget", ((options.cache * GIB as f64) as u64).to_string()),
            ("history.pin", options.pin.clone()),
            ("local.enabled", "false".to_owned()),
            ("global.enabled", "false".to_owned()),
        ]
        .map(|(key, value)| (key.to_owned(), value));
        let config = Config::with_settings(ConfigSource::Environment, &settings).expect("a configuration");
        let session = Session::open(&world, config).expect("opened");
        let caches = session.caches(device.clone()).expect("caches");
        session.prepare(bytes);
        std::thread::sleep(Duration::from_secs_f64(3.0 * options.interval));
        let (mut blocked, mut committed, mut pinned) = (Vec::new(), Vec::new(), Vec::new());
        for version in 1..=options.rounds {
            world.barrier();
            let begun = Instant::now();
            let mut checkpoint =
                session.begin_checkpoint("slots", version).expect("begun").with_device(&caches, &*stream);
            for (name, part) in names.iter().zip(&parts) {
                checkpoint.save_device::<u8>(name, part).expect("saved");
            }
            let pending = checkpoint.capture().expect("captured");
            let waited = begun.elapsed().as_secs_f64();
            pending.wait(Level::Process).expect("committed");
            let all = begun.elapsed().as_secs_f64();
            blocked.push(worst(&world, waited));
            committed.push(worst(&world, all));
            std::thread::sleep(Duration::from_secs_f64(options.interval));
            pinned.push(worst(&world, caches.stats().slot_bytes_pinned as f64 / 1e9));
        }
        let target = device.allocate(bytes).expect("room");
        let place = |(name, at)| (name, target.part(at, region).expect("inside"));
        let places: Vec<_> = names.iter().map(String::as_str).zip((0..).step_by(region as usize)).map(place).collect();
        let mut elect = 0.0;
        let restart = timed(&mut || {
            let restored =
                session.begin_restore("slots").run(|restorer| Ok(restorer.load_devices::<u8>(&places, &*stream)?));
            let restored = restored.expect("restored").expect("there is a checkpoint");
            assert_eq!(restored.tier.name(), "memory");
            elect = restored.electing.as_secs_f64();
        });
        if world.rank() == 0 {
            println!(
                "{}",
                json!({"figure": "checkpoints of GPU memory", "ranks": world.size(), "gpus": node::gpus(), "options": format!("{options:?}"),
                "gb": bytes as f64 / 1e9, "bare_inside_s": inside, "bare_down_s": down, "bare_up_s": up, "blocked_s": blocked,
                "process_s": committed, "pinned_gb": pinned, "restart_s": restart, "elect_s": elect})
            );
        }
        drop(caches);
        session.close().expect("closed");
        world.barrier();
        if world.rank() == 0
            && let Err(error) = std::fs::remove_dir_all(&memory)
        {
            eprintln!("{memory} stays: {error}");
        }
    }
}
