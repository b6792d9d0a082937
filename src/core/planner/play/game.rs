//! Plays one run: finds what each failure undoes when it occurs.

use super::hazard::{Failing, Kind};
use super::survivors::Lost;
use super::timeline::Timeline;
use super::{Conduct, Played, Setting, Until};
use crate::base::Level;
use crate::base::rng::Rng;
use crate::policy::intervals::LEVELS_MAX;
use std::collections::VecDeque;
use std::ops::Range;

/// A set of levels that survive, as bits.
type Mask = u8;

/// A failure that cuts a recovery short: the levels that survive it, and when it occurs.
struct Worse(Mask, f64);

pub(super) struct Game<'a> {
    setting: &'a Setting,
    timeline: Timeline<'a>,
    failing: Failing<'a>,
    lost: Option<Lost<'a>>,
    peers: Option<usize>,
    /// The checkpoint from which the job continues undisturbed, and when it does so.
    from: (u64, f64),
    /// The checkpoint after `from` up to which it has been worked out what counts.
    seen: u64,
    /// The newest checkpoint that counts on each level.
    newest: [u64; LEVELS_MAX],
    /// A checkpoint that is still being written, and when it counts; used if flushes outlive failures.
    pending: [Option<(u64, f64)>; LEVELS_MAX],
    /// Work after the last checkpoint of a job that was saved when the job ended.
    between: f64,
    /// When the current job began.
    job: f64,
    /// Since when the loss of one more node would exceed what nodes keep for each other.
    exposed: Option<f64>,
    /// When each lost node becomes a spare, ascending.
    repaired: VecDeque<f64>,
    played: Played,
}

