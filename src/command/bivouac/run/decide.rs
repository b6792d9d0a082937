//! Decides what to do after an attempt. Pure: it goes from the known facts to the decision.
//!
//! # Hosts
//!
//! A job computes on *seats*; hosts that are not seated are *spares*. When a seated host does not answer, the first spare that answers
//! takes its seat, so that the ranks of all other hosts stay where their memory and their storage are. A lost host moves to the end of the
//! spares, and may be used again when it answers.
//!
//! # Rules
//!
//! After an attempt, the first rule that applies decides:
//!
//! | | what is known | decision |
//! |---|---|---|
//! | 1 | the user interrupted | stop: interrupted |
//! | 2 | the program ended with success and was not asked to end | stop: success |
//! | 3 | it was asked to end (by a signal or a halt condition; a condition that only the program was told about does not count if the watchdog ended it), or a condition is met by now | stop: halted; start again with another goal if nothing else was asked |
//! | 4 | one attempt too many in a row without progress, and all its hosts answer | stop: no progress |
//! | 5 | all restarts are used up | stop: exhausted |
//! | 6 | too few hosts answer | stop: too few nodes |
//! | 6a | enough hosts answer for a different number of ranks, but only as many ranks as before can restore the newest checkpoint | stop: rank-bound |
//! | 7 | otherwise | start again |
//!
//! *Progress* is a checkpoint that is newer than the one that the previous attempt had reached. A checkpoint that an attempt restores had
//! been reached by the previous attempt, even if that attempt did not live to learn of it. A lost host explains a failure: such an attempt
//! does not count as one without progress.
#![forbid(unsafe_code)]

use super::ranks::{Allowed, Binding, HOW_TO_RESIZE};
use crate::batch::slurm::Standing;
use crate::hosts::{Host, names, room};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The longest wait before a restart.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// How the process of an attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It ended by itself, with this exit status.
    Exited(i32),
    /// A signal ended it.
    Signalled(i32),
    /// The process was not our child (it was taken over), so nobody knows how it ended.
    Unknown,
    /// The watchdog ended it because it made no step for too long.
    Hung,
    /// The watchdog ended it because it never opened a session.
    NeverOpened,
}

impl Outcome {
    fn is_hang(self) -> bool {
        matches!(self, Outcome::Hung | Outcome::NeverOpened)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Exited(status) => write!(f, "exit status {status}"),
            Outcome::Signalled(signal) => write!(f, "killed by signal {signal}"),
            Outcome::Unknown => f.write_str("it ended; its exit status is not known"),
            Outcome::Hung => f.write_str("ended by the watchdog: no step and no checkpoint for too long"),
            Outcome::NeverOpened => f.write_str("ended by the watchdog: it never opened a session"),
        }
    }
}

/// The newest version of each series that an attempt has committed, at any level, or restored.
pub type Reached = BTreeMap<String, u64>;

/// What is known after an attempt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Attempt {
    /// How it ended.
    pub outcome: Outcome,
    /// It opened at least one session.
    pub opened: bool,
    /// All its sessions were closed normally.
    pub closed: bool,
    /// Why `should_exit` has answered yes to it, if it has.
    pub exit_asked: Option<String>,
    /// A halt condition is met now.
    pub halt: Option<String>,
    /// A condition that asks for a different number of ranks is met now.
    pub resize: Option<Resize>,
    /// The user asked for the last checkpoint by this signal.
    pub last_checkpoint: Option<String>,
    /// The user interrupted.
    pub interrupted: bool,
    /// What it has restored.
    pub restored: Reached,
    /// What it has committed.
    pub reached: Reached,
    /// Hosts that do not answer now, with the reason.
    pub down: BTreeMap<String, String>,
    /// Only this many ranks can restore the newest checkpoint.
    pub binding: Option<Binding>,
}

/// The request that the job continue with a different number of ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resize {
    /// The number of ranks.
    pub ranks: u32,
    /// The condition in words, as the program hears it.
    pub why: String,
}

/// The limits that the supervisor was given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Ranks of the job; if other numbers are allowed, the number that the job is to have if its hosts have room.
    pub ranks: u32,
    /// All numbers of ranks that it may have; `None`: only `ranks`.
    pub allowed: Option<Allowed>,
    /// The total number of restarts that are allowed.
    pub restarts: u32,
    /// This many attempts without progress in a row are a crash loop.
    pub fruitless: u32,
    /// The least number of hosts.
    pub min_nodes: usize,
    /// The first wait before a restart without progress; it doubles.
    pub backoff: Duration,
}

/// Why the supervisor ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The program finished its work.
    Success,
    /// It was asked to end, and can be started again.
    Halted(String),
    /// All restarts are used up; the last attempt ended like this.
    Exhausted(Outcome),
    /// This many attempts in a row made no progress; the last one ended like this.
    NoProgress(u32, Outcome),
    /// Too few hosts answer.
    TooFewNodes(String),
    /// The hosts that answer have no room for as many ranks as can restore the newest checkpoint.
    RankBound(String),
    /// The user interrupted.
    Interrupted,
}

