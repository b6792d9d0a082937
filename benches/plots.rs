//! Draws the stored figures of shots, and of files that refer to earlier ones: `cargo bench --bench plots` reads `benches/results/shot-h200.jsonl`,
//! `benches/results/figures-h100.jsonl`, `minis-h100.jsonl`, `granularity-h100.jsonl`, `volume-2core.jsonl`, and of four GPUs `shot-h100-x4.jsonl` and `figures-h100-x4.jsonl`, and writes one SVG and one CSV
//! for each of the papers' figures into `benches/results/plots/`. Nothing is measured here.

#[path = "plots/figures.rs"]
mod figures;
#[path = "plots/minis.rs"]
mod minis;
#[path = "shot/sizes.rs"]
mod sizes;

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use serde_json::Value;
use std::path::{Path, PathBuf};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const SIZE: (u32, u32) = (720, 420);
/// Pixels of a character of the legend, of a line, and before its words.
const LEGEND: (usize, i32, i32) = (8, 20, 20);
const COLOURS: [RGBColor; 8] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(255, 127, 14),
    RGBColor(148, 103, 189),
    RGBColor(140, 86, 75),
    RGBColor(23, 190, 207),
    RGBColor(90, 90, 90),
];

/// Points of one colour.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// A picture to be drawn.
struct Picture {
    file: String,
    title: String,
    x: &'static str,
    y: &'static str,
    /// Bars at 0, 1, 2 … under these names; without any, lines over numbers.
    names: Vec<String>,
    /// A logarithmic y axis.
    is_log: bool,
    series: Vec<Series>,
}

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
    let folder = results.join("plots");
    std::fs::create_dir_all(&folder)?;
    for picture in all {
        if picture.series.iter().all(|series| series.points.is_empty()) {
            eprintln!("left out: {} has no figures", picture.file);
            continue;
        }
        std::fs::write(folder.join(&picture.file).with_extension("csv"), table(&picture))?;
        draw(&picture, &folder)?;
        println!("{}", folder.join(&picture.file).display());
    }
    Ok(())
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

/// Points grouped by a name, in order of appearance; sorted by x, one for each.
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
            None => groups.push(Series { name, points: vec![point] }),
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
    };
    let lines = |file: &str, title: &str, x, y, is_log, series| Picture {
        file: file.into(),
        title: title.into(),
        x,
        y,
        names: Vec::new(),
        is_log,
        series,
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
        vec![Series { name: name.into(), points }]
    };
    let way = |row: &Value| format!("{}, {}", word(row, "touch"), word(row, "pin"));
    let of_rank = |rank: u64| sizes::variable(384, 38.0 + 12.0 * rank as f64 / 31.0, 1 + 77 * rank);
    let all: Vec<Vec<u64>> = (0..32).map(of_rank).collect();
    let along = |name: &str, pick: fn(&mut dyn Iterator<Item = f64>) -> f64| Series {
        name: name.into(),
        points: (0..384).map(|at| (at as f64, pick(&mut all.iter().map(|sizes| sizes[at] as f64 / 1e6)))).collect(),
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
        names: Vec::new(),
        is_log: true,
        series,
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

/// The points as CSV.
fn table(picture: &Picture) -> String {
    let mut text = format!("series,{},{}\n", picture.x, picture.y);
    for series in &picture.series {
        for (x, y) in &series.points {
            let x = picture.names.get(*x as usize).cloned().unwrap_or_else(|| x.to_string());
            text += &format!("\"{}\",{x},{y}\n", series.name);
        }
    }
    text
}

fn draw(picture: &Picture, folder: &Path) -> Outcome {
    let path = folder.join(&picture.file).with_extension("svg");
    // The legend stands beside the drawing: inside it would cover data, wherever the data happen to be.
    let longest = picture.series.iter().map(|series| series.name.chars().count()).max().unwrap_or_default();
    let whole = (SIZE.0 + (longest * LEGEND.0) as u32 + LEGEND.2 as u32 * 2, SIZE.1);
    let whole = SVGBackend::new(&path, whole).into_drawing_area();
    whole.fill(&WHITE)?;
    let (area, beside) = whole.split_horizontally(SIZE.0);
    draw_legend(picture, &beside)?;
    let points = || picture.series.iter().flat_map(|series| &series.points);
    let (low, high) = points().fold((f64::MAX, 0.0f64), |(low, high), (_, y)| (low.min(*y), high.max(*y)));
    let from = points().map(|(x, _)| *x).fold(f64::MAX, f64::min);
    let to = points().map(|(x, _)| *x).fold(f64::MIN, f64::max);
    let x = match picture.names.len() {
        0 => from - (to - from).max(0.1) * 0.03..to + (to - from).max(0.1) * 0.03,
        bars => -0.5..bars as f64 - 0.5,
    };
    match picture.is_log {
        true => chart(picture, &area, x, (low / 2.0..high * 2.0).log_scale(), low / 2.0)?,
        false => chart(picture, &area, x, 0.0..high * 1.1, 0.0)?,
    }
    whole.present()?;
    Ok(())
}

fn colour_of(series: usize) -> RGBColor {
    COLOURS[series % COLOURS.len()]
}

fn draw_legend(picture: &Picture, area: &DrawingArea<SVGBackend<'_>, Shift>) -> Outcome {
    let (_, line, indent) = LEGEND;
    for (index, series) in picture.series.iter().enumerate() {
        let y = 50 + index as i32 * line;
        area.draw(&Rectangle::new([(0, y - 4), (12, y + 4)], colour_of(index).filled()))?;
        area.draw(&Text::new(series.name.as_str(), (indent, y - 6), ("sans-serif", 13)))?;
    }
    Ok(())
}

fn chart<Y>(
    picture: &Picture,
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    x: std::ops::Range<f64>,
    y: Y,
    floor: f64,
) -> Outcome
where
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(&picture.title, ("sans-serif", 16))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y)?;
    let named = |value: &f64| match picture.names.is_empty() {
        true => format!("{}", (value * 100.0).round() / 100.0),
        false if (value - value.round()).abs() < 0.01 => {
            picture.names.get(value.round() as usize).cloned().unwrap_or_default()
        }
        false => String::new(),
    };
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(picture.x).y_desc(picture.y).light_line_style(WHITE).x_label_formatter(&named);
    let short = |value: &f64| format!("{}", (value * 1e3).round() / 1e3);
    mesh.y_label_formatter(&short);
    if !picture.names.is_empty() {
        mesh.x_labels(picture.names.len() * 2 + 1).disable_x_mesh();
    }
    mesh.draw()?;
    let width = 0.8 / picture.series.len() as f64;
    for (index, series) in picture.series.iter().enumerate() {
        let colour = colour_of(index);
        if picture.names.is_empty() {
            chart.draw_series(LineSeries::new(series.points.iter().copied(), colour.stroke_width(2)))?;
            if series.points.len() < 20 {
                chart.draw_series(series.points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
            }
        } else {
            let left = -0.4 + width * index as f64;
            let bar = |(x, y): &(f64, f64)| {
                Rectangle::new([(x + left, floor), (x + left + width * 0.9, *y)], colour.filled())
            };
            chart.draw_series(series.points.iter().map(bar))?;
        }
    }
    Ok(())
}
