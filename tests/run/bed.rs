//! A folder with a run directory, with scripts that play the launcher, and with supervisors on these scripts.
#![allow(dead_code)] // Without MPI, some of this is unused.

use super::common::limit::{LIMIT, lines_written_to, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The commands for all scripts. Each start is a line in `starts`, and so counts as an attempt.
const PRELUDE: &str = r#"#!/bin/sh
cd "$(dirname "$0")" || exit 99
echo "$*" >> starts
attempt=$(wc -l < starts)
echo $$ > job.pid
# status VERSION CALLS CLOSED [EXIT]: what a session would tell. Version 0: nothing is committed. $newest: what it says of who can restore that.
status() {
    series= levels=
    if [ "$1" != 0 ]; then
        series='{"name":"heat","level":"process","version":'$1',"unix":5}'
        levels='{"level":"process","committed":'$1',"version":'$1',"name":"heat","first":4,"newest":5}'
    fi
    [ -n "${4:-}" ] && exit=',"exit":"'$4'"' || exit=
    echo '{"schema":1,"kind":"bivouac-status","group":"world","generation":'$attempt',"incarnation":"i'$attempt'","ranks":2,
        "host":"h","pid":1,"opened":3,"unix":5,"calls":'$2',"checkpoints":'$1',"checkpoints_total":'$1',
        "levels":['$levels'],"series":['$series'],"newest":['${newest:-}'],"closed":'$3$exit'}' > status.tmp
    mv status.tmp "$BIVOUAC_RUN_DIRECTORY/status-world.json"
}
"#;

/// The folder of a test.
pub struct Bed {
    folder: tempfile::TempDir,
}

/// A supervisor at work. Dropping it ends the supervisor and the job that it has left.
pub struct Supervisor {
    child: Child,
    stderr: PathBuf,
    stdout: PathBuf,
    job_pid: PathBuf,
    began: Instant,
}

/// How a supervisor ended.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Bed {
    pub fn new() -> Bed {
        let folder = tempfile::Builder::new().prefix("bivouac-test-run-").tempdir().expect("a temporary directory");
        fs::create_dir(folder.path().join("memory")).expect("a directory");
        Bed { folder }
    }

    /// A bed with a script `job` that has this body.
    pub fn with(body: &str) -> Bed {
        let bed = Bed::new();
        bed.script("job", &format!("{PRELUDE}{body}"));
        bed
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn run_directory(&self) -> PathBuf {
        self.path().join("run")
    }

    pub fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        fs::write(&path, text).expect("a script");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it can be made executable");
        path
    }

    /// The search path with the scripts of the bed before everything else.
    pub fn search_path(&self) -> OsString {
        let before = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.path().to_owned()).chain(std::env::split_paths(&before));
        std::env::join_paths(folders).expect("a search path")
    }

    /// `bivouac` in the bed, without environment variables that would change its behaviour.
    pub fn bivouac(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bivouac"));
        let strange = |name: &str| {
            ["BIVOUAC_", "SLURM_", "HYDRA_", "FLUX_", "PBS_", "LSB_"].iter().any(|prefix| name.starts_with(prefix))
        };
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(strange) {
                command.env_remove(name);
            }
        }
        command.env_remove("OMPI_MCA_plm_rsh_agent").current_dir(self.path()).stdin(Stdio::null());
        command
    }

    /// `bivouac run` with these options; the caller adds the rest.
    pub fn run_command(&self, options: &[&str]) -> Command {
        let mut command = self.bivouac();
        command.args(["run", "--run-directory"]).arg(self.run_directory()).args(options);
        if !options.contains(&"--backoff") {
            command.args(["--backoff", "0.01s"]);
        }
        command
    }

    /// `bivouac run` with these options on the script, which gets two arguments.
    pub fn job(&self, options: &[&str]) -> Command {
        let mut command = self.run_command(options);
        command.arg("--").arg(self.path().join("job")).args(["one", "two"]);
        command
    }

    /// `bivouac run` on the script, which plays Open MPI's mpirun. A host is down if `down` has a file with its name.
    pub fn placed(&self, options: &[&str]) -> Command {
        self.placed_with(options, &["-n", "4", "program"])
    }

    /// As [`Bed::placed`], with these words after the launcher.
    pub fn placed_with(&self, options: &[&str], words: &[&str]) -> Command {
        fs::create_dir_all(self.path().join("down")).expect("a directory");
        let probe = format!("test ! -e {}/down/{{host}}", self.path().display());
        let mut command = self.run_command(&["--launcher", "openmpi", "--probe", &probe]);
        command.args(options).arg("--").arg(self.path().join("job")).args(words);
        command
    }

    /// Starts a supervisor. Its output goes to files: the job inherits it and may outlive the supervisor.
    pub fn start(&self, mut command: Command) -> Supervisor {
        let number = fs::read_dir(self.path()).expect("the bed").count();
        let out = |kind: &str| self.path().join(format!("{kind}-{number}"));
        let (stdout, stderr) = (out("stdout"), out("stderr"));
        let file = |path: &Path| File::create(path).expect("a file");
        command.stdout(file(&stdout)).stderr(file(&stderr)).process_group(0);
        let child = command.spawn().expect("bivouac starts");
        Supervisor { child, stderr, stdout, job_pid: self.run_directory().join("launcher.pid"), began: Instant::now() }
    }

    /// Runs a supervisor to its end.
    pub fn finish(&self, command: Command) -> Ended {
        self.start(command).wait()
    }

    /// The arguments of each start of the script.
    pub fn starts(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path().join("starts")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The lines of a JSON Lines file in the run directory.
    pub fn lines(&self, name: &str) -> Vec<Value> {
        let text = lines_written_to(&self.run_directory().join(name));
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }

    pub fn attempts(&self) -> Vec<Value> {
        self.lines("attempts.jsonl")
    }

    /// The decisions of all attempts.
    pub fn decisions(&self) -> Vec<String> {
        self.attempts().iter().map(|attempt| attempt["decision"].as_str().expect("a text").to_owned()).collect()
    }

    /// The events, in the order in which they were recorded.
    pub fn events(&self) -> Vec<String> {
        self.lines("timeline.jsonl").iter().map(|line| line["event"].as_str().expect("a text").to_owned()).collect()
    }

    pub fn halt(&self, options: &[&str]) -> Ended {
        let mut command = self.bivouac();
        command.arg("halt").arg(self.run_directory()).args(options);
        self.finish(command)
    }

    /// Waits until a file exists and has a line.
    pub fn wait_for_file(&self, path: impl AsRef<Path>) -> String {
        let path = self.path().join(path);
        let mut text = String::new();
        wait_until(&format!("{} is there", path.display()), || {
            text = fs::read_to_string(&path).unwrap_or_default();
            text.ends_with('\n')
        });
        text
    }

    /// The process id of the script that was started last.
    pub fn job_pid(&self) -> i32 {
        self.wait_for_file("job.pid").trim().parse().expect("a number")
    }
}

