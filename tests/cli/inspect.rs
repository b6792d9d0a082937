//! `bivouac inspect`: the summary of a checkpoint, and the output for one of its ranks.
#![forbid(unsafe_code)]

use crate::store::{Store, bivouac, with_path};
use crate::{limit, store};
use bivouac_core::config::{Budget, Config, Method};
use bivouac_core::{Boxes, Level, OnResize, Session};
use serde_json::{Value, json};

#[test]
fn a_summary_is_a_few_lines_however_many_ranks_there_are() {
    let store = Store::on(&[0; 9]);
    // There is room for all ranks: a rank that finds no room writes a file of its own, and which rank that is depends on who comes last.
    let room = |config: &mut Config| config.node.memory_budget = Budget::Bytes(64 << 20);
    store.run(room, |session, rank| store::take(session, rank, &[10], Level::System));
    let folder = store.folders(&store.global())[0].clone();
    let ran = with_path(&["inspect", "--summary"], &folder);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!((ran.status, lines.len()), (0, 8), "{}", ran.out);
    assert!(lines[0].contains("g000001-v0000000010") && lines[0].ends_with("global tier, committed (system)"));
    assert!(lines[1].contains("world/heat version 10 of generation 1, operation "), "{}", ran.out);
    assert!(lines[2].contains("shards of 9 of 9 ranks, "), "{}", ran.out);
    // The regions are 9 of 12000 bytes, 9 of 6 bytes, 9 empty ones and 9 values of 8 bytes.
    assert_eq!(lines[3].trim(), "region field: f64, 105.5 KiB");
    assert_eq!(lines[4].trim(), "region few: u16, 54 B");
    assert_eq!(lines[6].trim(), "region step: value, 72 B");
    let document = with_path(&["inspect", "--summary", "--json"], &folder).json();
    let summary = &document["summaries"][0];
    assert_eq!((&summary["ranks"], &summary["version"], &summary["tier"]), (&9.into(), &10.into(), &"global".into()));
    assert_eq!(
        summary["regions"][0],
        serde_json::json!({"name": "field", "kind": "array", "element": "f64", "ranks": 9, "bytes": 108000})
    );
    assert_eq!(document["checkpoints"], serde_json::json!([]));
    // Files alone can be summarized, and so can damaged files.
    let container = folder.join("c000000.bvc");
    let alone = with_path(&["inspect", "--summary"], &container);
    assert!(alone.status == 0 && alone.out.contains(" of 9 ranks, "), "{alone:?}");
    std::fs::write(&container, "cut").expect("written");
    for path in [&folder, &container] {
        let ran = with_path(&["inspect", "--summary"], path);
        assert!(ran.status == 1 && ran.out.contains("c000000.bvc: "), "{ran:?}");
    }
    assert_eq!(with_path(&["inspect", "--summary", "--rank", "1"], &folder).status, 2);
}

#[test]
fn one_rank_alone_is_shown() {
    let store = Store::with(&[10]);
    for root in [store.global(), store.local()] {
        let folder = store.folders(&root)[0].clone();
        let ran = with_path(&["inspect", "--rank", "1"], &folder);
        assert!(ran.status == 0 && ran.out.contains("shard of rank 1 of 2"), "{ran:?}");
        assert!(!ran.out.contains("shard of rank 0") && !ran.out.contains("r000000.bvs"), "{}", ran.out);
        let document = with_path(&["inspect", "--rank", "1", "--json"], &folder).json();
        let containers = document["checkpoints"][0]["containers"].as_array().expect("a list").clone();
        let shards: Vec<_> = containers.iter().flat_map(|view| view["shards"].as_array().expect("a list")).collect();
        assert!(shards.len() == 1 && shards[0]["rank"] == 1, "{document}");
        let none = with_path(&["inspect", "--rank", "2"], &folder);
        assert!(none.status == 3 && none.err.contains("no shard of rank 2: it has those of ranks 0-1"), "{none:?}");
    }
    let container = store.folders(&store.global())[0].join("c000000.bvc");
    let ran = with_path(&["inspect", "--rank", "0"], &container);
    assert!(ran.out.contains("shard of rank 0") && !ran.out.contains("shard of rank 1"), "{ran:?}");
    let both = [container.clone(), store.folders(&store.local())[0].clone()].map(|path| path.display().to_string());
    assert_eq!(bivouac(&["inspect", "--rank", "7", &both[0], &both[1]]).status, 3);
}

/// Takes a checkpoint with a hundred and twenty regions, each with a name of 250 characters.
fn many(session: &Session, _: u32) {
    let names: Vec<String> = (0..120).map(|at| format!("{at:03}-{}-end", "n".repeat(242))).collect();
    let data = vec![1.0f64; 600];
    let mut checkpoint = session.begin_checkpoint("heat", 10).expect("a checkpoint");
    names.iter().for_each(|name| checkpoint.save(name, &data).expect("a region"));
    checkpoint.capture().expect("captured").wait(Level::System).expect("committed");
}

