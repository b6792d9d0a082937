//! `bivouac plan`: how often a job should take checkpoints at which level, by the model of [`bivouac_core::policy::intervals`] and
//! a machine described in numbers. With `--figure`, the command draws figures of a paper by the same model. `figures`, `measured`
//! and `losses` are pure.
#![forbid(unsafe_code)]

mod figures;
mod losses;
mod measured;
mod own;

use crate::ending::Ending;
use crate::output::{SCHEMA, complain, print, print_json, table};
use crate::playing::{self, Planned};
use bivouac_core::Level;
use bivouac_core::base::units::{parse_bytes, parse_duration};
use bivouac_core::planner::Machine;
use bivouac_core::policy::intervals::{LevelCosts, Waste, efficiency, first_order, merged};
use figures::Figure;
use own::Known;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The arguments of `bivouac plan`.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  bivouac plan --preset node-8gpu --nodes 512 --state \"200 GiB\"
  bivouac plan --preset node-8gpu --nodes 512 --mtbf 6h
  bivouac plan --preset node-8gpu --nodes 512 --config >> bivouac.toml
  bivouac plan --preset ics19-3.6ef-16 --json
  bivouac plan --profile machine.toml --state \"20 GiB\" --run-directory run
  bivouac plan --preset node-8gpu --nodes 512 --svg losses.svg
  bivouac plan --preset node-8gpu --nodes 4096 --scheme all --simulate 200 --seed 7
  bivouac plan --figure all --out figures

For each level that pays off, the command prints the time between two checkpoints at that level, the N in \"every Nth
checkpoint goes there\", and the share of the time that the level costs, broken down by cause (to first order). It then
prints the share of the time that is work, according to the exact model, and how this share changes if failures or costs
differ. The numbers of the presets are from the paper or are guesses, except for the capture rate of node-8gpu, so give
your own numbers.

With --scheme all, the command lists the redundancy schemes, from the best to the worst, and prints the plan for the
best one. With --simulate, it simulates jobs failure by failure, with effects that the model leaves out;
docs/PLANNING.md names these effects.

--profile takes measurements from `bivouac bench` and from sessions with plan.profile. Numbers that the profile lacks
come from --preset (laptop, unless you name one), and are named. How often the job fails is estimated, with a range of
uncertainty, from what the profile and --run-directory say about failed attempts. \"Your own numbers\" in
docs/PLANNING.md shows how.

--svg plots the loss against the time between checkpoints, with the counts of the plan. --figure uses the model to draw
figures from the paper \"GPU Snapshot\" by Lee et al. (ICS'19); docs/PLANNING.md says which numbers come from the
paper and which from measurements.

Exit status: 0 done; 2 wrong usage, or a file could not be read or written.")]
pub struct Args {
    /// The name of a preset machine [default: node-8gpu; with --profile: laptop]
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// The measurements of a machine: a file that `bivouac bench` or a session has written
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// The directory in which `bivouac run` has recorded the job's attempts
    #[arg(long, value_name = "DIR")]
    run_directory: Option<PathBuf>,
    /// The number of nodes
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    nodes: Option<u64>,
    /// How much data a node saves, such as "200 GiB"
    #[arg(long, value_name = "SIZE", value_parser = size)]
    state: Option<u64>,
    /// The mean time, such as 6h, between two failures of any kind, over all nodes together
    #[arg(long, value_name = "TIME", value_parser = time)]
    mtbf: Option<Duration>,
    /// The time, such as 30s, from a failure until the program has been started again, before it loads anything
    #[arg(long, value_name = "TIME", value_parser = time)]
    relaunch: Option<Duration>,
    /// Print the keys for bivouac.toml
    #[arg(long, conflicts_with = "json")]
    config: bool,
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
    /// Plot the loss against the time between checkpoints into an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Draw figures from the paper instead of planning, each as SVG and CSV
    #[arg(long, requires = "out", conflicts_with_all = ["preset", "profile", "run_directory", "nodes", "state", "mtbf", "relaunch", "config", "json", "svg", "scheme", "capture", "simulate", "duration"])]
    figure: Option<Figure>,
    /// The folder for the figures; it is created if missing
    #[arg(long, value_name = "DIR", requires = "figure")]
    out: Option<PathBuf>,
    #[command(flatten)]
    playing: playing::Options,
}

fn size(text: &str) -> Result<u64, String> {
    parse_bytes(text)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "give a size greater than 0, such as \"200 GiB\"".to_owned())
}

pub fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text).filter(|time| !time.is_zero());
    time.ok_or_else(|| "give a time greater than 0, such as 6h".to_owned())
}

