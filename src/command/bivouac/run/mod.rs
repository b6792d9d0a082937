//! `bivouac run`: starts a job, watches it, and starts it again on the remaining nodes.
//!
//! [`launch`] knows the launchers' command lines, [`crate::hosts`] knows the host lists, [`ranks`] knows which numbers of ranks a job may
//! have, [`probe`] asks hosts whether they answer, [`watch`] reads what the sessions say in the run directory, [`record`] keeps the
//! records, [`crate::batch`] asks the batch system, and [`process`] waits for the job and ends it. [`decide`] is pure: it says what to do
//! after an attempt. This file carries it out.
//!
//! The job leads a process group of its own and writes to the same output: nothing that happens to the supervisor
//! affects the job. A supervisor that is started in the run directory of a dead one finds the job by the record there.
//!
//! # Who does what
//!
//! `bivouac run` and the sessions of its job share a *run directory* and nothing else; neither waits for the other.
//!
//! ```text
//!  supervisor (command/bivouac/run)                 session of a group (its root rank)
//!  launch ── sh: writes launcher.pid, then execs ─► mpirun … program
//!  poll the process every 20 ms
//!  read status-*.json every 0.5 s  ◄─ rename ─────  Task::Status, once a second and at events
//!  watch: events, progress, overdue?                calls of the application's thread are counted
//!  halt.json  ── rename ──────────────────────────► should_exit, on the root, every exit.check_every
//!  process gone: last look at the files
//!  probe all hosts in parallel
//!  decide::Job::after (pure) ─► stop, or start on the seats with spares in the places of lost hosts
//! ```
//!
//! - A status file is a hint for the supervisor, not a fact about checkpoints: the next run elects what can be restored. A status file
//!   belongs to an attempt by its incarnation. A root that finds a later run's status in its place stops writing.
//! - The root decides whether `should_exit` looks at halt conditions, and tells all ranks when the session opens, so that
//!   all of them make the same reductions.
//! - The launcher leads its own process group and writes to the inherited output; the supervisor's death changes
//!   nothing for the launcher. The launcher's process id, start time and boot id are in the record, by which the next
//!   supervisor finds it.
//! - An attempt that follows one which had opened a session may take over the earlier attempt's claim (`job.take_over`): what is left of
//!   the earlier attempt on a node that was cut off is fenced.
#![forbid(unsafe_code)]

mod decide;
mod launch;
mod probe;
mod process;
pub mod ranks;
pub mod record;
mod returns;
mod watch;

use crate::asking;
use crate::batch;
use crate::batch::{System, slurm};
use crate::ending::Ending;
use crate::halt;
use crate::hosts;
use crate::hosts::Host;
use crate::output::complain;
use bivouac_core::base::calendar::unix_now;
use bivouac_core::base::units::{parse_cpus, parse_duration};
use bivouac_core::format::supervision::{Condition, Halt, LevelStatus, When};
use bivouac_core::tier::run_directory::RunDirectory;
use decide::{Attempt, Decision, Limits, Outcome, Requeue, Resize, Stop};
use launch::{CommandLine, Family, Seats};
use nix::sys::signal::Signal;
use probe::{Answer, Method, Probe};
use process::Job;
use ranks::{Allowed, Binding};
use record::{AttemptLine, Journal, Process, Record};
use returns::Returns;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use watch::{Patience, Watch};

/// How often the job's process is checked, and how often the status files are.
const PAUSE: Duration = Duration::from_millis(20);
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// When hosts are asked once more, they have this many times the time-out.
const LAST_PATIENCE: u32 = 6;

/// Flux knows which of its hosts are up; a drained host receives no jobs.
const FLUX_PROBE: &str = "flux hostlist --quiet --fallback --intersect avail {host}";

/// A file with the host of each rank, one per line, for launchers that need one.
const SEATS_FILE: &str = "seats";

/// The arguments of `bivouac run`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac run -- mpirun -n 8 ./simulation in.toml
  bivouac run --hosts node1:2,node2:2,node3:2,node4:2,node5:2 --spares 1 -- mpirun -n 8 ./simulation
  bivouac run --spares 1 --hang-timeout 10min --requeue -- mpirun -n 8 ./simulation      in a SLURM or LSF script
  bivouac run --spares 1 --requeue='qsub next.pbs' -- mpirun -n 8 ./simulation           in a PBS script
  bivouac run --ranks 4..8/2 --hosts node[1-4]:2 -- mpirun ./simulation     continue with fewer nodes
  bivouac run --probe 'ping -c 1 -W 1 {host}' --hostfile nodes.txt -- mpirun -n 8 ./simulation
  bivouac halt bivouac-run --after 2                       from elsewhere: end after two more checkpoints

The launcher may be mpirun or mpiexec (of Open MPI or MPICH), srun, or flux run. Its host list is replaced for each
attempt. Any other program is started unchanged and never moved. Without --ranks, the number of ranks is the same in
all attempts.

With --ranks, the number of ranks is the largest allowed number for which the hosts have slots. It replaces the
launcher's -n, and {ranks} in all words of the command. If there is no spare for a lost host, the job continues with
fewer ranks, and with more again at a later launch if hosts answer again. `bivouac halt DIR --resize N` asks for N
ranks. All this works only if the newest checkpoints can be restored on any number of ranks. `bivouac status` says
whether they can, and docs/ELASTIC.md has more.

The hosts come from --hosts or --hostfile, or else from the launcher's own options, or else from the batch system
(SLURM, LSF, PBS or Flux). If none of these names hosts, the job runs where the launcher puts it. If slots are not
given, they are filled in so that the hosts other than the spares can together hold all ranks.

After an attempt, the first of these rules that applies decides what happens:
  the user interrupted the job                                 stop, 130
  the program ended successfully                               stop, 0
  the program was asked to end, or a halt condition is met     stop, 10
  --fruitless attempts in a row committed no newer checkpoint
  although all nodes answer                                    stop, 12 (14 if the watchdog ended the last attempt)
  all restarts are used up                                     stop, 11 (14 if the watchdog ended the last attempt)
  the nodes that answer are too few for the job or, with
  --ranks, for the only number of ranks that can restore
  the newest checkpoint                                        stop, 13
  otherwise                                                    relaunch on the nodes that answer

