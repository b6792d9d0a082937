//! Shared code of the integration tests: starting MPI jobs from inside a test.
//!
//! A test that needs several MPI processes runs its own test program once more, under `mpirun`, and requests only one
//! test function, the *worker*:
//!
//! ```ignore
//! #[test]
//! fn ranks_agree() {
//!     common::run_workers(4, "ranks_agree_worker", &[]);
//! }
//!
//! #[test]
//! fn ranks_agree_worker() {
//!     let Some(worker) = common::Worker::start("ranks_agree_worker", Threading::Multiple) else { return };
//!     // … assertions; a panic aborts the whole job …
//!     worker.finish();
//! }
//! ```
//!
//! In an ordinary run of all tests, the worker function returns at once. `run_workers` counts the ranks that reached
//! the end, so a misspelt name is noticed.
//!
//! | variable | meaning |
//! |---|---|
//! | `BIVOUAC_TEST_MPIRUN` | the `mpirun` of the MPI library that the tests were built with; default `mpirun` |
//! | `BIVOUAC_TEST_WORKER` | set by `run_workers`: the worker function that is wanted |
#![allow(dead_code, unused_imports)] // Each test program uses a part of this.

pub mod limit;

use limit::LIMIT;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a job that is asked to end may take to do so before it is killed.
const GRACE: Duration = Duration::from_secs(5);

const WORKER_VARIABLE: &str = "BIVOUAC_TEST_WORKER";

/// The command that starts MPI jobs, and the arguments that it needs.
struct Launcher {
    program: OsString,
    is_open_mpi: bool,
}

impl Launcher {
    /// Finds `mpirun`. Returns `None`, with a loud note, if it is not installed.
    fn find() -> Option<Self> {
        let program = std::env::var_os("BIVOUAC_TEST_MPIRUN").unwrap_or_else(|| "mpirun".into());
        let Ok(answer) = Command::new(&program).arg("--version").stdin(Stdio::null()).output() else {
            eprintln!("\n*** SKIPPED: no {program:?} here, so nothing was tested under MPI. Run ci/setup.sh. ***\n");
            return None;
        };
        let text = String::from_utf8_lossy(&answer.stdout).to_lowercase();
        Some(Launcher { program, is_open_mpi: text.contains("open mpi") || text.contains("openrte") })
    }

    fn command(&self, ranks: u32) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("-n").arg(ranks.to_string());
        if self.is_open_mpi {
            command.arg("--oversubscribe").args(["--bind-to", "none"]);
            if rustix::process::getuid().is_root() {
                command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
            }
        }
        command
    }
}

/// Runs `args` (program first) on `ranks` ranks with additional environment variables, and waits for the end of the
/// job. Returns `None` if `mpirun` is not installed: the reason has then been printed, and the caller returns.
///
/// A job that takes longer than [`LIMIT`] is killed with all its processes, and the test fails. Only one MPI job runs
/// at a time, across all test programs, because ranks that wait for messages keep a core busy.
pub fn mpirun(ranks: u32, args: &[impl AsRef<OsStr>], env: &[(&str, &str)]) -> Option<Output> {
    let launcher = Launcher::find()?;
    let lock = one_at_a_time();
    let mut command = launcher.command(ranks);
    command.args(args).envs(env.iter().copied());
    let output = run_within(command, LIMIT);
    drop(lock);
    Some(output)
}

/// `mpirun -n RANKS`, for a caller that adds the program and [starts](Job::start) it. `None`, with a loud note, if
/// `mpirun` is not installed.
pub fn mpirun_command(ranks: u32) -> Option<Command> {
    Some(Launcher::find()?.command(ranks))
}

/// A job that runs alongside the test, so that the test can act on it. Dropping it ends it with all its processes.
pub struct Job {
    child: Child,
    streams: Option<[std::thread::JoinHandle<Vec<u8>>; 2]>,
    started: Instant,
    _lock: std::fs::File,
}

impl Job {
    /// Starts a command in a process group of its own.
    pub fn start(mut command: Command) -> Job {
        let lock = one_at_a_time();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let streams = Some([reader(child.stdout.take()), reader(child.stderr.take())]);
        Job { child, streams, started: Instant::now(), _lock: lock }
    }

    /// The process that was started.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Is the job still running? Fails if it has taken longer than a job may.
    pub fn is_running(&mut self) -> bool {
        assert!(self.started.elapsed() < LIMIT, "the job did not end within {LIMIT:?}");
        self.child.try_wait().expect("our own child can be waited for").is_none()
    }

    /// Waits for the job's end.
    pub fn wait(mut self) -> Output {
        while self.is_running() {
            std::thread::sleep(Duration::from_millis(2));
        }
        let status = self.child.wait().expect("our own child can be waited for");
        let streams = self.streams.take().expect("taken only here");
        let [stdout, stderr] = streams.map(|stream| stream.join().expect("the reader does not panic"));
        Output { status, stdout, stderr }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            end(&mut self.child);
        }
    }
}

