//! `bivouac plan`: its output in three forms, its drawings, and what it refuses.
#![forbid(unsafe_code)]

use crate::store::{Ran, bivouac};
use std::path::{Path, PathBuf};

fn plan(more: &[&str]) -> Ran {
    bivouac(&[&["plan"], more].concat())
}

#[test]
fn the_papers_machine_has_the_papers_efficiency() {
    let document = plan(&["--preset", "ics19-3.6ef-16", "--json"]).json();
    let efficiency = document["efficiency"].as_f64().expect("a number");
    assert!((0.842..0.850).contains(&efficiency), "printed: 0.849, ours {efficiency}");
    let levels = document["levels"].as_array().expect("a list");
    let names: Vec<&str> = levels.iter().filter_map(|level| level["level"].as_str()).collect();
    assert_eq!(names, ["process", "node-reboot", "system"]);
    let every: Vec<u64> = levels.iter().filter_map(|level| level["every"].as_u64()).collect();
    assert!(every[0] == 1 && every[1] > 50 && every[2].is_multiple_of(every[1]), "{every:?}");
    let text = plan(&["--preset", "ics19-3.6ef-16"]);
    assert!(text.out.contains("84.29 % of the time is work") && text.out.contains("node-reboot"), "{}", text.out);
}

/// More nodes fail more often, so they checkpoint more often and do less work. A longer time between failures raises the efficiency.
#[test]
fn options_change_what_they_say() {
    let number = |more: &[&str], key: &str| {
        plan(&[&["--preset", "ics19-0.45ef-16", "--json"], more].concat()).json()[key].as_f64().expect("a number")
    };
    let nodes = ["900", "1800", "7200"].map(|nodes| number(&["--nodes", nodes], "efficiency"));
    assert!(nodes[0] > nodes[1] && nodes[1] > nodes[2], "{nodes:?}");
    let states = ["100 GiB", "1 TiB"].map(|state| number(&["--state", state], "efficiency"));
    assert!(states[0] > states[1], "{states:?}");
    assert_eq!(number(&["--mtbf", "6h"], "mtbf_s").round(), 21_600.0);
    let times = ["6h", "60h"].map(|mtbf| number(&["--mtbf", mtbf], "efficiency"));
    assert!(times[0] < times[1], "{times:?}");
    let starts = ["1h", "1s"].map(|start| number(&["--relaunch", start], "efficiency"));
    assert!(starts[0] < starts[1] - 0.01, "{starts:?}");
}

/// The sample in `config/` has all figures of a session.
#[test]
fn a_profile_is_planned_for_with_the_range_that_its_failures_leave() {
    let sample = Path::new(env!("WORKSPACE_ROOT")).join("config/machine.toml");
    let sample = sample.to_str().expect("UTF-8");
    let document = plan(&["--profile", sample, "--json"]).json();
    assert_eq!((document["nodes"].as_u64(), document["state_bytes"].as_f64()), (Some(4), Some(20e9)));
    let levels = document["levels"].as_array().expect("a list");
    let of = |level: &str, key: &str| {
        let level = levels.iter().find(|of| of["level"] == level).unwrap_or_else(|| panic!("{level}: {document}"));
        level[key].as_f64().expect("a number")
    };
    assert_eq!((of("process", "blocking_s"), of("system", "latency_s")), (0.8, 95.0));
    let efficiency = document["efficiency"].as_f64().expect("a number");
    let range = [0, 1].map(|end| document["efficiency_90_percent"][end].as_f64().expect("a number"));
    assert!(range[0] < efficiency && efficiency < range[1], "{range:?} {efficiency}");
    // The profile counts seven failures in ten days of four nodes, about one every 1.4 days.
    let mtbf = document["mtbf_s"].as_f64().expect("a number") / 86_400.0;
    assert!((1.0..2.0).contains(&mtbf), "{mtbf}");

    // Observations of more attempts narrow the range.
    let folder = tempfile::tempdir().expect("a folder");
    let line = |day: u64| {
        let (began, ended) = (day * 86_400 + 1, (day + 1) * 86_400);
        format!(
            "{{\"began\": {began}, \"ended\": {ended}, \"hosts\": [\"a\", \"b\", \"c\", \"d\"], \"decision\": \"restart\"}}\n"
        )
    };
    std::fs::write(folder.path().join("attempts.jsonl"), (0..300).map(line).collect::<String>()).expect("written");
    let directory = folder.path().to_str().expect("UTF-8");
    let more = plan(&["--profile", sample, "--run-directory", directory, "--json"]).json();
    assert_eq!(more["failures_seen"].as_u64(), Some(300));
    let [least, most] = [0, 1].map(|end| more["efficiency_90_percent"][end].as_f64().expect("a number"));
    assert!(most - least < range[1] - range[0], "{least} {most} {range:?}");
    let text = plan(&["--profile", sample]);
    assert!(text.out.contains("7 failures were seen in 40.0 node-days: with 90 % certainty "), "{}", text.out);
    // If the user states how often the machine fails, nothing is estimated.
    assert!(plan(&["--profile", sample, "--mtbf", "6h", "--json"]).json()["efficiency_90_percent"].is_null());
}

