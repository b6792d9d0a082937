//! The message layer of jobs whose MPI library allows only the application's thread to call it: our own streams.
//!
//! A session that can send only while the application is inside one of its calls commits late: a level that is written a second
//! after the last call must wait for the next call. With streams, a thread of ours sends whenever there is something to send.
//! Ranks of the same node talk over local sockets, and other ranks over TCP. MPI is used once, to tell all ranks where the
//! others listen and which secret they share ([`SocketComm::open`]).
//!
//! The calling thread does everything, without waiting: [`Comm::receive`] checks which streams have something to read, and
//! advances those that have something to write. A stream carries data in one direction, and is made when something is first sent
//! that way. So a rank has as many streams as partners: a few in the tree of the protocol, and a few in its redundancy sets.
//!
//! | file | has |
//! |---|---|
//! | `wire` | greeting and frames, as bytes |
//! | `places` | where a rank listens, and in which order its addresses are tried |
//! | `link` | the stream to a rank: connects, greets, sends, and continues where a broken connection ended |
//! | `inlet` | the stream from a rank that has connected |
//! | `open` | how ranks find each other, and test whether they reach each other |
#![forbid(unsafe_code)]

mod inlet;
mod link;
mod open;
mod places;
#[cfg(test)]
mod tests;
mod wire;

use super::parcel::{self, PARCELS_AT_ONCE};
use super::pool::Pool;
use super::{Bell, Comm, CommError, Label, Parcel, Slice, check_send};
use crate::base::Rank;
use crate::base::log;
use inlet::{Arrived, Heard, Inlet};
use link::{Body, Link, Own};
use places::{Card, Ears, Network};
use rustix::event::epoll;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{Head, Kind, Purpose};

pub use open::{Opened, Wish};

const TARGET: &str = "bivouac::comm::sockets";

/// What users can do if ranks do not reach each other.
pub const INSTEAD: &str = "let the nodes of a job reach each other by TCP, or set OMPI_MPI_THREAD_LEVEL=3 (Open MPI) or \
                           MPIR_CVAR_DEFAULT_THREAD_LEVEL=MPI_THREAD_MULTIPLE (MPICH)";

/// The maximum number of events that one poll takes; the next poll takes the others.
const EVENTS: usize = 64;
/// The maximum number of frames taken from one stream before the others have their turn.
const FRAMES_PER_TURN: usize = 32;
/// The limits for callers that have not proven who they are: how many there may be at once, and how long each may take.
const STRANGERS_MAX: usize = 256;
const STRANGER_LIMIT: Duration = Duration::from_secs(5);
/// The pause between two polls while `quiesce` waits.
const PAUSE: Duration = Duration::from_micros(50);
/// The number of the first stream in epoll events; listening sockets have smaller numbers.
const FIRST_INLET: u64 = 16;
/// The number, in epoll events, of all streams that this rank has made: each turn advances all of them.
const A_LINK: u64 = 15;

/// The maximum number of ranks to which a rank passes on the end of the conversation.
const FAN_OUT: u32 = 8;

/// The rank above this one on the way to rank 0, and the ranks below it.
fn tree(rank: u32, size: u32) -> (Option<Rank>, impl Iterator<Item = Rank>) {
    let first = u64::from(rank) * u64::from(FAN_OUT) + 1;
    let below = (first..first + u64::from(FAN_OUT)).filter(move |below| *below < u64::from(size));
    (rank.checked_sub(1).map(|before| Rank(before / FAN_OUT)), below.map(|below| Rank(below as u32)))
}

/// How far this end has been closed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Life {
    Open,
    Leaving,
    Closed,
}

/// The frames that have arrived from one rank over one kind of stream.
#[derive(Default)]
struct Source {
    frames: u64,
    inlet: Option<u64>,
}