impl<'a> Game<'a> {
    pub fn new(setting: &'a Setting, seed: u64) -> Game<'a> {
        let until = match setting.until {
            Until::Done(_) => f64::INFINITY,
            Until::Time(time) => time,
        };
        let mut timeline = Timeline::new(&setting.pace, setting.walked.as_ref());
        if setting.conduct == Conduct::Chain {
            timeline.start_at(0);
        }
        Game {
            setting,
            timeline,
            failing: Failing::new(&setting.hazard, until, Rng::new(seed)),
            lost: setting.survivors.as_ref().map(Lost::none),
            peers: setting.levels.iter().position(|level| *level == Level::NodeLoss),
            from: (0, 0.0),
            seen: 0,
            newest: [0; LEVELS_MAX],
            pending: [None; LEVELS_MAX],
            between: 0.0,
            job: 0.0,
            exposed: Some(0.0),
            repaired: VecDeque::new(),
            played: Played::default(),
        }
    }

    pub fn run(mut self) -> Played {
        loop {
            let end = match self.setting.until {
                Until::Done(goal) => self.from.1 + self.timeline.done(goal.saturating_sub(self.from.0)),
                Until::Time(time) => time,
            };
            let next = self.failing.next_at();
            let limit = self.last_capture();
            if end <= next.min(limit) {
                return self.finish(end);
            }
            match limit <= next {
                true => self.on_limit(limit),
                false => {
                    let (at, kind) = self.failing.take();
                    self.on_failure(at, &kind);
                }
            }
        }
    }

    /// When the last checkpoint of the job, which goes to all levels, is begun.
    fn last_capture(&self) -> f64 {
        match self.setting.limit {
            Some(limit) => (self.job + limit.time - self.last_takes()).max(self.from.1),
            None => f64::INFINITY,
        }
    }

    /// Seconds from a capture until the checkpoint counts on the highest level, if the program stands still.
    fn last_takes(&self) -> f64 {
        let pace = &self.setting.pace;
        pace.costs[..pace.used].iter().sum::<f64>() + pace.delays[pace.used - 1]
    }

    /// Tallies a stretch that ends at `time`, after checkpoint `last`, and returns its work.
    fn tally(&mut self, last: u64, time: f64) -> f64 {
        let (work, waited) = (self.timeline.work(last, time), self.timeline.waited(last));
        self.played.waiting += waited;
        self.played.checkpoints += (time - work - waited).max(0.0);
        work
    }

    fn finish(mut self, end: f64) -> Played {
        let time = end - self.from.1;
        if time >= 0.0 {
            let last = match self.setting.until {
                Until::Done(goal) => goal.saturating_sub(self.from.0),
                Until::Time(_) => self.timeline.last(time),
            };
            self.count(last, end);
            self.played.work += self.tally(last, time);
        }
        self.played.work += self.from.0 as f64 * self.setting.pace.segment + self.between;
        if let Some(since) = self.exposed {
            self.played.exposed += (end - since).max(0.0);
        }
        self.played.time = end;
        self.played
    }

    /// The part of the run that lies between two times.
    fn within(&self, from: f64, to: f64) -> f64 {
        match self.setting.until {
            Until::Done(_) => (to - from).max(0.0),
            Until::Time(end) => (to.min(end) - from.min(end)).max(0.0),
        }
    }

    /// The job ends, and the next one continues where it ended.
    fn on_limit(&mut self, at: f64) {
        let Some(limit) = self.setting.limit else { return };
        let time = at - self.from.1;
        let last = self.timeline.last(time);
        let work = self.tally(last, time);
        let saved = self.from.0 + last;
        self.between += work - last as f64 * self.setting.pace.segment;
        let top = self.setting.pace.used - 1;
        let ended = at + self.last_takes();
        let (begun, computes) = (ended + limit.queue, ended + limit.queue + self.setting.recoveries[top]);
        self.played.checkpoints += self.within(at, ended);
        self.played.waiting += self.within(ended, begun);
        self.played.recovering[top] += self.within(begun, computes);
        self.count(last, at);
        // The next job makes again what nodes keep for each other.
        self.expose(computes);
        // These are failures of nodes that the next job does not use.
        while self.failing.next_at() < computes {
            self.failing.take();
        }
        self.newest.fill(saved);
        self.start(saved, computes);
        self.job = begun;
    }

    /// The program computes from this checkpoint on.
    fn start(&mut self, index: u64, at: f64) {
        self.from = (index, at);
        self.seen = 0;
        match self.setting.conduct {
            Conduct::Chain => self.timeline.start_at(index),
            Conduct::Engine => self.timeline.start_all(),
        }
    }

    fn on_failure(&mut self, at: f64, kind: &Kind) {
        let time = at - self.from.1;
        let last = self.timeline.last(time);
        self.count(last, at);
        let mask = self.surviving(kind, at);
        if self.setting.conduct == Conduct::Chain {
            // A checkpoint that is being written is undone only by failures of its class or of a higher one.
            let written = self.timeline.written(last, time);
            let mut failed = Worse(mask, at);
            while class(failed.0) < written {
                let (own, begun) = (class(failed.0), failed.1);
                let recovered = self.recover(own, begun);
                self.tally_recovery(own, begun, &recovered);
                match recovered {
                    Ok(end) => {
                        self.from.1 += self.within(at, end);
                        return;
                    }
                    Err(worse) => failed = worse,
                }
            }
            return self.roll_back(last, time, failed);
        }
        self.roll_back(last, time, Worse(mask, at));
    }

    /// Returns which levels survive a failure, and notes what it has destroyed.
    fn surviving(&mut self, kind: &Kind, at: f64) -> Mask {
        let used = self.setting.pace.used;
        let all: Mask = ((1u16 << used) - 1) as Mask;
        let from = |least: Level| {
            let levels = self.setting.levels.iter().enumerate();
            levels.filter(|(_, level)| **level >= least).fold(0, |mask, (at, _)| mask | 1 << at)
        };
        let mask = match kind {
            Kind::Class(class) => all & !((1 << class) - 1),
            Kind::Process => all,
            Kind::Reboot(nodes) => from(Level::NodeReboot) & !self.beyond(nodes, at),
            Kind::Loss(nodes) => {
                let mask = from(Level::NodeLoss) & !self.beyond(nodes, at);
                self.replace(nodes, at);
                mask
            }
            Kind::System => {
                self.expose(at);
                from(Level::System)
            }
        };
        // The highest level is assumed to survive everything.
        let mask = mask | 1 << (used - 1);
        self.played.failures[class(mask)] += 1;
        let is_all = !matches!(kind, Kind::Class(_)) && self.setting.levels[class(mask)] == Level::System;
        self.played.lost_all += u64::from(is_all && used > 1);
        mask
    }

    /// The level of redundancy between nodes, if it does not survive the loss of these nodes' memory.
    fn beyond(&mut self, nodes: &Range<u32>, at: f64) -> Mask {
        self.expose(at);
        match (&mut self.lost, self.peers) {
            (Some(lost), Some(peers)) => Mask::from(!lost.lose(nodes.clone())) << peers,
            _ => 0,
        }
    }

    fn expose(&mut self, at: f64) {
        self.exposed = self.exposed.or(Some(at));
    }

    /// Sends lost nodes to be repaired.
    fn replace(&mut self, nodes: &Range<u32>, at: f64) {
        if let Some(spares) = self.setting.spares {
            while self.repaired.front().is_some_and(|back| *back <= at) {
                self.repaired.pop_front();
            }
            self.repaired.extend(nodes.clone().map(|_| at + spares.repair));
        }
    }

    /// When the job again has as many nodes as it needs.
    fn is_whole_at(&self, at: f64) -> f64 {
        let Some(spares) = self.setting.spares else { return at };
        let missing = self.repaired.len().checked_sub(spares.count as usize + 1);
        missing.and_then(|number| self.repaired.get(number)).map_or(at, |back| back.max(at))
    }

    /// Notes which checkpoints up to `last` count at a time.
    fn count(&mut self, last: u64, at: f64) {
        let (from, since) = self.from;
        for level in 0..self.setting.pace.used {
            let mut found = None;
            if let Some((index, counts)) = self.pending[level]
                && counts <= at
            {
                found = Some(index);
                self.pending[level] = None;
            }
            match self.setting.conduct {
                Conduct::Engine => {
                    let newest = self.timeline.newest(level, last, at - since);
                    found = newest.map(|newest| from + newest).or(found);
                }
                Conduct::Chain => {
                    let due = self.timeline.due(level, last).filter(|due| *due > self.seen);
                    if let Some(due) = due {
                        let every = self.setting.pace.every[level];
                        let counts = since + self.timeline.counts(level, due);
                        let before = due.checked_sub(every).filter(|before| *before > self.seen);
                        match counts <= at {
                            true => found = Some(from + due),
                            false => {
                                self.pending[level] = Some((from + due, counts));
                                let is_there = |index: &u64| since + self.timeline.counts(level, *index) <= at;
                                found = before.filter(is_there).map(|index| from + index).or(found);
                            }
                        }
                    }
                }
            }
            if let Some(found) = found.filter(|found| *found > self.newest[level]) {
                self.newest[level] = found;
                if Some(level) == self.peers {
                    self.on_exchanged(at);
                }
            }
        }
        self.seen = last;
    }

    /// Nodes keep for each other what they should, since the first exchange after the start.
    fn on_exchanged(&mut self, at: f64) {
        if let Some(since) = self.exposed.take() {
            let protected = self.from.1 + self.timeline.first_counts(self.peers.unwrap_or(0));
            self.played.exposed += (protected.min(at) - since).max(0.0);
        }
        if let Some(lost) = &mut self.lost {
            lost.on_exchanged();
        }
    }

    /// Returns to the newest state that survives a failure.
    fn roll_back(&mut self, last: u64, time: f64, mut failed: Worse) {
        let here = self.from.0 as f64 * self.setting.pace.segment + self.tally(last, time);
        let mut surviving = failed.0;
        loop {
            let Worse(mask, at) = failed;
            surviving &= mask;
            let levels = (0..self.setting.pace.used).filter(|level| surviving >> level & 1 == 1);
            let target = levels.clone().map(|level| self.newest[level]).max().unwrap_or(0);
            let chosen = match self.setting.conduct {
                Conduct::Chain => class(surviving),
                Conduct::Engine => levels.clone().find(|level| self.newest[*level] == target).unwrap_or(0),
            };
            self.lose_newer(surviving, target, chosen);
            let begun = self.is_whole_at(at);
            let recovered = self.recover(chosen, begun);
            let over = self.tally_recovery(chosen, begun, &recovered);
            self.played.waiting += self.within(at, begun.min(over));
            match recovered {
                Ok(end) => {
                    self.played.rework[chosen] += here - target as f64 * self.setting.pace.segment;
                    if let Some(lost) = &mut self.lost {
                        lost.on_recovered();
                    }
                    return self.start(target, end);
                }
                Err(worse) => failed = worse,
            }
        }
    }

    /// Updates what levels hold after a failure that `surviving` levels survive: nothing newer than the target, which
    /// nearer levels hold again.
    fn lose_newer(&mut self, surviving: Mask, target: u64, chosen: usize) {
        for level in 0..self.setting.pace.used {
            let is_kept = Some(level) == self.peers && self.setting.conduct == Conduct::Engine;
            let newest = &mut self.newest[level];
            *newest = match surviving >> level & 1 == 1 {
                true => {
                    if level < chosen && !is_kept {
                        target
                    } else {
                        (*newest).min(target)
                    }
                }
                false if level < chosen && !is_kept => target,
                false => 0,
            };
            // Flushes to a higher level outlive the failure, if the rules let flushes outlive anything.
            let outlives = self.setting.conduct == Conduct::Chain && level > chosen;
            self.pending[level] = self.pending[level].filter(|_| outlives);
        }
    }

    fn tally_recovery(&mut self, level: usize, begun: f64, recovered: &Result<f64, Worse>) -> f64 {
        let over = match recovered {
            Ok(end) => *end,
            Err(Worse(_, at)) => *at,
        };
        self.played.recovering[level] += self.within(begun, over);
        over
    }

    /// When a recovery from a level that begins at `begun` ends, or the failure that cuts it short.
    fn recover(&mut self, own: usize, begun: f64) -> Result<f64, Worse> {
        let takes = self.setting.recoveries[own];
        let mut end = begun + takes;
        while self.failing.next_at() < end {
            let (at, kind) = self.failing.take();
            let mask = self.surviving(&kind, at);
            let other = class(mask);
            if self.setting.conduct == Conduct::Engine || other > own {
                return Err(Worse(mask, at));
            }
            if other == own {
                end = at + takes;
                continue;
            }
            match self.recover(other, at) {
                Ok(over) => end += over - at,
                Err(Worse(worse, when)) if class(worse) > own => return Err(Worse(worse, when)),
                Err(Worse(_, when)) => end = when + takes,
            }
        }
        Ok(end)
    }
}

/// The lowest level that survives.
fn class(mask: Mask) -> usize {
    mask.trailing_zeros() as usize
}