#[test]
fn a_profile_that_makes_no_sense_is_refused_with_its_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("machine.toml");
    let name = file.to_str().expect("UTF-8");
    let sample = read(&Path::new(env!("WORKSPACE_ROOT")).join("config/machine.toml"));
    for (text, words) in [
        (
            sample.replacen("bytes_per_second = 5e9", "bytes_per_second = nan", 1),
            "figure[1].bytes_per_second: NaN is not between",
        ),
        (sample.replacen("nodes = 4", "nodes = -4", 1), "machine.nodes: -4 is not between"),
        // The profile ends in the middle of a text.
        (sample[..sample.find("\nhost = \"").expect("a text") + 10].to_owned(), "line "),
        ("x".repeat(10 << 20), "it has 65537 bytes, but a profile may have at most 65536"),
        (String::new(), "schema: it is missing"),
    ] {
        std::fs::write(&file, text).expect("written");
        let ran = plan(&["--profile", name]);
        assert!(ran.status == 2 && ran.err.starts_with(&format!("bivouac: profile {name}: {words}")), "{}", ran.err);
    }
    let ran = plan(&["--profile", "/nowhere/machine.toml"]);
    assert!(ran.status == 2 && ran.err.contains("profile /nowhere/machine.toml: No such file"), "{}", ran.err);
    let ran = plan(&["--run-directory", "/nowhere"]);
    assert!(ran.status == 2 && ran.err.contains("/nowhere has no attempts"), "{}", ran.err);
}

/// The keys that the command prints for a configuration are a valid configuration.
#[test]
fn keys_are_those_of_a_configuration() {
    let folder = tempfile::tempdir().expect("a folder");
    for preset in ["laptop", "node-8gpu", "ics19-7.2ef-16"] {
        let file = folder.path().join("bivouac.toml");
        std::fs::write(&file, plan(&["--preset", preset, "--config"]).out).expect("written");
        let ran = bivouac(&["config", "--changed", "--config", file.to_str().expect("UTF-8")]);
        assert_eq!(ran.status, 0, "{}", ran.err);
        assert!(ran.out.contains("interval"), "{preset}: {}", ran.out);
    }
    // A short interval is not rounded to another value.
    let often = ["--preset", "laptop", "--state", "10 MiB", "--mtbf", "30s"];
    let exact = plan(&[&often[..], &["--json"]].concat()).json()["levels"][0]["interval_s"].as_f64().expect("a number");
    let keys = plan(&[&often[..], &["--config"]].concat()).out;
    assert!(exact < 1.0 && keys.contains(&format!("seconds = \"{:.0}ms\"", exact * 1000.0)), "{exact} {keys}");
}

/// The schemes are listed with the best first, each with its costs.
#[test]
fn schemes_are_compared_and_the_best_one_is_planned() {
    let machine = ["--preset", "node-8gpu", "--nodes", "4096", "--mtbf", "1h"];
    let document = plan(&[&machine[..], &["--scheme", "all", "--json"]].concat()).json();
    let schemes = document["schemes"].as_array().expect("a list");
    let numbers = |key: &str| schemes.iter().map(|scheme| scheme[key].as_f64().expect("a number")).collect::<Vec<_>>();
    assert!(schemes.len() == 7 && numbers("lost_h_per_day").is_sorted(), "{schemes:?}");
    assert_eq!(document["efficiency"], schemes[0]["efficiency"]);
    let of = |name: &str| schemes.iter().find(|scheme| scheme["scheme"] == name).expect("it is there");
    let state = 320.0 * (1u64 << 30) as f64;
    for (name, memory, sent) in
        [("none", 0.0, 0.0), ("partner(2)", 2.0, 2.0), ("xor(8)", 1.0 / 7.0, 1.0), ("rs(4,2)", 0.5, 1.25)]
    {
        let shares = ["parity_bytes", "traffic_bytes"].map(|key| of(name)[key].as_f64().expect("a number") / state);
        assert!((shares[0] - memory).abs() < 1e-6 && (shares[1] - sent).abs() < 1e-6, "{name}: {shares:?}");
    }
    let text = plan(&[&machine[..], &["--scheme", "all"]].concat()).out;
    assert!(text.contains("lost per day") && text.contains("node-loss"), "{text}");
}

