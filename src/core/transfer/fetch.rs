//! Reading what other ranks hold: a request names a checkpoint, a shard or part, and a range; the answer is its bytes.
//!
//! The asked side answers from a list of what it serves, in its workers. Nothing is remembered between two requests.
#![forbid(unsafe_code)]

use super::mail::Mail;
use crate::base::log;
use crate::base::sync::Lock;
use crate::base::{CheckpointKey, Rank};
use crate::comm::{Label, Parcel, SharedBytes, Slice};
use crate::format::codec;
use crate::redundancy::holding::Item;
use crate::tier::source::Source;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

const FETCH: u64 = 16;
const REPLY: u64 = 17;
/// Longest text of a refusal, in bytes.
const REASON_MAX: usize = 400;

/// How many answers may wait to be sent before further requests must wait: until they are sent, the bytes read from files occupy buffers.
const ANSWERS_MAX: usize = 16;

/// Longest range of one request, in bytes.
pub const FETCH_MAX: u64 = 1 << 20;

/// The item whose bytes are wanted.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Wanted {
    /// The series.
    pub name: String,
    /// The checkpoint.
    pub key: CheckpointKey,
    /// The shard or part of the checkpoint that is wanted.
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
    fn decode(from: Rank, label: &Label, bytes: &[u8]) -> Option<Request> {
        let [FETCH, id, start, length, ..] = *label else { return None };
        let end = start.checked_add(length).filter(|_| length <= FETCH_MAX)?;
        let wanted = codec::decode("request", bytes).ok()?;
        Some(Request { from, id, range: start..end, wanted })
    }
}

/// What is served: all copies of an item, nearest first.
type Served = HashMap<(String, CheckpointKey, Item), Vec<Source>>;

/// The asking side and the answering side of one rank.
pub struct Fetches {
    rank: Rank,
    mail: Arc<Mail>,
    state: Lock<State>,
}

#[derive(Default)]
struct State {
    /// Requests of other ranks.
    requests: VecDeque<Request>,
    /// The items from which requests are answered.
    served: Served,
    /// Requests of this rank, and the answers received so far.
    asked: HashMap<u64, Option<Result<Vec<u8>, String>>>,
    last: u64,
}

impl Fetches {
    pub(super) fn new(rank: Rank, mail: &Arc<Mail>) -> Fetches {
        Fetches { rank, mail: mail.clone(), state: Lock::default() }
    }

    /// Has this rank open requests, or requests to answer?
    pub fn is_active(&self) -> bool {
        let state = self.state.lock();
        !state.asked.is_empty() || !state.served.is_empty()
    }

    /// Do requests wait for an answer?
    pub fn has_requests(&self) -> bool {
        !self.state.lock().requests.is_empty()
    }

    /// A request that is to be answered now.
    pub(super) fn take_request(&self) -> Option<Request> {
        if self.mail.waiting() >= ANSWERS_MAX {
            return None;
        }
        self.state.lock().requests.pop_front()
    }

    /// Registers the items for which this rank answers requests.
    pub fn serve(&self, items: impl IntoIterator<Item = ((String, CheckpointKey, Item), Vec<Source>)>) {
        self.state.lock().served.extend(items);
    }

    /// Stops answering requests.
    pub fn stop_serving(&self) {
        let served = std::mem::take(&mut self.state.lock().served);
        drop(served);
    }

    /// Takes a parcel that is a request or an answer to a request; logs it if it is neither.
    pub fn on_parcel(&self, parcel: Parcel) {
        let Parcel { from, label, bytes } = parcel;
        let spent = match label[0] {
            REPLY => self.take_reply(&label, bytes),
            _ => {
                match Request::decode(from, &label, &bytes) {
                    Some(request) => self.state.lock().requests.push_back(request),
                    None => log::error!("event=parcel-unknown rank={} from={from}", self.rank),
                }
                Some(bytes)
            }
        };
        if let Some(bytes) = spent {
            self.mail.give_back(bytes);
        }
    }

    fn take_reply(&self, label: &Label, bytes: Vec<u8>) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        let Some(waiting) = state.asked.get_mut(&label[1]) else { return Some(bytes) };
        *waiting = Some(match label[2] {
            0 => Ok(bytes),
            _ => Err(String::from_utf8_lossy(&bytes).into_owned()),
        });
        None
    }

    /// Asks a rank (which may be this one) for a range of at most [`FETCH_MAX`] bytes.
    pub fn ask(&self, to: Rank, wanted: &Wanted, range: Range<u64>) -> u64 {
        let body: SharedBytes = Arc::new(codec::encode("request", wanted).unwrap_or_default());
        let length = (*body).as_ref().len();
        let id = {
            let mut state = self.state.lock();
            state.last += 1;
            let id = state.last;
            state.asked.insert(id, None);
            id
        };
        let label = [FETCH, id, range.start, range.end - range.start, 0, 0];
        self.mail.send(to, label, Slice::new(body, 0..length).unwrap_or_else(Slice::empty));
        id
    }

    /// The answer to a request, once it has arrived.
    pub fn take_answer(&self, id: u64) -> Option<Result<Vec<u8>, String>> {
        self.state.lock().asked.get_mut(&id).and_then(Option::take)
    }

    /// Gives up a request.
    pub fn forget(&self, id: u64) {
        let gone = self.state.lock().asked.remove(&id);
        if let Some(Some(Ok(bytes))) = gone {
            self.mail.give_back(bytes);
        }
    }

    /// Answers one request.
    ///
    /// # Blocking
    /// On the file from which the answer is read, if it is read from a file.
    pub(super) fn answer(&self, request: Request) {
        let Request { from, id, range, wanted } = request;
        let served = (wanted.name.clone(), wanted.key, wanted.item);
        let sources = self.state.lock().served.get(&served).cloned().unwrap_or_default();
        let mut read = Err(format!("rank {} does not hold {:?} of {}", self.rank, wanted.item, wanted.key));
        // Another copy helps if the nearest copy is found damaged, and damage is only found if the copy is checked here.
        for source in sources {
            read = source.slice(range.clone(), wanted.checked).map_err(|error| error.to_string());
            if read.is_ok() {
                break;
            }
        }
        let (status, body) = match read {
            Ok(slice) => (0, slice),
            Err(reason) => {
                log::warn!("event=request-refused rank={} from={from} reason={reason:?}", self.rank);
                let text: Vec<u8> = reason.bytes().take(REASON_MAX).collect();
                let length = text.len();
                (1, Slice::new(Arc::new(text), 0..length).unwrap_or_else(Slice::empty))
            }
        };
        self.mail.send(from, [REPLY, id, status, 0, 0, 0], body);
    }
}
