//! Checkpoints and restarts, timed one by one.

use super::Taken;
use super::scratch::Scratch;
use bivouac_core::base::ids::{Generation, Incarnation};
use bivouac_core::base::rng::Rng;
use bivouac_core::base::units::MIB;
use bivouac_core::comm::threads;
use bivouac_core::config::{AffinityMode, Budget, Config};
use bivouac_core::format::profile::Name;
use bivouac_core::segment::{Segment, SegmentSpec};
use bivouac_core::session::place::{Place, Workers};
use bivouac_core::tier::TierId;
use bivouac_core::{Level, Session};
use rustix::fs::Advice;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The name of the series.
const SERIES: &str = "bench";
/// The minimum and the maximum number of rounds that count. One more round precedes them and makes everything ready.
const ROUNDS: (usize, usize) = (2, 20);
/// The number of parts that share the time: making memory ready and, for each of two directories, writes, restarts from memory and
/// restarts from files.
const PARTS: u32 = 7;
/// Node memory has room for this many checkpoints: the one that is captured, and those whose flushes have not ended.
const SLOTS: u64 = 3;

/// Makes the rounds.
pub struct Rounds {
    data: Vec<u8>,
    /// The time for each part.
    limit: Duration,
    /// The user's configuration, which is used where it concerns the tiers.
    config: Config,
    interrupted: Arc<AtomicBool>,
}

impl Rounds {
    /// Rounds of checkpoints of `size` bytes, within about `time`.
    pub fn new(size: u64, time: Duration, config: &Config, interrupted: Arc<AtomicBool>) -> Rounds {
        // Noise, because storage that compresses would be too fast with other data.
        let mut rng = Rng::new(u64::from(std::process::id()));
        let data = (0..size.div_ceil(8)).flat_map(|_| rng.next_u64().to_le_bytes()).take(size as usize).collect();
        Rounds { data, limit: time / PARTS, config: config.clone(), interrupted }
    }

    fn bytes(&self) -> u64 {
        self.data.len() as u64
    }

    fn check(&self) -> Result<(), String> {
        if self.interrupted.load(Ordering::Relaxed) { Err("interrupted".into()) } else { Ok(()) }
    }

    /// Makes rounds until the time is over; the first one does not count. `round` returns how long each of `N` things took.
    fn timed<const N: usize>(
        &self,
        mut round: impl FnMut(u64) -> Result<[f64; N], String>,
    ) -> Result<[Vec<f64>; N], String> {
        let mut all = [(); N].map(|()| Vec::new());
        let mut begun = Instant::now();
        for number in 0..=ROUNDS.1 {
            self.check()?;
            if number > ROUNDS.0 && begun.elapsed() >= self.limit {
                break;
            }
            let took = round(number as u64 + 1)?;
            match number {
                0 => begun = Instant::now(),
                _ => all.iter_mut().zip(took).for_each(|(all, took)| all.push(took)),
            }
        }
        Ok(all)
    }

    fn taken(&self, name: Name, seconds: Vec<f64>) -> Taken {
        Taken { name, bytes: self.bytes(), seconds }
    }

    /// Measures how fast node memory is made ready, with a new segment in each round.
    pub fn populate(&self) -> Result<Vec<Taken>, String> {
        let folder = Scratch::in_directory(&self.config.node.memory_directory, TierId::MEMORY)?;
        let [seconds] = self.timed(|round| {
            let spec = SegmentSpec {
                directory: folder.path().to_owned(),
                name: format!("populate-{round}"),
                job: 1,
                group: 1,
                generation: Generation(round),
                incarnation: Incarnation([round as u8; 16]),
                store: 0,
                budget: self.bytes() + 64 * MIB,
                node_ranks: 1,
                group_size: 1,
            };
            let segment = Segment::create(&spec).map_err(|error| error.to_string())?;
            let begun = Instant::now();
            let is_there = segment.prepare(self.bytes()).map_err(|error| error.to_string())?;
            let took = begun.elapsed().as_secs_f64();
            segment.close(true).map_err(|error| error.to_string())?;
            if is_there { Ok([took]) } else { Err("there is no room in memory: give a smaller --size".to_owned()) }
        })?;
        Ok(vec![self.taken(Name::Populate, seconds)])
    }

