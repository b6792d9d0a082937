//! The level of redundancy: this rank's part in the exchanges with the peers of its sets, and the parts that it keeps for them.
//!
//! Parcels are passed to the exchange of their operation; nothing is computed here under the lock. Arriving parcels are taken only while
//! the workers keep up, so that the rest stays with their senders.
#![forbid(unsafe_code)]

use super::core::Facts;
use super::files::begin_alone;
use super::lanes::Lanes;
use super::level::{Done, LevelWork, Opened};
use super::mail::Mail;
use super::report::Reporter;
use super::setup::Setup;
use super::shards::Shards;
use super::work::Task;
use super::write::{WriteSpec, Written};
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::sync::Lock;
use crate::comm::{Label, Parcel, Slice};
use crate::config::PartStore;
use crate::format::{ContainerEntry, Content};
use crate::redundancy::exchange::{self, Exchange, ExchangeSpec, Job};
use crate::segment::SlotId;
use crate::tier::names::{parity_file, rank_file};
use crate::tier::source::{MemoryShard, Source};
use crate::tier::{TierError, TierId, Writers};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// This rank's work for its redundancy sets.
pub(super) struct Peers {
    setup: Arc<Setup>,
    shards: Arc<Shards>,
    lanes: Arc<Lanes>,
    mail: Arc<Mail>,
    reporter: Arc<Reporter>,
    state: Lock<State>,
}

#[derive(Default)]
struct State {
    /// Exchanges under way, by operation, each with the time at which it began.
    running: BTreeMap<u64, (Arc<Exchange>, Duration)>,
    /// Parcels of exchanges that have not begun on this rank yet.
    early: BTreeMap<u64, Vec<Parcel>>,
    /// Parts that are being written to the node's files, by operation; the part that is written last comes first.
    storing: HashMap<u64, (Arc<Facts>, Vec<SlotId>)>,
}

impl Peers {
    pub fn new(
        setup: &Arc<Setup>,
        shards: &Arc<Shards>,
        lanes: &Arc<Lanes>,
        mail: &Arc<Mail>,
        reporter: &Arc<Reporter>,
    ) -> Peers {
        Peers {
            setup: setup.clone(),
            shards: shards.clone(),
            lanes: lanes.clone(),
            mail: mail.clone(),
            reporter: reporter.clone(),
            state: Lock::default(),
        }
    }

    /// Is no exchange under way?
    pub fn is_idle(&self) -> bool {
        self.state.lock().running.is_empty()
    }

    fn exchanges(&self) -> Vec<Arc<Exchange>> {
        self.state.lock().running.values().map(|(exchange, _)| exchange.clone()).collect()
    }

    /// Pieces of work that wait for a thread.
    pub fn backlog(&self) -> usize {
        self.exchanges().iter().map(|exchange| exchange.backlog()).sum()
    }

    /// Takes a piece of an exchange's work, if there is one.
    pub fn take_job(&self, now: Duration) -> Option<(Arc<Exchange>, Job)> {
        self.exchanges().into_iter().find_map(|exchange| exchange.take_job(now).map(|job| (exchange, job)))
    }

    /// A parcel of an exchange has arrived. `awaits` says whether the exchange of an operation may begin here later.
    pub fn on_parcel(&self, parcel: Parcel, awaits: impl FnOnce(u64) -> bool) {
        let operation = parcel.label[1];
        // Before the lock is taken, because the books answer this question.
        let is_early = exchange::is_early(&parcel.label) && awaits(operation);
        let mut state = self.state.lock();
        match state.running.get(&operation).map(|(exchange, _)| exchange.clone()) {
            Some(exchange) => {
                drop(state);
                exchange.on_parcel(parcel);
            }
            None if is_early => state.early.entry(operation).or_default().push(parcel),
            None => {
                drop(state);
                self.mail.give_back(parcel.bytes);
            }
        }
    }

    pub fn next_parcel(&self) -> Option<(crate::base::Rank, Label, Slice)> {
        self.exchanges().iter().find_map(|exchange| exchange.next_parcel())
    }

    /// Buffers for the message layer to use again.
    pub fn take_spent(&self) -> Vec<Vec<u8>> {
        self.exchanges().iter().flat_map(|exchange| exchange.take_spent()).collect()
    }