/// The keys of a scheme are also keys of a configuration.
#[test]
fn a_scheme_is_configured_where_it_pays() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bivouac.toml");
    let keys = plan(&["--nodes", "4096", "--mtbf", "1h", "--scheme", "xor(8)", "--config"]).out;
    assert!(keys.contains("[redundancy]\nscheme = \"xor(8)\"\nevery = "), "{keys}");
    std::fs::write(&file, keys).expect("written");
    let ran = bivouac(&["config", "--changed", "--config", file.to_str().expect("UTF-8")]);
    assert!(ran.status == 0 && ran.out.contains("xor(8)"), "{} {}", ran.out, ran.err);
    let keys = plan(&["--nodes", "4096", "--scheme", "none", "--config"]).out;
    assert!(!keys.contains("[redundancy]"), "{keys}");
}

/// One seed gives one answer, however many threads simulate, and another seed gives another answer.
#[test]
fn plays_depend_on_the_seed_alone() {
    let simulate = |seed: &str, threads: &str| {
        let options = ["--nodes", "256", "--mtbf", "2h", "--scheme", "xor(8)", "--simulate", "24", "--json"];
        plan(&[&options[..], &["--seed", seed, "--threads", threads]].concat()).out
    };
    let one = simulate("5", "1");
    assert!(["2", "3", "7"].iter().all(|threads| simulate("5", threads) == one));
    assert_ne!(simulate("6", "2"), one);
    let document: serde_json::Value = serde_json::from_str(&one).expect("JSON");
    let simulated = &document["simulated"];
    let number = |key: &str| simulated[key].as_f64().expect("a number");
    let levels = simulated["levels"].as_array().expect("a list");
    let of_levels = |key: &str| levels.iter().map(|level| level[key].as_f64().expect("a number")).sum::<f64>();
    let all =
        number("efficiency") + number("checkpoints") + number("waiting") + of_levels("rework") + of_levels("recovery");
    assert!((all - 1.0).abs() < 1e-9, "shares of the time: {simulated}");
    // The run takes 30 days, with a failure every two hours.
    assert!((of_levels("failures_per_run") / 360.0 - 1.0).abs() < 0.1, "{simulated}");
    let planned = document["efficiency"].as_f64().expect("a number");
    assert!((number("efficiency") - planned).abs() < 0.05 && number("unprotected") < 0.1, "{planned} {simulated}");
}

#[test]
fn what_should_be_known_is_warned_about() {
    let warned = |options: &[&str]| {
        let document = plan(&[options, &["--json"]].concat()).json();
        let list = document["warnings"].as_array().expect("a list").clone();
        list.iter().map(|warning| warning.as_str().expect("text").to_owned()).collect::<Vec<String>>().join("\n")
    };
    assert_eq!(warned(&["--nodes", "64"]), "");
    let small = warned(&["--nodes", "64", "--state", "600 GiB", "--scheme", "partner(1)"]);
    assert!(
        small.contains("two versions of 1200.0 GiB are needed (600.0 GiB of state, 600.0 GiB for other nodes)"),
        "{small}"
    );
    let two = warned(&["--nodes", "4096", "--state", "700 GiB", "--mtbf", "1h"]);
    assert!(two.contains("room for only 2 versions: captures wait"), "{two}");
    let late = warned(&["--nodes", "100000", "--mtbf", "1h"]);
    assert!(
        late.contains("level system counts only after") && late.contains("of the copies to level system arrive"),
        "{late}"
    );
    let alone = warned(&["--nodes", "1", "--scheme", "rs(4,2)"]);
    assert!(alone.contains("rs(4,2) would not survive the loss of a node here"), "{alone}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (options, words) in [
        (&["--preset", "cray"][..], "choose one of laptop, node-8gpu, ics19-0.45ef-16"),
        (&["--nodes", "0"], "--nodes"),
        (&["--state", "much"], "a size greater than 0"),
        (&["--state", "0"], "a size greater than 0"),
        (&["--mtbf", "0s"], "a time greater than 0"),
        (&["--json", "--config"], "cannot be used with"),
        (&["--figure", "4", "--out", "/tmp"], "[possible values: 2, 3, 12, 13, 14, all]"),
        (&["--figure", "2"], "--out <DIR>"),
        (&["--out", "/tmp"], "--figure"),
        (&["--figure", "2", "--out", "/tmp", "--nodes", "5"], "cannot be used with"),
        (&["--scheme", "raid"], "or all"),
        (&["--simulate", "0"], "--simulate"),
        (&["--seed", "3"], "--simulate"),
        (&["--capture", "magic"], "possible values"),
    ] {
        let ran = plan(options);
        assert_eq!(ran.status, 2, "{options:?}: {}", ran.err);
        assert!(ran.err.contains(words), "{options:?}: {}", ran.err);
    }
}

