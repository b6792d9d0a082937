//! What became of a group, from the events of its ranks: its runs, what each kept and lost, and where its time went. Pure.
//!
//! Time is divided as `bivouac plan` divides it: work that counts, checkpoints that stop the program, work that was done again
//! (rework), recovery, and the time between runs, in which nothing runs. A run loses what it did after the capture of the checkpoint
//! that the next run restored.
#![forbid(unsafe_code)]

use super::gather::Gathered;
use bivouac_core::format::events::{Event, Opened, What, with_openings};
use bivouac_core::format::supervision::{Attempt, Status};
use bivouac_core::tier::TierId;
use serde::Serialize;
use std::collections::BTreeMap;

/// A status that is older than this does not show that a session is alive.
const LIVES_SECONDS: f64 = 15.0;

/// A group.
#[derive(Serialize)]
pub struct Story {
    /// The job's key.
    pub job: String,
    /// The group.
    pub group: String,
    /// Its beginning: the start of the attempt that its first event belongs to, or else that event.
    pub began: f64,
    /// Its end, which is that of its last run; see `began`.
    pub ended: f64,
    /// The number of ranks that have event files.
    pub told: u64,
    /// Its runs, the oldest first.
    pub runs: Vec<Run>,
    /// The launcher's attempts in which no session was opened, the oldest first.
    pub unopened: Vec<Unopened>,
    /// Where its time went.
    pub account: Account,
    /// What each tier has taken, nearest first.
    pub tiers: Vec<TierFigures>,
    /// Warnings and errors; those with the same text are counted together.
    pub warnings: Vec<Warning>,
    /// Events that are missing, in words.
    pub missing: Vec<String>,
}

/// An attempt that ended before a session was opened.
#[derive(Serialize)]
pub struct Unopened {
    /// Its start.
    pub began: f64,
    /// Its end.
    pub ended: f64,
    /// How it ended, in words.
    pub outcome: String,
    /// Did something fail?
    pub has_failed: bool,
}

/// One run: from the opening of a session to its end.
#[derive(Serialize)]
pub struct Run {
    /// Its number.
    pub run: u64,
    /// The event that opened it, from the lowest rank that has events.
    #[serde(skip)]
    pub opened: Opened,
    /// The ranks that have events, and where they ran.
    #[serde(skip)]
    pub ranks: Vec<Opened>,
    /// When it opened.
    pub began: f64,
    /// When it ended, or the latest time that is known of it.
    pub ended: f64,
    /// False if a run died and nobody noted when: `ended` is then the time of its last event, and `rework` is the least that it can be.
    pub is_end_known: bool,
    /// How it ended: `closed`, `running` or `died`.
    pub ending: &'static str,
    /// How the launcher's attempt ended, in words, if `bivouac run` started it.
    pub outcome: Option<String>,
    /// What it restored first.
    pub restored: Option<Restored>,
    /// Checkpoints that were captured.
    pub captures: Vec<Capture>,
    /// Levels that checkpoints have reached.
    pub commits: Vec<Commit>,
    /// Levels that checkpoints have not reached.
    pub refused: Vec<Refused>,
    /// Seconds of its work that had to be done again.
    pub rework: f64,
    /// Seconds of its work that a restart won back.
    pub won_back: f64,
    /// Node memory in use over time, as reported by all nodes.
    #[serde(skip)]
    pub memory: Vec<Memory>,
}

/// Node memory in use on a node.
pub struct Memory {
    /// When it was reported.
    pub unix: f64,
    /// The node, by its lowest rank.
    pub node: u32,
    /// The bytes in use.
    pub used: u64,
    /// The bytes that may be in use.
    pub budget: u64,
}

/// A tier that ranks have restored from.
#[derive(Clone, Serialize)]
pub struct Source {
    /// Its name.
    pub tier: String,
    /// The number of ranks, of those with events, for which it was the farthest tier that they read from.
    pub ranks: u64,
}

/// What was restored, from where, and when.
#[derive(Clone, Serialize)]
pub struct Restored {
    /// When the last rank had restored it.
    pub unix: f64,
    /// The series.
    pub name: String,
    /// The version.
    pub version: u64,
    /// The run that took it.
    pub generation: u64,
    /// The tiers that the ranks with events read from, nearest first.
    pub sources: Vec<Source>,
    /// Bytes that the ranks with events have read.
    pub bytes: u64,
    /// The longest time that a rank took.
    pub seconds: f64,
}

