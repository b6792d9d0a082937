//! The stream to one rank: it is made when there is something to send, and made again when it breaks.
//!
//! A frame is kept until the other rank says that it has the frame. So after a broken connection both ends know where to continue,
//! and nothing arrives twice or out of order. If a rank was reached before and nothing listens at its address any more, it has
//! ended, and frames for it vanish.
#![forbid(unsafe_code)]

use super::A_LINK;
use super::places::{Address, call};
use super::wire::{CHALLENGE_BYTES, COUNT_BYTES, Group, Head, Hello, Kind, Side};
use crate::base::Rank;
use crate::base::log;
use crate::comm::Slice;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{self, RecvFlags, SendAncillaryBuffer, SendFlags, sockopt};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// The time limit for a call at one address, including its greeting.
const CALL_LIMIT: Duration = Duration::from_secs(2);
/// The pause between two rounds over all addresses: at first, and at most.
const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a rank must be unreachable before this is logged.
const SAID_AFTER: Duration = Duration::from_secs(5);
/// The maximum number of parcels that are on their way to one rank and that it has not taken in.
const PARCELS_ON_THE_WAY: usize = 4;

/// The content of a frame.
pub(super) enum Body {
    Copied(Vec<u8>),
    Lent(Slice),
}

impl Body {
    fn bytes(&self) -> &[u8] {
        match self {
            Body::Copied(bytes) => bytes,
            Body::Lent(slice) => slice.as_ref(),
        }
    }
}

struct Frame {
    head: Vec<u8>,
    body: Body,
}

/// The data that all streams of a rank share.
pub(super) struct Own {
    pub(super) rank: Rank,
    pub(super) size: u32,
    pub(super) group: Group,
}

enum State {
    Apart,
    /// The stream is connecting, or in the greeting.
    Greeting {
        socket: OwnedFd,
        since: Instant,
        hello: Hello,
        step: Step,
    },
    Open {
        socket: OwnedFd,
    },
}

enum Step {
    Connects,
    /// The part of the answer to the hello that has arrived.
    IsChallenged(Vec<u8>),
    /// The part that has arrived of the count of frames that the other rank has.
    IsProven(Vec<u8>),
}

/// See the module's documentation.
pub(super) struct Link {
    to: Rank,
    kind: Kind,
    addresses: Vec<Address>,
    /// The index of the address to try, or of the address that was reached.
    at: usize,
    state: State,
    /// The frames that the other rank has not acknowledged; the first has the number `first`.
    frames: VecDeque<Frame>,
    first: u64,
    /// How many of these frames have been written, and how many bytes of the next one.
    written: usize,
    offset: usize,
    counts: Vec<u8>,
    /// The time from which on connections may be tried again.
    again: Instant,
    pause: Duration,
    /// The time since which the rank has been unreachable.
    apart_since: Option<Instant>,
    is_said: bool,
    /// The index of the address at which the rank was last reached.
    reached: Option<usize>,
    pub(super) trouble: Option<String>,
    pub(super) is_gone: bool,
}

impl Link {
    /// `reached`: the index of the address at which another stream to that rank was made.
    pub(super) fn new(to: Rank, kind: Kind, addresses: Vec<Address>, reached: Option<usize>) -> Link {
        Link {
            to,
            kind,
            addresses,
            at: reached.unwrap_or(0),
            state: State::Apart,
            frames: VecDeque::new(),
            first: 0,
            written: 0,
            offset: 0,
            counts: Vec::new(),
            again: Instant::now(),
            pause: PAUSE_MIN,
            apart_since: None,
            is_said: false,
            reached,
            trouble: None,
            is_gone: false,
        }
    }

    /// The index of the address at which the rank was reached.
    pub(super) fn reached(&self) -> Option<usize> {
        self.reached
    }

