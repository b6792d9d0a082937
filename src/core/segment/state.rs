//! The life of a slot: four states and the moves between them.
//!
//! The drawing is in the module documentation of [`super`]; [`SlotState::may_become`] is the table.
#![forbid(unsafe_code)]

use std::fmt;

/// Names a sealed slot of this process. A slot that is used again gets another id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotId {
    pub(super) index: u32,
    pub(super) uses: u64,
}

/// What a slot of the segment is doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SlotState {
    /// Not in use.
    Empty,
    /// Its rank is copying into it. After a crash: torn, never to be read.
    Writing,
    /// Complete; the bytes do not change any more. The only state that a restart may read.
    Sealed,
    /// Given up; the last reader has not finished yet.
    Retired,
}

impl SlotState {
    /// All states, in the order of their codes.
    pub const ALL: [SlotState; 4] = [SlotState::Empty, SlotState::Writing, SlotState::Sealed, SlotState::Retired];

    /// The state's code in the segment. Zero is `Empty`, so a new file of zeros has only empty slots.
    pub(super) fn code(self) -> u64 {
        match self {
            SlotState::Empty => 0,
            SlotState::Writing => 1,
            SlotState::Sealed => 2,
            SlotState::Retired => 3,
        }
    }

    /// The state with this code, if there is one.
    pub(super) fn from_code(code: u64) -> Option<SlotState> {
        SlotState::ALL.into_iter().find(|state| state.code() == code)
    }

    /// The table of legal moves. Every other pair of states is a bug.
    pub fn may_become(self, next: SlotState) -> bool {
        use SlotState::{Empty, Retired, Sealed, Writing};
        matches!(
            (self, next),
            (Empty, Writing)     // reserve
                | (Writing, Sealed)  // seal
                | (Writing, Empty)   // abandon: nobody has seen it
                | (Sealed, Retired)  // retire
                | (Retired, Empty) // the last reader is gone
        )
    }
}

impl fmt::Display for SlotState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SlotState::Empty => "empty",
            SlotState::Writing => "writing",
            SlotState::Sealed => "sealed",
            SlotState::Retired => "retired",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_five_moves_are_legal() {
        let mut moves = Vec::new();
        for from in SlotState::ALL {
            for to in SlotState::ALL {
                if from.may_become(to) {
                    moves.push(format!("{from} > {to}"));
                }
            }
        }
        assert_eq!(
            moves,
            ["empty > writing", "writing > empty", "writing > sealed", "sealed > retired", "retired > empty"]
        );
    }

    #[test]
    fn codes_read_back_and_others_are_refused() {
        for state in SlotState::ALL {
            assert_eq!(SlotState::from_code(state.code()), Some(state));
        }
        assert_eq!(SlotState::from_code(4), None);
        assert_eq!(SlotState::from_code(u64::MAX), None);
    }
}
