//! Makes a checkpoint survive lost nodes: the part of one rank in the exchange of one checkpoint.
//!
//! ```text
//!   each rank                                         to
//!   HELLO  the length of my shard                     all ranks with which I exchange parcels
//!   (the slot for what I keep is reserved)
//!   READY                                             the same ranks
//!   COPY   pieces of my shard, digests checked there  partners
//!   CHUNK  a segment of one of my chunks              the first parity member of its stripe, at most WINDOW ahead
//!   CREDIT the number of segments that are done       the data members of my stripe
//!   PARITY a segment of parity 1, 2, …                the other parity members of my stripe
//!   ABORT  the reason why I cannot take part          the same ranks as HELLO
//! ```
//!
//! A stripe's first parity member adds up all parities of the stripe from the chunks as they arrive, and passes on all
//! but the first. So each rank sends its shard once, and m-1 parities of a chunk's length, which is the minimum that
//! the scheme requires. Bytes leave straight from the slot of the shard and arrive in buffers of the message layer. The
//! workers multiply and add segments while the next ones are under way. In addition to the slots, this takes at most
//! WINDOW segments of each parity in memory.
//!
//! `copies` holds the protocol of partners, and `parity` that of the members of a set with parity. This file holds what both share:
//! greeting, finding room, taking turns, giving up, and ending.
//!
//! Nothing here calls MPI or depends on particular threads: [`Exchange::next_parcel`] says what to send,
//! [`Exchange::on_parcel`] takes what has arrived, and [`Exchange::take_job`] and [`Exchange::run`] do the arithmetic, on any
//! thread.

#![forbid(unsafe_code)]

mod copies;
mod parity;

use self::parity::{CodeInUse, Sum};
use super::part;
use super::stripes::SetInfo;
use crate::base::sync::{Guard, Lock, Order};
use crate::base::units::{KIB, page_ceil};
use crate::base::{Digest, Rank};
use crate::comm::{Label, Parcel, SharedBytes, Slice};
use crate::format::ShardHeader;
use crate::format::shard::{Head, Layout};
use crate::segment::{SealInfo, Segment, SlotId, SlotMut};
use crate::tier::names::Series;
use crate::tier::pieces::{Piece, pieces};
use crate::tier::posix::PageBuffer;
use crate::tier::source::{SharedPages, Source};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The first word of the labels of exchanges; the second is the operation.
pub const HELLO: u64 = 1;
const READY: u64 = 2;
const COPY: u64 = 3;
const CHUNK: u64 = 4;
const CREDIT: u64 = 5;
const PARITY: u64 = 6;
const ABORT: u64 = 7;

/// Does this label belong to an exchange?
pub fn is_exchange(label: &Label) -> bool {
    (HELLO..=ABORT).contains(&label[0])
}

/// Can this parcel arrive before its receiver knows about the agreement?
pub fn is_early(label: &Label) -> bool {
    matches!(label[0], HELLO | ABORT)
}

/// The number of bytes that are sent and processed as a unit; it is larger if a block is larger.
const SEGMENT: u64 = 512 * KIB;
/// The maximum number of segments by which a data member may be ahead of the parity member.
const WINDOW: u64 = 12;
/// The maximum number of pieces that are read ahead of sending, if the shard is in a file.
const LOADED_MAX: usize = 4;
/// The pause after which a rank without room looks for room again.
const ROOM_PAUSE: Duration = Duration::from_millis(5);
/// The maximum length in bytes of the text of an ABORT.
const REASON_MAX: usize = 400;

/// The role of a rank in its set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Role {
    /// The rank keeps copies for some ranks, and others keep copies of its shard.
    Partners {
        /// The ranks that keep a copy of this rank's shard.
        to: Vec<Rank>,
        /// The ranks of whose shards this rank keeps copies.
        from: Vec<Rank>,
    },
    /// The rank is a member of a set with parity.
    Set {
        /// All members, including this rank, in the order of their places.
        members: Vec<Rank>,
        /// The number of parities per stripe.
        parity: u32,
    },
}