Signals to bivouac run:
  INT (Ctrl-C)     end the job with TERM, and with KILL after --grace; a second INT kills at once
  TERM, USR1, HUP  ask for a last checkpoint (a halt condition); act like INT if the job has not ended after --reserve
  USR2             pass the signal on to the launcher

Exit status: 0 success; 2 wrong usage, or the job cannot be started; 10 halted (start again to continue); 11 restarts used up;
12 no progress; 13 too few nodes; 14 hang; 130 interrupted.

A duration is a number of seconds, or a time such as 90s, 10min or 2h. docs/RECOVERY.md has more.")]
pub struct Args {
    /// Relaunch the job at most N times
    #[arg(long, default_value_t = 3, value_name = "N")]
    restarts: u32,
    /// Stop after N consecutive attempts that committed no newer checkpoint although all nodes answer
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    fruitless: u32,
    /// Reserve the last N hosts until they are needed
    #[arg(long, default_value_t = 0, value_name = "N")]
    spares: usize,
    /// Stop when fewer nodes than this answer
    #[arg(long, default_value_t = 1, value_name = "N")]
    min_nodes: usize,
    /// The numbers of ranks that the job may have: 4..16, 4..16/2 (in steps of 2), or a list such as 4,6,9 [default:
    /// the launcher's number]
    #[arg(long, value_name = "SPEC", value_parser = Allowed::parse)]
    ranks: Option<Allowed>,
    /// The hosts and their slots, such as a:2,b:2 or node[1-4]:2
    #[arg(long, value_name = "LIST", conflicts_with = "hostfile")]
    hosts: Option<String>,
    /// A file that lists the hosts in the format of Open MPI or MPICH
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// Hosts to leave out; names that are not among the hosts are ignored
    #[arg(long, value_name = "LIST")]
    exclude: Option<String>,
    /// The launcher's family, if its name does not show it
    #[arg(long, value_name = "FAMILY")]
    launcher: Option<Family>,
    /// The wait before a relaunch if there was no progress; it doubles each time
    #[arg(long, default_value = "2s", value_name = "SECONDS", value_parser = duration)]
    backoff: Duration,
    /// A shell command that succeeds if {host} answers [default: a connection to slurmd, Flux's list, or the remote shell of the launcher or of the batch system]
    #[arg(long, value_name = "COMMAND")]
    probe: Option<String>,
    /// How long a host may take to answer
    #[arg(long, default_value = "5s", value_name = "SECONDS", value_parser = limit)]
    probe_timeout: Duration,
    /// End an attempt whose sessions make no call and commit nothing for this long [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = patience)]
    hang_timeout: Option<Duration>,
    /// End an attempt that has not opened a session within this time [default: never]
    #[arg(long, value_name = "SECONDS", value_parser = limit)]
    start_timeout: Option<Duration>,
    /// The time between TERM and KILL
    #[arg(long, default_value = "10s", value_name = "SECONDS", value_parser = duration)]
    grace: Duration,
    /// The time to allow for a last checkpoint and a clean end, before the end of the allocation and after TERM, USR1
    /// or HUP
    #[arg(long, default_value = "2min", value_name = "SECONDS", value_parser = duration)]
    reserve: Duration,
    /// The end of the allocation: seconds since 1970, a UTC time such as 2026-01-31T12:00:00Z, or +2h [default: from
    /// the batch system]
    #[arg(long, value_name = "TIME", value_parser = halt::time)]
    end_time: Option<u64>,
    /// If a signal or the end of the allocation halts the job, have SLURM or LSF requeue it, or run COMMAND to submit
    /// the next job
    #[arg(long, value_name = "COMMAND", num_args = 0..=1, require_equals = true)]
    requeue: Option<Option<String>>,
    /// The directory through which the sessions and the supervisor exchange their state; it must be on a file system
    /// that all nodes see
    #[arg(long, default_value = "bivouac-run", value_name = "DIR")]
    run_directory: PathBuf,
    /// The placement of threads and pages that a restart brings back (affinity.mode)
    #[arg(long, value_name = "MODE", value_parser = ["full", "threads", "pages", "capture", "off"])]
    affinity: Option<String>,
    /// The CPUs that the ranks of each node share after a restart, such as 0-3,8 (affinity.cpus)
    #[arg(long, value_name = "LIST", value_parser = cpus)]
    affinity_cpus: Option<String>,
    /// Print only problems and the outcome
    #[arg(short, long)]
    quiet: bool,
    /// The launcher with its options, followed by the program with its options
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// A list of CPUs, as the user wrote it.
fn cpus(text: &str) -> Result<String, String> {
    let is_list = parse_cpus(text).is_some_and(|cpus| !cpus.is_empty());
    if is_list { Ok(text.to_owned()) } else { Err("give CPU numbers, such as 0-3,8".into()) }
}

/// A duration after which something is given up.
fn limit(text: &str) -> Result<Duration, String> {
    duration(text).and_then(|limit| if limit.is_zero() { Err("it must be more than 0".into()) } else { Ok(limit) })
}

/// The watchdog's patience. A status is written about once a second; nothing is known until a few of them could have been written.
fn patience(text: &str) -> Result<Duration, String> {
    let least = Duration::from_secs(3);
    duration(text).and_then(|limit| if limit < least { Err("it must be 3 s or more".into()) } else { Ok(limit) })
}

/// Parses a duration on the command line.
pub fn duration(text: &str) -> Result<Duration, String> {
    let longest = Duration::from_secs(100 * 365 * 86_400);
    let parsed = parse_duration(text).filter(|duration| *duration <= longest);
    parsed.ok_or_else(|| "give a number of seconds, or a time such as 90s, 10min or 2h".to_owned())
}

/// The end of the allocation, as the supervisor of a run directory recorded it, or as the batch system reports it.
pub fn end_time(directory: &RunDirectory) -> Option<u64> {
    let recorded = record::read(directory).ok().flatten().and_then(|record| record.end_time);
    recorded.or_else(allocation_end)
}

/// The end of the allocation, as its batch system reports it.
fn allocation_end() -> Option<u64> {
    batch::here().and_then(System::end_time)
}

/// May the job of a run directory be asked to continue with this many ranks?
///
/// # Errors
/// The job cannot be asked; the error says why.
pub fn may_resize(directory: &RunDirectory, ranks: u32) -> Result<(), String> {
    let record =
        record::read(directory)?.ok_or("it has no record of a supervisor: start the job with bivouac run --ranks")?;
    let (statuses, problems) = directory.read_statuses();
    problems.iter().for_each(|problem| complain(problem));
    record.may_resize(ranks, Binding::in_statuses(statuses.iter()).as_ref())
}

/// Has a supervisor or a session left a trace in a run directory?
pub fn is_used(directory: &RunDirectory) -> bool {
    let (statuses, problems) = directory.read_statuses();
    !statuses.is_empty() || !problems.is_empty() || !matches!(record::read(directory), Ok(None))
}

/// Supervises a job.
pub fn run(args: &Args) -> Ending {
    match Supervisor::new(args).and_then(Supervisor::run) {
        Ok(stop) => Ending::Status(stop.exit_status()),
        Err(problem) => {
            complain(&problem);
            Ending::Trouble
        }
    }
}

/// Signals that arrive while the supervisor works.
struct Signals {
    interrupt: Arc<AtomicBool>,
    /// Signals that ask for a last checkpoint.
    last: Vec<(&'static str, Arc<AtomicBool>)>,
    second: Arc<AtomicBool>,
}

impl Signals {
    fn listen() -> std::io::Result<Signals> {
        let register = |signal: Signal| {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal as i32, flag.clone()).map(|_| flag)
        };
        let mut last = vec![("SIGTERM", register(Signal::SIGTERM)?), ("SIGUSR1", register(Signal::SIGUSR1)?)];
        // A user who started us with nohup wants hang-ups to be ignored.
        if !is_ignored(Signal::SIGHUP) {
            last.push(("SIGHUP", register(Signal::SIGHUP)?));
        }
        Ok(Signals { interrupt: register(Signal::SIGINT)?, last, second: register(Signal::SIGUSR2)? })
    }