    fn make(&self, facts: &Facts) -> Result<Exchange, String> {
        let operation = facts.key.operation;
        let (_, source) = self.shards.get(operation).ok_or("its shard is gone")?;
        let memory =
            self.setup.memory.clone().ok_or("the memory tier is off on this rank: nothing can be kept for others")?;
        let role = self.setup.role(&facts.series.name).ok_or("this rank belongs to no redundancy set")?;
        if !memory.is_linked() {
            return Err("the node's segment was removed: nothing in it can be found again".into());
        }
        // The file belongs to the local or the global tier, whose retention knows nothing of this level.
        let is_in_file = matches!(source, Source::File(_));
        if is_in_file && self.setup.config.job.redundancy.store == PartStore::Memory {
            return Err(
                "memory tier: there was no room for its shard, and a shard in a file is not kept for redundancy in \
                        memory; raise memory.budget or set redundancy.store = \"local\""
                    .into(),
            );
        }
        Exchange::new(ExchangeSpec {
            operation,
            series: facts.series.clone(),
            source,
            memory,
            block_bytes: self.setup.config.job.block_bytes,
            role: role.clone(),
            name_hash: text_hash(&facts.series.name),
            room_limit: self.setup.config.job.timeouts.room,
        })
    }

    /// Attends to the exchanges: reports those that have ended, and releases those that nobody needs.
    pub fn settle(&self) -> Vec<Done> {
        let running: Vec<(u64, Arc<Exchange>, Duration)> = {
            let state = self.state.lock();
            let of = |(operation, (exchange, started)): (&u64, &(Arc<Exchange>, Duration))| {
                (*operation, exchange.clone(), *started)
            };
            state.running.iter().map(of).collect()
        };
        let (now, limit) = (self.setup.now(), self.setup.config.job.timeouts.abandon);
        let mut done = Vec::new();
        for (operation, exchange, started) in running {
            // After this time the root gives the level up, and a rank that has not voted only hears of that when it votes.
            let took = now.saturating_sub(started);
            if took >= limit {
                exchange.fail(format!("the other ranks of its redundancy set did not do their part within {limit:?}"));
            }
            if let Some(ending) = exchange.take_ending() {
                done.push(self.on_ended(operation, exchange.shard_bytes(), took, ending));
            }
            if exchange.is_over() {
                exchange.take_spent().into_iter().for_each(|bytes| self.mail.give_back(bytes));
                // Dropped without the lock: parts that the exchange has sealed and nobody has taken are dropped with it.
                let gone = self.state.lock().running.remove(&operation);
                drop(gone);
            }
        }
        done
    }

    fn on_ended(&self, operation: u64, bytes: u64, took: Duration, ending: Result<Vec<SlotId>, String>) -> Done {
        match ending {
            Ok(parts) => {
                self.reporter.count(|stats| {
                    stats.flushed_bytes[TierId::PEERS] += bytes;
                    stats.flushed_time[TierId::PEERS] += took;
                    stats.costs.exchange.add(took, bytes);
                });
                self.reporter.note_written(operation, TierId::PEERS, bytes, took);
                log::debug!(
                    "event=exchanged rank={} operation={operation} bytes={bytes} seconds={:.6}",
                    self.setup.rank(),
                    took.as_secs_f64()
                );
                Done::Kept { operation, parts }
            }
            Err(reason) => self.failed(operation, reason),
        }
    }

    fn failed(&self, operation: u64, reason: String) -> Done {
        self.reporter.count(|stats| stats.write_failures[TierId::PEERS] += 1);
        log::info!("event=not-protected rank={} operation={operation} reason={reason:?}", self.setup.rank());
        Done::Written { operation, tier: TierId::PEERS, written: Err(reason) }
    }

    /// Queues the parts that are kept for others, which are also to be written to the node's files: after the rank's own shard, which is in
    /// the same queue.
    pub fn store(&self, facts: Arc<Facts>, mut parts: Vec<SlotId>) -> Vec<Done> {
        let operation = facts.key.operation;
        if self.setup.node_files().is_none() {
            let why = "redundancy.store: the local tier is off".to_owned();
            return vec![Done::Written { operation, tier: TierId::PEERS, written: Err(why) }];
        }
        parts.reverse();
        self.state.lock().storing.insert(operation, (facts, parts));
        self.lanes.write(operation, TierId::PEERS);
        Vec::new()
    }
}

