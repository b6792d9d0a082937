//! Who may write: one claim file per run.
//!
//! A run of a job claims a *generation* by creating `claims/gNNNNNN` exclusively, one above the largest that anybody
//! has seen. Paths and segment names contain the generation, so two runs never write under the same name: names protect
//! the data. Claims prevent waste: before each manifest and each deletion, the root reads the directory again, and a
//! higher claim fences this run off for good.
//!
//! If the claim of another run that is still alive exists, the run does not start. A tool's claim, which only takes a number (a group of
//! no ranks), stops nobody. Whether a run is alive is decided without comparing two clocks:
//!
//! 1. `gNNNNNN.closed` exists: the run ended normally.
//! 2. Its file is locked: the run is alive (the lock ends with the process, however the process ends).
//! 3. Its file is not locked, and was made during the current boot of this machine: the run is dead, because its lock
//!    would be visible here.
//! 4. Otherwise the lock may simply not be visible across hosts, so the file is watched for three [`HEARTBEAT`]s. Its holder
//!    renews the modification time once per heartbeat; if the time changes, the run is alive. The value of the time does not
//!    matter, because some file systems use the clock of the host that renews it. Only the newest run's claim is watched; older
//!    ones are superseded by it.

use super::records::Records;
use super::storage::FileLock;
use super::{TierError, TierId};
use crate::base::log;
use crate::base::sync::{Lock, Order};
use crate::base::{Clock, Generation};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How often the holder renews its claim.
pub const HEARTBEAT: Duration = Duration::from_secs(3);
/// Claims this far below ours are removed.
const CLAIMS_KEPT: u64 = 4;
const LOCK_ATTEMPTS: u32 = 100;
const CLAIM_MAX: u64 = 64 << 10;

/// What a claim file says about its run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClaimRecord {
    /// The run's random identity.
    pub incarnation: String,
    /// Host of the root rank.
    pub host: String,
    /// Identity of the current boot of that host.
    pub boot: String,
    /// Process number of the root rank.
    pub pid: u32,
    /// Random identity of that process: two processes in containers may have the same host and process number.
    pub process: String,
    /// Program and arguments.
    pub program: String,
    /// Ranks in the group; 0 for a tool, which has no run.
    pub group_size: u32,
}

/// Why no generation could be claimed, or why a claim is void.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    /// Another run of the same job and group is alive.
    #[error(
        "another run of this job and group is alive: generation {generation}, {program:?} as process {pid} on {host} (claim {}). \
         Wait for it to end; give the runs different job.name or job.group; or set job.take_over to fence it off",
        path.display()
    )]
    Alive {
        /// Generation of the other run.
        generation: Generation,
        /// Host of the other run's root.
        host: String,
        /// Process number of the other run's root.
        pid: u32,
        /// Does the claim belong to the process that asks?
        is_ours: bool,
        /// Program of the other run.
        program: String,
        /// Claim file of the other run.
        path: PathBuf,
    },
    /// A newer run has claimed the store; this one must no longer commit or delete.
    #[error("generation {ours} is superseded: generation {by} has claimed this job and group ({})", path.display())]
    Superseded {
        /// Our generation.
        ours: Generation,
        /// The newer one.
        by: Generation,
        /// The claims directory.
        path: PathBuf,
    },
    /// The claims directory could not be used.
    #[error(transparent)]
    Tier(#[from] TierError),
}

/// The claims of one job and group.
pub struct Claims {
    records: Arc<dyn Records>,
    directory: PathBuf,
    tier: TierId,
}

/// A generation that is ours.
pub struct Claim {
    generation: Generation,
    path: PathBuf,
    record: ClaimRecord,
    /// Held for as long as the claim lives; replaced when the claim has to be made again.
    lock: Lock<Option<Box<dyn FileLock>>>,
}

impl Claim {
    /// The generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }
}

impl Claims {
    /// The claims under `<root>/<job>/<group>/claims`.
    pub fn new(tier: TierId, records: Arc<dyn Records>, root: &Path, job: &str, group: &str) -> Claims {
        Claims { records, directory: root.join(job).join(group).join("claims"), tier }
    }

