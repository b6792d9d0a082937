//! SLURM on the test hosts: `slurm.sh` in this folder starts it.
#![allow(dead_code)] // As in `bed.rs`.

use crate::bed::{Hosts, Job, can, seconds};
use crate::common::limit::lines_written_to;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// An instance of SLURM that controls the nodes of a set of hosts.
pub struct Slurm {
    pub hosts: Hosts,
}

/// A job that was submitted.
pub struct Batch<'a> {
    slurm: &'a Slurm,
    pub id: String,
    /// The file with its output.
    pub out: PathBuf,
}

impl Slurm {
    /// Starts hosts with SLURM on them. Returns `None`, with a loud note, if this machine lacks what that needs.
    pub fn up(nodes: u32) -> Option<Slurm> {
        if !can("slurm.sh") {
            return None;
        }
        let hosts = Hosts::up(nodes)?;
        hosts.script("slurm.sh", &["up"]);
        Some(Slurm { hosts })
    }

    /// Runs one of SLURM's commands on `head`, which must succeed, and returns its output.
    pub fn run(&self, command: &[&str]) -> String {
        self.hosts.script("slurm.sh", &[&["run"], command].concat())
    }

    /// Repeats a question to SLURM until it answers. On a busy machine its daemons give up slow connections, and its commands end with an
    /// error or with a broken pipe.
    fn ask(&self, command: &[&str]) -> String {
        loop {
            match self.hosts.try_script("slurm.sh", &[&["run"], command].concat()) {
                Ok(answer) => return answer,
                Err(why) => eprintln!("{why}"),
            }
            self.hosts.check_time();
            std::thread::sleep(seconds(1) / 10);
        }
    }

    /// Submits a script with the settings of a job in its environment. `options` come before the script, arguments after it.
    pub fn submit(&self, job: &Job, options: &[&str], script: &[&str]) -> Batch<'_> {
        let name = if options.iter().any(|option| option.starts_with("--array=")) {
            "slurm-%A_%a.out"
        } else {
            "slurm-%j.out"
        };
        let out = job.folder.join(name);
        let mut command = job.command_with("slurm.sh", &["run", "sbatch", "--parsable", "--open-mode=append"]);
        // The path is as it is after `cargo install`.
        let own = Path::new(env!("CARGO_BIN_EXE_bivouac")).parent().unwrap().to_owned();
        let before = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(std::iter::once(own).chain(std::env::split_paths(&before))).unwrap();
        command.env("PATH", path);
        command.arg(format!("--output={}", out.display())).args(options).args(script).stdin(Stdio::null());
        let output = command.output().unwrap();
        let id = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        assert!(output.status.success(), "sbatch: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
        let out = job.folder.join(format!("slurm-{id}.out"));
        Batch { slurm: self, id, out }
    }
}

impl Batch<'_> {
    /// A task of an array.
    pub fn task(&self, number: &str) -> Batch<'_> {
        let id = format!("{}_{number}", self.id);
        Batch { slurm: self.slurm, out: self.out.with_file_name(format!("slurm-{id}.out")), id }
    }

    /// The job's output so far.
    pub fn log(&self) -> String {
        lines_written_to(&self.out)
    }

    /// A field of `scontrol show job`.
    pub fn field(&self, name: &str) -> String {
        let text = self.slurm.ask(&["scontrol", "show", "job", &self.id]);
        let start = format!("{name}=");
        let value = text.split_whitespace().find_map(|word| word.strip_prefix(start.as_str()));
        value.unwrap_or_else(|| panic!("job {} has no {name}\n{text}", self.id)).to_owned()
    }

    /// The job's state, such as `PENDING`, `RUNNING`, `COMPLETED` or `FAILED`.
    pub fn state(&self) -> String {
        self.field("JobState")
    }

    /// Waits until a condition holds. The time limit of the hosts bounds the wait.
    pub fn wait_until(&self, what: &str, mut holds: impl FnMut() -> bool) {
        while !holds() {
            self.slurm.hosts.check_time();
            let state = self.state();
            let ended = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL"].contains(&state.as_str());
            assert!(!ended || holds(), "job {} is {state}, before: {what}\n{}", self.id, self.log());
            std::thread::sleep(seconds(1) / 20);
        }
    }

    /// Waits until the job has printed a line that contains this text.
    pub fn wait_for(&self, text: &str) {
        self.wait_until(text, || self.log().contains(text));
    }

    /// Waits until the job has ended for good, and returns its state.
    pub fn end(&self) -> String {
        loop {
            self.slurm.hosts.check_time();
            let state = self.state();
            if !["PENDING", "RUNNING", "COMPLETING", "REQUEUED", "CONFIGURING"].contains(&state.as_str()) {
                return state;
            }
            std::thread::sleep(seconds(1) / 10);
        }
    }

    /// Waits until the job is queued again and held back for two minutes, and then starts it. A job that SLURM itself has queued again
    /// because of a lost node may not be held back; then this waits for the job's end.
    pub fn hurry(&self) {
        let command = ["squeue", "--noheader", "--job", &self.id, "--format=%T %r"];
        loop {
            self.slurm.hosts.check_time();
            if self.slurm.ask(&command).trim() == "PENDING BeginTime" {
                self.slurm.hosts.script("slurm.sh", &["hurry", &self.id]);
                return;
            }
            let state = self.state();
            if state == "COMPLETED" && self.field("Restarts") != "0" {
                return;
            }
            let ended = ["COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"].contains(&state.as_str());
            assert!(!ended, "job {} is {state}, and was to be queued again\n{}", self.id, self.log());
            std::thread::sleep(seconds(1) / 20);
        }
    }

    /// Waits for the job's end, which must be successful, and returns its output.
    pub fn finish(&self) -> String {
        let state = self.end();
        assert_eq!(state, "COMPLETED", "job {}\n{}", self.id, self.log());
        self.log()
    }
}

/// Changes the template as a user would: the line of resources, and the line of the program.
pub fn copy_of_template(job: &Job, resources: &str, program: &[String]) -> String {
    let template = Path::new(env!("WORKSPACE_ROOT")).join("launch/slurm/job.sbatch");
    let text = fs::read_to_string(&template).unwrap();
    let words: Vec<String> = program.iter().map(|word| format!("'{word}'")).collect();
    let (resources, program) = (format!("#SBATCH {resources}"), format!("program=({})", words.join(" ")));
    let mut changed = 0;
    let mut lines = Vec::new();
    for line in text.lines() {
        lines.push(match line {
            line if line.starts_with("#SBATCH --job-name=") => &resources,
            line if line.starts_with("program=(") => &program,
            line => line,
        });
        changed += usize::from(*lines.last().unwrap() != line);
    }
    assert_eq!(changed, 2, "{} has other lines than these two to change", template.display());
    let path = job.path("job.sbatch");
    fs::write(&path, lines.join("\n") + "\n").unwrap();
    path
}
