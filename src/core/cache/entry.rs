//! One version and its copies.
#![forbid(unsafe_code)]

use super::life::{self, State, Step};
use super::queue::{Place, QUEUES};
use super::{Keep, Link, Piece, TRIES_MAX, Tier};

/// The copy of a version on one tier.
#[derive(Clone, Debug)]
pub(super) struct Copy {
    pub state: State,
    pub pieces: Vec<Piece>,
    /// Jobs that read or write it, and the application that writes it.
    pub users: u32,
    /// Reads of the application that are not done.
    pub readers: u32,
    /// It leaves as soon as nothing uses it, and is used for nothing new.
    pub doomed: bool,
}

impl Copy {
    /// A copy that something is about to write.
    pub fn new(pieces: Vec<Piece>, step: Step) -> Copy {
        let mut copy = Copy { state: State::Init, pieces, users: 1, readers: 0, doomed: false };
        copy.step(step);
        copy
    }

    /// Takes a legal step.
    pub fn step(&mut self, step: Step) {
        let next = life::next(self.state, step);
        self.state = next.unwrap_or_else(|| panic!("{step:?} is not legal in {:?}", self.state));
    }

    /// Whether its bytes can be read.
    pub fn is_good(&self) -> bool {
        !self.doomed && self.state.is_whole()
    }

    pub fn is_idle(&self) -> bool {
        self.users + self.readers == 0
    }
}

/// A version with its copies.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub bytes: u64,
    pub keep: Keep,
    /// Rises with each version that is admitted.
    pub serial: u64,
    /// It was read at least once.
    pub read: bool,
    pub copies: [Option<Copy>; 3],
    /// Failed tries per link.
    pub failures: [u32; 4],
    /// Which links move it now.
    pub flying: [bool; 4],
    /// Where the application is writing it.
    pub writing: Option<Tier>,
    /// All copies are doomed: it is as good as gone.
    pub leaving: bool,
    /// Its place in the queues.
    pub places: [Option<Place>; QUEUES],
}

impl Entry {
    pub fn new(bytes: u64, keep: Keep, serial: u64, tier: Tier, pieces: Vec<Piece>) -> Entry {
        let mut copies = [None, None, None];
        copies[tier as usize] = Some(Copy::new(pieces, Step::Write));
        let writing = Some(tier);
        let (failures, flying) = ([0; 4], [false; 4]);
        Entry {
            bytes,
            keep,
            serial,
            read: false,
            copies,
            failures,
            flying,
            writing,
            leaving: false,
            places: [None; QUEUES],
        }
    }

    pub fn copy(&self, tier: Tier) -> Option<&Copy> {
        self.copies[tier as usize].as_ref()
    }

    pub fn copy_mut(&mut self, tier: Tier) -> Option<&mut Copy> {
        self.copies[tier as usize].as_mut()
    }

    /// The copy on a tier, if its bytes can be read.
    pub fn good(&self, tier: Tier) -> Option<&Copy> {
        self.copy(tier).filter(|copy| copy.is_good())
    }

    /// The fastest tier with a copy that can be read.
    pub fn best(&self) -> Option<Tier> {
        Tier::ALL.into_iter().find(|tier| self.good(*tier).is_some())
    }

    /// Whether a tier below `tier` has a good copy.
    pub fn is_below(&self, tier: Tier) -> bool {
        Tier::ALL.into_iter().any(|below| below > tier && self.good(below).is_some())
    }

    pub fn has_readers(&self) -> bool {
        self.copies.iter().flatten().any(|copy| copy.readers > 0)
    }

    pub fn is_flying(&self, link: Link) -> bool {
        self.flying[link as usize]
    }

    /// Whether a link is to flush it, if there is room.
    pub fn needs_flush(&self, link: Link) -> bool {
        let Some(copy) = self.good(link.from()) else { return false };
        let useful = match self.keep {
            Keep::All => true,
            Keep::UntilRead => copy.state == State::WriteComplete,
        };
        useful
            && !self.is_below(link.from())
            && self.copy(link.to()).is_none()
            && self.failures[link as usize] < TRIES_MAX
    }

    /// Whether its copy may leave a tier at once.
    pub fn may_leave(&self, tier: Tier) -> bool {
        self.copy(tier).is_some_and(|copy| !copy.doomed && copy.is_idle()) && self.is_dispensable(tier)
    }