    /// The tier that keeps them.
    pub fn tier(&self) -> TierId {
        self.tier
    }

    fn wrap<T>(&self, action: &'static str, path: &Path, result: io::Result<T>) -> Result<T, TierError> {
        result.map_err(|source| TierError::io(self.tier, action, path, source))
    }

    fn path(&self, generation: Generation) -> PathBuf {
        self.directory.join(format!("g{:06}", generation.0))
    }

    /// All generations claimed so far, in ascending order.
    fn generations(&self) -> Result<Vec<Generation>, TierError> {
        let entries = match self.records.list(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => self.wrap("list", &self.directory, other)?,
        };
        let number = |name: &str| name.strip_prefix('g').and_then(|digits| digits.parse().ok()).map(Generation);
        let mut found: Vec<Generation> = entries.iter().filter_map(|entry| number(&entry.name)).collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Claims the next generation above all claims and above `seen`.
    ///
    /// # Errors
    /// [`ClaimError::Alive`] if another run is alive, unless `take_over` is set; [`ClaimError::Tier`].
    ///
    /// # Blocking
    /// Up to three heartbeats when another host's claim has to be watched.
    pub fn claim(
        &self,
        seen: Generation,
        record: &ClaimRecord,
        take_over: bool,
        clock: &dyn Clock,
    ) -> Result<Claim, ClaimError> {
        let mut unlisted: Vec<Generation> = Vec::new();
        loop {
            let mut claimed = self.generations()?;
            claimed.extend(&unlisted);
            claimed.sort_unstable();
            claimed.dedup();
            if !take_over {
                self.refuse_any(&claimed, record, clock)?;
            }
            let generation = Generation(claimed.last().copied().unwrap_or_default().max(seen).0 + 1);
            let path = self.path(generation);
            // `None`: somebody else was faster, or the list is out of date. That claim is examined like any other.
            let Some(lock) = self.make(&path, record, clock)? else {
                unlisted.push(generation);
                continue;
            };
            for old in claimed.iter().filter(|old| old.0 + CLAIMS_KEPT < generation.0) {
                self.forget(*old);
            }
            return Ok(Claim { generation, path, record: record.clone(), lock: Lock::at(Order::File, lock) });
        }
    }

    /// Makes a claim file, durably, and locks it where there are locks. `None` if the file exists.
    #[allow(clippy::type_complexity)]
    fn make(
        &self,
        path: &Path,
        record: &ClaimRecord,
        clock: &dyn Clock,
    ) -> Result<Option<Option<Box<dyn FileLock>>>, TierError> {
        let text = serde_json::to_vec_pretty(record).unwrap_or_default();
        match self.records.create(path, &text, clock) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            other => self.wrap("create", path, other).map(Some),
        }
    }

    /// Removes an old claim, which carries no information any more. Failing to remove it is harmless.
    fn forget(&self, generation: Generation) {
        for path in [self.path(generation), self.closed_path(generation)] {
            if let Err(error) = self.records.remove(&path)
                && error.kind() != io::ErrorKind::NotFound
            {
                log::debug!("event=old-claim-left path={} error={error}", path.display());
            }
        }
    }

    fn closed_path(&self, generation: Generation) -> PathBuf {
        self.directory.join(format!("g{:06}.closed", generation.0))
    }

    /// Refuses if a run with one of these claims (in ascending order) is alive.
    fn refuse_any(&self, claimed: &[Generation], ours: &ClaimRecord, clock: &dyn Clock) -> Result<(), ClaimError> {
        let mut is_newest = true;
        for generation in claimed.iter().rev() {
            is_newest &= !self.refuse_if_alive(*generation, ours, is_newest, clock)?;
        }
        Ok(())
    }

