//! Posts: what ranks send to others that do not expect it, in any number, and how they know that all has arrived. Pure.
//!
//! ```text
//!   sender        post ──────────────────►  receiver      looks at it, and may send something on
//!                      ◄──────────────────  acknowledged, once all that it was sent on to have acknowledged that
//! ```
//!
//! A rank casts its vote in the closing round of an *exchange* when all its own posts are acknowledged. So when that round is
//! decided no post is under way, whoever sent it on to whomever, and no rank needed to know how many it would get. An acknowledgement carries an answer:
//! what is wrong with the post, for example.

use crate::base::Rank;
use std::collections::{BTreeMap, HashMap};

/// Something to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Letter {
    /// A post, by a number of its sender's.
    Post(Rank, u64, Vec<u8>),
    /// The acknowledgement of the post of that rank by that number.
    Acknowledged(Rank, u64, Answer),
}

/// The answer of its receiver to a post; empty: none.
pub type Answer = Vec<u8>;

/// A post of another rank, by whom and by which number.
type Cause = (Rank, u64);

/// A post that is not acknowledged yet.
#[derive(Clone, Copy, Debug)]
struct Open {
    to: Rank,
    bytes: usize,
    /// The one because of which it was sent.
    cause: Option<Cause>,
}

/// One rank's side of an exchange.
#[derive(Clone, Debug, Default)]
pub struct Posts {
    last: u64,
    /// Posts that are not acknowledged yet.
    open: BTreeMap<u64, Open>,
    /// How many bytes of them are on their way to whom, of those that are this rank's own.
    outstanding: BTreeMap<Rank, usize>,
    /// Posts of others that were sent on: how many of those are open, and what is to be answered.
    onward: HashMap<Cause, (usize, Answer)>,
    answers: Vec<Answer>,
}

impl Posts {
    /// Sends something of this rank's own.
    pub fn send(&mut self, to: Rank, body: Vec<u8>) -> Letter {
        self.post(to, body, None)
    }

    fn post(&mut self, to: Rank, body: Vec<u8>, cause: Option<Cause>) -> Letter {
        self.last += 1;
        self.open.insert(self.last, Open { to, bytes: body.len(), cause });
        if cause.is_none() {
            *self.outstanding.entry(to).or_default() += body.len();
        }
        Letter::Post(to, self.last, body)
    }

    /// A post has come and was looked at: what is answered, and what is sent on because of it.
    pub fn on_post(&mut self, from: Rank, number: u64, answer: Answer, onward: Vec<(Rank, Vec<u8>)>) -> Vec<Letter> {
        if onward.is_empty() {
            return vec![Letter::Acknowledged(from, number, answer)];
        }
        self.onward.insert((from, number), (onward.len(), answer));
        onward.into_iter().map(|(to, body)| self.post(to, body, Some((from, number)))).collect()
    }

    /// An acknowledgement has come; one that nobody waits for changes nothing.
    pub fn on_acknowledged(&mut self, from: Rank, number: u64, answer: Answer) -> Option<Letter> {
        if self.open.get(&number)?.to != from {
            return None;
        }
        let Open { to, bytes, cause } = self.open.remove(&number)?;
        let Some(cause) = cause else {
            if let Some(outstanding) = self.outstanding.get_mut(&to) {
                *outstanding -= bytes;
            }
            self.answers.extend((!answer.is_empty()).then_some(answer));
            return None;
        };
        let (left, first) = self.onward.get_mut(&cause)?;
        *left -= 1;
        if first.is_empty() {
            *first = answer;
        }
        if *left > 0 {
            return None;
        }
        let (_, answer) = self.onward.remove(&cause)?;
        Some(Letter::Acknowledged(cause.0, cause.1, answer))
    }

    /// All posts of this rank's own are acknowledged.
    pub fn are_acknowledged(&self) -> bool {
        self.open.values().all(|open| open.cause.is_some())
    }

    /// The ranks that have not acknowledged messages of this rank, each once.
    pub fn silent(&self) -> Vec<Rank> {
        let mut silent: Vec<Rank> = self.open.values().map(|open| open.to).collect();
        silent.sort_unstable();
        silent.dedup();
        silent
    }

