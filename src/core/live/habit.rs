//! Decides whether a region is worth protecting, or is overwritten so fast that copying it at once costs the program less. Pure.
//!
//! A block that is copied because the program waits for it costs seven times its share of a copy in one pass (17 to 19 us against 2.6 us
//! for 64 KiB), so one pass is cheaper if the program waits for about 15 % of the blocks or more.
#![forbid(unsafe_code)]

/// The maximum percentage of the blocks for which the program may wait.
const PERCENT_MAX: u64 = 15;
/// The number of captures that copy a region at once, after a capture in which protection was not worthwhile.
const PAUSE: u32 = 8;

/// What earlier captures have shown about a region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Habit {
    /// The number of captures that are still to copy the region at once.
    pause: u32,
}

impl Habit {
    /// Does this capture leave the region to be copied later?
    pub fn on_capture(&mut self) -> bool {
        let is_live = self.pause == 0;
        self.pause = self.pause.saturating_sub(1);
        is_live
    }

    /// Records that the region has been copied, and that the program waited for `waited` of its `blocks` blocks. Returns true if these were
    /// too many.
    pub fn on_copied(&mut self, waited: u64, blocks: u64) -> bool {
        let is_too_much = waited * 100 > blocks * PERCENT_MAX;
        if is_too_much {
            self.pause = PAUSE;
        }
        is_too_much
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_that_is_written_at_once_is_copied_at_once_for_eight_captures() {
        let mut habit = Habit::default();
        assert!(habit.on_capture() && !habit.on_copied(15, 100) && habit.on_capture());
        assert!(habit.on_copied(16, 100));
        assert_eq!((0..10).map(|_| habit.on_capture()).filter(|is_live| !is_live).count(), 8);
        assert!(habit.on_capture() && !habit.on_copied(0, 0));
    }
}