    fn interrupted(&self) -> bool {
        self.interrupt.swap(false, Ordering::Relaxed)
    }

    fn last_checkpoint(&self) -> Option<&'static str> {
        // All flags are cleared, so that several signals count as one.
        let mut heard = self.last.iter().filter(|(_, flag)| flag.swap(false, Ordering::Relaxed));
        let first = heard.next().map(|(name, _)| *name);
        heard.for_each(drop);
        first
    }
}

fn is_ignored(signal: Signal) -> bool {
    let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return false };
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> (signal as i32 - 1) & 1 == 1)
}

struct Supervisor<'a> {
    args: &'a Args,
    directory: RunDirectory,
    /// The path of the run directory as text, for command lines and environments.
    directory_text: String,
    line: CommandLine,
    job: decide::Job,
    /// The launcher's host list is ours to write.
    is_placed: bool,
    probe: Probe,
    returns: Returns,
    journal: Journal,
    signals: Signals,
    record: Record,
    /// The living job of a supervisor that is gone.
    found: Option<Process>,
    /// An attempt of this run has opened a session, and has therefore claimed the store.
    has_claimed: bool,
    /// Set by a signal: the reason why the job is asked for its last checkpoint.
    last_checkpoint: Option<String>,
    interrupted: bool,
    _lock: File,
}

/// How far the ending of an attempt has progressed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Escalation {
    /// Nobody wants the attempt to end.
    None,
    /// It was asked for a last checkpoint; at this time, it is terminated.
    Asked(Instant),
    /// SIGTERM was sent; at this time, the attempt is killed.
    Terminated(Instant),
    Killed,
}

/// What an attempt leaves behind.
struct Ended {
    outcome: Outcome,
    watch: Watch,
}

