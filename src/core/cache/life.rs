//! The life cycle of one copy of a version on one tier: one table of legal transitions (HPDC'23, figure 1).
//!
//! Each tier that holds a version has a copy of it with a state of its own. The table goes beyond the figure in three
//! places, which the figure's text implies: a consumed copy can be claimed again, because a persistent version may be
//! read many times; it can be wanted again, when the copy above it that was to be read is dropped or when a further
//! hint names it; and a flushed copy is exposed again when the copy below it fails.
#![forbid(unsafe_code)]

use std::fmt::Write;

/// Where a copy is in its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum State {
    /// It has space, but no bytes yet.
    Init,
    /// The application or a link writes it, on the way down.
    WriteInProgress,
    /// Its bytes are whole. No tier below has them.
    WriteComplete,
    /// Its bytes are whole, and a tier below also has them.
    Flushed,
    /// A link writes it, on the way up.
    ReadInProgress,
    /// Its bytes are whole and about to be read: it stays until they have been read.
    ReadComplete,
    /// It was read, or brought to a faster tier. Of all copies, this one is missed least.
    Consumed,
}

/// What takes a copy from one state to the next.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Step {
    /// A copy from a faster tier, or from the application, begins.
    Write,
    /// That copy has succeeded.
    Written,
    /// A tier below has the bytes.
    Flush,
    /// No tier below has the bytes any more.
    Expose,
    /// A copy from a slower tier begins.
    Fetch,
    /// That copy has succeeded.
    Fetched,
    /// The prefetcher or a read reaches it.
    Claim,
    /// It was read, or a copy above it now stands in for it.
    Consume,
    /// It is to be read (again), and no copy above stands in for it.
    Want,
}

use State::{Consumed, Flushed, Init, ReadComplete, ReadInProgress, WriteComplete, WriteInProgress};

/// All legal transitions. What is not here does not happen.
pub const TABLE: &[(State, Step, State)] = &[
    (Init, Step::Write, WriteInProgress),
    (WriteInProgress, Step::Written, WriteComplete),
    (WriteComplete, Step::Flush, Flushed),
    (Flushed, Step::Expose, WriteComplete),
    (Init, Step::Fetch, ReadInProgress),
    (ReadInProgress, Step::Fetched, ReadComplete),
    (WriteComplete, Step::Claim, ReadComplete),
    (Flushed, Step::Claim, ReadComplete),
    (Consumed, Step::Claim, ReadComplete),
    (ReadComplete, Step::Consume, Consumed),
    (Consumed, Step::Want, WriteComplete),
];

/// The state after `step`, if that step is legal in `state`.
pub fn next(state: State, step: Step) -> Option<State> {
    TABLE.iter().find(|(from, by, _)| (*from, *by) == (state, step)).map(|(_, _, to)| *to)
}

impl State {
    /// Whether the copy's bytes are whole.
    pub fn is_whole(self) -> bool {
        matches!(self, WriteComplete | Flushed | ReadComplete | Consumed)
    }

    /// Whether a copy in this state may make room for another. For a consumed copy, its version must also be one
    /// that may be discarded, or a tier below must have it; for a flushed copy, the latter is so by definition.
    pub fn may_leave(self) -> bool {
        matches!(self, Flushed | Consumed)
    }
}

/// The table as a Mermaid state diagram.
pub fn drawing() -> String {
    let mut text = String::from("stateDiagram-v2\n    [*] --> Init\n");
    for (from, step, to) in TABLE {
        writeln!(text, "    {from:?} --> {to:?} : {step:?}").expect("a string takes all that is written");
    }
    for state in [Flushed, Consumed] {
        writeln!(text, "    {state:?} --> [*] : evicted").expect("a string takes all that is written");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const STATES: [State; 7] = [Init, WriteInProgress, WriteComplete, Flushed, ReadInProgress, ReadComplete, Consumed];

    #[test]
    fn the_guide_shows_this_table() {
        assert!(include_str!("../../../docs/GPU.md").contains(&drawing()), "paste into docs/GPU.md:\n{}", drawing());
    }

    #[test]
    fn a_step_leads_to_one_state_only() {
        let keys: BTreeSet<_> = TABLE.iter().map(|(from, step, _)| (*from, *step)).collect();
        assert_eq!(keys.len(), TABLE.len());
    }

    #[test]
    fn every_state_is_reached_from_init_and_leads_to_one_that_may_leave() {
        let reach = |from: State| {
            let mut seen = BTreeSet::from([from]);
            while let Some((_, _, to)) = TABLE.iter().find(|(at, _, to)| seen.contains(at) && !seen.contains(to)) {
                seen.insert(*to);
            }
            seen
        };
        assert_eq!(reach(Init), BTreeSet::from(STATES));
        assert!(STATES.iter().all(|state| reach(*state).iter().any(|state| state.may_leave())));
    }

    #[test]
    fn what_is_prefetched_leaves_by_being_consumed_only() {
        let exits: Vec<_> = TABLE.iter().filter(|(from, _, _)| *from == ReadComplete).collect();
        assert_eq!(exits, [&(ReadComplete, Step::Consume, Consumed)]);
        assert!(!ReadComplete.may_leave() && !WriteComplete.may_leave());
        assert_eq!(next(ReadInProgress, Step::Consume), None);
    }

    #[test]
    fn the_drawing_has_every_transition() {
        let drawing = drawing();
        assert_eq!(drawing.lines().count(), 2 + TABLE.len() + 2);
        assert!(drawing.starts_with("stateDiagram-v2\n    [*] --> Init\n"));
        assert!(drawing.contains("    ReadInProgress --> ReadComplete : Fetched\n"));
    }
}