/// One rank's end of a group of ranks that talks over streams.
///
/// Dropping it closes its streams, as the end of a process would.
pub struct SocketComm {
    own: Own,
    nodes: Vec<u32>,
    cards: Vec<Card>,
    networks: Vec<Network>,
    epoll: OwnedFd,
    bell: Arc<Bell>,
    ears: Vec<OwnedFd>,
    inlets: BTreeMap<u64, Inlet>,
    next_inlet: u64,
    sources: HashMap<(Rank, Kind), Source>,
    links: BTreeMap<(Rank, Kind), Link>,
    inbox: VecDeque<(Rank, Vec<u8>)>,
    parcels: VecDeque<Parcel>,
    /// Parcels to this rank itself for which there has been no room yet.
    own_parcels: VecDeque<(Label, Slice)>,
    pool: Pool,
    life: Life,
    /// The number of ranks below that have reported that everything they sent has arrived.
    all_sent_below: usize,
    is_over: bool,
}

impl SocketComm {
    fn new(own: Own, nodes: Vec<u32>, cards: Vec<Card>, ears: Ears) -> std::io::Result<SocketComm> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (ear, number) in ears.sockets.iter().zip(0..A_LINK) {
            epoll::add(&epoll, ear, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        }
        Ok(SocketComm {
            own,
            nodes,
            cards,
            networks: ears.networks,
            bell: Arc::new(Bell::new(epoll.try_clone()?)?),
            epoll,
            ears: ears.sockets,
            inlets: BTreeMap::new(),
            next_inlet: FIRST_INLET,
            sources: HashMap::new(),
            links: BTreeMap::new(),
            inbox: VecDeque::new(),
            parcels: VecDeque::new(),
            own_parcels: VecDeque::new(),
            pool: Pool::new(),
            life: Life::Open,
            all_sent_below: 0,
            is_over: false,
        })
    }

    fn closed(&self) -> CommError {
        CommError::Closed { rank: self.own.rank }
    }

    fn alive(&self) -> Result<(), CommError> {
        if self.life == Life::Closed { Err(self.closed()) } else { Ok(()) }
    }

    /// Handles everything that can be done without waiting.
    fn turn(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        // A signal may interrupt the call; the next turn then sees the same events.
        let _ = epoll::wait(
            &self.epoll,
            rustix::buffer::spare_capacity(&mut events),
            Some(&rustix::event::Timespec::default()),
        );
        for event in events {
            match event.data.u64() {
                A_LINK => {}
                ear if ear < FIRST_INLET => self.take_up(ear as usize),
                inlet => self.hear(inlet),
            }
        }
        self.deliver_own();
        for link in self.links.values_mut() {
            link.advance(&self.own, &self.epoll);
        }
        self.tell();
        self.pool.tidy();
    }

    /// Accepts a caller.
    fn take_up(&mut self, ear: usize) {
        let Some(ear) = self.ears.get(ear) else { return };
        let Ok(Some(socket)) = places::answer(ear) else { return };
        let number = self.next_inlet;
        self.next_inlet += 1;
        if epoll::add(&self.epoll, &socket, epoll::EventData::new_u64(number), epoll::EventFlags::IN).is_ok() {
            self.inlets.insert(number, Inlet::new(socket));
        }
        let strangers: Vec<u64> =
            self.inlets.iter().filter(|(_, inlet)| inlet.of().is_none()).map(|(number, _)| *number).collect();
        let too_many = strangers.len().saturating_sub(STRANGERS_MAX);
        for (at, number) in strangers.into_iter().enumerate() {
            if at < too_many || self.inlets.get(&number).is_some_and(|inlet| inlet.since.elapsed() >= STRANGER_LIMIT) {
                self.drop_inlet(number);
            }
        }
    }

    fn drop_inlet(&mut self, number: u64) {
        if let Some(inlet) = self.inlets.remove(&number) {
            // The socket is removed explicitly, because a forked child may still hold it, and epoll would report its
            // events forever.
            let _ = epoll::delete(&self.epoll, &inlet.socket);
        }
    }

    /// Is there room for one more parcel, in addition to those that are arriving?
    fn has_room(&self) -> bool {
        let arriving =
            self.inlets.values().filter(|inlet| inlet.is_amid() && matches!(inlet.of(), Some((_, Kind::Parcels))));
        self.life == Life::Leaving || self.parcels.len() + arriving.count() < PARCELS_AT_ONCE
    }

