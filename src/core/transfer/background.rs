//! Background work: choosing the next piece, and doing it.
#![forbid(unsafe_code)]

use super::core::{Facts, tier_of};
use super::engine::Engine;
use super::fence::Standing;
use super::lanes::{NEAREST, Step};
use super::level::Opened;
use super::work::{RUN_DIRECTORY, Task, Work, shared_files};
use super::write::{WriteJob, Written};
use crate::affinity::{Node, with_preferred};
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::{CheckpointKey, Level};
use crate::catalog::{Folder, Ledger, LedgerEntry, Moment, Occasion, Ruling, started_over};
use crate::config::PartStore;
use crate::coordination::core::Event;
use crate::coordination::{Ballot, Culprit, Outcome, Payload, Round};
use crate::format::{ContainerInfo, SourceKey};
use crate::tier::claims::HEARTBEAT;
use crate::tier::names::{Series, rank_file};
use crate::tier::posix::PageBuffer;
use crate::tier::{Tier, TierError, TierId, TierSet};
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

/// The longest sleep of a thread that looks for work while all pieces are taken or wait for others.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

impl Engine {
    // ---- Choosing the next piece.

    /// Does one piece of background work that waits for no tiers but these; false if there was none.
    ///
    /// # Blocking
    /// On these tiers.
    pub fn work(&self, tiers: TierSet, staging: &mut Option<PageBuffer>) -> bool {
        let Some(work) = self.next_work(tiers) else { return false };
        let waits_for = work.waits_for();
        self.run(work, staging);
        if let Some(tier) = waits_for {
            self.lanes.end(tier, self.setup.now());
        }
        self.wake();
        true
    }

    /// [`Engine::work`] inside a call of the application.
    pub(super) fn work_inline(&self) -> bool {
        let mut staging = self.staging.lock().take();
        let has_worked = self.work(TierSet::ALL, &mut staging);
        *self.staging.lock() = staging;
        has_worked
    }

    /// The present moment, for [`Engine::wait_for_work`], which waits for work that comes up after it.
    pub fn work_seen(&self) -> u64 {
        self.work_ready.now()
    }

    /// Waits at most `limit` for work that comes up after `seen`.
    pub fn wait_for_work(&self, tiers: TierSet, seen: u64, limit: Duration) {
        // Look again soon: all pieces of the active job are taken, another thread is just opening the next job, or an exchange waits for
        // other ranks.
        let is_soon = !self.peers.is_idle() || self.lanes.has_writes(tiers);
        self.work_ready.wait_past(seen, if is_soon { limit.min(LOOK_AGAIN) } else { limit });
    }

    /// Does a thread that waits for no tiers but these take up requests and exchanges, for which other ranks wait? Requests are also
    /// answered from the node's own files. If parts are stored in such files, the shards that are sent for redundancy may be in such files,
    /// too.
    fn serves(&self, tiers: TierSet) -> [bool; 2] {
        let is_near = tiers.has(NEAREST);
        [is_near, is_near || self.setup.config.job.redundancy.store == PartStore::Memory]
    }

    fn next_work(&self, tiers: TierSet) -> Option<Work> {
        let now = self.setup.now();
        if let Some(work) = self.take_work(tiers, now) {
            return Some(work);
        }
        // Only at rest: pieces that wait for other ranks would interrupt the look again and again.
        let is_at_rest = self.peers.is_idle() && !self.fetches.has_requests() && !self.lanes.is_writing(TierSet::ALL);
        let keeper = self.setup.affinity.as_ref().filter(|keeper| is_at_rest && keeper.has_work());
        keeper.map(|keeper| Work::Look(keeper.clone()))
    }

    fn take_work(&self, tiers: TierSet, now: Duration) -> Option<Work> {
        let of_the_run = || {
            if self.setup.is_inline && self.fence.as_ref().is_some_and(|fence| fence.take_renewal_due(now, HEARTBEAT)) {
                return Some(Task::Renew);
            }
            (tiers.has(RUN_DIRECTORY) && self.reporter().take_status_due(now)).then_some(Task::Status)
        };
        if let Some(task) = of_the_run() {
            self.lanes.begin(RUN_DIRECTORY, now);
            return Some(Work::Task(task));
        }
        if let Some(task) = self.lanes.take_task(tiers, now) {
            return Some(Work::Task(task));
        }
        let [answers, exchanges] = self.serves(tiers);
        if let Some(request) = answers.then(|| self.fetches.take_request()).flatten() {
            return Some(Work::Answer(request));
        }
        if let Some((exchange, job)) = exchanges.then(|| self.peers.take_job(now)).flatten() {
            return Some(Work::Exchange(exchange, job));
        }
        Some(match self.lanes.take_step(tiers, now)? {
            Step::Open(operation, tier) => Work::Open(operation, tier),
            Step::Piece(job, piece) => Work::Piece(job, piece),
        })
    }