    /// Measures captures, writes and restarts with a tier whose files are in `folder`.
    pub fn tier(&self, tier: TierId, folder: &Path) -> Result<Vec<Taken>, String> {
        let memory = Scratch::in_directory(&self.config.node.memory_directory, TierId::MEMORY)?;
        let (write, read) = match tier {
            TierId::LOCAL => (Name::LocalWrite, Name::LocalRead),
            _ => (Name::GlobalWrite, Name::GlobalRead),
        };
        let mut target = vec![0u8; self.data.len()];
        let session = self.open(tier, folder, Some(memory.path()))?;
        session.prepare(self.bytes());
        let [captures, writes] = self.timed(|version| self.checkpoint(&session, version, tier.level()))?;
        let [restores] = self.timed(|_| Ok([self.restart(&session, TierId::MEMORY, &mut target)?]))?;
        session.close().map_err(|error| error.to_string())?;
        let session = self.open(tier, folder, None)?;
        let [reads] = self.timed(|_| {
            forget(folder)?;
            Ok([self.restart(&session, tier, &mut target)?])
        })?;
        session.close().map_err(|error| error.to_string())?;
        if target != self.data {
            return Err("what was read is not what was written".into());
        }
        let pairs = [(Name::Capture, captures), (write, writes), (read, reads), (Name::Restore, restores)];
        Ok(pairs.map(|(name, seconds)| self.taken(name, seconds)).into())
    }

    /// The seconds from the call until the capture returns, and from then until the checkpoint is durable.
    fn checkpoint(&self, session: &Session, version: u64, level: Level) -> Result<[f64; 2], String> {
        let failed = |error: bivouac_core::session::Error| error.to_string();
        let begun = Instant::now();
        let mut checkpoint = session.begin_checkpoint(SERIES, version).map_err(failed)?;
        checkpoint.save("data", &self.data).map_err(failed)?;
        let pending = checkpoint.capture().map_err(failed)?;
        let captured = begun.elapsed().as_secs_f64();
        let reached = pending.wait(level).map_err(failed)?;
        match reached >= level {
            true => Ok([captured, begun.elapsed().as_secs_f64() - captured]),
            false => {
                let why = pending.verdicts().into_iter().find_map(|(_, verdict)| verdict.reason());
                Err(why.unwrap_or_else(|| format!("the checkpoint reached only level {reached}")))
            }
        }
    }

    /// The seconds from the call until everything is loaded.
    fn restart(&self, session: &Session, from: TierId, target: &mut [u8]) -> Result<f64, String> {
        let restored = session.begin_restore(SERIES).run(|restorer| Ok(restorer.load("data", target)?));
        let restored = restored.map_err(|error| error.to_string())?.ok_or("there is nothing to restore")?;
        match restored.tier == from {
            true => Ok(restored.took.as_secs_f64()),
            false => Err(format!("it was restored from {}, not from {from}", restored.tier.name())),
        }
    }

    fn open(&self, tier: TierId, folder: &Path, memory: Option<&Path>) -> Result<Session, String> {
        let mut config = Config::default();
        let (node, job) = (&self.config.node, &mut config.job);
        job.name = Some("bench".into());
        job.block_bytes = self.config.job.block_bytes;
        job.affinity = AffinityMode::Off;
        (job.memory_enabled, job.memory_required) = (memory.is_some(), memory.is_some());
        (job.local_enabled, job.local_required) = (tier == TierId::LOCAL, tier == TierId::LOCAL);
        (job.global_enabled, job.global_required) = (tier == TierId::GLOBAL, tier == TierId::GLOBAL);
        (job.local.keep_last, job.global.keep_last) = (1, 1);
        job.global_directory = folder.to_owned();
        config.node.local_directory = Some(folder.to_owned());
        config.node.memory_directory = memory.unwrap_or(&node.memory_directory).to_owned();
        config.node.memory_budget = Budget::Bytes(SLOTS * self.bytes() + 64 * MIB);
        (config.node.write_bytes, config.node.writers) = (node.write_bytes, node.writers);
        (config.node.local_direct, config.node.global_direct) = (node.local_direct, node.global_direct);
        let place = Place::here(&config, Workers::Threads, "bench".into()).map_err(|error| error.to_string())?;
        let alone = threads::world(&[0]).remove(0);
        Session::open_on(Box::new(alone), &place, config).map_err(|error| error.to_string())
    }
}

/// Makes the system drop its cache of the files below a folder, so that they are read from storage.
fn forget(folder: &Path) -> Result<(), String> {
    let failed = |path: &Path, error: &dyn std::fmt::Display| format!("cannot read {}: {error}", path.display());
    for entry in std::fs::read_dir(folder).map_err(|error| failed(folder, &error))?.flatten() {
        let path = entry.path();
        let kind = entry.file_type().map_err(|error| failed(&path, &error))?;
        if kind.is_dir() {
            forget(&path)?;
        } else if kind.is_file() {
            let file = std::fs::File::open(&path).map_err(|error| failed(&path, &error))?;
            // A file system that cannot do that reports it; then its cache is measured, too.
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
        }
    }
    Ok(())
}
