//! Several hosts on this machine, and MPI jobs on them.
//!
//! `hosts.sh` in this folder makes the hosts: each has its own network, names, processes, shared memory and disk, and they share the rest
//! of the file system. [`Hosts`] is a set of hosts that ends with the test. The set even ends if the test crashes, because its keeper
//! watches the test's process, and if the test takes too long, because a thread counts the seconds.
//! [`Job`] is one simulation: its store, its settings, and the lines that its ranks wrote in all attempts to run it. [`Run`] is one process
//! started on `head`, usually `mpirun`.
#![allow(dead_code)] // Each test program uses a part of this.

use crate::common;
use crate::common::limit::{lines_written_to, wait_until};
use bivouac_core::base::rng::Rng;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// The number of ranks on each host.
pub const RANKS_PER_HOST: usize = 2;
/// The number of ranks of a job.
pub const RANKS: usize = 8;
/// The hosts on which a job starts.
pub const FIRST_HOSTS: [&str; 4] = ["node1", "node2", "node3", "node4"];

/// The folder of the scripts.
pub fn scripts() -> PathBuf {
    Path::new(env!("WORKSPACE_ROOT")).join("tests/hosts")
}

/// A program that Cargo builds with the tests: `target/<profile>/examples/NAME`.
pub fn example(name: &str) -> String {
    let own = std::env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(path.exists(), "{} is missing: cargo build --examples", path.display());
    path.to_str().unwrap().to_owned()
}

/// Random numbers from a seed that is printed; `BIVOUAC_TEST_SEED` sets another one.
pub fn random() -> Rng {
    let seed = std::env::var("BIVOUAC_TEST_SEED").ok().map(|text| text.parse().expect("BIVOUAC_TEST_SEED: a number"));
    let seed = seed.unwrap_or(20_260_101);
    println!("seed: replay with BIVOUAC_TEST_SEED={seed}");
    Rng::new(seed)
}

/// A number of seconds; most limits are given in this unit.
pub const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// All files below a folder.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![folder.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { left.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

