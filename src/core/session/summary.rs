//! The lines that the root writes for people: a session's settings when it opens, its restarts, and its results when it closes.
//! Pure.
#![forbid(unsafe_code)]

use crate::base::log::Level;
use crate::base::units::Bytes;
use crate::format::supervision::{RestoredFrom, SeriesStatus};
use crate::tier::TierId;
use crate::transfer::Stats;

/// The maximum number of series that a line names.
pub(super) const SERIES_NAMED: usize = 4;

/// A tier, as the root sees it.
pub(super) enum TierState {
    /// The tier is on. `bytes` is the budget of node memory, or the free bytes of a file system if it reports them.
    On { place: String, bytes: Option<u64> },
    /// The tier is switched off.
    Disabled,
    /// The tier was wanted but cannot be used, for this reason.
    Lost(String),
}

/// The content of the opening line.
pub(super) struct Opening<'a> {
    pub job: &'a str,
    pub group: &'a str,
    pub ranks: u32,
    pub nodes: u32,
    pub generation: u64,
    /// The tiers, nearest first.
    pub tiers: Vec<(TierId, TierState)>,
    /// The schemes in use, or why there are none.
    pub redundancy: Result<Vec<String>, String>,
    /// The newest committed version of each series that the root can see, and its tier, whose name is in `level`. A restart asks all ranks,
    /// and may choose another version. `None` if a file system has not answered in time.
    pub found: Option<Vec<SeriesStatus>>,
}

impl Opening<'_> {
    /// Is anything that was wanted missing?
    pub fn is_loss(&self) -> bool {
        self.redundancy.is_err() || self.tiers.iter().any(|(_, state)| matches!(state, TierState::Lost(_)))
    }

    /// The opening line: `job heat-0c7a11f2, run 3: 8 ranks on 2 nodes; memory /dev/shm 2.0 GiB; …`
    pub fn line(&self) -> String {
        let group = if self.group == "world" { String::new() } else { format!(" group {}", self.group) };
        let mut parts = vec![format!(
            "job {}{group}, run {}: {} on {}",
            self.job,
            self.generation,
            count(u64::from(self.ranks), "rank"),
            count(u64::from(self.nodes), "node")
        )];
        parts.extend(self.tiers.iter().map(|(tier, state)| match state {
            TierState::On { place, bytes } => {
                let free = if *tier == TierId::MEMORY { "" } else { " free" };
                let size = bytes.map_or_else(String::new, |bytes| format!(" ({}{free})", Bytes(bytes)));
                format!("{tier} {place}{size}")
            }
            TierState::Disabled => format!("{tier} off"),
            TierState::Lost(why) => format!("{tier} OFF ({why})"),
        }));
        parts.push(match &self.redundancy {
            Ok(schemes) if schemes.is_empty() => "redundancy off".into(),
            Ok(schemes) => format!("redundancy {}", schemes.join(", ")),
            Err(why) => format!("redundancy OFF ({why})"),
        });
        let name = |found: &SeriesStatus| format!("{:?} version {} ({})", found.name, found.version, found.level);
        let found = self.found.as_deref().unwrap_or_default();
        let mut named: Vec<String> = found.iter().take(SERIES_NAMED).map(name).collect();
        match found.len() {
            0 if self.found.is_none() => named.push("not known yet (the file systems are slow)".into()),
            0 => named.push("nothing".into()),
            many if many > SERIES_NAMED => named.push(format!("{} more series", many - SERIES_NAMED)),
            _ => {}
        }
        parts.push(format!("newest found: {}", named.join(", ")));
        parts.join("; ")
    }
}

/// The line of a restart: `job heat-0c7a11f2, run 3 restored "heat" version 600 of run 2 in 1.2 s; …` The version was taken by `then` ranks
/// and restored on `now` ranks.
pub(super) fn restored(job: &str, generation: u64, restored: &RestoredFrom, (then, now): (u32, u32)) -> String {
    let RestoredFrom { name, version, generation: from, seconds, .. } = restored;
    let mut parts = vec![format!(
        "job {job}, run {generation} restored {name:?} version {version} of run {from} in {seconds:.3} s"
    )];
    if then != now {
        let ranks = count(u64::from(then), "rank");
        parts.push(format!("taken by {ranks}, restored on {now}; threads and pages stay where they are"));
    }
    if restored.bytes > 0 {
        parts.push(format!("rank 0 read {} from {}", Bytes(restored.bytes), restored.tier));
    }
    parts.join("; ")
}

