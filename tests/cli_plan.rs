//! `bivouac plan`: what it says in its three forms, and what it refuses.
#![forbid(unsafe_code)]

#[path = "common/limit.rs"]
mod limit;
mod store;

use store::{Ran, bivouac};

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

/// More nodes fail more often, so they checkpoint more often and do less; a longer time between failures is worth more.
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
}

/// What it prints for a configuration is one.
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
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (options, words) in [
        (&["--preset", "cray"][..], "there are laptop, node-8gpu, ics19-0.45ef-16"),
        (&["--nodes", "0"], "--nodes"),
        (&["--state", "much"], "a size above 0"),
        (&["--state", "0"], "a size above 0"),
        (&["--mtbf", "0s"], "a time above 0"),
        (&["--json", "--config"], "cannot be used with"),
    ] {
        let ran = plan(options);
        assert_eq!(ran.status, 2, "{options:?}: {}", ran.err);
        assert!(ran.err.contains(words), "{options:?}: {}", ran.err);
    }
}