fn finish(mut command: Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// How long a set of hosts may live. This bounds every wait for events on them. It is less than .config/nextest.toml allows a test, so that
/// the hosts end normally, and far more than a loaded machine needs. A test that runs alone takes 10 to 40 seconds.
const LIFETIME: Duration = seconds(900);

/// The hosts `head` and `node1` to `nodeN`.
pub struct Hosts {
    state: PathBuf,
    expired: Arc<AtomicBool>,
    // When this is dropped, it ends the thread that counts the seconds.
    _calm: Sender<()>,
    // Ranks that wait keep a core busy, so only two sets of hosts work at the same time.
    _lock: Option<File>,
}

impl Hosts {
    /// Starts the hosts. After [`LIFETIME`] they are killed, whatever they are doing, and the test fails. Returns `None`, with a loud note,
    /// if this machine does not allow such hosts.
    pub fn up(nodes: u32) -> Option<Hosts> {
        if !can("hosts.sh") {
            return None;
        }
        Some(Hosts::start(nodes, Some(common::one_at_a_time())))
    }

    /// Starts a second set, in addition to a test's first one.
    pub fn up_beside(_first: &Hosts, nodes: u32) -> Hosts {
        Hosts::start(nodes, None)
    }

    fn start(nodes: u32, lock: Option<File>) -> Hosts {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let own = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let state = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hosts").join(own);
        let (calm, alarm) = channel();
        let expired = Arc::new(AtomicBool::new(false));
        let hosts = Hosts { state, expired: expired.clone(), _calm: calm, _lock: lock };
        hosts.script("hosts.sh", &["up", &nodes.to_string(), "--owner", &std::process::id().to_string()]);
        let mut down = hosts.command("hosts.sh", &["down"]);
        std::thread::spawn(move || {
            if alarm.recv_timeout(LIFETIME) == Err(RecvTimeoutError::Timeout) {
                expired.store(true, Ordering::Relaxed);
                // The test sees the end of these hosts' processes.
                let _ = down.stdin(Stdio::null()).output();
            }
        });
        fs::create_dir(hosts.work()).unwrap();
        hosts
    }

    /// The folder with the state of the hosts, as `BIVOUAC_TEST_HOSTS` names it.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// A folder on the file system that all hosts share.
    pub fn work(&self) -> PathBuf {
        self.state.join("work")
    }

    /// Each host's own disk, as that host sees it.
    pub fn local(&self) -> PathBuf {
        self.state.join("local")
    }

    /// The disk of a host, seen from outside.
    pub fn disk(&self, host: &str) -> PathBuf {
        self.state.join("disks").join(host)
    }

    /// The shared memory of a host, seen from outside.
    pub fn memory(&self, host: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/dev/shm", self.first_process(host)))
    }

    fn first_process(&self, host: &str) -> i32 {
        let path = self.state.join("hosts").join(host).join("process");
        let line =
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{host} is not up: {}: {error}", path.display()));
        line.split_whitespace().next().unwrap().parse().unwrap()
    }

    /// A command that runs one of the scripts.
    pub fn command(&self, script: &str, args: &[&str]) -> Command {
        let mut command = Command::new(scripts().join(script));
        command.args(args).env("BIVOUAC_TEST_HOSTS", &self.state);
        // Settings of the person who runs the tests would change the result.
        for (variable, _) in std::env::vars_os() {
            let name = variable.to_string_lossy();
            if name.starts_with("BIVOUAC_") && !name.starts_with("BIVOUAC_TEST_") {
                command.env_remove(&variable);
            }
        }
        command
    }

    /// Runs one of the scripts, which must succeed, and returns its output.
    pub fn script(&self, script: &str, args: &[&str]) -> String {
        self.try_script(script, args).unwrap_or_else(|why| panic!("{why}"))
    }

    /// Runs one of the scripts, and returns its output or how it failed.
    pub fn try_script(&self, script: &str, args: &[&str]) -> Result<String, String> {
        let output = finish(self.command(script, args));
        if !output.status.success() {
            return Err(format!("{script} {args:?}: {}\n{}", output.status, text(&output)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    /// Runs a command on a host, which must succeed, and returns its output.
    pub fn on(&self, host: &str, command: &[&str]) -> String {
        self.script("hosts.sh", &[&["exec", host], command].concat())
    }

    /// Ends all processes of a host. Its memory and disk are lost, and its peers see closed connections.
    pub fn kill(&self, host: &str) {
        self.script("hosts.sh", &["kill", host]);
    }

    /// Does the same as `kill`, within microseconds.
    pub fn strike(&self, host: &str) {
        let process = Pid::from_raw(self.first_process(host)).unwrap();
        kill_process(process, Signal::KILL).unwrap();
        let path = self.state.join("hosts").join(host).join("process");
        wait_until(&format!("{host} has ended"), || test_kill_process(process).is_err());
        fs::remove_file(path).unwrap();
    }

    /// Does the same as `kill`, but the peers hear nothing.
    pub fn power_off(&self, host: &str) {
        self.script("hosts.sh", &["poweroff", host]);
    }

    /// Takes down the network link of a host, which stays alive.
    pub fn cut(&self, host: &str) {
        self.script("hosts.sh", &["cut", host]);
    }

    /// Brings the network link of a host up again.
    pub fn heal(&self, host: &str) {
        self.script("hosts.sh", &["heal", host]);
    }

    /// Stops all processes of a host where they are.
    pub fn freeze(&self, host: &str) {
        self.script("hosts.sh", &["freeze", host]);
    }

    /// Lets the stopped processes of a host continue.
    pub fn thaw(&self, host: &str) {
        self.script("hosts.sh", &["thaw", host]);
    }

    /// Starts a lost host again, with an empty disk.
    pub fn boot(&self, host: &str) {
        self.script("hosts.sh", &["boot", host]);
    }

    /// Starts a lost host again, with the disk that it had.
    pub fn boot_with_old_disk(&self, host: &str) {
        self.script("hosts.sh", &["boot", host, "--old-disk"]);
    }

    /// Fails if the hosts were killed because they took too long.
    pub fn check_time(&self) {
        assert!(!self.expired.load(Ordering::Relaxed), "the test took too long: its hosts were killed");
    }

    fn show_logs(&self) {
        let slurm = self.state.join("slurm");
        // SLURM's daemons also log everything that they print.
        let is_shown = |path: &PathBuf| match path.extension().and_then(|end| end.to_str()) {
            Some("log") => true,
            Some("out") => !path.starts_with(&slurm),
            _ => false,
        };
        let all = files(&self.work()).into_iter().chain(files(&slurm));
        for path in all.filter(is_shown) {
            let text = read(&path);
            let lines: Vec<&str> = text.lines().collect();
            eprintln!("--- {}", path.display());
            let last = &lines[lines.len().saturating_sub(40)..];
            last.iter().for_each(|line| eprintln!("{}", line.chars().take(300).collect::<String>()));
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.show_logs();
        }
        let output = finish(self.command("hosts.sh", &["down"]));
        if !output.status.success() {
            eprintln!("hosts.sh down: {}\n{}", output.status, text(&output));
        }
    }
}

/// Does the machine allow what a script does? Prints a loud note if it does not.
pub fn can(script: &str) -> bool {
    let mut command = Command::new(scripts().join(script));
    command.arg("can");
    let output = finish(command);
    if !output.status.success() {
        let program = env!("CARGO_CRATE_NAME");
        eprintln!(
            "\n*** SKIPPED: no test hosts here, so nothing was tested on several hosts.\n{}\
             Run as root on such a machine: ci/setup.sh --with-tests && cargo build --examples --bins && \
             cargo test --test {program} ***\n",
            text(&output)
        );
    }
    output.status.success()
}

/// One simulation: the place of its checkpoints, its settings, and the lines that its ranks have written.
pub struct Job<'a> {
    pub hosts: &'a Hosts,
    /// The folder of the job, on the shared file system.
    pub folder: PathBuf,
    env: BTreeMap<String, String>,
    launcher_env: BTreeMap<String, String>,
}

impl<'a> Job<'a> {
    pub fn new(hosts: &'a Hosts, name: &str) -> Job<'a> {
        let folder = hosts.work().join(name);
        fs::create_dir_all(folder.join("ranks")).unwrap();
        let mut job = Job { hosts, folder, env: BTreeMap::new(), launcher_env: BTreeMap::new() };
        let global = job.global();
        job.set("BIVOUAC_JOB_NAME", name)
            .set("BIVOUAC_JOB_BLOCK", "16 KiB")
            .set("BIVOUAC_MEMORY_DIRECTORY", "/dev/shm")
            .set("BIVOUAC_MEMORY_BUDGET", "64 MiB")
            .set("BIVOUAC_LOCAL_DIRECTORY", hosts.local().join("bivouac").to_str().unwrap())
            .set("BIVOUAC_GLOBAL_DIRECTORY", global.to_str().unwrap())
            .set("RUST_LOG", "warn");
        job
    }

    pub fn set(&mut self, variable: &str, value: &str) -> &mut Self {
        self.env.insert(variable.to_owned(), value.to_owned());
        self
    }

    /// Removes a setting from the environment, so that the program's own files decide.
    pub fn unset(&mut self, variable: &str) -> &mut Self {
        self.env.remove(variable);
        self
    }

    /// Sets a variable only in the launcher's environment. The test does not pass it on to the ranks.
    pub fn set_launcher(&mut self, variable: &str, value: &str) -> &mut Self {
        self.launcher_env.insert(variable.to_owned(), value.to_owned());
        self
    }

    pub fn global(&self) -> PathBuf {
        self.folder.join("global")
    }

    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).to_str().unwrap().to_owned()
    }

    /// `mpirun` with two ranks on each of these hosts, followed by a program and its arguments.
    pub fn mpirun(&self, on: &[&str], program: &[&str]) -> Vec<String> {
        let places: Vec<String> = on.iter().map(|host| format!("{host}:{RANKS_PER_HOST}")).collect();
        self.mpirun_without_hosts(&[&["--host", &places.join(",")], program].concat())
    }

    /// The same command without the hosts, which the caller adds.
    pub fn mpirun_without_hosts(&self, rest: &[&str]) -> Vec<String> {
        let mut words = vec!["mpirun".to_owned()];
        for variable in self.env.keys() {
            words.extend(["-x".to_owned(), variable.clone()]);
        }
        words.extend(rest.iter().map(|word| word.to_string()));
        words
    }

    /// The worker, which checks every byte that it restores, with its arguments.
    pub fn worker(&self, args: &[&str]) -> Vec<String> {
        let first = [example("damage-worker"), "run".into(), "--out".into(), self.path("ranks")];
        first.into_iter().chain(args.iter().map(|word| word.to_string())).collect()
    }

    /// A command for `head`, with the job's settings in its environment.
    pub fn command(&self, words: &[impl AsRef<str>]) -> Command {
        let mut command = self.command_with("hosts.sh", &["exec", "head"]);
        command.args(words.iter().map(AsRef::as_ref));
        command
    }

    /// A command that runs one of the scripts, with the job's settings in its environment.
    pub fn command_with(&self, script: &str, args: &[&str]) -> Command {
        let mut command = self.hosts.command(script, args);
        command.envs(&self.env).envs(&self.launcher_env).current_dir(&self.folder);
        command
    }

    /// Starts a command on `head`, whose logs have the name `name`.
    pub fn start(&self, name: &str, words: &[impl AsRef<str>]) -> Run<'a> {
        Run::start(self.hosts, self.command(words), &self.folder.join(name))
    }

    /// Starts the worker under plain `mpirun`.
    pub fn start_worker(&self, name: &str, on: &[&str], args: &[&str]) -> Run<'a> {
        let worker = self.worker(args);
        let worker: Vec<&str> = worker.iter().map(String::as_str).collect();
        self.start(name, &self.mpirun(on, &worker))
    }

    /// Starts the worker under the supervisor, on the first of `nodes` hosts, except for the `spares`. `options` are
    /// more options of the supervisor.
    pub fn supervise_worker(&self, name: &str, nodes: u32, options: &[&str], args: &[&str]) -> Run<'a> {
        let worker = self.worker(args);
        self.supervise(name, nodes, options, &worker.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// Starts any MPI program under the supervisor.
    pub fn supervise(&self, name: &str, nodes: u32, options: &[&str], program: &[&str]) -> Run<'a> {
        let hosts: Vec<String> = (1..=nodes).map(|node| format!("node{node}:{RANKS_PER_HOST}")).collect();
        let mut words: Vec<String> = [env!("CARGO_BIN_EXE_bivouac"), "run", "--hosts"].map(str::to_owned).to_vec();
        words.push(hosts.join(","));
        words.extend(options.iter().map(|word| word.to_string()));
        words.push("--".into());
        let ranks = RANKS.to_string();
        words.extend(self.mpirun_without_hosts(&[&["-n", &ranks], program].concat()));
        self.start(name, &words)
    }

    /// The records in `attempts.jsonl` in the run directory.
    pub fn records(&self) -> Vec<serde_json::Value> {
        let text = lines_written_to(&self.folder.join("bivouac-run/attempts.jsonl"));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    fn supervisor_record(&self) -> serde_json::Value {
        let text = fs::read(self.folder.join("bivouac-run/supervisor.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    /// The supervisor's process number, as `head` sees it.
    pub fn supervisor_pid(&self) -> u64 {
        self.supervisor_record()["supervisor"]["pid"].as_u64().unwrap()
    }

    /// The hosts on which the supervised job computes, in the order of their ranks.
    pub fn seats(&self) -> Vec<String> {
        let record = self.supervisor_record();
        let seats = record["seats"].as_array().unwrap().iter();
        seats.map(|seat| seat.as_str().unwrap().split(':').next().unwrap().to_owned()).collect()
    }

    /// All lines that a rank has written.
    pub fn log(&self, rank: usize) -> String {
        lines_written_to(&self.folder.join(format!("ranks/rank-{rank}.log")))
    }

    /// The lines that a rank has written in each attempt.
    pub fn attempts(&self, rank: usize) -> Vec<Attempt> {
        let mut attempts = Vec::new();
        for line in self.log(rank).lines() {
            if line.starts_with("pid=") {
                attempts.push(Attempt { rank, lines: Vec::new() });
            }
            attempts.last_mut().expect("the first line is pid=").lines.push(line.to_owned());
        }
        attempts
    }

    /// The attempts that opened a session, by generation: for each, the lines of every rank that opened it.
    pub fn generations(&self) -> BTreeMap<u64, Vec<Attempt>> {
        let mut generations: BTreeMap<u64, Vec<Attempt>> = BTreeMap::new();
        for attempt in (0..RANKS).flat_map(|rank| self.attempts(rank)) {
            if let Some(generation) = attempt.generation() {
                generations.entry(generation).or_default().push(attempt);
            }
        }
        generations
    }

    /// The last attempt of every rank. It must be the same one on all ranks, and must have reached its end.
    pub fn last_attempts(&self) -> Vec<Attempt> {
        let (generation, last) = self.generations().pop_last().expect("no session was ever opened");
        assert_eq!(last.len(), RANKS, "generation {generation}: not all ranks were there");
        for attempt in &last {
            assert!(attempt.is_whole(), "rank {} did not come to its end\n{:#?}", attempt.rank, attempt.lines);
        }
        last
    }

    /// The digest of the final data.
    pub fn digest(&self) -> String {
        self.last_attempts()[0].one("digest ").to_owned()
    }

    /// Ends a hold of the worker.
    pub fn go(&self, version: u64) {
        File::create(self.folder.join(format!("ranks/go-{version}"))).unwrap();
    }
}

/// The lines that one rank wrote in one attempt.
#[derive(Debug)]
pub struct Attempt {
    pub rank: usize,
    pub lines: Vec<String>,
}

/// A line `restored version=… generation=… tier=…`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Restored {
    pub version: u64,
    pub generation: u64,
    pub tier: String,
}

impl Attempt {
    /// The rest of each line that starts with this word.
    pub fn all<'b>(&'b self, word: &'b str) -> impl Iterator<Item = &'b str> {
        self.lines.iter().filter_map(move |line| line.strip_prefix(word))
    }

    /// The rest of the only line that starts with this word.
    pub fn one(&self, word: &str) -> &str {
        let found: Vec<&str> = self.lines.iter().filter_map(|line| line.strip_prefix(word)).collect();
        assert_eq!(found.len(), 1, "rank {}: lines that start with {word:?}\n{:#?}", self.rank, self.lines);
        found[0]
    }

    /// The checkpoint that the rank restored. It must be one checkpoint, and every byte of it must have been right.
    pub fn restored(&self) -> Restored {
        let line = self.one("restored ");
        let value = |key: &str| {
            let word = line.split_whitespace().find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            word.unwrap_or_else(|| panic!("rank {}: no {key} in {line:?}", self.rank)).to_owned()
        };
        let number = |key: &str| value(key).parse().unwrap();
        let restored = Restored { version: number("version"), generation: number("generation"), tier: value("tier") };
        assert_eq!(self.one("verified version="), restored.version.to_string(), "rank {}", self.rank);
        restored
    }

    /// A counter of the restart, such as `restored_bytes.global`.
    pub fn restart_counter(&self, path: &str) -> u64 {
        let counters: serde_json::Value = serde_json::from_str(self.one("restart-stats ")).unwrap();
        let found = counters.pointer(&format!("/{}", path.replace('.', "/")));
        found.and_then(serde_json::Value::as_u64).unwrap_or_else(|| panic!("no {path} in {counters}"))
    }

    /// The generation of the session, if it was opened.
    pub fn generation(&self) -> Option<u64> {
        self.all("opened generation=").next()?.parse().ok()
    }

    /// Did the attempt reach its end?
    pub fn is_whole(&self) -> bool {
        self.lines.last().is_some_and(|line| line == "end")
    }

    /// The newest version that the rank heard was committed at this level.
    pub fn newest_committed(&self, level: &str) -> u64 {
        self.newest("committed version=", level)
    }

    /// The newest version that the rank heard was committed at this level between two of its calls.
    pub fn newest_silently_committed(&self, level: &str) -> u64 {
        self.newest("silently version=", level)
    }

    fn newest(&self, label: &str, level: &str) -> u64 {
        let versions = self.all(label).filter_map(|line| line.split_once(" level="));
        let versions = versions.filter(|(_, of)| of.split(' ').next() == Some(level));
        versions.filter_map(|(version, _)| version.parse().ok()).max().unwrap_or(0)
    }
}

/// A command that runs on `head`, alongside the test.
pub struct Run<'a> {
    hosts: &'a Hosts,
    child: Child,
    out: PathBuf,
    log: PathBuf,
}

/// How a [`Run`] ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub log: String,
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned()
}

impl<'a> Run<'a> {
    /// Standard output and standard error go to `PATH.out` and `PATH.log`, because `mpirun` passes on pieces of lines.
    fn start(hosts: &'a Hosts, mut command: Command, path: &Path) -> Run<'a> {
        let (out, log) = (path.with_extension("out"), path.with_extension("log"));
        let streams = [&out, &log].map(|path| File::create(path).unwrap());
        let [stdout, stderr] = streams;
        command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).process_group(0);
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Run { hosts, child, out, log }
    }

    /// The process that was started here: the command itself has another number, on `head`.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The text that the command has printed so far to standard output.
    pub fn out(&self) -> String {
        read(&self.out)
    }

    /// The text that the command has printed so far to standard error.
    pub fn log(&self) -> String {
        read(&self.log)
    }

    pub fn is_running(&mut self) -> bool {
        self.hosts.check_time();
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits until a condition holds, and fails if the command ends earlier.
    pub fn wait_until(&mut self, what: &str, mut holds: impl FnMut() -> bool) {
        while !holds() {
            assert!(self.is_running(), "it ended before: {what}\n{}\n{}", self.out(), self.log());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the command has printed a line with this start to standard output.
    pub fn wait_for_line(&mut self, start: &str) {
        let path = self.out.clone();
        self.wait_until(start, || read(&path).lines().any(|line| line.starts_with(start)));
    }

    /// Waits until the command has printed this text to standard error.
    pub fn wait_for_log(&mut self, text: &str) {
        let path = self.log.clone();
        self.wait_until(text, || read(&path).contains(text));
    }

    /// Waits until all ranks of the worker hold before a version, in their last attempt.
    pub fn wait_for_hold(&mut self, job: &Job, version: u64) {
        let line = format!("hold version={version}");
        let holds = |rank| job.attempts(rank).last().is_some_and(|attempt| attempt.lines.contains(&line));
        self.wait_until(&line, || (0..RANKS).all(holds));
    }

    /// Waits for the command's end, whatever its status.
    pub fn end(mut self) -> Ended {
        while self.is_running() {
            std::thread::sleep(Duration::from_millis(5));
        }
        self.hosts.check_time();
        Ended { status: self.child.wait().unwrap(), out: self.out(), log: self.log() }
    }

    /// Waits for the command's end, which must be successful, and returns its standard output.
    pub fn finish(self) -> String {
        let ended = self.end();
        assert!(ended.status.success(), "{}\n{}\n{}", ended.status, ended.out, ended.log);
        ended.out
    }

    /// Waits for the command's end, which must be a failure.
    pub fn fail(self) -> Ended {
        let ended = self.end();
        assert!(!ended.status.success(), "it succeeded\n{}\n{}", ended.out, ended.log);
        ended
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        // The processes that the command started on the hosts end with the hosts.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
