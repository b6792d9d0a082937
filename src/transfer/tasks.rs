//! The background work: pieces of writes, and the small jobs around them.

use super::checkpoint::Checkpoint;
use super::engine::{Engine, Identity, State};
use super::fence::Standing;
use super::fetch::{ANSWERS_MAX, Request};
use super::lanes::{NEAREST, Step, lane_of};
use super::node::NodeContainer;
use super::write::{Together, WriteJob, WriteSpec, Written};
use crate::affinity::keeper::Keeper;
use crate::affinity::{Node, with_preferred};
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::{CheckpointKey, Level, Rank};
use crate::catalog::{
    Folder, Ledger, LedgerEntry, Levels, Moment, Occasion, Place, Ruling, is_succeeded, started_over,
};
use crate::config::PartStore;
use crate::coordination::core::Event;
use crate::coordination::{Ballot, Culprit, Outcome, Payload, Phase, Round};
use crate::format::{ContainerEntry, ContainerInfo, Content, Manifest};
use crate::redundancy::exchange::{Exchange, Job};
use crate::segment::{OldBytes, OldSegment, OldSlot, SlotState};
use crate::tier::claims::HEARTBEAT;
use crate::tier::names::{Series, node_file, parity_file, rank_file};
use crate::tier::posix::PageBuffer;
use crate::tier::source::{MemoryShard, Source};
use crate::tier::{Gathering, Means, Tier, TierError, TierId, TierSet, Upload, Writers};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Where run directories often lie: whoever may wait for one waits there.
const RUN_DIRECTORY: TierId = TierId::GLOBAL;

/// The tier that a phase of a checkpoint is about, if it is one of files that all nodes share.
fn shared_files(phase: Phase) -> Option<TierId> {
    tier_of(phase).filter(|tier| tier.spec().means == Means::Files && tier.spec().is_shared)
}

/// The tier that a phase of a checkpoint is about; `None`: the call.
pub(super) fn tier_of(phase: Phase) -> Option<TierId> {
    match phase {
        Phase::Call => None,
        Phase::Level(tier) => TierId::at(tier),
    }
}

/// A small job, done before the next piece of a write.
pub(super) enum Task {
    /// Root: all ranks have voted on a level; check the claim, write the manifest, answer.
    Decide { round: Round, ballot: Ballot },
    /// Node leader: record on a tier of the node that its level is committed. The checkpoint itself may be forgotten before that is done.
    NodeManifest { tier: TierId, series: Series, manifest: Box<Manifest> },
    /// Delete what retention lets go after a commit.
    Retain { tier: TierId, series: Series, key: CheckpointKey },
    /// Populate memory for the next capture, on the node of the rank's GPU, or else on the one that the application computes on.
    Prepare { bytes: u64, node: Option<Node> },
    /// Remove a file that was written during a capture that came to nothing.
    Discard(Box<dyn Upload>),
    /// Remove the segments of older runs: this run has committed something of its own.
    RemoveOldSegments,
    /// Root: renew the claim.
    Renew,
    /// Root with a run directory: write the status.
    Status,
}

pub(super) enum Work {
    Task(Task),
    Open(u64, TierId),
    Piece(Arc<WriteJob>, usize),
    Exchange(Arc<Exchange>, Job),
    Answer(Request),
    /// A look at where threads and pages are, when there is nothing else to do.
    Look(Arc<Keeper>),
}

impl Task {
    /// Which tier it may wait for, if any: the root publishes a manifest with its decision on a tier that all nodes share. Others look at
    /// the claims for a decision that needs nothing else of a file system.
    pub fn waits_for(&self) -> Option<TierId> {
        match self {
            Task::Decide { round, .. } => shared_files(round.phase),
            Task::Retain { tier, .. } | Task::NodeManifest { tier, .. } => Some(*tier),
            Task::Discard(upload) => Some(upload.kind()),
            Task::Renew | Task::Status => Some(RUN_DIRECTORY),
            Task::Prepare { .. } | Task::RemoveOldSegments => None,
        }
    }
}

