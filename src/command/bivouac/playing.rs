//! What `bivouac plan` adds to the closed form: redundancy schemes side by side, jobs that are played, and warnings.
#![forbid(unsafe_code)]

use crate::output::table;
use bivouac_core::Level;
use bivouac_core::base::sync::Lock;
use bivouac_core::base::threads::in_threads;
use bivouac_core::config::Scheme;
use bivouac_core::planner::machine::Capture;
use bivouac_core::planner::play::{Played, Setting, Summary, play, seed_of};
use bivouac_core::planner::{Machine, protection};
use bivouac_core::policy::intervals::{Best, LevelCosts, best, merged};
use serde::Serialize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const DAY: f64 = 86_400.0;
/// What is asked.
#[derive(clap::Args)]
pub struct Options {
    /// The scheme that protects against the loss of nodes: none, "partner(1)", "xor(8)", "rs(4,2)", or all to compare them
    #[arg(long, value_name = "SCHEME", value_parser = schemes)]
    scheme: Option<Schemes>,
    /// How checkpoints leave the GPUs: copied while the program is stopped, copied inside the GPU first, or marked
    #[arg(long, value_name = "HOW")]
    capture: Option<How>,
    /// Simulate this many jobs, failure by failure
    #[arg(long, value_name = "RUNS", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    simulate: Option<u64>,
    /// The length of each simulated job
    #[arg(long, value_name = "TIME", default_value = "30d", requires = "simulate", value_parser = super::plan::time)]
    duration: Duration,
    /// The seed of the random numbers; the same seed gives the same answer
    #[arg(long, value_name = "S", default_value_t = 1, requires = "simulate")]
    seed: u64,
    /// The number of threads for the simulation; it does not affect the answer [default: one for each core]
    #[arg(long, value_name = "N", requires = "simulate", value_parser = clap::value_parser!(u64).range(1..=1024))]
    threads: Option<u64>,
}

/// The schemes to plan with.
#[derive(Clone, Copy)]
enum Schemes {
    All,
    One(Scheme),
}

/// How checkpoints come to node memory.
#[derive(Clone, Copy, clap::ValueEnum)]
enum How {
    Blocking,
    Cached,
    Marked,
}

fn schemes(text: &str) -> Result<Schemes, String> {
    if text.trim() == "all" {
        return Ok(Schemes::All);
    }
    text.parse().map(Schemes::One).map_err(|error| format!("{error}, or all"))
}

/// A plan for a machine.
pub struct Planned {
    /// The machine with the scheme of this plan.
    pub machine: Machine,
    /// The levels of the plan, ascending.
    pub names: Vec<Level>,
    /// What the levels cost.
    pub costs: Vec<LevelCosts>,
    /// The best pattern.
    pub found: Best,
    /// The share of the time in which captures wait for room in node memory, which the closed form does not count.
    waiting: f64,
    played: Option<Summary>,
}

impl Planned {
    /// The share of the time that is work, taken from the played jobs if there are any.
    fn efficiency(&self) -> f64 {
        let planned = self.found.efficiency * (1.0 - self.waiting);
        self.played.map_or(planned, |played| played.efficiency.mean)
    }

    /// The position of a level in the pattern.
    fn place(&self, level: Level) -> Option<usize> {
        self.found.pattern.levels.iter().position(|(at, _)| self.names[*at] == level)
    }
}

/// Makes a plan for each scheme that is asked for; the best comes first. If nothing fails, there is no plan. `levels` says what the
/// levels of a machine cost.
pub fn planned(
    machine: Machine,
    levels: &dyn Fn(&Machine) -> Vec<(Level, LevelCosts)>,
    options: &Options,
) -> Vec<Planned> {
    let machine = captured(machine, options.capture);
    let schemes: Vec<Scheme> = match options.scheme {
        None => vec![machine.scheme],
        Some(Schemes::One(scheme)) => vec![scheme],
        Some(Schemes::All) => protection::SCHEMES.to_vec(),
    };
    let plan = |scheme: Scheme| {
        let mut machine = Machine { scheme, ..machine.clone() };
        // A checkpoint that finds no room in node memory is written to a file while the program is stopped.
        machine.is_behind &= machine.versions() >= 2;
        let levels = levels(&machine);
        let (names, costs): (Vec<Level>, Vec<LevelCosts>) = levels.iter().copied().unzip();
        let found = best(&costs, machine.always(), machine.conduct())?;
        let setting = Setting::of_machine(&machine, &levels, &found.pattern, options.duration.as_secs_f64());
        let waiting = setting.waiting_share();
        let played = options.simulate.map(|runs| Summary::of(&played(&setting, runs, options)));
        Some(Planned { machine, names, costs, found, waiting, played })
    };
    let mut plans: Vec<Planned> = schemes.into_iter().filter_map(plan).collect();
    plans.sort_by(|one, other| other.efficiency().total_cmp(&one.efficiency()));
    plans
}

