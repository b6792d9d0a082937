//! Posts: messages, in any number, that ranks send to others that do not expect them, and how the ranks know that all have arrived. Pure.
//!
//! ```text
//!   sender        post ──────────────────►  receiver      handles it, and may send something on because of it
//!                      ◄──────────────────  acknowledgement, once everything that was sent on has been acknowledged
//! ```
//!
//! A rank votes in the closing round of an *exchange* once all its own posts are acknowledged. So when that round is decided, no post is
//! under way, whichever ranks sent it on, and no rank needed to know how many posts it would receive. An acknowledgement carries an answer,
//! for example what is wrong with the post.

use crate::base::Rank;
use std::collections::{BTreeMap, HashMap};

/// Something to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Letter {
    /// A post to that rank, with its sender's number for it.
    Post(Rank, u64, Vec<u8>),
    /// The acknowledgement to that rank of its post with that number.
    Acknowledged(Rank, u64, Answer),
}

/// The receiver's answer to a post; empty if there is none.
pub type Answer = Vec<u8>;

/// A post of another rank: its sender, and the sender's number for it.
type Cause = (Rank, u64);

/// A post that is not acknowledged yet.
#[derive(Clone, Copy, Debug)]
struct Open {
    to: Rank,
    bytes: usize,
    /// The post because of which this one was sent, if there is one.
    cause: Option<Cause>,
}

/// One rank's side of an exchange.
#[derive(Clone, Debug, Default)]
pub struct Posts {
    last: u64,
    /// Posts that are not acknowledged yet.
    open: BTreeMap<u64, Open>,
    /// For each receiver, how many bytes of this rank's own posts are not acknowledged yet.
    outstanding: BTreeMap<Rank, usize>,
    /// Posts of others because of which this rank sent some: how many of these are open, and the answer to be given.
    onward: HashMap<Cause, (usize, Answer)>,
    answers: Vec<Answer>,
}

impl Posts {
    /// Sends a post of this rank's own.
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

    /// Handles a post that has arrived and has been looked at: `answer` is the answer to it, and `onward` is sent on because of it.
    pub fn on_post(&mut self, from: Rank, number: u64, answer: Answer, onward: Vec<(Rank, Vec<u8>)>) -> Vec<Letter> {
        if onward.is_empty() {
            return vec![Letter::Acknowledged(from, number, answer)];
        }
        self.onward.insert((from, number), (onward.len(), answer));
        onward.into_iter().map(|(to, body)| self.post(to, body, Some((from, number)))).collect()
    }

    /// Handles an acknowledgement. One that nobody waits for changes nothing.
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

    /// Are all of this rank's own posts acknowledged?
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

    /// How many bytes of this rank's own posts to all ranks are not acknowledged yet.
    pub fn all_outstanding(&self) -> usize {
        self.outstanding.values().sum()
    }

    /// Takes the answers to this rank's own posts, without the empty ones.
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
        // Posts that others began are not this rank's own, so it may vote.
        assert!(two.are_acknowledged() && two.silent() == [Rank(1), Rank(3)]);
        assert_eq!(two.on_acknowledged(Rank(3), 1, vec![7]), None);
        // A second acknowledgement changes nothing.
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