    /// Refuses if the claim belongs to a living run. Returns true if the claim belongs to a run at all.
    fn refuse_if_alive(
        &self,
        generation: Generation,
        ours: &ClaimRecord,
        is_newest: bool,
        clock: &dyn Clock,
    ) -> Result<bool, ClaimError> {
        let path = self.path(generation);
        let read = || -> Option<ClaimRecord> {
            self.records.read(&path, CLAIM_MAX).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok())
        };
        let is_tool = |record: &ClaimRecord| record.group_size == 0;
        let mut theirs = read();
        if theirs.as_ref().is_some_and(is_tool) {
            return Ok(false);
        }
        if !self.is_alive(generation, theirs.as_ref(), ours, is_newest, clock)? {
            return Ok(true);
        }
        // A claim is locked before anything is written to it. Its owner's name follows a moment later.
        for _ in 0..LOCK_ATTEMPTS {
            if theirs.is_some() {
                break;
            }
            clock.sleep(Duration::from_millis(10));
            theirs = read();
        }
        if theirs.as_ref().is_some_and(is_tool) {
            return Ok(false);
        }
        let is_ours = theirs.as_ref().is_some_and(|theirs| theirs.process == ours.process);
        let (host, pid, program) =
            theirs.map_or(("unknown".into(), 0, "unknown".into()), |t| (t.host, t.pid, t.program));
        Err(ClaimError::Alive { generation, host, pid, is_ours, program, path })
    }

    fn is_alive(
        &self,
        generation: Generation,
        theirs: Option<&ClaimRecord>,
        ours: &ClaimRecord,
        is_newest: bool,
        clock: &dyn Clock,
    ) -> Result<bool, TierError> {
        let path = self.path(generation);
        if self.records.changed(&self.closed_path(generation)).is_ok() {
            return Ok(false);
        }
        match self.records.is_held(&path) {
            Ok(true) => return Ok(true),
            Ok(false) if theirs.is_some_and(|record| record.boot == ours.boot) => return Ok(false),
            // This host sees no lock, or the file system has none. (Or the file no longer exists: the watch notices that at once.)
            Ok(false) | Err(_) => {}
        }
        Ok(is_newest && self.watch(&path, clock))
    }

    /// Rule 4: does the modification time change?
    fn watch(&self, path: &Path, clock: &dyn Clock) -> bool {
        let look = || self.records.changed(path);
        let Ok(first) = look() else { return false };
        log::info!("event=watching-claim path={} reason=\"made on another host and not closed\"", path.display());
        let begun = clock.now();
        while clock.now().saturating_sub(begun) <= 3 * HEARTBEAT {
            clock.sleep(Duration::from_secs(1));
            match look() {
                Ok(seen) if seen == first => {}
                moved => return moved.is_ok(),
            }
        }
        false
    }

    /// Refuses if any run holds a claim and is alive. Meant for tools, which claim nothing. `me` says on which boot of
    /// which machine the tool runs, in the form of the record that a run would write.
    ///
    /// # Errors
    /// [`ClaimError::Alive`]; [`ClaimError::Tier`] if this cannot be determined.
    ///
    /// # Blocking
    /// Up to three heartbeats when another host's claim has to be watched.
    pub fn refuse_alive(&self, me: &ClaimRecord, clock: &dyn Clock) -> Result<(), ClaimError> {
        self.refuse_any(&self.generations()?, me, clock)
    }

    /// Makes sure that the next run takes a generation above `used`, by claiming `used` and closing the claim at once,
    /// unless that generation or a larger one has already been claimed. Meant for tools that bring checkpoints of a run
    /// that this store does not know, for example because the run had no global tier. Nothing else would prevent the next
    /// run from using that run's names again.
    ///
    /// # Errors
    /// [`ClaimError::Tier`].
    pub fn record_used(&self, used: Generation, me: &ClaimRecord, clock: &dyn Clock) -> Result<(), ClaimError> {
        if self.generations()?.last().is_some_and(|newest| *newest >= used) {
            return Ok(());
        }
        let claim = self.claim(Generation(used.0.saturating_sub(1)), me, true, clock)?;
        Ok(self.close(&claim)?)
    }

    /// Is our claim still the newest? A claim that has vanished, because somebody emptied the directory, is made again.
    ///
    /// # Errors
    /// [`ClaimError::Superseded`] if there is a newer claim, or somebody else's claim with our number;
    /// [`ClaimError::Tier`] if this cannot be determined.
    pub fn check(&self, claim: &Claim, clock: &dyn Clock) -> Result<(), ClaimError> {
        let ours = claim.generation;
        let newest = self.generations()?.last().copied().unwrap_or_default();
        let superseded = |by| ClaimError::Superseded { ours, by, path: self.directory.clone() };
        if newest > ours {
            return Err(superseded(newest));
        }
        // Only one thread at a time: a second one would find the file of the first before it has content.
        let mut held = claim.lock.lock();
        for _ in 0..LOCK_ATTEMPTS {
            match self.holder(&claim.path)? {
                // A number alone proves nothing: another run that began with an emptied directory may have taken our number.
                Holder::Run(record) if record.incarnation == claim.record.incarnation => return Ok(()),
                Holder::Run(_) => break,
                // Another run that began with the emptied directory may be writing its record at this moment.
                Holder::Unreadable => clock.sleep(Duration::from_millis(10)),
                Holder::Nobody => {
                    if let Some(lock) = self.make(&claim.path, &claim.record, clock)? {
                        log::warn!(
                            "event=claim-vanished path={}: the directory was emptied during the run; the checkpoints in it may be gone",
                            claim.path.display()
                        );
                        *held = lock;
                        return Ok(());
                    }
                }
            }
        }
        Err(superseded(ours))
    }

    fn holder(&self, path: &Path) -> Result<Holder, TierError> {
        match self.records.read(path, CLAIM_MAX) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Holder::Nobody),
            read => {
                let bytes = self.wrap("read", path, read)?;
                Ok(serde_json::from_slice(&bytes).map_or(Holder::Unreadable, Holder::Run))
            }
        }
    }

    /// Renews the claim's modification time.
    ///
    /// # Errors
    /// [`TierError::Io`].
    pub fn renew(&self, claim: &Claim) -> Result<(), TierError> {
        self.wrap("touch", &claim.path, self.records.touch(&claim.path))
    }

    /// Marks the claim as ended normally, unless another run has its number: that run may be alive.
    ///
    /// # Errors
    /// [`TierError::Io`].
    pub fn close(&self, claim: &Claim) -> Result<(), TierError> {
        if let Holder::Run(record) = self.holder(&claim.path)?
            && record.incarnation != claim.record.incarnation
        {
            log::warn!("event=claim-not-closed path={} reason=\"another run has made it\"", claim.path.display());
            return Ok(());
        }
        let path = self.closed_path(claim.generation);
        self.wrap("create", &path, self.records.mark(&path))
    }
}

