//! Restarts: electing a checkpoint, attempts to load it, and the result that all ranks have loaded.
#![forbid(unsafe_code)]

use super::checkpoint::check_name;
use super::companions;
use super::error::{Error, Result};
use super::place::{segment_prefix, store_hash};
use super::session::Session;
use super::summary::{self, SERIES_NAMED};
use crate::base::Rank;
use crate::base::calendar::unix_now;
use crate::base::log;
use crate::base::text::list;
use crate::catalog::Candidate;
use crate::coordination::{Ballot, Outcome};
use crate::format::supervision::RestoredFrom;
use crate::recovery::discover::{Reach, discover, open_segments};
use crate::recovery::election::origin_of;
use crate::recovery::opener::Opener;
use crate::recovery::outline::Outline;
use crate::recovery::{Attempt, Attempted, Elected, Election, RestartError, Unloaded, Want};
use crate::tier::TierId;
use crate::tier::names::Series;
use std::collections::BTreeSet;
use std::time::Duration;

/// A restart in which the program loads the regions itself. It comes from [`Session::begin_restore`]. Nothing is restored before
/// [`Restore::run`].
#[must_use = "nothing is restored before `run`"]
pub struct Restore<'a> {
    session: &'a Session,
    name: String,
    want: Want,
}

impl<'a> Restore<'a> {
    /// Asks for one version instead of the newest, even one that a later run left behind. Later checkpoints of this run then
    /// descend from it.
    pub fn version(self, version: u64) -> Self {
        Restore { want: Want::Version(version), ..self }
    }

    pub(super) fn session(&self) -> &'a Session {
        self.session
    }

    /// Restores the newest version that all ranks can restore, or the version that was asked for. Each shard is read from its nearest copy.
    /// `load` takes what it needs from the [`Attempt`]. It may be called several times: if a rank finds damage and no copy is good, or if a
    /// rank rejects the version ([`Attempt::reject`]), all ranks continue with the next older version. Returns `None` if there is nothing
    /// to restore.
    ///
    /// Any other error that `load` returns ends the restart on all ranks. This is the case for a region that is missing or has another type
    /// or length, and for the program's own errors ([`Error::application`]).
    ///
    /// # Collective
    /// All ranks, with the same name and version.
    ///
    /// # Blocking
    /// Until all ranks have loaded, and for checkpoints of this session that are being written.
    ///
    /// # Errors
    /// [`Error::Restart`], on all ranks alike; [`RestartError::NoSuchVersion`] if the version that was asked for does not exist. Nothing
    /// that a failed attempt loaded may be used.
    pub fn run(self, mut load: impl FnMut(&mut Attempt) -> Result<()>) -> Result<Option<Restored>> {
        let Restore { session, name, want } = self;
        let mut next = session.start_restore(&name, want)?;
        while let Some(mut restart) = next {
            let loaded = load(restart.attempt());
            let damage = restart.attempt().failure().map(str::to_owned);
            let failure = loaded.err().map(|error| match (error, damage) {
                (Error::Load(error), _) => Unloaded::by(&error),
                // Damage counts as damage, whatever error the program returns for it.
                (_, Some(damage)) => Unloaded::Damaged(damage),
                (error, None) => Unloaded::Refused(error.to_string()),
            });
            match restart.end(session, failure)? {
                AttemptEnd::Counts(restored) => return Ok(Some(restored)),
                AttemptEnd::Again(restart) => next = Some(*restart),
            }
        }
        Ok(None)
    }
}

/// What a restart restored.
#[derive(Clone, Debug, PartialEq)]
pub struct Restored {
    /// The version.
    pub version: u64,
    /// The generation of the run that took it.
    pub generation: u64,
    /// The number of ranks that took it.
    pub ranks: u32,
    /// The farthest tier from which this rank read.
    pub tier: TierId,
    /// Bytes that this rank has read.
    pub bytes: u64,
    /// The time from the call to the agreement of all ranks.
    pub took: Duration,
    /// The part of `took` that passed before the ranks had elected this checkpoint and begun to load it.
    pub electing: Duration,
    /// A later run had left this version behind, and it was asked for by number.
    pub left_behind: bool,
}