const FIGURES: [&str; 5] = ["2", "3", "12", "13", "14"];

/// Draws figures into a folder.
fn draw(figure: &str, folder: &Path) -> Ran {
    plan(&["--figure", figure, "--out", folder.to_str().expect("UTF-8")])
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of a figure: series, place along x, and value.
fn rows(csv: &str) -> Vec<(String, String, f64)> {
    let row = |line: &str| {
        let (name, rest) = line.trim_start_matches('"').split_once("\",").expect("a quoted name");
        let (x, value) = rest.split_once(',').expect("two more columns");
        (name.to_owned(), x.to_owned(), value.parse().expect("a number"))
    };
    csv.lines().skip(1).map(row).collect()
}

/// The words in an SVG document.
fn words(svg: &str) -> Vec<&str> {
    let texts = svg.split("<text ").skip(1);
    texts.map(|text| text.split(['>', '<']).nth(1).unwrap_or_default().trim()).collect()
}

#[test]
fn every_figure_is_drawn_with_its_numbers_beside_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("made/when missing");
    let ran = draw("all", &out);
    assert_eq!((ran.status, ran.err.as_str()), (0, ""));
    let named: Vec<PathBuf> = ran.out.lines().map(PathBuf::from).collect();
    assert_eq!(named.len(), 2 * FIGURES.len());
    for figure in FIGURES {
        let [svg, csv] = ["svg", "csv"].map(|extension| out.join(format!("ics19-{figure}.{extension}")));
        assert!(named.contains(&svg) && named.contains(&csv), "{named:?}");
        let (drawing, rows) = (read(&svg), rows(&read(&csv)));
        assert!(drawing.starts_with("<svg ") && drawing.trim_end().ends_with("</svg>"), "{figure}");
        let words = words(&drawing);
        assert!(words.iter().any(|words| words.ends_with(&format!("(ICS&apos;19, {figure})"))), "{words:?}");
        assert!(rows.len() >= 20, "{figure}: {rows:?}");
        for (name, x, value) in rows {
            assert!(words.contains(&name.as_str()) && words.contains(&x.as_str()), "{figure}: {name}, {x}: {words:?}");
            assert!((30.0..100.0).contains(&value), "{figure}: {name}, {x}: {value}");
        }
    }
    // A figure that is drawn alone is the same, and replaces the file that had its name.
    let alone = folder.path().join("alone");
    std::fs::create_dir(&alone).expect("made");
    std::fs::write(alone.join("ics19-13.csv"), "something else").expect("written");
    assert_eq!(draw("13", &alone).status, 0);
    assert_eq!(read(&alone.join("ics19-13.csv")), read(&out.join("ics19-13.csv")));
    assert_eq!(std::fs::read_dir(&alone).expect("listed").count(), 2);
}