/// Who owns a claim file.
enum Holder {
    /// There is no such file.
    Nobody,
    /// The maker has not written its record yet, or the file is damaged.
    Unreadable,
    /// The run with this record.
    Run(ClaimRecord),
}

#[cfg(test)]
mod tests {
    use super::super::owner::store_id;
    use super::super::posix::PosixStorage;
    use super::super::records::Files;
    use super::super::simulated::{Fault, Simulated};
    use super::super::storage::Storage;
    use super::*;
    use crate::base::Incarnation;
    use crate::base::clock::SystemClock;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::SystemTime;

    fn record(group_size: u32) -> ClaimRecord {
        let (host, boot, program) = ("here".into(), "this".into(), format!("{group_size} ranks"));
        ClaimRecord { incarnation: "1".into(), host, boot, pid: 7, process: "7".into(), program, group_size }
    }

    fn claims(root: &Path) -> Claims {
        Claims::new(
            TierId::GLOBAL,
            Arc::new(Files(Arc::new(PosixStorage::new(crate::config::Direct::Off)))),
            root,
            "job",
            "group",
        )
    }

    #[test]
    fn a_tool_s_claim_refuses_nobody() {
        let (root, clock) = (tempfile::tempdir().expect("a folder"), SystemClock::default());
        let claims = claims(root.path());
        let _tool = claims.claim(Generation(0), &record(0), true, &clock).expect("claimed");
        claims.refuse_alive(&record(0), &clock).expect("it has no run");
        let run = claims.claim(Generation(0), &record(4), false, &clock).expect("it has no run");
        assert_eq!(run.generation(), Generation(2), "its number is taken all the same");
        for refused in
            [claims.refuse_alive(&record(0), &clock), claims.claim(Generation(0), &record(4), false, &clock).map(drop)]
        {
            let is_it = matches!(refused, Err(ClaimError::Alive { generation: Generation(2), is_ours: true, .. }));
            assert!(is_it, "{refused:?}");
        }
        let elsewhere = ClaimRecord { process: "8".into(), ..record(0) };
        let refused = claims.refuse_alive(&elsewhere, &clock);
        assert!(
            matches!(refused, Err(ClaimError::Alive { pid: 7, is_ours: false, .. })),
            "a container like ours: {refused:?}"
        );
        claims.close(&run).expect("closed");
        claims.refuse_alive(&record(0), &clock).expect("it has ended");
    }