/// A version that all ranks can restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionInfo {
    /// The version.
    pub version: u64,
    /// The generation of the run that took it.
    pub generation: u64,
    /// The number of ranks that took it.
    pub ranks: u32,
    /// A later run went back to an older version: this one is restored only if it is asked for by number.
    pub left_behind: bool,
}

impl Session {
    /// Begins a restart in which the program loads the regions itself. [`Restore::run`] lets the ranks elect a version and calls the
    /// program back to load it. To load the parts that a [`Checkpoint`](crate::Checkpoint) describes, call [`Session::restore`] instead.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, t: &mut [f64]) -> bivouac::Result<()> {
    /// let restored = session.begin_restore("heat").run(|attempt| {
    ///     attempt.load("temperature", t)?;
    ///     if t.iter().any(|t| t.is_nan()) {
    ///         attempt.reject("the temperature has NaN"); // all ranks continue with an older version
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local. [`Restore::run`] is called by all ranks.
    pub fn begin_restore(&self, name: &str) -> Restore<'_> {
        Restore { session: self, name: name.into(), want: Want::Newest }
    }

    /// The versions of `name` that all ranks can restore, newest first.
    ///
    /// # Collective
    /// All ranks.
    ///
    /// # Blocking
    /// As long as [`Restore::run`], without the loading.
    ///
    /// # Errors
    /// See [`Restore::run`].
    pub fn versions(&self, name: &str) -> Result<Vec<VersionInfo>> {
        self.check_name_together(name)?;
        let mut election = self.election(name, Want::Newest);
        let listed = election.list();
        self.engine.server().stop_serving();
        let listed = listed?;
        if listed.is_empty() {
            self.say_nothing_is_there(name, &election);
        }
        Ok(listed
            .into_iter()
            .map(|(candidate, left_behind)| VersionInfo {
                version: candidate.key.version,
                generation: candidate.key.generation.0,
                ranks: candidate.group_size,
                left_behind,
            })
            .collect())
    }

    /// Refuses a name that cannot be used. The other ranks may have made a valid call: the verdict on that call tells them about the
    /// refusal, and the numbering of calls stays in step on all ranks.
    fn check_name_together(&self, name: &str) -> Result<()> {
        let Err(error) = check_name(name) else { return Ok(()) };
        let refusal = self.engine.refusal(&error.to_string());
        let decide = |ballot: &Ballot| (Outcome::Abandoned(ballot.culprits()), Vec::new());
        if let Err(reason) = self.engine.collective(refusal, Box::new(decide)) {
            log::debug!("event=refusal-not-heard reason={reason:?}");
        }
        Err(error)
    }

    pub(super) fn election(&self, name: &str, want: Want) -> Election {
        let engine = &self.engine;
        engine.drain(engine.config().job.timeouts.drain);
        let identity = engine.identity();
        let mut damage = Vec::new();
        let segments = match engine.config().job.memory_enabled {
            true => {
                let prefix = segment_prefix(&identity.job, &identity.group);
                open_segments(&engine.config().node.memory_directory, &prefix, store_hash(identity.store), &mut damage)
            }
            false => Vec::new(),
        };
        let reach = Reach {
            series: &identity.series(name),
            rank: identity.rank,
            ranks: identity.size,
            segments: &segments,
            node_ranks: &identity.node_ranks,
            tiers: engine.tiers(),
            is_root: engine.is_root(),
        };
        let mut found = discover(&reach);
        found.damaged[TierId::MEMORY] += damage.len() as u64;
        found.damage.extend(damage);
        engine.reporter().count(|stats| {
            for tier in TierId::all() {
                stats.damaged[tier] += found.damaged[tier];
            }
        });
        Election::new(engine, name, want, found)
    }

    /// Has the root warn if nothing can be restored although checkpoints exist. In a first run, there is nothing to warn of.
    fn say_nothing_is_there(&self, name: &str, election: &Election) {
        if !self.engine.is_root() {
            return;
        }
        if let Some(found) = self.found_instead(name, election) {
            log::warn!("event=nothing-to-restore name={name:?}: {found}");
        }
    }

    /// Describes what exists although nothing can be restored: a version taken by a different number of ranks, or checkpoints of another
    /// group or of another name. Returns `None` if nothing of the kind exists.
    pub(super) fn found_instead(&self, name: &str, election: &Election) -> Option<String> {
        let identity = self.engine.identity();
        let candidates = election.found().candidates();
        if let Some(other) = candidates.iter().find(|candidate| candidate.group_size != identity.size) {
            let (version, then, now) = (other.key.version, other.group_size, identity.size);
            return Some(format!(
                "version {version} was taken by {then} ranks, but this run has {now}, and not all of its shards were found"
            ));
        }
        if !candidates.is_empty() {
            return None;
        }
        if let Some(groups) = self.groups_with(name) {
            let group = &identity.group;
            return Some(format!(
                "there is no checkpoint of that name in group {group:?}, but there is in {groups}. A group of some ranks of the world is \
                 named after the lowest of them, which a different number of ranks can change: set job.group (BIVOUAC_JOB_GROUP) to the \
                 name of the group to continue from, and keep it"
            ));
        }
        let named =
            self.engine.tiers().iter().flat_map(|tier| tier.names(&identity.job, &identity.group).unwrap_or_default());
        let others: BTreeSet<String> = named.filter(|other| other != name).collect();
        let listed = list(others.iter().map(|other| format!("{other:?}")), SERIES_NAMED, ", ");
        (!others.is_empty()).then(|| format!("there is no checkpoint of that name, but there are some of {listed}"))
    }

    /// The other groups of this job in which this rank sees checkpoints called `name`; `None` if there are none.
    fn groups_with(&self, name: &str) -> Option<String> {
        let identity = self.engine.identity();
        let mut found = BTreeSet::new();
        for tier in self.engine.tiers() {
            let groups = tier.groups(&identity.job).unwrap_or_default().into_iter();
            found.extend(groups.filter(|group| *group != identity.group).filter(|group| {
                let series = Series { job: identity.job.clone(), group: group.clone(), name: name.to_owned() };
                tier.folders(&series).is_ok_and(|folders| !folders.is_empty())
            }));
        }
        let named = found.iter().map(|group| format!("{group:?}"));
        (!found.is_empty()).then(|| list(named, SERIES_NAMED, ", "))
    }

    /// Begins a restart without a closure. The session makes no other collective call until the restart has ended.
    #[doc(hidden)]
    pub fn start_restore(&self, name: &str, want: Want) -> Result<Option<Restart>> {
        self.begin_restart(name, want, true)
    }

    /// Begins an attempt that only looks at a checkpoint: threads stay where they are. [`Restart::end_uncounted`] ends it.
    #[doc(hidden)]
    pub fn look(&self, name: &str, want: Want) -> Result<Option<Restart>> {
        self.begin_restart(name, want, false)
    }

    fn begin_restart(&self, name: &str, want: Want, goes_back: bool) -> Result<Option<Restart>> {
        // The memory that is loaded into may still be being copied for a checkpoint.
        self.engine.settle_live();
        self.engine.reporter().beat();
        self.check_name_together(name)?;
        let started = self.engine.clock().now();
        let mut election = self.election(name, want);
        let first = election.first();
        self.next_attempt(Course { name: name.into(), want, goes_back, started, election }, first)
    }

    fn next_attempt(&self, mut course: Course, next: Result<Option<Elected>, RestartError>) -> Result<Option<Restart>> {
        let mut next = next;
        let (elected, outline) = loop {
            let Ok(Some(elected)) = next else {
                // No rank loads any longer, so no rank asks for shards.
                self.engine.server().stop_serving();
                next?;
                self.say_nothing_is_there(&course.name, &course.election);
                return Ok(None);
            };
            if elected.candidate.group_size == self.engine.identity().size {
                break (elected, None);
            }
            next = match self.outline(&mut course, &elected) {
                Ok(Ok(outline)) => break (elected, Some(outline)),
                Ok(Err(next)) => next,
                Err(error) => Err(error),
            };
        };
        self.engine.reporter().beat();
        let elect = self.engine.clock().now().saturating_sub(course.started);
        let mut attempt = Attempt::opened(self.opener(&course, &elected), outline);
        if let Some(keeper) = self.engine.affinity().filter(|_| course.goes_back) {
            attempt.go_back(keeper);
        }
        Ok(Some(Restart { course, elected, elect, attempt }))
    }

    /// The outline of a checkpoint that a different number of ranks took. The root reads it for all ranks. If the root cannot read it, the
    /// result is the next candidate.
    ///
    /// # Errors
    /// [`RestartError::RankBound`], on all ranks alike.
    #[allow(clippy::type_complexity, reason = "a result of what may be tried next, which is a result")]
    fn outline(
        &self,
        course: &mut Course,
        elected: &Elected,
    ) -> Result<Result<Outline, Result<Option<Elected>, RestartError>>, RestartError> {
        let read = self.engine.is_root().then(|| {
            let opener = self.opener(course, elected);
            opener.access(Rank::ROOT, opener.home(Rank::ROOT)).outline().map_err(|error| error.to_string())
        });
        let unread = read.as_ref().and_then(|read| read.as_ref().err()).cloned();
        if let Some(why) = &unread {
            log::warn!("event=outline-unread {} error={why}", elected.candidate.key);
        }
        let Some(outline) = course.election.tell_all(read.and_then(Result::ok))? else {
            return Ok(Err(course.election.end(unread.map(Unloaded::Damaged))));
        };
        let regions = outline.bound();
        if regions.is_empty() {
            return Ok(Ok(outline));
        }
        let Candidate { key, group_size: found, .. } = elected.candidate;
        Err(RestartError::RankBound { version: key.version, found, ours: self.engine.identity().size, regions })
    }

    /// Opens the copies of the elected checkpoint.
    fn opener(&self, course: &Course, elected: &Elected) -> Opener {
        let identity = self.engine.identity();
        let attempted = Attempted {
            rank: identity.rank,
            clock: self.engine.clock().clone(),
            key: elected.candidate.key,
            series: identity.series(&course.name),
        };
        Opener::new(&self.engine, attempted, elected, course.election.found())
    }

    /// Lets the run continue from a checkpoint that all ranks have loaded: later checkpoints descend from it.
    #[doc(hidden)]
    pub fn count(&self, loaded: Loaded) -> Restored {
        let Loaded { name, want, elected, has_gathered, restored } = loaded;
        let key = elected.candidate.key;
        if want == Want::Newest {
            // If a version was asked for by its number, newer versions stay, because this run has committed nothing newer yet.
            self.engine.forget_others(&name, &key, !elected.manifests.is_empty());
        }
        let is_resized = elected.candidate.group_size != self.engine.identity().size;
        if has_gathered || is_resized {
            self.decisions.borrow_mut().checkpoint_soon();
        }
        self.engine.begin_stretch(&name, |restart| origin_of(&elected, restart));
        log::info!(
            "event=restored rank={} name={name:?} {key} tier={} bytes={} seconds={:.6} left_behind={}",
            self.engine.identity().rank,
            restored.tier,
            restored.bytes,
            restored.took.as_secs_f64(),
            restored.left_behind
        );
        self.engine.reporter().count(|stats| {
            stats.costs.restarts[restored.tier].add(restored.took, restored.bytes);
        });
        let told = RestoredFrom {
            name,
            version: restored.version,
            generation: restored.generation,
            tier: restored.tier.name().to_owned(),
            bytes: restored.bytes,
            seconds: restored.took.as_secs_f64(),
            elect_seconds: restored.electing.as_secs_f64(),
            unix: unix_now(),
        };
        // Only the first restart of a series is reported, because a program may restore many times.
        let is_first = self.told.borrow_mut().insert(told.name.clone());
        if self.engine.is_root() && is_first {
            let identity = self.engine.identity();
            let ranks = (elected.candidate.group_size, identity.size);
            let line = summary::restored(&identity.job, identity.generation.0, &told, ranks);
            log::log!(target: log::SUMMARY, summary::importance(false), "{line}");
        }
        self.engine.tell_restored(told);
        restored
    }
}

