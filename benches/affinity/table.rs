//! Compares the findings of the processes of `work.rs`, and prints tables 2 and 3 of Middleware'14.
#![forbid(unsafe_code)]

use crate::kernels;
use serde_json::{Value, json};
use std::path::Path;

/// Prints a JSON line for each kernel of which the file has lines.
pub fn print(raw: &Path) {
    let lines = read(raw);
    for kernel in kernels::NAMES {
        let of_kernel: Vec<&Value> = lines.iter().filter(|line| line["kernel"] == kernel).collect();
        if !of_kernel.is_empty() {
            println!("{}", compare(kernel, &of_kernel));
        }
    }
}

/// Prints a Markdown table of the lines that [`print`] has printed.
pub fn print_markdown(results: &Path) {
    let lines: Vec<Value> = read(results).into_iter().filter(|line| line["figure"] == "kernel").collect();
    println!(
        "| kernel | time after restart | CPU migrations | time per iteration | checkpoint size | checkpoint time | restart time | \
         per iteration, after against before: full, off | threads and pages right: full, off | results |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for line in &lines {
        let percent =
            |name: &str| line["change_percent"][name].as_f64().map_or("-".to_owned(), |it| format!("{it:.2}"));
        let columns = ["time_after", "migrations", "iteration", "size", "checkpoint", "restart"].map(percent);
        let ratio =
            |mode: &str| line["after_against_before"][mode].as_f64().map_or("-".into(), |it| format!("{it:.3}"));
        let right =
            |mode: &str| format!("{} and {}", share(&line["threads_right"][mode]), share(&line["pages_right"][mode]));
        println!(
            "| {} | {} | {}, {} | {}; {} | {} |",
            line["kernel"].as_str().unwrap_or_default(),
            columns.join(" | "),
            ratio("full"),
            ratio("off"),
            right("full"),
            right("off"),
            line["results"].as_str().unwrap_or_default(),
        );
    }
    println!(
        "\nChanges in per cent: (off - full) / off, so positive is less with affinity; for the size (full - off) / off."
    );
    if lines.iter().any(|line| line["nodes"] == 1) {
        println!(
            "This machine has one NUMA node: it shows what affinity costs, and that results are right. What it gains in time per \
             iteration cannot be seen here."
        );
    }
}

fn share(pair: &Value) -> String {
    match (pair[0].as_f64(), pair[1].as_f64()) {
        (Some(right), Some(all)) if all > 0.0 => format!("{:.1} %", 100.0 * right / all),
        _ => "-".to_owned(),
    }
}

fn read(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).expect("the file is there");
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// The lines of one kernel and mode.
struct Side<'a> {
    runs: Vec<&'a Value>,
    resumed: Vec<&'a Value>,
}

