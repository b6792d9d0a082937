//! Summarizes many plays.

use super::Played;
use crate::base::rng::Rng;
use crate::policy::intervals::LEVELS_MAX;

/// The seed of one of many runs. Each run has its own stream of random numbers, whichever thread plays it and in whichever order.
pub fn seed_of(seed: u64, run: u64) -> u64 {
    Rng::new(seed ^ Rng::new(run).next_u64()).next_u64()
}

/// How a number is spread over the runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// Its standard error.
    pub error: f64,
    /// The values at or below which 5, 50 and 95 % of the runs are.
    pub percentiles: [f64; 3],
}

impl Spread {
    /// Returns the spread of these numbers; all its fields are 0 if there are none.
    ///
    /// ```
    /// use bivouac_core::planner::play::Spread;
    /// let spread = Spread::of((0..=100).map(f64::from).collect());
    /// assert_eq!((spread.mean, spread.percentiles), (50.0, [5.0, 50.0, 95.0]));
    /// ```
    pub fn of(mut all: Vec<f64>) -> Spread {
        if all.is_empty() {
            return Spread { mean: 0.0, error: 0.0, percentiles: [0.0; 3] };
        }
        let count = all.len() as f64;
        let mean = all.iter().sum::<f64>() / count;
        let squares = all.iter().map(|one| (one - mean).powi(2)).sum::<f64>();
        let error = if count > 1.0 { (squares / (count - 1.0) / count).sqrt() } else { f64::INFINITY };
        all.sort_by(f64::total_cmp);
        let at = |share: f64| all[((count - 1.0) * share).round() as usize];
        Spread { mean, error, percentiles: [0.05, 0.5, 0.95].map(at) }
    }
}

/// The summary of many plays of one setting. Shares are shares of the time. Arrays by level have the order of
/// [`Setting::levels`](super::Setting::levels).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The number of runs.
    pub runs: usize,
    /// The share of the time that was spent on work that was kept.
    pub efficiency: Spread,
    /// The share in which the program stood still for checkpoints or was slowed down by them.
    pub checkpoints: f64,
    /// The share in which the program waited for room, for nodes or for the next job.
    pub waiting: f64,
    /// The share of work that was undone, by the level that the failure needed.
    pub rework: [f64; LEVELS_MAX],
    /// The share that recoveries took, likewise.
    pub recovering: [f64; LEVELS_MAX],
    /// The mean number of failures in a run, likewise.
    pub failures: [f64; LEVELS_MAX],
    /// The share of runs in which everything in node memory and on the nodes was lost or unusable at least once.
    pub lost_all: f64,
    /// The share of the time in which one more lost node would have been beyond what nodes keep for each other.
    pub exposed: f64,
}

impl Summary {
    /// Summarizes these plays, in this order.
    pub fn of(plays: &[Played]) -> Summary {
        let runs = plays.len().max(1) as f64;
        let mean = |of: &dyn Fn(&Played) -> f64| plays.iter().map(of).sum::<f64>() / runs;
        let by_level = |of: &dyn Fn(&Played, usize) -> f64| std::array::from_fn(|level| mean(&|play| of(play, level)));
        Summary {
            runs: plays.len(),
            efficiency: Spread::of(plays.iter().map(Played::efficiency).collect()),
            checkpoints: mean(&|play| play.checkpoints / play.time),
            waiting: mean(&|play| play.waiting / play.time),
            rework: by_level(&|play, level| play.rework[level] / play.time),
            recovering: by_level(&|play, level| play.recovering[level] / play.time),
            failures: by_level(&|play, level| play.failures[level] as f64),
            lost_all: mean(&|play| f64::from(u8::from(play.lost_all > 0))),
            exposed: mean(&|play| play.exposed / play.time),
        }
    }
}
