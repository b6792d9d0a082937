//! Exchanges of [posts](crate::coordination::posts) between all ranks, each closed by a round.
//!
//! Posts travel as parcels. If this rank has not reached their exchange, they wait here; if it has left their exchange, they are dropped.
#![forbid(unsafe_code)]

use super::core::call;
use super::desk::Decider;
use super::engine::Engine;
use super::mail::{Body, Mail};
use crate::base::Rank;
use crate::base::log;
use crate::base::sync::Lock;
use crate::comm::{Label, Parcel, Slice};
use crate::coordination::posts::{Letter, Posts};
use crate::coordination::{Ballot, Ranks, Verdict};
use std::collections::VecDeque;
use std::sync::Arc;

const POST: u64 = 18;
const ACKNOWLEDGED: u64 = 19;
/// How many posts are examined before the messages are moved along again.
const AT_ONCE: usize = 64;
/// How many bytes are sent before arrived posts are examined again.
const BYTES_AT_ONCE: usize = 1 << 20;

/// The result of handling a post.
#[derive(Default)]
pub struct Handled {
    /// The answer to its sender; empty for none.
    pub answer: Vec<u8>,
    /// The posts that are sent on because of it.
    pub onward: Vec<(Rank, Vec<u8>)>,
}

/// Handles a post, given its sender and its body. The error says why the post cannot be understood.
pub type OnPost<'a> = dyn FnMut(Rank, &[u8]) -> Result<Handled, String> + 'a;

/// Decides what a rank sends next, depending on which posts are not acknowledged yet.
pub type NextPost<'a> = dyn FnMut(&Posts) -> Next + 'a;

/// What a rank sends next.
pub enum Next {
    /// This post, to this rank.
    Post(Rank, Vec<u8>),
    /// Nothing until something has arrived.
    Later,
    /// Nothing more.
    Done,
}

/// The part of one rank in an exchange.
pub struct Exchange<'a> {
    /// Supplies the rank's own posts one after the other, depending on which posts are not acknowledged yet. It is asked again whenever
    /// something has arrived.
    pub next: &'a mut NextPost<'a>,
    /// Handles a post. If the post cannot be understood, this rank votes no.
    pub on_post: &'a mut OnPost<'a>,
    /// Makes the rank's vote from the answers, once everything that the rank has sent is acknowledged.
    pub vote: Box<dyn FnOnce(Vec<Vec<u8>>) -> Ballot + 'a>,
    /// The root's decision.
    pub decide: Decider,
}

/// Posts that have arrived.
pub(super) struct Posting {
    rank: Rank,
    mail: Arc<Mail>,
    state: Lock<State>,
}

#[derive(Default)]
struct State {
    arrived: VecDeque<Parcel>,
    /// The exchange that this rank is in.
    open: Option<u64>,
    /// The last exchange that this rank has left.
    left: u64,
}

impl Posting {
    pub(super) fn new(rank: Rank, mail: &Arc<Mail>) -> Posting {
        Posting { rank, mail: mail.clone(), state: Lock::default() }
    }

    /// Is a parcel with this label a post, or an acknowledgement?
    pub(super) fn is_one(label: &Label) -> bool {
        matches!(label[0], POST | ACKNOWLEDGED)
    }

    /// Is this rank in an exchange?
    pub(super) fn is_open(&self) -> bool {
        self.state.lock().open.is_some()
    }

    pub(super) fn on_parcel(&self, parcel: Parcel) {
        let mut state = self.state.lock();
        if parcel.label[1] > state.left {
            state.arrived.push_back(parcel);
        } else {
            drop(state);
            log::debug!("event=post-too-late rank={} from={} exchange={}", self.rank, parcel.from, parcel.label[1]);
            self.mail.give_back(parcel.bytes);
        }
    }

    /// The next parcel of the open exchange.
    fn next(&self) -> Option<Parcel> {
        let mut state = self.state.lock();
        let open = state.open?;
        let place = state.arrived.iter().position(|parcel| parcel.label[1] == open)?;
        state.arrived.remove(place)
    }

    /// Acknowledges posts of a call in which this rank exchanges none. The ranks that do exchange posts learn from the verdict that this
    /// rank has made a different call.
    pub(super) fn decline(&self, call: u64) {
        let mut state = self.state.lock();
        if state.arrived.is_empty() {
            return;
        }
        let (declined, others) =
            std::mem::take(&mut state.arrived).into_iter().partition(|parcel| parcel.label[1] == call);
        state.arrived = others;
        drop(state);
        let declined: VecDeque<Parcel> = declined;
        for Parcel { from, label, bytes } in declined {
            if label[0] == POST {
                self.send(call, Letter::Acknowledged(from, label[2], Vec::new()));
            }
            self.mail.give_back(bytes);
        }
    }

    fn spare(&self) -> Vec<u8> {
        self.mail.spare()
    }

    fn begin(&self, exchange: u64) {
        self.state.lock().open = Some(exchange);
        self.mail.begin_spares();
    }