impl Work {
    /// Which tier it may wait for, as far as that is known.
    pub fn waits_for(&self) -> Option<TierId> {
        match self {
            Work::Task(task) => task.waits_for(),
            Work::Open(_, tier) => Some(lane_of(*tier)),
            Work::Piece(job, _) => Some(lane_of(job.tier)),
            Work::Exchange(..) | Work::Answer(_) | Work::Look(_) => None,
        }
    }
}

impl Engine {
    /// Does a thread that waits for none but these tiers take up what other ranks wait for? Requests are answered from the node's own
    /// files, too, and with parts in such files so may shards lie there that are sent for redundancy.
    pub(super) fn serves(&self, tiers: TierSet) -> [bool; 2] {
        let is_near = tiers.has(NEAREST);
        [is_near, is_near || self.setup.config.job.redundancy.store == PartStore::Memory]
    }

    pub(super) fn next_work(&self, tiers: TierSet) -> Option<Work> {
        let mut state = self.lock();
        let now = self.setup.clock.now();
        if let Some(work) = self.take_work(&mut state, tiers, now) {
            // At once: whoever waits for the end of all work finds it in a queue or in hand.
            if let Some(tier) = work.waits_for() {
                state.lanes.of(tier).begin(now);
            }
            return Some(work);
        }
        // Only at rest: what waits for other ranks would interrupt the look again and again.
        let is_at_rest =
            state.exchanges.is_empty() && state.requests.is_empty() && !state.lanes.is_writing(TierSet::ALL);
        drop(state);
        let keeper = self.setup.affinity.as_ref().filter(|keeper| is_at_rest && keeper.has_work());
        keeper.map(|keeper| Work::Look(keeper.clone()))
    }

    fn take_work(&self, state: &mut State, tiers: TierSet, now: Duration) -> Option<Work> {
        if self.is_renewal_due(state, now) {
            state.renewed = now;
            return Some(Work::Task(Task::Renew));
        }
        if self.setup.supervision.teller.is_some() && tiers.has(RUN_DIRECTORY) && now >= state.told.due {
            state.told.due = now + super::status::EVERY;
            return Some(Work::Task(Task::Status));
        }
        if let Some(task) = state.lanes.take_task(tiers) {
            return Some(Work::Task(task));
        }
        let [answers, exchanges] = self.serves(tiers);
        if answers
            && state.outbox.len() < ANSWERS_MAX
            && let Some(request) = state.requests.pop_front()
        {
            return Some(Work::Answer(request));
        }
        for running in state.exchanges.values().filter(|_| exchanges) {
            if let Some(job) = running.exchange.take_job(now) {
                return Some(Work::Exchange(running.exchange.clone(), job));
            }
        }
        Some(match state.lanes.take_step(tiers)? {
            Step::Open(operation, tier) => Work::Open(operation, tier),
            Step::Piece(job, piece) => Work::Piece(job, piece),
        })
    }

    /// Is it this call's turn to renew the claim? Where there are threads, one does that by itself.
    fn is_renewal_due(&self, state: &State, now: Duration) -> bool {
        self.setup.is_inline && self.fence.is_some() && now.saturating_sub(state.renewed) >= HEARTBEAT
    }

    /// Is there something to do that others wait for?
    fn has_other_work(&self) -> bool {
        let state = self.lock();
        self.is_renewal_due(&state, self.setup.clock.now())
            || !state.lanes.is_empty(TierSet::ALL)
            || !state.requests.is_empty()
            || !state.exchanges.is_empty()
    }

    pub(super) fn run(&self, work: Work, staging: &mut Option<PageBuffer>) {
        match work {
            Work::Task(task) => self.run_task(task),
            Work::Open(operation, tier) => self.open_write(operation, tier),
            Work::Answer(request) => self.answer(request),
            Work::Look(keeper) => keeper.work(&mut || !self.is_stopping() && !self.has_other_work()),
            Work::Exchange(exchange, job) => {
                exchange.run(job, staging, self.setup.clock.now());
                self.settle_exchanges();
            }
            Work::Piece(job, piece) => {
                if let Some(written) = job.run(piece, staging) {
                    self.close_write(&job, written);
                }
            }
        }
    }