    /// Continues to read from a stream.
    fn hear(&mut self, number: u64) {
        for _ in 0..FRAMES_PER_TURN {
            let has_room = self.has_room();
            let Some(inlet) = self.inlets.get_mut(&number) else { return };
            let is_of_parcels = matches!(inlet.of(), Some((_, Kind::Parcels)));
            if is_of_parcels && !inlet.is_amid() && !has_room {
                return;
            }
            let pool = &mut self.pool;
            let memory = |bytes| if is_of_parcels && bytes > 0 { pool.take(bytes) } else { Vec::with_capacity(bytes) };
            match inlet.hear(&self.own, memory) {
                Ok(Heard::Nothing) => return,
                Ok(Heard::Known(from, kind)) => {
                    let before = self.sources.entry((from, kind)).or_default().inlet.replace(number);
                    before.into_iter().for_each(|before| self.drop_inlet(before));
                }
                Ok(Heard::Frame(arrived)) => self.take_in(number, arrived),
                Err(error) => {
                    log::debug!(target: TARGET, "event=stream-ended rank={} of={:?} error=\"{error}\"", self.own.rank, inlet.of());
                    return self.drop_inlet(number);
                }
            }
        }
    }

    fn take_in(&mut self, number: u64, Arrived { head, body }: Arrived) {
        let Some((from, kind)) = self.inlets.get(&number).and_then(Inlet::of) else { return };
        let source = self.sources.entry((from, kind)).or_default();
        if head.number != source.frames {
            log::error!(target: TARGET, "event=frame-out-of-order rank={} from={from}", self.own.rank);
            return self.drop_inlet(number);
        }
        source.frames += 1;
        match (kind, head.purpose) {
            (Kind::Messages, Purpose::AllSent) => self.all_sent_below += 1,
            (Kind::Messages, Purpose::Over) => self.is_over = true,
            (Kind::Messages, Purpose::Message) if self.life == Life::Open => self.inbox.push_back((from, body)),
            (Kind::Parcels, _) if self.life == Life::Open => {
                self.parcels.push_back(Parcel { from, label: head.label, bytes: body });
            }
            // After the end, nothing is delivered any more.
            (Kind::Messages, Purpose::Message) => {}
            (Kind::Parcels, _) => self.pool.put(body),
        }
    }

    /// Tells senders what has arrived.
    fn tell(&mut self) {
        let mut ended = Vec::new();
        for (number, inlet) in &mut self.inlets {
            let source = inlet.of().and_then(|of| self.sources.get(&of));
            if source.is_some_and(|source| inlet.tell(source.frames).is_err()) {
                ended.push(*number);
            }
        }
        ended.into_iter().for_each(|number| self.drop_inlet(number));
    }

    fn deliver_own(&mut self) {
        while !self.own_parcels.is_empty() && self.has_room() {
            let Some((label, body)) = self.own_parcels.pop_front() else { return };
            if self.life == Life::Open {
                let mut bytes = if body.is_empty() { Vec::new() } else { self.pool.take(body.len()) };
                bytes.extend_from_slice(body.as_ref());
                self.parcels.push_back(Parcel { from: self.own.rank, label, bytes });
            }
        }
    }

    fn link(&mut self, to: Rank, kind: Kind) -> &mut Link {
        let is_on_this_node = self.nodes[to.index()] == self.nodes[self.own.rank.index()];
        let reached = [Kind::Messages, Kind::Parcels].iter().find_map(|kind| self.links.get(&(to, *kind))?.reached());
        let addresses = || self.cards[to.index()].addresses(is_on_this_node, &self.networks);
        self.links.entry((to, kind)).or_insert_with(|| Link::new(to, kind, addresses(), reached))
    }

    fn push(&mut self, to: Rank, purpose: Purpose, bytes: &[u8]) {
        let head = Head { number: 0, length: 0, purpose, label: [0; 6] };
        self.link(to, Kind::Messages).push(head, Body::Copied(bytes.to_vec()));
        if let Some(link) = self.links.get_mut(&(to, Kind::Messages)) {
            link.advance(&self.own, &self.epoll);
        }
    }

    fn unsent(&self, kind: Kind) -> usize {
        self.links.iter().filter(|((_, of), _)| *of == kind).map(|(_, link)| link.unsent()).sum()
    }

    /// The reasons why ranks cannot be reached.
    fn troubles(&self) -> Vec<String> {
        let troubles = self.links.iter().filter_map(|((to, _), link)| Some((to, link.trouble.as_ref()?)));
        troubles.map(|(to, trouble)| format!("rank {} cannot reach rank {to}: {trouble}", self.own.rank)).collect()
    }
}