    /// How many bytes of this rank's own posts to a rank are not acknowledged yet.
    pub fn outstanding(&self, to: Rank) -> usize {
        self.outstanding.get(&to).copied().unwrap_or_default()
    }

    /// How many to all ranks.
    pub fn all_outstanding(&self) -> usize {
        self.outstanding.values().sum()
    }

    /// What was answered to posts of this rank's own, as far as it was anything.
    pub fn take_answers(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.answers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_post_that_is_sent_on_is_acknowledged_after_that() {
        let (mut one, mut two) = (Posts::default(), Posts::default());
        assert_eq!(one.send(Rank(2), vec![1]), Letter::Post(Rank(2), 1, vec![1]));
        assert!(!one.are_acknowledged() && one.silent() == [Rank(2)]);
        assert_eq!((one.outstanding(Rank(2)), one.outstanding(Rank(3)), one.all_outstanding()), (1, 0, 1));
        let onward = vec![(Rank(3), vec![2]), (Rank(1), vec![3])];
        let sent = two.on_post(Rank(1), 1, vec![], onward);
        assert_eq!(sent, [Letter::Post(Rank(3), 1, vec![2]), Letter::Post(Rank(1), 2, vec![3])]);
        // What others began is not this rank's own: it may vote.
        assert!(two.are_acknowledged() && two.silent() == [Rank(1), Rank(3)]);
        assert_eq!(two.on_acknowledged(Rank(3), 1, vec![7]), None);
        // From another rank than it went to, and twice: nothing.
        assert_eq!(two.on_acknowledged(Rank(3), 1, vec![8]), None);
        let last = two.on_acknowledged(Rank(1), 2, vec![9]).expect("the last one");
        assert_eq!(last, Letter::Acknowledged(Rank(1), 1, vec![7]));
        assert_eq!(one.on_acknowledged(Rank(2), 1, vec![7]), None);
        assert!(one.are_acknowledged() && one.take_answers() == [[7]]);
        assert_eq!((one.all_outstanding(), two.all_outstanding()), (0, 0));
    }

    #[test]
    fn an_acknowledgement_of_somebody_else_does_not_count() {
        let mut one = Posts::default();
        one.send(Rank(2), vec![]);
        assert_eq!(one.on_acknowledged(Rank(2), 9, vec![1]), None);
        assert!(!one.are_acknowledged() && one.take_answers().is_empty());
    }

    proptest! {
        #[test]
        fn when_all_have_voted_nothing_is_under_way(
            first in proptest::collection::vec((0u32..4, 0u32..4, 0u8..4), 0..20),
            order in proptest::collection::vec(any::<prop::sample::Index>(), 400),
        ) {
            // The body of a post says how often it is sent on.
            let mut ranks = vec![Posts::default(); 4];
            let mut under_way: Vec<(Rank, Letter)> = Vec::new();
            for (from, to, depth) in first {
                let letter = ranks[from as usize].send(Rank(to), vec![depth]);
                under_way.push((Rank(from), letter));
            }
            let mut steps = order.iter().cycle();
            while !ranks.iter().all(Posts::are_acknowledged) {
                prop_assert!(!under_way.is_empty(), "somebody waits for nothing");
                let (from, letter) = under_way.swap_remove(steps.next().expect("endless").index(under_way.len()));
                match letter {
                    Letter::Post(to, number, body) => {
                        let more = (0..body[0]).map(|next| (Rank((to.0 + u32::from(next)) % 4), vec![body[0] - 1]));
                        let letters = ranks[to.0 as usize].on_post(from, number, vec![], more.collect());
                        under_way.extend(letters.into_iter().map(|letter| (to, letter)));
                    }
                    Letter::Acknowledged(to, number, answer) => {
                        let letter = ranks[to.0 as usize].on_acknowledged(from, number, answer);
                        under_way.extend(letter.map(|letter| (to, letter)));
                    }
                }
            }
            let posts = under_way.iter().filter(|(_, letter)| matches!(letter, Letter::Post(..)));
            prop_assert_eq!(posts.count(), 0);
        }
    }
}