#[test]
fn what_lists_everything_is_cut_and_says_how_much_is_left_out() {
    let store = Store::empty();
    store.run(|_| (), many);
    let folder = store.folders(&store.global())[0].clone();
    let all = with_path(&["inspect"], &folder).out;
    // Each of two ranks has 120 regions of the program, and the affinity.
    assert_eq!(all.matches("and 71 more regions (--json shows all)").count(), 2, "{all}");
    assert!(all.contains("000-nnn") && !all.contains("080-nnn") && all.contains("…(190 more characters)…"), "{all}");
    assert!(all.lines().all(|line| line.chars().count() < 250), "{all}");
    let summary = with_path(&["inspect", "--summary"], &folder).out;
    assert!(summary.contains("  and 101 more regions\n") && summary.lines().count() == 24, "{summary}");
    let document = with_path(&["inspect", "--json"], &folder).json();
    let shard = &document["checkpoints"][0]["containers"][0]["shards"][0];
    assert_eq!(shard["regions"].as_array().map(Vec::len), Some(121));
    let none = bivouac(&["export", folder.to_str().expect("UTF-8"), "nosuch", "-o", "/nowhere/x.npy"]);
    assert!(none.status == 3 && none.err.contains("and 101 more") && none.err.len() < 2500, "{none:?}");
    // Every block of every region is bad, but the messages stay readable.
    let container = folder.join("c000000.bvc");
    let mut bytes = std::fs::read(&container).expect("read");
    let (_, body) = store::areas(&bytes).swap_remove(4);
    let mut at = body.start;
    while bytes[at..at + 8] == 1f64.to_le_bytes() {
        bytes[at] ^= 1;
        at += 8192;
    }
    std::fs::write(&container, &bytes).expect("written");
    let verified = with_path(&["verify"], &folder).out;
    assert!(verified.contains("and more; the rest of the shard was not read"), "{verified}");
    assert!(verified.lines().count() <= 104 && verified.lines().all(|line| line.chars().count() < 500), "{verified}");
}

#[test]
fn many_reasons_and_long_arguments_are_cut() {
    let store = Store::on(&(0..12).collect::<Vec<u32>>());
    store.run(|_| (), |session, rank| store::take(session, rank, &[10], Level::System));
    let folder = store.folders(&store.global())[0].clone();
    let containers = store::entries(&folder).into_iter().filter(|path| path.extension().is_some_and(|it| it == "bvc"));
    containers.for_each(|path| std::fs::remove_file(path).expect("removed"));
    let row = with_path(&["ls"], &folder).out;
    assert!(
        row.contains("c000000.bvc is missing") && row.contains("; and 4 more") && !row.contains("c000011"),
        "{row}"
    );
    let long = "j".repeat(5000);
    let place = |path: &std::path::Path| path.to_str().expect("UTF-8").to_owned();
    let (global, memory, local) = (place(&store.global()), place(&store.memory_of(0)), place(&store.local_of(0)));
    let unknown = bivouac(&["drain", "--global", &global, "--memory", &memory, "--local", &local, "--job", &long]);
    assert!(unknown.status == 3 && unknown.err.contains("(4940 more characters)"), "{}", unknown.err);
    assert!(unknown.err.chars().count() < 600, "{}", unknown.err);
    let error = bivouac(&["ls", &long]).err;
    assert!(error.contains("more characters)") && error.contains("os error 36"), "{error}");
    assert!(error.chars().count() < 2100, "{error}");
}

/// Saves a region for each way in which a program can distribute data over the ranks: rows of an array, patches of another array, values.
fn dealt(session: &Session, rank: u32) {
    let rows = Boxes::of([2000, 7]).own([u64::from(rank) * 1000, 0], [1000, 7]).halo([1, 0]);
    let patches = (0..6)
        .fold(Boxes::of([1000, 40]).sparse(), |boxes, at| boxes.own([at * 100 + 3 * u64::from(rank), 7], [1, at + 1]));
    let (rows, patches) = (session.decompose(rows).expect("rows"), session.decompose(patches).expect("patches"));
    let (t, small) = (vec![1.0f64; 1002 * 7], vec![2u16; 6]);
    let memory: Vec<&[u16]> = (0..6).map(|at| &small[..at + 1]).collect();
    let mut checkpoint = session.begin_checkpoint("heat", 10).expect("a checkpoint");
    checkpoint.save_on("t", &rows, &t).expect("a region");
    checkpoint.save_boxes_on("patches", &patches, &memory).expect("a region");
    checkpoint.shared("step", &10u64).expect("a value");
    checkpoint.per_rank("seed", &rank, OnResize::Ask).expect("a value");
    checkpoint.per_rank("scratch", &rank, OnResize::Drop).expect("a value");
    if session.generation() == 1 {
        checkpoint.per_rank("window", &rank, OnResize::Refuse).expect("a value");
        checkpoint.value("plain", &rank).expect("a value");
    }
    let pending = checkpoint.capture().expect("captured");
    // Checkpoints do not refer to files that are still on their way to a tier.
    limit::wait_until("all levels end", || pending.poll());
}

