//! Bulk data: what the exchanges of redundancy sets and the restarts of others send and receive.
//!
//! [`Engine::step`] calls [`Engine::step_parcels`] after the messages. Parcels go to the exchange of their operation, to the
//! fetch that waits for them, or to the workers that serve a fetch; nothing is computed here. What arrives is taken only
//! while the workers keep up, so that the rest stays with its senders.

use super::engine::{Engine, State};
use super::fetch::{self, Request};
use super::flow::LevelState;
use crate::base::Level;
use crate::base::ids::text_hash;
use crate::base::log;
use crate::comm::{CommError, Label, Parcel, Slice};
use crate::config::PartStore;
use crate::coordination::Driver;
use crate::redundancy::exchange::{self, Exchange, ExchangeSpec, Role};
use crate::segment::SlotId;
use crate::tier::TierId;
use std::sync::Arc;

/// Parcels taken and sent per step, so that a step stays short.
const PARCELS_PER_STEP: usize = 32;
/// Parcels on their way out at once.
const UNSENT_MAX: usize = 16;
/// Pieces of work that may wait before no more parcels are taken.
const BACKLOG_MAX: usize = 32;

impl State {
    /// Has this rank captured the checkpoint, and not yet heard what the ranks have agreed on? The others may have heard
    /// it first; and verdicts need not come in the order of their operations.
    fn awaits_exchange(&self, operation: u64) -> bool {
        let level = self.checkpoints.get(&operation).map(|checkpoint| checkpoint.flow.level(TierId::PEERS));
        level == Some(LevelState::Planned)
    }
}

impl Engine {
    /// Moves bulk data along; true if something moved.
    pub(super) fn step_parcels(&self, driver: &mut Driver) -> Result<bool, CommError> {
        let mut moved = false;
        for _ in 0..BACKLOG_MAX.saturating_sub(self.backlog()).min(PARCELS_PER_STEP) {
            let Some(parcel) = driver.receive_parcel()? else { break };
            moved = true;
            self.on_parcel(parcel);
        }
        for _ in 0..PARCELS_PER_STEP {
            if driver.unsent_parcels() >= UNSENT_MAX {
                break;
            }
            let Some((to, label, body)) = self.next_parcel() else { break };
            moved = true;
            driver.send_parcel(to, label, body)?;
        }
        self.settle_exchanges();
        for bytes in self.take_spent() {
            driver.recycle(bytes);
        }
        if moved {
            // A thread that has looked for work under the lock is asleep by now, and hears it.
            drop(self.lock());
            self.wake();
        }
        Ok(moved)
    }

    /// Is bulk data under way that moves only while somebody steps?
    pub(super) fn has_bulk(&self) -> bool {
        let state = self.lock();
        !state.exchanges.is_empty() || !state.fetches.is_empty() || !state.served.is_empty()
    }

    fn exchanges(&self) -> Vec<Arc<Exchange>> {
        self.lock().exchanges.values().map(|running| running.exchange.clone()).collect()
    }

    fn backlog(&self) -> usize {
        // Requests do not count: two ranks that serve each other could otherwise wait for each other. They are small, and
        // each asker has few of them open.
        self.exchanges().iter().map(|exchange| exchange.backlog()).sum()
    }

    fn on_parcel(&self, parcel: Parcel) {
        let mut state = self.lock();
        if exchange::is_exchange(&parcel.label) {
            let operation = parcel.label[1];
            if let Some(running) = state.exchanges.get(&operation) {
                let exchange = running.exchange.clone();
                drop(state);
                exchange.on_parcel(parcel);
            } else if exchange::is_early(&parcel.label) && state.awaits_exchange(operation) {
                state.early.entry(operation).or_default().push(parcel);
            } else {
                state.spent.push(parcel.bytes);
            }
        } else if let Some(id) = fetch::is_reply(&parcel.label) {
            state.take_reply(id, parcel);
        } else if let Some(request) = Request::decode(&parcel) {
            state.requests.push_back(request);
            state.spent.push(parcel.bytes);
        } else {
            log::error!("event=parcel-unknown rank={} from={}", self.setup.identity.rank, parcel.from);
            state.spent.push(parcel.bytes);
        }
    }

