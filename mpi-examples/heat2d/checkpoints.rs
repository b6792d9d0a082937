//! All calls to Bivouac that the example makes: to open, to restart, to take checkpoints, and to follow what becomes of them.
//!
//! [`restart`] and [`Checkpoints::take`] have what an application needs; the rest of this file prints.
#![forbid(unsafe_code)]

use super::options::Options;
use super::plate::{Decomposition, Field};
use super::surroundings::configuration;
use bivouac::{Boxes, Level, Pending, Session};
use mpi::topology::SimpleCommunicator;
use std::collections::VecDeque;
use std::error::Error;

/// The name of the checkpoint series.
const NAME: &str = "heat";
/// This many unsettled checkpoints are followed; nothing more is printed about older ones.
const FOLLOWED: usize = 16;

/// Opens the session; collective.
///
/// # Errors
/// A bad configuration, or any error that `Session::open` reports.
pub fn open(world: &SimpleCommunicator, options: &Options) -> Result<Session, Box<dyn Error>> {
    // A configuration with a mistake is passed on, and all ranks learn whose it is: a rank that returned here would keep
    // the others waiting.
    Ok(Session::open_with(world, configuration(options.config.as_deref(), options.dir.as_deref()))?)
}

/// Says which cells of the plate this rank owns, so that a checkpoint can be restored on any number of ranks; collective. Rows come before columns, and
/// each block has a ring of one cell around it in memory.
///
/// # Errors
/// Any error that `Session::decompose` reports.
pub fn decompose(session: &Session, cut: &Decomposition, rank: i32) -> bivouac::Result<bivouac::Decomposition> {
    let block = cut.block(rank as usize);
    let plate = Boxes::of([cut.grid.ny as u64, cut.grid.nx as u64]);
    let own = plate.own([block.y.start as u64, block.x.start as u64], [block.y.len() as u64, block.x.len() as u64]);
    session.decompose(own.halo([1, 1]))
}

/// Loads the newest checkpoint that all ranks can load, and returns its step; 0 if there is none. Collective.
///
/// # Errors
/// Any error that the restart reports, or a checkpoint that belongs to another problem.
pub fn restart(
    session: &Session,
    (field, blocks): (&mut Field, &bivouac::Decomposition),
    problem: &str,
    rank: i32,
    verbose: bool,
) -> Result<u64, Box<dyn Error>> {
    let mut step = 0u64;
    let mut found = String::new();
    // The closure may run several times: if any rank finds damage, or rejects the version, all ranks load again, from
    // another copy or an older version. Any other error ends the restart on all ranks.
    let restored = session.begin_restore(NAME).run(|r: &mut bivouac::Attempt| -> bivouac::Result<()> {
        r.load_on("temperature", blocks, &mut field.now.cells)?;
        step = r.shared("step")?;
        found = r.shared("problem")?;
        Ok(())
    })?;
    let Some(restored) = restored else {
        return Ok(0);
    };
    if rank == 0 {
        println!(
            "restored version={} generation={} tier={} seconds={:.3}",
            restored.version,
            restored.generation,
            restored.tier.name(),
            restored.took.as_secs_f64()
        );
    }
    if verbose {
        println!(
            "rank={rank} loaded bytes={} tier={} seconds={:.6}",
            restored.bytes,
            restored.tier.name(),
            restored.took.as_secs_f64()
        );
    }
    if found != problem {
        return Err(format!(
            "the checkpoint is of the problem {found:?}, this run computes {problem:?}: use another --dir"
        )
        .into());
    }
    Ok(step)
}

/// The checkpoints of a run whose fate is not settled yet.
#[derive(Default)]
pub struct Checkpoints {
    pending: VecDeque<Followed>,
}

struct Followed {
    version: u64,
    /// The highest level that was printed.
    told: Level,
    pending: Pending,
}

impl Checkpoints {
    /// Captures the field; it may be changed as soon as this returns. Collective.
    ///
    /// A checkpoint that fails is reported and the computation continues: the only cost is that more work
    /// is repeated after a failure.
    pub fn take(
        &mut self,
        session: &Session,
        (field, blocks): (&Field, &bivouac::Decomposition),
        step: u64,
        problem: &str,
        rank: i32,
    ) {
        let capture = || -> bivouac::Result<Pending> {
            let mut ckpt = session.begin_checkpoint(NAME, step)?;
            ckpt.save_on("temperature", blocks, &field.now.cells)?;
            ckpt.shared("step", &step)?;
            ckpt.shared("problem", &problem)?;
            ckpt.capture()
        };
        match capture() {
            Ok(pending) => self.pending.push_back(Followed { version: step, told: Level::Captured, pending }),
            Err(error) => eprintln!("rank {rank}: checkpoint {step} was not taken: {error}"),
        }
        while self.pending.len() > FOLLOWED {
            self.pending.pop_front();
        }
    }

    /// Waits until the newest checkpoint has reached a level.
    pub fn wait(&mut self, level: Level, rank: i32) {
        if let Some(newest) = self.pending.back_mut()
            && let Err(error) = newest.pending.wait(level)
        {
            eprintln!("rank {rank}: checkpoint {} did not reach level {level}: {error}", newest.version);
        }
        self.follow(rank);
    }

    /// Asks, without waiting, how far each checkpoint has come; rank 0 prints each level that is new.
    ///
    /// All ranks call this between steps. It moves the protocol along where no thread does (`engine.progress = "stepped"`).
    pub fn follow(&mut self, rank: i32) {
        self.pending.retain_mut(|followed| {
            let finished = followed.pending.poll();
            let level = followed.pending.level();
            if level > followed.told {
                followed.told = level;
                if rank == 0 {
                    println!("committed version={} level={level}", followed.version);
                }
            }
            if finished && level == Level::Captured && rank == 0 {
                eprintln!("checkpoint {} was not committed: {:?}", followed.version, followed.pending.verdicts());
            }
            !finished
        });
    }
}
