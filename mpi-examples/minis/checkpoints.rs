//! Calls to Bivouac: to open, to restart, to mark or copy, and to follow what becomes of the checkpoints. `apps.rs` has the
//! declarations before writes.
#![forbid(unsafe_code)]

use super::apps::{App, Result};
use super::machine::Machine;
use super::options::{How, Options, Way};
use super::surroundings::configuration;
use bivouac::config::{Budget, OffloadMode};
use bivouac::device::DeviceSpan;
use bivouac::{Caches, Level, Offload, OffloadStats, Pending, Session};
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use std::sync::Arc;
use std::time::Duration;

/// The name of the checkpoint series.
const NAME: &str = "minis";

/// A session, and its checkpoints whose fate is not settled yet.
pub struct Checkpoints {
    pending: Vec<Pending>,
    problem: String,
    /// Sizes of a block and of the buffer, in bytes.
    pub block: u64,
    pub buffer: Option<u64>,
    /// What [`Way::Nothing`] saves.
    nothing: DeviceSpan,
    rank: i32,
    // Each must not outlive the next one.
    offload: Arc<Offload>,
    caches: Caches,
    session: Session,
}

impl Checkpoints {
    /// Opens the session and the offload that marks its checkpoints, with node memory for `bytes` bytes. Collective.
    ///
    /// # Errors
    /// A bad configuration, or any error that Bivouac reports.
    pub fn open(
        world: &SimpleCommunicator,
        options: &Options,
        machine: &dyn Machine,
        bytes: u64,
    ) -> Result<Checkpoints> {
        let config = configuration(options.config.as_deref(), options.dir.as_deref()).map(|mut config| {
            if options.measure.is_some() {
                config.job.offload.mode = OffloadMode::Always;
            }
            config
        });
        let (block, buffer) = config.as_ref().map_or((0, None), |config| {
            let buffer = match config.node.offload_buffer {
                Budget::Bytes(bytes) => Some(bytes),
                _ => None,
            };
            (config.job.block_bytes, buffer)
        });
        // Not with `?`: a rank that returned here would leave the others waiting for it.
        let session = Session::open_with(world, config)?;
        let caches = session.caches(Arc::clone(machine.device()))?;
        let offload = Arc::new(session.offload(&caches)?);
        if options.how == How::Mark {
            offload.prepare(bytes)?;
        }
        let problem = format!("{:?} of {} MiB on {} ranks", options.app, options.mib, world.size());
        let nothing = machine.device().allocate(64 << 10)?;
        let (pending, rank) = (Vec::new(), world.rank());
        Ok(Checkpoints { pending, problem, block, buffer, nothing, rank, offload, caches, session })
    }

    /// The offload to which a program declares its writes.
    pub fn offload(&self) -> Arc<Offload> {
        self.offload.clone()
    }

    /// Loads the newest checkpoint that all ranks can load, and returns the step that comes next; 0 if there is none. Collective.
    ///
    /// # Errors
    /// Any error that the restart reports, or a checkpoint that belongs to another problem.
    pub fn restart(&self, app: &mut dyn App, machine: &dyn Machine) -> Result<u64> {
        let (mut next, mut found) = (0, String::new());
        // The closure may run several times: if any rank finds damage, or rejects the version, all ranks load again,
        // from another copy or an older version. Any other error ends the restart on all ranks.
        let restored = self.session.begin_restore(NAME).run(|r: &mut bivouac::Attempt| -> bivouac::Result<()> {
            found = r.value("problem")?;
            if found != self.problem {
                return Ok(());
            }
            for (name, field) in app.fields() {
                r.load_device::<u32>(name, &field, machine.stream())?;
            }
            *app.scalar() = r.value("scalar")?;
            next = r.value("next")?;
            Ok(())
        })?;
        let Some(restored) = restored else { return Ok(0) };
        if found != self.problem {
            let ours = &self.problem;
            return Err(format!("the checkpoint is of {found:?}, this run is {ours:?}: use another --dir").into());
        }
        if self.rank == 0 {
            println!(
                "restored version={} tier={} seconds={:.3}",
                restored.version,
                restored.tier.name(),
                restored.took.as_secs_f64()
            );
        }
        Ok(next)
    }

    /// Takes a checkpoint of what the fields will be once the work that is enqueued has run. Collective.
    ///
    /// # Errors
    /// Any error that Bivouac reports; a program that continues after it loses only a checkpoint.
    pub fn take(&mut self, app: &mut dyn App, machine: &dyn Machine, next: u64, way: Way) -> bivouac::Result<()> {
        let fields = match way {
            Way::Nothing => vec![("nothing", self.nothing.clone())],
            _ => app.fields(),
        };
        let mut checkpoint = self.session.begin_checkpoint(NAME, next)?;
        checkpoint.value("problem", &self.problem)?;
        checkpoint.value("next", &next)?;
        checkpoint.value("scalar", app.scalar())?;
        if way == Way::Full {
            // The region names differ each time, so nothing is known of what the slot holds of them.
            checkpoint.value(&format!("full {next}"), &next)?;
        }
        let mut checkpoint = match way {
            Way::Copy => checkpoint.with_device(&self.caches, machine.stream()),
            _ => checkpoint.with_offload(&self.offload, machine.stream()),
        };
        for (name, field) in &fields {
            checkpoint.save_device::<u32>(name, field)?;
        }
        self.pending.push(checkpoint.capture()?);
        Ok(())
    }

    /// Asks, without waiting, which checkpoints have ended; rank 0 prints what became of them.
    pub fn follow(&mut self) {
        let rank = self.rank;
        self.pending.retain_mut(|pending| {
            let is_over = pending.poll();
            if is_over && rank == 0 {
                match pending.level() {
                    Level::Captured => println!("refused version={}, as the log says", pending.version()),
                    level => println!("committed version={} level={level}", pending.version()),
                }
            }
            !is_over
        });
    }

    /// Waits until all levels of all checkpoints have ended.
    pub fn settle(&mut self) {
        while !self.pending.is_empty() {
            self.follow();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until the checkpoints are in node memory.
    ///
    /// # Errors
    /// If a checkpoint failed: what became of it.
    pub fn commit(&mut self) -> bivouac::Result<()> {
        self.pending.drain(..).try_for_each(|pending| pending.wait(Level::Process).map(|_| ()))
    }

    /// Counters of this rank's marks.
    pub fn stats(&self) -> OffloadStats {
        self.offload.stats()
    }

    /// Waits for all checkpoints, and closes the session. Collective.
    ///
    /// # Errors
    /// Any error that the session reports.
    pub fn close(mut self) -> Result<()> {
        self.settle();
        let Checkpoints { offload, caches, session, rank, .. } = self;
        let (told, stats) = (offload.stats(), session.stats());
        if rank == 0 {
            let OffloadStats { marks, refused, bytes, equal_bytes, doubled_bytes, urgent_bytes, .. } = told;
            println!(
                "checkpoints={} marks={marks} refused={refused} bytes={bytes} equal={equal_bytes} doubled={doubled_bytes} urgent={urgent_bytes}",
                stats.captured
            );
        }
        drop((offload, caches));
        Ok(session.close()?)
    }
}