    /// The number of frames that the other rank has not acknowledged.
    pub(super) fn unsent(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn push(&mut self, mut head: Head, body: Body) {
        if !self.is_gone {
            head.number = self.first + self.frames.len() as u64;
            head.length = body.bytes().len();
            self.frames.push_back(Frame { head: head.encode(self.kind), body });
        }
    }

    /// Advances the stream as far as possible without waiting.
    pub(super) fn advance(&mut self, own: &Own, epoll: &OwnedFd) {
        if self.frames.is_empty() {
            return;
        }
        match self.try_advance(own, epoll) {
            Ok(()) => {}
            Err(error) => self.break_off(&error),
        }
    }

    fn try_advance(&mut self, own: &Own, epoll: &OwnedFd) -> io::Result<()> {
        loop {
            match &mut self.state {
                State::Apart => {
                    if self.addresses.is_empty() {
                        self.trouble = Some("that rank has no address".into());
                        return Ok(());
                    }
                    if Instant::now() < self.again {
                        return Ok(());
                    }
                    let mut nonce = [0; 16];
                    random(&mut nonce);
                    let hello = Hello { from: own.rank, to: self.to, kind: self.kind, nonce };
                    let socket = call(&self.addresses[self.at])?;
                    // Each change is reported once, so each turn does everything that can be done.
                    let changes = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
                    epoll::add(epoll, &socket, EventData::new_u64(A_LINK), changes)?;
                    self.state = State::Greeting { socket, since: Instant::now(), hello, step: Step::Connects };
                }
                State::Greeting { socket, since, hello, step } => {
                    if since.elapsed() >= CALL_LIMIT {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    match greet(socket, own, hello, step)? {
                        Greeted::Goes => {}
                        Greeted::Waits => return Ok(()),
                        Greeted::Has(count) => self.open(count)?,
                    }
                }
                State::Open { .. } => {
                    self.read_counts()?;
                    return self.write();
                }
            }
        }
    }

    fn open(&mut self, count: u64) -> io::Result<()> {
        let State::Greeting { socket, .. } = std::mem::replace(&mut self.state, State::Apart) else { return Ok(()) };
        self.state = State::Open { socket };
        (self.written, self.offset) = (0, 0);
        self.counts.clear();
        self.let_go(count)?;
        self.reached = Some(self.at);
        self.trouble = None;
        Ok(())
    }

    /// Releases frames: the other rank has received `count` in all.
    fn let_go(&mut self, count: u64) -> io::Result<()> {
        let gone = count.checked_sub(self.first).filter(|gone| *gone <= self.frames.len() as u64);
        // More frames than were sent, or fewer than before: the other end is not a rank of ours.
        let gone = gone.ok_or(io::ErrorKind::InvalidData)? as usize;
        if gone > 0 {
            (self.pause, self.apart_since) = (PAUSE_MIN, None);
        }
        self.frames.drain(..gone);
        self.first = count;
        self.written = self.written.saturating_sub(gone);
        Ok(())
    }

    fn read_counts(&mut self) -> io::Result<()> {
        let State::Open { socket } = &self.state else { return Ok(()) };
        let mut bytes = [0; 32 * COUNT_BYTES];
        let mut newest = None;
        while let Some(read) = receive(socket, &mut bytes)? {
            self.counts.extend(&bytes[..read]);
            let whole = self.counts.len() / COUNT_BYTES * COUNT_BYTES;
            newest = self.counts[..whole].last_chunk().map(|last| u64::from_le_bytes(*last)).or(newest);
            self.counts.drain(..whole);
        }
        newest.map_or(Ok(()), |count| self.let_go(count))
    }

    fn write(&mut self) -> io::Result<()> {
        let State::Open { socket } = &self.state else { return Ok(()) };
        while let Some(frame) = self.frames.get(self.written) {
            if self.kind == Kind::Parcels && self.written >= PARCELS_ON_THE_WAY {
                return Ok(());
            }
            let body = frame.body.bytes();
            let head = frame.head.get(self.offset..).unwrap_or_default();
            let rest = &body[self.offset.saturating_sub(frame.head.len())..];
            let Some(sent) = send(socket, &[IoSlice::new(head), IoSlice::new(rest)])? else { return Ok(()) };
            self.offset += sent;
            if self.offset == frame.head.len() + body.len() {
                self.written += 1;
                self.offset = 0;
            }
        }
        Ok(())
    }

    /// The connection could not be made, or has ended.
    fn break_off(&mut self, error: &io::Error) {
        let was_open = matches!(self.state, State::Open { .. });
        self.state = State::Apart;
        let address = self.addresses.get(self.at).map(Address::to_string).unwrap_or_default();
        let is_refused = error.kind() == io::ErrorKind::ConnectionRefused;
        // At any other address a refusal means nothing, because that address may be one of this host.
        if is_refused && self.reached == Some(self.at) {
            log::info!("event=rank-gone rank={} address={address:?}", self.to);
            self.is_gone = true;
            return self.frames.clear();
        }
        let now = Instant::now();
        let since = *self.apart_since.get_or_insert(now);
        self.trouble = Some(format!("{address}: {error}"));
        if was_open {
            // The same address is tried again, with growing pauses if nothing gets through.
            log::info!("event=connection-lost rank={} address={address:?} error=\"{error}\"", self.to);
        } else {
            self.at += 1;
            if self.at < self.addresses.len() {
                return;
            }
            self.at = 0;
        }
        self.again = now + self.pause;
        self.pause = (2 * self.pause).min(PAUSE_MAX);
        if now - since >= SAID_AFTER && !std::mem::replace(&mut self.is_said, true) {
            log::warn!("event=rank-unreachable rank={} address={address:?} error=\"{error}\": trying again", self.to);
        }
    }
}

#[cfg(test)]
impl Link {
    /// The connection, if it is open.
    pub(super) fn socket(&self) -> Option<&OwnedFd> {
        match &self.state {
            State::Open { socket } => Some(socket),
            _ => None,
        }
    }
}

enum Greeted {
    Goes,
    Waits,
    /// The greeting is over: the other rank has received this many frames.
    Has(u64),
}

/// One step of the greeting.
fn greet(socket: &OwnedFd, own: &Own, hello: &Hello, step: &mut Step) -> io::Result<Greeted> {
    match step {
        Step::Connects => {
            sockopt::socket_error(socket)?.map_err(io::Error::from)?;
            match net::send(socket, &hello.encode(&own.group), SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(_) => *step = Step::IsChallenged(Vec::new()),
                Err(Errno::AGAIN | Errno::NOTCONN | Errno::INTR) => return Ok(Greeted::Waits),
                Err(errno) => return Err(errno.into()),
            }
        }
        Step::IsChallenged(got) => {
            if !fill(socket, got, CHALLENGE_BYTES)? {
                return Ok(Greeted::Waits);
            }
            let (nonce, proof) = got.split_at(16);
            let nonce: &[u8; 16] = nonce.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
            if hello.proof(&own.group, Side::Called, nonce) != *proof {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    "the process that listens there does not belong to this job",
                ));
            }
            let proof = hello.proof(&own.group, Side::Caller, nonce);
            net::send(socket, proof.as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
            *step = Step::IsProven(Vec::new());
        }
        Step::IsProven(got) => {
            if !fill(socket, got, COUNT_BYTES)? {
                return Ok(Greeted::Waits);
            }
            let count = got.first_chunk().map_or(0, |count| u64::from_le_bytes(*count));
            return Ok(Greeted::Has(count));
        }
    }
    Ok(Greeted::Goes)
}

/// Reads until `got` has `bytes` bytes. False: it does not have them yet.
pub(super) fn fill(socket: &OwnedFd, got: &mut Vec<u8>, bytes: usize) -> io::Result<bool> {
    let mut rest = [0; 64];
    while got.len() < bytes {
        let wanted = (bytes - got.len()).min(rest.len());
        match receive(socket, &mut rest[..wanted])? {
            Some(read) => got.extend(&rest[..read]),
            None => return Ok(false),
        }
    }
    Ok(true)
}

/// Reads what has arrived. `None`: nothing has arrived now.
///
/// # Errors
/// The other end has closed the connection, or the system reports an error.
pub(super) fn receive(socket: &OwnedFd, bytes: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        return match net::recv(socket, &mut *bytes, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, read)) => Ok(Some(read)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(errno.into()),
        };
    }
}

