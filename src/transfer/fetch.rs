//! Reading what other ranks hold: a request names a checkpoint, a shard or part, and a range; the answer is its bytes.
//!
//! The asking side is [`Engine::fetch`] and [`Engine::collect`]; the asked side answers from [`Engine::serve`]'s list, in
//! its workers. Nothing is remembered between two requests.

use super::engine::{Engine, State};
use crate::base::log;
use crate::base::{CheckpointKey, Rank};
use crate::comm::{Label, Parcel, SharedBytes, Slice};
use crate::format::codec;
use crate::redundancy::holding::Item;
use crate::tier::source::Source;
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;
use std::sync::Arc;

const FETCH: u64 = 16;
const REPLY: u64 = 17;
/// Text of a refusal.
const REASON_MAX: usize = 400;

/// Answers that wait to be sent before no more requests are answered: what is read from files lies in buffers till then.
pub(super) const ANSWERS_MAX: usize = 16;

/// Longest range of one request, in bytes.
pub const FETCH_MAX: u64 = 1 << 20;

/// Whose bytes are wanted.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// The series.
    pub name: String,
    /// The checkpoint.
    pub key: CheckpointKey,
    /// What of it.
    pub item: Item,
    /// Check the blocks that the range touches before sending: the reader cannot.
    pub checked: bool,
}

/// A request of another rank.
pub(super) struct Request {
    from: Rank,
    id: u64,
    range: Range<u64>,
    wanted: Wanted,
}

impl Request {
    pub(super) fn decode(parcel: &Parcel) -> Option<Request> {
        let [FETCH, id, start, length, ..] = parcel.label else { return None };
        let end = start.checked_add(length).filter(|_| length <= FETCH_MAX)?;
        let wanted = codec::decode("request", &parcel.bytes).ok()?;
        Some(Request { from: parcel.from, id, range: start..end, wanted })
    }
}

/// The request that a parcel answers, if it is an answer.
pub(super) fn is_reply(label: &Label) -> Option<u64> {
    (label[0] == REPLY).then_some(label[1])
}

impl State {
    pub(super) fn take_reply(&mut self, id: u64, parcel: Parcel) {
        let Some(waiting) = self.fetches.get_mut(&id) else {
            self.spent.push(parcel.bytes);
            return;
        };
        *waiting = Some(match parcel.label[2] {
            0 => Ok(parcel.bytes),
            _ => Err(String::from_utf8_lossy(&parcel.bytes).into_owned()),
        });
    }
}

impl Engine {
    /// Says what this rank answers requests for: all copies of an item, nearest first.
    pub fn serve(&self, items: impl IntoIterator<Item = ((String, CheckpointKey, Item), Vec<Source>)>) {
        self.lock().served.extend(items);
    }

    /// Answers no more requests.
    pub fn stop_serving(&self) {
        self.lock().served.clear();
    }

    /// Asks a rank (which may be this one) for a range of at most [`FETCH_MAX`] bytes. The answer is taken with
    /// [`Engine::collect`] or given up with [`Engine::forget`].
    pub fn fetch(&self, to: Rank, wanted: &Wanted, range: Range<u64>) -> u64 {
        let body: SharedBytes = Arc::new(codec::encode("request", wanted).unwrap_or_default());
        let length = (*body).as_ref().len();
        let mut state = self.lock();
        state.fetch_id += 1;
        let id = state.fetch_id;
        state.fetches.insert(id, None);
        let label = [FETCH, id, range.start, range.end - range.start, 0, 0];
        state.outbox.push_back((to, label, Slice::new(body, 0..length).unwrap_or_else(Slice::empty)));
        drop(state);
        self.wake();
        id
    }

    /// Waits for an answer.
    ///
    /// # Blocking
    /// Until the other rank has answered, at most for `timeouts.abandon`.
    ///
    /// # Errors
    /// What the other rank found wrong, or, as [`io::ErrorKind::TimedOut`], that it did not answer.
    pub fn collect(&self, id: u64) -> io::Result<Vec<u8>> {
        let deadline = self.setup.clock.now() + self.setup.config.job.timeouts.abandon;
        let clock = self.setup.clock.clone();
        let answer = self.wait_until(move |state| {
            if let Some(answer) = state.fetches.get_mut(&id).and_then(Option::take) {
                return Some(answer.map_err(io::Error::other));
            }
            if let Some(reason) = state.cut_off() {
                return Some(Err(io::Error::other(reason.clone())));
            }
            let silent = || io::Error::new(io::ErrorKind::TimedOut, "it did not answer in time");
            (clock.now() >= deadline).then(|| Err(silent()))
        });
        self.forget(id);
        answer
    }

    /// Gives a request up.
    pub fn forget(&self, id: u64) {
        let mut state = self.lock();
        if let Some(Some(Ok(bytes))) = state.fetches.remove(&id) {
            state.spent.push(bytes);
        }
    }

    /// Gives the buffer of an answer back.
    pub fn recycle(&self, bytes: Vec<u8>) {
        self.lock().spent.push(bytes);
    }

    /// Answers one request.
    pub(super) fn answer(&self, request: Request) {
        let Request { from, id, range, wanted } = request;
        let served = (wanted.name.clone(), wanted.key, wanted.item);
        let sources = self.lock().served.get(&served).cloned().unwrap_or_default();
        let mut read =
            Err(format!("rank {} does not hold {:?} of {}", self.setup.identity.rank, wanted.item, wanted.key));
        // Another copy helps where the nearest one is found damaged, which it is only if it is checked here.
        for source in sources {
            read = source.slice(range.clone(), wanted.checked).map_err(|error| error.to_string());
            if read.is_ok() {
                break;
            }
        }
        let (status, body) = match read {
            Ok(slice) => (0, slice),
            Err(reason) => {
                log::warn!("event=request-refused rank={} from={from} reason={reason:?}", self.setup.identity.rank);
                let text: Vec<u8> = reason.bytes().take(REASON_MAX).collect();
                let length = text.len();
                (1, Slice::new(Arc::new(text), 0..length).unwrap_or_else(Slice::empty))
            }
        };
        self.lock().outbox.push_back((from, [REPLY, id, status, 0, 0, 0], body));
    }
}