    fn next_parcel(&self) -> Option<(crate::base::Rank, Label, Slice)> {
        if let Some(first) = self.lock().outbox.pop_front() {
            return Some(first);
        }
        self.exchanges().iter().find_map(|exchange| exchange.next_parcel())
    }

    fn take_spent(&self) -> Vec<Vec<u8>> {
        let mut spent = std::mem::take(&mut self.lock().spent);
        for exchange in self.exchanges() {
            spent.extend(exchange.take_spent());
        }
        spent
    }

    /// Begins this rank's part in the exchange of a checkpoint.
    pub(super) fn begin_exchange(&self, state: &mut State, operation: u64) {
        let made = self.make_exchange(state, operation);
        match made {
            Ok(exchange) => {
                let exchange = Arc::new(exchange);
                for parcel in state.early.remove(&operation).unwrap_or_default() {
                    exchange.on_parcel(parcel);
                }
                let started = self.setup.clock.now();
                state.exchanges.insert(operation, Running { exchange, started });
            }
            Err(reason) => {
                let name = state.checkpoints.get(&operation).map(|checkpoint| checkpoint.series.name.clone());
                if let Some(role) = name.and_then(|name| self.role(&name)) {
                    state.outbox.extend(exchange::aborts(role, self.setup.identity.rank, operation, &reason));
                }
                self.end_exchange(state, operation, Err(reason));
            }
        }
    }

    /// What this rank does to protect checkpoints of that name.
    fn role(&self, name: &str) -> Option<&Role> {
        let (scheme, _) = self.setup.config.job.redundancy.policy_for(name);
        self.setup.protection.role(scheme)
    }

    fn make_exchange(&self, state: &State, operation: u64) -> Result<Exchange, String> {
        let checkpoint = state.checkpoints.get(&operation).ok_or("the checkpoint is gone")?;
        let source = checkpoint.source.clone().ok_or("its shard is gone")?;
        let memory =
            self.setup.memory.clone().ok_or("the memory tier is off on this rank: nothing can be kept for others")?;
        let role = self.role(&checkpoint.series.name).ok_or("this rank has no part in any redundancy set")?;
        if !memory.is_linked() {
            return Err("the node's segment has lost its name: nothing in it can be found again".into());
        }
        // The file belongs to the local or the global tier, whose retention knows nothing of this level.
        if checkpoint.slot.is_none() && self.setup.config.job.redundancy.store == PartStore::Memory {
            return Err(
                "memory tier: there was no room for its shard, and a shard in a file is not kept for redundancy in \
                        memory; raise memory.budget or set redundancy.store = \"local\""
                    .into(),
            );
        }
        Exchange::new(ExchangeSpec {
            operation,
            series: checkpoint.series.clone(),
            source,
            memory,
            block_bytes: self.setup.config.job.block_bytes,
            role: role.clone(),
            name_hash: text_hash(&checkpoint.series.name),
            room_limit: self.setup.config.job.timeouts.room,
        })
    }

    /// Votes for exchanges that have come to their end, and lets go of those that nobody needs.
    pub(super) fn settle_exchanges(&self) {
        let running: Vec<(u64, Arc<Exchange>)> =
            self.lock().exchanges.iter().map(|(operation, running)| (*operation, running.exchange.clone())).collect();
        for (operation, exchange) in running {
            if self.is_overdue(operation) {
                let limit = self.setup.config.job.timeouts.abandon;
                exchange.fail(format!("the other ranks of its redundancy set did not do their part within {limit:?}"));
            }
            if let Some(ending) = exchange.take_ending() {
                let mut state = self.lock();
                self.end_exchange(&mut state, operation, ending);
            }
            if exchange.is_over() {
                let mut state = self.lock();
                state.spent.extend(exchange.take_spent());
                state.exchanges.remove(&operation);
            }
        }
    }