/// The part of a restart that stays the same from attempt to attempt.
struct Course {
    name: String,
    want: Want,
    /// Whether threads and memory go back to where they were when the checkpoint was taken.
    goes_back: bool,
    started: Duration,
    election: Election,
}

/// A restart at one of its attempts: all ranks load the checkpoint that they have elected, and then end the attempt together.
pub struct Restart {
    course: Course,
    elected: Elected,
    elect: Duration,
    attempt: Attempt,
}

/// A checkpoint that all ranks have loaded but that does not count yet: see [`Session::count`].
pub struct Loaded {
    name: String,
    want: Want,
    elected: Elected,
    has_gathered: bool,
    restored: Restored,
}

/// The end of an attempt that does not count by itself. It is the same on all ranks.
pub enum UncountedEnd {
    /// All ranks have loaded the checkpoint.
    Loaded(Box<Loaded>),
    /// Some rank has found damage or rejected the version: load again ([`AttemptEnd::Again`]).
    Again(Box<Restart>),
}

/// The end of an attempt. It is the same on all ranks.
pub enum AttemptEnd {
    /// All ranks have loaded the checkpoint.
    Counts(Restored),
    /// Some rank has not loaded the checkpoint, so nothing that was loaded may be used. The value is the attempt at the next candidate.
    Again(Box<Restart>),
}

