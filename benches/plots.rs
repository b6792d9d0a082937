//! Draws the stored figures of shots, and of files that refer to earlier ones. `cargo bench --bench plots` reads
//! `benches/results/shot-h200.jsonl`, `benches/results/figures-h100.jsonl`, `minis-h100.jsonl`, `granularity-h100.jsonl`,
//! `volume-2core.jsonl`, `decomposition.jsonl`, and for four GPUs `shot-h100-x4.jsonl` and `figures-h100-x4.jsonl`. It writes one SVG and
//! one CSV for each of the papers' figures into `benches/results/plots/`. Nothing is measured here.

#[path = "plots/figures.rs"]
mod figures;
#[path = "plots/minis.rs"]
mod minis;
#[allow(dead_code)] // The command uses items of this module that the plots do not.
#[path = "../src/command/bivouac/picture.rs"]
mod picture;
#[path = "shot/sizes.rs"]
mod sizes;

use picture::{Picture, Series};
use serde_json::Value;
use std::path::{Path, PathBuf};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let results = PathBuf::from(env!("WORKSPACE_ROOT")).join("benches/results");
    let shots: Vec<Value> = rows(&results.join("shot-h200.jsonl"))?.into_iter().filter(is_valid_shot).collect();
    let mut all = pictures(&shots);
    let measured = results.join("figures-h100.jsonl");
    match measured.exists() {
        true => all.extend(figures::pictures(&rows(&measured)?)),
        false => eprintln!("LEFT OUT: the figures of ICPP'23, because {} is not there", measured.display()),
    }
    all.extend(minis::volumes(&rows(&results.join("volume-2core.jsonl"))?));
    all.extend(minis::granularity(&rows(&results.join("granularity-h100.jsonl"))?));
    all.extend(minis::pictures(&rows(&results.join("minis-h100.jsonl"))?));
    let shots: Vec<Value> = rows(&results.join("shot-h100-x4.jsonl"))?.into_iter().filter(is_valid_shot).collect();
    all.extend(scaling(&shots));
    all.extend(figures::by_ranks(&rows(&results.join("figures-h100-x4.jsonl"))?, "-x4"));
    all.push(messages(&rows(&results.join("decomposition.jsonl"))?));
    let folder = results.join("plots");
    std::fs::create_dir_all(&folder)?;
    for picture in all {
        if picture.series.iter().all(|series| series.points.is_empty()) {
            eprintln!("left out: {} has no figures", picture.file);
            continue;
        }
        std::fs::write(folder.join(&picture.file).with_extension("csv"), picture.csv())?;
        std::fs::write(folder.join(&picture.file).with_extension("svg"), picture.svg()?)?;
        println!("{}", folder.join(&picture.file).display());
    }
    Ok(())
}

/// Messages of the busiest rank when arrays are decomposed, and when a load on three quarters as many ranks is planned.
fn messages(rows: &[Value]) -> Picture {
    let of = |what: &'static str, ranks: &'static str, key: &'static str| {
        let rows = rows.iter().filter(|row| row["figure"] == "messages");
        let name = move |row: &Value| format!("{what}, {}", word(row, "cut"));
        grouped(rows, name, |row| (number(row, ranks), number(row, key).max(1.0)))
    };
    let mut series = of("decompose", "ranks", "decompose_most");
    series.extend(of("plan", "onto", "plan_most"));
    Picture {
        file: "decomposition-messages".into(),
        title: "Posts of the busiest rank, sent and got".into(),
        x: "ranks",
        y: "posts",
        is_log: true,
        series,
        ..Picture::default()
    }
}

fn rows(path: &Path) -> Result<Vec<Value>, Box<dyn std::error::Error>> {
    Ok(std::fs::read_to_string(path)?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

fn is_valid_shot(row: &Value) -> bool {
    row["figure"] == "shot" && row["superseded"] != true
}

/// The rows of a set.
fn set<'a>(shots: &'a [Value], names: &'static [&'static str]) -> impl Iterator<Item = &'a Value> + Clone {
    shots.iter().filter(move |row| names.iter().any(|name| row["set"] == *name))
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or(f64::NAN)
}

fn word<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_default()
}

/// Seconds that the application waited, initialisation included.
fn blocked(row: &Value) -> f64 {
    number(row, "init_s") + number(row, "append_s") + number(row, "restore_s")
}