/// Sends as much as finds room. `None`: there is no room now.
pub(super) fn send(socket: &OwnedFd, parts: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
    loop {
        // A broken connection must cause an error and not a signal, because signals belong to the application.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        return match net::sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags) {
            Ok(sent) => Ok(Some(sent)),
            Err(Errno::AGAIN) => Ok(None),
            Err(Errno::INTR) => continue,
            Err(errno) => Err(errno.into()),
        };
    }
}

/// Fills `bytes` with random bytes from the system.
pub(super) fn random(bytes: &mut [u8]) {
    let mut done = 0;
    while done < bytes.len() {
        // Early after a machine's boot the call may be interrupted; no other error is possible.
        done += rustix::rand::getrandom(&mut bytes[done..], rustix::rand::GetRandomFlags::empty()).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_breaks_whenever_it_is_made_is_made_less_and_less_often_until_something_gets_through() {
        let mut link = Link::new(Rank(1), Kind::Messages, vec![Address::Ip(([127, 0, 0, 1], 4001).into())], Some(0));
        let break_off = |link: &mut Link| {
            let (socket, _) = std::os::unix::net::UnixStream::pair().expect("a pair");
            link.state = State::Open { socket: socket.into() };
            link.break_off(&io::ErrorKind::ConnectionReset.into());
            assert!(!link.is_gone && link.at == 0);
            link.again.saturating_duration_since(Instant::now())
        };
        let head = Head { number: 0, length: 0, purpose: super::super::wire::Purpose::Message, label: [0; 6] };
        link.push(head, Body::Copied(Vec::new()));
        assert!(break_off(&mut link) <= PAUSE_MIN);
        for _ in 0..20 {
            break_off(&mut link);
        }
        assert_eq!(link.pause, PAUSE_MAX);
        assert!(link.apart_since.is_some(), "it is told after a while");
        link.let_go(1).expect("it was sent");
        assert!(break_off(&mut link) <= PAUSE_MIN);
    }

    #[test]
    fn a_rank_has_ended_if_nobody_listens_where_it_was_reached_and_nowhere_else() {
        let addresses = || [4001, 4002].map(|port| Address::Ip(([127, 0, 0, 1], port).into())).to_vec();
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let mut link = Link::new(Rank(1), Kind::Messages, addresses(), Some(0));
        link.break_off(&io::ErrorKind::TimedOut.into());
        assert_eq!((link.at, link.is_gone), (1, false));
        link.break_off(&refused);
        assert_eq!((link.at, link.is_gone), (0, false), "the second address may be one of another host");
        link.break_off(&refused);
        assert!(link.is_gone);
        let mut never = Link::new(Rank(1), Kind::Messages, addresses(), None);
        (0..10).for_each(|_| never.break_off(&refused));
        assert!(!never.is_gone);
    }
}