/// The closing line: `job heat-0c7a11f2, run 3 closed after 61 s: 12 checkpoints; committed memory 12, …`
pub(super) fn closing(job: &str, generation: u64, seconds: f64, stats: &Stats) -> String {
    let listed = |of: &dyn Fn(TierId) -> u64| {
        let counted = TierId::all().map(|tier| (tier, of(tier))).filter(|(_, count)| *count > 0);
        counted.map(|(tier, count)| format!("{tier} {count}")).collect::<Vec<_>>().join(", ")
    };
    let committed = listed(&|tier| stats.committed[tier]);
    let mut parts = vec![format!(
        "job {job}, run {generation} closed after {seconds:.1} s: {}, committed: {}",
        count(stats.captured + stats.declined, "checkpoint"),
        if committed.is_empty() { "none" } else { &committed }
    )];
    if stats.captured > 0 {
        parts.push(format!(
            "rank 0 handed over {} and was blocked {:.3} s in all, {:.3} s at most",
            Bytes(stats.bytes_captured),
            stats.blocked_total.as_secs_f64(),
            stats.blocked_max.as_secs_f64()
        ));
    }
    let (marks, unaudited) = (&stats.offload, stats.unaudited);
    if marks.marks > 0 {
        parts.push(format!("{} marked and sent from GPU memory, {} of them refused", marks.marks, marks.refused));
    }
    if stats.live.regions > 0 {
        parts.push(format!("{} copied after captures", count(stats.live.regions, "region")));
    }
    if unaudited > 0 {
        parts.push(format!("{} unaudited", count(unaudited, "capture")));
    }
    let refused = listed(&|tier| stats.level_failures[tier]);
    let at_call = if stats.abandoned > 0 { format!("{} at the call", stats.abandoned) } else { String::new() };
    let refused: Vec<String> = [at_call, refused].into_iter().filter(|text| !text.is_empty()).collect();
    if !refused.is_empty() {
        parts.push(format!("REFUSED: {}", refused.join(", ")));
    }
    if stats.in_flight > 0 {
        parts.push(format!("STILL BEING WRITTEN: {}", stats.in_flight));
    }
    parts.join("; ")
}

/// The log level of a line: a warning if the line reports a loss.
pub(super) fn importance(is_loss: bool) -> Level {
    if is_loss { Level::Warn } else { Level::Info }
}

fn count(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn series(name: &str, version: u64) -> SeriesStatus {
        SeriesStatus { name: name.into(), level: "global".into(), version, unix: 0.0 }
    }

    #[test]
    fn the_line_of_a_restart_says_which_version_and_who_took_it() {
        let mut found = RestoredFrom {
            name: "heat".into(),
            version: 600,
            generation: 2,
            tier: "global".into(),
            bytes: 3 << 30,
            seconds: 1.2341,
            elect_seconds: 0.0,
            unix: 0.0,
        };
        assert_eq!(
            restored("heat-1", 3, &found, (8, 8)),
            "job heat-1, run 3 restored \"heat\" version 600 of run 2 in 1.234 s; rank 0 read 3 GiB from global"
        );
        found.bytes = 0;
        assert_eq!(
            restored("heat-1", 3, &found, (1, 8)),
            "job heat-1, run 3 restored \"heat\" version 600 of run 2 in 1.234 s; taken by 1 rank, restored on 8; threads and pages stay \
             where they are"
        );
    }

    #[test]
    fn the_line_of_an_opening_has_each_tier_and_why_one_is_off() {
        let on = |place: &str, bytes| TierState::On { place: place.into(), bytes: Some(bytes) };
        let mut opening = Opening {
            job: "heat-1",
            group: "world",
            ranks: 8,
            nodes: 2,
            generation: 3,
            tiers: vec![
                (TierId::MEMORY, on("/dev/shm", 2 << 30)),
                (TierId::LOCAL, TierState::Disabled),
                (TierId::GLOBAL, TierState::Lost("all 8 ranks: no such file".into())),
            ],
            redundancy: Ok(vec!["xor(4)".into()]),
            found: Some((0..6).map(|at| series(&format!("s{at}"), at)).collect()),
        };
        assert_eq!(
            opening.line(),
            "job heat-1, run 3: 8 ranks on 2 nodes; memory /dev/shm (2 GiB); local off; \
             global OFF (all 8 ranks: no such file); redundancy xor(4); newest found: \"s0\" version 0 (global), \
             \"s1\" version 1 (global), \"s2\" version 2 (global), \"s3\" version 3 (global), 2 more series"
        );
        (opening.ranks, opening.nodes, opening.group) = (1, 1, "left");
        (opening.found, opening.redundancy) = (Some(Vec::new()), Err("one node".into()));
        let line = opening.line();
        assert!(line.starts_with("job heat-1 group left, run 3: 1 rank on 1 node; "), "{line}");
        assert!(line.ends_with("; redundancy OFF (one node); newest found: nothing"), "{line}");
        opening.found = None;
        let line = opening.line();
        assert!(line.ends_with("; newest found: not known yet (the file systems are slow)"), "{line}");
    }

    #[test]
    fn the_line_of_a_closing_has_what_was_refused() {
        let mut stats = Stats::default();
        assert_eq!(
            closing("heat", 1, 2.0, &stats),
            "job heat, run 1 closed after 2.0 s: 0 checkpoints, committed: none"
        );
        (stats.captured, stats.abandoned, stats.declined, stats.in_flight) = (12, 2, 1, 1);
        (stats.committed[TierId::MEMORY], stats.committed[TierId::GLOBAL], stats.level_failures[TierId::GLOBAL]) =
            (12, 3, 2);
        (stats.blocked_total, stats.blocked_max) = (Duration::from_millis(1500), Duration::from_millis(400));
        stats.bytes_captured = 3 << 29;
        (stats.offload.marks, stats.offload.refused, stats.live.regions, stats.unaudited) = (5, 1, 1, 2);
        assert_eq!(
            closing("heat", 1, 61.26, &stats),
            "job heat, run 1 closed after 61.3 s: 13 checkpoints, committed: memory 12, global 3; rank 0 handed over \
             1.5 GiB and was blocked 1.500 s in all, 0.400 s at most; 5 marked and sent from GPU memory, 1 of them refused; 1 region copied after captures; \
             2 captures unaudited; REFUSED: 2 at the call, global 2; \
             STILL BEING WRITTEN: 1"
        );
    }
}
