//! Figure 10 of ICS'19, with our numbers: what `minis --measure` has printed.

use super::{Picture, grouped, number, word};
use serde_json::Value;

/// The order of the programs.
const APPS: [&str; 6] = ["cg", "particles", "rtm", "sweep", "amr", "stencil"];

/// What a marked checkpoint adds to the time of a program, of what a copied one adds.
pub fn pictures(rows: &[Value]) -> Vec<Picture> {
    let place = |row: &Value| APPS.iter().position(|app| *app == word(row, "app")).map_or(f64::NAN, |at| at as f64);
    let rows = rows.iter().filter(|row| row["figure"] == "minis");
    let name = |row: &Value| {
        let gpus = if row["ranks"] == 1 { "1 GPU" } else { "2 GPUs" };
        match number(row, "buffer") as u64 {
            0 => format!("{gpus}, no buffer"),
            _ if row["block"] == 4096 => format!("{gpus}, blocks of 4 KiB"),
            _ => gpus.to_owned(),
        }
    };
    // Where it adds nothing the difference of two medians may be less than that.
    let series = grouped(rows, name, |row| (place(row), number(row, "of_copy").max(0.0)));
    vec![Picture {
        file: "ics-10".into(),
        title: "What a marked checkpoint of 4 GiB adds, of what a copied one adds".into(),
        x: "program",
        y: "marked / copied",
        names: APPS.map(str::to_owned).to_vec(),
        is_log: false,
        series,
    }]
}