impl Stop {
    /// One word for the reason.
    pub fn name(&self) -> &'static str {
        match self {
            Stop::Success => "success",
            Stop::Halted(_) => "halted",
            Stop::Exhausted(_) => "exhausted",
            Stop::NoProgress(..) => "no-progress",
            Stop::TooFewNodes(_) => "too-few-nodes",
            Stop::RankBound(_) => "rank-bound",
            Stop::Interrupted => "interrupted",
        }
    }

    /// The exit status for the reason. `bivouac run --help` lists all of them.
    pub fn exit_status(&self) -> u8 {
        match self {
            Stop::Success => 0,
            Stop::Halted(_) => 10,
            Stop::Exhausted(outcome) | Stop::NoProgress(_, outcome) if outcome.is_hang() => 14,
            Stop::Exhausted(_) => 11,
            Stop::NoProgress(..) => 12,
            Stop::TooFewNodes(_) | Stop::RankBound(_) => 13,
            Stop::Interrupted => 130,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Success => f.write_str("the program ended successfully"),
            Stop::Halted(why) => write!(f, "halted: {why}"),
            Stop::Exhausted(outcome) => write!(f, "all restarts are used up ({outcome})"),
            Stop::NoProgress(attempts, outcome) => write!(
                f,
                "no progress: {attempts} attempt{} in a row committed no newer checkpoint although all their nodes answer, \
                 so another start would fail in the same way ({outcome})",
                if *attempts == 1 { "" } else { "s" }
            ),
            Stop::TooFewNodes(why) => write!(
                f,
                "too few nodes: {why}; save what the nodes still hold with bivouac drain, so that a later job can restart from it"
            ),
            Stop::RankBound(why) => write!(
                f,
                "too few nodes for a checkpoint that is bound to its number of ranks: {why}; {HOW_TO_RESIZE}; save what the nodes \
                 still hold with bivouac drain, so that a later job with as many ranks can restart from it"
            ),
            Stop::Interrupted => f.write_str("interrupted"),
        }
    }
}

/// What to do next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Ends the supervisor.
    Stop(Stop),
    /// Start on the seats, after this wait.
    Start {
        /// How long to wait.
        wait: Duration,
    },
    /// Start on the seats at once, because that was asked for.
    Resize {
        /// Ranks that were asked for.
        ranks: u32,
    },
}

/// What happens to a halted job in the batch system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Requeue {
    /// It ends here: the user wants that.
    No,
    /// It is queued again.
    Yes,
    /// It would be queued again, but is not, for this reason.
    Refused(&'static str),
}

/// Is a halted job to be queued again? `is_lost`: it was halted by a signal, or because its allocation ends.
pub fn requeue(is_lost: bool, has_launched: bool, standing: Standing) -> Requeue {
    match standing {
        // slurmd sends the same signal as before the end of the allocation.
        Standing { is_cancelled: true, .. } => Requeue::Refused("it was cancelled"),
        Standing { is_preempted: true, .. } => Requeue::Yes,
        // Neither the next allocation nor the one after it would be better.
        _ if is_lost && !has_launched => {
            Requeue::Refused("it was halted before its first attempt; --reserve must be shorter than the allocation")
        }
        _ if is_lost => Requeue::Yes,
        _ => Requeue::No,
    }
}

/// The hosts of a job, and its state so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Job {
    limits: Limits,
    /// All hosts in the order in which they were given.
    listed: Vec<String>,
    /// Hosts that compute, in the order of their ranks.
    seats: Vec<Host>,
    /// Hosts in reserve, in the order in which they are used.
    spares: Vec<Host>,
    /// Ranks of the next or the running attempt.
    ranks: u32,
    restarts: u32,
    /// Attempts in a row without progress that no lost host explains.
    fruitless: u32,
    /// Attempts in a row without progress, for whatever reason.
    idle: u32,
    /// How far the last attempt came that restored or committed anything.
    reached: Reached,
}

impl Job {
    /// A job on these hosts (each with its slots), the last `spares` of which are held back.
    pub fn new(limits: Limits, mut hosts: Vec<Host>, spares: usize) -> Job {
        let listed = hosts.iter().map(|host| host.name.clone()).collect();
        let spares = hosts.split_off(hosts.len().saturating_sub(spares));
        let ranks = limits.ranks;
        Job { limits, listed, seats: hosts, spares, ranks, restarts: 0, fruitless: 0, idle: 0, reached: Reached::new() }
    }

    /// The hosts that compute.
    pub fn seats(&self) -> &[Host] {
        &self.seats
    }

    /// Are the seats in the order in which the hosts were given?
    pub fn is_in_order(&self) -> bool {
        let place = |host: &Host| self.listed.iter().position(|name| *name == host.name);
        self.seats.is_sorted_by_key(place)
    }

    /// All hosts.
    pub fn hosts(&self) -> Vec<Host> {
        self.seats.iter().chain(&self.spares).cloned().collect()
    }

    /// The hosts in reserve.
    pub fn spares(&self) -> &[Host] {
        &self.spares
    }

    /// Ranks of the next or the running attempt.
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// The number of ranks that the job is to have if its hosts have room for it.
    pub fn goal(&self) -> u32 {
        self.limits.ranks
    }

    /// May the number of ranks change?
    pub fn is_elastic(&self) -> bool {
        self.limits.allowed.is_some()
    }

    /// The seats, each with as many slots as it has ranks, if the number of ranks may change: one rank each at first, and then, round by
    /// round, one more for each seat that has room. Otherwise the seats as they were given.
    pub fn manned(&self) -> Vec<Host> {
        if !self.is_elastic() {
            return self.seats.clone();
        }
        let room = |host: &Host| host.slots.unwrap_or(1);
        let mut manned: Vec<(u32, &Host)> = self.seats.iter().map(|host| (0, host)).collect();
        let mut left = self.ranks;
        while left > 0 && manned.iter().any(|(ranks, host)| *ranks < room(host)) {
            for (ranks, _) in manned.iter_mut().filter(|(ranks, host)| *ranks < room(host)).take(left as usize) {
                *ranks += 1;
                left -= 1;
            }
        }
        let with_ranks = manned.into_iter().filter(|(ranks, _)| *ranks > 0);
        with_ranks.map(|(ranks, host)| Host { slots: Some(ranks), ..host.clone() }).collect()
    }

    /// Takes over a job that runs on these hosts, with this many ranks; all other hosts are spares.
    pub fn take_over(&mut self, seats: &[String], ranks: Option<u32>, goal: Option<u32>) {
        if self.is_elastic() {
            self.ranks = ranks.unwrap_or(self.ranks);
            self.limits.ranks = goal.unwrap_or(self.limits.ranks);
        }
        let mut hosts = self.hosts();
        let mut taken = Vec::new();
        for seat in seats {
            let name = seat.split(':').next().unwrap_or_default();
            if let Some(at) = hosts.iter().position(|host| host.name == name) {
                taken.push(hosts.remove(at));
            }
        }
        if !taken.is_empty() {
            (self.seats, self.spares) = (taken, hosts);
        }
    }

