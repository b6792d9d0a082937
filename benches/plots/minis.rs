//! Figures 6 to 11 of ICS'19 with our numbers, from what `minis --measure` and `marks --only granularity` have printed.

use super::{Picture, Series, grouped, number, word};
use serde_json::Value;

/// The order of the programs.
const APPS: [&str; 6] = ["cg", "particles", "rtm", "sweep", "amr", "stencil"];
/// One in this many unchanged blocks is nevertheless sent, and not counted as equal.
const REFRESHED: f64 = 64.0;
const KIB: f64 = 1024.0;

/// How much of a shard has changed since the last checkpoint but one, by steps between checkpoints, and by block length, for all programs.
pub fn volumes(rows: &[Value]) -> Vec<Picture> {
    let changed = |row: &Value| 1.0 - number(row, "equal") * REFRESHED / (REFRESHED - 1.0) / number(row, "bytes");
    let coarse = |row: &&Value| number(row, "block") == 64.0 * KIB;
    let app = |row: &Value| word(row, "app").to_owned();
    let by_steps = grouped(rows.iter().filter(coarse), app, |row| (number(row, "every"), changed(row)));
    let most = |name: &str| {
        let own = rows.iter().filter(coarse).filter(|row| word(row, "app") == name);
        own.map(changed).fold(0.0, f64::max)
    };
    let points = (0u32..).zip(APPS).map(|(at, name)| (f64::from(at), most(name))).collect();
    let saturated = vec![Series::new("blocks of 64 KiB", points)];
    let fine = rows.iter().filter(|row| number(row, "every") == 8.0);
    let of_coarse = |row: &Value| {
        let whole =
            rows.iter().filter(coarse).find(|other| other["app"] == row["app"] && number(other, "every") == 8.0);
        changed(row) / whole.map_or(f64::NAN, changed)
    };
    let by_block = grouped(fine, app, |row| (number(row, "block") / KIB, of_coarse(row)));
    let picture = |file: &str, title: &str, x, y, names: Vec<String>, series| {
        let (file, title) = (file.to_owned(), title.to_owned());
        Picture { file, title, x, y, names, series, ..Picture::default() }
    };
    let names = || APPS.map(str::to_owned).to_vec();
    vec![
        picture(
            "ics-6",
            "What has changed of blocks of 64 KiB",
            "steps a round",
            "changed / all",
            Vec::new(),
            by_steps,
        ),
        picture("ics-7", "The same, the most of all intervals", "program", "changed / all", names(), saturated),
        picture(
            "ics-8",
            "What has changed of finer blocks, of what has of 64 KiB",
            "KiB of a block",
            "changed / changed of 64 KiB",
            Vec::new(),
            by_block,
        ),
    ]
}

/// How fast scattered pieces reach the host.
pub fn granularity(rows: &[Value]) -> Vec<Picture> {
    let series = |key: &'static str| {
        let kept = |row: &&Value| !matches!(word(row, "way"), "into a buffer" | "kernel 2" | "kernel 16");
        grouped(
            rows.iter().filter(kept),
            |row| word(row, "way").into(),
            move |row| (number(row, "piece").log2() - 10.0, number(row, key)),
        )
    };
    let picture = |file: &str, title: &str, y, series| Picture {
        file: file.into(),
        title: title.into(),
        x: "KiB of a piece, as a power of two",
        y,
        series,
        ..Picture::default()
    };
    vec![
        picture("ics-9", "Scattered pieces on their way to pinned memory", "GB/s", series("gb_s")),
        picture("ics-9-beside", "The same beside steps bound by memory", "GB/s", series("gb_s_beside")),
        picture("ics-9-steps", "What the steps feel of it", "step / step alone", series("step_of_alone")),
    ]
}

/// The paper's name of a row's way.
fn label(row: &Value) -> String {
    let fine = if number(row, "block") < 64.0 * KIB { "-FG" } else { "" };
    let buffer = if number(row, "buffer") > 0.0 { "+D" } else { "" };
    match word(row, "way") {
        "wait" => format!("I{fine}"),
        "blind" => format!("NB+I{fine}"),
        "full" => format!("NB+F+H{buffer}"),
        "mark" => format!("NB+I{fine}+H{buffer}"),
        other => other.to_owned(),
    }
}

/// How much a checkpoint adds to the time of a program, relative to what a blocking copy adds: without a buffer on the device, and with one
/// for half of the data.
pub fn pictures(rows: &[Value]) -> Vec<Picture> {
    let place = |row: &Value| APPS.iter().position(|app| *app == word(row, "app")).map_or(f64::NAN, |at| at as f64);
    let is_slow = |row: &Value| row["link_mib_s"].is_number();
    // F, from the same run of programs.
    let copied = |row: &Value| {
        let is_it = |other: &&Value| {
            other["app"] == row["app"] && word(other, "way") == "copy" && is_slow(other) == is_slow(row)
        };
        let mut all: Vec<f64> = rows.iter().filter(is_it).map(|other| number(other, "added")).collect();
        all.sort_by(f64::total_cmp);
        all.first().copied().unwrap_or(f64::NAN)
    };
    // Where a checkpoint adds nothing, the difference of two medians may be negative.
    let point = |row: &Value| (place(row), (number(row, "added") / copied(row)).max(0.0));
    let series = |slow: bool, labels: &[&str]| {
        let kept = rows.iter().filter(|row| is_slow(row) == slow && labels.contains(&label(row).as_str()));
        grouped(kept, label, point)
    };
    let basic = ["I", "NB+I", "NB+F+H", "NB+I+H"];
    let optimised = ["NB+I+H", "NB+I-FG+H", "NB+F+H+D", "NB+I+H+D", "NB+I-FG+H+D"];
    let picture = |file: &str, what: &str, slow: bool, labels: &[&str]| Picture {
        file: format!("ics-{file}{}", if slow { "-emulated" } else { "" }),
        title: format!("{what}{}", if slow { ", link of 4 GB/s (emulated)" } else { "" }),
        x: "program",
        y: "adds / a blocking copy adds",
        names: APPS.map(str::to_owned).to_vec(),
        series: series(slow, labels),
        ..Picture::default()
    };
    [false, true]
        .into_iter()
        .flat_map(|slow| {
            [
                picture("10", "Marked checkpoints without a buffer", slow, &basic),
                picture("11", "Marked checkpoints with a buffer for half", slow, &optimised),
            ]
        })
        .collect()
}