/// The capture of a checkpoint.
#[derive(Clone, Serialize)]
pub struct Capture {
    /// When the last rank continued.
    pub unix: f64,
    /// The series.
    pub name: String,
    /// The version.
    pub version: u64,
    /// Its number within the run.
    pub operation: u64,
    /// Bytes of the ranks with events.
    pub bytes: u64,
    /// How long it stopped the program: the least and the greatest time of all ranks.
    pub seconds: [f64; 2],
}

/// A level that a checkpoint has reached.
#[derive(Clone, Serialize)]
pub struct Commit {
    /// When it was reached.
    pub unix: f64,
    /// The level.
    pub level: String,
    /// The series.
    pub name: String,
    /// The version.
    pub version: u64,
    /// Its number within the run.
    pub operation: u64,
}

/// A level that a checkpoint has not reached.
#[derive(Clone, Serialize)]
pub struct Refused {
    /// When it was refused.
    pub unix: f64,
    /// The level; `captured` means the capture itself.
    pub level: String,
    /// The series.
    pub name: String,
    /// The version.
    pub version: u64,
    /// Why.
    pub reason: String,
}

/// How the time was spent, in seconds.
#[derive(Clone, Default, Serialize)]
pub struct Account {
    /// The sum.
    pub total: f64,
    /// Work that counts.
    pub work: f64,
    /// Time in which the program was stopped by checkpoints that counted in the end.
    pub checkpoints: f64,
    /// Work that was done again.
    pub rework: f64,
    /// Time from the opening of a session until it had restored.
    pub recovering: f64,
    /// Time in which no session was open.
    pub down: f64,
}