impl LevelWork for Peers {
    fn start(&self, facts: &Facts) -> Vec<Done> {
        let operation = facts.key.operation;
        match self.make(facts) {
            Ok(exchange) => {
                let exchange = Arc::new(exchange);
                let mut state = self.state.lock();
                let early = state.early.remove(&operation).unwrap_or_default();
                state.running.insert(operation, (exchange.clone(), self.setup.now()));
                drop(state);
                early.into_iter().for_each(|parcel| exchange.on_parcel(parcel));
                Vec::new()
            }
            Err(reason) => {
                if let Some(role) = self.setup.role(&facts.series.name) {
                    for (to, label, body) in exchange::aborts(role, self.setup.rank(), operation, &reason) {
                        self.mail.send(to, label, body);
                    }
                }
                vec![self.failed(operation, reason)]
            }
        }
    }

    /// If there is nothing to keep, the level is done when its turn comes, which is after the rank's own shard.
    fn open(&self, operation: u64) -> Result<Opened, TierError> {
        let next = {
            let state = self.state.lock();
            state.storing.get(&operation).map(|(facts, parts)| (facts.clone(), parts.last().copied()))
        };
        let Some((facts, slot)) = next else { return Ok(Opened::Gone) };
        let Some(slot) = slot else { return Ok(Opened::Done(Written::Published(None))) };
        let (Some(directory), Some(segment)) = (self.setup.node_files(), &self.setup.memory) else {
            return Ok(Opened::Gone);
        };
        let Some(bytes) = segment.sealed(slot) else { return Ok(Opened::Gone) };
        let shard = MemoryShard::open_any(segment.path(), Arc::new(bytes))?;
        let header = &shard.head().header;
        let (rank, length) = (header.rank, header.total_len);
        let file = match header.content {
            Content::Shard | Content::Packed => rank_file(rank),
            Content::Parity => parity_file(rank),
        };
        let upload = directory.begin(&directory.folder_path(&facts.series, &facts.key).join(&file), Writers::One)?;
        begin_alone(WriteSpec {
            operation,
            tier: TierId::PEERS,
            started: self.setup.now(),
            sources: vec![(rank, Source::Memory(shard))],
            upload,
            file,
            entries: vec![ContainerEntry { key: facts.key, rank, offset: 0, length }],
            shared: None,
            write_bytes: self.setup.config.node.write_bytes,
        })
    }

    /// A part has been written to the node's files, or there is none and the rank's own shard is finished. Begins the next part, or ends
    /// the level on this rank.
    fn written(&self, operation: u64, written: Written) -> Vec<Done> {
        let failure = match written {
            Written::Failed(error) => {
                self.reporter.on_tier_failure(TierId::LOCAL, &error);
                Some(error.to_string())
            }
            Written::Published(_) | Written::SliceDone => None,
        };
        let mut state = self.state.lock();
        let Some((_, parts)) = state.storing.get_mut(&operation) else { return Vec::new() };
        parts.pop();
        if failure.is_none() && !parts.is_empty() {
            drop(state);
            self.lanes.write(operation, TierId::PEERS);
            return Vec::new();
        }
        state.storing.remove(&operation);
        drop(state);
        let written = failure.map_or_else(|| Ok(Vec::new()), Err);
        vec![Done::Written { operation, tier: TierId::PEERS, written }]
    }

    fn stop(&self, operation: u64) {
        let mut state = self.state.lock();
        state.early.remove(&operation);
        state.storing.remove(&operation);
        let running = state.running.remove(&operation);
        drop(state);
        if let Some((exchange, _)) = running {
            exchange.stop();
        }
    }

    fn committed(&self, facts: &Arc<Facts>) {
        // Files of the node that were kept for the sake of the peers may be deleted.
        if let Some(files) = self.setup.node_files().filter(|_| self.setup.has_stored_parts()) {
            self.lanes.push(Task::Retain { tier: files.kind(), facts: facts.clone() });
        }
    }
}
