//! The environment of the damage tests: private directories, jobs of the worker program in them, and the lines that the ranks wrote.

use crate::case::{Case, files};
use crate::common::limit::lines_written_to;
use crate::common::{Job, mpirun_command};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

/// The number of ranks in every job here.
pub const RANKS: usize = 4;

/// The worker, which Cargo builds with the tests: `target/<profile>/examples/damage-worker`.
pub fn worker() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.ancestors().nth(2).unwrap().join("examples/damage-worker");
    assert!(path.exists(), "{} is missing: cargo build --example damage-worker", path.display());
    path
}

/// The seed of everything random; `BIVOUAC_TEST_SEED` sets another one.
pub fn seed() -> u64 {
    let seed = std::env::var("BIVOUAC_TEST_SEED").ok().map(|text| text.parse().expect("BIVOUAC_TEST_SEED: a number"));
    let seed = seed.unwrap_or(20_260_101);
    println!("seed: replay with BIVOUAC_TEST_SEED={seed}");
    seed
}

/// Directories for the tiers of one job, removed at the end. The memory tier's directory is in shared memory.
pub struct Bed {
    _folders: Vec<tempfile::TempDir>,
    pub memory: PathBuf,
    pub local: PathBuf,
    pub global: PathBuf,
    pub out: PathBuf,
    pub program: PathBuf,
    pub env: BTreeMap<String, String>,
    /// The words of the command before `mpirun`.
    pub wrapper: Vec<String>,
}

impl Bed {
    /// All directories are in shared memory, which is quick.
    pub fn in_memory() -> Bed {
        Bed::new(Path::new("/dev/shm"))
    }

    /// The local and the global tier are on the disk of the build directory.
    pub fn on_disk() -> Bed {
        Bed::new(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    pub fn new(base: &Path) -> Bed {
        let folder = |base: &Path| tempfile::Builder::new().prefix("bivouac-damage-").tempdir_in(base).unwrap();
        let folders = vec![folder(base), folder(Path::new("/dev/shm"))];
        let (store, memory) = (folders[0].path(), folders[1].path().join("memory"));
        let mut bed = Bed {
            local: store.join("local"),
            global: store.join("global"),
            out: store.join("out"),
            memory,
            program: worker(),
            env: BTreeMap::new(),
            wrapper: Vec::new(),
            _folders: folders,
        };
        for directory in [&bed.memory, &bed.local, &bed.global, &bed.out] {
            fs::create_dir_all(directory).unwrap();
        }
        // Open MPI's own segments, which killed ranks may leave behind, are removed with the bed.
        let messages = bed.memory.with_file_name("messages");
        fs::create_dir(&messages).unwrap();
        fs::set_permissions(&messages, fs::Permissions::from_mode(0o777)).unwrap();
        bed.set("OMPI_MCA_btl_vader_backing_directory", messages.to_str().unwrap());
        bed
    }

    pub fn set(&mut self, variable: &str, value: &str) -> &mut Bed {
        self.env.insert(variable.into(), value.into());
        self
    }

    pub fn folder(&self) -> &Path {
        self._folders[0].path()
    }

    /// Starts the worker. Returns `None`, with a loud note, without MPI.
    pub fn start(&self, args: &[&str]) -> Option<Running<'_>> {
        fs::remove_dir_all(&self.out).and_then(|()| fs::create_dir(&self.out)).unwrap();
        fs::set_permissions(&self.out, fs::Permissions::from_mode(0o777)).unwrap();
        let plain = mpirun_command(RANKS as u32)?;
        let mut words = self.wrapper.iter().map(Into::into).collect::<Vec<std::ffi::OsString>>();
        words.push(plain.get_program().to_owned());
        words.extend(plain.get_args().map(ToOwned::to_owned));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg(&self.program).arg(args[0]).arg("--out").arg(&self.out).args(&args[1..]);
        command.envs(plain.get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.env("BIVOUAC_MEMORY_DIRECTORY", &self.memory);
        command.env("BIVOUAC_LOCAL_DIRECTORY", &self.local).env("BIVOUAC_GLOBAL_DIRECTORY", &self.global);
        command.env("BIVOUAC_LOCAL_ALLOW_TMPFS", "true").env("BIVOUAC_MEMORY_BUDGET", "64 MiB");
        command
            .env("BIVOUAC_JOB_BLOCK", "16 KiB")
            .env("BIVOUAC_JOB_NAME", "damage")
            .envs(&self.env)
            .current_dir(self.folder());
        Some(Running { bed: self, job: Job::start(command) })
    }

    /// Runs the worker to its end, which must be successful.
    pub fn run(&self, args: &[&str]) -> Option<Told> {
        Some(self.start(args)?.finish())
    }

    pub fn log(&self, rank: usize) -> String {
        lines_written_to(&self.out.join(format!("rank-{rank}.log")))
    }

    pub fn told(&self, output: Option<&Output>) -> Told {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let streams = output.map(|o| format!("{}\n{}", text(&o.stdout), text(&o.stderr))).unwrap_or_default();
        Told { ranks: (0..RANKS).map(|rank| self.log(rank)).collect(), streams }
    }
}

/// A job of the worker.
pub struct Running<'a> {
    bed: &'a Bed,
    job: Job,
}

impl Running<'_> {
    /// The process of `mpirun`, even with a wrapper, because wrappers exec.
    pub fn pid(&self) -> u32 {
        self.job.pid()
    }

    pub fn is_running(&mut self) -> bool {
        self.job.is_running()
    }