/// Checks the paper's conclusions from its figures 2 and 3.
#[test]
fn efficiency_falls_with_scale_and_density_and_memory_is_the_lever() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(draw("all", folder.path()).status, 0);
    let values = |figure: &str, wanted: &dyn Fn(&str, &str) -> bool| -> Vec<f64> {
        let rows = rows(&read(&folder.path().join(format!("ics19-{figure}.csv"))));
        rows.iter().filter(|(name, x, _)| wanted(name, x)).map(|(.., value)| *value).collect()
    };
    let falls = |values: &[f64]| values.windows(2).all(|pair| pair[0] > pair[1]);
    for density in ["2", "4", "8", "16", "32"] {
        let over_peak = values("2", &|name, _| name == format!("{density} GPUs a processor"));
        assert!(over_peak.len() == 5 && falls(&over_peak), "{density}: {over_peak:?}");
    }
    for peak in ["0.45", "0.9", "1.8", "3.6", "7.2"] {
        let over_density = values("2", &|_, x| x == peak);
        assert!(over_density.len() == 5 && falls(&over_density[2..]), "{peak}: {over_density:?}");
        let levers = values("3", &|_, x| x == peak);
        let [both, memory, disk, none] = levers[..] else { panic!("{levers:?}") };
        assert!(both > memory && memory - none > 1.5 * (disk - none) && disk > none, "{peak}: {levers:?}");
    }
}

/// `docs/PLANNING.md` shows what the command draws: names and words are equal, and so are numbers, except in the last digit of
/// a machine's arithmetic.
#[test]
fn stored_figures_are_those_that_are_drawn() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(draw("all", folder.path()).status, 0);
    let stored = Path::new(env!("WORKSPACE_ROOT")).join("docs/planning");
    for figure in FIGURES {
        let both = |extension: &str| {
            let file = format!("ics19-{figure}.{extension}");
            [&stored, folder.path()].map(|folder| read(&folder.join(&file)))
        };
        let [old, new] = both("csv");
        assert_eq!(old.lines().next(), new.lines().next(), "{figure}");
        let (old, new) = (rows(&old), rows(&new));
        assert_eq!(old.len(), new.len(), "{figure}");
        for (old, new) in old.iter().zip(&new) {
            assert!(old.0 == new.0 && old.1 == new.1 && (old.2 - new.2).abs() < 0.011, "{figure}: {old:?}, {new:?}");
        }
        let [old, new] = both("svg");
        assert_eq!(words(&old), words(&new), "{figure}");
        // Marks, lines and colours must agree; their places follow from the numbers above.
        let shapes = |svg: &str| svg.replace(|c: char| c.is_ascii_digit(), "");
        assert!(shapes(&old) == shapes(&new), "{figure}: shapes differ");
        assert!(old.len() < 100 << 10, "{figure}: {} bytes", old.len());
    }
}

#[test]
fn a_plan_is_drawn_beside_its_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("losses.svg");
    let options = ["--preset", "node-8gpu", "--nodes", "512", "--mtbf", "6h"];
    let ran = plan(&[&options[..], &["--svg", file.to_str().expect("UTF-8")]].concat());
    assert_eq!((ran.status, ran.err.as_str(), &ran.out), (0, "", &plan(&options).out));
    let drawing = read(&file);
    let words = words(&drawing);
    let work = ran.out.lines().find_map(|line| line.split_once(" of the time is work")).expect("it says so").0;
    let title =
        &*format!("node-8gpu: 512 nodes, 320.0 GiB per node, a failure every 6.0 h: {work} of the time is work");
    let legend = ["checkpoints", "rework", "recovery", "all three to first order", "exact loss", "best"];
    for text in [title, "work between two checkpoints [min]", "time that is lost [%]"].iter().chain(&legend) {
        assert!(words.contains(text), "{text}: {words:?}");
    }
    assert_eq!(drawing.matches("<circle ").count(), 1, "the mark");
}

#[test]
fn what_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("a file");
    std::fs::write(&file, "").expect("written");
    let below = file.join("below");
    let taken = folder.path().join("ics19-2.svg");
    std::fs::create_dir(&taken).expect("made");
    let lost = folder.path().join("nowhere/losses.svg");
    let lost_ran = plan(&["--svg", lost.to_str().expect("UTF-8")]);
    for (ran, words) in [
        (draw("2", &below), format!("cannot make {}: Not a directory (os error 20)", below.display())),
        (draw("2", folder.path()), format!("cannot write {}: Is a directory (os error 21)", taken.display())),
        (lost_ran, format!("cannot write {}: No such file or directory (os error 2)", lost.display())),
    ] {
        assert_eq!((ran.status, ran.err), (2, format!("bivouac: {words}\n")));
    }
}
