//! What the C interface costs compared with the Rust one. The same tiny checkpoint, of regions that were registered once, is taken on three
//! sessions of one process, in turn: through C, and twice through Rust, which shows by how much two equal sessions differ. And a restart
//! from node memory is compared with memcpy, with one session at a time.
//!
//! With `--unprepared`, the memory for the checkpoint of that restart is not made ready before it is taken.
//!
//! Run `mpirun -n 2 cargo bench --bench capi`, or the program that `cargo bench --no-run --bench capi` names. Rank 0 prints JSON
//! lines: medians in seconds, their ratio, and the target. The first rounds are thrown away.

use bivouac_capi::arguments::{BVK_F64, BVK_U64};
use bivouac_capi::checkpoint::bvk_checkpoint;
use bivouac_capi::restart::{BVK_NEWEST, bvk_restore};
use bivouac_capi::session::{Options, bvk_close, bvk_open, bvk_prepare, bvk_protect, bvk_unprotect_all};
use bivouac_capi::status::BVK_OK;
use bivouac_core::config::ConfigSource;
use bivouac_core::{Config, Session};
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use serde_json::json;
use std::ffi::{CString, c_char};
use std::time::{Duration, Instant};

const ROUNDS: usize = 1500;
const WARM_UP: usize = 50;
/// Elements of the restart's region: 256 MiB.
const LARGE: usize = 32 << 20;