    /// Somebody emptied the directory under a living run, and the next run took the same number.
    #[test]
    fn a_claim_of_our_number_that_another_run_made_supersedes_us_and_is_not_ours_to_close() {
        let (root, clock) = (tempfile::tempdir().expect("a folder"), SystemClock::default());
        let claims = claims(root.path());
        let (first, second) = (record(4), ClaimRecord { incarnation: "2".into(), ..record(4) });
        let mine = claims.claim(Generation(0), &first, false, &clock).expect("claimed");
        claims.check(&mine, &clock).expect("it is ours");
        std::fs::remove_dir_all(&claims.directory).expect("removed");
        let theirs = claims.claim(Generation(0), &second, false, &clock).expect("nobody is seen");
        assert_eq!(theirs.generation(), mine.generation());
        let fenced = claims.check(&mine, &clock);
        assert!(
            matches!(fenced, Err(ClaimError::Superseded { ours: Generation(1), by: Generation(1), .. })),
            "{fenced:?}"
        );
        claims.check(&theirs, &clock).expect("it is theirs");
        claims.close(&mine).expect("nothing to do");
        let refused = claims.refuse_alive(&record(0), &clock);
        assert!(matches!(refused, Err(ClaimError::Alive { generation: Generation(1), .. })), "{refused:?}");
    }

