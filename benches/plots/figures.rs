//! The figures of ICPP'23 with our numbers, from what `benches/figures.rs` has printed.

use super::{Picture, Series, grouped, number, word};
use serde_json::Value;

/// The order of the inputs.
const INPUTS: [&str; 5] = ["delaunay", "road", "bubble", "race", "mesh"];

/// All pictures that these rows allow.
pub fn pictures(rows: &[Value]) -> Vec<Picture> {
    let mut pictures = Vec::new();
    for input in INPUTS {
        let of = |figure: &'static str| {
            rows.iter().filter(move |row| row["figure"] == figure && word(row, "input") == input)
        };
        pictures.extend(by_chunk(input, &of("figures 4").collect::<Vec<_>>()));
        pictures.extend(by_count(input, &of("figures 5").collect::<Vec<_>>()));
    }
    pictures.extend(by_ranks(rows, ""));
    pictures.push(restarts(&rows.iter().filter(|row| row["figure"] == "figures restart").collect::<Vec<_>>()));
    pictures
}

/// The name of a row in a legend.
fn method(row: &Value) -> String {
    let method = word(row, "method");
    match (method, row["compress"] == true) {
        ("basic", _) => format!("basic, {} KiB", number(row, "block") / 1024.0),
        (_, true) => format!("{method}, zstd"),
        _ => method.to_owned(),
    }
}

/// Distinct values of a column, ascending.
fn values(rows: &[&Value], key: &str) -> Vec<f64> {
    let mut values: Vec<f64> = rows.iter().filter_map(|row| row[key].as_f64()).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

/// Bars of a column over the values of another. A row without such a value appears at all of them.
fn bars(rows: &[&Value], key: &str, name: impl Fn(&Value) -> String, of: &str) -> Vec<Series> {
    let places = values(rows, key);
    let spread = rows.iter().flat_map(|row| {
        let is_here = |place: &f64| row[key].is_null() || row[key].as_f64() == Some(*place);
        places.iter().enumerate().filter(move |(_, place)| is_here(place)).map(move |(at, _)| {
            let mut row = (*row).clone();
            row["place_of_bar"] = at.into();
            row
        })
    });
    let spread: Vec<Value> = spread.filter(|row| row[of].is_f64()).collect();
    grouped(spread.iter(), name, |row| (number(row, "place_of_bar"), number(row, of)))
}

fn picture(
    file: String,
    title: String,
    [x, y]: [&'static str; 2],
    names: Vec<String>,
    is_log: bool,
    series: Vec<Series>,
) -> Picture {
    Picture { file, title, x, y, names, is_log, series, ..Picture::default() }
}

fn named(rows: &[&Value], key: &str) -> Vec<String> {
    values(rows, key).iter().map(f64::to_string).collect()
}

fn by_chunk(input: &str, rows: &[&Value]) -> [Picture; 2] {
    let names = || named(rows, "chunk");
    let x = "bytes of a chunk";
    let mut ratios = bars(rows, "chunk", method, "ratio");
    let chunked: Vec<&Value> = rows.iter().copied().filter(|row| !row["chunk"].is_null()).collect();
    let as_paper = |row: &Value| format!("{}, the paper's count", method(row));
    ratios.extend(bars(&chunked, "chunk", as_paper, "paper_ratio"));
    let rates = bars(rows, "chunk", method, "gb_s");
    [
        picture(
            format!("icpp-4-{input}-ratio"),
            format!("{input}: size of full checkpoints over stored bytes (ICPP'23, 4)"),
            [x, "ratio, without the first of ten"],
            names(),
            true,
            ratios,
        ),
        picture(
            format!("icpp-4-{input}-rate"),
            format!("{input}: from the capture to the commit on the local tier (ICPP'23, 4)"),
            [x, "GB/s, without the first of ten"],
            names(),
            false,
            rates,
        ),
    ]
}

fn by_count(input: &str, rows: &[&Value]) -> [Picture; 2] {
    let names = || named(rows, "checkpoints");
    let x = "checkpoints";
    [
        picture(
            format!("icpp-5-{input}-ratio"),
            format!("{input}: size of full checkpoints over stored bytes (ICPP'23, 5)"),
            [x, "ratio, without the first one"],
            names(),
            true,
            bars(rows, x, method, "ratio"),
        ),
        picture(
            format!("icpp-5-{input}-rate"),
            format!("{input}: from the capture to the commit on the local tier (ICPP'23, 5)"),
            [x, "GB/s, without the first one"],
            names(),
            false,
            bars(rows, x, method, "gb_s"),
        ),
    ]
}

/// Figure 6; `machine` is the suffix of its files' names.
pub fn by_ranks(rows: &[Value], machine: &str) -> [Picture; 2] {
    let rows = &rows.iter().filter(|row| row["figure"] == "figures 6").collect::<Vec<_>>()[..];
    let names = || named(rows, "ranks");
    let x = "ranks, one GPU each";
    [
        picture(
            format!("icpp-6-size{machine}"),
            "Stored bytes of the first ten checkpoints of all ranks (ICPP'23, 6a)".into(),
            [x, "bytes"],
            names(),
            true,
            bars(rows, "ranks", method, "stored_bytes"),
        ),
        picture(
            format!("icpp-6-rate{machine}"),
            "Bytes of all ranks over the time of the slowest (ICPP'23, 6b)".into(),
            [x, "GB/s"],
            names(),
            false,
            bars(rows, "ranks", method, "gb_s_with_first"),
        ),
    ]
}

fn restarts(rows: &[&Value]) -> Picture {
    let columns = [("restart", "restart_s"), ("plain reads of what it needs", "ranges_s"), ("a whole file", "whole_s")];
    let series = columns.map(|(name, of)| bars(rows, "version", |_| name.to_owned(), of));
    picture(
        "icpp-restart".into(),
        "Restart of a version from files, tree".into(),
        ["version", "seconds"],
        named(rows, "version"),
        false,
        series.into_iter().flatten().collect(),
    )
}