impl Account {
    /// The parts in the order of a drawing, with their names.
    pub fn parts(&self) -> [(&'static str, f64); 5] {
        [
            ("work", self.work),
            ("checkpoints", self.checkpoints),
            ("rework", self.rework),
            ("recovering", self.recovering),
            ("down", self.down),
        ]
    }
}

/// What was written to a tier.
#[derive(Clone, Default, Serialize)]
pub struct TierFigures {
    /// Its name.
    pub tier: String,
    /// Files, slots or exchanges.
    pub writes: u64,
    /// Bytes of all ranks with events.
    pub bytes: u64,
    /// Seconds that the writes took, summed over all ranks.
    pub seconds: f64,
    /// Bytes per second of one rank: the slowest, the median and the fastest rank.
    pub rates: [f64; 3],
    /// Copies that failed.
    pub failures: u64,
}

/// Warnings with the same text.
#[derive(Clone, Serialize)]
pub struct Warning {
    /// When the first of them occurred.
    pub unix: f64,
    /// `WARN` or `ERROR`.
    pub importance: String,
    /// The text.
    pub text: String,
    /// How often it occurred.
    pub count: u64,
}

/// The groups that have events, by name. If several jobs have used the directories, each job has stories of its own.
pub fn stories(gathered: &Gathered, now: f64) -> Vec<Story> {
    let groups = gathered.events.iter();
    groups.filter_map(|((group, job), ranks)| story(group, job, ranks, gathered, now)).collect()
}

fn story(group: &str, job: &str, ranks: &BTreeMap<u32, Vec<Event>>, gathered: &Gathered, now: f64) -> Option<Story> {
    let mut runs: BTreeMap<(u64, &str), Vec<(u32, &Event)>> = BTreeMap::new();
    for (rank, events) in ranks {
        for (opened, event) in with_openings(events) {
            runs.entry((event.run, &opened.incarnation)).or_default().push((*rank, event));
        }
    }
    let attempts = gathered.attempts_of(job);
    let mut runs: Vec<Run> = (runs.into_iter())
        .filter_map(|((number, _), events)| run(number, &events, &gathered.statuses, attempts, now))
        .collect();
    runs.sort_by(|one, other| one.began.total_cmp(&other.began));
    share_work(&mut runs);
    let first = runs.first()?;
    let unopened = unopened(&runs, attempts);
    let began = attempt_of(attempts, first.began).map_or(first.began, |attempt| attempt.began);
    let began = unopened.first().map_or(began, |attempt| attempt.began.min(began));
    let ended = runs.iter().map(|run| run.ended).chain(unopened.iter().map(|it| it.ended)).fold(began, f64::max);
    let all = || ranks.iter().flat_map(|(rank, events)| events.iter().map(|event| (*rank, event)));
    Some(Story {
        job: job.to_owned(),
        group: group.to_owned(),
        began,
        ended,
        told: ranks.len() as u64,
        account: account(&runs, began, ended),
        tiers: tiers(all()),
        warnings: warnings(all()),
        missing: missing(all()),
        runs,
        unopened,
    })
}

/// The attempts of these runs of `bivouac run` in which no group opened a session.
fn unopened(runs: &[Run], attempts: &[Attempt]) -> Vec<Unopened> {
    let supervised: Vec<f64> =
        runs.iter().filter_map(|run| attempt_of(attempts, run.began)).map(|attempt| attempt.run_began).collect();
    let has_opened =
        |attempt: &Attempt| !attempt.generations.is_empty() || runs.iter().any(|run| ran_at(attempt, run.began));
    let found = attempts.iter().filter(|it| supervised.contains(&it.run_began) && !has_opened(it));
    let unopened = found.map(|attempt| {
        let Attempt { began, ended, outcome, .. } = attempt;
        Unopened { began: *began, ended: *ended, outcome: outcome.clone(), has_failed: attempt.has_failed() }
    });
    unopened.collect()
}

/// Was the attempt running at that time?
fn ran_at(attempt: &Attempt, unix: f64) -> bool {
    (attempt.began..=attempt.ended).contains(&unix)
}

/// The attempt of the launcher that was running at that time.
fn attempt_of(attempts: &[Attempt], unix: f64) -> Option<&Attempt> {
    attempts.iter().find(|attempt| ran_at(attempt, unix))
}

fn run(number: u64, events: &[(u32, &Event)], statuses: &[Status], attempts: &[Attempt], now: f64) -> Option<Run> {
    let opened = |(_, event): &(u32, &Event)| match &event.what {
        What::Opened(opened) => Some((event.unix, Opened::clone(opened))),
        _ => None,
    };
    let mut all: Vec<(f64, Opened)> = events.iter().filter_map(opened).collect();
    all.sort_by_key(|(_, opened)| opened.rank);
    let (_, first) = all.first()?.clone();
    let began = all.iter().map(|(unix, _)| *unix).fold(f64::INFINITY, f64::min);
    let last = events.iter().map(|(_, event)| event.unix).fold(began, f64::max);
    let attempt = attempt_of(attempts, began);
    let is_it = |status: &&Status| {
        (&status.group, &status.job, &status.incarnation) == (&first.group, &first.job, &first.incarnation)
    };
    let status = statuses.iter().find(is_it);
    let is_closed = events.iter().any(|(_, event)| event.what == What::Closed);
    let is_running = attempt.is_none() && status.is_some_and(|it| !it.closed && now - it.unix < LIVES_SECONDS);
    let noted = attempt.map(|attempt| attempt.ended).or(status.map(|status| status.unix));
    let (ending, ended) = match (is_closed, is_running) {
        (true, _) => ("closed", last),
        (false, true) => ("running", now.max(last)),
        (false, false) => ("died", noted.unwrap_or(last).max(last)),
    };
    let mut run = Run {
        run: number,
        opened: first,
        ranks: all.into_iter().map(|(_, opened)| opened).collect(),
        began,
        ended,
        is_end_known: ending != "died" || noted.is_some(),
        ending,
        outcome: attempt.map(|attempt| attempt.outcome.clone()).filter(|outcome| !outcome.is_empty()),
        restored: None,
        captures: Vec::new(),
        commits: Vec::new(),
        refused: Vec::new(),
        rework: 0.0,
        won_back: 0.0,
        memory: Vec::new(),
    };
    run.fill(events);
    Some(run)
}

impl Run {
    fn fill(&mut self, events: &[(u32, &Event)]) {
        let mut captures: BTreeMap<u64, Capture> = BTreeMap::new();
        // Only the first restart of a rank counts: a program may restore again and again.
        let mut read_from: BTreeMap<u32, String> = BTreeMap::new();
        let nodes: BTreeMap<u32, u32> = self.ranks.iter().map(|opened| (opened.rank, opened.node)).collect();
        for (rank, event) in events {
            let unix = event.unix;
            match event.what.clone() {
                What::Captured { name, version, operation, bytes, .. } => {
                    let took = event.what.seconds();
                    let fresh = Capture { unix, name, version, operation, bytes: 0, seconds: [took; 2] };
                    let capture = captures.entry(operation).or_insert(fresh);
                    capture.unix = capture.unix.max(unix);
                    capture.bytes = capture.bytes.saturating_add(bytes);
                    capture.seconds = [capture.seconds[0].min(took), capture.seconds[1].max(took)];
                }
                What::Committed { name, version, operation, level } => {
                    self.commits.push(Commit { unix, level, name, version, operation });
                }
                What::Refused { name, version, level, reason, .. } => {
                    self.refused.push(Refused { unix, level, name, version, reason });
                }
                What::Restored { name, version, generation, tier, bytes, .. } => {
                    if read_from.contains_key(rank) {
                        continue;
                    }
                    read_from.insert(*rank, tier);
                    let seconds = event.what.seconds();
                    let fresh = Restored { unix, name, version, generation, sources: Vec::new(), bytes: 0, seconds };
                    let restored = self.restored.get_or_insert(fresh);
                    restored.unix = restored.unix.max(unix);
                    restored.bytes = restored.bytes.saturating_add(bytes);
                    restored.seconds = restored.seconds.max(seconds);
                }
                What::Memory { used, budget } => {
                    let node = nodes.get(rank).copied().unwrap_or(*rank);
                    self.memory.push(Memory { unix, node, used, budget });
                }
                _ => {}
            }
        }
        if let Some(restored) = &mut self.restored {
            restored.sources = sources(read_from.into_values());
        }
        self.captures = captures.into_values().collect();
        self.commits.sort_by(|one, other| one.unix.total_cmp(&other.unix));
        self.refused.sort_by(|one, other| one.unix.total_cmp(&other.unix));
        self.memory.sort_by(|one, other| one.unix.total_cmp(&other.unix));
    }