impl Role {
    /// All ranks with which a rank exchanges parcels.
    pub fn peers(&self, rank: Rank) -> Vec<Rank> {
        let all: BTreeSet<Rank> = match self {
            Role::Partners { to, from } => to.iter().chain(from).copied().collect(),
            Role::Set { members, .. } => members.iter().copied().collect(),
        };
        all.into_iter().filter(|peer| *peer != rank).collect()
    }
}

/// The description of an exchange.
pub struct ExchangeSpec {
    /// The checkpoint, by the number of its operation.
    pub operation: u64,
    /// The series.
    pub series: Series,
    /// This rank's shard.
    pub source: Source,
    /// The node memory that holds the data kept for other ranks.
    pub memory: Arc<Segment>,
    /// The number of bytes per block in parity parts.
    pub block_bytes: u64,
    /// This rank's role.
    pub role: Role,
    /// The hash of the series' name, for the slots.
    pub name_hash: u64,
    /// The maximum time to wait for room.
    pub room_limit: Duration,
}

/// A piece of work for a thread.
pub struct Job(Step);

enum Step {
    /// Reserve a slot for the data that this rank keeps.
    Reserve { output: usize, since: Option<Duration> },
    /// A piece of a copy has arrived.
    Copy { output: usize, offset: u64, head_len: u64, bytes: Vec<u8> },
    /// A segment of a chunk of this rank's stripe has arrived.
    Chunk { segment: u64, data: u32, bytes: Vec<u8> },
    /// A segment of a parity that this rank keeps has arrived.
    Parity { parity: u32, segment: u64, bytes: Vec<u8> },
    /// No shard extends into this segment of the stripe, so its parity is zero.
    Zero { segment: u64 },
    /// Check a piece of this rank's shard.
    Verify(Piece),
    /// Read a piece of this rank's shard from its file.
    Load(Outgoing),
}

impl Step {
    /// There was no room, and the reservation must be tried again later.
    fn waits(&self) -> bool {
        matches!(self, Step::Reserve { since: Some(_), .. })
    }
}

/// A range of this rank's shard, and the rank to which it goes.
#[derive(Clone, Debug)]
struct Outgoing {
    to: Rank,
    label: Label,
    range: Range<u64>,
}

/// A copy or parity that this rank keeps for others.
struct Output {
    /// The rank whose shard was copied, or `None` for parity.
    of: Option<Rank>,
    length: u64,
    state: Lock<OutputState>,
}

#[derive(Default)]
struct OutputState {
    slot: Option<SlotMut>,
    /// A copy's head, once it has arrived.
    head: Option<(Arc<Head>, Arc<Vec<Piece>>)>,
    head_bytes: u64,
    /// Pieces of the body that arrived before the whole head.
    early: Vec<(u64, Vec<u8>)>,
    /// For parity: the layout and the digests made so far.
    layout: Option<(Layout, ShardHeader, Vec<Digest>)>,
    left: u64,
}

#[derive(Default)]
struct Inner {
    lengths: BTreeMap<Rank, u64>,
    ready: BTreeSet<Rank>,
    /// The number of finished segments that each first parity member has reported.
    credit: HashMap<Rank, u64>,
    set: Option<Arc<SetInfo>>,
    out: VecDeque<(Rank, Label, Slice)>,
    /// The ranges to send, in one queue for each receiver, and the queue whose turn it is.
    plan: Vec<VecDeque<Outgoing>>,
    turn: usize,
    is_planned: bool,
    loading: usize,
    /// The number of jobs that have been taken but are not done.
    working: usize,
    todo: VecDeque<Step>,
    retry_at: Duration,
    verify: VecDeque<Piece>,
    verifying: usize,
    outputs: Vec<Arc<Output>>,
    expected_outputs: usize,
    sums: HashMap<u64, Arc<Lock<Sum>>>,
    segments_done: u64,
    finished: Vec<SlotId>,
    failure: Option<String>,
    is_ended: bool,
    /// Buffers that must be given back to the message layer.
    spent: Vec<Vec<u8>>,
}

/// One rank's part in the exchange of one checkpoint.
pub struct Exchange {
    spec: ExchangeSpec,
    header: ShardHeader,
    peers: Vec<Rank>,
    segment: u64,
    code: Option<CodeInUse>,
    buffers: Arc<Lock<Vec<Vec<u8>>>>,
    is_stopped: AtomicBool,
    inner: Lock<Inner>,
}