/// The numbers are guesses, except for those measured inside one GPU (`benches/README.md`).
fn captured(mut machine: Machine, how: Option<How>) -> Machine {
    machine.capture = match how {
        None => machine.capture,
        Some(How::Blocking) => Capture::Blocking,
        Some(How::Cached) => Capture::Cached { rate: 1.1e12 * machine.gpus as f64 },
        Some(How::Marked) => Capture::Marked { fixed: 0.01, stalls: 0.05 },
    };
    machine
}

/// Plays all runs. The results are in the order of the runs, whichever thread played them.
fn played(setting: &Setting, runs: u64, options: &Options) -> Vec<Played> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let threads = options.threads.unwrap_or(cores).min(runs) as usize;
    let next = AtomicU64::new(0);
    let all: Lock<Vec<(u64, Played)>> = Lock::default();
    in_threads(threads, "bvk-play", || {
        let mut mine = Vec::new();
        loop {
            let run = next.fetch_add(1, Ordering::Relaxed);
            if run >= runs {
                break;
            }
            mine.push((run, play(setting, seed_of(options.seed, run))));
        }
        all.lock().extend(mine);
    });
    let mut all = std::mem::take(&mut *all.lock());
    all.sort_by_key(|(run, _)| *run);
    all.into_iter().map(|(_, played)| played).collect()
}

/// A scheme in a comparison with others.
#[derive(Serialize)]
pub struct SchemeView {
    scheme: String,
    efficiency: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    efficiency_played: Option<f64>,
    /// Includes the time in which captures wait for room in node memory; taken from the played jobs if there are any.
    lost_h_per_day: f64,
    waiting: f64,
    /// The node memory that a version takes, and the part of it that is kept for other nodes.
    version_bytes: f64,
    parity_bytes: f64,
    /// The bytes that a node sends for a protected checkpoint.
    traffic_bytes: f64,
    /// One in this many checkpoints is protected; `null`: none is, because protection does not pay or protects nothing here.
    every: Option<u64>,
}

impl SchemeView {
    fn of(plan: &Planned) -> SchemeView {
        let (machine, state) = (&plan.machine, plan.machine.state);
        SchemeView {
            scheme: machine.scheme.to_string(),
            efficiency: plan.found.efficiency,
            efficiency_played: plan.played.map(|played| played.efficiency.mean),
            lost_h_per_day: (1.0 - plan.efficiency()) * 24.0,
            waiting: plan.waiting,
            version_bytes: machine.version_bytes(),
            parity_bytes: state * protection::memory_share(machine.scheme),
            traffic_bytes: state * protection::traffic_share(machine.scheme),
            every: plan.place(Level::NodeLoss).map(|at| plan.found.pattern.every()[at]),
        }
    }
}

/// What the failures that need a level cost in the played jobs.
#[derive(Serialize)]
struct LossView {
    level: &'static str,
    failures_per_run: f64,
    /// Shares of the time.
    rework: f64,
    recovery: f64,
}

/// Jobs that were played.
#[derive(Serialize)]
pub struct PlayedView {
    runs: usize,
    seed: u64,
    days: f64,
    efficiency: f64,
    standard_error: f64,
    /// The 5, 50 and 95 % percentiles of the efficiency.
    percentiles: [f64; 3],
    checkpoints: f64,
    waiting: f64,
    levels: Vec<LossView>,
    /// The probability that a run loses everything in memory and on the nodes at least once.
    lost_all: f64,
    /// The share of the time in which the loss of one more node would have exceeded what nodes keep for each other.
    unprotected: f64,
}

/// What this module adds to a plan.
#[derive(Serialize)]
pub struct View {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    schemes: Vec<SchemeView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<PlayedView>,
    warnings: Vec<String>,
}

impl View {
    /// The view of all plans, of which the first is shown.
    pub fn of(plans: &[Planned], options: &Options) -> View {
        let schemes = if options.scheme.is_some() { plans.iter().map(SchemeView::of).collect() } else { Vec::new() };
        let first = &plans[0];
        let simulated = first.played.map(|played| {
            let levels = first.found.pattern.levels.iter().enumerate().map(|(at, (level, _))| LossView {
                level: first.names[*level].name(),
                failures_per_run: played.failures[at],
                rework: played.rework[at],
                recovery: played.recovering[at],
            });
            PlayedView {
                runs: played.runs,
                seed: options.seed,
                days: options.duration.as_secs_f64() / DAY,
                efficiency: played.efficiency.mean,
                standard_error: if played.runs > 1 { played.efficiency.error } else { 0.0 },
                percentiles: played.efficiency.percentiles,
                checkpoints: played.checkpoints,
                waiting: played.waiting,
                levels: levels.collect(),
                lost_all: played.lost_all,
                unprotected: played.exposed,
            }
        });
        View { schemes, simulated, warnings: warnings(first) }
    }