    /// Can the job run at all, if all its hosts answer?
    ///
    /// # Errors
    /// It cannot; the error says why.
    pub fn check(&self) -> Result<(), String> {
        self.clone().seat(&BTreeMap::new(), None).map_err(|stop| match stop {
            Stop::TooFewNodes(why) => format!("the host list is too small: {why}"),
            other => other.to_string(),
        })
    }

    /// Could the job run without these hosts, with as many ranks as now?
    pub fn can_do_without(&self, down: &BTreeMap<String, String>) -> bool {
        let mut job = self.clone();
        job.seat(down, None).is_ok() && job.ranks >= self.ranks
    }

    /// Are restarts left?
    pub fn may_restart(&self) -> bool {
        self.restarts < self.limits.restarts
    }

    /// Restarts so far.
    pub fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Decides before the first attempt whether the job may start, and on which hosts.
    pub fn first(
        &mut self,
        halt: Option<String>,
        down: &BTreeMap<String, String>,
        binding: Option<&Binding>,
    ) -> Decision {
        if let Some(why) = halt {
            return Decision::Stop(Stop::Halted(why));
        }
        match self.seat(down, binding) {
            Err(stop) => Decision::Stop(stop),
            Ok(()) => Decision::Start { wait: Duration::ZERO },
        }
    }

    /// Decides what to do after an attempt.
    pub fn after(&mut self, attempt: &Attempt) -> Decision {
        if attempt.interrupted {
            return Decision::Stop(Stop::Interrupted);
        }
        let lost_host = self.seats.iter().any(|host| attempt.down.contains_key(&host.name));
        // The program may take the watchdog's SIGTERM for a request to end.
        let heard = attempt.exit_asked.clone().filter(|_| !attempt.outcome.is_hang());
        // The program hears of the first condition that is met; a signal is such a condition, too.
        let is_resized = attempt.resize.as_ref().is_some_and(|resize| heard.as_ref() == Some(&resize.why));
        let asked = heard.filter(|_| !is_resized).or_else(|| attempt.last_checkpoint.clone());
        if is_success(attempt, lost_host) && asked.is_none() && !is_resized {
            return Decision::Stop(Stop::Success);
        }
        if let Some(why) = asked.or_else(|| attempt.halt.clone()) {
            return Decision::Stop(Stop::Halted(why));
        }
        // An attempt that failed before it was told about the request is started again like any other, on that many
        // ranks.
        self.limits.ranks = attempt.resize.as_ref().map_or(self.limits.ranks, |resize| resize.ranks);
        if is_resized {
            let _ = self.note(attempt);
            (self.idle, self.fruitless) = (0, 0);
            let ranks = self.limits.ranks;
            return match self.seat(&attempt.down, attempt.binding.as_ref()) {
                Err(stop) => Decision::Stop(stop),
                Ok(()) => Decision::Resize { ranks },
            };
        }
        let progressed = self.note(attempt);
        self.idle = if progressed { 0 } else { self.idle + 1 };
        self.fruitless = if progressed || lost_host { 0 } else { self.fruitless + 1 };
        if self.fruitless >= self.limits.fruitless {
            return Decision::Stop(Stop::NoProgress(self.fruitless, attempt.outcome));
        }
        if !self.may_restart() {
            return Decision::Stop(Stop::Exhausted(attempt.outcome));
        }
        if let Err(stop) = self.seat(&attempt.down, attempt.binding.as_ref()) {
            return Decision::Stop(stop);
        }
        self.restarts += 1;
        let doublings = self.idle.saturating_sub(1).min(31);
        let wait = if self.idle == 0 { Duration::ZERO } else { self.limits.backoff.saturating_mul(1 << doublings) };
        Decision::Start { wait: wait.min(WAIT_MAX) }
    }

    /// Notes how far an attempt came; true if it has committed anything newer than what was reached before.
    fn note(&mut self, attempt: &Attempt) -> bool {
        // The previous attempt had reached this, but could not report it.
        if is_newer(&attempt.restored, &self.reached) {
            (self.idle, self.fruitless) = (0, 0);
        }
        let progressed = is_newer(&attempt.reached, &self.reached) && is_newer(&attempt.reached, &attempt.restored);
        if !attempt.restored.is_empty() || !attempt.reached.is_empty() {
            self.reached.clone_from(&attempt.restored);
            for (name, version) in &attempt.reached {
                let newest = self.reached.entry(name.clone()).or_default();
                *newest = (*newest).max(*version);
            }
        }
        progressed
    }

    /// Gives seats whose hosts are down to spares that answer, and chooses the number of ranks.
    ///
    /// # Errors
    /// The hosts that answer are too few; the error says why.
    fn seat(&mut self, down: &BTreeMap<String, String>, binding: Option<&Binding>) -> Result<(), Stop> {
        // If the number of ranks cannot change, it does not matter here which number can restore the checkpoint.
        let binding = binding.filter(|_| self.is_elastic());
        let wanted = binding.map_or(self.limits.ranks, |binding| binding.ranks);
        let is_up = |host: &Host| !down.contains_key(&host.name);
        let (mut ready, mut absent): (Vec<Host>, Vec<Host>) = self.spares.drain(..).partition(is_up);
        ready.reverse();
        let (mut seats, mut lost) = (Vec::new(), Vec::new());
        for host in self.seats.drain(..) {
            if is_up(&host) {
                seats.push(host);
                continue;
            }
            seats.extend(ready.pop());
            lost.push(host);
        }
        // A spare may be smaller than the host that it stands in for.
        while room(&seats) < u64::from(wanted) || seats.len() < self.limits.min_nodes {
            match ready.pop() {
                Some(host) => seats.push(host),
                None => break,
            }
        }
        ready.reverse();
        (self.seats, self.spares) = (seats, ready);
        self.spares.append(&mut absent);
        self.spares.append(&mut lost);
        if self.seats.len() < self.limits.min_nodes.max(1) {
            let (have, least) = (self.seats.len(), self.limits.min_nodes.max(1));
            return Err(Stop::TooFewNodes(format!(
                "only {have} answer ({}): at least {least} are needed",
                self.answering()
            )));
        }
        self.ranks = self.number(wanted, binding)?;
        Ok(())
    }