fn main() {
    let (universe, _) = mpi::initialize_with_threading(mpi::Threading::Multiple).expect("MPI starts");
    let world = universe.world();
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        SimpleCommunicator::world().abort(1);
    }));
    // This run has its own node memory: each restart would look at what earlier runs have left there.
    let memory = format!("/dev/shm/bivouac-bench-{}", std::os::unix::process::parent_id());
    std::fs::create_dir_all(&memory).expect("made");
    world.barrier();
    let shared = |group: &str| {
        vec![
            ("job.name".to_owned(), "bench-capi".to_owned()),
            ("job.group".to_owned(), group.to_owned()),
            ("memory.directory".to_owned(), memory.clone()),
            ("local.enabled".to_owned(), "false".to_owned()),
            ("global.enabled".to_owned(), "false".to_owned()),
            ("affinity.mode".to_owned(), "off".to_owned()),
        ]
    };
    let open = |group: &str| {
        let config = Config::with_settings(ConfigSource::Environment, &shared(group)).expect("a configuration");
        Session::open(&world, config).expect("opened")
    };
    let rust = [open("rust"), open("again")];
    let texts: Vec<CString> =
        shared("c").iter().map(|(key, value)| CString::new(format!("{key}={value}")).expect("no zero")).collect();
    let mut settings: Vec<*const c_char> = texts.iter().map(|text| text.as_ptr()).collect();
    settings.push(std::ptr::null());
    let options = Options {
        size: size_of::<Options>(),
        config_file: std::ptr::null(),
        config_text: std::ptr::null(),
        settings: settings.as_ptr(),
    };
    let mut session = std::ptr::null_mut();
    // SAFETY: the communicator is live, the options and their texts stay, and `session` has room for the handle.
    assert_eq!(unsafe { bvk_open(world.as_raw(), &options, &mut session) }, BVK_OK);

    let (mut field, mut step) = (vec![1.0f64; 128], [0u64]);
    let (at_field, at_step) = (field.as_mut_ptr(), step.as_mut_ptr());
    // SAFETY: names end with zero; the memory stays until it is protected anew or the session is closed.
    unsafe {
        assert_eq!(bvk_protect(session, c"field".as_ptr(), at_field.cast(), 128, BVK_F64), BVK_OK);
        assert_eq!(bvk_protect(session, c"step".as_ptr(), at_step.cast(), 1, BVK_U64), BVK_OK);
    }
    let mut times: [Vec<f64>; 3] = Default::default();
    for round in 0..ROUNDS + WARM_UP {
        let version = round as u64 + 1;
        // The order changes from round to round: which session is first, and which follows which.
        for turn in 0..3 {
            let which = if round % 2 == 0 { (round / 2 + turn) % 3 } else { (round / 2 + 3 - turn) % 3 };
            world.barrier();
            std::thread::sleep(Duration::from_millis(2));
            let begun = Instant::now();
            if which == 2 {
                // SAFETY: the name ends with zero, and what was protected is still there.
                let status = unsafe { bvk_checkpoint(session, c"tiny".as_ptr(), version, std::ptr::null_mut()) };
                assert_eq!(status, BVK_OK);
            } else {
                let mut checkpoint = rust[which].begin_checkpoint("tiny", version).expect("begun");
                checkpoint.save("field", &field).expect("saved");
                checkpoint.save("step", &step).expect("saved");
                drop(checkpoint.capture().expect("captured"));
            }
            if round >= WARM_UP {
                times[which].push(begun.elapsed().as_secs_f64());
            }
        }
    }
    let [of_rust, of_other, of_c] = times.map(|times| worst(&world, median(times)));
    if world.rank() == 0 {
        println!(
            "{}",
            json!({"figure": "tiny checkpoint, C against Rust", "ranks": world.size(), "rounds": ROUNDS,
            "c_s": of_c, "rust_s": of_rust, "ratio": of_c / of_rust, "target": 1.02,
            "other_rust_s": of_other, "other_ratio": of_other / of_rust})
        );
    }

    for session in rust {
        session.close().expect("closed");
    }

    let mut source = vec![2.5f64; LARGE];
    let mut target = vec![1.0f64; LARGE];
    // An application that knows its size does this: memory that is made ready in the background has large pages, which a
    // restart maps sooner.
    let is_prepared = !std::env::args().any(|argument| argument == "--unprepared");
    // SAFETY: as above.
    unsafe {
        if is_prepared {
            assert_eq!(bvk_prepare(session, 8 * LARGE as u64), BVK_OK);
            std::thread::sleep(Duration::from_secs(2));
        }
        assert_eq!(bvk_unprotect_all(session), BVK_OK);
        let at = source.as_mut_ptr().cast();
        assert_eq!(bvk_protect(session, c"field".as_ptr(), at, LARGE as u64, BVK_F64), BVK_OK);
        assert_eq!(bvk_checkpoint(session, c"large".as_ptr(), 1, std::ptr::null_mut()), BVK_OK);
        let at = target.as_mut_ptr().cast();
        assert_eq!(bvk_protect(session, c"field".as_ptr(), at, LARGE as u64, BVK_F64), BVK_OK);
    }
    let through_c = restarts(&world, &source, || {
        // SAFETY: as above; nobody else uses the memory.
        let status = unsafe { bvk_restore(session, c"large".as_ptr(), BVK_NEWEST, std::ptr::null_mut()) };
        assert_eq!(status, BVK_OK);
    });
    // SAFETY: the handle is open.
    assert_eq!(unsafe { bvk_close(&mut session) }, BVK_OK);
    assert_eq!(target, source);

    let rust = open("rust");
    if is_prepared {
        rust.prepare(8 * LARGE as u64);
        std::thread::sleep(Duration::from_secs(2));
    }
    let mut checkpoint = rust.begin_checkpoint("large", 1).expect("begun");
    checkpoint.save("field", &source).expect("saved");
    drop(checkpoint.capture().expect("captured"));
    let through_rust = restarts(&world, &source, || {
        let restored = rust.begin_restore("large").run(|restorer| Ok(restorer.load("field", &mut target)?));
        restored.expect("restored").expect("it is there");
    });
    rust.close().expect("closed");
    world.barrier();
    if world.rank() == 0 {
        std::fs::remove_dir_all(&memory).expect("removed");
        for (language, (restart, copy)) in [("C", through_c), ("Rust", through_rust)] {
            println!(
                "{}",
                json!({"figure": format!("restart from node memory through {language}, 256 MiB per rank, against memcpy"),
                "ranks": world.size(), "prepared": is_prepared, "restart_s": restart, "memcpy_s": copy, "ratio": restart / copy, "target": 1.5})
            );
        }
    }
}

/// The medians of restarts and of copies of `source`, taken in turn; each is that of the slowest rank.
fn restarts(world: &SimpleCommunicator, source: &[f64], mut restart: impl FnMut()) -> (f64, f64) {
    let mut copied = vec![0.0f64; source.len()];
    let mut times: [Vec<f64>; 2] = Default::default();
    for round in 0..23 {
        for (times, of) in times.iter_mut().zip(0..) {
            world.barrier();
            let begun = Instant::now();
            match of {
                0 => restart(),
                _ => copied.copy_from_slice(source),
            }
            std::hint::black_box(&copied);
            if round >= 2 {
                times.push(begun.elapsed().as_secs_f64());
            }
        }
    }
    times.map(|times| worst(world, median(times))).into()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The maximum over all ranks.
fn worst(world: &SimpleCommunicator, mine: f64) -> f64 {
    let mut all = 0.0;
    world.all_reduce_into(&mine, &mut all, mpi::collective::SystemOperation::max());
    all
}
