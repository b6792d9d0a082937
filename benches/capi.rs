//! What the C interface costs beside the Rust one: the same tiny checkpoint on two sessions of one process, in turn, and a
//! restart from node memory against memcpy.
//!
//! `mpirun -n 2 cargo bench --bench capi`, or what `cargo bench --no-run --bench capi` names. Rank 0 prints JSON lines: medians in
//! seconds, their ratio, the target. The first rounds are thrown away.

use bivouac::capi::arguments::{BVK_F64, BVK_U64};
use bivouac::capi::checkpoint::bvk_checkpoint;
use bivouac::capi::restart::{BVK_NEWEST, bvk_restart};
use bivouac::capi::session::{Options, bvk_close, bvk_open, bvk_protect};
use bivouac::capi::status::BVK_OK;
use bivouac::config::ConfigSource;
use bivouac::{Config, Session};
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use serde_json::json;
use std::ffi::{CString, c_char};
use std::time::{Duration, Instant};

const ROUNDS: usize = 400;
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
    let shared = |group: &str| {
        vec![
            ("job.name".to_owned(), "bench-capi".to_owned()),
            ("job.group".to_owned(), group.to_owned()),
            ("local.enabled".to_owned(), "false".to_owned()),
            ("global.enabled".to_owned(), "false".to_owned()),
            ("affinity.mode".to_owned(), "off".to_owned()),
        ]
    };
    let config = Config::with_settings(ConfigSource::Environment, &shared("rust")).expect("a configuration");
    let rust = Session::open(&world, config).expect("opened");
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
    // SAFETY: the communicator is live, the options and their texts stay, and there is a place for the handle.
    assert_eq!(unsafe { bvk_open(world.as_raw(), &options, &mut session) }, BVK_OK);

    let (field, mut step) = (vec![1.0f64; 128], 0u64);
    let mut times: [Vec<f64>; 2] = Default::default();
    for round in 0..ROUNDS + WARM_UP {
        step += 1;
        // Which one is first changes from round to round.
        for turn in 0..2 {
            let is_c = (round + turn) % 2 == 0;
            world.barrier();
            std::thread::sleep(Duration::from_millis(2));
            let begun = Instant::now();
            if is_c {
                // SAFETY: names end with zero, and the memory stays until the calls have returned.
                let status = unsafe {
                    bvk_protect(session, c"field".as_ptr(), field.as_ptr().cast_mut().cast(), 128, BVK_F64);
                    bvk_protect(session, c"step".as_ptr(), (&raw mut step).cast(), 1, BVK_U64);
                    bvk_checkpoint(session, c"tiny".as_ptr(), step, std::ptr::null_mut())
                };
                assert_eq!(status, BVK_OK);
            } else {
                let mut checkpoint = rust.checkpoint("tiny", step).expect("begun");
                checkpoint.save("field", &field).expect("saved");
                checkpoint.save("step", std::slice::from_ref(&step)).expect("saved");
                drop(checkpoint.capture().expect("captured"));
            }
            if round >= WARM_UP {
                times[usize::from(is_c)].push(begun.elapsed().as_secs_f64());
            }
        }
    }
    let [of_rust, of_c] = times.map(|times| worst(&world, median(times)));
    if world.rank() == 0 {
        let ratio = of_c / of_rust;
        println!(
            "{}",
            json!({"figure": "tiny checkpoint, C against Rust", "ranks": world.size(), "rounds": ROUNDS,
            "c_s": of_c, "rust_s": of_rust, "ratio": ratio, "target": 1.02})
        );
    }

    let source = vec![2.5f64; LARGE];
    let (mut target, mut copied) = (vec![0.0f64; LARGE], vec![0.0f64; LARGE]);
    target.fill(1.0);
    // SAFETY: as above.
    unsafe {
        bvk_protect(session, c"field".as_ptr(), source.as_ptr().cast_mut().cast(), LARGE as u64, BVK_F64);
        assert_eq!(bvk_checkpoint(session, c"large".as_ptr(), 1, std::ptr::null_mut()), BVK_OK);
        bvk_protect(session, c"field".as_ptr(), target.as_mut_ptr().cast(), LARGE as u64, BVK_F64);
    }
    let mut times: [Vec<f64>; 2] = Default::default();
    for round in 0..14 {
        world.barrier();
        let begun = Instant::now();
        // SAFETY: as above; nobody else uses the memory.
        let status = unsafe { bvk_restart(session, c"large".as_ptr(), BVK_NEWEST, std::ptr::null_mut()) };
        let restart = begun.elapsed().as_secs_f64();
        assert_eq!(status, BVK_OK);
        world.barrier();
        let begun = Instant::now();
        copied.copy_from_slice(&source);
        let copy = begun.elapsed().as_secs_f64();
        std::hint::black_box(&copied);
        if round >= 2 {
            times[0].push(restart);
            times[1].push(copy);
        }
    }
    assert_eq!(target, source);
    let [restart, copy] = times.map(|times| worst(&world, median(times)));
    if world.rank() == 0 {
        println!(
            "{}",
            json!({"figure": "restart from node memory through C, 256 MiB per rank, against memcpy",
            "ranks": world.size(), "restart_s": restart, "memcpy_s": copy, "ratio": restart / copy, "target": 1.5})
        );
    }
    // SAFETY: the handle is open.
    assert_eq!(unsafe { bvk_close(&mut session) }, BVK_OK);
    rust.close().expect("closed");
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The largest of all ranks.
fn worst(world: &SimpleCommunicator, mine: f64) -> f64 {
    let mut all = 0.0;
    world.all_reduce_into(&mine, &mut all, mpi::collective::SystemOperation::max());
    all
}
