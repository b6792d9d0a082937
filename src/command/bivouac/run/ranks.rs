//! Which numbers of ranks a job may have, and which of them its newest checkpoints allow. Pure.
#![forbid(unsafe_code)]

use crate::output::plain;
use bivouac_core::format::supervision::{NewestStatus, Status};
use std::fmt;

/// The maximum number of entries in a list: a mistyped list must not fill the memory.
const NUMBERS_MAX: usize = 10_000;

/// The numbers of ranks that a job may have, as `--ranks` gives them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Allowed {
    /// The text as the user wrote it.
    text: String,
    spans: Vec<Span>,
}

/// The numbers from one to another, in steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Span {
    first: u32,
    last: u32,
    step: u32,
}

impl Span {
    /// Parses `6`, `4..16` or `4..16/2`.
    fn parse(text: &str) -> Result<Span, String> {
        let number = |text: &str, what: &str| {
            let number = text.trim().parse::<u32>().ok().filter(|number| *number > 0);
            number.ok_or_else(|| format!("{text:?} is not a {what}"))
        };
        let Some((first, rest)) = text.split_once("..") else {
            let only = number(text, "number of ranks")?;
            return Ok(Span { first: only, last: only, step: 1 });
        };
        let (last, step) = match rest.split_once('/') {
            Some((last, step)) => (last, number(step, "step from one number to the next")?),
            None => (rest, 1),
        };
        let (first, last) = (number(first, "number of ranks")?, number(last, "number of ranks")?);
        if first > last {
            return Err(format!("{text:?} runs backwards: write the smaller number first, {last}..{first}"));
        }
        Ok(Span { first, last, step })
    }

    fn has(self, ranks: u32) -> bool {
        (self.first..=self.last).contains(&ranks) && (ranks - self.first).is_multiple_of(self.step)
    }

    /// The largest number up to `room`.
    fn largest(self, room: u64) -> Option<u32> {
        let most = u64::from(self.last).min(room);
        let most = u32::try_from(most).ok().filter(|most| *most >= self.first)?;
        Some(most - (most - self.first) % self.step)
    }
}

impl Allowed {
    /// Parses `4..16`, `4..16/2` (every second number, starting with 4), `4,6,9`, or several of these separated by commas.
    ///
    /// # Errors
    /// A part cannot be read; the error says which.
    pub fn parse(text: &str) -> Result<Allowed, String> {
        if text.trim().is_empty() {
            return Err("it is empty: write a range such as 4..16, 4..16/2, or a list such as 4,6,9".into());
        }
        let spans: Vec<Span> = text.split(',').map(Span::parse).collect::<Result<_, _>>()?;
        if spans.len() > NUMBERS_MAX {
            return Err(format!("the list has more than {NUMBERS_MAX} numbers"));
        }
        Ok(Allowed { text: text.to_owned(), spans })
    }

    /// May the job have this many ranks?
    pub fn has(&self, ranks: u32) -> bool {
        self.spans.iter().any(|span| span.has(ranks))
    }

    /// The largest allowed number that is not more than `room`.
    pub fn largest(&self, room: u64) -> Option<u32> {
        self.spans.iter().filter_map(|span| span.largest(room)).max()
    }

    /// The smallest allowed number.
    pub fn least(&self) -> u32 {
        self.spans.iter().map(|span| span.first).min().unwrap_or(1)
    }

    /// The largest allowed number.
    pub fn most(&self) -> u32 {
        self.largest(u64::MAX).unwrap_or(1)
    }
}

impl fmt::Display for Allowed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Only this many ranks can restore the newest checkpoint of a series.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Binding {
    /// The number of ranks that took it.
    pub ranks: u32,
    /// Which checkpoint it is, and the regions that bind it.
    why: String,
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl Binding {
    /// The binding of one checkpoint.
    pub fn of(group: &str, newest: &NewestStatus) -> Binding {
        let NewestStatus { name, version, ranks, bound, .. } = newest;
        let (name, of_group) =
            (plain(name), if group == "world" { String::new() } else { format!(" of group {}", plain(group)) });
        let why = format!(
            "{name:?} version {version}{of_group} can be restored only by the {ranks} ranks that took it, because of the regions {}",
            plain(&bound.to_string())
        );
        Binding { ranks: *ranks, why }
    }

    /// What the sessions of a run directory have reported last: `None` if any number of ranks can restore the newest version of each
    /// series, or if nothing was committed. If several series are bound, the one that was committed last counts.
    pub fn in_statuses<'a>(statuses: impl Iterator<Item = &'a Status>) -> Option<Binding> {
        let told = statuses.flat_map(|status| {
            let bound = status.newest.iter().filter(|newest| !newest.bound.is_free());
            let bound = bound.map(|newest| (newest.unix, Binding::of(&status.group, newest)));
            bound.chain(untold(status))
        });
        told.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, binding)| binding)
    }
}