    /// When the program of this run began or continued.
    pub fn work_began(&self) -> f64 {
        let restored = self.restored.as_ref().map_or(self.began, |restored| restored.unix);
        restored.clamp(self.began, self.ended)
    }

    /// Seconds in that time for which checkpoints stopped the program.
    fn stopped(&self, from: f64, to: f64) -> f64 {
        let within = self.captures.iter().filter(|capture| capture.unix > from && capture.unix <= to);
        within.map(|capture| capture.seconds[1]).sum::<f64>().min((to - from).max(0.0))
    }

    /// The failure that ended it, in words.
    pub fn failure(&self) -> Option<String> {
        (self.ending == "died")
            .then(|| self.outcome.clone().unwrap_or_else(|| "its processes ended without a word".into()))
    }
}

/// Counts the ranks that read from each tier, nearest first.
fn sources(read_from: impl Iterator<Item = String>) -> Vec<Source> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for tier in read_from {
        *counts.entry(tier).or_default() += 1;
    }
    let mut sources: Vec<Source> = counts.into_iter().map(|(tier, ranks)| Source { tier, ranks }).collect();
    sources.sort_by_key(|source| place(&source.tier));
    sources
}

/// Notes for each run how much of its work the next runs did again.
fn share_work(runs: &mut [Run]) {
    for next in 1..runs.len() {
        let from = runs[next].restored.clone();
        // When the state from which the run continues was taken, and by which earlier run.
        let taken = from.and_then(|from| {
            let run = runs[..next].iter().rposition(|run| run.run == from.generation)?;
            let is_it = |capture: &&Capture| (&capture.name, capture.version) == (&from.name, from.version);
            Some((run, runs[run].captures.iter().rev().find(is_it)?.unix))
        });
        // If no capture of the restored checkpoint is known, the earlier runs are assumed to have lost nothing: no loss is guessed.
        let is_unknown = taken.is_none() && runs[next].restored.is_some();
        if is_unknown {
            continue;
        }
        for (earlier, run) in runs.iter_mut().enumerate().take(next) {
            let kept_until = match taken {
                Some((of, unix)) if earlier == of => unix,
                Some((of, _)) if earlier < of => continue,
                _ => run.work_began(),
            };
            let lost = (run.ended - kept_until.max(run.work_began())).max(0.0);
            run.rework = run.rework.max(lost);
        }
    }
    for run in 0..runs.len() {
        let all = runs[run].ended - runs[run].work_began();
        let has_next = run + 1 < runs.len();
        runs[run].won_back = if has_next { (all - runs[run].rework).max(0.0) } else { 0.0 };
    }
}