    fn run_task(&self, task: Task) {
        match task {
            Task::Decide { round, ballot } => {
                let (outcome, decision) = self.decide_level(round, ballot);
                self.lock().events.push(Event::Decided { round, outcome, decision });
            }
            Task::NodeManifest { tier, series, manifest } => self.write_node_manifest(tier, &series, *manifest),
            Task::Retain { tier, series, key } => self.retain(tier, &series, &key),
            Task::Prepare { bytes, node } => self.prepare_memory(bytes, node),
            Task::Discard(upload) => upload.discard(),
            Task::RemoveOldSegments => self.remove_old_segments(),
            Task::Renew => {
                if let Some(fence) = &self.fence {
                    fence.renew();
                }
            }
            Task::Status => self.write_status(),
        }
    }

    /// Opens the file of a write and makes it the active job, or ends it with its failure.
    fn open_write(&self, operation: u64, tier: TierId) {
        let opened = self.prepare(operation, tier);
        let mut state = self.lock();
        let lane = state.lanes.of(tier);
        lane.is_opening = false;
        match opened {
            None => {}
            Some(Ok(Prepared::Job(job))) => lane.active = Some(Arc::from(job)),
            Some(Ok(Prepared::Done(written))) => self.on_written(&mut state, operation, tier, written),
            Some(Ok(Prepared::Waits(node))) => state.slices.push((operation, tier, node, self.setup.clock.now())),
            Some(Err(error)) => self.on_written(&mut state, operation, tier, Written::Failed(error)),
        }
    }

    fn prepare(&self, operation: u64, tier: TierId) -> Option<Result<Prepared, TierError>> {
        if tier == TierId::PEERS {
            return self.prepare_part(operation);
        }
        let directory = self.tier(tier)?;
        let (series, key, source, direct) = {
            let mut state = self.lock();
            let checkpoint = state.checkpoints.get_mut(&operation)?;
            let is_direct = checkpoint.direct.as_ref().is_some_and(|(direct, _)| *direct == tier);
            let direct = if is_direct { checkpoint.direct.take() } else { None };
            (checkpoint.series.clone(), checkpoint.key, checkpoint.source.clone()?, direct)
        };
        if let Some((_, upload)) = direct {
            return Some(self.publish_direct(&**directory, &series, &key, &*upload));
        }
        let together = match &source {
            Source::Memory(_) => self.node_container(tier, &key),
            Source::File(_) => None,
        };
        let (shared, entries) = match together {
            None => return Some(self.open_alone(&**directory, operation, &series, &key, source)),
            Some((Together::ForAll(node), entries)) if entries[0].rank != self.setup.identity.rank => {
                return Some(Ok(Prepared::Waits(node)));
            }
            Some(together) => together,
        };
        let path = directory.folder_path(&series, &key).join(node_file(entries[0].rank));
        let (node, writers, sources) = match &shared {
            Together::Slice(node) => (node, Writers::Node, Ok(vec![(self.setup.identity.rank, source)])),
            Together::ForAll(node) => (node, Writers::One, self.shards_of_node(&series, &key, &entries)),
        };
        let is_last = || match &shared {
            Together::Slice(_) => node.fail(),
            Together::ForAll(_) => {
                node.settle(false);
                true
            }
        };
        let sources = match sources {
            Ok(sources) => sources,
            Err(error) => {
                is_last();
                return Some(Err(error));
            }
        };
        let spec = |upload| WriteSpec {
            operation,
            tier,
            started: self.setup.clock.now(),
            sources,
            upload,
            file: node_file(entries[0].rank),
            entries: entries.clone(),
            shared: Some(shared.clone()),
            write_bytes: self.setup.config.node.write_bytes,
        };
        let (error, upload) = match directory.begin(&path, writers) {
            Ok(upload) => match WriteJob::new(spec(upload)) {
                Ok(job) => return Some(Ok(Prepared::Job(Box::new(job)))),
                Err(failure) => (failure.0, Some(failure.1)),
            },
            Err(error) => (error, None),
        };
        match (is_last(), upload) {
            (true, Some(upload)) => upload.discard(),
            // The other ranks of the node have left it to the last one.
            (true, None) => directory.discard(&path),
            (false, _) => {}
        }
        Some(Err(error))
    }