    /// A clock whose time passes only during sleep, and what happens at each second.
    struct Seconds<'a>(Lock<Duration>, &'a (dyn Fn(u64) + Sync));

    impl Clock for Seconds<'_> {
        fn now(&self) -> Duration {
            *self.0.lock()
        }

        fn sleep(&self, time: Duration) {
            let now = self.now() + time;
            *self.0.lock() = now;
            (self.1)(now.as_secs());
        }
    }

    #[test]
    fn a_run_whose_clock_is_an_hour_behind_is_seen_to_live() {
        let disk = Simulated::new();
        disk.inject(Path::new("/"), Fault::NoLocks).expect("it is a path");
        let claims = on_disk(&disk);
        let elsewhere = |incarnation: &str| {
            let boot = format!("that of {incarnation}");
            ClaimRecord { incarnation: incarnation.into(), boot, ..record(4) }
        };
        let still = quiet();
        let path = |claim: &Claim| claim.path.clone();
        let mut renewed: Option<PathBuf> = None;
        for (run, lives) in [("1", false), ("2", false), ("3", false), ("4", true)] {
            if let Some(path) = &renewed {
                // The claim is renewed every three seconds, by a clock that is an hour slow.
                let an_hour_ago = SystemTime::now() - Duration::from_secs(3600);
                let renew = |second: u64| {
                    let time = an_hour_ago + Duration::from_secs(second / 3 * 3);
                    if lives {
                        disk.set_modified(path, time).expect("it is there");
                    }
                };
                let clock = Seconds(Lock::default(), &renew);
                renew(0);
                let refused = claims.refuse_alive(&elsewhere(run), &clock);
                assert_eq!(matches!(refused, Err(ClaimError::Alive { .. })), lives, "run {run}: {refused:?}");
                // None of the older claims is watched.
                assert!(clock.now() <= 4 * HEARTBEAT, "{:?}", clock.now());
            }
            let claim = claims.claim(Generation(0), &elsewhere(run), true, &still).expect("taken over");
            renewed = Some(path(&claim));
        }
    }

    /// Seconds in which nothing happens.
    fn quiet() -> Seconds<'static> {
        Seconds(Lock::default(), &|_| ())
    }

    fn on_disk(disk: &Simulated) -> Claims {
        Claims::new(TierId::GLOBAL, Arc::new(Files(Arc::new(disk.clone()))), Path::new("/global"), "job", "group")
    }

    #[test]
    fn a_run_that_died_on_this_boot_is_not_waited_for_and_one_of_another_boot_is() {
        let root = tempfile::tempdir().expect("a folder");
        let claims = claims(root.path());
        drop(claims.claim(Generation(0), &record(4), false, &quiet()).expect("claimed"));
        for (boot, waits) in [("this", false), ("another", true)] {
            let clock = quiet();
            let me = ClaimRecord { boot: boot.into(), ..record(0) };
            claims.refuse_alive(&me, &clock).expect("its lock is gone, and its time stands still");
            assert_eq!(clock.now() >= 3 * HEARTBEAT, waits, "{boot} boot: {:?}", clock.now());
        }
    }

    #[test]
    fn the_claims_of_the_last_runs_stay_and_older_ones_are_removed() {
        let root = tempfile::tempdir().expect("a folder");
        let claims = claims(root.path());
        for _ in 0..10 {
            let claim = claims.claim(Generation(0), &record(4), false, &quiet()).expect("claimed");
            claims.close(&claim).expect("closed");
        }
        let last: Vec<Generation> = (10 - CLAIMS_KEPT..=10).map(Generation).collect();
        assert_eq!(claims.generations().expect("listed"), last);
        let files = std::fs::read_dir(&claims.directory).expect("listed").count();
        assert_eq!(files, 2 * last.len(), "each with the note that it has ended");
    }

    #[test]
    fn a_number_that_somebody_else_takes_first_is_looked_at_like_any_other() {
        let disk = Simulated::new();
        let claims = on_disk(&disk);
        drop(claims.claim(Generation(0), &record(4), false, &quiet()).expect("claimed"));
        // While the dead run's claim is watched, a tool takes the next number.
        let meanwhile = |second: u64| {
            if second == 5 {
                claims.claim(Generation(0), &record(0), true, &quiet()).expect("claimed");
            }
        };
        let me = ClaimRecord { boot: "another".into(), ..record(4) };
        let claim = claims.claim(Generation(0), &me, false, &Seconds(Lock::default(), &meanwhile)).expect("claimed");
        assert_eq!(claim.generation(), Generation(3));
    }

    #[test]
    fn a_number_that_a_tool_has_used_is_not_given_again() {
        let claims = on_disk(&Simulated::new());
        claims.refuse_alive(&record(0), &quiet()).expect("where no claims are there is no run");
        for used in [5, 3, 5] {
            claims.record_used(Generation(used), &record(0), &quiet()).expect("recorded");
            assert_eq!(claims.generations().expect("listed"), [Generation(5)]);
        }
        let run = claims.claim(Generation(0), &record(4), false, &quiet()).expect("claimed");
        assert_eq!(run.generation(), Generation(6));
    }

    #[test]
    fn a_newer_claim_supersedes_and_one_that_has_vanished_is_made_again() {
        let disk = Simulated::new();
        let (claims, clock) = (on_disk(&disk), quiet());
        let mine = claims.claim(Generation(0), &record(4), false, &clock).expect("claimed");
        disk.lose(&mine.path).expect("it was there");
        claims.check(&mine, &clock).expect("nobody else has it");
        let seen = claims.refuse_alive(&record(0), &clock);
        assert!(matches!(seen, Err(ClaimError::Alive { generation: Generation(1), .. })), "{seen:?}");
        claims.claim(Generation(0), &record(0), true, &clock).expect("taken over");
        let fenced = claims.check(&mine, &clock);
        assert!(
            matches!(fenced, Err(ClaimError::Superseded { ours: Generation(1), by: Generation(2), .. })),
            "{fenced:?}"
        );
    }

    #[test]
    fn a_claim_is_renewed_by_the_time_of_its_file() {
        let root = tempfile::tempdir().expect("a folder");
        let claims = claims(root.path());
        let mine = claims.claim(Generation(0), &record(4), false, &quiet()).expect("claimed");
        let file = std::fs::File::options().write(true).open(&mine.path).expect("opened");
        file.set_modified(SystemTime::UNIX_EPOCH).expect("set");
        claims.renew(&mine).expect("renewed");
        assert!(claims.records.changed(&mine.path).expect("there") > SystemTime::UNIX_EPOCH);
    }

    /// A claim that cannot be read is not a claim that does not exist.
    #[test]
    fn a_store_that_fails_is_an_error_and_never_an_empty_one() {
        let disk = Simulated::new();
        let (claims, clock) = (on_disk(&disk), quiet());
        let mine = claims.claim(Generation(0), &record(4), false, &clock).expect("claimed");
        let tier_error = |result: Result<(), ClaimError>| match result {
            Err(ClaimError::Tier(error)) => error.to_string(),
            other => panic!("{other:?}"),
        };
        let at = |path: &Path, fault, action: &str, call: &dyn Fn() -> Result<(), ClaimError>| {
            disk.inject(path, fault).expect("it is a path");
            let text = tier_error(call());
            assert!(text.contains(action), "{action}: {text}");
            disk.heal(path).expect("it is a path");
        };
        at(&claims.directory, Fault::Dead, "list", &|| claims.refuse_alive(&record(0), &clock));
        at(&mine.path, Fault::Dead, "read", &|| claims.check(&mine, &clock));
        let next = claims.path(Generation(2));
        at(&next, Fault::ReadOnly, "create", &|| claims.claim(Generation(0), &record(4), true, &clock).map(drop));
        let store = |disk: &Simulated| store_id(disk, Path::new("/global"), Incarnation([1; 16]), &clock);
        at(Path::new("/global/store"), Fault::ReadOnly, "create", &|| store(&disk).map(drop).map_err(ClaimError::Tier));
        store(&disk).expect("made");
    }

    /// A clock during whose third sleep somebody else writes `text`.
    struct Meanwhile {
        slept: AtomicU32,
        path: PathBuf,
        text: Vec<u8>,
    }

    impl Clock for Meanwhile {
        fn now(&self) -> Duration {
            Duration::ZERO
        }

        fn sleep(&self, _: Duration) {
            if self.slept.fetch_add(1, Ordering::Relaxed) == 2 {
                std::fs::write(&self.path, &self.text).expect("written");
            }
        }
    }

    /// The maker of a claim locks it and then writes who it is.
    #[test]
    fn a_claim_that_says_nothing_yet_is_asked_again() {
        for (ranks, is_refused) in [(0, false), (4, true)] {
            let root = tempfile::tempdir().expect("a folder");
            let claims = claims(root.path());
            std::fs::create_dir_all(&claims.directory).expect("a folder");
            let path = claims.path(Generation(1));
            std::fs::write(&path, "").expect("written");
            let storage = PosixStorage::new(crate::config::Direct::Off);
            let _lock = storage.try_lock(&path).expect("locks").expect("free");
            let text = serde_json::to_vec(&record(ranks)).expect("text");
            let clock = Meanwhile { slept: AtomicU32::new(0), path, text };
            match claims.refuse_alive(&record(0), &clock) {
                Err(ClaimError::Alive { program, .. }) if is_refused => assert_eq!(program, "4 ranks"),
                outcome => assert!(outcome.is_ok() && !is_refused, "{outcome:?}"),
            }
        }
    }
}
