//! `bivouac diff` of checkpoints that different numbers of ranks have taken, or that use different decompositions. The test counts the
//! expected differences element by element.
#![forbid(unsafe_code)]

use crate::store::{Ran, Store, bivouac};
use bivouac_core::{Boxes, Level, OnResize, Session};
use std::path::PathBuf;

const SHAPE: [u64; 2] = [37, 53];

/// The ways to cut the array.
#[derive(Clone, Copy)]
enum Cut {
    Rows,
    Columns,
}

/// The contents of a checkpoint.
#[derive(Clone, Copy)]
struct State {
    ranks: u32,
    cut: Cut,
    element: fn([u64; 2]) -> f64,
    /// The range of rows in which the level has values.
    level: [u64; 2],
    step: u64,
    /// Whether each rank saves its part of the array as its own region.
    is_plain: bool,
}

fn usual([y, x]: [u64; 2]) -> f64 {
    (y * SHAPE[1] + x) as f64
}

const USUAL: State = State { ranks: 3, cut: Cut::Rows, element: usual, level: [5, 20], step: 7, is_plain: false };

/// The first element and the extent of a rank's part.
fn own(cut: Cut, rank: u32, ranks: u32) -> ([u64; 2], [u64; 2]) {
    let dim = if matches!(cut, Cut::Rows) { 0 } else { 1 };
    let first = |rank: u32| SHAPE[dim] * u64::from(rank) / u64::from(ranks);
    let (mut from, mut extent) = ([0, 0], SHAPE);
    (from[dim], extent[dim]) = (first(rank), first(rank + 1) - first(rank));
    (from, extent)
}

fn values(from: [u64; 2], extent: [u64; 2], element: impl Fn([u64; 2]) -> f64) -> Vec<f64> {
    let rows = from[0]..from[0] + extent[0];
    rows.flat_map(|y| (from[1]..from[1] + extent[1]).map(move |x| [y, x])).map(element).collect()
}

fn take(session: &Session, rank: u32, state: &State) {
    let (from, extent) = own(state.cut, rank, state.ranks);
    let grid = session.decompose(Boxes::of(SHAPE).own(from, extent)).expect("a grid");
    // The rows of the level are dealt out one by one.
    let rows: Vec<u64> =
        (state.level[0]..state.level[1]).filter(|row| row % u64::from(state.ranks) == u64::from(rank)).collect();
    let level = rows.iter().fold(Boxes::of(SHAPE).sparse(), |level, row| level.own([*row, 3], [1, 4]));
    let level = session.decompose(level).expect("a level");
    let t = values(from, extent, state.element);
    let patches: Vec<Vec<f64>> = rows.iter().map(|row| values([*row, 3], [1, 4], state.element)).collect();
    let patches: Vec<&[f64]> = patches.iter().map(Vec::as_slice).collect();
    let mut checkpoint = session.begin_checkpoint("heat", 10).expect("a checkpoint");
    match state.is_plain {
        true => checkpoint.save_shaped("t", &t, &extent).expect("a region"),
        false => checkpoint.save_on("t", &grid, &t).expect("a region"),
    }
    checkpoint.save_boxes_on("level", &level, &patches).expect("a region");
    checkpoint.shared("step", &state.step).expect("a value");
    checkpoint.per_rank("seed", &rank, OnResize::Drop).expect("a value");
    let pending = checkpoint.capture().expect("captured");
    pending.wait(Level::System).expect("committed");
}

fn store(state: State) -> (Store, PathBuf) {
    let nodes: Vec<u32> = (0..state.ranks).map(|rank| rank / 2).collect();
    let store = Store::on(&nodes);
    store.run(|_| (), |session, rank| take(session, rank, &state));
    let folder = store.folders(&store.global())[0].clone();
    (store, folder)
}

fn diff(a: &std::path::Path, b: &std::path::Path, more: &[&str]) -> Ran {
    let both = [a, b].map(|path| path.to_str().expect("UTF-8"));
    bivouac(&[&["diff"], more, &both[..]].concat())
}