    /// The container that the ranks of this node write together to a tier, if they do, and all its entries.
    fn node_container(&self, tier: TierId, key: &CheckpointKey) -> Option<(Together, Vec<ContainerEntry>)> {
        let together = match tier.spec().gathering {
            Gathering::Apart => return None,
            Gathering::Slices => Together::Slice,
            Gathering::ByOne => Together::ForAll,
        };
        let Identity { rank, node_ranks, .. } = &self.setup.identity;
        let (node, entries) = NodeContainer::of(self.setup.memory.as_ref()?, tier, *key, *rank, node_ranks)?;
        Some((together(node), entries))
    }

    /// The shards in node memory that these entries of a container are of.
    fn shards_of_node(
        &self,
        series: &Series,
        key: &CheckpointKey,
        entries: &[ContainerEntry],
    ) -> Result<Vec<(Rank, Source)>, TierError> {
        let Some(segment) = &self.setup.memory else { return Ok(Vec::new()) };
        let path = segment.path();
        let io = |source| TierError::io(TierId::MEMORY, "read", path, source);
        let directory = path.parent().unwrap_or(Path::new("/"));
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let view = OldSegment::open(directory, name).map_err(|error| io(std::io::Error::other(error.to_string())))?;
        let view = Arc::new(view);
        let is_it = |slot: &&OldSlot| slot.state == SlotState::Sealed && slot.operation == key.operation;
        let mut shards: BTreeMap<Rank, MemoryShard> = BTreeMap::new();
        for slot in view.slots().iter().filter(is_it) {
            let shard = MemoryShard::open_any(path, OldBytes::new(&view, slot))?;
            // What is kept for ranks of other nodes lies there, too.
            let header = &shard.head().header;
            if header.key == *key && header.content == Content::Shard && shard.head().meta.name == series.name {
                shards.insert(header.rank, shard);
            }
        }
        let shard_of = |entry: &ContainerEntry| {
            let gone = || io(std::io::Error::other(format!("the shard of rank {} is gone", entry.rank)));
            shards.remove(&entry.rank).map(|shard| (entry.rank, Source::Memory(shard))).ok_or_else(gone)
        };
        entries.iter().map(shard_of).collect()
    }

    /// The write of this rank's shard to a file of its own.
    fn open_alone(
        &self,
        directory: &dyn Tier,
        operation: u64,
        series: &Series,
        key: &CheckpointKey,
        source: Source,
    ) -> Result<Prepared, TierError> {
        let rank = self.setup.identity.rank;
        let (file, length) = (rank_file(rank), source.head().header.total_len);
        let upload = directory.begin(&directory.folder_path(series, key).join(&file), Writers::One)?;
        let spec = WriteSpec {
            operation,
            tier: directory.kind(),
            started: self.setup.clock.now(),
            sources: vec![(rank, source)],
            upload,
            file,
            entries: vec![ContainerEntry { key: *key, rank, offset: 0, length }],
            shared: None,
            write_bytes: self.setup.config.node.write_bytes,
        };
        match WriteJob::new(spec) {
            Ok(job) => Ok(Prepared::Job(Box::new(job))),
            Err(failure) => {
                failure.1.discard();
                Err(failure.0)
            }
        }
    }