    fn end(&self, exchange: u64) {
        self.mail.end_spares();
        let mut state = self.state.lock();
        (state.open, state.left) = (None, exchange);
        let (old, later) =
            std::mem::take(&mut state.arrived).into_iter().partition(|parcel| parcel.label[1] <= exchange);
        state.arrived = later;
        drop(state);
        let old: VecDeque<Parcel> = old;
        old.into_iter().for_each(|parcel| self.mail.give_back(parcel.bytes));
    }

    fn send(&self, exchange: u64, letter: Letter) {
        let (to, label, body) = match letter {
            Letter::Post(to, number, body) => (to, [POST, exchange, number, 0, 0, 0], body),
            Letter::Acknowledged(to, number, answer) => (to, [ACKNOWLEDGED, exchange, number, 0, 0, 0], answer),
        };
        let length = body.len();
        let body = Arc::new(Body::new(body, &self.mail));
        self.mail.send(to, label, Slice::new(body, 0..length).unwrap_or_else(Slice::empty));
    }
}

/// One rank's way through an exchange.
struct Course<'e, 'a> {
    posting: &'e Posting,
    number: u64,
    posts: Posts,
    refused: Option<String>,
    on_post: &'a mut OnPost<'a>,
    next: &'a mut NextPost<'a>,
    /// The rank has nothing more to send.
    is_done: bool,
}

impl Course<'_, '_> {
    /// Sends what is to be sent now; true if there was anything.
    fn send(&mut self) -> bool {
        let mut bytes = 0;
        for sent in 0..AT_ONCE {
            if self.is_done || bytes > BYTES_AT_ONCE {
                return sent > 0;
            }
            match (self.next)(&self.posts) {
                Next::Post(to, body) => {
                    bytes += body.len();
                    let letter = self.posts.send(to, body);
                    self.posting.send(self.number, letter);
                }
                Next::Later => return sent > 0,
                Next::Done => self.is_done = true,
            }
        }
        true
    }

    /// Handles what has arrived; true if anything has.
    fn look(&mut self) -> bool {
        let mut any = false;
        for _ in 0..AT_ONCE {
            let Some(Parcel { from, label, bytes }) = self.posting.next() else { break };
            any = true;
            let letters = match label[0] {
                POST => {
                    let handled = (self.on_post)(from, &bytes).unwrap_or_else(|why| {
                        log::error!("event=post-not-understood rank={} from={from} why={why:?}", self.posting.rank);
                        self.refused.get_or_insert(format!("a message from rank {from} cannot be understood: {why}"));
                        Handled::default()
                    });
                    self.posting.mail.give_back(bytes);
                    self.posts.on_post(from, label[2], handled.answer, handled.onward)
                }
                _ => self.posts.on_acknowledged(from, label[2], bytes).into_iter().collect(),
            };
            letters.into_iter().for_each(|letter| self.posting.send(self.number, letter));
        }
        any
    }
}

/// Sends all of these posts, without waiting for answers.
pub fn all_at_once(posts: Vec<(Rank, Vec<u8>)>) -> impl FnMut(&Posts) -> Next {
    let mut posts = posts.into_iter();
    move |_| posts.next().map_or(Next::Done, |(to, body)| Next::Post(to, body))
}

impl Engine {
    /// An empty buffer for a post of the open exchange: that of a post that was sent, if there is one, because its pages are already
    /// populated.
    pub fn spare(&self) -> Vec<u8> {
        self.posting.spare()
    }

    /// Exchanges posts with all ranks, and closes the exchange with a round.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Blocking
    /// Until all ranks have called and all posts are acknowledged, at most for the configured time-outs.
    ///
    /// # Errors
    /// The reason why the session has failed.
    pub fn exchange(&self, exchange: Exchange<'_>) -> Result<Verdict, String> {
        let Exchange { next, on_post, vote, decide } = exchange;
        let number = self.next_operation();
        if let Some(reason) = self.cut_off() {
            return Err(reason);
        }
        let posting = &self.posting;
        posting.begin(number);
        let mut course =
            Course { posting, number, posts: Posts::default(), refused: None, on_post, next, is_done: false };
        let (round, rank) = (call(number), self.setup.rank());
        // Less than the time after which the root gives up, so that the root hears for which ranks the others wait.
        let patience = self.setup.config.job.timeouts.abandon / 2;
        let mut moved = self.setup.now();
        let mut to_vote = Some((vote, decide));
        let verdict = self.wait_until(|| {
            if course.look() | course.send() {
                moved = self.setup.now();
                self.wake();
            }
            let is_late = self.setup.now().saturating_sub(moved) >= patience;
            let is_through = course.is_done && course.posts.are_acknowledged();
            if (is_through || is_late)
                && let Some((vote, decide)) = to_vote.take()
            {
                let mut ballot = vote(course.posts.take_answers());
                if let Some(why) = course.refused.take() {
                    ballot = ballot.failed(rank, why, false);
                }
                if !is_through {
                    let silent = Ranks::of(course.posts.silent());
                    ballot = ballot.failed(rank, format!("{silent} did not take what it sent"), false);
                }
                self.desk.ask(round, ballot, decide);
                self.wake();
            }
            match self.desk.take_answer(&round) {
                Some(verdict) => Some(Ok(verdict)),
                None => self.cut_off().map(|reason| self.desk.take_answer(&round).ok_or(reason)),
            }
        });
        posting.end(number);
        verdict
    }
}