    /// Waits until rank `rank` has written a line that starts with `line`. Returns false if the job ends earlier.
    pub fn wait_for(&mut self, rank: usize, line: &str) -> bool {
        loop {
            let running = self.is_running();
            if self.bed.log(rank).lines().any(|l| l.starts_with(line)) {
                return true;
            }
            if !running {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits for a hold before `version`.
    pub fn wait_for_hold(&mut self, version: u64) {
        let line = format!("hold version={version}");
        for rank in 0..RANKS {
            assert!(self.wait_for(rank, &line), "the job ended before {line:?}\n{:?}", self.bed.told(None));
        }
    }

    /// Ends a hold.
    pub fn go(&mut self, version: u64) {
        File::create(self.bed.out.join(format!("go-{version}"))).unwrap();
    }

    /// The process of a rank, if the rank has written its number.
    pub fn rank_pid(&self, rank: usize) -> Option<Pid> {
        let log = self.bed.log(rank);
        Pid::from_raw(log.lines().find_map(|line| line.strip_prefix("pid="))?.parse().ok()?)
    }

    /// Sends SIGKILL to these ranks, as close together as possible.
    pub fn kill(&self, ranks: &[usize]) {
        let pids: Vec<Pid> = ranks.iter().filter_map(|rank| self.rank_pid(*rank)).collect();
        for pid in pids {
            // The process may have ended already.
            let _ = kill_process(pid, Signal::KILL);
        }
    }

    /// Waits for the job's end, whatever its status.
    pub fn end(self) -> Told {
        let output = self.job.wait();
        self.bed.told(Some(&output))
    }

    /// Waits for the job's end, which must be successful on all ranks.
    pub fn finish(self) -> Told {
        let output = self.job.wait();
        let told = self.bed.told(Some(&output));
        let good = told.ranks.iter().all(|log| log.lines().last().is_some_and(|line| line.ends_with("end")));
        assert!(output.status.success() && good, "{}\n{told:?}", output.status);
        told
    }
}

/// The output of a job.
pub struct Told {
    pub ranks: Vec<String>,
    pub streams: String,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (rank, log) in self.ranks.iter().enumerate() {
            writeln!(f, "--- rank {rank}\n{log}")?;
        }
        writeln!(f, "--- streams\n{}", self.streams)
    }
}

impl Told {
    /// The lines of a rank that start with `word`, without that word.
    pub fn lines<'a>(&'a self, rank: usize, word: &'a str) -> Vec<&'a str> {
        self.ranks[rank].lines().filter_map(|line| line.strip_prefix(word)).collect()
    }

    /// The only line of a rank that starts with `word`, without that word.
    pub fn line<'a>(&'a self, rank: usize, word: &'a str) -> &'a str {
        let lines = self.lines(rank, word);
        assert_eq!(lines.len(), 1, "rank {rank}: lines that start with {word:?}\n{self:?}");
        lines[0]
    }

    /// A counter of the JSON after `stats `: a path like `restored_bytes.local`.
    pub fn counter(&self, rank: usize, word: &str, path: &str) -> u64 {
        let stats: serde_json::Value = serde_json::from_str(self.line(rank, word)).unwrap();
        let pointer = format!("/{}", path.replace('.', "/"));
        stats.pointer(&pointer).and_then(serde_json::Value::as_u64).unwrap_or_else(|| panic!("no {path} in {stats}"))
    }
}

/// A store in which every tier holds version [`Store::NEWEST`], left behind by ranks that were all killed at once. The memory segment holds
/// the newest version, the local tier the newest two, and the global tier the newest three.
pub struct Store {
    pub bed: Bed,
}

impl Store {
    pub const NEWEST: u64 = 5;

    pub fn make(variables: &[(&str, &str)]) -> Option<Store> {
        let mut bed = Bed::in_memory();
        for (variable, value) in variables {
            bed.set(variable, value);
        }
        let held = (Store::NEWEST + 1).to_string();
        let mut job = bed.start(&["run", "--versions", &held, "--hold", &held, "--wait", "system"])?;
        job.wait_for_hold(Store::NEWEST + 1);
        // Nobody waits for retention or for the record of the local level.
        let manifests = || [files(&bed.local, "manifest"), files(&bed.global, "manifest")];
        // With references, more manifests stay, and nothing says how many: this waits until none has gone for a while.
        let is_reduced = std::env::var("BIVOUAC_REDUCTION_METHOD").is_ok_and(|method| method != "full");
        let (mut last, mut since) = (manifests(), Instant::now());
        let begun = Instant::now();
        while !(is_reduced && since.elapsed() > Duration::from_millis(500)) {
            assert!(job.is_running(), "the job ended early");
            let now = manifests();
            // This has been seen once (ci/README.md). The manifests that are there then say more than that the wait took too long.
            assert!(begun.elapsed() < Duration::from_secs(100), "manifests stay {now:?}; rank 0: {}", job.bed.log(0));
            if !is_reduced && now[0].len() == 2 && now[1].len() == 3 {
                break;
            }
            if now != last || now[0].len() < 2 || now[1].len() < 3 {
                (last, since) = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        job.kill(&[0, 1, 2, 3]);
        job.end();
        Some(Store { bed })
    }

    /// Makes a copy, in a folder with this name.
    pub fn copy(&self, parent: &Path, name: &str) -> Case {
        Case::copy([&self.bed.memory, &self.bed.local, &self.bed.global], parent, name)
    }
}