impl Restart {
    /// The attempt to load from.
    pub fn attempt(&mut self) -> &mut Attempt {
        &mut self.attempt
    }

    /// Ends the attempt on `session`, which began it. `failure` says why this rank has not loaded the checkpoint.
    ///
    /// # Collective
    /// All ranks.
    pub fn end(self, session: &Session, failure: Option<Unloaded>) -> Result<AttemptEnd> {
        Ok(match self.end_uncounted(session, failure)? {
            UncountedEnd::Loaded(loaded) => AttemptEnd::Counts(session.count(*loaded)),
            UncountedEnd::Again(next) => AttemptEnd::Again(next),
        })
    }

    /// Ends the attempt as [`Restart::end`] does, but the loaded checkpoint counts only once [`Session::count`] is called.
    ///
    /// # Collective
    /// All ranks.
    pub fn end_uncounted(self, session: &Session, failure: Option<Unloaded>) -> Result<UncountedEnd> {
        let Restart { mut course, elected, elect, mut attempt } = self;
        let engine = &session.engine;
        let damage = || attempt.failure().map(|text| Unloaded::Damaged(text.to_owned()));
        let rejection = || attempt.rejection().map(|why| Unloaded::Rejected(why.to_owned()));
        let failure = failure.or_else(damage).or_else(rejection);
        // All ranks plan for their companions, whether they have loaded the checkpoint or not.
        let companions = session.companions_of(&course.name).filter(|_| course.goes_back);
        let planned = companions.as_ref().map(|mine| companions::plan(&mut attempt, mine)).transpose();
        let (failure, plans) = match planned {
            Ok(plans) => (failure, plans),
            Err(why) => (failure.or(Some(why)), None),
        };
        engine.reporter().count(|stats| {
            for tier in TierId::all() {
                stats.restored_bytes[tier] += attempt.read_bytes()[tier];
                stats.damaged[tier] += attempt.damaged()[tier];
            }
        });
        let next = course.election.end(failure);
        if !matches!(next, Ok(None)) {
            let next = session.next_attempt(course, next)?;
            return Ok(UncountedEnd::Again(Box::new(next.expect("an error or a candidate, both were looked at"))));
        }
        // All ranks have ended their attempts, so no rank asks for shards any longer.
        engine.server().stop_serving();
        if let Some(plans) = plans {
            session.carry_out(plans)?;
        }
        let took = engine.clock().now().saturating_sub(course.started);
        let (key, read) = (elected.candidate.key, attempt.read_bytes());
        let restored = Restored {
            version: key.version,
            generation: key.generation.0,
            ranks: attempt.saved_ranks(),
            tier: attempt.farthest(),
            bytes: read.iter().map(|(_, bytes)| bytes).sum(),
            took,
            electing: elect,
            left_behind: elected.left_behind,
        };
        let has_gathered = course.election.has_gathered();
        let Course { name, want, .. } = course;
        Ok(UncountedEnd::Loaded(Box::new(Loaded { name, want, elected, has_gathered, restored })))
    }
}