impl Comm for SocketComm {
    fn rank(&self) -> Rank {
        self.own.rank
    }

    fn size(&self) -> u32 {
        self.own.size
    }

    fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    fn send(&mut self, to: Rank, bytes: &[u8]) -> Result<(), CommError> {
        if self.life != Life::Open {
            return Err(self.closed());
        }
        check_send(self.own.rank, self.own.size, to, bytes.len())?;
        if to == self.own.rank {
            self.inbox.push_back((to, bytes.to_vec()));
        } else {
            self.push(to, Purpose::Message, bytes);
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<Option<(Rank, Vec<u8>)>, CommError> {
        self.alive()?;
        if self.inbox.is_empty() {
            self.turn();
        }
        Ok(self.inbox.pop_front())
    }

    fn put_back(&mut self, from: Rank, bytes: Vec<u8>) {
        if self.life == Life::Open {
            self.inbox.push_front((from, bytes));
        }
    }

    /// Messages that have left but that the other rank has not acknowledged count as unfinished, too.
    fn unfinished(&self) -> usize {
        self.unsent(Kind::Messages)
    }

    fn send_parcel(&mut self, to: Rank, label: Label, body: Slice) -> Result<(), CommError> {
        if self.life != Life::Open {
            return Err(self.closed());
        }
        parcel::check(self.own.rank, self.own.size, to, body.len())?;
        if to == self.own.rank {
            self.own_parcels.push_back((label, body));
            self.deliver_own();
            return Ok(());
        }
        let head = Head { number: 0, length: 0, purpose: Purpose::Message, label };
        self.link(to, Kind::Parcels).push(head, Body::Lent(body));
        if let Some(link) = self.links.get_mut(&(to, Kind::Parcels)) {
            link.advance(&self.own, &self.epoll);
        }
        Ok(())
    }

    fn receive_parcel(&mut self) -> Result<Option<Parcel>, CommError> {
        self.alive()?;
        let had_messages = !self.inbox.is_empty();
        self.turn();
        if !had_messages && !self.inbox.is_empty() {
            // A caller that looks for parcels last must not sleep while messages that arrived with them wait.
            self.bell.remind();
        }
        Ok(self.parcels.pop_front())
    }

    fn recycle(&mut self, bytes: Vec<u8>) {
        if self.life != Life::Closed {
            self.pool.put(bytes);
        }
    }

    fn unsent_parcels(&self) -> usize {
        self.unsent(Kind::Parcels) + self.own_parcels.len()
    }

    fn bell(&self) -> Option<Arc<Bell>> {
        Some(self.bell.clone())
    }

    /// Each rank tells the rank above it that everything sent at or below it has arrived; rank 0 then tells all ranks,
    /// down the tree, that this holds for all of them.
    fn quiesce(&mut self, limit: Duration) -> Result<bool, CommError> {
        self.alive()?;
        if self.life == Life::Leaving {
            return Ok(self.is_over);
        }
        self.life = Life::Leaving;
        self.inbox.clear();
        self.parcels.clear();
        let started = Instant::now();
        let (above, below) = tree(self.own.rank.0, self.own.size);
        let below: Vec<Rank> = below.collect();
        let (mut has_told, mut has_passed_on) = (false, false);
        loop {
            self.turn();
            let is_sent = self.unfinished() == 0 && self.unsent_parcels() == 0;
            if is_sent && !has_told && self.all_sent_below == below.len() {
                has_told = true;
                match above {
                    Some(above) => self.push(above, Purpose::AllSent, &[]),
                    None => self.is_over = true,
                }
            }
            if self.is_over && !has_passed_on {
                has_passed_on = true;
                below.iter().for_each(|below| self.push(*below, Purpose::Over, &[]));
            }
            if has_passed_on && self.unfinished() == 0 {
                return Ok(true);
            }
            if started.elapsed() >= limit {
                return Ok(false);
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn cancel(&mut self) {
        self.life = Life::Closed;
        self.ears.clear();
        self.inlets.clear();
        self.links.clear();
        self.inbox.clear();
        self.parcels.clear();
        self.own_parcels.clear();
        self.pool = Pool::new();
    }
}