    /// Has this exchange gone on for as long as the root waits for votes? The root gives it up then, and a rank that has not
    /// voted hears of that only when it does.
    fn is_overdue(&self, operation: u64) -> bool {
        let (now, state) = (self.setup.clock.now(), self.lock());
        let started = state.exchanges.get(&operation).map(|running| running.started);
        started.is_some_and(|started| now.saturating_sub(started) >= self.setup.config.job.timeouts.abandon)
    }

    fn end_exchange(&self, state: &mut State, operation: u64, ending: Result<Vec<SlotId>, String>) {
        let rank = self.setup.identity.rank;
        let started = state.exchanges.get(&operation).map(|running| (running.started, running.exchange.shard_bytes()));
        let failure = match ending {
            Ok(parts) => {
                let (started, bytes) = started.unwrap_or_default();
                let took = self.setup.clock.now().saturating_sub(started);
                state.stats.flushed_bytes[TierId::PEERS] += bytes;
                state.stats.flushed_time[TierId::PEERS] += took;
                log::debug!(
                    "event=exchanged rank={rank} operation={operation} bytes={bytes} seconds={:.6}",
                    took.as_secs_f64()
                );
                let Some(checkpoint) = state.checkpoints.get_mut(&operation) else {
                    self.retire_parts(parts);
                    return;
                };
                // Marked before the vote: the others may hear that the level is committed, and this rank die before.
                checkpoint.parts = parts;
                self.mark(&checkpoint.parts, Level::NodeLoss);
                let is_stored = self.setup.config.job.redundancy.store == PartStore::Local;
                if is_stored && self.node_files().is_some() {
                    // After the rank's own shard, which is in the same queue. Also with no parts: the vote says that this
                    // shard is on the local tier, too.
                    state.lanes.write(operation, TierId::PEERS);
                    return;
                }
                (is_stored && self.node_files().is_none()).then(|| "redundancy.store: the local tier is off".to_owned())
            }
            Err(reason) => {
                state.stats.write_failures[TierId::PEERS] += 1;
                log::info!("event=not-protected rank={rank} operation={operation} reason={reason:?}");
                Some(reason)
            }
        };
        self.end_write(state, operation, TierId::PEERS, failure);
    }

    /// A part has been written to the local tier, or there is none and the rank's own shard has come to its end: writes the
    /// next part, or ends the level on this rank. The files are worth nothing without the own shards of all ranks on the
    /// same tier.
    pub(super) fn on_part_written(&self, state: &mut State, operation: u64, failure: Option<String>) {
        let Some(checkpoint) = state.checkpoints.get_mut(&operation) else { return };
        checkpoint.parts_stored += 1;
        if failure.is_none() && checkpoint.parts_stored < checkpoint.parts.len() {
            state.lanes.write(operation, TierId::PEERS);
            return;
        }
        let own = checkpoint.failures.iter().find(|(tier, _)| !tier.spec().is_shared);
        let own = own.map(|(_, why)| format!("its own shard did not reach the local tier: {why}"));
        self.end_write(state, operation, TierId::PEERS, failure.or(own));
    }

    /// Nothing more comes of the exchange of an operation. What is in doubt stays: this rank has voted, and others may have
    /// heard that the level is committed.
    pub(super) fn drop_exchange(&self, state: &mut State, operation: u64, is_in_doubt: bool) {
        state.early.remove(&operation);
        if let Some(running) = state.exchanges.remove(&operation) {
            running.exchange.stop();
        }
        if let Some(checkpoint) = state.checkpoints.get_mut(&operation)
            && !is_in_doubt
        {
            self.retire_parts(std::mem::take(&mut checkpoint.parts));
        }
    }

    pub(super) fn retire_parts(&self, parts: Vec<SlotId>) {
        if let Some(segment) = &self.setup.memory {
            segment.retire_all(parts);
        }
    }
}

/// An exchange, and when it began.
pub(super) struct Running {
    pub exchange: Arc<Exchange>,
    pub started: std::time::Duration,
}