    /// The write of what this rank keeps for others to its local tier. With nothing to keep it is done when its turn comes,
    /// which is after the rank's own shard.
    fn prepare_part(&self, operation: u64) -> Option<Result<Prepared, TierError>> {
        let directory = self.node_files()?;
        let segment = self.setup.memory.as_ref()?;
        let (series, key, slot) = {
            let state = self.lock();
            let checkpoint = state.checkpoints.get(&operation)?;
            if checkpoint.parts.is_empty() {
                return Some(Ok(Prepared::Done(Written::Published(None))));
            }
            (checkpoint.series.clone(), checkpoint.key, *checkpoint.parts.get(checkpoint.parts_stored)?)
        };
        let opened = segment.sealed(slot).map(|bytes| MemoryShard::open_any(segment.path(), Arc::new(bytes)));
        let shard = match opened? {
            Ok(shard) => shard,
            Err(error) => return Some(Err(error)),
        };
        let header = &shard.head().header;
        let (rank, length) = (header.rank, header.total_len);
        let file = match header.content {
            Content::Shard => rank_file(rank),
            Content::Parity => parity_file(rank),
        };
        let path = directory.folder_path(&series, &key).join(&file);
        let upload = match directory.begin(&path, Writers::One) {
            Ok(upload) => upload,
            Err(error) => return Some(Err(error)),
        };
        let spec = WriteSpec {
            operation,
            tier: TierId::PEERS,
            started: self.setup.clock.now(),
            sources: vec![(rank, Source::Memory(shard))],
            upload,
            file,
            entries: vec![ContainerEntry { key, rank, offset: 0, length }],
            shared: None,
            write_bytes: self.setup.config.node.write_bytes,
        };
        Some(match WriteJob::new(spec) {
            Ok(job) => Ok(Prepared::Job(Box::new(job))),
            Err(failure) => {
                failure.1.discard();
                Err(failure.0)
            }
        })
    }

    /// A shard that was written during capture is durable already; all it needs is its name.
    fn publish_direct(
        &self,
        directory: &dyn Tier,
        series: &Series,
        key: &CheckpointKey,
        upload: &dyn Upload,
    ) -> Result<Prepared, TierError> {
        let rank = self.setup.identity.rank;
        if let Err(error) = upload.publish() {
            upload.discard();
            return Err(error);
        }
        let file = rank_file(rank);
        let path = directory.folder_path(series, key).join(&file);
        let io = |source| TierError::io(directory.kind(), "read", &path, source);
        let bytes = directory.stat(&path).map_err(io)?.bytes;
        Ok(Prepared::Done(Written::Published(Some(ContainerInfo { file, bytes, ranks: vec![rank] }))))
    }

    fn close_write(&self, job: &WriteJob, written: Written) {
        let took = self.setup.clock.now().saturating_sub(job.started);
        let mut state = self.lock();
        state.lanes.of(job.tier).active = None;
        if !matches!(written, Written::Failed(_)) && job.tier != TierId::PEERS {
            state.stats.flushed_bytes[job.tier] += job.bytes;
            state.stats.flushed_time[job.tier] += took;
        }
        if let (Written::SliceDone, Some(node)) = (&written, job.node()) {
            state.slices.push((job.operation, job.tier, node.clone(), self.setup.clock.now()));
        }
        self.on_written(&mut state, job.operation, job.tier, written);
    }

    /// The root's decision on a level: all ranks have it, nobody has superseded us, and the manifest is durable.
    fn decide_level(&self, round: Round, ballot: Ballot) -> (Outcome, Vec<u8>) {
        let rank = self.setup.identity.rank;
        let culprits = ballot.culprits();
        if !culprits.is_empty() {
            return (Outcome::Abandoned(culprits), Vec::new());
        }
        let blame = |text: String| (Outcome::Abandoned(vec![Culprit::of(rank, text)]), Vec::new());
        let shared = shared_files(round.phase);
        let is_patient = shared.is_some_and(|tier| self.waits_for_claims(tier));
        match self.standing(is_patient) {
            Standing::Newest => {}
            // Claims stop waste; names protect. When their file system cannot be asked, what does not need it goes on without it.
            Standing::Unknown(why) if !is_patient => log::warn!("event=claim-not-checked error={why:?}"),
            Standing::Superseded(why) | Standing::Unknown(why) => return blame(why),
        }
        if let Some(tier) = shared
            && let Err(error) = self.write_shared_manifest(tier, round.operation, ballot.payload)
        {
            self.tier_failure(&mut self.lock(), tier, &error);
            return blame(error.to_string());
        }
        (Outcome::Agreed, Vec::new())
    }