impl Supervisor {
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("the supervisor lives");
    }

    /// Kills the supervisor, and waits until it has ended.
    pub fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        assert_eq!(self.child.wait().expect("our own child").signal(), Some(9));
    }

    pub fn stdout(&self) -> String {
        fs::read_to_string(&self.stdout).expect("its output")
    }

    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.stderr).expect("its output")
    }

    /// Waits until the supervisor's standard output contains this text.
    pub fn wait_for_output(&mut self, text: &str) {
        loop {
            if self.stdout().contains(text) {
                return;
            }
            let ended = self.child.try_wait().expect("our own child");
            assert!(ended.is_none(), "it ended before it printed {text:?}\n{}\n{}", self.stdout(), self.stderr());
            assert!(self.began.elapsed() < LIMIT, "no {text:?}\n{}\n{}", self.stdout(), self.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn wait(mut self) -> Ended {
        while self.child.try_wait().expect("our own child").is_none() {
            assert!(self.began.elapsed() < LIMIT, "it did not end\n{}\n{}", self.stdout(), self.stderr());
            std::thread::sleep(Duration::from_millis(10));
        }
        let status = self.child.wait().expect("our own child");
        Ended { status, stdout: self.stdout(), stderr: self.stderr() }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        // A test that fails leaves no processes behind: TERM lets a launcher end its ranks.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let pid = fs::read_to_string(&self.job_pid).ok().and_then(|text| text.trim().parse::<i32>().ok());
        if let Some(pid) = pid.map(Pid::from_raw) {
            let _ = nix::sys::signal::killpg(pid, Signal::SIGTERM);
            std::thread::sleep(Duration::from_secs(2));
            let _ = nix::sys::signal::killpg(pid, Signal::SIGKILL);
        }
    }
}

impl Ended {
    #[track_caller]
    pub fn expect(self, status: i32) -> Ended {
        assert_eq!(self.status.code(), Some(status), "{}\n--- stderr\n{}", self.stdout, self.stderr);
        self
    }

    #[track_caller]
    pub fn says(self, words: &[&str]) -> Ended {
        for word in words {
            assert!(self.stderr.contains(word), "no {word:?} in\n{}", self.stderr);
        }
        self
    }
}

/// Is a process alive? A zombie is not.
pub fn is_alive(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    stat.rfind(')').is_some_and(|at| !stat[at + 1..].trim_start().starts_with('Z'))
}