    /// The number of ranks on the seats.
    fn number(&self, wanted: u32, binding: Option<&Binding>) -> Result<u32, Stop> {
        let (room, answering) = (room(&self.seats), self.answering());
        let Some(allowed) = &self.limits.allowed else {
            let fits = room >= u64::from(wanted);
            let why = || format!("those that answer ({answering}) have room for {room} of {wanted} ranks");
            return fits.then_some(wanted).ok_or_else(|| Stop::TooFewNodes(why()));
        };
        let Some(binding) = binding else {
            let least = allowed.least();
            let why = || {
                format!(
                    "those that answer ({answering}) have room for {room} ranks, but --ranks allows no fewer than {least}"
                )
            };
            return allowed.largest(room.min(u64::from(wanted))).ok_or_else(|| Stop::TooFewNodes(why()));
        };
        match (allowed.has(wanted), u64::from(wanted) <= room) {
            (true, true) => Ok(wanted),
            (true, false) => {
                Err(Stop::RankBound(format!("{binding}, but those that answer ({answering}) have room for {room}")))
            }
            (false, _) => Err(Stop::RankBound(format!("{binding}, but --ranks {allowed} does not allow that number"))),
        }
    }

    fn answering(&self) -> String {
        if self.seats.is_empty() { "none".to_owned() } else { names(&self.seats) }
    }
}

/// Has any series advanced?
fn is_newer(now: &Reached, before: &Reached) -> bool {
    now.iter().any(|(name, version)| before.get(name).is_none_or(|before| version > before))
}