    /// Latches the session: nothing more is committed. The conversation goes on: the other ranks have to hear of it, and
    /// their applications go on asking questions.
    pub(super) fn supersede(&self, reason: String) {
        let mut state = self.lock();
        if state.failed.is_none() {
            log::error!("event=superseded rank={} reason={reason:?}", self.setup.identity.rank);
            state.failed = Some(reason);
            state.superseded = true;
        }
    }

    /// What a manifest says of a checkpoint.
    pub(super) fn manifest(&self, of: &Checkpoint, level: Level, containers: Vec<ContainerInfo>) -> Manifest {
        Manifest {
            job: of.series.job.clone(),
            group: of.series.group.clone(),
            name: of.series.name.clone(),
            key: of.key,
            agreement: of.agreement,
            group_size: self.setup.identity.size,
            origin: of.origin,
            level,
            containers,
        }
    }

    fn write_shared_manifest(&self, tier: TierId, operation: u64, payload: Payload) -> Result<(), TierError> {
        let Some(directory) = self.tier(tier) else { return Ok(()) };
        let format = |source| TierError::Format { tier, path: directory.root().to_owned(), source };
        let mut containers = payload.values::<ContainerInfo>().map_err(format)?;
        containers.sort_by(|a, b| a.file.cmp(&b.file));
        let made = self
            .lock()
            .checkpoints
            .get(&operation)
            .map(|checkpoint| (checkpoint.series.clone(), self.manifest(checkpoint, tier.level(), containers)));
        made.map_or(Ok(()), |(series, manifest)| directory.write_manifest(&series, &manifest))
    }

    /// The manifest on a tier of the node only records a fact that the shards prove: failing to write it is no failure of the level.
    fn write_node_manifest(&self, tier: TierId, series: &Series, mut manifest: Manifest) {
        let Some(directory) = self.tier(tier) else { return };
        let folder = directory.folder_path(series, &manifest.key);
        for rank in &self.setup.identity.node_ranks {
            let file = rank_file(*rank);
            if let Ok(found) = directory.stat(&folder.join(&file)) {
                let bytes = found.bytes;
                manifest.containers.push(ContainerInfo { file, bytes, ranks: vec![*rank] });
            }
        }
        // Retention may have been faster: no folder is made for a manifest alone.
        if manifest.containers.is_empty() {
            return;
        }
        match directory.write_manifest(series, &manifest) {
            Ok(()) => {}
            // Retention was faster after all.
            Err(error) if error.is_absent() => log::debug!("event=local-manifest-not-needed error={error}"),
            Err(error) => log::warn!("event=local-manifest-not-written error={error}"),
        }
    }

    /// Is this run still the newest of its job? The root knows; the other ranks have no claim to compare, and no objection.
    ///
    /// # Errors
    /// A newer run has taken over, which ends this one's commits; or it cannot be found out.
    #[cfg(feature = "mpi")]
    pub(crate) fn check_claim(&self) -> Result<(), String> {
        match self.standing(true) {
            Standing::Newest => Ok(()),
            Standing::Superseded(why) | Standing::Unknown(why) => Err(why),
        }
    }