fn account(runs: &[Run], began: f64, ended: f64) -> Account {
    let mut account = Account { total: ended - began, ..Account::default() };
    let mut at = began;
    for run in runs {
        account.down += (run.began - at).max(0.0);
        // If a later run overlaps with an earlier one, only the time after the earlier one counts.
        let from = run.began.max(at);
        let to = run.ended.max(from);
        let work = run.work_began().clamp(from, to);
        account.recovering += work - from;
        let kept_until = (to - run.rework).max(work);
        account.rework += to - kept_until;
        let stopped = run.stopped(work, kept_until);
        account.checkpoints += stopped;
        account.work += kept_until - work - stopped;
        at = at.max(to);
    }
    account.down += (ended - at).max(0.0);
    account
}

/// The place of a tier among the tiers, nearest first; a tier that is not known comes last.
fn place(tier: &str) -> usize {
    TierId::all().position(|known| known.name() == tier).unwrap_or(usize::MAX)
}

fn tiers<'a>(events: impl Iterator<Item = (u32, &'a Event)>) -> Vec<TierFigures> {
    let mut tiers: BTreeMap<String, TierFigures> = BTreeMap::new();
    let mut of_ranks: BTreeMap<String, BTreeMap<u32, (u64, f64)>> = BTreeMap::new();
    for (rank, event) in events {
        match &event.what {
            What::Written { tier, bytes, .. } => {
                let (figures, took) = (tiers.entry(tier.clone()).or_default(), event.what.seconds());
                figures.writes += 1;
                figures.bytes = figures.bytes.saturating_add(*bytes);
                figures.seconds += took;
                let of_rank = of_ranks.entry(tier.clone()).or_default().entry(rank).or_default();
                *of_rank = (of_rank.0.saturating_add(*bytes), of_rank.1 + took);
            }
            What::Failed { tier, .. } => tiers.entry(tier.clone()).or_default().failures += 1,
            _ => {}
        }
    }
    let mut tiers: Vec<TierFigures> =
        tiers.into_iter().map(|(tier, figures)| TierFigures { tier, ..figures }).collect();
    tiers.sort_by_key(|figures| place(&figures.tier));
    for figures in &mut tiers {
        let ranks = of_ranks.remove(&figures.tier).unwrap_or_default();
        let timed = ranks.values().filter(|(_, seconds)| *seconds > 0.0);
        let mut rates: Vec<f64> = timed.map(|(bytes, seconds)| *bytes as f64 / seconds).collect();
        rates.sort_by(f64::total_cmp);
        if let (Some(least), Some(most)) = (rates.first(), rates.last()) {
            figures.rates = [*least, rates[rates.len() / 2], *most];
        }
    }
    tiers
}

fn warnings<'a>(events: impl Iterator<Item = (u32, &'a Event)>) -> Vec<Warning> {
    let mut found: BTreeMap<(&str, &str), Warning> = BTreeMap::new();
    for (_, event) in events {
        if let What::Warned { importance, text } = &event.what {
            let (unix, fresh) = (event.unix, (importance.clone(), text.clone()));
            let warning = found.entry((importance, text)).or_insert_with(|| {
                let (importance, text) = fresh;
                Warning { unix, importance, text, count: 0 }
            });
            (warning.unix, warning.count) = (warning.unix.min(unix), warning.count + 1);
        }
    }
    let mut found: Vec<Warning> = found.into_values().collect();
    found.sort_by(|one, other| one.unix.total_cmp(&other.unix));
    found
}

fn missing<'a>(events: impl Iterator<Item = (u32, &'a Event)>) -> Vec<String> {
    let said = events.filter_map(|(rank, event)| match &event.what {
        What::Missing { count: 0, reason } => Some(format!("rank {rank}: all after run {}: {reason}", event.run)),
        What::Missing { count, reason } => Some(format!("rank {rank}: {count} of run {}: {reason}", event.run)),
        _ => None,
    });
    said.collect()
}

#[cfg(test)]
mod tests;
