//! All calls to Bivouac that the example makes: to open, to restart, to take checkpoints, and to follow what becomes of them.
//!
//! [`Checkpoints::restart`] and [`Checkpoints::take`] have what an application needs; the rest of this file prints.
#![forbid(unsafe_code)]

use super::machine::Counters;
use super::options::Options;
use super::ranks;
use super::surroundings::configuration;
use bivouac::{Caches, Level, Pending, Session};
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// The name of the checkpoint series.
const NAME: &str = "graphlets";
/// The region with the counters.
const COUNTERS: &str = "counters";

/// A session, and its checkpoints whose fate is not settled yet.
pub struct Checkpoints {
    session: Session,
    /// The caches through which counters on a device are saved.
    caches: Option<Caches>,
    /// Each with the highest level that was printed.
    pending: Vec<(Pending, Level)>,
    problem: String,
    rank: i32,
}

impl Checkpoints {
    /// Opens the session, and the caches if the counters are on a device. `problem` says what is counted. Collective.
    ///
    /// # Errors
    /// A bad configuration, or any error that Bivouac reports.
    pub fn open(
        world: &SimpleCommunicator,
        options: &Options,
        counters: &Counters,
        problem: String,
    ) -> Result<Checkpoints, Box<dyn Error>> {
        // Not with `?`: a rank that returned here would leave the others waiting for it.
        let session = Session::open_with(world, configuration(options.config.as_deref(), options.dir.as_deref()))?;
        let caches = match counters {
            Counters::Host { .. } => None,
            Counters::Device(machine) => Some(session.caches(Arc::clone(machine.device()))?),
        };
        Ok(Checkpoints { session, caches, pending: Vec::new(), problem, rank: world.rank() })
    }

    /// Loads the newest checkpoint that all ranks can load, and returns the part that comes next; 0 if there is none. Collective.
    ///
    /// # Errors
    /// Any error that the restart reports, or a checkpoint that belongs to another problem.
    pub fn restart(&self, counters: &mut Counters) -> Result<u32, Box<dyn Error>> {
        let mut next = 0;
        let mut found = String::new();
        // The closure may run several times: if any rank finds damage, or rejects the version, all ranks load again,
        // from another copy or an older version. Any other error ends the restart on all ranks.
        let restored = self.session.begin_restore(NAME).run(|r: &mut bivouac::Attempt| -> bivouac::Result<()> {
            found = r.value("problem")?;
            if found != self.problem {
                return Ok(());
            }
            match counters {
                Counters::Host { values, .. } => r.load(COUNTERS, values)?,
                Counters::Device(machine) => {
                    r.load_device::<u32>(COUNTERS, machine.counters(), machine.stream())?;
                }
            }
            next = r.value("next")?;
            Ok(())
        })?;
        let Some(restored) = restored else { return Ok(0) };
        if found != self.problem {
            let ours = &self.problem;
            return Err(format!("the checkpoint is of {found:?}, this run counts {ours:?}: use another --dir").into());
        }
        if self.rank == 0 {
            println!(
                "restored version={} generation={} tier={} seconds={:.3}",
                restored.version,
                restored.generation,
                restored.tier.name(),
                restored.took.as_secs_f64()
            );
        }
        Ok(next)
    }

    /// Captures the counters; they may be changed as soon as this returns. `next` is the part that comes next. Collective.
    ///
    /// A checkpoint that fails is reported and the computation continues: the only cost is that more work is repeated after a
    /// failure.
    pub fn take(&mut self, counters: &Counters, next: u32) {
        let capture = || -> bivouac::Result<Pending> {
            let mut ckpt = self.session.begin_checkpoint(NAME, u64::from(next))?;
            ckpt.value("problem", &self.problem)?;
            ckpt.value("next", &next)?;
            match (counters, &self.caches) {
                (Counters::Device(machine), Some(caches)) => {
                    let mut ckpt = ckpt.with_device(caches, machine.stream());
                    ckpt.save_device::<u32>(COUNTERS, machine.counters())?;
                    ckpt.capture()
                }
                (Counters::Device(_), None) => unreachable!("caches are opened for counters on a device"),
                (Counters::Host { values, .. }, _) => {
                    ckpt.save(COUNTERS, values)?;
                    ckpt.capture()
                }
            }
        };
        match capture() {
            Ok(pending) => self.pending.push((pending, Level::Captured)),
            Err(error) => eprintln!("rank {}: checkpoint {next} was not taken: {error}", self.rank),
        }
    }

    /// Asks, without waiting, how far each checkpoint has come; rank 0 prints each level that is new.
    pub fn follow(&mut self) {
        self.pending.retain_mut(|(pending, told)| {
            let finished = pending.poll();
            let level = pending.level();
            if level > *told {
                *told = level;
                if self.rank == 0 {
                    println!("committed version={} level={level}", pending.version());
                }
            }
            if finished && level == Level::Captured && self.rank == 0 {
                eprintln!("checkpoint {} was not committed: {:?}", pending.version(), pending.verdicts());
            }
            !finished
        });
    }

    /// Waits until all levels of all checkpoints have ended.
    pub fn settle(&mut self) {
        while !self.pending.is_empty() {
            self.follow();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Must the run end early, with a last checkpoint? Collective.
    ///
    /// # Errors
    /// Any error that the session reports.
    pub fn should_exit(&self) -> bivouac::Result<bool> {
        self.session.should_exit()
    }

    /// Waits for all checkpoints, prints on rank 0 what the ranks' files hold, and closes the session. Collective.
    ///
    /// # Errors
    /// Any error that the session reports.
    pub fn close(mut self, world: &SimpleCommunicator) -> Result<(), Box<dyn Error>> {
        self.settle();
        let stats = self.session.stats();
        let told = stats.reduction;
        let figures =
            [told.whole, told.packed, told.shard_bytes, told.stored_bytes, stats.blocked_total.as_micros() as u64];
        let [whole, packed, shards, stored, blocked] = figures.map(|mine| ranks::sum(world, mine));
        if self.rank == 0 {
            println!("checkpoints={} blocked_s={:.3} (all ranks)", stats.captured, blocked as f64 / 1e6);
            println!("files whole={whole} packed={packed} shard_bytes={shards} stored_bytes={stored}");
        }
        drop(self.caches);
        Ok(self.session.close()?)
    }
}