    /// Is there work that others wait for?
    fn has_other_work(&self) -> bool {
        !self.lanes.is_empty(TierSet::ALL) || self.fetches.has_requests() || !self.peers.is_idle()
    }

    /// The threads that may each wait for one tier only, by name, with that tier. A file system that hangs thus holds up no other one.
    pub(super) fn guards(&self) -> Vec<(String, TierSet)> {
        let far = self.setup.tiers.iter().map(|tier| tier.kind()).filter(|tier| *tier != NEAREST);
        let far = far.filter(|_| self.setup.tiers.len() > 1).map(|tier| (format!("bvk-{tier}"), TierSet::of(tier)));
        std::iter::once(("bvk-near".to_owned(), TierSet::of(NEAREST))).chain(far).collect()
    }

    /// The loop of the thread that looks at the claims and renews ours.
    pub(super) fn guard_claim(&self) {
        if let Some(fence) = &self.fence {
            fence.guard(&*self.setup.clock, || self.is_stopping());
        }
    }

    // ---- Doing the work.

    fn run(&self, work: Work, staging: &mut Option<PageBuffer>) {
        match work {
            Work::Task(task) => self.run_task(task),
            Work::Open(operation, tier) => self.open_write(operation, tier),
            Work::Answer(request) => self.fetches.answer(request),
            Work::Look(keeper) => keeper.work(&mut || !self.is_stopping() && !self.has_other_work()),
            Work::Exchange(exchange, job) => {
                exchange.run(job, staging, self.setup.now());
                self.done(self.peers.settle());
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
                self.desk.push(Event::Decided { round, outcome, decision });
            }
            Task::NodeManifest { tier, facts } => self.write_node_manifest(tier, &facts),
            Task::Retain { tier, facts } => self.retain(tier, &facts),
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
        let opened = self.level(tier).map_or(Ok(Opened::Gone), |level| level.open(operation));
        let written = match opened {
            Ok(Opened::Job(job)) => return self.lanes.opened(tier, Some(Arc::from(job))),
            Ok(Opened::Done(written)) => Some(written),
            Ok(Opened::Waits(node)) => {
                self.wait_for_node(tier, operation, node);
                None
            }
            Ok(Opened::Gone) => None,
            Err(error) => Some(Written::Failed(error)),
        };
        // Before the next write of the lane may begin: what that write says about this rank depends on the outcome of
        // the previous ones.
        if let Some(written) = written {
            self.on_written(tier, operation, written);
        }
        self.lanes.opened(tier, None);
    }

    fn close_write(&self, job: &WriteJob, written: Written) {
        let took = self.setup.now().saturating_sub(job.started);
        if !matches!(written, Written::Failed(_)) && job.tier != TierId::PEERS {
            self.reporter().count(|stats| {
                stats.flushed_bytes[job.tier] += job.bytes;
                stats.flushed_time[job.tier] += took;
            });
            self.reporter().note_written(job.operation, job.tier, job.bytes, took);
        }
        if let (Written::SliceDone, Some(node)) = (&written, job.node()) {
            self.wait_for_node(job.tier, job.operation, node.clone());
        }
        // As in `open_write`.
        self.on_written(job.tier, job.operation, written);
        self.lanes.closed(job.tier);
    }

    fn wait_for_node(&self, tier: TierId, operation: u64, node: super::node::NodeContainer) {
        let mut files = self.setup.tiers.iter().zip(&self.files);
        if let Some((_, files)) = files.find(|(of, _)| of.kind() == tier) {
            files.wait_for(operation, node);
        }
    }

    fn on_written(&self, tier: TierId, operation: u64, written: Written) {
        if let Some(level) = self.level(tier) {
            self.done(level.written(operation, written));
        }
    }

    // ---- The root's decision on a level.

    /// Commits the level if all ranks have the checkpoint, nobody has superseded us, and the manifest is durable.
    pub(crate) fn decide_level(&self, round: Round, ballot: Ballot) -> (Outcome, Vec<u8>) {
        let culprits = ballot.culprits();
        if !culprits.is_empty() {
            return (Outcome::Abandoned(culprits), Vec::new());
        }
        let blame = |text: String| (Outcome::Abandoned(vec![Culprit::of(self.setup.rank(), text)]), Vec::new());
        let shared = shared_files(round.phase);
        let is_patient = shared.is_some_and(|tier| self.waits_for_claims(tier));
        match self.standing(is_patient) {
            Standing::Newest => {}
            // Claims stop waste; names protect the data. If the file system of the claims cannot be asked, a level that does not need it
            // continues without an answer.
            Standing::Unknown(why) if !is_patient => log::warn!("event=claim-not-checked error={why:?}"),
            Standing::Superseded(why) | Standing::Unknown(why) => return blame(why),
        }
        if let Some(tier) = shared {
            // Without a manifest the level does not exist. After a short breakdown of communication, this rank may have given up the
            // checkpoint that it had voted for, while the votes of the other ranks arrived nevertheless.
            let facts = self.books().facts(round.operation);
            let Some(facts) = facts else { return blame("the root has given this checkpoint up".into()) };
            if let Err(error) = self.write_shared_manifest(tier, &facts, ballot.payload) {
                self.reporter().on_tier_failure(tier, &error);
                return blame(error.to_string());
            }
        }
        // What stays on the tier from now on, whether or not the ranks have heard it: files refer to it.
        let stay = tier_of(round.phase).and_then(|tier| {
            let mut books = self.books();
            let facts = books.facts(round.operation)?;
            books.references().stay(&facts, tier)
        });
        stay.map_or((Outcome::Agreed, Vec::new()), |word| Outcome::agreed("what stays", &word))
    }

    /// The checkpoints that the files of a checkpoint on a tier may refer to, as its manifest records them.
    fn sources_of(&self, facts: &Facts, tier: TierId) -> Vec<SourceKey> {
        let mut books = self.books();
        books.references().sources(&facts.series.name, facts.key.operation, tier).unwrap_or_default().to_vec()
    }

    /// Is this run still the newest of its job? The root knows; the other ranks have no claim to compare, and no objection.
    ///
    /// # Errors
    /// A newer run has taken over, which ends the commits of this run; or the question cannot be answered.
    pub fn check_claim(&self) -> Result<(), String> {
        match self.standing(true) {
            Standing::Newest => Ok(()),
            Standing::Superseded(why) | Standing::Unknown(why) => Err(why),
        }
    }

    fn waits_for_claims(&self, tier: TierId) -> bool {
        self.fence.as_ref().is_some_and(|fence| fence.is_on(tier))
    }

    fn write_shared_manifest(&self, tier: TierId, facts: &Facts, payload: Payload) -> Result<(), TierError> {
        let Some(directory) = self.tier(tier) else { return Ok(()) };
        let format = |source| TierError::Format { tier, path: directory.root().to_owned(), source };
        let mut containers = payload.values::<ContainerInfo>().map_err(format)?;
        containers.sort_by(|a, b| a.file.cmp(&b.file));
        directory.write_manifest(
            &facts.series,
            &self.setup.manifest(facts, tier.level(), containers, self.sources_of(facts, tier)),
        )
    }

    /// The manifest on a tier of the node only records a fact that the shards prove, so a failure to write it does not fail the level.
    fn write_node_manifest(&self, tier: TierId, facts: &Facts) {
        let Some(directory) = self.tier(tier) else { return };
        let folder = directory.folder_path(&facts.series, &facts.key);
        let mut manifest = self.setup.manifest(facts, tier.level(), Vec::new(), self.sources_of(facts, tier));
        for rank in &self.setup.identity.node_ranks {
            let file = rank_file(*rank);
            if let Ok(found) = directory.stat(&folder.join(&file)) {
                let bytes = found.bytes;
                manifest.containers.push(ContainerInfo { file, bytes, ranks: vec![*rank] });
            }
        }
        // Retention may have been faster: no folder is created just for a manifest.
        if manifest.containers.is_empty() {
            return;
        }
        match directory.write_manifest(&facts.series, &manifest) {
            Ok(()) => {}
            // Retention was faster after all.
            Err(error) if error.is_absent() => log::debug!("event=local-manifest-not-needed error={error}"),
            Err(error) => log::warn!("event=local-manifest-not-written error={error}"),
        }
    }

    // ---- What is removed.

    fn retain(&self, tier: TierId, facts: &Facts) {
        let Facts { key, series, .. } = facts;
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
        let needs = self.needs(&**directory, series, key, &folders);
        let (ledger, stretches, reached, stays) = {
            let mut books = self.books();
            let entries = folders.iter().zip(needs);
            let entries = entries.map(|(folder, needs)| LedgerEntry { needs, ..books.folder(folder, tier, key) });
            let ledger = Ledger::new(entries.collect());
            let stretches = books.stretches(&series.name).cloned().unwrap_or_default();
            let stays = books.references().stays(&series.name, tier);
            (ledger, stretches, books.reached(text_hash(&series.name)), stays)
        };
        if let Some(newest) = started_over(&folders, key.generation, &stretches) {
            self.desk.note_started_over(&series.name, newest);
        }
        let has_parts = !tier.spec().is_shared && self.setup.has_stored_parts();
        let parts = has_parts.then(|| reached.is_some_and(|level| level >= Level::NodeLoss));
        let occasion = Occasion::Retention {
            committed: *key,
            level: tier.level(),
            stretches: &stretches,
            policy: &policy,
            parts,
            stays: &stays,
        };
        // The newest first: a checkpoint that refers to another one is removed before that one.
        let mut rulings: Vec<(&Folder, Ruling)> = folders.iter().zip(ledger.judge(&occasion)).collect();
        rulings.sort_by_key(|(folder, _)| Reverse(folder.taken()));
        for (gone, ruling) in rulings {
            let Folder { generation, version, operation, .. } = *gone;
            let folder = CheckpointKey { generation, version, operation, ..CheckpointKey::default() }.folder();
            if let Ruling::Keep(reason) = ruling {
                log::debug!("event=kept tier={tier} folder={folder} reason={:?}", reason.to_string());
                continue;
            }
            match directory.remove(series, &folder) {
                Ok(()) => log::info!("event=removed rank={} tier={tier} folder={folder}", self.setup.rank()),
                Err(error) => {
                    log::warn!("event=not-removed tier={tier} error={error}");
                    return;
                }
            }
        }
    }

    /// The checkpoints that each of these checkpoints of a series needs to be restored. If a manifest cannot be read or does not exist yet,
    /// nobody knows them: then all older checkpoints of its run count, if that run had files that refer to others.
    fn needs(&self, tier: &dyn Tier, series: &Series, ours: &CheckpointKey, folders: &[Folder]) -> Vec<Vec<Moment>> {
        let told = |folder: &Folder| {
            if folder.generation != ours.generation {
                return None;
            }
            let mut books = self.books();
            let references = books.references();
            if !references.is_on() {
                return Some(Vec::new());
            }
            let sources = references.sources(&series.name, folder.operation, tier.kind())?;
            Some(sources.iter().map(|source| Moment::of(&source.key)).collect())
        };
        let older = |folder: &Folder| {
            let is_older = |other: &&Folder| other.generation == folder.generation && other.taken() < folder.taken();
            folders.iter().filter(is_older).map(Folder::taken).collect()
        };
        let known = |folder: &Folder| {
            told(folder).or_else(|| folder.committed.then(|| self.manifests.needs(tier, series, folder)).flatten())
        };
        let needs: Vec<Option<Vec<Moment>>> = folders.iter().map(known).collect();
        let refers = |folder: &Folder| {
            let is_own = folder.generation == ours.generation;
            let mut run = folders.iter().zip(&needs).filter(|(other, _)| other.generation == folder.generation);
            (is_own && self.books().references().is_on())
                || run.any(|(_, needs)| needs.as_ref().is_some_and(|needs| !needs.is_empty()))
        };
        let all = folders.iter().zip(&needs);
        let all = all.map(|(folder, needs)| match needs {
            Some(needs) => needs.clone(),
            None if refers(folder) => older(folder),
            None => Vec::new(),
        });
        all.collect()
    }

    /// Removes segments of older runs if, for their series, this run has committed something at the same level or a higher one; the others
    /// stay.
    pub(super) fn remove_old_segments(&self) {
        let (reached, fresh) = {
            let books = self.books();
            let ours = self.setup.identity.generation;
            let is_fresh = |name: &&str| !books.stretches(name).is_some_and(|of| of.inherits(ours));
            let mut fresh: Vec<String> = books.names().filter(is_fresh).map(ToOwned::to_owned).collect();
            fresh.sort();
            fresh.dedup();
            (books.all_reached().clone(), fresh)
        };
        self.inherited.remove_outlived(&reached, &fresh, &self.desk);
    }

    /// A lack of room is no failure here, nor is a size that is too large: the capture that needs the room finds out and says so.
    fn prepare_memory(&self, bytes: u64, node: Option<Node>) {
        let Some(segment) = &self.setup.memory else { return };
        let rank = self.setup.rank();
        match with_preferred(node, || segment.prepare(bytes)) {
            Ok(ready) => log::debug!("event=memory-prepared rank={rank} bytes={bytes} ready={ready}"),
            Err(error) => log::debug!("event=memory-not-prepared rank={rank} error={error}"),
        }
    }
}