/// A level that the plan uses.
#[derive(Serialize)]
struct LevelView {
    level: &'static str,
    /// Seconds of work between two checkpoints of this level.
    interval_s: f64,
    every: u64,
    blocking_s: f64,
    latency_s: f64,
    recovery_s: f64,
    failures_per_s: f64,
    /// Shares of the time.
    checkpoints: f64,
    rework: f64,
    recovery: f64,
}

/// The efficiency if something is half of what was assumed, or twice as much.
#[derive(Serialize)]
struct Around {
    failures: [f64; 2],
    costs: [f64; 2],
}

#[derive(Serialize)]
struct View {
    schema: u32,
    machine: String,
    nodes: u64,
    state_bytes: f64,
    mtbf_s: f64,
    efficiency: f64,
    efficiency_first_order: f64,
    levels: Vec<LevelView>,
    /// Levels that the machine has but that are not worth their cost.
    left_out: Vec<&'static str>,
    same_intervals: Around,
    #[serde(flatten)]
    playing: playing::View,
    #[serde(flatten)]
    own: own::View,
}

/// Runs `bivouac plan`.
pub fn run(args: &Args) -> Ending {
    if let (Some(figure), Some(folder)) = (args.figure, &args.out) {
        return ended(write_figures(figure, folder));
    }
    let known = match Known::of(args) {
        Ok(known) => known,
        Err(text) => return ended(Err(text)),
    };
    let machine = asked_for(known.machine.clone(), args);
    let plans = playing::planned(machine, &|machine| known.levels(machine), &args.playing);
    let Some(plan) = plans.first() else {
        complain("nothing fails on that machine, so no checkpoint pays");
        return Ending::Trouble;
    };
    let own = known.view(&plan.machine, &plan.found, args.mtbf.is_some());
    let view = View::of(plan, playing::View::of(&plans, &args.playing), own);
    let drawn = args.svg.as_ref().map(|path| write_losses(path, plan, &view));
    match (args.json, args.config) {
        (true, _) => print_json(&view),
        (_, true) => print(&(keys(&view) + &playing::View::keys(plan))),
        _ => print(&text(&view)),
    }
    ended(drawn.unwrap_or(Ok(())))
}

/// The ending of the command; an error is complained about.
fn ended(outcome: Result<(), String>) -> Ending {
    match outcome {
        Ok(()) => Ending::Good,
        Err(text) => {
            complain(&text);
            Ending::Trouble
        }
    }
}

/// Writes an SVG file and a CSV file for each picture, and prints their names.
fn write_figures(figure: Figure, folder: &Path) -> Result<(), String> {
    std::fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    for picture in figures::pictures(figure) {
        let svg = picture.svg().map_err(|error| format!("cannot draw {}: {error}", picture.file))?;
        for (extension, text) in [("svg", svg), ("csv", picture.csv())] {
            let path = folder.join(format!("{}.{extension}", picture.file));
            write(&path, &text)?;
            print(&format!("{}\n", path.display()));
        }
    }
    Ok(())
}

fn write_losses(path: &Path, plan: &Planned, view: &View) -> Result<(), String> {
    let title = format!("{}: {} of the time is work", job(view), percent(view.efficiency));
    let svg = losses::picture(&plan.costs, &plan.found, plan.machine.conduct(), title).svg();
    write(path, &svg.map_err(|error| format!("cannot draw {}: {error}", path.display()))?)
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

/// Applies the options that change the machine.
fn asked_for(mut machine: Machine, args: &Args) -> Machine {
    machine.nodes = args.nodes.unwrap_or(machine.nodes);
    machine.state = args.state.map_or(machine.state, |bytes| bytes as f64);
    machine.relaunch = args.relaunch.map_or(machine.relaunch, |time| time.as_secs_f64());
    match args.mtbf {
        Some(mtbf) => machine.failing_each(mtbf.as_secs_f64()),
        None => machine,
    }
}

impl View {
    fn of(Planned { machine, names, costs, found, .. }: &Planned, playing: playing::View, own: own::View) -> View {
        let (used, intervals) = (merged(costs, &found.pattern), found.pattern.intervals());
        let levels =
            found.pattern.levels.iter().zip(found.pattern.every()).enumerate().map(|(at, ((index, _), every))| {
                let waste = Waste::of(&used[at], intervals[at]);
                LevelView {
                    level: names[*index].name(),
                    interval_s: intervals[at],
                    every,
                    blocking_s: used[at].fixed + used[at].blocking,
                    latency_s: used[at].latency,
                    recovery_s: used[at].recovery,
                    failures_per_s: used[at].rate,
                    checkpoints: waste.checkpoints,
                    rework: waste.rework,
                    recovery: waste.recovery,
                }
            });
        let is_used = |at: usize| found.pattern.levels.iter().any(|(index, _)| *index == at);
        let left_out = (0..names.len()).filter(|at| !is_used(*at)).map(|at| names[at].name());
        let with = |change: &dyn Fn(LevelCosts) -> LevelCosts| {
            efficiency(&costs.iter().copied().map(change).collect::<Vec<_>>(), &found.pattern, machine.conduct())
        };
        let failures = |times: f64| with(&|level| LevelCosts { rate: level.rate * times, ..level });
        let costly = |times: f64| {
            with(&|level| LevelCosts {
                fixed: level.fixed * times,
                blocking: level.blocking * times,
                latency: level.latency * times,
                ..level
            })
        };
        View {
            schema: SCHEMA,
            machine: machine.name.clone(),
            nodes: machine.nodes,
            state_bytes: machine.state,
            mtbf_s: 1.0 / machine.failure_rate(),
            efficiency: found.efficiency,
            efficiency_first_order: 1.0 - first_order(&used).iter().map(Waste::total).sum::<f64>(),
            levels: levels.collect(),
            left_out: left_out.collect(),
            same_intervals: Around { failures: [0.5, 2.0].map(failures), costs: [0.5, 2.0].map(costly) },
            playing,
            own,
        }
    }
}

/// Formats seconds for people.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        short if short < 100.0 => format!("{short:.1} s"),
        minutes if minutes < 100.0 * 60.0 => format!("{:.1} min", minutes / 60.0),
        hours if hours < 100.0 * 3600.0 => format!("{:.1} h", hours / 3600.0),
        days => format!("{:.1} days", days / 86_400.0),
    }
}

fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// The job and the machine that the plan is made for, as text.
fn job(view: &View) -> String {
    let (nodes, gib) = (view.nodes, view.state_bytes / (1u64 << 30) as f64);
    let plural = if nodes == 1 { "" } else { "s" };
    format!("{}: {nodes} node{plural}, {gib:.1} GiB per node, a failure every {}", view.machine, seconds(view.mtbf_s))
}

fn text(view: &View) -> String {
    let row = |level: &LevelView| {
        let lost = [level.checkpoints, level.rework, level.recovery];
        let mut cells = vec![level.level.to_owned(), seconds(level.interval_s), level.every.to_string()];
        cells.extend([level.blocking_s, level.latency_s, level.recovery_s].map(seconds));
        cells.push(if level.failures_per_s > 0.0 { seconds(1.0 / level.failures_per_s) } else { "never".to_owned() });
        cells.extend(lost.map(percent));
        cells.push(percent(lost.iter().sum()));
        cells
    };
    let heads = [
        "level",
        "interval",
        "every",
        "blocks",
        "counts after",
        "recovery",
        "fails each",
        "checkpoints",
        "rework",
        "recovering",
        "lost",
    ];
    let rows: Vec<Vec<String>> = view.levels.iter().map(row).collect();
    let right: Vec<usize> = (1..heads.len()).collect();
    let mut text = format!("{}\n\n{}", job(view), table(&heads, &right, &rows));
    text += &format!(
        "\n{} of the time is work ({} to first order); {} per day are lost.\n",
        percent(view.efficiency),
        percent(view.efficiency_first_order),
        seconds((1.0 - view.efficiency) * 86_400.0)
    );
    let pair = |values: [f64; 2]| values.map(percent).join(" and ");
    text += &format!(
        "With these intervals, failures half and twice as frequent: {}; checkpoints half and twice as expensive: {}.\n",
        pair(view.same_intervals.failures),
        pair(view.same_intervals.costs)
    );
    for level in &view.left_out {
        text += &format!("Level {level} does not pay here: no checkpoint goes there for its own sake.\n");
    }
    text + &view.own.text() + &view.playing.text()
}

/// The configuration keys that implement the plan.
fn keys(view: &View) -> String {
    let mut text = format!("# bivouac plan: {}; {} of the time is work\n", job(view), percent(view.efficiency));
    // Every checkpoint reaches the first level; only one in several reaches another level.
    if let Some(first) = view.levels.first() {
        let interval = match first.interval_s {
            short if short < 100.0 => format!("{:.0}ms", (short * 1000.0).max(1.0)),
            long => format!("{long:.0}s"),
        };
        text += &format!("[interval]\nseconds = \"{interval}\"\n");
    }
    let every = |name: Level| view.levels.iter().find(|level| level.level == name.name()).map(|level| level.every);
    for (section, level) in [("local", Level::NodeReboot), ("global", Level::System)] {
        match every(level) {
            Some(every) => text += &format!("\n[{section}]\nevery = {every}\n"),
            None if view.left_out.contains(&level.name()) => text += &format!("\n[{section}]\nenabled = false\n"),
            None => {}
        }
    }
    text
}