    /// Whether nothing is lost without its copy on a tier: a slower tier has the bytes or, if the version is discarded once
    /// it has been read, any other tier has them.
    pub fn is_dispensable(&self, tier: Tier) -> bool {
        let has_other = || Tier::ALL.into_iter().any(|other| other != tier && self.good(other).is_some());
        let spared = || self.is_consumed(tier) && self.keep == Keep::UntilRead && has_other();
        self.copy(tier).is_some_and(|copy| copy.state.may_leave()) && (self.is_below(tier) || spared())
    }

    pub fn is_consumed(&self, tier: Tier) -> bool {
        self.copy(tier).is_some_and(|copy| copy.state == State::Consumed)
    }

    /// Brings the states of all copies into line after something has changed. `wanted` says whether the
    /// version will be read (again).
    ///
    /// The fastest claimed copy stands in for those below, which are thereby consumed. When that copy is gone, or the
    /// version becomes wanted again, they are unread again. A copy is flushed while there is a good one below it.
    pub fn settle(&mut self, wanted: bool) {
        let mut claimed = false;
        for tier in Tier::ALL {
            let below = self.is_below(tier);
            let Some(copy) = self.copy_mut(tier).filter(|copy| copy.is_good()) else { continue };
            match copy.state {
                State::ReadComplete if copy.readers == 0 && (claimed || !wanted) => copy.step(Step::Consume),
                State::ReadComplete => claimed = true,
                State::WriteComplete | State::Flushed if claimed || !wanted => {
                    copy.step(Step::Claim);
                    copy.step(Step::Consume);
                }
                State::Consumed if wanted && !claimed => copy.step(Step::Want),
                _ => {}
            }
            match copy.state {
                State::WriteComplete if below => copy.step(Step::Flush),
                State::Flushed if !below => copy.step(Step::Expose),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(states: [Option<State>; 3]) -> Entry {
        let mut entry = Entry::new(1, Keep::UntilRead, 0, Tier::Device, Vec::new());
        let copy = |state| Copy { state, pieces: Vec::new(), users: 0, readers: 0, doomed: false };
        entry.copies = states.map(|state| state.map(copy));
        entry
    }

    fn settled(states: [Option<State>; 3], wanted: bool) -> [Option<State>; 3] {
        let mut entry = entry(states);
        entry.settle(wanted);
        entry.copies.map(|copy| copy.map(|copy| copy.state))
    }

    use State::{Consumed, Flushed, ReadComplete, ReadInProgress, WriteComplete, WriteInProgress};

    #[test]
    fn a_copy_is_flushed_while_a_good_one_lies_below() {
        let two = [Some(WriteComplete), Some(WriteComplete), None];
        assert_eq!(settled(two, true), [Some(Flushed), Some(WriteComplete), None]);
        assert_eq!(settled([Some(Flushed), None, None], true), [Some(WriteComplete), None, None]);
        let writing = [Some(WriteComplete), Some(WriteInProgress), None];
        assert_eq!(settled(writing, true), writing);
        let three = [Some(WriteComplete), None, Some(WriteComplete)];
        assert_eq!(settled(three, true), [Some(Flushed), None, Some(WriteComplete)]);
    }

    #[test]
    fn a_claimed_copy_stands_in_for_those_below() {
        let all = [Some(ReadComplete), Some(Flushed), Some(WriteComplete)];
        assert_eq!(settled(all, true), [Some(ReadComplete), Some(Consumed), Some(Consumed)]);
        let promoted = [Some(ReadComplete), Some(ReadComplete), Some(Consumed)];
        assert_eq!(settled(promoted, true), [Some(ReadComplete), Some(Consumed), Some(Consumed)]);
        // Not while it is still on its way.
        let coming = [Some(ReadInProgress), Some(WriteComplete), None];
        assert_eq!(settled(coming, true), coming);
    }

    #[test]
    fn when_the_claimed_copy_is_gone_those_below_are_unread_again() {
        assert_eq!(settled([None, Some(Consumed), Some(Consumed)], true), [None, Some(Flushed), Some(WriteComplete)]);
        let read = [Some(Consumed), Some(Consumed), None];
        assert_eq!(settled(read, false), read);
        assert_eq!(settled(read, true), [Some(Flushed), Some(WriteComplete), None]);
    }
}
