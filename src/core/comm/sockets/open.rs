//! How ranks that already communicate through another message layer set up streams.
#![forbid(unsafe_code)]

use super::link::{Own, random};
use super::places::{self, Card, Ears};
use super::wire::Group;
use super::{PAUSE, SocketComm, tree};
use crate::base::Rank;
use crate::comm::{Comm, CommError};
use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

/// The first byte of a rank's message, which states its wish.
const NEEDS: u8 = 1;
const GOES_ALONG: u8 = 2;
const REFUSES: u8 = 3;
const CANNOT: u8 = 4;
/// The end of a failure text that gives no reason.
const SILENCE: &str = "in vain";
/// How long ranks try to reach each other. This suffices for several addresses at which nothing answers, or for a very
/// busy machine.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);

/// Whether a rank wants streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wish {
    /// The rank needs streams.
    Need,
    /// The rank accepts whatever the others want.
    Whatever,
    /// The rank refuses streams.
    Refuse,
}

/// The result of [`SocketComm::open`], the same on all ranks.
pub enum Opened {
    /// The ranks reach each other.
    Streams(Box<SocketComm>),
    /// No rank needs streams, or one refuses.
    NotWanted,
    /// The ranks do not reach each other, for this reason.
    Unreachable(String),
}

/// Encodes a list of statements: for each the rank that makes it, the number of bytes, and the bytes.
fn encode(said: &[(Rank, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (rank, text) in said {
        bytes.extend(rank.0.to_le_bytes());
        bytes.extend((text.len() as u32).to_le_bytes());
        bytes.extend(text);
    }
    bytes
}

fn decode(mut bytes: &[u8]) -> Option<Vec<(Rank, Vec<u8>)>> {
    let mut said = Vec::new();
    while !bytes.is_empty() {
        let (rank, rest) = bytes.split_first_chunk()?;
        let (length, rest) = rest.split_first_chunk()?;
        let (text, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        said.push((Rank(u32::from_le_bytes(*rank)), text.to_vec()));
        bytes = rest;
    }
    Some(said)
}

/// The exchange of the ranks over the other message layer, up and down a tree.
struct Talk<'a> {
    base: &'a mut dyn Comm,
    deadline: Instant,
    /// Messages of ranks that have already received the final message of the exchange and have continued.
    early: Vec<(Rank, Vec<u8>)>,
}

impl Drop for Talk<'_> {
    fn drop(&mut self) {
        while let Some((from, bytes)) = self.early.pop() {
            self.base.put_back(from, bytes);
        }
    }
}

impl Talk<'_> {
    fn next(&mut self, senders: &[Rank]) -> Result<Vec<u8>, CommError> {
        let started = Instant::now();
        loop {
            if let Some((from, bytes)) = self.base.receive()? {
                if senders.contains(&from) {
                    return Ok(bytes);
                }
                self.early.push((from, bytes));
                continue;
            }
            if Instant::now() >= self.deadline {
                let (rank, waited) = (self.base.rank(), started.elapsed());
                return Err(CommError::Absent { rank, count: 0, missing: Vec::new(), waited });
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Returns the statements of all ranks, in the order of the ranks, on rank 0; elsewhere those of this rank and of
    /// the ranks below it.
    fn gather(&mut self, own: Vec<u8>) -> Result<Vec<(Rank, Vec<u8>)>, CommError> {
        let (above, below) = tree(self.base.rank().0, self.base.size());
        let mut said = vec![(self.base.rank(), own)];
        let below: Vec<Rank> = below.collect();
        for _ in &below {
            said.extend(decode(&self.next(&below)?).unwrap_or_default());
        }
        said.sort_by_key(|(rank, _)| *rank);
        if let Some(above) = above {
            self.base.send(above, &encode(&said))?;
        }
        Ok(said)
    }

    /// Passes the word of rank 0 to all ranks, and returns it.
    fn spread(&mut self, word: Vec<u8>) -> Result<Vec<u8>, CommError> {
        let (above, below) = tree(self.base.rank().0, self.base.size());
        let word = if let Some(above) = above { self.next(&[above])? } else { word };
        for below in below {
            self.base.send(below, &word)?;
        }
        Ok(word)
    }
}

impl SocketComm {
    /// Makes streams between the ranks of another message layer and tries them, if a rank needs them and none refuses. When
    /// this returns, the exchange over that layer is over.
    ///
    /// # Collective
    /// All ranks of `base`.
    ///
    /// # Blocking
    /// Until all ranks have called, for at most `limit`; then for the trial, which takes a few seconds at most.
    ///
    /// # Errors
    /// What the other message layer reports; [`CommError::Absent`] if ranks do not call in time.
    pub fn open(base: &mut dyn Comm, wish: Wish, limit: Duration) -> Result<Opened, CommError> {
        let mut name = [0; 16];
        random(&mut name);
        let heard = match wish {
            Wish::Need | Wish::Whatever => places::listen(name),
            Wish::Refuse => Err(io::ErrorKind::Unsupported.into()),
        };
        SocketComm::open_with(base, wish, limit, heard)
    }

    pub(super) fn open_with(
        base: &mut dyn Comm,
        wish: Wish,
        limit: Duration,
        heard: io::Result<Ears>,
    ) -> Result<Opened, CommError> {
        let (rank, size, nodes) = (base.rank(), base.size(), base.nodes().to_vec());
        let mut talk = Talk { base, deadline: Instant::now() + limit, early: Vec::new() };
        let says = match (wish, &heard) {
            (Wish::Refuse, _) => vec![REFUSES],
            (_, Err(error)) => [&[CANNOT][..], format!("rank {rank} cannot listen: {error}").as_bytes()].concat(),
            (Wish::Need, Ok(ears)) => [&[NEEDS][..], &ears.card.encode()].concat(),
            (Wish::Whatever, Ok(ears)) => [&[GOES_ALONG][..], &ears.card.encode()].concat(),
        };
        let said = talk.gather(says)?;
        let has = |wish| said.iter().any(|(_, says)| says.first() == Some(&wish));
        let mut introduction = Vec::new();
        if (has(NEEDS) || has(CANNOT)) && !has(REFUSES) {
            let mut group = Group { id: [0; 16], secret: [0; 32] };
            random(&mut group.id);
            random(&mut group.secret);
            introduction = [&group.id[..], &group.secret[..], &encode(&said)].concat();
        }
        let introduction = talk.spread(introduction)?;
        if introduction.is_empty() {
            return Ok(Opened::NotWanted);
        }
        let made = match (heard, introduced(&introduction, size)) {
            (Ok(ears), Ok((group, cards))) => SocketComm::new(Own { rank, size, group }, nodes, cards, ears)
                .map_err(|error| format!("rank {rank}: {error}")),
            (Err(error), _) => Err(format!("rank {rank} cannot listen: {error}")),
            (_, Err(why)) => Err(why),
        };
        let tried = made.and_then(|mut comm| comm.try_out().map(|()| comm));
        // Other ranks may begin and end their trial later.
        talk.deadline += 2 * TRIAL_LIMIT;
        let failed = talk.gather(tried.as_ref().err().map(|why| why.clone().into_bytes()).unwrap_or_default())?;
        // A rank that merely did not hear from another rank does not know the reason, so its text comes last.
        let knows_why = |why: &Vec<u8>| !why.ends_with(SILENCE.as_bytes());
        let mut failed: Vec<Vec<u8>> = failed.into_iter().map(|(_, why)| why).filter(|why| !why.is_empty()).collect();
        failed.sort_by_key(|why| !knows_why(why));
        let verdict = talk.spread(failed.into_iter().next().unwrap_or_default())?;
        Ok(match tried {
            Ok(comm) if verdict.is_empty() => Opened::Streams(Box::new(comm)),
            _ => Opened::Unreachable(String::from_utf8_lossy(&verdict).into_owned()),
        })
    }

    /// Exchanges a message with ranks that represent all others: the neighbours by number, and the neighbours in the
    /// tree.
    fn try_out(&mut self) -> Result<(), String> {
        let (rank, size) = (self.own.rank.0, self.own.size);
        let (above, below) = tree(rank, size);
        let around = [(rank + 1) % size, (rank + size - 1) % size].map(Rank);
        let mut partners: BTreeSet<Rank> = around.into_iter().chain(above).chain(below).collect();
        partners.remove(&self.own.rank);
        for partner in &partners {
            self.send(*partner, b"").map_err(|error| error.to_string())?;
        }
        let started = Instant::now();
        loop {
            while let Some((from, _)) = self.receive().map_err(|error| error.to_string())? {
                partners.remove(&from);
            }
            if partners.is_empty() && self.unfinished() == 0 {
                return Ok(());
            }
            if started.elapsed() >= TRIAL_LIMIT {
                let trouble = self.troubles().into_iter().next();
                return Err(trouble.unwrap_or_else(|| format!("rank {rank} waited for other ranks {SILENCE}")));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// The group and the cards of all ranks.
fn introduced(bytes: &[u8], size: u32) -> Result<(Group, Vec<Card>), String> {
    let damaged = || "what rank 0 sent about the other ranks is damaged".to_owned();
    let (id, rest) = bytes.split_first_chunk().ok_or_else(damaged)?;
    let (secret, rest) = rest.split_first_chunk().ok_or_else(damaged)?;
    let said = decode(rest).filter(|said| said.len() == size as usize).ok_or_else(damaged)?;
    let mut cards = Vec::new();
    for (_, card) in said {
        match card.split_first() {
            Some((&(NEEDS | GOES_ALONG), card)) => cards.push(Card::decode(card).ok_or_else(damaged)?),
            Some((&CANNOT, why)) => return Err(String::from_utf8_lossy(why).into_owned()),
            _ => return Err(damaged()),
        }
    }
    Ok((Group { id: *id, secret: *secret }, cards))
}
