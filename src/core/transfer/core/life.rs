//! The life of one checkpoint on one rank, up to the agreement on its call and after it. [`super`] shows it as a diagram.

use super::flow::{Flow, FlowEffect};
use crate::coordination::Ballot;
use crate::tier::{TierId, TierSet};

/// The state of a checkpoint on this rank.
#[derive(Debug)]
pub enum Life {
    /// Part of its bytes is on its way down from the GPU cache.
    Landing,
    /// Part of its bytes is on its way down from the GPU cache, but nobody needs it: the checkpoint was given up meanwhile.
    Falling,
    /// Captured. The vote waits for the votes on earlier calls.
    Ready(Ballot),
    /// This rank has voted on the call.
    Voting,
    /// All ranks have captured the checkpoint; it goes to some tiers.
    Agreed(Flow),
    /// It came to nothing.
    Refused,
    /// This rank has voted on the call, but hears no verdict.
    Doubtful,
}

impl Life {
    /// Has everything ended that a call could wait for? Unwanted bytes may still be on their way.
    pub fn is_finished(&self) -> bool {
        match self {
            Life::Landing | Life::Ready(_) | Life::Voting => false,
            Life::Agreed(flow) => flow.is_finished(),
            Life::Falling | Life::Refused | Life::Doubtful => true,
        }
    }

    /// Are bytes of the checkpoint on their way from the GPU cache?
    pub fn is_coming_down(&self) -> bool {
        matches!(self, Life::Landing | Life::Falling)
    }

    /// Its levels, once all ranks have agreed on the call.
    pub fn flow(&self) -> Option<&Flow> {
        match self {
            Life::Agreed(flow) => Some(flow),
            _ => None,
        }
    }

    /// Do all ranks have the checkpoint on that tier?
    pub fn is_committed(&self, tier: TierId) -> bool {
        self.flow().is_some_and(|flow| flow.is_committed(tier))
    }

    /// Are bytes or votes on their way that memory has to wait for?
    pub fn is_open(&self) -> bool {
        match self {
            Life::Landing | Life::Falling | Life::Ready(_) | Life::Voting => true,
            Life::Agreed(flow) => flow.is_open(),
            Life::Refused | Life::Doubtful => false,
        }
    }

    /// May the others have heard, now or soon, that the checkpoint is committed where memory must hold it, while this rank has not?
    pub fn is_in_doubt(&self) -> bool {
        match self {
            Life::Landing | Life::Ready(_) | Life::Voting | Life::Doubtful => true,
            Life::Agreed(flow) => flow.is_in_doubt(),
            Life::Falling | Life::Refused => false,
        }
    }

    /// The bytes are in their place, or will never be: the vote on the checkpoint can be cast. True if somebody still wants the checkpoint.
    pub fn on_landed(&mut self, vote: Ballot) -> bool {
        debug_assert!(self.is_coming_down(), "landed twice: {self:?}");
        *self = match std::mem::replace(self, Life::Refused) {
            Life::Landing => Life::Ready(vote),
            Life::Falling => Life::Refused,
            other => other,
        };
        !self.is_finished()
    }

    /// The vote on the call, if its turn has come.
    pub fn take_vote(&mut self) -> Option<Ballot> {
        match std::mem::replace(self, Life::Voting) {
            Life::Ready(vote) => Some(vote),
            other => {
                *self = other;
                None
            }
        }
    }

    /// All ranks have captured the checkpoint, and it goes to these tiers.
    pub fn on_agreed(&mut self, plan: TierSet) -> Vec<FlowEffect> {
        let (mut flow, mut effects) = Flow::agreed(plan);
        match self {
            Life::Voting => {}
            // The verdict has arrived after all. What memory holds is committed; for everything else, this rank has already let go of the
            // bytes.
            Life::Doubtful => {
                flow.on_lost();
                effects = Vec::new();
            }
            // The root needs the votes of all ranks for an agreement.
            _ => {
                debug_assert!(false, "agreed without this rank: {self:?}");
                return Vec::new();
            }
        }
        *self = Life::Agreed(flow);
        effects
    }