/// Groups points by name, in order of appearance. Each group is sorted by x, with one point for each x.
fn grouped<'a>(
    rows: impl Iterator<Item = &'a Value>,
    name: impl Fn(&Value) -> String,
    point: impl Fn(&Value) -> (f64, f64),
) -> Vec<Series> {
    let mut groups: Vec<Series> = Vec::new();
    for row in rows {
        let (name, point) = (name(row), point(row));
        match groups.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => groups.push(Series::new(name, vec![point])),
        }
    }
    for series in &mut groups {
        series.points.sort_by(|one, other| one.0.total_cmp(&other.0));
        // Runs of the same setting are one point, their mean.
        let same = series.points.chunk_by(|one, other| one.0 == other.0);
        let mean = |run: &[(f64, f64)]| (run[0].0, run.iter().map(|point| point.1).sum::<f64>() / run.len() as f64);
        series.points = same.map(mean).collect();
    }
    groups
}

/// The papers' figures, with our numbers.
fn pictures(shots: &[Value]) -> Vec<Picture> {
    let orders = ["sequential", "reverse", "irregular"];
    let by_order = |row: &Value| orders.iter().position(|order| word(row, "order") == *order).unwrap_or(0) as f64;
    let approach = |row: &Value| match word(row, "engine") {
        "ondemand" => "on demand".to_owned(),
        engine => format!("{engine}, hints: {}", word(row, "hints")),
    };
    let engine = |row: &Value| word(row, "engine").to_owned();
    let both = |row: &Value| number(row, "both_gb_s");
    let bars = |file: &str, title: &str, names: &'static [&'static str], sizes: &'static str| Picture {
        file: file.into(),
        title: title.into(),
        x: "order of reading",
        y: "GB/s, both passes",
        names: orders.iter().map(|order| (*order).to_owned()).collect(),
        is_log: true,
        series: grouped(
            set(shots, names).filter(|row| word(row, "sizes") == sizes && number(row, "ranks") == 1.0),
            approach,
            |row| (by_order(row), both(row)),
        ),
        ..Picture::default()
    };
    let lines = |file: &str, title: &str, x, y, is_log, series| Picture {
        file: file.into(),
        title: title.into(),
        x,
        y,
        is_log,
        series,
        ..Picture::default()
    };
    let interval = |row: &Value| number(row, "interval_ms");
    let blocked_over =
        |names, key: &'static str| grouped(set(shots, names), engine, |row| (number(row, key), blocked(row)));
    let appends_over = |names, key: &'static str| {
        grouped(set(shots, names), engine, |row| (number(row, key), number(row, "init_s") + number(row, "append_s")))
    };
    let steps = |key: &str, name: &str, scale: f64| {
        let each = set(shots, &["hpdc-7"]).filter_map(|row| row[key].as_array()).next().into_iter().flatten();
        let points =
            each.enumerate().map(|(at, value)| (at as f64, value.as_f64().unwrap_or(f64::NAN) * scale)).collect();
        vec![Series::new(name, points)]
    };
    let way = |row: &Value| format!("{}, {}", word(row, "touch"), word(row, "pin"));
    let of_rank = |rank: u64| sizes::variable(384, 38.0 + 12.0 * rank as f64 / 31.0, 1 + 77 * rank);
    let all: Vec<Vec<u64>> = (0..32).map(of_rank).collect();
    let along = |name: &str, pick: fn(&mut dyn Iterator<Item = f64>) -> f64| {
        let megabytes = |at: usize| pick(&mut all.iter().map(|sizes| sizes[at] as f64 / 1e6));
        Series::new(name, (0..384).map(|at| (at as f64, megabytes(at))).collect())
    };
    let sizes = vec![
        along("largest", |values| values.fold(0.0, f64::max)),
        along("mean", |values| values.sum::<f64>() / 32.0),
        along("smallest", |values| values.fold(f64::MAX, f64::min)),
    ];
    let seconds = "seconds blocked, initialisation included";
    let writing = "seconds blocked while writing, initialisation included";
    vec![
        lines("hpdc-4", "Sizes of versions, 32 shots (HPDC'23, 4)", "version", "MB", false, sizes),
        bars("hpdc-5a", "Waiting for the flush, uniform sizes (HPDC'23, 5a)", &["hpdc-5"], "uniform"),
        bars("hpdc-5b", "Waiting for the flush, variable sizes (HPDC'23, 5b)", &["hpdc-5"], "variable"),
        bars("hpdc-6a", "Not waiting, uniform sizes (HPDC'23, 6a)", &["hpdc-6"], "uniform"),
        bars("hpdc-6b", "Not waiting, variable sizes (HPDC'23, 6b)", &["hpdc-6", "papers"], "variable"),
        lines(
            "hpdc-7a",
            "Reading, step by step (HPDC'23, 7)",
            "step",
            "us",
            true,
            steps("restore_each_s", "restore", 1e6),
        ),
        lines(
            "hpdc-7b",
            "Reading, step by step (HPDC'23, 7)",
            "step",
            "versions ahead in the GPU cache",
            false,
            steps("distance_each", "distance", 1.0),
        ),
        lines(
            "hpdc-8a",
            "Interval, variable sizes, irregular order (HPDC'23, 8a)",
            "ms between versions",
            "GB/s, both passes",
            true,
            grouped(set(shots, &["hpdc-8"]).filter(|row| number(row, "gpu_gib") == 2.0), engine, |row| {
                (interval(row), both(row))
            }),
        ),
        lines(
            "hpdc-8b",
            "GPU cache, variable sizes, irregular order (HPDC'23, 8b)",
            "GiB",
            "GB/s, both passes",
            true,
            grouped(
                set(shots, &["hpdc-8"]).filter(|row| word(row, "engine") != "ondemand" && interval(row) == 10.0),
                engine,
                |row| (number(row, "gpu_gib"), both(row)),
            ),
        ),
        lines(
            "hpdc-9",
            "Ranks of a node, variable sizes, irregular order (HPDC'23, 9)",
            "ranks, one GPU each",
            "GB/s of a rank, both passes",
            true,
            grouped(
                set(shots, &["hpdc-9", "hpdc-8"]).filter(|row| number(row, "gpu_gib") == 2.0 && interval(row) == 10.0),
                |row| format!("{}{}", word(row, "engine"), if row["tight"] == true { ", barriers" } else { "" }),
                |row| (number(row, "ranks"), both(row)),
            ),
        ),
        lines(
            "hipc-3b",
            "Cold start, variable sizes, writing (HiPC'22, 3b)",
            "ms between versions",
            writing,
            true,
            appends_over(&["hipc-3"], "interval_ms"),
        ),
        lines(
            "hipc-3c",
            "Cold start, variable sizes, writing and reading (HiPC'22, 3c)",
            "ms between versions",
            seconds,
            true,
            blocked_over(&["hipc-3"], "interval_ms"),
        ),
        lines(
            "hipc-5a",
            "Cold start, uniform sizes, writing (HiPC'22, 5a)",
            "ms between versions",
            writing,
            true,
            appends_over(&["hipc-5"], "interval_ms"),
        ),
        lines(
            "hipc-5b",
            "Cold start, uniform sizes, writing and reading (HiPC'22, 5b)",
            "ms between versions",
            seconds,
            true,
            blocked_over(&["hipc-5"], "interval_ms"),
        ),
        lines(
            "hipc-5c",
            "Touching and pinning (HiPC'22, 5c)",
            "ranks, one GPU each (4: two share one)",
            seconds,
            true,
            grouped(set(shots, &["hipc-5c"]), way, |row| (number(row, "ranks"), blocked(row))),
        ),
        lines(
            "hipc-6b",
            "Cold start, ranks of a node (HiPC'22, 6b)",
            "ranks, one GPU each",
            seconds,
            true,
            blocked_over(&["hipc-6"], "ranks"),
        ),
        lines(
            "hipc-6c",
            "Cold start, host cache (HiPC'22, 6c)",
            "GiB",
            seconds,
            true,
            blocked_over(&["hipc-6c"], "host_gib"),
        ),
    ]
}