#[test]
fn the_same_state_on_other_ranks_is_equal() {
    let (_a, a) = store(State { ranks: 4, ..USUAL });
    for other in [State { ranks: 3, ..USUAL }, State { ranks: 1, cut: Cut::Columns, ..USUAL }] {
        let (_b, b) = store(other);
        for more in [&[][..], &["--read"]] {
            let ran = diff(&a, &b, more);
            assert_eq!(ran.status, 0, "{ran:?}");
            assert!(
                ran.out.contains("not compared: seed (each rank has its own, but 4 and ")
                    && ran.out.ends_with("equal: 3 regions\n"),
                "{ran:?}"
            );
        }
        // The options name what cannot be compared.
        for (more, text) in [
            (&["--region", "seed"][..], "nothing can be compared: \"seed\": each rank has its own"),
            (&["--rank", "0"], "omit --rank"),
        ] {
            let ran = diff(&a, &b, more);
            assert!(ran.status == 2 && ran.err.contains(text), "{ran:?}");
        }
        let ran = diff(&a, &b, &["--region", "nosuch"]);
        assert!(ran.status == 3 && ran.err.contains("neither checkpoint has a region \"nosuch\""), "{ran:?}");
    }
}

/// Elements that differ from the usual ones.
fn changed([y, x]: [u64; 2]) -> f64 {
    let is_other = y % 9 == 4 && x % 17 == 16 || [y, x] == [13, 5];
    usual([y, x]) + if is_other { 0.25 * y as f64 } else { 0.0 }
}

fn all_of(shape: [u64; 2]) -> impl Iterator<Item = [u64; 2]> {
    (0..shape[0]).flat_map(move |y| (0..shape[1]).map(move |x| [y, x]))
}

#[test]
fn elements_that_differ_are_counted_and_named_with_both_ranks() {
    let (_a, a) = store(USUAL);
    let (_b, b) = store(State { ranks: 4, cut: Cut::Columns, element: changed, step: 8, ..USUAL });
    let ran = diff(&a, &b, &["--json"]);
    assert_eq!(ran.status, 1, "{ran:?}");
    let document = ran.json();
    let row = |name: &str| {
        let rows = document["differences"].as_array().expect("a list");
        rows.iter().find(|row| row["region"] == name).unwrap_or_else(|| panic!("{name}: {document}")).clone()
    };
    let differ: Vec<[u64; 2]> = all_of(SHAPE).filter(|at| usual(*at) != changed(*at)).collect();
    let t = row("t");
    assert_eq!((&t["what"], &t["rank"]), (&"elements".into(), &serde_json::Value::Null));
    let elements = &t["elements"];
    assert_eq!(elements["differ"], differ.len());
    assert_eq!((&elements["only_in_a"], &elements["only_in_b"]), (&0.into(), &0.into()));
    let owner = |state: Cut, ranks: u32, at: [u64; 2]| {
        let has = |rank: &u32| {
            let (from, extent) = own(state, *rank, ranks);
            (0..2).all(|dim| (from[dim]..from[dim] + extent[dim]).contains(&at[dim]))
        };
        (0..ranks).find(has).expect("somebody")
    };
    let first = elements["first"].as_array().expect("a list");
    assert_eq!(first.len(), 4);
    for (first, at) in first.iter().zip(&differ) {
        assert_eq!(first["index"], serde_json::json!(at));
        assert_eq!(first["values"], serde_json::json!([format!("{:?}", usual(*at)), format!("{:?}", changed(*at))]));
        assert_eq!(first["ranks"], serde_json::json!([owner(Cut::Rows, 3, *at), owner(Cut::Columns, 4, *at)]));
    }
    let by = |at: &[u64; 2]| changed(*at) - usual(*at);
    let most = differ.iter().map(by).fold(0.0, f64::max);
    let place = differ.iter().find(|at| by(at) == most).expect("one");
    assert_eq!(t["largest"], serde_json::json!([most, place[0] * SHAPE[1] + place[1]]));
    // The level has four columns of fifteen rows.
    let of_level = differ.iter().filter(|[y, x]| (5..20).contains(y) && (3..7).contains(x)).count();
    assert_eq!(row("level")["elements"]["differ"], of_level);
    let step = row("step");
    assert_eq!((&step["rank"], &step["what"]), (&serde_json::Value::Null, &"bytes".into()));
    assert_eq!(document["incomparable"][0]["region"], "seed");
    let text = diff(&a, &b, &["--region", "t"]).out;
    let shown = format!("{} elements", differ.len());
    let [y, x] = differ[0];
    let first = format!("[{y}, {x}]: {:?} (rank {}) and ", usual(differ[0]), owner(Cut::Rows, 3, differ[0]));
    assert!(text.contains(&shown) && text.contains(&first) && text.contains("1 of 1 regions differ"), "{text}");
}

