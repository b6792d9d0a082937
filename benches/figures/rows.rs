//! The lines that are printed, one for each setting.
//!
//! - `ratio`: bytes of files that refer to nothing over bytes of the actual files, without the first checkpoint, as in the paper, and with
//!   it. `paper_ratio` is the ratio of the data alone, with the paper's metadata in place of ours (`paper.rs`).
//! - `gb_s`: bytes of the counters over the time from the call of a capture until it is committed on the local tier; `process_gb_s`: until
//!   it is whole in node memory; `look_gb_s`: over the time that the device takes for the look at the chunks. These are sums over sums,
//!   also without the first checkpoint; `gb_s_median` and the seconds are medians.
//! - `stored_bytes`, `own_bytes` (before compression), `metadata_bytes` (everything else in the files), `paper_metadata_bytes` and
//!   `extents` count all checkpoints but the first.

use super::states::Input;
use super::{Options, over_all};
use crate::series::{Setting, Taken, record};
use mpi::topology::SimpleCommunicator;
use mpi::traits::*;
use serde_json::{Value, json};

/// A rate in GB/s; `None` where nothing was measured.
fn gb_s(bytes: f64, seconds: f64) -> Option<f64> {
    (seconds > 0.0).then(|| rounded(bytes / seconds / 1e9))
}

fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

/// A ratio of bytes.
fn ratio(whole: f64, part: f64) -> f64 {
    rounded(whole / part)
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    (sorted[sorted.len() / 2] * 1e6).round() / 1e6
}

/// The part of a line that says what was measured.
fn head(figure: &str, options: &Options, input: &Input, setting: &Setting) -> Value {
    let (sources, live) = record(options);
    json!({
        "figure": figure, "place": input.counters.place(), "input": format!("{:?}", input.kind).to_lowercase(),
        "vertices": options.vertices(), "edges": input.edges, "size": options.size(), "bytes": input.bytes,
        "method": setting.method.name(), "chunk": setting.has_chunks().then_some(setting.chunk), "block": setting.block,
        "compress": setting.compress, "sources": sources, "live": live,
    })
}

fn joined(mut head: Value, rest: Value) -> Value {
    if let (Value::Object(head), Value::Object(rest)) = (&mut head, rest) {
        head.extend(rest);
    }
    head
}

/// The line of a setting with one rank.
pub fn row(figure: &str, options: &Options, input: &Input, setting: &Setting, taken: &[&Taken]) -> Value {
    let sum = |of: fn(&Taken) -> f64, from: usize| taken[from..].iter().map(|taken| of(taken)).sum::<f64>();
    let whole = |from| sum(|taken| taken.whole as f64, from);
    let stored = |from| sum(|taken| taken.file as f64, from);
    let bytes = |from: usize| (input.bytes * (taken.len() - from) as u64) as f64;
    let paper = |from| sum(|taken| (taken.stored + taken.paper) as f64, from);
    let rate = |of, from: usize| gb_s(bytes(from), sum(of, from));
    let later = || taken[1..].iter();
    joined(
        head(figure, options, input, setting),
        json!({
            "checkpoints": taken.len(), "whole": taken.iter().filter(|taken| taken.own >= input.bytes).count(),
            "ratio": ratio(whole(1), stored(1)), "ratio_with_first": ratio(whole(0), stored(0)),
            "paper_ratio": ratio(bytes(1), paper(1)), "paper_ratio_with_first": ratio(bytes(0), paper(0)),
            "gb_s": rate(|taken| taken.committed, 1), "gb_s_with_first": rate(|taken| taken.committed, 0),
            "process_gb_s": rate(|taken| taken.process, 1), "look_gb_s": rate(|taken| taken.look, 1),
            "gb_s_median": gb_s(bytes(1), median(later().map(|taken| taken.committed)) * (taken.len() - 1) as f64),
            "blocked_s": median(later().map(|taken| taken.blocked)),
            "commit_s": median(later().map(|taken| taken.committed - taken.blocked)),
            "stored_bytes": stored(1), "own_bytes": sum(|taken| taken.own as f64, 1),
            "metadata_bytes": sum(|taken| (taken.file - taken.stored) as f64, 1),
            "paper_metadata_bytes": sum(|taken| taken.paper as f64, 1),
            "extents": sum(|taken| taken.extents as f64, 1),
            "files": taken.iter().map(|taken| taken.file).collect::<Vec<_>>(),
            "committed_each_s": taken.iter().map(|taken| rounded(taken.committed)).collect::<Vec<_>>(),
        }),
    )
}

/// Prints, on the first rank, the line of a setting with the ranks of `comm`, of which the slowest counts; `single` is the rate of one rank
/// by itself. Returns the rate of all ranks. Collective.
pub fn scaled(
    options: &Options,
    input: &Input,
    setting: &Setting,
    taken: &[Taken],
    comm: &SimpleCommunicator,
    single: Option<f64>,
) -> f64 {
    let sum = |of: fn(&Taken) -> f64| taken.iter().map(of).sum::<f64>();
    let bytes = over_all(comm, (input.bytes * taken.len() as u64) as f64).0;
    let whole = over_all(comm, sum(|taken| taken.whole as f64)).0;
    let stored = over_all(comm, sum(|taken| taken.file as f64)).0;
    let slowest = |of| over_all(comm, sum(of)).1;
    let committed = slowest(|taken| taken.committed);
    let (process, look) = (slowest(|taken| taken.process), slowest(|taken| taken.look));
    let rate = bytes / committed / 1e9;
    if comm.rank() == 0 {
        let rest = json!({
            "ranks": comm.size(), "checkpoints": taken.len(), "parts": options.parts,
            "ratio_with_first": ratio(whole, stored), "stored_bytes": stored,
            "gb_s_with_first": rounded(rate), "process_gb_s_with_first": gb_s(bytes, process),
            "look_gb_s_with_first": gb_s(bytes, look),
            "over_single": single.map(|single| rounded(rate / single / f64::from(comm.size()))),
        });
        println!("{}", joined(head("figures 6", options, input, setting), rest));
    }
    rate
}
