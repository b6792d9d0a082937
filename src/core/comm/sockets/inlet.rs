//! The stream from a rank that has connected.
#![forbid(unsafe_code)]

use super::link::{Own, fill, random, receive, send};
use super::wire::{CHALLENGE_BYTES, HELLO_BYTES, Head, Hello, Kind, PROOF_BYTES, Side};
use crate::base::Rank;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::time::Instant;

/// A frame that has arrived completely.
pub(super) struct Arrived {
    pub(super) head: Head,
    pub(super) body: Vec<u8>,
}

enum State {
    /// The part of the hello that has arrived.
    Strange(Vec<u8>),
    /// The caller has been challenged.
    Challenged {
        hello: Hello,
        nonce: [u8; 16],
        got: Vec<u8>,
    },
    Known {
        from: Rank,
        kind: Kind,
    },
}

/// The result of reading from the stream.
pub(super) enum Heard {
    Nothing,
    /// The caller is this rank, and has proven it.
    Known(Rank, Kind),
    Frame(Arrived),
}

/// See the module's documentation.
pub(super) struct Inlet {
    pub(super) socket: OwnedFd,
    pub(super) since: Instant,
    state: State,
    /// The frame that is arriving: first the bytes of its head, then the decoded head and the bytes of its body.
    head: Vec<u8>,
    body: Option<(Head, Vec<u8>, usize)>,
    /// The last count of arrived frames that was reported to the sender, and how many bytes of that report have been
    /// sent.
    told: Option<u64>,
    word: ([u8; 8], usize),
}

impl Inlet {
    pub(super) fn new(socket: OwnedFd) -> Inlet {
        Inlet {
            socket,
            since: Instant::now(),
            state: State::Strange(Vec::new()),
            head: Vec::new(),
            body: None,
            told: None,
            word: ([0; 8], 8),
        }
    }

    /// The rank and the kind of the stream; `None` before they are proven.
    pub(super) fn of(&self) -> Option<(Rank, Kind)> {
        match &self.state {
            State::Known { from, kind } => Some((*from, *kind)),
            _ => None,
        }
    }

    /// Has a frame begun to arrive?
    pub(super) fn is_amid(&self) -> bool {
        !self.head.is_empty() || self.body.is_some()
    }

    /// Continues to read, at most to the end of a frame. `memory` returns an empty buffer with room for a number of
    /// bytes.
    ///
    /// # Errors
    /// The connection has ended, or is not one of ours.
    pub(super) fn hear(&mut self, own: &Own, memory: impl FnOnce(usize) -> Vec<u8>) -> io::Result<Heard> {
        match &mut self.state {
            State::Strange(got) => {
                if !fill(&self.socket, got, HELLO_BYTES)? {
                    return Ok(Heard::Nothing);
                }
                let bytes = got.first_chunk().ok_or(io::ErrorKind::InvalidData)?;
                let hello = Hello::decode(bytes, &own.group, own.rank, own.size).ok_or(io::ErrorKind::InvalidData)?;
                let mut nonce = [0; 16];
                random(&mut nonce);
                let answer = [&nonce[..], hello.proof(&own.group, Side::Called, &nonce).as_bytes()].concat();
                // A connection on which nothing has been sent yet has room for the answer.
                let sent = send(&self.socket, &[IoSlice::new(&answer)])?;
                (sent == Some(CHALLENGE_BYTES)).then_some(()).ok_or(io::ErrorKind::WriteZero)?;
                self.state = State::Challenged { hello, nonce, got: Vec::new() };
                Ok(Heard::Nothing)
            }
            State::Challenged { hello, nonce, got } => {
                if !fill(&self.socket, got, PROOF_BYTES)? {
                    return Ok(Heard::Nothing);
                }
                if hello.proof(&own.group, Side::Caller, nonce) != *got.as_slice() {
                    return Err(io::ErrorKind::PermissionDenied.into());
                }
                let (from, kind) = (hello.from, hello.kind);
                self.state = State::Known { from, kind };
                Ok(Heard::Known(from, kind))
            }
            State::Known { kind, .. } => {
                let kind = *kind;
                self.hear_frame(kind, memory)
            }
        }
    }

    fn hear_frame(&mut self, kind: Kind, memory: impl FnOnce(usize) -> Vec<u8>) -> io::Result<Heard> {
        if self.body.is_none() {
            if !fill(&self.socket, &mut self.head, kind.head_bytes())? {
                return Ok(Heard::Nothing);
            }
            let head = Head::decode(&self.head, kind).ok_or(io::ErrorKind::InvalidData)?;
            let mut body = memory(head.length);
            body.resize(head.length, 0);
            self.body = Some((head, body, 0));
        }
        let Some((head, body, here)) = &mut self.body else { return Ok(Heard::Nothing) };
        while *here < head.length {
            match receive(&self.socket, &mut body[*here..])? {
                Some(read) => *here += read,
                None => return Ok(Heard::Nothing),
            }
        }
        let arrived = self.body.take().map(|(head, body, _)| Arrived { head, body });
        self.head.clear();
        Ok(arrived.map_or(Heard::Nothing, Heard::Frame))
    }

    /// Tells the sender how many of its frames have arrived, if the sender does not know yet.
    ///
    /// # Errors
    /// The connection has ended.
    pub(super) fn tell(&mut self, count: u64) -> io::Result<()> {
        loop {
            if self.word.1 < 8 {
                match send(&self.socket, &[IoSlice::new(&self.word.0[self.word.1..])])? {
                    Some(sent) => self.word.1 += sent,
                    None => return Ok(()),
                }
            } else if self.told != Some(count) {
                self.told = Some(count);
                self.word = (count.to_le_bytes(), 0);
            } else {
                return Ok(());
            }
        }
    }
}