/// HPDC'23, figure 9, and HiPC'22, figures 5c and 6, on a host with four GPUs.
fn scaling(shots: &[Value]) -> [Picture; 4] {
    let picture = |file: &str, title: &str, y, series| Picture {
        file: file.into(),
        title: title.into(),
        x: "ranks, one GPU each",
        y,
        is_log: true,
        series,
        ..Picture::default()
    };
    let name = |row: &Value| {
        let engine = word(row, "engine");
        let barriers = if row["tight"] == true { ", barriers" } else { "" };
        format!("{engine}, {} ms{barriers}", number(row, "interval_ms"))
    };
    let over_ranks = |names| grouped(set(shots, names), name, |row| (number(row, "ranks"), number(row, "both_gb_s")));
    let waited = |names| {
        let way = |row: &Value| format!("{}, pinning {}", word(row, "engine"), word(row, "pin"));
        grouped(set(shots, names), way, |row| (number(row, "ranks"), blocked(row)))
    };
    let (both, seconds) = ("GB/s of a rank, both passes", "seconds blocked, initialisation included");
    [
        picture("hpdc-9-x4", "Ranks of a node and one disk (HPDC'23, 9)", both, over_ranks(&["hpdc-9"])),
        picture("hpdc-9-fits-x4", "The same without the disk (HPDC'23, 9)", both, over_ranks(&["hpdc-9-fits"])),
        picture("hipc-5c-x4", "Touching and pinning, 10 ms (HiPC'22, 5c)", seconds, waited(&["hipc-5c"])),
        picture("hipc-6-x4", "Cold start, 20 ms (HiPC'22, 6b)", seconds, waited(&["hipc-6"])),
    ]
}