/// Waits until no other MPI job of these tests is running, and keeps others from starting while the file is open. The tests of `hosts` and
/// of `slurm` mostly wait for time limits, so each of these programs has its own lock, and `hosts` has two.
pub fn one_at_a_time() -> std::fs::File {
    let (name, places) = match env!("CARGO_CRATE_NAME") {
        "hosts" => ("hosts", 2),
        "slurm" => ("slurm", 1),
        _ => ("mpi", 1),
    };
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    loop {
        for place in 0..places {
            let path = folder.join(format!("job-of-{name}-{place}.lock"));
            let lock = std::fs::File::create(&path).expect("the folder for temporary files of the tests is writable");
            match lock.try_lock() {
                Ok(()) => return lock,
                Err(std::fs::TryLockError::WouldBlock) => {}
                Err(error) => panic!("the file system of the target folder has no locks: {error}"),
            }
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// Runs one worker function of this test program on `ranks` ranks. Fails if the job fails, or unless every rank reached
/// the end of the worker. Returns the job's output, for more checks, or `None` if `mpirun` is not installed.
pub fn run_workers(ranks: u32, worker: &str, env: &[(&str, &str)]) -> Option<Output> {
    let program = std::env::current_exe().expect("a running program has a path");
    let args = [program.as_os_str(), "--exact".as_ref(), worker.as_ref(), "--nocapture".as_ref()];
    let env: Vec<_> = env.iter().copied().chain([(WORKER_VARIABLE, worker)]).collect();
    let output = mpirun(ranks, &args, &env)?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let finished = stdout.matches(&finished_mark(worker)).count();
    assert!(
        output.status.success() && finished == ranks as usize,
        "{worker}: {}, {finished} of {ranks} ranks came to the end\n{}",
        output.status,
        both_streams(&output)
    );
    Some(output)
}

fn finished_mark(worker: &str) -> String {
    format!("[{worker} finished]")
}

fn both_streams(output: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("--- stdout\n{out}\n--- stderr\n{err}")
}

/// Runs a command in its own process group. If it takes longer than `limit`, kills the whole group and fails.
fn run_within(mut command: Command, limit: Duration) -> Output {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let stdout = reader(child.stdout.take());
    let stderr = reader(child.stderr.take());
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().expect("our own child can be waited for") {
            break Some(status);
        }
        if started.elapsed() >= limit {
            end(&mut child);
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let stdout = stdout.join().expect("the reader does not panic");
    let stderr = stderr.join().expect("the reader does not panic");
    match status {
        Some(status) => Output { status, stdout, stderr },
        None => {
            let output = Output { status: std::process::ExitStatus::default(), stdout, stderr };
            panic!("{command:?} did not end within {limit:?} and was killed\n{}", both_streams(&output))
        }
    }
}

fn reader(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // An error ends the stream; the text before it is still worth showing.
            let _ = stream.read_to_end(&mut bytes);
        }
        bytes
    })
}

/// Ends a process and all its descendants. Open MPI gives each rank a process group of its own, so the descendants are
/// looked up before their parent ends.
fn end(child: &mut Child) {
    let descendants = descendants(child.id());
    let pid = Pid::from_child(child);
    // The group may be gone already.
    let _ = kill_process_group(pid, Signal::TERM);
    let asked = Instant::now();
    while asked.elapsed() < GRACE && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = kill_process_group(pid, Signal::KILL);
    for pid in descendants {
        let _ = kill_process(pid, Signal::KILL);
    }
    let _ = child.wait();
}

fn descendants(of: u32) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<(u32, u32)> = entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: u32| Some((pid, parent(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect();
    let mut found = vec![of];
    let mut next = 0;
    while let Some(&looked_at) = found.get(next) {
        found.extend(parents.iter().filter(|(_, parent)| *parent == looked_at).map(|(pid, _)| *pid));
        next += 1;
    }
    found[1..].iter().filter_map(|pid| Pid::from_raw(*pid as i32)).collect()
}

/// The parent in a line of `/proc/PID/stat`: the second word after the name, which ends at the last parenthesis and may
/// contain any character.
fn parent(stat: &str) -> Option<u32> {
    stat[stat.rfind(')')? + 1..].split_whitespace().nth(1)?.parse().ok()
}

#[cfg(feature = "mpi")]
#[allow(unused_imports)] // As above.
pub use worker::Worker;

#[cfg(feature = "mpi")]
mod worker {
    use mpi::environment::Universe;
    use mpi::topology::SimpleCommunicator;
    use mpi::traits::Communicator;
    use mpi::{Threading, environment};
    use std::io::Write;

    /// One rank of a job that [`run_workers`](super::run_workers) started.
    pub struct Worker {
        name: &'static str,
        universe: Universe,
    }

    impl Worker {
        /// Initializes MPI. Returns `None` if this process is not meant to run the worker `name`.
        ///
        /// After this call a panic aborts the job: otherwise the other ranks would wait for ever.
        pub fn start(name: &'static str, threading: Threading) -> Option<Self> {
            if std::env::var(super::WORKER_VARIABLE).ok()? != name {
                return None;
            }
            let (universe, granted) =
                environment::initialize_with_threading(threading).expect("a worker is the first to initialize MPI");
            let print = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                print(panic);
                if !environment::is_finalized() {
                    SimpleCommunicator::world().abort(101);
                }
            }));
            assert!(granted >= threading, "the MPI library grants {granted:?}, the test needs {threading:?}");
            Some(Worker { name, universe })
        }

        /// `MPI_COMM_WORLD`.
        pub fn world(&self) -> SimpleCommunicator {
            self.universe.world()
        }

        /// Finalizes MPI.
        pub fn finalize(self) -> Finalized {
            drop(self.universe);
            Finalized { name: self.name }
        }

        /// Finalizes MPI and reports that this rank reached the end.
        pub fn finish(self) {
            self.finalize().finish();
        }
    }

    /// A worker after `MPI_Finalize`.
    pub struct Finalized {
        name: &'static str,
    }

    impl Finalized {
        /// Reports that this rank reached the end.
        pub fn finish(self) {
            // There is only one write, so that the lines of several ranks do not mix.
            let line = format!("{}\n", super::finished_mark(self.name));
            std::io::stdout().write_all(line.as_bytes()).expect("standard output is there");
        }
    }
}