/// A launcher may report success although it lost a host; in this case, sessions were left open.
fn is_success(attempt: &Attempt, lost_host: bool) -> bool {
    match attempt.outcome {
        Outcome::Exited(0) => attempt.closed || !attempt.opened || !lost_host,
        Outcome::Unknown => attempt.opened && attempt.closed,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::parse_list;
    use bivouac_core::format::supervision::{Bound, NewestStatus};
    use proptest::prelude::*;

    fn job(list: &str, spares: usize, ranks: u32) -> Job {
        let backoff = Duration::from_secs(2);
        let limits = Limits { ranks, allowed: None, restarts: 3, fruitless: 2, min_nodes: 1, backoff };
        Job::new(limits, parse_list(list).unwrap(), spares)
    }

    /// A job whose number of ranks may change.
    fn elastic(list: &str, spares: usize, ranks: u32, allowed: &str) -> Job {
        let mut job = job(list, spares, ranks);
        job.limits.allowed = Some(Allowed::parse(allowed).unwrap());
        job
    }

    fn down(names: &[&str]) -> BTreeMap<String, String> {
        names.iter().map(|name| ((*name).to_owned(), "silent".to_owned())).collect()
    }

    fn failed(version: u64) -> Attempt {
        Attempt {
            outcome: Outcome::Exited(1),
            opened: true,
            closed: false,
            exit_asked: None,
            halt: None,
            last_checkpoint: None,
            interrupted: false,
            restored: Reached::new(),
            reached: if version > 0 { Reached::from([("heat".to_owned(), version)]) } else { Reached::new() },
            down: BTreeMap::new(),
            resize: None,
            binding: None,
        }
    }

    fn wait(decision: Decision) -> Duration {
        match decision {
            Decision::Start { wait } => wait,
            Decision::Stop(stop) => panic!("stopped: {stop}"),
            Decision::Resize { .. } => panic!("resized"),
        }
    }

    fn stop(decision: Decision) -> Stop {
        match decision {
            Decision::Stop(stop) => stop,
            Decision::Start { .. } | Decision::Resize { .. } => panic!("started again"),
        }
    }

    fn seats(job: &Job) -> String {
        names(job.seats())
    }

    #[test]
    fn success_stops() {
        let done = Attempt { outcome: Outcome::Exited(0), closed: true, ..failed(70) };
        assert_eq!(stop(job("a:2", 0, 2).after(&done)), Stop::Success);
        // A program without a session, or one that never closes its session.
        for (opened, closed) in [(false, false), (true, false)] {
            let done = Attempt { opened, closed, ..done.clone() };
            assert_eq!(stop(job("a:2", 0, 2).after(&done)), Stop::Success);
        }
        // The program finished by itself although a condition is met by now.
        let late = Attempt { halt: Some("at noon".into()), ..done };
        assert_eq!(stop(job("a:2", 0, 2).after(&late)), Stop::Success);
    }

    #[test]
    fn success_of_a_launcher_that_lost_a_host_is_believed_only_if_the_sessions_were_closed() {
        let lost = Attempt { outcome: Outcome::Exited(0), down: down(&["b"]), ..failed(70) };
        assert_eq!(wait(job("a:2,b:2,c:2", 1, 4).after(&lost)), Duration::ZERO);
        let closed = Attempt { closed: true, ..lost };
        assert_eq!(stop(job("a:2,b:2,c:2", 1, 4).after(&closed)), Stop::Success);
    }

    #[test]
    fn an_end_that_was_asked_for_is_a_halt_whatever_its_exit_status() {
        for outcome in [Outcome::Exited(0), Outcome::Exited(3), Outcome::Signalled(15), Outcome::Unknown] {
            let asked = Attempt { outcome, closed: true, exit_asked: Some("now".into()), ..failed(70) };
            assert_eq!(stop(job("a:2", 0, 2).after(&asked)), Stop::Halted("now".into()));
            let signal = Attempt { outcome, last_checkpoint: Some("SIGTERM".into()), ..failed(70) };
            assert_eq!(stop(job("a:2", 0, 2).after(&signal)), Stop::Halted("SIGTERM".into()));
        }
        let met = Attempt { halt: Some("at noon".into()), ..failed(70) };
        assert_eq!(stop(job("a:2", 0, 2).after(&met)), Stop::Halted("at noon".into()));
    }

    #[test]
    fn a_hang_is_no_halt_because_the_program_heard_the_watchdog() {
        let hung = Attempt { outcome: Outcome::Hung, exit_asked: Some("signal TERM".into()), ..failed(70) };
        assert_eq!(wait(job("a:2", 0, 2).after(&hung)), Duration::ZERO);
        let signal = Attempt { last_checkpoint: Some("SIGTERM".into()), ..hung.clone() };
        assert_eq!(stop(job("a:2", 0, 2).after(&signal)), Stop::Halted("SIGTERM".into()));
        let met = Attempt { halt: Some("at noon".into()), ..hung };
        assert_eq!(stop(job("a:2", 0, 2).after(&met)), Stop::Halted("at noon".into()));
    }

    #[test]
    fn an_interrupt_wins_over_all_else() {
        let attempt = Attempt {
            outcome: Outcome::Exited(0),
            interrupted: true,
            halt: Some("now".into()),
            closed: true,
            ..failed(70)
        };
        assert_eq!(stop(job("a:2", 0, 2).after(&attempt)), Stop::Interrupted);
    }

    #[test]
    fn a_crash_loop_is_stopped_after_two_attempts_without_progress() {
        let mut job = job("a:2", 0, 2);
        assert_eq!(wait(job.after(&failed(70))), Duration::ZERO);
        // The attempt restored 70 and crashed before the next checkpoint, or it took the same one again.
        assert_eq!(wait(job.after(&failed(0))), Duration::from_secs(2));
        assert_eq!(stop(job.after(&failed(70))), Stop::NoProgress(2, Outcome::Exited(1)));
    }

    #[test]
    fn a_program_that_never_commits_anything_gets_two_attempts() {
        let mut job = job("a:2", 0, 2);
        assert_eq!(wait(job.after(&failed(0))), Duration::from_secs(2));
        assert_eq!(stop(job.after(&failed(0))), Stop::NoProgress(2, Outcome::Exited(1)));
    }

    #[test]
    fn progress_is_measured_against_the_attempt_before() {
        let mut job = job("a:2", 0, 2);
        assert_eq!(wait(job.after(&failed(70))), Duration::ZERO);
        // Damage made the attempt start from an older version: 60 is no progress, but the next attempt progresses from there to 70.
        assert_eq!(wait(job.after(&failed(60))), Duration::from_secs(2));
        assert_eq!(wait(job.after(&failed(70))), Duration::ZERO);
        assert_eq!(stop(job.after(&failed(80))), Stop::Exhausted(Outcome::Exited(1)));
    }

    #[test]
    fn what_an_attempt_restores_is_progress_of_the_one_before() {
        let mut job = job("a:2", 0, 2);
        let silent = |version| Attempt { restored: Reached::from([("heat".to_owned(), version)]), ..failed(0) };
        // Each attempt is killed before it hears that anything is committed.
        assert_eq!(wait(job.after(&failed(0))), Duration::from_secs(2));
        assert_eq!(wait(job.after(&silent(50))), Duration::from_secs(2));
        assert_eq!(wait(job.clone().after(&silent(150))), Duration::from_secs(2));
        assert_eq!(stop(job.clone().after(&silent(50))), Stop::NoProgress(2, Outcome::Exited(1)));
        assert_eq!(stop(job.after(&silent(40))), Stop::NoProgress(2, Outcome::Exited(1)), "an older one is none");
    }

    #[test]
    fn the_version_that_was_restored_taken_again_is_no_progress() {
        let mut job = job("a:2", 0, 2);
        let again = Attempt { restored: Reached::from([("heat".to_owned(), 70)]), ..failed(70) };
        assert_eq!(wait(job.after(&again)), Duration::from_secs(2));
        assert_eq!(stop(job.after(&again)), Stop::NoProgress(2, Outcome::Exited(1)));
    }

    #[test]
    fn so_many_attempts_without_progress_as_were_asked_for_are_a_crash_loop() {
        let mut patient = job("a:2", 0, 2);
        patient.limits.fruitless = 3;
        assert_eq!(wait(patient.after(&failed(0))), Duration::from_secs(2));
        assert_eq!(wait(patient.after(&failed(0))), Duration::from_secs(4));
        let stop = stop(patient.after(&failed(0)));
        assert_eq!(stop, Stop::NoProgress(3, Outcome::Exited(1)));
        assert!(stop.to_string().starts_with("no progress: 3 attempts in a row"), "{stop}");
    }

    #[test]
    fn progress_of_any_series_counts() {
        let mut job = job("a:2", 0, 2);
        let two = |heat, wind| Attempt {
            reached: Reached::from([("heat".to_owned(), heat), ("wind".to_owned(), wind)]),
            ..failed(0)
        };
        assert_eq!(wait(job.after(&two(500, 1))), Duration::ZERO);
        assert_eq!(wait(job.after(&two(500, 2))), Duration::ZERO);
        assert_eq!(wait(job.after(&two(500, 2))), Duration::from_secs(2));
    }

    #[test]
    fn a_lost_host_is_no_crash_loop_but_waits_grow_all_the_same() {
        let mut job = job("a:2,b:2,c:2,d:2,e:2", 3, 4);
        let mut lose = |names: &[&str]| job.after(&Attempt { down: down(names), ..failed(0) });
        assert_eq!(wait(lose(&["a"])), Duration::from_secs(2));
        assert_eq!(wait(lose(&["a", "b"])), Duration::from_secs(4));
        assert_eq!(wait(lose(&["a", "b", "c"])), Duration::from_secs(8));
        assert_eq!(stop(lose(&["a", "b", "c", "d"])), Stop::Exhausted(Outcome::Exited(1)));
    }

    #[test]
    fn a_lost_spare_does_not_explain_a_failure() {
        let mut job = job("a:2,b:2,c:2", 1, 4);
        let attempt = Attempt { down: down(&["c"]), ..failed(0) };
        assert_eq!(wait(job.after(&attempt)), Duration::from_secs(2));
        assert_eq!(stop(job.after(&attempt)), Stop::NoProgress(2, Outcome::Exited(1)));
    }

    #[test]
    fn a_spare_takes_the_seat_of_the_lost_host_and_all_others_stay() {
        let mut job = job("a:2,b:2,c:2,d:2,e:2", 1, 8);
        assert_eq!(wait(job.first(None, &BTreeMap::new(), None)), Duration::ZERO);
        assert_eq!((seats(&job), names(job.spares())), ("a:2, b:2, c:2, d:2".into(), "e:2".into()));
        assert_eq!(wait(job.after(&Attempt { down: down(&["b"]), ..failed(5) })), Duration::ZERO);
        assert_eq!((seats(&job), names(job.spares())), ("a:2, e:2, c:2, d:2".into(), "b:2".into()));
        assert!(!job.is_in_order());
        // b answers again when e is lost.
        assert_eq!(wait(job.after(&Attempt { down: down(&["e"]), ..failed(9) })), Duration::ZERO);
        assert_eq!((seats(&job), names(job.spares())), ("a:2, b:2, c:2, d:2".into(), "e:2".into()));
        assert!(job.is_in_order());
    }

    #[test]
    fn smaller_spares_are_added_until_all_ranks_have_room() {
        let mut job = job("a:4,b:4,c:2,d:2", 2, 8);
        assert_eq!(wait(job.after(&Attempt { down: down(&["a"]), ..failed(5) })), Duration::ZERO);
        assert_eq!(seats(&job), "c:2, b:4, d:2");
    }

    #[test]
    fn without_a_spare_the_job_shrinks_if_there_is_room() {
        let mut job = job("a:4,b:4,c:4", 0, 8);
        assert_eq!(wait(job.after(&Attempt { down: down(&["a"]), ..failed(5) })), Duration::ZERO);
        assert_eq!(seats(&job), "b:4, c:4");
        let lost = job.after(&Attempt { down: down(&["a", "b"]), ..failed(9) });
        assert!(matches!(stop(lost), Stop::TooFewNodes(why) if why.contains("room for 4 of 8 ranks")));
    }

    fn manned(job: &Job) -> String {
        names(&job.manned())
    }

    fn bound(ranks: u32) -> Option<Binding> {
        let bound = Bound::of(["state"].into_iter());
        Some(Binding::of("world", &NewestStatus { name: "heat".into(), version: 70, ranks, unix: 5.0, bound }))
    }

    #[test]
    fn a_job_without_a_spare_goes_on_with_the_largest_number_of_ranks_that_fits_and_grows_when_hosts_answer_again() {
        let mut job = elastic("a:4,b:4,c:4,d:4", 0, 16, "4..16/2");
        assert_eq!(wait(job.first(None, &BTreeMap::new(), None)), Duration::ZERO);
        assert_eq!((job.ranks(), manned(&job)), (16, "a:4, b:4, c:4, d:4".into()));
        assert_eq!(wait(job.after(&Attempt { down: down(&["b"]), ..failed(5) })), Duration::ZERO);
        assert_eq!((job.ranks(), manned(&job)), (12, "a:4, c:4, d:4".into()));
        assert_eq!(wait(job.after(&Attempt { down: down(&["b", "a"]), ..failed(9) })), Duration::ZERO);
        assert_eq!((job.ranks(), manned(&job)), (8, "c:4, d:4".into()));
        assert_eq!(wait(job.after(&Attempt { down: down(&["a"]), ..failed(12) })), Duration::ZERO);
        assert_eq!((job.ranks(), manned(&job)), (12, "c:4, d:4, b:4".into()));
    }

    #[test]
    fn a_spare_comes_before_fewer_ranks() {
        let mut job = elastic("a:2,b:2,c:2", 1, 4, "1..4");
        assert_eq!(wait(job.after(&Attempt { down: down(&["a"]), ..failed(5) })), Duration::ZERO);
        assert_eq!((job.ranks(), manned(&job)), (4, "c:2, b:2".into()));
        assert!(!job.can_do_without(&down(&["a", "b"])), "it could, with fewer ranks");
        assert!(job.can_do_without(&down(&["a"])));
    }

    #[test]
    fn all_hosts_that_answer_have_a_rank_where_fewer_ranks_are_started_than_there_is_room_for() {
        let mut job = elastic("a:4,b:2,c:1,d:4", 0, 11, "2,5,8,11");
        assert_eq!(wait(job.after(&Attempt { down: down(&["d"]), ..failed(5) })), Duration::ZERO);
        assert_eq!((job.ranks(), manned(&job)), (5, "a:2, b:2, c:1".into()));
        job.ranks = 2;
        assert_eq!(manned(&job), "a:1, b:1");
    }

    #[test]
    fn too_few_nodes_for_the_fewest_ranks_stop_the_run() {
        let mut job = elastic("a:2,b:2,c:2", 0, 6, "4..6");
        let lost = job.after(&Attempt { down: down(&["a", "b"]), ..failed(9) });
        assert!(
            matches!(stop(lost), Stop::TooFewNodes(why) if why.contains("room for 2 ranks, but --ranks allows no fewer than 4"))
        );
    }

    #[test]
    fn a_checkpoint_that_is_bound_to_its_number_of_ranks_stops_a_job_that_would_shrink() {
        let mut job = elastic("a:2,b:2,c:2,d:2", 0, 8, "2..8");
        let ended = stop(job.clone().after(&Attempt { down: down(&["b"]), binding: bound(8), ..failed(5) }));
        assert_eq!((ended.exit_status(), ended.name()), (13, "rank-bound"));
        for words in ["\"state\"", "room for 6", "save_on"] {
            assert!(ended.to_string().contains(words), "{ended}");
        }
        // With all hosts, the job continues as before.
        assert_eq!(wait(job.after(&Attempt { binding: bound(8), ..failed(5) })), Duration::ZERO);
        assert_eq!(job.ranks(), 8);
        // The job takes the number that can restore the checkpoint, whatever else there is room for.
        assert_eq!(wait(job.first(None, &BTreeMap::new(), bound(6).as_ref())), Duration::ZERO);
        assert_eq!((job.ranks(), job.goal()), (6, 8));
        let never = stop(job.first(None, &BTreeMap::new(), bound(9).as_ref()));
        assert!(matches!(never, Stop::RankBound(why) if why.contains("--ranks 2..8 does not allow")));
        // Without --ranks, the number stays, whatever the checkpoint says.
        let fixed = Attempt { down: down(&["b"]), binding: bound(9), ..failed(5) };
        assert_eq!(wait(self::job("a:4,b:4,c:4", 0, 8).after(&fixed)), Duration::ZERO);
    }

    #[test]
    fn a_job_that_is_resized_starts_again_at_once_and_uses_up_no_restart() {
        let resize = |ranks| Some(Resize { ranks, why: format!("now, to continue with {ranks} ranks") });
        let asked = |ranks: u32| Attempt {
            outcome: Outcome::Exited(0),
            closed: true,
            exit_asked: resize(ranks).map(|resize| resize.why),
            resize: resize(ranks),
            ..failed(5)
        };
        let mut job = elastic("a:2,b:2,c:2,d:2", 0, 8, "2..8/2");
        assert_eq!(job.after(&asked(4)), Decision::Resize { ranks: 4 });
        assert_eq!((job.ranks(), manned(&job)), (4, "a:1, b:1, c:1, d:1".into()));
        assert_eq!(job.after(&asked(8)), Decision::Resize { ranks: 8 });
        assert_eq!((job.ranks(), job.restarts()), (8, 0));
        // Only as many ranks as took its last checkpoint can restore it.
        assert_eq!(job.after(&Attempt { binding: bound(8), ..asked(4) }), Decision::Resize { ranks: 4 });
        assert_eq!(job.ranks(), 8);

        // Anything else that the program was asked to do takes precedence.
        for other in [
            Attempt { halt: Some("now".into()), ..asked(4) },
            Attempt { last_checkpoint: Some("SIGTERM".into()), ..asked(4) },
            Attempt { exit_asked: Some("at noon".into()), ..asked(4) },
        ] {
            assert!(matches!(stop(job.clone().after(&other)), Stop::Halted(_)));
        }
        // The program ended by itself.
        assert_eq!(stop(job.clone().after(&Attempt { exit_asked: None, ..asked(4) })), Stop::Success);
        // The program failed before it heard of the request.
        let failed = Attempt { exit_asked: None, outcome: Outcome::Exited(1), closed: false, ..asked(6) };
        wait(job.after(&failed));
        assert_eq!((job.ranks(), job.restarts()), (6, 1));
    }

    proptest! {
        #[test]
        fn an_elastic_job_always_has_the_largest_allowed_number_that_fits(
            slots in prop::collection::vec(1u32..6, 1..7), spares in 0usize..3, first in 1u32..9, step in 1u32..5,
            losses in prop::collection::vec(any::<u8>(), 1..6),
        ) {
            let list: Vec<String> = slots.iter().enumerate().map(|(at, slots)| format!("h{at}:{slots}")).collect();
            let allowed = Allowed::parse(&format!("{first}..40/{step}")).unwrap();
            let spares = spares.min(slots.len() - 1);
            let hosts = parse_list(&list.join(",")).unwrap();
            let Some(goal) = allowed.largest(room(&hosts[..slots.len() - spares])) else { return Ok(()) };
            let mut job = elastic(&list.join(","), spares, goal, &allowed.to_string());
            job.limits.restarts = 100;
            for (version, mask) in (1..).zip(losses) {
                let silent: Vec<&Host> = hosts.iter().enumerate().filter(|(at, _)| mask >> at & 1 == 1).map(|(_, host)| host).collect();
                let silent: Vec<&str> = silent.iter().map(|host| host.name.as_str()).collect();
                let up: Vec<Host> = hosts.iter().filter(|host| !silent.contains(&host.name.as_str())).cloned().collect();
                let decision = job.after(&Attempt { down: down(&silent), ..failed(version) });
                let fits = allowed.largest(room(&up).min(u64::from(goal)));
                match decision {
                    Decision::Start { .. } => {
                        prop_assert_eq!(Some(job.ranks()), fits);
                        let manned = job.manned();
                        prop_assert_eq!(room(&manned), u64::from(job.ranks()));
                        prop_assert!(manned.iter().all(|host| up.iter().any(|up| up.name == host.name && up.slots >= host.slots)));
                        prop_assert!(manned.len() == job.seats().len() || manned.len() == job.ranks() as usize);
                    }
                    Decision::Stop(Stop::TooFewNodes(_)) => prop_assert_eq!(fits, None),
                    other => prop_assert!(false, "{:?}", other),
                }
                let mut all: Vec<String> = job.hosts().into_iter().map(|host| host.name).collect();
                all.sort();
                prop_assert_eq!(all.len(), hosts.len(), "{:?}", all);
            }
        }
    }

    #[test]
    fn fewer_than_the_least_number_of_nodes_are_too_few() {
        let mut small = job("a:8,b:8,c:8", 0, 8);
        small.limits.min_nodes = 2;
        assert_eq!(wait(small.clone().after(&Attempt { down: down(&["a"]), ..failed(5) })), Duration::ZERO);
        let lost = small.after(&Attempt { down: down(&["a", "b"]), ..failed(5) });
        assert!(matches!(stop(lost), Stop::TooFewNodes(why) if why.contains("at least 2 are needed")));
        let none = job("a:8", 0, 8).after(&Attempt { down: down(&["a"]), ..failed(5) });
        assert!(matches!(stop(none), Stop::TooFewNodes(why) if why.contains("none")));
    }

    #[test]
    fn spares_are_seated_to_reach_the_least_number_of_nodes() {
        let mut job = job("a:8,b:8,c:8", 1, 8);
        job.limits.min_nodes = 3;
        assert_eq!(wait(job.first(None, &BTreeMap::new(), None)), Duration::ZERO);
        assert_eq!(seats(&job), "a:8, b:8, c:8");
    }

    #[test]
    fn the_first_start_looks_at_conditions_and_hosts_too() {
        assert_eq!(
            stop(job("a:2", 0, 2).first(Some("now".into()), &BTreeMap::new(), None)),
            Stop::Halted("now".into())
        );
        assert!(matches!(stop(job("a:2", 0, 2).first(None, &down(&["a"]), None)), Stop::TooFewNodes(_)));
        let mut with_spare = job("a:2,b:2", 1, 2);
        assert_eq!(wait(with_spare.first(None, &down(&["a"]), None)), Duration::ZERO);
        assert_eq!(seats(&with_spare), "b:2");
    }

    #[test]
    fn restarts_come_to_an_end_although_there_is_progress() {
        let mut job = job("a:2", 0, 2);
        for version in 1..=3 {
            assert_eq!(wait(job.after(&failed(version))), Duration::ZERO);
        }
        assert_eq!(stop(job.after(&failed(4))), Stop::Exhausted(Outcome::Exited(1)));
        assert_eq!(job.restarts(), 3);
    }

    #[test]
    fn a_job_that_was_taken_over_is_judged_by_its_sessions() {
        let unknown = Attempt { outcome: Outcome::Unknown, ..failed(70) };
        assert_eq!(stop(job("a:2", 0, 2).after(&Attempt { closed: true, ..unknown.clone() })), Stop::Success);
        assert_eq!(wait(job("a:2", 0, 2).after(&unknown)), Duration::ZERO);
        let never = Attempt { opened: false, closed: true, ..unknown };
        assert_eq!(wait(job("a:2", 0, 2).after(&never)), Duration::ZERO);
    }

    #[test]
    fn a_job_that_is_taken_over_keeps_its_seats() {
        let mut job = job("a:2,b:2,c:2", 1, 4);
        job.take_over(&["a:2".into(), "c:2".into()], Some(3), Some(3));
        assert_eq!((seats(&job), names(job.spares())), ("a:2, c:2".into(), "b:2".into()));
        job.take_over(&["gone:2".into()], None, None);
        assert_eq!(
            (seats(&job), job.ranks()),
            ("a:2, c:2".into(), 4),
            "its number of ranks is that of its command line"
        );
        let mut job = elastic("a:2,b:2,c:2", 0, 6, "2..6");
        job.take_over(&["a:2".into(), "c:2".into()], Some(4), Some(5));
        assert_eq!((job.ranks(), job.goal()), (4, 5));
    }

    #[test]
    fn hangs_are_failures_with_an_exit_status_of_their_own() {
        let mut job = job("a:2", 0, 2);
        let hung = Attempt { outcome: Outcome::Hung, ..failed(0) };
        assert_eq!(wait(job.after(&hung)), Duration::from_secs(2));
        let end = stop(job.after(&hung));
        assert_eq!((end.exit_status(), &end), (14, &Stop::NoProgress(2, Outcome::Hung)));
    }

    #[test]
    fn waits_have_a_bound() {
        let mut job = job("a:2,b:2", 1, 2);
        job.limits.restarts = 100;
        let lost = Attempt { down: down(&["a"]), ..failed(0) };
        let waits: Vec<Duration> = (0..40)
            .map(|_| {
                job.seats = parse_list("a:2").unwrap();
                job.spares = parse_list("b:2").unwrap();
                wait(job.after(&lost))
            })
            .collect();
        assert_eq!(waits[..3], [2, 4, 8].map(Duration::from_secs));
        assert_eq!(waits[39], WAIT_MAX);
    }

    #[test]
    fn a_job_is_queued_again_when_its_allocation_is_lost_and_not_when_it_was_cancelled() {
        let standing = |is_preempted, is_cancelled| Standing { is_preempted, is_cancelled };
        assert_eq!(requeue(true, true, standing(false, false)), Requeue::Yes);
        assert_eq!(requeue(false, true, standing(false, false)), Requeue::No);
        assert_eq!(requeue(false, true, standing(true, false)), Requeue::Yes);
        for is_lost in [true, false] {
            assert!(matches!(requeue(is_lost, true, standing(false, true)), Requeue::Refused(_)));
        }
    }

    #[test]
    fn a_job_that_never_had_the_time_to_start_is_not_queued_again_and_again() {
        assert!(
            matches!(requeue(true, false, Standing::default()), Requeue::Refused(why) if why.contains("--reserve"))
        );
        assert_eq!(requeue(false, false, Standing::default()), Requeue::No);
        // Preemption is not a lack of time.
        assert_eq!(requeue(true, false, Standing { is_preempted: true, is_cancelled: false }), Requeue::Yes);
    }

    #[test]
    fn each_stop_has_its_exit_status() {
        let stops = [
            Stop::Success,
            Stop::Halted(String::new()),
            Stop::Exhausted(Outcome::Exited(1)),
            Stop::NoProgress(2, Outcome::Exited(1)),
            Stop::TooFewNodes(String::new()),
            Stop::RankBound(String::new()),
            Stop::Exhausted(Outcome::Hung),
            Stop::Interrupted,
        ];
        let statuses: Vec<u8> = stops.iter().map(Stop::exit_status).collect();
        assert_eq!(statuses, [0, 10, 11, 12, 13, 13, 14, 130]);
    }
}