    fn retain(&self, tier: TierId, series: &Series, key: &CheckpointKey) {
        let Some(directory) = self.tier(tier) else { return };
        if let Standing::Superseded(why) | Standing::Unknown(why) = self.standing(self.waits_for_claims(tier)) {
            log::warn!("event=retention-skipped tier={tier} error={why:?}");
            return;
        }
        let Some(policy) = tier.wish(&self.setup.config.job).policy else { return };
        let folders = match directory.survey(series) {
            Ok(folders) => folders,
            Err(error) => {
                log::warn!("event=retention-skipped tier={tier} error={error}");
                return;
            }
        };
        let stretches;
        let (ledger, parts) = {
            let mut state = self.lock();
            stretches = state.stretches.get(&series.name).cloned().unwrap_or_default();
            if let Some(newest) = started_over(&folders, key.generation, &stretches) {
                state.tell_started_over(&series.name, newest);
            }
            let entries = folders.iter().map(|folder| state.folder(folder, tier, key)).collect();
            let has_parts = !tier.spec().is_shared && self.setup.config.job.redundancy.store == PartStore::Local;
            let reached = state.committed_names.get(&text_hash(&series.name));
            let is_protected = reached.is_some_and(|level| *level >= Level::NodeLoss);
            (Ledger::new(entries), has_parts.then_some(is_protected))
        };
        let occasion =
            Occasion::Retention { committed: *key, level: tier.level(), stretches: &stretches, policy: &policy, parts };
        for (gone, ruling) in folders.iter().zip(ledger.judge(&occasion)) {
            let Folder { generation, version, operation, .. } = *gone;
            let folder = CheckpointKey { generation, version, operation, ..CheckpointKey::default() }.folder();
            if let Ruling::Keep(reason) = ruling {
                log::debug!("event=kept tier={tier} folder={folder} reason={:?}", reason.to_string());
                continue;
            }
            match directory.remove(series, &folder) {
                Ok(()) => log::info!("event=removed rank={} tier={tier} folder={folder}", self.setup.identity.rank),
                Err(error) => log::warn!("event=not-removed tier={tier} error={error}"),
            }
        }
    }

    /// No room, or too large, is no failure here: the capture that needs the room finds out and says so.
    fn prepare_memory(&self, bytes: u64, node: Option<Node>) {
        let Some(segment) = &self.setup.memory else { return };
        match with_preferred(node, || segment.prepare(bytes)) {
            Ok(ready) => {
                log::debug!("event=memory-prepared rank={} bytes={bytes} ready={ready}", self.setup.identity.rank)
            }
            Err(error) => log::debug!("event=memory-not-prepared rank={} error={error}", self.setup.identity.rank),
        }
    }

    /// Removes segments of older runs of whose series this run has committed something at the same level or a higher
    /// one; others stay.
    pub(super) fn remove_old_segments(&self) {
        let gone: Vec<Arc<OldSegment>> = {
            let mut state = self.lock();
            // All of it under the lock: who commits meanwhile asks for this task only where old segments are left.
            let is_past = |segment: &Arc<OldSegment>| {
                let committed = |name: &u64| state.committed_names.get(name).copied();
                is_outlived(segment, committed) && !segment.is_alive().unwrap_or(true)
            };
            let (gone, kept): (Vec<_>, Vec<_>) = state.old_segments.iter().cloned().partition(is_past);
            state.old_segments = kept;
            self.tell_of_memory_started_over(&mut state, &gone);
            gone
        };
        for segment in gone {
            if let Err(error) = segment.unlink() {
                log::warn!("event=old-segment-not-removed path={} error={error}", segment.path().display());
            } else {
                log::info!("event=old-segment-removed path={}", segment.path().display());
            }
        }
    }

    /// Says which series this run has started over, as far as segments that go tell.
    fn tell_of_memory_started_over(&self, state: &mut State, gone: &[Arc<OldSegment>]) {
        let ours = self.setup.identity.generation;
        let names: BTreeSet<String> = state.checkpoints.values().map(|of| of.series.name.clone()).collect();
        for name in names {
            let hash = text_hash(&name);
            let is_newest = |segment: &Arc<OldSegment>| {
                let slots = segment.slots().iter().filter(|slot| slot.name == hash && slot.level >= Level::Process);
                slots.map(|slot| (segment.header().generation, slot.version)).max()
            };
            let newest = gone.iter().filter_map(is_newest).max();
            if let Some(newest) = newest.filter(|_| !state.stretches.get(&name).is_some_and(|of| of.inherits(ours))) {
                state.tell_started_over(&name, newest);
            }
        }
    }