#[test]
fn what_only_one_of_two_sparse_arrays_has_is_counted() {
    let (_a, a) = store(USUAL);
    let (_b, b) = store(State { ranks: 2, level: [7, 30], ..USUAL });
    let ran = diff(&a, &b, &["--json", "--region", "level"]);
    assert_eq!(ran.status, 1, "{ran:?}");
    let elements = ran.json()["differences"][0]["elements"].clone();
    assert_eq!(
        (&elements["differ"], &elements["only_in_a"], &elements["only_in_b"]),
        (&0.into(), &8.into(), &40.into())
    );
    // Boxes depend on the rank: rank 0 of 3 has row 6, and rank 2 has row 5.
    assert_eq!(
        elements["first"][0],
        serde_json::json!({ "index": [6, 3], "values": ["321.0", null], "ranks": [0, null] })
    );
    let text = diff(&b, &a, &["--region", "level"]).out;
    assert!(text.contains("40 only in a, 8 only in b"), "{text}");
}

#[test]
fn on_as_many_ranks_another_cut_is_compared_by_element_and_the_rest_by_rank() {
    let (_a, a) = store(USUAL);
    let (_b, b) = store(State { cut: Cut::Columns, element: changed, ..USUAL });
    let ran = diff(&a, &b, &["--json"]);
    let document = ran.json();
    assert_eq!((ran.status, document["incomparable"].as_array().map(Vec::len)), (1, Some(0)), "{document}");
    let rows = document["differences"].as_array().expect("a list");
    // The level is decomposed as before: each rank's part is compared with that of the same rank.
    let level = rows.iter().filter(|row| row["region"] == "level");
    assert!(level.clone().count() > 0 && level.into_iter().all(|row| row["rank"].is_u64()), "{document}");
    let t: Vec<_> = rows.iter().filter(|row| row["region"] == "t").collect();
    assert!(t.len() == 1 && t[0]["rank"].is_null() && t[0]["what"] == "elements", "{document}");
    // Equal are the steps and seeds of three ranks, and the other parts of the level.
    assert_eq!(document["equal"], 6 + 3 - rows.iter().filter(|row| row["region"] == "level").count());
    let ran = diff(&a, &b, &["--rank", "1", "--region", "t"]);
    assert!(ran.status == 2 && ran.err.contains("its decompositions differ: omit --rank"), "{ran:?}");
}

#[test]
fn an_array_that_one_program_has_not_laid_over_the_ranks_is_compared_by_rank_or_not_at_all() {
    let (_a, a) = store(USUAL);
    let (_b, b) = store(State { is_plain: true, ..USUAL });
    let ran = diff(&a, &b, &["--region", "t", "--read"]);
    assert_eq!((ran.status, ran.out.as_str()), (0, "equal: 3 regions\n"), "{ran:?}");
    let (_c, c) = store(State { is_plain: true, ranks: 2, ..USUAL });
    let ran = diff(&a, &c, &["--region", "t"]);
    assert!(
        ran.status == 2 && ran.err.contains("it is spread over the ranks in only one of the checkpoints"),
        "{ran:?}"
    );
}

#[test]
fn one_node_is_not_compared_with_all_of_another_job() {
    let (a_store, a) = store(USUAL);
    let (_b, b) = store(State { ranks: 2, ..USUAL });
    let local = a_store.folders(&a_store.local_of(0))[0].clone();
    let ran = diff(&local, &b, &["--region", "t"]);
    assert!(ran.status == 3 && ran.err.contains("because only the shards of ranks 0-1 of 3 are"), "{ran:?}");
    drop(a);
}