    /// The view as text for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        if !self.schemes.is_empty() {
            text += &format!("\n{}", compared(&self.schemes));
        }
        if let Some(simulated) = &self.simulated {
            text += &format!("\n{}", simulated.text());
        }
        for warning in &self.warnings {
            text += &format!("Warning: {warning}\n");
        }
        text
    }

    /// Keys of the configuration for the plan that is shown.
    pub fn keys(plan: &Planned) -> String {
        match (plan.machine.scheme, plan.place(Level::NodeLoss)) {
            (Scheme::None, _) => String::new(),
            (scheme, Some(at)) => {
                format!("\n[redundancy]\nscheme = \"{scheme}\"\nevery = {}\n", plan.found.pattern.every()[at])
            }
            (scheme, None) => format!("\n# {scheme} does not pay here.\n[redundancy]\nscheme = \"none\"\n"),
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

fn gib(bytes: f64) -> String {
    format!("{:.1} GiB", bytes / (1u64 << 30) as f64)
}

fn compared(schemes: &[SchemeView]) -> String {
    let heads =
        ["scheme", "work", "simulated", "waiting", "lost per day", "per version", "for others", "sent", "every"];
    let row = |view: &SchemeView| {
        vec![
            view.scheme.clone(),
            percent(view.efficiency),
            view.efficiency_played.map_or("-".to_owned(), percent),
            percent(view.waiting),
            format!("{:.2} h", view.lost_h_per_day),
            gib(view.version_bytes),
            gib(view.parity_bytes),
            gib(view.traffic_bytes),
            view.every.map_or("-".to_owned(), |every| every.to_string()),
        ]
    };
    let rows: Vec<Vec<String>> = schemes.iter().map(row).collect();
    table(&heads, &[1, 2, 3, 4, 5, 6, 7, 8], &rows)
}

impl PlayedView {
    fn text(&self) -> String {
        let [low, middle, high] = self.percentiles.map(percent);
        let mut text = format!(
            "Simulated {} times {} (seed {}): {} +- {} of the time is work; percentiles 5, 50 and 95: {low}, {middle}, {high}.\n",
            self.runs,
            super::plan::seconds(self.days * DAY),
            self.seed,
            percent(self.efficiency),
            percent(self.standard_error),
        );
        let row = |view: &LossView| {
            let failures = format!("{:.1}", view.failures_per_run);
            vec![view.level.to_owned(), failures, percent(view.rework), percent(view.recovery)]
        };
        let rows: Vec<Vec<String>> = self.levels.iter().map(row).collect();
        text += &table(&["needed", "failures per run", "rework", "recovering"], &[1, 2, 3], &rows);
        text += &format!("Checkpoints took {}, waiting {}. ", percent(self.checkpoints), percent(self.waiting));
        text += &format!(
            "Everything in memory and on the nodes was lost in {} of the runs; for {} of the time, one more lost node would have had that \
             effect.\n",
            percent(self.lost_all),
            percent(self.unprotected),
        );
        text
    }
}

/// Warnings for the user who plans.
fn warnings(plan: &Planned) -> Vec<String> {
    let Planned { machine, names, found, waiting, .. } = plan;
    let mut warnings = Vec::new();
    if let Some(memory) = machine.memory
        && machine.versions() < 2
    {
        warnings.push(format!(
            "node memory is too small: checkpoints may take {}, and two versions of {} are needed ({} of state, {} for other nodes); captures that \
             find no room are written to files while the program stands still, as this plan supposes",
            gib(memory),
            gib(machine.version_bytes()),
            gib(machine.state),
            gib(machine.version_bytes() - machine.state),
        ));
    }
    if *waiting > 0.001 {
        warnings.push(format!(
            "node memory has room for only {} versions: captures wait for flushes {} of the time, which --simulate counts, but the plan \
             does not",
            machine.versions(),
            percent(*waiting),
        ));
    }
    let used = merged(&plan.costs, &found.pattern);
    let failures: f64 = used.iter().map(|level| level.rate).sum();
    for (at, ((level, _), interval)) in found.pattern.levels.iter().zip(found.pattern.intervals()).enumerate() {
        let (costs, name) = (&used[at], names[*level].name());
        let delay = costs.delay(interval);
        let wanted = (2.0 * costs.cost(interval) / costs.rate).sqrt();
        if delay > 0.0 && delay > wanted {
            warnings.push(format!(
                "a checkpoint of level {name} counts only after {delay:.0} s, but its failures would require the next one after \
                 {wanted:.0} s"
            ));
        }
        let arrives = (-delay * failures).exp();
        if machine.is_behind && arrives < 0.75 {
            warnings.push(format!(
                "only {} of the copies to level {name} arrive: they take {delay:.0} s, and failures interrupt them",
                percent(arrives)
            ));
        }
    }
    if machine.scheme != Scheme::None && !names.contains(&Level::NodeLoss) {
        warnings.push(format!("{} would not survive the loss of a node here: there are too few nodes", machine.scheme));
    }
    warnings
}