/// The parcels that a rank sends if it cannot take part in an exchange, so that the others do not wait for it.
pub fn aborts(role: &Role, rank: Rank, operation: u64, reason: &str) -> Vec<(Rank, Label, Slice)> {
    let text: Vec<u8> = reason.bytes().take(REASON_MAX).collect();
    let length = text.len();
    let body: SharedBytes = Arc::new(text);
    let abort = |peer| {
        let body = Slice::new(body.clone(), 0..length).unwrap_or_else(Slice::empty);
        (peer, [ABORT, operation, 0, 0, 0, 0], body)
    };
    role.peers(rank).into_iter().map(abort).collect()
}

/// Slots that were sealed but never taken belong to an exchange that failed on this rank. No vote was cast for them.
impl Drop for Exchange {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        self.spec.memory.retire_all(std::mem::take(&mut inner.finished));
    }
}

impl Exchange {
    /// Begins an exchange. After this call, the first parcels are ready to be sent.
    ///
    /// # Errors
    /// The reason, in words, if the set is larger than any code allows.
    pub fn new(spec: ExchangeSpec) -> Result<Exchange, String> {
        let header = spec.source.head().header.clone();
        let peers = spec.role.peers(header.rank);
        let segment = SEGMENT.max(spec.block_bytes);
        let mut inner = Inner::default();
        let code = match &spec.role {
            Role::Partners { from, .. } => {
                inner.expected_outputs = from.len();
                None
            }
            Role::Set { members, parity } => {
                inner.expected_outputs = 1;
                inner.lengths.insert(header.rank, header.total_len);
                inner.verify = pieces(spec.source.head(), segment).into();
                Some(CodeInUse::new(members.len() as u32, *parity)?)
            }
        };
        for peer in &peers {
            let hello = [HELLO, spec.operation, header.total_len, 0, 0, 0];
            inner.out.push_back((*peer, hello, Slice::empty()));
        }
        let exchange = Exchange {
            spec,
            header,
            peers,
            segment,
            code,
            buffers: Arc::default(),
            is_stopped: AtomicBool::new(false),
            inner: Lock::at(Order::Account, inner),
        };
        exchange.after_hello(&mut exchange.lock());
        Ok(exchange)
    }