/// The binding of a series whose session does not say who can restore it, because the session is of an earlier version of Bivouac.
fn untold(status: &Status) -> Option<(f64, Binding)> {
    let is_told = |name: &str| status.newest.iter().any(|newest| newest.name == name);
    let series = status.series.iter().find(|series| !is_told(&series.name))?;
    let why = format!(
        "{:?} version {} was taken by {} ranks, and its session does not say whether another number of ranks can restore it: the program \
         uses an older version of Bivouac",
        plain(&series.name),
        series.version,
        status.ranks
    );
    Some((series.unix, Binding { ranks: status.ranks, why }))
}

/// How a program enables other numbers of ranks to restore its checkpoints; for messages.
pub const HOW_TO_RESIZE: &str = "save them with save_on, shared, or per_rank with OnResize::Drop or Ask, and any number of ranks can \
                                 restore them (docs/ELASTIC.md)";

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_core::format::supervision::{Bound, SeriesStatus};
    use proptest::prelude::*;

    fn numbers(text: &str) -> Vec<u32> {
        let allowed = Allowed::parse(text).unwrap();
        (0..40).filter(|ranks| allowed.has(*ranks)).collect()
    }

    #[test]
    fn ranges_steps_and_lists_are_read() {
        assert_eq!(numbers("4..8"), [4, 5, 6, 7, 8]);
        assert_eq!(numbers("4..16/4"), [4, 8, 12, 16]);
        assert_eq!(numbers("3..9/4"), [3, 7]);
        assert_eq!(numbers("9, 4,6"), [4, 6, 9]);
        assert_eq!(numbers("1,8..16/8"), [1, 8, 16]);
        assert_eq!(numbers("6"), [6]);
        let allowed = Allowed::parse("3..9/4,2").unwrap();
        assert_eq!((allowed.least(), allowed.most(), allowed.to_string()), (2, 7, "3..9/4,2".to_owned()));
    }

    #[test]
    fn what_is_no_range_is_refused_with_the_reason() {
        for (text, word) in [
            ("", "empty"),
            (" ", "empty"),
            ("0", "\"0\" is not a number"),
            ("0..4", "\"0\" is not a number"),
            ("4,,6", "\"\" is not a number"),
            ("4..", "\"\" is not a number"),
            ("..4", "\"\" is not a number"),
            ("16..4", "4..16"),
            ("4..16/0", "step"),
            ("4..16/", "step"),
            ("4-16", "4-16"),
            ("-4", "-4"),
            ("4294967296", "4294967296"),
        ] {
            let why = Allowed::parse(text).unwrap_err();
            assert!(why.contains(word), "{text:?}: {why}");
        }
        assert!(Allowed::parse(&"1,".repeat(20_000)).is_err());
    }

    proptest! {
        #[test]
        fn the_largest_that_fits_is_allowed_and_no_larger_one_fits(
            spans in prop::collection::vec((1u32..60, 0u32..60, 1u32..9), 1..5), room in 0u64..130,
        ) {
            let words: Vec<String> = spans.iter().map(|(first, more, step)| format!("{first}..{}/{step}", first + more)).collect();
            let allowed = Allowed::parse(&words.join(",")).unwrap();
            let fitting = (1..=120u32).filter(|ranks| allowed.has(*ranks) && u64::from(*ranks) <= room).max();
            prop_assert_eq!(allowed.largest(room), fitting);
            prop_assert!(allowed.has(allowed.least()) && allowed.has(allowed.most()));
        }
    }

    fn newest(name: &str, ranks: u32, unix: f64, regions: &[&str]) -> NewestStatus {
        NewestStatus { name: name.into(), version: 70, ranks, unix, bound: Bound::of(regions.iter().copied()) }
    }

    #[test]
    fn the_checkpoint_that_was_committed_last_says_how_many_ranks_there_must_be() {
        let status = |newest| Status { group: "world".into(), newest, ..Status::new() };
        let binding = |newest| Binding::in_statuses([status(newest)].iter());
        assert_eq!(binding(Vec::new()), None);
        assert_eq!(binding(vec![newest("heat", 8, 5.0, &[])]), None);
        let all =
            vec![newest("old", 6, 4.0, &["x"]), newest("heat", 8, 5.0, &["state", "rng"]), newest("free", 4, 9.0, &[])];
        let found = binding(all).unwrap();
        assert_eq!(found.ranks, 8);
        assert!(found.to_string().contains(r#""heat" version 70 can be restored only by the 8 ranks"#), "{found}");
        assert!(found.to_string().ends_with(r#"because of the regions "state", "rng""#), "{found}");
    }

    #[test]
    fn a_session_that_does_not_say_who_can_restore_it_is_not_resized() {
        let series = vec![SeriesStatus { name: "heat".into(), version: 3, ..SeriesStatus::default() }];
        let status = Status { ranks: 8, series, ..Status::new() };
        let found = Binding::in_statuses([status].iter()).unwrap();
        assert!(found.ranks == 8 && found.to_string().contains("older version"), "{found}");
    }
}
