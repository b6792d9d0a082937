//! Loads of any elements that ranks want: ghost cells, and elements that other ranks also load.

use super::*;
use crate::decomposition::{Boxes, Ids, Part};
use crate::recovery::LoadError;

const SHAPE: [u64; 2] = [100, 6];
const TOTAL: u64 = 9_000;

/// The first row of a rank, and the first row after its part.
fn rows(rank: u32, ranks: u32) -> (u64, u64) {
    let first = |rank: u32| u64::from(rank) * SHAPE[0] / u64::from(ranks);
    (first(rank), first(rank + 1))
}

fn value(y: u64, x: u64) -> f64 {
    (y * SHAPE[1] + x) as f64 + 0.5
}

fn values(rows: std::ops::Range<u64>) -> Vec<f64> {
    rows.flat_map(|y| (0..SHAPE[1]).map(move |x| value(y, x))).collect()
}

/// Takes version 5 on four ranks of two nodes.
fn take(bed: &Bed) {
    on_nodes(
        bed,
        &[0, 0, 1, 1],
        |_| (),
        |rank, session| {
            let (from, to) = rows(rank, 4);
            let slab = session.decompose(Boxes::of(SHAPE).own([from, 0], [to - from, SHAPE[1]])).expect("it tiles");
            let own: Vec<u64> = (0..TOTAL).filter(|number| number % 5 % 4 == u64::from(rank)).collect();
            let mesh = session.decompose(Ids::of(TOTAL).own(own.iter().copied())).expect("each has one");
            let level = session.decompose(Boxes::of(SHAPE).own([from, 0], [1, 3]).sparse()).expect("apart");
            let (t, patch) = (values(from..to), [1u8; 3]);
            let pressure: Vec<u32> = own.iter().map(|number| *number as u32 ^ 1).collect();
            let mut checkpoint = session.begin_checkpoint("heat", 5).expect("begun");
            checkpoint.save_on("t", &slab, &t).expect("saved");
            checkpoint.save_on("pressure", &mesh, &pressure).expect("saved");
            checkpoint.save_on("level", &level, &patch).expect("saved");
            checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
            session.close().expect("closed");
        },
    );
}

#[test]
fn ghost_cells_and_what_others_want_too_are_loaded_on_any_number_of_ranks() {
    let bed = Bed::new();
    take(&bed);
    for ranks in [4u32, 3, 1, 6] {
        let nodes: Vec<u32> = (0..ranks).map(|rank| rank * 2 / ranks).collect();
        let work = |rank: u32, session: Session| {
            let (from, to) = rows(rank, ranks);
            let (low, high) = (from.saturating_sub(1), (to + 1).min(SHAPE[0]));
            let restored = session.begin_restore("heat").run(|r| {
                // One more row is wanted on each side, unless it is outside the array. In memory, each row ends with a column for another
                // use.
                let wide = SHAPE[1] as usize + 1;
                let mut t = vec![-1.0; (high - low) as usize * wide];
                let wanted = Boxes::of(SHAPE).own([low, 0], [high - low, SHAPE[1]]).margins([0, 0], [0, 1]);
                r.load_wanted("t", wanted, &mut [&mut t])?;
                for (row, y) in t.chunks_exact(wide).zip(low..) {
                    assert!(
                        row[..wide - 1] == values(y..y + 1) && row[wide - 1] == -1.0,
                        "row {y} on {rank} of {ranks}"
                    );
                }
                // All rows go into two memories, which have some rows in common. The last rank wants nothing.
                let is_idle = ranks > 1 && rank == ranks - 1;
                let (mut upper, mut lower) = (vec![0.0; 60 * 6], vec![0.0; 60 * 6]);
                match is_idle {
                    true => r.load_wanted::<f64>("t", Boxes::of(SHAPE), &mut [])?,
                    false => {
                        let both = Boxes::of(SHAPE).own([0, 0], [60, 6]).own([40, 0], [60, 6]);
                        r.load_wanted("t", both, &mut [&mut upper, &mut lower])?;
                        assert!(upper == values(0..60) && lower == values(40..100), "{rank} of {ranks}");
                    }
                }
                // All ranks but one load all numbers.
                let mut pressure = vec![0u32; if is_idle { 0 } else { TOTAL as usize }];
                let numbers = (0..TOTAL).rev().take(pressure.len());
                r.load_wanted("pressure", Ids::of(TOTAL).own(numbers.clone()), &mut [&mut pressure])?;
                assert!(numbers.zip(&pressure).all(|(number, found)| *found == number as u32 ^ 1));
                Ok(())
            });
            assert_eq!(restored.expect("restored").expect("there is one").version, 5);
            session.close().expect("closed");
        };
        on_nodes(&bed, &nodes, |_| (), work);
    }
}

#[test]
fn what_cannot_be_wanted_is_told_to_all_ranks() {
    let bed = Bed::new();
    take(&bed);
    let refused = |name: &'static str, of: &(dyn Fn(u32) -> Part + Sync)| -> Vec<String> {
        on_nodes(
            &bed,
            &[0, 1, 1],
            |_| (),
            |rank, session| {
                let mut first = None;
                let end = session.begin_restore("heat").run(|r| {
                    let mut memory = vec![0.0f64; 600];
                    let end = r.load_wanted(name, of(rank), &mut [&mut memory]);
                    first = end.as_ref().err().map(LoadError::to_string);
                    Ok(end?)
                });
                end.expect_err("refused");
                session.close().expect("closed");
                first.expect("an error")
            },
        )
    };
    let all = || Boxes::of(SHAPE).own([0, 0], SHAPE);
    let one_outside = |rank| if rank == 1 { Boxes::of(SHAPE).own([99, 0], [2, 6]) } else { all() }.into();
    for text in refused("t", &one_outside) {
        assert!(text.contains("rank 1") && text.contains("is not inside the array"), "{text}");
    }
    let another = |rank| if rank == 2 { Boxes::of([100, 7]).own([0, 0], [100, 6]) } else { all() }.into();
    for text in refused("t", &another) {
        assert!(text.contains("rank 2: called load \"t\""), "{text}");
    }
    for text in refused("t", &|_| Boxes::of([10, 60]).own([0, 0], [10, 60]).into()) {
        assert!(text.contains("is part of an array of shape [100, 6], not [10, 60]"), "{text}");
    }
    for text in refused("t", &|_| Ids::of(600).own(0..600).into()) {
        assert!(text.contains("is part of an array of shape [100, 6], not [600]"), "{text}");
    }
    // Only some of the elements were saved.
    let texts = on_nodes(
        &bed,
        &[0, 1, 1],
        |_| (),
        |rank, session| {
            let end = session.begin_restore("heat").run(|r| {
                let mut patch = [0u8; 4];
                let wanted =
                    Boxes::of(SHAPE).own([if rank == 1 { 25 } else { 0 }, 0], [1, if rank == 1 { 4 } else { 3 }]);
                let length = if rank == 1 { 4 } else { 3 };
                Ok(r.load_wanted("level", wanted.sparse(), &mut [&mut patch[..length]])?)
            });
            let text = end.expect_err("refused").to_string();
            session.close().expect("closed");
            text
        },
    );
    assert!(texts.iter().all(|text| text.contains("no rank saved elements [25, 3], which rank 1 loads")), "{texts:?}");
}