    /// The threads that take up nothing that may wait for more than one tier, and for which one each may: a file system that hangs holds
    /// up no other one. By name.
    pub(super) fn guards(&self) -> Vec<(String, TierSet)> {
        let far = self.setup.tiers.iter().map(|tier| tier.kind()).filter(|tier| *tier != NEAREST);
        let far = far.filter(|_| self.setup.tiers.len() > 1).map(|tier| (format!("bvk-{tier}"), TierSet::of(tier)));
        std::iter::once(("bvk-near".to_owned(), TierSet::of(NEAREST))).chain(far).collect()
    }

    /// The files of this node, which the others do not see.
    pub(super) fn node_files(&self) -> Option<&Arc<dyn Tier>> {
        self.setup.tiers.iter().find(|tier| !tier.kind().spec().is_shared)
    }

    /// Is this rank the root?
    pub fn is_root(&self) -> bool {
        self.setup.identity.rank == Rank::ROOT
    }
}

/// Has this run committed as much of all that a segment of an older one holds?
fn is_outlived(segment: &OldSegment, committed: impl Fn(&u64) -> Option<Level>) -> bool {
    let sealed = segment.slots().iter().filter(|slot| slot.state == SlotState::Sealed);
    let mut entries = sealed.map(|slot| slot_entry(segment, slot));
    entries.all(|entry| is_succeeded(&entry, committed(&entry.series)))
}

/// A sealed slot of an older run, for the ledger.
pub(super) fn slot_entry(segment: &OldSegment, slot: &OldSlot) -> LedgerEntry<u64> {
    LedgerEntry {
        series: slot.name,
        taken: Moment { generation: segment.header().generation, operation: slot.operation },
        version: slot.version,
        place: Place::Slot,
        known: Levels::noted(slot.level),
        doubt: Levels::NONE,
        is_open: false,
        needs: Vec::new(),
    }
}

impl State {
    /// A folder of a tier, as this run knows more of it than its name and whether it has a manifest.
    fn folder(&self, folder: &Folder, tier: TierId, now: &CheckpointKey) -> LedgerEntry<()> {
        let mut entry = folder.entry((), tier.level());
        if folder.generation == now.generation {
            let operation = folder.operation;
            let tiers = [tier, TierId::PEERS].into_iter().filter(|at| self.committed.contains(&(*at, operation)));
            entry.known = tiers.fold(entry.known, |known, tier| known.with(tier.level()));
            entry.is_open = self.checkpoints.get(&operation).is_some_and(|c| !c.flow.is_finished())
                || self.held.contains(&operation);
        }
        entry
    }
}

enum Prepared {
    Job(Box<WriteJob>),
    Done(Written),
    /// Another rank of the node writes this rank's shard as well.
    Waits(NodeContainer),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work on the wrong side would hold up a tier whose file system is sound while the other's hangs.
    #[test]
    fn what_may_wait_for_a_file_system_is_on_its_side_and_nothing_else() {
        let decide =
            |phase| Task::Decide { round: Round { operation: 1, phase }, ballot: Ballot::default() }.waits_for();
        let level = |tier: TierId| Phase::Level(tier.index());
        let phases = [Phase::Call, level(TierId::LOCAL), level(TierId::PEERS), level(TierId::GLOBAL)];
        assert_eq!(phases.map(decide), [None, None, None, Some(TierId::GLOBAL)]);
        let retain = |tier| {
            let series = Series { job: "job".into(), group: "world".into(), name: "heat".into() };
            Task::Retain { tier, series, key: CheckpointKey::default() }.waits_for()
        };
        assert_eq!([TierId::LOCAL, TierId::GLOBAL].map(retain), [Some(TierId::LOCAL), Some(TierId::GLOBAL)]);
        assert_eq!([Task::Renew, Task::Status].map(|task| task.waits_for()), [Some(TierId::GLOBAL); 2]);
        let prepare = Task::Prepare { bytes: 1, node: None };
        assert_eq!([prepare, Task::RemoveOldSegments].map(|task| task.waits_for()), [None; 2]);
    }
}