impl<'a> Supervisor<'a> {
    fn new(args: &'a Args) -> Result<Supervisor<'a>, String> {
        let signals = Signals::listen().map_err(|error| format!("cannot listen for signals: {error}"))?;
        let path = std::path::absolute(&args.run_directory)
            .map_err(|error| format!("run directory {}: {error}", args.run_directory.display()))?;
        let directory_text = path.to_str().map(str::to_owned);
        let directory_text = directory_text.ok_or_else(|| format!("run directory {path:?} is not UTF-8"))?;
        let program = args.command.first().ok_or("no command was given after --")?;
        find_program(program)?;
        if let (Some(None), Some(system)) = (&args.requeue, batch::here()) {
            system.can_requeue().map_err(|why| {
                format!(
                    "--requeue: {why}; give the command that submits the next job, such as --requeue='qsub job.pbs'"
                )
            })?;
        }
        let family = args.launcher.unwrap_or_else(|| launch::family_of(program));
        let mut line = CommandLine::parse(&args.command, family)?;
        line.set_export(std::env::var("SLURM_EXPORT_ENV").ok());
        let (job, is_placed) = settle(args, &line)?;
        if args.ranks.is_some() {
            line.set_elastic()?;
        }
        let probe = Probe { method: probe_method(args, &line, &job.hosts()), timeout: args.probe_timeout };
        let directory = RunDirectory::at(path);
        directory.create().map_err(|error| error.to_string())?;
        let lock = record::lock(&directory)?;
        let mut journal = Journal::new(&directory, unix_now(), args.quiet);
        let record = match record::read(&directory) {
            Ok(record) => record.unwrap_or_default(),
            Err(problem) => {
                journal.complain(&format!(
                    "{problem}; cannot tell whether a job of an earlier supervisor is still running"
                ));
                Record::default()
            }
        };
        if let Some(allowed) = args.ranks.as_ref().filter(|_| is_placed) {
            let room = hosts::room(&job.hosts());
            if u64::from(allowed.most()) > room {
                journal.complain(&format!(
                    "--ranks {allowed} allows more ranks than all hosts together have slots for ({room})"
                ));
            }
        }
        let mut supervisor = Supervisor {
            args,
            directory,
            directory_text,
            line,
            job,
            is_placed,
            probe,
            returns: Returns::default(),
            journal,
            signals,
            record,
            found: None,
            has_claimed: false,
            last_checkpoint: None,
            interrupted: false,
            _lock: lock,
        };
        supervisor.take_over()?;
        supervisor.prepare_halt();
        Ok(supervisor)
    }

    /// Continues with the job of a supervisor that is gone, if the job is alive; otherwise begins a run of its own.
    fn take_over(&mut self) -> Result<(), String> {
        let me = Process::of(std::process::id()).unwrap_or_default();
        // The lock shows this, too, but not on a file system without locks.
        if self.record.supervisor != me && self.record.supervisor.is_alive() {
            return Err(format!(
                "another supervisor is at work in {} as process {}: wait for it, or give another --run-directory",
                self.directory_text, self.record.supervisor.pid
            ));
        }
        if let Some(launcher) = self.record.living_launcher(&self.directory) {
            if self.record.command != self.args.command {
                return Err(format!(
                    "the job of an earlier supervisor lives here as process {}, and it is another one: its command is {:?}, yours \
                     is {:?}; wait for it, or give another --run-directory",
                    launcher.pid, self.record.command, self.args.command
                ));
            }
            let before = self.record.supervisor.pid;
            let attempt = self.record.attempt;
            self.journal.go_on(self.record.run_began);
            self.job.take_over(&self.record.seats, self.record.ranks, self.record.goal);
            let text = format!(
                "supervisor {before} is gone, but its job is still running as process {}: waiting for it",
                launcher.pid
            );
            self.journal.event(attempt, "took-over", &text);
            self.record.launcher = Some(launcher.clone());
            self.found = Some(launcher);
        } else {
            if !self.record.ended && self.record.attempt > 0 && self.record.supervisor.host != me.host {
                let host = &self.record.supervisor.host;
                self.journal.complain(&format!(
                    "an earlier supervisor ran on {host}, where its job cannot be checked; if that job is still running, it keeps its \
                     claim and this job will say so"
                ));
            }
            self.record = Record { run_began: self.journal.run_began(), ended: true, ..Record::default() };
        }
        self.record.supervisor = me;
        self.record.allowed = self.args.ranks.as_ref().map(ToString::to_string);
        self.record.hosts = record::texts(if self.is_placed { self.job.hosts() } else { Vec::new() }.as_slice());
        self.record.command.clone_from(&self.args.command);
        self.record.end_time = self.args.end_time.or_else(allocation_end);
        self.record.write(&self.directory)
    }

    /// Halt conditions of an earlier supervisor do not apply to this run; the end of the allocation does.
    fn prepare_halt(&mut self) {
        let end = self.record.end_time;
        let reserve = self.args.reserve.as_secs();
        let goes_on = self.found.is_some();
        let mut dropped = Vec::new();
        let changed = self.directory.change_halt(|halt| {
            let mut halt = halt?;
            halt.conditions.retain_mut(|condition| match &mut condition.when {
                _ if condition.resize.is_some() => goes_on,
                _ if condition.of_supervisor => goes_on && !matches!(condition.when, When::BeforeEnd { .. }),
                When::BeforeEnd { end: recorded, .. } => match end {
                    Some(end) => {
                        *recorded = end;
                        true
                    }
                    None => {
                        dropped.push(condition.to_string());
                        false
                    }
                },
                _ => true,
            });
            if let Some(end) = end.filter(|_| reserve > 0) {
                halt.conditions.push(halt::condition(When::BeforeEnd { end, reserve }, true));
            }
            Ok(halt)
        });
        if let Err(problem) = changed {
            self.journal.complain(&format!("halt conditions are not kept: {problem}"));
        }
        for condition in dropped {
            self.journal.complain(&format!(
                "the end of the allocation is not known here, so this condition is dropped: {condition}"
            ));
        }
    }

    fn run(mut self) -> Result<Stop, String> {
        let stop = self.attempts();
        // This is asked before the conditions that say so are cleared.
        let is_ending = self.is_allocation_ending();
        self.clear_own_conditions();
        if let Ok(stop) = &stop {
            self.journal.event(self.record.attempt, "stopped", &stop.to_string());
            if let (Stop::Halted(_), Some(condition)) = (stop, self.halt_met()) {
                let directory = self.directory.path().display().to_string();
                self.journal.complain(&format!(
                    "this condition stays and will also stop the next start; remove it with bivouac halt {directory} --clear: {condition}"
                ));
            }
            if let (Some(command), Stop::Halted(_)) = (&self.args.requeue, stop) {
                self.requeue(command.as_deref(), is_ending);
            }
        }
        self.journal.finish();
        stop
    }

    /// Has the batch system queue a halted job again, or a command submit the next job, if the way in which the job ended calls for it.
    fn requeue(&mut self, command: Option<&str>, is_ending: bool) {
        let (attempt, system) = (self.record.attempt, batch::here());
        let heard = self.last_checkpoint.as_deref();
        let standing = system.map_or_else(Default::default, |system| system.standing(heard, is_ending));
        match decide::requeue(heard.is_some() || is_ending, attempt > 0, standing) {
            Requeue::No => return,
            Requeue::Refused(why) => return self.journal.complain(&format!("the job is not queued again: {why}")),
            Requeue::Yes => {}
        }
        let asked = match (command, system) {
            (Some(command), _) => {
                self.journal.event(attempt, "requeues", &format!("submitting the next job: {command}"));
                launch::submit(command)
            }
            (None, Some(system)) => {
                let text = format!("asking {} to queue this job again, which ends it here", system.name());
                self.journal.event(attempt, "requeues", &text);
                system.requeue().map(|job| format!("{} queues job {job} again", system.name()))
            }
            (None, None) => Err("this is not a SLURM, LSF, PBS or Flux job".into()),
        };
        match asked {
            Ok(text) => self.journal.event(attempt, "requeued", &text),
            Err(problem) => self.journal.complain(&format!("the job is not queued again: {problem}")),
        }
    }

    fn attempts(&mut self) -> Result<Stop, String> {
        let mut next = match self.found {
            Some(_) => Decision::Start { wait: Duration::ZERO },
            None => {
                let down = self.ask_hosts(0);
                let halt = self.halt_met().map(|condition| condition.to_string());
                let binding = self.binding();
                self.job.first(halt, &down, binding.as_ref())
            }
        };
        loop {
            let wait = match next {
                Decision::Stop(stop) => return Ok(stop),
                Decision::Start { wait } => wait,
                Decision::Resize { .. } => Duration::ZERO,
            };
            if let Some(stop) = self.pause(wait) {
                return Ok(stop);
            }
            let committed_before = self.committed();
            let (mut job, words) = match self.found.take() {
                Some(process) => (Job::Found(process), self.record.command.clone()),
                None => self.launch()?,
            };
            let seats = record::texts(&if self.is_placed { self.job.manned() } else { Vec::new() });
            let spares = record::texts(self.job.spares());
            let ended = self.follow(&mut job)?;
            next = self.judge(&ended, committed_before, &words, seats, spares);
        }
    }

    /// Starts the job on its seats.
    fn launch(&mut self) -> Result<(Job, Vec<String>), String> {
        let hosts = self.job.manned();
        let file = self.directory.path().join(SEATS_FILE).display().to_string();
        let file = Some(file.as_str()).filter(|_| batch::here().is_some());
        // srun distributes tasks evenly, unless it is told the node of each task.
        let is_even = hosts.windows(2).all(|pair| pair[0].slots == pair[1].slots);
        let in_order =
            self.job.is_in_order() && (is_even || !self.job.is_elastic() || self.line.family != Family::Srun);
        let seats = self.is_placed.then_some(Seats { hosts: &hosts, in_order, file });
        if let Some(seats) = seats.as_ref().filter(|seats| !seats.in_order && seats.file.is_some()) {
            let text = seats.tasks(self.job.ranks()).join("\n") + "\n";
            self.directory.replace(SEATS_FILE, text.as_bytes()).map_err(|error| error.to_string())?;
        }
        let mut variables = vec![("BIVOUAC_RUN_DIRECTORY", self.directory_text.clone())];
        if self.has_claimed {
            // The previous attempt is over. What is left of it on a node that was cut off may still renew its claim. A
            // claim of anybody else would have kept the previous attempt from opening its session.
            variables.push(("BIVOUAC_JOB_TAKE_OVER", "true".to_owned()));
        }
        let affinity =
            [("BIVOUAC_AFFINITY_MODE", &self.args.affinity), ("BIVOUAC_AFFINITY_CPUS", &self.args.affinity_cpus)];
        variables.extend(affinity.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
        if let (true, Family::Srun) = (self.is_placed, self.line.family) {
            variables.extend(slurm::list_of_step(&hosts).map(|list| ("SLURM_JOB_NODELIST", list)));
        }
        let words = self.line.words(seats.as_ref(), self.job.ranks(), &variables);
        let (statuses, problems) = self.directory.read_statuses();
        problems.iter().for_each(|problem| self.journal.complain(problem));
        let pid_file = record::pid_file(&self.directory);
        if let Err(error) = std::fs::remove_file(&pid_file)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(format!("cannot remove {}: {error}", pid_file.display()));
        }
        self.record.attempt += 1;
        self.record.attempt_began = unix_now();
        self.record.launcher = None;
        self.record.seats = record::texts(self.job.seats());
        self.record.ranks = self.ranks();
        self.record.goal = self.record.ranks.map(|_| self.job.goal());
        self.record.before = statuses.into_iter().map(|status| status.incarnation).collect();
        self.record.ended = false;
        // The record is written before the job starts: a supervisor that follows a sudden death must find the job.
        self.write_record();
        let started = launch::start(&words, &variables, &pid_file);
        let child = started.map_err(|error| format!("cannot start {}: {error}", words[0]))?;
        self.record.launcher = Process::of(child.id());
        self.write_record();
        let place = match &seats {
            Some(seats) => format!("on {}", hosts::names(seats.hosts)),
            None => "where the launcher puts it".into(),
        };
        let ranks = if self.job.is_elastic() { format!("{} ranks ", self.job.ranks()) } else { String::new() };
        let text = format!("process {}, {ranks}{place}", child.id());
        self.journal.event(self.record.attempt, "launched", &text);
        Ok((Job::Own(child), words))
    }

    /// Waits for the end of an attempt, and ends the attempt if necessary.
    fn follow(&mut self, job: &mut Job) -> Result<Ended, String> {
        let attempt = self.record.attempt;
        let mut watch = Watch::new(self.record.before.clone());
        let patience = Patience { hang: self.args.hang_timeout, start: self.args.start_timeout };
        let launched = Instant::now();
        let mut escalation = Escalation::None;
        let mut verdict = None;
        let mut told_halt = false;
        let mut next_look = launched;
        loop {
            let ended = job.poll().map_err(|error| format!("cannot wait for process {}: {error}", job.pid()))?;
            if ended.is_some() || Instant::now() >= next_look {
                next_look = Instant::now() + LOOK_EVERY;
                self.look(&mut watch, launched.elapsed());
                if !told_halt
                    && self.last_checkpoint.is_none()
                    && let Some(condition) = self.halt_met()
                {
                    told_halt = true;
                    self.journal.event(attempt, "halting", &format!("a halt condition is met: {condition}"));
                }
            }
            if let Some(outcome) = ended {
                let outcome = verdict.unwrap_or(outcome);
                let last = watch.last_sign().filter(|_| !watch.is_closed());
                let last = last.map_or_else(String::new, |unix| {
                    format!("; the last sign of life came {:.3} s ago", (unix_now() - unix).max(0.0))
                });
                self.journal.event(attempt, "ended", &format!("{outcome}{last}"));
                return Ok(Ended { outcome, watch });
            }
            escalation = self.signals(job, escalation);
            escalation = match escalation {
                Escalation::Asked(until) if Instant::now() >= until => {
                    let seconds = self.args.reserve.as_secs_f64();
                    self.journal.event(
                        attempt,
                        "ending",
                        &format!("it has not ended {seconds} s after it was asked to: sending TERM"),
                    );
                    job.signal(Signal::SIGTERM);
                    Escalation::Terminated(Instant::now() + self.args.grace)
                }
                Escalation::Terminated(until) if Instant::now() >= until => {
                    let seconds = self.args.grace.as_secs_f64();
                    self.journal.event(attempt, "ending", &format!("no end {seconds} s after TERM: KILL"));
                    job.kill(self.line.family);
                    Escalation::Killed
                }
                same => same,
            };
            if matches!(escalation, Escalation::None | Escalation::Asked(_))
                && let Some(outcome) = watch.overdue(patience, launched.elapsed())
            {
                self.journal.event(attempt, "hang", &format!("{outcome}: TERM"));
                verdict = Some(outcome);
                job.signal(Signal::SIGTERM);
                escalation = Escalation::Terminated(Instant::now() + self.args.grace);
            }
            self.journal.tick();
            std::thread::sleep(PAUSE);
        }
    }

    fn look(&mut self, watch: &mut Watch, now: Duration) {
        let attempt = self.record.attempt;
        let (statuses, problems) = self.directory.read_statuses();
        problems.iter().for_each(|problem| self.journal.complain(problem));
        for happened in watch.look(statuses, now) {
            self.journal.event_at(happened.unix, attempt, happened.event, &happened.text);
        }
        if watch.has_committed() {
            let nodes = if self.is_placed { format!(", {} nodes", self.job.seats().len()) } else { String::new() };
            self.journal.status(&format!("attempt {attempt}{nodes}: {}", watch.summary()));
        }
        self.look_for_returns();
    }

    /// Finds hosts that answer again, which give room for more ranks. Reports them, and records them where
    /// `bivouac halt --resize` looks.
    fn look_for_returns(&mut self) {
        if !self.is_placed || !self.job.is_elastic() {
            return;
        }
        let (hosts, down) = (self.job.hosts(), &self.record.down);
        let silent = || hosts.into_iter().filter(|host| down.contains(&host.name)).collect();
        let back = self.returns.look(&self.probe, silent);
        if back.is_empty() {
            return;
        }
        self.record.down.retain(|host| !back.contains(host));
        self.write_record();
        let text = format!(
            "{}: the next start uses those that it needs; bivouac halt --resize starts again at once",
            back.join(", ")
        );
        self.journal.event(self.record.attempt, "answers-again", &text);
    }

    /// Acts on signals that have arrived.
    fn signals(&mut self, job: &Job, escalation: Escalation) -> Escalation {
        let attempt = self.record.attempt;
        if self.signals.second.swap(false, Ordering::Relaxed) {
            job.signal(Signal::SIGUSR2);
        }
        if self.signals.interrupted() {
            if self.interrupted {
                self.journal.event(attempt, "interrupted", "SIGINT again: KILL");
                job.kill(self.line.family);
                return Escalation::Killed;
            }
            self.interrupted = true;
            self.journal.event(attempt, "interrupted", "SIGINT: TERM");
            job.signal(Signal::SIGTERM);
            return Escalation::Terminated(Instant::now() + self.args.grace);
        }
        if let Some(name) = self.signals.last_checkpoint()
            && self.last_checkpoint.is_none()
        {
            self.last_checkpoint = Some(name.to_owned());
            let asked = self.directory.change_halt(|halt| {
                let mut halt = halt.unwrap_or_default();
                halt.conditions.push(halt::condition(When::Now, true));
                Ok(halt)
            });
            if let Err(problem) = asked {
                self.journal.complain(&format!("the program cannot be asked for a last checkpoint: {problem}"));
                job.signal(Signal::SIGTERM);
                return Escalation::Terminated(Instant::now() + self.args.grace);
            }
            self.journal.event(attempt, "halting", &format!("{name}: the program is asked for a last checkpoint"));
            if escalation == Escalation::None {
                return Escalation::Asked(Instant::now() + self.args.reserve);
            }
        }
        escalation
    }

    /// Probes the hosts, decides, and records the attempt.
    fn judge(
        &mut self,
        ended: &Ended,
        committed_before: BTreeMap<String, Vec<LevelStatus>>,
        words: &[String],
        seats: Vec<String>,
        spares: Vec<String>,
    ) -> Decision {
        let Ended { outcome, watch } = ended;
        let attempt = self.record.attempt;
        let ended_at = unix_now();
        self.has_claimed |= watch.is_opened();
        let facts = self.facts(*outcome, watch);
        let ranks_before = self.ranks();
        let decision = match self.take_resize(facts.resize.as_ref()) {
            Ok(()) => self.job.after(&facts),
            // The condition would end the next attempt, and all attempts after it.
            Err(problem) => Decision::Stop(Stop::Halted(problem)),
        };
        let lost: Vec<&str> = facts.down.keys().map(String::as_str).collect();
        let why = if lost.is_empty() { "all hosts answer".into() } else { format!("lost {}", lost.join(", ")) };
        let with = if self.job.is_elastic() { format!(" with {} ranks", self.job.ranks()) } else { String::new() };
        let (word, reason) = match &decision {
            Decision::Stop(stop) => (stop.name(), stop.to_string()),
            Decision::Start { wait } => {
                let left = self.args.restarts - self.job.restarts();
                let when = if wait.is_zero() { "at once".into() } else { format!("in {} s", wait.as_secs_f64()) };
                ("restart", format!("{outcome}; {why}; starting again{with} {when}, {left} restarts left"))
            }
            Decision::Resize { ranks } => {
                let bound = facts.binding.as_ref().filter(|_| self.job.ranks() != *ranks);
                let bound = bound.map_or_else(String::new, |binding| format!(" ({binding})"));
                ("resized", format!("{ranks} ranks were asked for; {why}; starting again{with} at once{bound}"))
            }
        };
        match &decision {
            Decision::Start { .. } => self.journal.event(attempt, "restarts", &reason),
            Decision::Resize { .. } => self.journal.event(attempt, "resized", &reason),
            Decision::Stop(_) => {}
        }
        let signal = if let Outcome::Signalled(signal) = outcome { Some(*signal) } else { None };
        let exit_status = if let Outcome::Exited(status) = outcome { Some(*status) } else { None };
        self.journal.attempt(&AttemptLine {
            schema: 1,
            run_began: self.record.run_began,
            attempt,
            began: self.record.attempt_began,
            ended: ended_at,
            ranks: ranks_before,
            hosts: seats,
            spares,
            command: words,
            outcome: outcome.to_string(),
            exit_status,
            signal,
            down: &facts.down,
            generations: watch.statuses().map(|status| (status.group.clone(), status.generation)).collect(),
            committed_before,
            committed: watch.statuses().map(|status| (status.group.clone(), status.levels.clone())).collect(),
            decision: word,
            reason,
        });
        self.record.ended = true;
        self.record.launcher = None;
        self.write_record();
        decision
    }

    /// What is known of an attempt that has ended. Asks the hosts, unless no other attempt will follow.
    fn facts(&mut self, outcome: Outcome, watch: &Watch) -> Attempt {
        let met = self.met(|condition| condition.resize.is_none());
        let resize = self.met(|condition| condition.resize.is_some());
        let resize = resize.and_then(|condition| Some(Resize { ranks: condition.resize?, why: condition.to_string() }));
        let allowed = self.args.ranks.as_ref();
        let resize = resize.filter(|resize| allowed.is_some_and(|allowed| allowed.has(resize.ranks)));
        let is_fine = outcome == Outcome::Exited(0) && (watch.is_closed() || !watch.is_opened()) && resize.is_none();
        let down = if is_fine || self.interrupted { BTreeMap::new() } else { self.ask_hosts(self.record.attempt) };
        Attempt {
            outcome,
            opened: watch.is_opened(),
            closed: watch.is_closed(),
            exit_asked: watch.exit_asked(),
            halt: met.map(|condition| condition.to_string()),
            resize,
            last_checkpoint: self.last_checkpoint.clone(),
            interrupted: self.interrupted,
            restored: watch.restored().clone(),
            reached: watch.reached(),
            down,
            binding: self.binding(),
        }
    }

    /// Removes the condition that has asked for a different number of ranks. A condition that has arrived since then applies
    /// to the next attempt.
    ///
    /// # Errors
    /// The condition cannot be removed.
    fn take_resize(&self, resize: Option<&Resize>) -> Result<(), String> {
        let Some(resize) = resize else { return Ok(()) };
        let changed = self.directory.change_halt(|halt| {
            let mut halt = halt?;
            halt.conditions.retain(|condition| condition.resize.is_none() || condition.to_string() != resize.why);
            Ok(halt)
        });
        changed.map(|_| ()).map_err(|problem| format!("{}; this condition cannot be removed: {problem}", resize.why))
    }

    /// The number of ranks of the attempt, if we set the hosts or the number; otherwise only the launcher knows it.
    fn ranks(&self) -> Option<u32> {
        (self.is_placed || self.job.is_elastic()).then(|| self.job.ranks())
    }

    /// The checkpoint because of which the job can continue only with as many ranks as took it.
    fn binding(&self) -> Option<Binding> {
        Binding::in_statuses(self.directory.read_statuses().0.iter())
    }

    /// A run directory that is full or gone must not turn success into failure, or prevent a restart of the job.
    fn write_record(&mut self) {
        if let Err(problem) = self.record.write(&self.directory) {
            self.journal.complain(&format!("{problem}; a later supervisor would not find the job"));
        }
    }

    /// The hosts that do not answer, and why. Before the job is given up for lack of hosts or receives fewer ranks, the silent
    /// hosts are asked once more, with [`LAST_PATIENCE`] times as long to answer: a host on which an attempt has just failed may be
    /// busy with ending it.
    fn ask_hosts(&mut self, attempt: u32) -> BTreeMap<String, String> {
        if !self.is_placed {
            return BTreeMap::new();
        }
        let hosts = self.job.hosts();
        let mut down = self.ask(attempt, &hosts, &self.probe.clone());
        if !self.job.can_do_without(&down) && self.job.may_restart() {
            let silent: Vec<Host> = hosts.into_iter().filter(|host| down.contains_key(&host.name)).collect();
            let patient = Probe { timeout: self.probe.timeout.saturating_mul(LAST_PATIENCE), ..self.probe.clone() };
            down = self.ask(attempt, &silent, &patient);
        }
        self.record.down = down.keys().cloned().collect();
        down
    }

    fn ask(&mut self, attempt: u32, hosts: &[Host], probe: &Probe) -> BTreeMap<String, String> {
        let began = Instant::now();
        let mut down = BTreeMap::new();
        for (host, answer) in hosts.iter().zip(probe.ask(hosts)) {
            if let Answer::Down(why) = answer {
                down.insert(host.name.clone(), why);
            }
        }
        let silent: Vec<String> = down.iter().map(|(host, why)| format!("{host} ({why})")).collect();
        let found =
            if silent.is_empty() { "all answer".to_owned() } else { format!("no answer from {}", silent.join(", ")) };
        let text = format!("{} hosts asked in {:.3} s: {found}", hosts.len(), began.elapsed().as_secs_f64());
        self.journal.event(attempt, "probed", &text);
        down
    }

    /// The halt condition that is met, if one is.
    fn halt_met(&mut self) -> Option<Condition> {
        self.met(|_| true)
    }

    /// The first halt condition that is met, of those that count.
    fn met(&mut self, counts: impl Fn(&Condition) -> bool) -> Option<Condition> {
        let mut halt = match self.directory.read_halt() {
            Ok(halt) => halt,
            Err(problem) => {
                self.journal.complain(&format!("halt conditions are ignored: {problem}"));
                Halt::default()
            }
        };
        halt.conditions.retain(counts);
        if halt.conditions.is_empty() {
            return None;
        }
        let (statuses, _) = self.directory.read_statuses();
        let totals = statuses.iter().map(|status| (status.group.as_str(), status.checkpoints_total));
        halt.met(unix_now(), totals).cloned()
    }

    fn committed(&mut self) -> BTreeMap<String, Vec<LevelStatus>> {
        let (statuses, _) = self.directory.read_statuses();
        statuses.into_iter().map(|status| (status.group, status.levels)).collect()
    }

    /// Waits before a restart; a signal ends the wait and the run.
    fn pause(&mut self, wait: Duration) -> Option<Stop> {
        let until = Instant::now() + wait;
        loop {
            if self.interrupted || self.signals.interrupted() {
                self.interrupted = true;
                return Some(Stop::Interrupted);
            }
            if self.found.is_none()
                && let Some(name) = self.signals.last_checkpoint()
            {
                self.last_checkpoint = Some(name.to_owned());
                return Some(Stop::Halted(name.to_owned()));
            }
            if Instant::now() >= until {
                return None;
            }
            self.journal.tick();
            std::thread::sleep(PAUSE.min(until.saturating_duration_since(Instant::now())));
        }
    }

    fn clear_own_conditions(&mut self) {
        let cleared = self.directory.change_halt(|halt| {
            let mut halt = halt?;
            halt.conditions.retain(|condition| !condition.of_supervisor && condition.resize.is_none());
            Ok(halt)
        });
        if let Err(problem) = cleared {
            self.journal.complain(&format!("halt conditions of this run could not be removed: {problem}"));
        }
    }

    /// Is there so little time left that a halt condition of that kind is met?
    fn is_allocation_ending(&self) -> bool {
        let mut halt = self.directory.read_halt().unwrap_or_default();
        halt.conditions.retain(|condition| matches!(condition.when, When::BeforeEnd { .. }));
        halt.met(unix_now(), std::iter::empty()).is_some()
    }
}

fn limits(args: &Args, ranks: u32, min_nodes: usize) -> Limits {
    let Args { restarts, fruitless, backoff, .. } = *args;
    Limits { ranks, allowed: args.ranks.clone(), restarts, fruitless, min_nodes, backoff }
}

/// The job's hosts, and whether they are ours to choose.
fn settle(args: &Args, line: &CommandLine) -> Result<(decide::Job, bool), String> {
    let given = match (&args.hosts, &args.hostfile) {
        (Some(list), _) => Some(hosts::parse_list(list).map_err(|why| format!("--hosts: {why}"))?),
        (None, Some(path)) => Some(hosts::read_file(path)?),
        (None, None) => None,
    };
    if line.family == Family::None && (given.is_some() || args.spares > 0 || args.exclude.is_some()) {
        return Err(format!(
            "{:?} is no launcher that is known here, so its hosts cannot be chosen: name its family with --launcher, or leave out \
             --hosts, --hostfile, --spares and --exclude",
            args.command[0]
        ));
    }
    let listed = match given {
        Some(hosts) => Some(hosts),
        None if line.family == Family::None => None,
        None => line.hosts()?.map_or_else(|| batch::here().map_or(Ok(None), System::hosts), |hosts| Ok(Some(hosts)))?,
    };
    // With --ranks, the number in the launcher's options is replaced.
    let said = if args.ranks.is_some() { None } else { line.ranks()? };
    let exclude = match &args.exclude {
        Some(list) => hosts::parse_list(list).map_err(|why| format!("--exclude: {why}"))?,
        None => Vec::new(),
    };
    let Some(listed) = listed else {
        if args.spares > 0 || !exclude.is_empty() || args.min_nodes > 1 {
            return Err("no hosts are known: give --hosts or --hostfile".into());
        }
        let ranks = args.ranks.as_ref().map_or(said.unwrap_or(1), Allowed::most);
        let limits = limits(args, ranks, 1);
        let here = Host { name: "localhost".into(), slots: Some(ranks) };
        return Ok((decide::Job::new(limits, vec![here], 0), false));
    };
    let left = |host: &&Host| !exclude.iter().any(|out| out.name == host.name);
    let working = listed.iter().filter(left).count().saturating_sub(args.spares);
    let slots = listed.iter().filter(left).take(working).map(|host| host.slots.unwrap_or(1));
    let mut ranks = match &args.ranks {
        Some(allowed) => allowed.most(),
        None => said.unwrap_or_else(|| slots.fold(0, u32::saturating_add)),
    };
    let hosts = hosts::settle(listed, &exclude, args.spares, ranks)?;
    if let Some(allowed) = &args.ranks {
        // With the least number, the error says how much room the hosts lack.
        ranks = allowed.largest(hosts::room(&hosts[..hosts.len() - args.spares])).unwrap_or(allowed.least());
    }
    let limits = limits(args, ranks, args.min_nodes);
    let job = decide::Job::new(limits, hosts, args.spares);
    job.check()?;
    Ok((job, true))
}

fn probe_method(args: &Args, line: &CommandLine, hosts: &[Host]) -> Method {
    if let Some(command) = &args.probe {
        return Method::Command(command.clone());
    }
    let is_given = args.hosts.is_some() || args.hostfile.is_some();
    let system = batch::here().filter(|system| !is_given || system.has_all(hosts));
    match system {
        Some(System::Slurm) => return Method::Slurm { port: slurm::slurmd_port() },
        Some(System::Flux) => return Method::Command(FLUX_PROBE.to_owned()),
        _ if line.family == Family::Srun => return Method::Slurm { port: slurm::slurmd_port() },
        _ => {}
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let agent = line.agent().or_else(|| match line.family {
        Family::Hydra => variable("HYDRA_LAUNCHER_EXEC"),
        _ => variable("OMPI_MCA_plm_rsh_agent").or_else(|| variable("PRTE_MCA_plm_ssh_agent")),
    });
    // The remote shells of batch systems work even where nodes let nobody in by ssh.
    let of_system = || match system {
        Some(System::Pbs) => Some("pbs_tmrsh"),
        Some(System::Lsf) => Some("blaunch"),
        _ => None,
    };
    let agent = agent.or_else(|| of_system().filter(|name| asking::find(name).is_some()).map(str::to_owned));
    Method::Agent(probe::agent_words(&agent.unwrap_or_default()))
}

/// Finds out whether the program exists, before anything else happens.
fn find_program(program: &str) -> Result<(), String> {
    asking::find(program).map(drop).ok_or_else(|| format!("cannot start {program:?}: there is no such program"))
}
