//! Shards on other nodes, read as files: whole copies, and shards rebuilt from their set.

#![forbid(unsafe_code)]

use crate::base::log;
use crate::base::sync::{Lock, Order};
use crate::base::{CheckpointKey, Rank};
use crate::format::ContainerEntry;
use crate::redundancy::holding::{Alternative, Item};
use crate::redundancy::part::Part;
use crate::redundancy::rebuild::{Input, Rebuilt};
use crate::redundancy::stripes::SetInfo;
use crate::tier::TierId;
use crate::tier::names::Series;
use crate::tier::source::{FileShard, Source};
use crate::tier::storage::ReadFile;
use crate::transfer::Engine;
use crate::transfer::fetch::{FETCH_MAX, Wanted};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// The maximum number of requests for one file that are under way at once.
const ASKED_MAX: usize = 24;

/// An item that another rank reads for us.
struct Remote {
    engine: Arc<Engine>,
    holder: Rank,
    wanted: Wanted,
    bytes: u64,
    /// The ranges that were requested ahead: for each start, the end and the request.
    asked: Lock<BTreeMap<u64, (u64, u64)>>,
}

impl Remote {
    fn ask(&self, range: Range<u64>) -> u64 {
        self.engine.fetch(self.holder, &self.wanted, range)
    }
}

impl ReadFile for Remote {
    /// The application's thread requests data ahead by itself, and may be the only one that can wait for the answers.
    fn readers(&self) -> usize {
        0
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.bytes);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.will_read(offset..end);
        let mut at = offset;
        while at < end {
            let asked = self.asked.lock().remove(&at);
            let (until, id) = match asked {
                Some((until, id)) if until <= end => (until, id),
                other => {
                    if let Some((_, id)) = other {
                        self.engine.forget(id);
                    }
                    let until = end.min(at + FETCH_MAX);
                    (until, self.ask(at..until))
                }
            };
            let answer = self.engine.collect(id);
            let answer = answer.map_err(|why| io::Error::new(why.kind(), format!("rank {}: {why}", self.holder)))?;
            let target = &mut buffer[(at - offset) as usize..(until - offset) as usize];
            if answer.len() != target.len() {
                return Err(io::Error::other(format!(
                    "rank {} sent {} bytes of {}",
                    self.holder,
                    answer.len(),
                    target.len()
                )));
            }
            target.copy_from_slice(&answer);
            self.engine.recycle(answer);
            at = until;
        }
        Ok(())
    }

    fn will_read(&self, range: Range<u64>) {
        let mut asked = self.asked.lock();
        let (mut at, end) = (range.start, range.end.min(self.bytes));
        while at < end && asked.len() < ASKED_MAX {
            let until = end.min(at + FETCH_MAX);
            asked.entry(at).or_insert_with(|| (until, self.ask(at..until)));
            at = until;
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let asked = std::mem::take(self.asked.get_mut());
        asked.into_values().for_each(|(_, id)| self.engine.forget(id));
    }
}

/// The ways to one rank's shard that lead to other nodes, best first; each is tried once.
pub struct Peers {
    engine: Arc<Engine>,
    series: Series,
    key: CheckpointKey,
    rank: Rank,
    ways: VecDeque<Alternative>,
}

impl Peers {
    /// The ways to the shard of `rank`.
    pub fn new(engine: Arc<Engine>, series: Series, key: CheckpointKey, rank: Rank, ways: Vec<Alternative>) -> Peers {
        Peers { engine, series, key, rank, ways: ways.into() }
    }

    /// Opens the next way; `None` if there is none left.
    ///
    /// # Blocking
    /// For the other ranks, which answer while they are inside a call to the session.
    pub fn open_next(&mut self) -> Option<Result<Source, String>> {
        let way = self.ways.pop_front()?;
        let opened = match &way {
            Alternative::Copy { holder, bytes } => {
                let path = format!("rank {}'s copy of the shard of rank {}", holder, self.rank);
                self.open(self.remote(*holder, Item::Shard(self.rank), *bytes, false), *bytes, self.rank, path)
            }
            Alternative::Rebuild { set, shards, parts } => self.open_rebuilt(set, shards, parts),
        };
        Some(opened.map_err(|why| format!("peers tier: {why}")))
    }

    fn remote(&self, holder: Rank, item: Item, bytes: u64, checked: bool) -> Arc<dyn ReadFile> {
        let wanted = Wanted { name: self.series.name.clone(), key: self.key, item, checked };
        Arc::new(Remote {
            engine: self.engine.clone(),
            holder,
            wanted,
            bytes,
            asked: Lock::at(Order::Session, BTreeMap::new()),
        })
    }

    fn open(&self, file: Arc<dyn ReadFile>, bytes: u64, rank: Rank, path: String) -> Result<Source, String> {
        let entry = ContainerEntry { key: self.key, rank, offset: 0, length: bytes };
        FileShard::open(TierId::PEERS, PathBuf::from(path), file, &entry, &self.series)
            .map(Source::File)
            .map_err(|error| error.to_string())
    }

    fn open_rebuilt(
        &self,
        set: &SetInfo,
        shards: &[Option<Rank>],
        parts: &[Option<(Rank, u64)>],
    ) -> Result<Source, String> {
        let lost = set.place(self.rank).ok_or("this rank is not in the set")?;
        let mut inputs = Vec::new();
        let mut causes = Vec::new();
        for (place, (member, bytes)) in set.members.iter().enumerate() {
            let shard = shards.get(place).copied().flatten();
            let part = parts.get(place).copied().flatten();
            let part = part.and_then(|(holder, bytes)| {
                self.open_part(*member, holder, bytes, set).map_err(|why| causes.push(why)).ok()
            });
            let shard = shard.map(|holder| self.remote(holder, Item::Shard(*member), *bytes, true));
            inputs.push(Input { shard, part });
        }
        let rebuilt = Rebuilt::new(set.clone(), lost, inputs).map_err(|why| format!("{why}; {}", causes.join("; ")))?;
        let members: Vec<String> = set.members.iter().map(|(member, _)| member.to_string()).collect();
        let path = format!("the shard of rank {} rebuilt from the set of ranks {}", self.rank, members.join(", "));
        log::info!("event=rebuilding rank={} {} members={}", self.rank, self.key, members.join(","));
        self.open(Arc::new(rebuilt), set.members[lost].1, self.rank, path)
    }

    fn open_part(
        &self,
        member: Rank,
        holder: Rank,
        bytes: u64,
        set: &SetInfo,
    ) -> Result<(Arc<dyn ReadFile>, Vec<u64>), String> {
        let plain = self.remote(holder, Item::Part(member), bytes, false);
        let entry = ContainerEntry { key: self.key, rank: member, offset: 0, length: bytes };
        let path = PathBuf::from(format!("rank {holder}'s parity part of rank {member}"));
        let shard = FileShard::open_any(TierId::PEERS, path, plain, &entry).map_err(|error| error.to_string())?;
        let part = Part::open(Source::File(shard)).map_err(|error| error.to_string())?;
        if part.set != *set || part.rank() != member || part.source.head().header.key != self.key {
            return Err(format!("rank {holder}'s parity part of rank {member} belongs to another set"));
        }
        let offsets = (0..set.parity).map(|parity| part.offset_of(parity)).collect();
        Ok((self.remote(holder, Item::Part(member), bytes, true), offsets))
    }
}
