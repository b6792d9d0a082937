//! How to start MPI in each of its ways, print lines, and make data that shows whose it is.

use bivouac_core::{Attempt, Config, Level, Pending, Session};
use mpi::environment::Universe;
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use mpi::{Threading, ffi};
use std::fmt::Display;
use std::io::Write;
use std::path::PathBuf;

/// Name of the series that most scenarios use.
pub const NAME: &str = "heat";

/// One rank of the job.
pub struct Job {
    pub world: SimpleCommunicator,
    pub rank: i32,
    pub size: i32,
}

impl Job {
    pub fn barrier(&self) {
        self.world.barrier();
    }

    pub fn open(&self) -> Session {
        self.open_with(config())
    }

    pub fn open_with(&self, config: Config) -> Session {
        Session::open(&self.world, config).unwrap_or_else(|error| panic!("rank {}: open: {error}", self.rank))
    }

    /// Prints one line in one write, so that lines of several ranks do not mix.
    pub fn say(&self, label: &str, text: impl Display) {
        let text = text.to_string().replace('\n', " | ");
        let line = format!("{label} rank={} {text}\n", self.rank);
        std::io::stdout().lock().write_all(line.as_bytes()).expect("standard output is there");
    }

    /// Prints a result: `ok VALUE`, or `error TEXT`.
    pub fn tell<T: Display>(&self, label: &str, result: bivouac_core::Result<T>) {
        match result {
            Ok(value) => self.say(label, format!("ok {value}")),
            Err(error) => self.say(label, format!("error {error}")),
        }
    }

    /// Kills this process as `kill -9` would, once all ranks have made this call.
    pub fn die(&self) -> ! {
        self.barrier();
        let pid = rustix::process::getpid();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("a process may kill itself");
        unreachable!("SIGKILL cannot be survived")
    }
}

pub fn config() -> Config {
    Config::from_env().expect("the test gives a right environment")
}

pub fn folder() -> PathBuf {
    std::env::var_os("BIVOUAC_TEST_DIR").expect("the test names its folder").into()
}

/// Initialises MPI as the environment says. Returns no universe if the `mpi` crate did not initialise MPI.
pub fn initialize() -> Option<Universe> {
    let wanted = std::env::var("BIVOUAC_TEST_THREADS").unwrap_or_else(|_| "multiple".into());
    let threading = match wanted.as_str() {
        "single" => Threading::Single,
        "funneled" => Threading::Funneled,
        "serialized" => Threading::Serialized,
        "multiple" => Threading::Multiple,
        "raw" => {
            // SAFETY: nobody has initialised MPI in this process yet, and null pointers stand for no arguments.
            let code = unsafe { ffi::MPI_Init(std::ptr::null_mut(), std::ptr::null_mut()) };
            assert_eq!(code, ffi::MPI_SUCCESS as i32);
            return None;
        }
        other => panic!("BIVOUAC_TEST_THREADS={other}"),
    };
    let (universe, granted) = mpi::initialize_with_threading(threading).expect("MPI is not initialised yet");
    // Some libraries grant more than was requested. The lower levels test what happens with less than
    // MPI_THREAD_MULTIPLE.
    assert!(granted >= threading, "wanted {threading:?}, granted {granted:?}");
    Some(universe)
}

/// Finalizes MPI if that has not been done, as after [`initialize`] returned no universe.
pub fn finalize_if_needed() {
    if !mpi::environment::is_finalized() {
        // SAFETY: MPI is initialised and not finalized, and no other thread of this program calls it.
        unsafe { ffi::MPI_Finalize() };
    }
}

/// Makes a panic abort the job: otherwise a panic on one rank would leave the others waiting for ever.
pub fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        if !mpi::environment::is_finalized() {
            SimpleCommunicator::world().abort(101);
        }
    }));
}

pub fn start_log(rank: i32) {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("warn"))
        .format(move |out, record| writeln!(out, "[{rank}] {} {}: {}", record.level(), record.target(), record.args()))
        .init();
}

/// The field of one rank at one version of one run (`seed`). Lengths differ between ranks and versions.
pub fn field(seed: u64, version: u64, rank: i32) -> Vec<f64> {
    let base = (seed * 1_000_003 + version * 10_007 + rank as u64 * 101) as f64;
    (0..500 + 37 * rank as usize + (version % 5) as usize).map(|i| base + i as f64 * 0.5).collect()
}

/// Takes a checkpoint of [`field`].
pub fn take(session: &Session, name: &str, seed: u64, version: u64, rank: i32) -> bivouac_core::Result<Pending> {
    let data = field(seed, version, rank);
    let mut ckpt = session.begin_checkpoint(name, version)?;
    ckpt.save("field", &data)?;
    ckpt.value("seed", &seed)?;
    ckpt.capture()
}

/// Takes a checkpoint and waits until it has reached the highest level.
pub fn commit(session: &Session, name: &str, seed: u64, version: u64, rank: i32) -> bivouac_core::Result<Level> {
    take(session, name, seed, version, rank)?.wait(Level::System)
}

/// Loads and checks the regions of [`take`], and returns the seed.
pub fn load(r: &mut Attempt, rank: i32) -> bivouac_core::Result<u64> {
    let seed: u64 = r.value("seed")?;
    let data: Vec<f64> = r.load_vec("field")?;
    assert!(data == field(seed, r.version(), rank), "rank {rank}: the field is not that of version {}", r.version());
    Ok(seed)
}

/// Restores the newest checkpoint or a given version, and returns a text that names it.
pub fn restore(session: &Session, name: &str, version: Option<u64>, rank: i32) -> bivouac_core::Result<String> {
    let mut seed = 0;
    let loading = |r: &mut Attempt| {
        seed = load(r, rank)?;
        Ok(())
    };
    let restored = match version {
        None => session.begin_restore(name).run(loading),
        Some(version) => session.begin_restore(name).version(version).run(loading),
    }?;
    Ok(restored.map_or("nothing".into(), |r| {
        let (version, generation, tier) = (r.version, r.generation, r.tier);
        format!("version={version} generation={generation} seed={seed} tier={tier} left_behind={}", r.left_behind)
    }))
}