impl<'a> Side<'a> {
    fn of(mode: &str, lines: &[&'a Value]) -> Side<'a> {
        let of =
            |phase: &str| lines.iter().copied().filter(|line| line["mode"] == mode && line["phase"] == phase).collect();
        Side { runs: of("run"), resumed: of("resume") }
    }

    /// The median over all restarts.
    fn after(&self, name: &str) -> Option<f64> {
        median(self.resumed.iter().filter_map(|line| line[name].as_f64()))
    }

    /// The median over all checkpoints.
    fn checkpoint(&self, name: &str) -> Option<f64> {
        let all = self.runs.iter().filter_map(|run| run["checkpoints"].as_array()).flatten();
        median(all.filter_map(|checkpoint| checkpoint[name].as_f64()))
    }

    /// The median time that a user waits before the application computes again: for the session and the restart.
    fn restart(&self) -> Option<f64> {
        median(self.resumed.iter().filter_map(|line| Some(line["open_s"].as_f64()? + line["restart_s"].as_f64()?)))
    }

    /// The median time of an iteration before a restart, over all runs.
    fn iteration_before(&self) -> Option<f64> {
        let all = self.runs.iter().filter_map(|run| run["iteration_s"].as_array()).flatten();
        median(all.filter_map(Value::as_f64))
    }

    /// The time from the restart to the end: the mean, over the checkpoints, of the median for each.
    fn rest(&self) -> Option<f64> {
        let mut points: Vec<u64> = self.resumed.iter().filter_map(|line| line["version"].as_u64()).collect();
        points.sort_unstable();
        points.dedup();
        let of = |point: &u64| {
            let here = self.resumed.iter().filter(|line| line["version"] == *point);
            median(here.filter_map(|line| line["rest_s"].as_f64()))
        };
        let all: Vec<f64> = points.iter().filter_map(of).collect();
        (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
    }

    /// How much was right over all restarts, and out of how much.
    fn right(&self, name: &str) -> [u64; 2] {
        let sum = |at: usize| self.resumed.iter().filter_map(|line| line[name][at].as_u64()).sum();
        [sum(0), sum(1)]
    }

    /// The minimum and maximum times per iteration after a restart.
    fn spread(&self) -> [Option<f64>; 2] {
        let all = || self.resumed.iter().filter_map(|line| line["iteration_s"].as_f64());
        [all().reduce(f64::min), all().reduce(f64::max)]
    }
}

fn median(all: impl Iterator<Item = f64>) -> Option<f64> {
    let mut all: Vec<f64> = all.collect();
    all.sort_by(f64::total_cmp);
    let middle = all.len() / 2;
    match all.len() {
        0 => None,
        count if count % 2 == 0 => Some((all[middle - 1] + all[middle]) / 2.0),
        _ => Some(all[middle]),
    }
}

fn rounded(number: f64, digits: i32) -> f64 {
    (number * 10f64.powi(digits)).round() / 10f64.powi(digits)
}

/// The ratio of two numbers, either of which may be missing.
fn ratio(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    Some(rounded(a? / b.filter(|b| *b != 0.0)?, 5))
}

fn compare(kernel: &str, lines: &[&Value]) -> Value {
    let (full, off) = (Side::of("full", lines), Side::of("off", lines));
    let less = |f: &dyn Fn(&Side) -> Option<f64>| Some(rounded(100.0 * (1.0 - ratio(f(&full), f(&off))?), 3));
    let both = |f: &dyn Fn(&Side) -> Value| json!({"full": f(&full), "off": f(&off)});
    let against = |name: &str| ratio(full.checkpoint(name), off.checkpoint(name));
    let sums: Vec<&Value> = lines.iter().map(|line| &line["checksum"]).collect();
    let is_same = sums.iter().all(|sum| sum.is_string() && *sum == sums[0]);
    let first = lines[0];
    json!({
        "figure": "kernel", "kernel": kernel, "ranks": first["ranks"], "threads": first["threads"], "mib": first["mib"],
        "nodes": first["nodes"], "iterations": first["iterations"], "restarts": full.resumed.len() + off.resumed.len(),
        "results": if is_same { "identical" } else { "DIFFERENT" },
        "change_percent": {
            "time_after": less(&|side| side.rest()),
            "migrations": less(&|side| side.after("migrations")),
            "iteration": less(&|side| side.after("iteration_s")),
            "size": against("bytes").map(|ratio| rounded(100.0 * (ratio - 1.0), 3)),
            "checkpoint": less(&|side| side.checkpoint("durable_s")),
            "restart": less(&|side| side.restart()),
        },
        "after_against_before": both(&|side| json!(ratio(side.after("iteration_s"), side.iteration_before()))),
        "threads_right": both(&|side| json!(side.right("threads"))),
        "pages_right": both(&|side| json!(side.right("pages"))),
        "pages_right_in_runs": both(&|side| json!(Side { resumed: side.runs.clone(), runs: Vec::new() }.right("pages"))),
        "iteration_before_s": both(&|side| json!(side.iteration_before())),
        "iteration_after_s": both(&|side| json!(side.after("iteration_s"))),
        "iteration_after_range_s": both(&|side| json!(side.spread())),
        "time_after_s": both(&|side| json!(side.rest())),
        "migrations": both(&|side| json!(side.after("migrations"))),
        "bytes": both(&|side| json!(side.checkpoint("bytes"))),
        "checkpoint_s": both(&|side| json!(side.checkpoint("durable_s"))),
        "blocked_s": both(&|side| json!(side.checkpoint("blocked_s"))),
        "open_s": both(&|side| json!(side.after("open_s"))),
        "restart_s": both(&|side| json!(side.after("restart_s"))),
        "targets": {
            "after_against_before": "<= 1.01, on several nodes", "size": "<= 1.002", "checkpoint": "<= 1.01", "restart": "<= 1.05",
        },
    })
}