    /// Some rank has not captured the checkpoint, or has made another call. This ends a doubt, too.
    pub fn on_refused(&mut self) -> Vec<FlowEffect> {
        if matches!(self, Life::Doubtful) {
            *self = Life::Refused;
            return Vec::new();
        }
        self.end(Life::Refused)
    }

    /// The root is silent, here or elsewhere. If this rank has not voted for something, nobody can have heard that it is committed.
    pub fn on_lost(&mut self) -> Vec<FlowEffect> {
        match self {
            Life::Agreed(flow) => flow.on_lost(),
            Life::Voting => self.end(Life::Doubtful),
            _ => self.end(Life::Refused),
        }
    }

    fn end(&mut self, as_what: Life) -> Vec<FlowEffect> {
        debug_assert!(!self.is_finished() && self.flow().is_none(), "it has ended, or was agreed on: {self:?}");
        *self = if matches!(self, Life::Landing) { Life::Falling } else { as_what };
        vec![FlowEffect::SourceFree, FlowEffect::Finished]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lives() -> [Life; 6] {
        let (flow, _) = Flow::agreed(TierSet::of(TierId::LOCAL));
        [Life::Landing, Life::Falling, Life::Ready(Ballot::default()), Life::Voting, Life::Agreed(flow), Life::Doubtful]
    }

    #[test]
    fn an_abandoned_call_ends_everything() {
        let mut life = Life::Voting;
        assert_eq!(life.on_refused(), [FlowEffect::SourceFree, FlowEffect::Finished]);
        assert!(life.is_finished() && !life.is_in_doubt() && !life.is_open());
    }

    #[test]
    fn a_failure_later_on_takes_nothing_back() {
        let mut life = Life::Voting;
        life.on_agreed([TierId::MEMORY, TierId::LOCAL].into_iter().collect());
        assert_eq!(life.on_lost(), [FlowEffect::SourceFree, FlowEffect::Finished]);
        assert!(life.is_committed(TierId::MEMORY) && !life.is_committed(TierId::LOCAL));
    }

    #[test]
    fn a_word_that_comes_after_all_ends_the_doubt_and_begins_nothing() {
        let mut life = Life::Voting;
        life.on_lost();
        assert!(matches!(life, Life::Doubtful));
        assert_eq!(life.on_agreed([TierId::MEMORY, TierId::LOCAL].into_iter().collect()), []);
        assert!(life.is_committed(TierId::MEMORY) && !life.is_committed(TierId::LOCAL));
        assert!(life.is_finished() && !life.is_in_doubt() && !life.is_open());
    }

    #[test]
    fn a_refusal_that_comes_after_all_ends_the_doubt() {
        let mut life = Life::Doubtful;
        assert_eq!(life.on_refused(), []);
        assert!(matches!(life, Life::Refused) && !life.is_in_doubt());
    }

    #[test]
    fn only_what_this_rank_has_voted_for_can_be_in_doubt() {
        let lost = |mut life: Life| {
            life.on_lost();
            life
        };
        assert!(matches!(lost(Life::Landing), Life::Falling));
        assert!(matches!(lost(Life::Ready(Ballot::default())), Life::Refused));
        assert!(matches!(lost(Life::Voting), Life::Doubtful));
    }

    #[test]
    fn what_was_given_up_while_it_came_down_is_not_voted_on() {
        let mut life = Life::Landing;
        life.on_refused();
        assert!(life.is_finished() && life.is_coming_down());
        assert!(!life.on_landed(Ballot::default()));
        assert!(matches!(life, Life::Refused) && life.take_vote().is_none());
    }

    #[test]
    fn a_vote_is_cast_once_and_by_nobody_else() {
        let mut votes = lives().map(|mut life| (life.take_vote().is_some(), life.take_vote().is_some()));
        assert_eq!(votes.iter().filter(|votes| **votes == (true, false)).count(), 1);
        votes.sort();
        assert_eq!(votes[..5], [(false, false); 5]);
    }

    /// A verdict on the call is awaited, too: until it arrives, others may have heard it first.
    #[test]
    fn until_the_verdict_on_the_call_a_checkpoint_is_in_doubt() {
        assert_eq!(lives().map(|life| life.is_in_doubt()), [true, false, true, true, false, true]);
        assert_eq!(lives().map(|life| life.is_open()), [true, true, true, true, true, false]);
    }
}