#[test]
fn how_regions_lie_over_the_ranks_is_shown() {
    let store = Store::empty();
    store.run_killed(|_| (), dealt);
    let folder = store.folders(&store.global())[0].clone();
    let shards = |document: &serde_json::Value, of: &str| document[of][0]["shards"].as_array().expect("a list").clone();
    let in_files = with_path(&["inspect", "--json"], &folder.join("c000000.bvc")).json();
    let in_memory = with_path(&["inspect", "--json"], &store.segment()).json();
    for shard in shards(&in_files, "containers").iter().chain(&shards(&in_memory, "segments")) {
        let (dealt, rank) = (&shard["dealt"], shard["rank"].as_u64().expect("a number"));
        assert_eq!((&dealt["why"], &dealt["bound"]), (&Value::Null, &json!(["window", "plain"])), "{dealt}");
        let rules: Vec<(&str, Option<u64>)> = dealt["regions"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|said| (said["rule"].as_str().expect("text"), said["array"].as_u64()))
            .collect();
        let values = ["shared", "ask", "drop", "refuse", "own"].map(|rule| (rule, None));
        assert_eq!(rules, [&[("array", Some(0)), ("array", Some(1))][..], &values].concat());
        let (rows, patches) = (&dealt["arrays"][0], &dealt["arrays"][1]);
        assert_eq!((&rows["shape"], &rows["sparse"], &rows["boxes"]), (&json!([2000, 7]), &json!(false), &json!(1)));
        assert_eq!(rows["first_boxes"], json!([{"origin": [1000 * rank, 0], "extent": [1000, 7]}]));
        assert_eq!(
            (&patches["sparse"], &patches["boxes"], &patches["elements"]),
            (&json!(true), &json!(6), &json!(21))
        );
        assert_eq!(patches["first_boxes"][5], json!({"origin": [500 + 3 * rank, 7], "extent": [1, 6]}));
    }
    let text = with_path(&["inspect", "--rank", "1"], &folder).out;
    for line in [
        "    array   0: 2000 x 7; this rank has [1000..2000, 0..7], 7000 elements\n",
        "    array   1: 1000 x 40, sparse; this rank has [3, 7], [103, 7..9], [203, 7..10], [303, 7..11] and 2 more boxes, 21 elements\n",
        "    resize  can be restored only by 2 ranks, because of window, plain\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    let cell = |region: &str| {
        let row = text.lines().find(|line| line.trim_start().starts_with(region)).expect("a row");
        row.rsplit("  ").next().expect("cells").to_owned()
    };
    assert_eq!(
        ["REGION", "t ", "patches", "step", "seed", "scratch", "window", "plain", ".bivouac/decomposition"].map(cell),
        [
            "OVER RANKS",
            "array 0",
            "array 1",
            "shared",
            "per rank, ask",
            "per rank, drop",
            "per rank, refuse",
            "its rank's own",
            "-"
        ]
    );
    let summary = with_path(&["inspect", "--summary"], &folder).out;
    assert!(summary.contains("\n  can be restored only by 2 ranks, because of window, plain\n"), "{summary}");

    // The same is shown without those two regions, and for a file that refers to the one before it.
    let refers = |config: &mut Config| config.job.reduction.method = Method::Basic;
    store.run(refers, |session, rank| (0..2).for_each(|_| dealt(session, rank)));
    let folders = store.folders(&store.global());
    for (folder, content) in [(&folders[1], "shard of rank 1"), (&folders[2], "packed shard of rank 1")] {
        let text = with_path(&["inspect", "--rank", "1"], folder).out;
        assert!(text.contains(content) && text.contains("resize  can be restored by any number of ranks\n"), "{text}");
    }
    let away = store.disk.path().join("away.bvc");
    std::fs::copy(folders[2].join("c000000.bvc"), &away).expect("copied");
    let ran = with_path(&["inspect"], &away);
    assert!(
        ran.status == 0 && ran.out.contains("dealt   over the ranks, but how is not known: it refers to"),
        "{ran:?}"
    );
    // This record is damaged.
    let container = folder.join("c000000.bvc");
    let mut bytes = std::fs::read(&container).expect("read");
    let identity = in_files["containers"][0]["shards"][0]["dealt"]["arrays"][0]["identity"].as_str().expect("text");
    let identity = u128::from_str_radix(identity, 16).expect("a number").to_le_bytes();
    let at = bytes.windows(16).position(|window| window == identity).expect("it is there");
    bytes[at] ^= 1;
    std::fs::write(&container, &bytes).expect("written");
    let ran = with_path(&["inspect"], &container);
    assert!(ran.status == 1 && ran.out.contains("its bytes do not match their digest"), "{ran:?}");
}