    fn lock(&self) -> Guard<'_, Inner> {
        self.inner.lock()
    }

    fn rank(&self) -> Rank {
        self.header.rank
    }

    /// Stops the exchange because the level was given up.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }

    /// The length of this rank's shard in bytes.
    pub fn shard_bytes(&self) -> u64 {
        self.header.total_len
    }

    /// Returns once how the exchange ended: the slots that this rank keeps for others, or the reason why it could not
    /// keep them.
    pub fn take_ending(&self) -> Option<Result<Vec<SlotId>, String>> {
        let mut inner = self.lock();
        if inner.is_ended {
            return None;
        }
        if let Some(reason) = inner.failure.clone() {
            inner.is_ended = true;
            return Some(Err(reason));
        }
        let is_done = inner.finished.len() == inner.expected_outputs && inner.verify.is_empty() && inner.verifying == 0;
        is_done.then(|| {
            inner.is_ended = true;
            Ok(std::mem::take(&mut inner.finished))
        })
    }

    /// Has the exchange ended, and has everything for which others wait been sent?
    pub fn is_over(&self) -> bool {
        let inner = self.lock();
        let is_sent = inner.out.is_empty()
            && (inner.failure.is_some() || (inner.is_planned && inner.plan.iter().all(VecDeque::is_empty)));
        // A worker may have finished what this rank keeps, but may not yet have queued what others wait for.
        self.is_stopped.load(Ordering::Acquire) || (inner.is_ended && is_sent && inner.working == 0)
    }

    /// The number of pieces of work that wait for a thread.
    pub fn backlog(&self) -> usize {
        self.lock().todo.iter().filter(|step| !step.waits()).count()
    }

    /// The buffers that the message layer may use again.
    pub fn take_spent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.lock().spent)
    }

    /// Ends this rank's part with a failure, and tells the other ranks, which may wait for this rank even if it has
    /// everything that it keeps.
    pub fn fail(&self, reason: String) {
        let mut inner = self.lock();
        if inner.failure.is_none() {
            self.give_up(&mut inner, reason);
        }
    }

    fn give_up(&self, inner: &mut Inner, reason: String) {
        inner.out.extend(aborts(&self.spec.role, self.rank(), self.spec.operation, &reason));
        self.drop_work(inner, reason);
    }

    fn drop_work(&self, inner: &mut Inner, reason: String) {
        inner.failure = Some(reason);
        inner.todo.clear();
        inner.plan.clear();
        inner.verify.clear();
        inner.sums.clear();
        inner.outputs.clear();
    }

    /// Takes a parcel of this exchange that has arrived.
    pub fn on_parcel(&self, parcel: Parcel) {
        let Parcel { from, label, bytes } = parcel;
        let mut inner = self.lock();
        if !self.peers.contains(&from) || inner.failure.is_some() {
            inner.spent.push(bytes);
            return;
        }
        match label[0] {
            HELLO => {
                inner.lengths.entry(from).or_insert(label[2]);
                self.after_hello(&mut inner);
            }
            READY => {
                inner.ready.insert(from);
            }
            CREDIT => {
                let done = inner.credit.entry(from).or_default();
                *done = label[2].max(*done);
            }
            COPY => {
                match inner.outputs.iter().position(|output| output.of == Some(from)) {
                    Some(output) => {
                        inner.todo.push_back(Step::Copy { output, offset: label[2], head_len: label[3], bytes });
                    }
                    None => inner.spent.push(bytes),
                }
                return;
            }
            CHUNK => {
                inner.todo.push_back(Step::Chunk { segment: label[2], data: label[3] as u32, bytes });
                return;
            }
            PARITY => {
                inner.todo.push_back(Step::Parity { segment: label[2], parity: label[3] as u32, bytes });
                return;
            }
            _ => {
                // Partners form chains: other peers of this rank may not know the sender, but still wait for this rank.
                let text = String::from_utf8_lossy(&bytes);
                let reason =
                    if text.starts_with("rank ") { text.into_owned() } else { format!("rank {from} gave up: {text}") };
                self.give_up(&mut inner, reason);
            }
        }
        inner.spent.push(bytes);
    }

    /// Plans what can be planned now that the length of another rank's shard is known.
    fn after_hello(&self, inner: &mut Inner) {
        match &self.spec.role {
            Role::Partners { from, .. } => {
                for rank in from {
                    let Some(length) = inner.lengths.get(rank).copied() else { continue };
                    if inner.outputs.iter().all(|output| output.of != Some(*rank)) {
                        self.add_output(inner, Some(*rank), length);
                    }
                }
            }
            Role::Set { members, parity } => {
                if inner.set.is_some() || !members.iter().all(|member| inner.lengths.contains_key(member)) {
                    return;
                }
                let members = members.iter().map(|member| (*member, inner.lengths[member])).collect();
                let set = SetInfo { parity: *parity, members };
                if !set.is_sound() {
                    // Only a forged or damaged HELLO causes this.
                    self.drop_work(inner, "the members of the set gave invalid lengths".into());
                    return;
                }
                inner.set = Some(Arc::new(set));
                self.add_output(inner, None, 0);
            }
        }
    }

    fn add_output(&self, inner: &mut Inner, of: Option<Rank>, length: u64) {
        inner.outputs.push(Arc::new(Output { of, length, state: Lock::at(Order::Outer, OutputState::default()) }));
        inner.todo.push_back(Step::Reserve { output: inner.outputs.len() - 1, since: None });
    }

    /// The next parcel to send, if any may be sent now.
    pub fn next_parcel(&self) -> Option<(Rank, Label, Slice)> {
        let mut inner = self.lock();
        if let Some(first) = inner.out.pop_front() {
            return Some(first);
        }
        if inner.failure.is_some() || self.is_stopped.load(Ordering::Acquire) {
            return None;
        }
        self.plan_sends(&mut inner);
        // If the shard is in a file, the workers read it and put the pieces into `out`.
        let Source::Memory(shard) = &self.spec.source else { return None };
        let Outgoing { to, label, range } = self.next_planned(&mut inner)?;
        let range = range.start as usize..range.end as usize;
        match Slice::new(shard.shared(), range) {
            Some(slice) => Some((to, label, slice)),
            None => {
                drop(inner);
                self.fail("its shard is no longer in node memory".into());
                None
            }
        }
    }

    /// Lists everything that must be sent, once this is known.
    fn plan_sends(&self, inner: &mut Inner) {
        if inner.is_planned {
            return;
        }
        match &self.spec.role {
            Role::Partners { to, .. } => inner.plan = self.plan_copies(to),
            Role::Set { .. } => match inner.set.clone() {
                Some(set) => inner.plan = self.plan_chunks(&set),
                None => return,
            },
        }
        inner.is_planned = true;
    }

    /// The next range that may be sent now; receivers take turns.
    fn next_planned(&self, inner: &mut Inner) -> Option<Outgoing> {
        let queues = inner.plan.len();
        let may_send =
            |queue: &usize| inner.plan[*queue].front().is_some_and(|outgoing| self.may_send(inner, outgoing));
        let queue = (0..queues).map(|step| (inner.turn + step) % queues).find(may_send)?;
        inner.turn = queue + 1;
        inner.plan[queue].pop_front()
    }

    /// Is the receiver ready for this range?
    fn may_send(&self, inner: &Inner, Outgoing { to, label, .. }: &Outgoing) -> bool {
        match self.spec.role {
            Role::Partners { .. } => inner.ready.contains(to),
            Role::Set { .. } => {
                inner.ready.len() == self.peers.len() && label[2] < inner.credit.get(to).copied().unwrap_or(0) + WINDOW
            }
        }
    }

    /// A piece of work for a thread, if there is one that can be done now.
    pub fn take_job(&self, now: Duration) -> Option<Job> {
        if self.is_stopped.load(Ordering::Acquire) {
            return None;
        }
        let mut inner = self.lock();
        let job = self.choose_job(&mut inner, now)?;
        inner.working += 1;
        Some(job)
    }

    fn choose_job(&self, inner: &mut Inner, now: Duration) -> Option<Job> {
        let position = inner.todo.iter().position(|step| !step.waits() || now >= inner.retry_at);
        if let Some(step) = position.and_then(|position| inner.todo.remove(position)) {
            return Some(Job(step));
        }
        if matches!(self.spec.source, Source::File(_)) && inner.failure.is_none() {
            self.plan_sends(inner);
            if inner.loading + inner.out.len() < LOADED_MAX
                && let Some(outgoing) = self.next_planned(inner)
            {
                inner.loading += 1;
                return Some(Job(Step::Load(outgoing)));
            }
        }
        // Checks come last, so that they do not delay other ranks.
        let piece = inner.verify.pop_front()?;
        inner.verifying += 1;
        Some(Job(Step::Verify(piece)))
    }

    /// Does a piece of work.
    ///
    /// # Blocking
    /// For arithmetic and memory, and for the device if the shard is in a file.
    pub fn run(&self, job: Job, staging: &mut Option<PageBuffer>, now: Duration) {
        let done = match job.0 {
            Step::Reserve { output, since } => self.reserve(output, since, now),
            Step::Copy { output, offset, head_len, bytes } => self.take_copy(output, offset, head_len, bytes),
            Step::Chunk { segment, data, bytes } => self.add_chunk(segment, data, bytes),
            Step::Parity { parity, segment, bytes } => {
                let done = self.store_parity(parity, segment, &bytes);
                self.lock().spent.push(bytes);
                done
            }
            Step::Zero { segment } => self.add_zero(segment),
            Step::Verify(piece) => {
                self.verify(&piece, staging);
                Ok(())
            }
            Step::Load(outgoing) => self.load(outgoing),
        };
        if let Err(reason) = done {
            self.fail(reason);
        }
        self.lock().working -= 1;
    }

    fn output(&self, index: usize) -> Result<Arc<Output>, String> {
        self.lock().outputs.get(index).cloned().ok_or_else(|| "the exchange has ended".into())
    }

    fn reserve(&self, index: usize, since: Option<Duration>, now: Duration) -> Result<(), String> {
        let output = self.output(index)?;
        let prepared = match output.of {
            Some(_) => None,
            None => {
                let set = self.lock().set.clone().ok_or("the set is not known")?;
                let made = part::layout(&self.spec.series, &set, self.spec.block_bytes);
                Some((set, made.map_err(|error| error.to_string())?))
            }
        };
        let length = prepared.as_ref().map_or(output.length, |(_, (layout, _))| layout.total_len);
        let slot = self.spec.memory.reserve(length).map_err(|error| format!("memory tier: {error}"))?;
        let Some(slot) = slot else {
            let since = since.unwrap_or(now);
            if now.saturating_sub(since) >= self.spec.room_limit {
                let why = self.spec.memory.refusal().map_or_else(String::new, |refusal| format!(" ({refusal})"));
                return Err(format!(
                    "memory tier: no room for {length} bytes of redundancy{why}; raise memory.budget or choose a scheme that \
                     needs less"
                ));
            }
            let mut inner = self.lock();
            inner.retry_at = now + ROOM_PAUSE;
            inner.todo.push_back(Step::Reserve { output: index, since: Some(since) });
            return Ok(());
        };
        let mut state = output.state.lock();
        state.slot = Some(slot);
        let mut zeros = Vec::new();
        match prepared {
            None => state.left = output.length,
            Some((set, (layout, encoded))) => {
                self.begin_parity(&mut state, &set, layout, &encoded)?;
                let me = set.place(self.rank()).ok_or("this rank is not in its set")?;
                let is_empty = |segment: &u64| self.contributions(&set, me, *segment) == 0;
                zeros.extend((0..set.chunk().div_ceil(self.segment)).filter(is_empty));
            }
        }
        drop(state);
        let mut inner = self.lock();
        inner.todo.extend(zeros.into_iter().map(|segment| Step::Zero { segment }));
        let told = output.of.map_or_else(|| self.peers.clone(), |owner| vec![owner]);
        for rank in told {
            inner.out.push_back((rank, [READY, self.spec.operation, 0, 0, 0, 0], Slice::empty()));
        }
        Ok(())
    }

    fn verify(&self, piece: &Piece, staging: &mut Option<PageBuffer>) {
        let source = &self.spec.source;
        let length = (piece.bytes.end - piece.bytes.start) as usize;
        let checked = match source {
            Source::Memory(shard) => match shard.bytes().get(piece.bytes.start as usize..piece.bytes.end as usize) {
                Some(bytes) => piece.check(source, bytes).map_err(|error| error.to_string()),
                None => Err("its shard is no longer in node memory".into()),
            },
            Source::File(shard) => {
                let buffer = match staging {
                    Some(buffer) if buffer.len() >= length => buffer,
                    _ => staging.insert(PageBuffer::new(length)),
                };
                let part = &mut buffer[..length];
                let read = shard.read_raw(piece.bytes.start, part).and_then(|()| piece.check(source, part));
                read.map_err(|error| error.to_string())
            }
        };
        let mut inner = self.lock();
        inner.verifying -= 1;
        // Both happen under one lock, so that no thread sees that the last piece is done but not that it is damaged.
        if let (Err(reason), None) = (checked, &inner.failure) {
            self.give_up(&mut inner, reason);
        }
    }

    fn load(&self, outgoing: Outgoing) -> Result<(), String> {
        let Source::File(shard) = &self.spec.source else { return Ok(()) };
        let length = (outgoing.range.end - outgoing.range.start) as usize;
        let mut buffer = PageBuffer::new(page_ceil(length as u64) as usize);
        let read = shard.read_raw(outgoing.range.start, &mut buffer[..length]).map_err(|error| error.to_string());
        let mut inner = self.lock();
        inner.loading -= 1;
        read?;
        let bytes: SharedBytes = Arc::new(SharedPages(buffer));
        let slice = Slice::new(bytes, 0..length).ok_or("a piece does not have the planned length")?;
        inner.out.push_back((outgoing.to, outgoing.label, slice));
        Ok(())
    }

    fn seal(&self, state: &mut OutputState) -> Result<SlotId, String> {
        let slot = state.slot.take().ok_or("the slot is gone")?;
        let info =
            SealInfo { operation: self.spec.operation, version: self.header.key.version, name: self.spec.name_hash };
        slot.seal(info).map_err(|error| format!("memory tier: {error}"))
    }
}
