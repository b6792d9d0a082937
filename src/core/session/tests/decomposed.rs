//! Arrays that are decomposed over the ranks: what is proved about a decomposition, and what is saved and loaded on it.

use super::*;
use crate::decomposition::{Boxes, Decomposition, OnResize, Part};
use crate::recovery::{Attempt, LoadError};

/// Checks that all ranks got the same error, and returns its text.
pub(super) fn the_same<T>(all: Vec<Result<T, Error>>) -> String {
    let mut texts: Vec<String> = all.into_iter().map(|end| end.err().expect("refused").to_string()).collect();
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:?}");
    texts.remove(0)
}

pub(super) fn decompose<P: Into<Part>>(of: impl Fn(u32) -> P + Sync, ranks: u32) -> Vec<Result<Decomposition, Error>> {
    let nodes: Vec<u32> = (0..ranks).map(|rank| rank / 3).collect();
    on_nodes(
        &Bed::new(),
        &nodes,
        |_| (),
        |rank, session| {
            let end = session.decompose(of(rank));
            // The numbering of calls is still in step on all ranks.
            session.agree("still together", crate::coordination::Payload::None, None).expect("together");
            session.close().expect("closed");
            end
        },
    )
}

/// Slabs of an array of 100 rows, as equal as possible.
fn slab(rank: u32, ranks: u32) -> Boxes {
    let first = |rank: u32| u64::from(rank) * 100 / u64::from(ranks);
    Boxes::of([100, 6]).own([first(rank), 0], [first(rank + 1) - first(rank), 6])
}

#[test]
fn what_tiles_an_array_is_a_decomposition_and_the_same_on_all_ranks() {
    for ranks in [1, 2, 5, 7] {
        let all = decompose(|rank| slab(rank, ranks).halo([1, 0]), ranks);
        let all: Vec<Decomposition> = all.into_iter().map(|end| end.expect("it tiles")).collect();
        assert!(all.iter().all(|one| one.identity() == all[0].identity() && one.shape() == [100, 6]));
        assert_eq!(all.iter().map(Decomposition::elements).sum::<u64>(), 600);
    }
}

#[test]
fn what_does_not_tile_it_is_told_alike_on_all_ranks() {
    let of = |rank| if rank == 2 { Boxes::of([100, 6]).own([38, 0], [22, 6]) } else { slab(rank, 5) };
    let text = the_same(decompose(of, 5));
    assert_eq!(
        text,
        "the array of shape [100, 6] cannot be decomposed: elements [38, 0..6] belong both to box 0 of rank 1 and to box 0 of rank 2"
    );
    let of = |rank| if rank == 2 { Boxes::of([100, 6]) } else { slab(rank, 5) };
    assert!(the_same(decompose(of, 5)).ends_with("elements [40, 0..6] belong to no rank"));
}

#[test]
fn a_rank_with_a_mistake_is_named_and_takes_part() {
    let of = |rank| if rank == 3 { Boxes::of([100, 6]).own([90, 0], [20, 6]) } else { slab(rank, 5) };
    let all = decompose(of, 5);
    let text = the_same(all);
    assert!(
        text.starts_with("decompose: rank 3: box 0 of this rank, of extent [20, 6] at [90, 0], is not inside"),
        "{text}"
    );
    let of = |rank| if rank == 1 { Boxes::of([1; 9]) } else { slab(rank, 4) };
    assert!(the_same(decompose(of, 4)).contains("rank 1: an array of 9 dimensions"));
    let of = |rank| if rank == 1 { Boxes::of([100, 7]).own([0, 0], [1, 7]) } else { slab(rank, 4) };
    assert!(the_same(decompose(of, 4)).contains("rank 1: called decompose an array of shape [100, 7]"));
}

#[test]
fn boxes_without_number_are_proved_too() {
    // Each of four ranks has 2,000 boxes, each of a single cell, in turn.
    let of = |rank: u32| {
        (0..2000u64).fold(Boxes::of([80, 100]), |boxes, number| {
            let at = number * 4 + u64::from(rank);
            boxes.own([at / 100, at % 100], [1, 1])
        })
    };
    assert!(decompose(of, 4).into_iter().all(|end| end.is_ok()));
}

#[test]
fn a_late_rank_is_named_and_nobody_hangs() {
    let ends = on_nodes(
        &Bed::new(),
        &[0, 0, 1],
        |config| {
            config.job.timeouts.abandon = Duration::from_millis(300);
            config.job.timeouts.warn = Duration::from_millis(50);
        },
        |rank, session| {
            if rank == 1 {
                // This rank computes for a long time, and then ends without a call.
                std::thread::sleep(Duration::from_secs(2));
                return None;
            }
            Some(session.decompose(slab(rank, 3)).expect_err("not all are there").to_string())
        },
    );
    for end in [0, 2] {
        let text = ends[end].as_ref().expect("it called");
        assert!(text.starts_with("decompose: rank 1: did not take part"), "{text}");
    }
}

#[test]
fn a_rank_that_does_not_take_what_is_sent_to_it_is_named() {
    use crate::coordination::{Outcome, Payload};
    use crate::decomposition::cells::Sums;
    let ends = on_nodes(
        &Bed::new(),
        &[0, 0, 1],
        |config| config.job.timeouts.abandon = Duration::from_secs(1),
        |rank, session| {
            let boxes = slab((rank + 1) % 3, 3);
            if rank != 1 {
                return Some(session.decompose(boxes).expect_err("not all are there").to_string());
            }
            // This rank describes its part, and is then gone.
            let sums = Sums::of_rank(boxes.check().expect("inside").parts(), crate::base::Rank(rank), 3);
            let engine = session.engine();
            let ballot = engine.ballot("decompose an array of shape [100, 6]", Payload::None);
            let verdict = engine
                .collective(ballot.with_sums(sums.numbers()), Box::new(|ballot| Outcome::agreed("sums", &ballot.sums)));
            assert_eq!(verdict.expect("heard").outcome, Outcome::Agreed);
            std::thread::sleep(Duration::from_secs(3));
            None
        },
    );
    for end in [0, 2] {
        let text = ends[end].as_ref().expect("it called");
        assert!(text.contains("rank 1: did not take part"), "{text}");
        assert!(!text.contains("rank 0: did not") && !text.contains("rank 2: did not"), "{text}");
    }
}

/// The value of an element in a version.
pub(super) fn value(version: u64, y: u64, x: u64) -> f64 {
    (version * 1_000_000 + y * 1000 + x) as f64
}

const GHOST: f64 = -1.0;

/// The memory of boxes with `halo` ghost cells on each side: inside, the elements that `of` gives; around them, other values.
pub(super) fn memory(boxes: &[([u64; 2], [u64; 2])], halo: u64, of: impl Fn(u64, u64) -> f64) -> Vec<Vec<f64>> {
    let fill = |([y0, x0], [rows, columns]): &([u64; 2], [u64; 2])| {
        let (height, width) = (rows + 2 * halo, columns + 2 * halo);
        let inside = |y: u64, x: u64| (halo..halo + rows).contains(&y) && (halo..halo + columns).contains(&x);
        let at = |y: u64, x: u64| if inside(y, x) { of(y0 + y - halo, x0 + x - halo) } else { GHOST };
        (0..height).flat_map(|y| (0..width).map(move |x| (y, x))).map(|(y, x)| at(y, x)).collect()
    };
    boxes.iter().map(fill).collect()
}

/// What each of three ranks owns of an array of 40 rows and 30 columns: two boxes, none, and one.
fn owned(rank: u32) -> Vec<([u64; 2], [u64; 2])> {
    match rank {
        0 => vec![([0, 0], [40, 7]), ([25, 7], [15, 23])],
        1 => vec![],
        _ => vec![([0, 7], [25, 23])],
    }
}

fn boxes_of(rank: u32, halo: u64) -> Boxes {
    let boxes = Boxes::of([40, 30]).halo([halo, halo]);
    owned(rank).into_iter().fold(boxes, |boxes, (origin, extent)| boxes.own(origin, extent))
}

fn save(session: &Session, on: &Decomposition, rank: u32, halo: u64, version: u64) -> Pending {
    let memory = memory(&owned(rank), halo, |y, x| value(version, y, x));
    let slices: Vec<&[f64]> = memory.iter().map(|memory| &memory[..]).collect();
    let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
    checkpoint.save_boxes_on("t", on, &slices).expect("saved");
    checkpoint.shared("step", &version).expect("saved");
    checkpoint.per_rank("seed", &(1000 + rank), OnResize::Ask).expect("saved");
    checkpoint.capture().expect("captured")
}

/// Loads the newest version on a decomposition with this halo, checks all elements, and returns the version and the tier from which it
/// came.
fn load(session: &Session, rank: u32, halo: u64) -> (u64, &'static str) {
    let on = session.decompose(boxes_of(rank, halo)).expect("it tiles");
    let mut memory = memory(&owned(rank), halo, |_, _| 0.0);
    let mut step = 0;
    let restored = session.begin_restore("heat").run(|r| {
        let mut slices: Vec<&mut [f64]> = memory.iter_mut().map(|memory| &mut memory[..]).collect();
        r.load_boxes_on("t", &on, &mut slices)?;
        step = r.shared("step")?;
        assert_eq!(r.value::<u32>("seed")?, 1000 + rank);
        Ok(())
    });
    let restored = restored.expect("restored").expect("there is one");
    assert_eq!(step, restored.version);
    assert_eq!(memory, self::memory(&owned(rank), halo, |y, x| value(step, y, x)), "rank {rank}");
    (restored.version, restored.tier.name())
}

#[test]
fn what_was_saved_on_a_decomposition_comes_back_on_it_from_every_tier_and_ghost_cells_are_left_alone() {
    let bed = Bed::new();
    let nodes = [0, 0, 1];
    on_nodes(
        &bed,
        &nodes,
        |_| (),
        |rank, session| {
            let on = session.decompose(boxes_of(rank, 2)).expect("it tiles");
            for version in [1, 2] {
                assert_eq!(
                    save(&session, &on, rank, 2, version).wait(Level::System).expect("committed"),
                    Level::System
                );
            }
            session.close().expect("closed");
        },
    );
    // The memory and the halo differ from those at the capture, but the elements are the same. The local tier is used first, because the
    // memory was given back, and then the global tier.
    for (halo, tier) in [(1, "local"), (0, "global"), (3, "memory")] {
        let ends = on_nodes(
            &bed,
            &nodes,
            |config| {
                if tier == "global" {
                    config.node.local_directory = None;
                }
            },
            |rank, session| {
                let end = load(&session, rank, halo);
                if tier == "memory" {
                    let on = session.decompose(boxes_of(rank, halo)).expect("it tiles");
                    save(&session, &on, rank, halo, 3).wait(Level::Process).expect("committed");
                    assert_eq!(load(&session, rank, 1), (3, "memory"));
                }
                session.close().expect("closed");
                end
            },
        );
        let from = if tier == "memory" { "local" } else { tier };
        assert!(ends.iter().all(|(version, _)| *version == 2), "{ends:?}");
        assert_eq!(ends[0].1, from);
    }
}

#[test]
fn a_shared_value_that_differs_is_no_checkpoint_and_the_rank_is_named() {
    let ends = on_nodes(
        &Bed::new(),
        &[0, 0, 1],
        |_| (),
        |rank, session| {
            let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
            checkpoint.shared("step", &if rank == 1 { 8u64 } else { 7 }).expect("saved");
            let refused = checkpoint.capture().expect("captured").wait(Level::Process).expect_err("no checkpoint");
            let mut checkpoint = session.begin_checkpoint("heat", 2).expect("begun");
            checkpoint.shared("step", &7u64).expect("saved");
            checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
            session.close().expect("closed");
            refused.to_string()
        },
    );
    for text in ends {
        assert!(
            text.contains("rank 1: called checkpoint \"heat\" version 1") && text.contains("shared (hashes): step = "),
            "{text}"
        );
    }
}

#[test]
fn ranks_that_save_on_different_decompositions_take_no_checkpoint() {
    on_nodes(
        &Bed::new(),
        &[0, 0],
        |_| (),
        |rank, session| {
            let ons = [6u64, 4].map(|cut| {
                let rows = if rank == 0 { (0, cut) } else { (cut, 10 - cut) };
                session.decompose(Boxes::of([10]).own([rows.0], [rows.1])).expect("it tiles")
            });
            let memory = [0u8; 10];
            let on = &ons[rank as usize];
            let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
            checkpoint.save_on("t", on, &memory[..on.elements() as usize]).expect("saved");
            let end = checkpoint.capture().expect("captured").wait(Level::Process);
            assert!(end.expect_err("no checkpoint").to_string().contains("called checkpoint"));
            session.close().expect("closed");
        },
    );
}

#[test]
fn memory_that_does_not_fit_is_refused_where_it_is_given() {
    let bed = Bed::new();
    let text = |end: Result<(), Error>| end.expect_err("refused").to_string();
    on_nodes(
        &bed,
        &[0],
        |_| (),
        |_, session| {
            let on = session.decompose(Boxes::of([4, 5]).own([0, 0], [4, 5]).halo([1, 1])).expect("it tiles");
            let two = session.decompose(Boxes::of([4, 5]).own([0, 0], [4, 3]).own([0, 3], [4, 2])).expect("it tiles");
            let none = session.decompose(Boxes::of([0, 5])).expect("it tiles");
            let memory = vec![1.0f64; 42];
            let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
            assert!(
                text(checkpoint.save_on("t", &on, &memory[..20]))
                    .contains("the memory for box 0 has 20 elements, but needs 42 with its ghost cells")
            );
            assert!(
                text(checkpoint.save_on("t", &two, &memory[..20]))
                    .contains("memory for 1 boxes was given, but this rank owns 2")
            );
            assert!(
                text(checkpoint.save_on("t", &none, &memory[..1]))
                    .contains("memory for 1 boxes was given, but this rank owns 0")
            );
            checkpoint.save_on("t", &on, &memory).expect("saved");
            checkpoint.save_on::<f64>("none", &none, &[]).expect("saved");
            assert!(text(checkpoint.save_on("t", &on, &memory)).contains("saved twice"));
            assert!(text(checkpoint.shared("long", &vec![0u8; 1 << 20])).contains("at most 1048576"));
            checkpoint.value("plain", &5u64).expect("saved");
            checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
            session
                .begin_restore("heat")
                .run(|r| {
                    let mut target = vec![0.0f64; 42];
                    let refused = |end: Result<(), LoadError>| end.expect_err("refused").to_string();
                    assert!(refused(r.load_on("t", &on, &mut target[..41])).contains("has 41 elements"));
                    let (mut left, mut right) = ([0.0f64; 12], [0.0f64; 8]);
                    r.load_boxes_on("t", &two, &mut [&mut left, &mut right])?;
                    assert!(left.iter().chain(&right).all(|value| *value == 1.0), "on another decomposition");
                    assert!(refused(r.load_on("plain", &on, &mut target)).contains("saved without a decomposition"));
                    assert!(
                        refused(r.load_on("t", &on, &mut vec![0u64; 42])).contains("holds f64, but u64 was requested")
                    );
                    assert!(
                        refused(r.shared::<u64>("plain").map(drop))
                            .contains("not saved as a value that all ranks share")
                    );
                    assert!(
                        refused(r.load_on("gone", &on, &mut target))
                            .contains("has no region \"gone\"; it has: t, none, plain")
                    );
                    r.load_on("t", &on, &mut target)?;
                    r.load_on::<f64>("none", &none, &mut [])?;
                    // The region can also be read like any other array, in its packed form.
                    assert_eq!((r.shape("t")?, r.load_vec::<f64>("t")?), (vec![4, 5], vec![1.0; 20]));
                    Ok(())
                })
                .expect("restored");
            session.close().expect("closed");
        },
    );
}

/// Takes a version on `ranks` ranks. The version is bound to this number of ranks only if `bind` is true.
fn take_on(bed: &Bed, ranks: u32, version: u64, bind: bool, level: Level) {
    let nodes: Vec<u32> = (0..ranks).map(|rank| rank / 2).collect();
    on_nodes(
        bed,
        &nodes,
        |_| (),
        |rank, session| {
            // Restarts first, as a run that continues would.
            session
                .begin_restore("heat")
                .run(|r| {
                    r.shared::<u64>("step").map(drop).or_else(|error| match error {
                        LoadError::Missing { .. } | LoadError::Decomposition { .. } => Ok(()),
                        other => Err(other.into()),
                    })
                })
                .expect("restored");
            let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
            checkpoint.shared("step", &version).expect("saved");
            if bind {
                checkpoint.value("state", &rank).expect("saved");
                checkpoint.per_rank("seed", &rank, OnResize::Refuse).expect("saved");
            }
            checkpoint.capture().expect("captured").wait(level).expect("committed");
            session.close().expect("closed");
        },
    );
}

#[test]
fn state_of_a_rank_is_refused_on_another_number_of_ranks_and_nothing_older_is_restored_behind_it() {
    for level in [Level::Process, Level::System] {
        let bed = Bed::new();
        // Two ranks take an older version, and four ranks take a newer one.
        take_on(&bed, 2, 1, true, level);
        on_nodes(
            &bed,
            &[0, 0, 1, 1],
            |_| (),
            |rank, session| {
                let mut checkpoint = session.begin_checkpoint("heat", 2).expect("begun");
                checkpoint.value("state", &rank).expect("saved");
                checkpoint.shared("step", &2u64).expect("saved");
                checkpoint.per_rank("seed", &rank, OnResize::Drop).expect("saved");
                checkpoint.capture().expect("captured").wait(level).expect("committed");
                session.close().expect("closed");
            },
        );
        for ranks in [2u32, 3, 6] {
            let nodes: Vec<u32> = (0..ranks).map(|rank| rank % 2).collect();
            let ends = on_nodes(
                &bed,
                &nodes,
                |_| (),
                |_, session| {
                    let end = session.begin_restore("heat").run(|_| panic!("nobody loads"));
                    let by_name = session
                        .begin_restore("heat")
                        .version(1)
                        .run(|r| {
                            assert_eq!(r.version(), 1);
                            Ok(())
                        })
                        .map(|restored| restored.is_some());
                    session.close().expect("closed");
                    (end, by_name)
                },
            );
            let (ends, by_name): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
            let text = the_same(ends);
            assert!(text.starts_with(&format!("version 2 was taken by 4 ranks and this run has {ranks}, but it can only be restored on 4: \"state\" belong")), "{text}");
            // To go back, a run asks for the older version by its number. That version is bound to its number of ranks, too.
            match ranks {
                2 => assert!(by_name.iter().all(|end| matches!(end, Ok(true))), "{by_name:?}"),
                _ => assert!(the_same(by_name).contains("\"state\", \"seed\" belong")),
            }
        }
    }
}

/// A rank's boxes of an array of 96 rows and 60 columns. `way` says how the array is cut: into rows, columns, tiles, or single rows in
/// turn, or not at all, with all of it on the last rank.
pub(super) fn dealt(way: usize, rank: u32, ranks: u32) -> Vec<([u64; 2], [u64; 2])> {
    let (rank, ranks) = (u64::from(rank), u64::from(ranks));
    let cut = |extent: u64, of: u64, at: u64| (at * extent / of, (at + 1) * extent / of - at * extent / of);
    let (rows, columns) = (cut(96, ranks, rank), cut(60, ranks, rank));
    match way {
        0 => vec![([rows.0, 0], [rows.1, 60])],
        1 => vec![([0, columns.0], [96, columns.1])],
        2 => {
            let across = (1..=ranks).filter(|of| ranks % of == 0 && of * of <= ranks).max().unwrap_or(1);
            let (y, x) = (cut(96, ranks / across, rank / across), cut(60, across, rank % across));
            vec![([y.0, x.0], [y.1, x.1])]
        }
        3 => (0..96).filter(|row| row % ranks == rank).map(|row| ([row, 0], [1, 60])).collect(),
        _ => {
            if rank == ranks - 1 {
                vec![([0, 0], [96, 60])]
            } else {
                vec![]
            }
        }
    }
}

pub(super) fn boxes_dealt(way: usize, rank: u32, ranks: u32, halo: u64) -> Boxes {
    let boxes = Boxes::of([96, 60]).halo([halo, halo]);
    dealt(way, rank, ranks).into_iter().fold(boxes, |boxes, (origin, extent)| boxes.own(origin, extent))
}

/// Makes a session continue from the newest version with the array cut in one way, and take the next version with the same cut.
fn go_on(
    session: &Session,
    rank: u32,
    (way, ranks, halo): (usize, u32, u64),
    expected: Option<u64>,
    next: u64,
    level: Level,
) {
    let on = session.decompose(boxes_dealt(way, rank, ranks, halo)).expect("it tiles");
    let own = dealt(way, rank, ranks);
    let mut memory = memory(&own, halo, |_, _| 0.0);
    let restored = session.begin_restore("heat").run(|r| {
        {
            let mut slices: Vec<&mut [f64]> = memory.iter_mut().map(|memory| &mut memory[..]).collect();
            r.load_boxes_on("t", &on, &mut slices)?;
            r.load_boxes_on("u", &on, &mut slices)
        }
        .map_err(Error::from)
    });
    let restored = restored.expect("restored").map(|restored| restored.version);
    assert_eq!(restored, expected);
    if let Some(version) = restored {
        assert_eq!(memory, self::memory(&own, halo, |y, x| value(version, y, x) + 0.5), "rank {rank}");
    }
    let [t, u] = [0.0, 0.5].map(|more| self::memory(&own, halo, |y, x| value(next, y, x) + more));
    let mut checkpoint = session.begin_checkpoint("heat", next).expect("begun");
    for (name, memory) in [("t", &t), ("u", &u)] {
        let slices: Vec<&[f64]> = memory.iter().map(|memory| &memory[..]).collect();
        checkpoint.save_boxes_on(name, &on, &slices).expect("saved");
    }
    checkpoint.shared("step", &next).expect("saved");
    checkpoint.capture().expect("captured").wait(level).expect("committed");
}

#[test]
fn what_n_ranks_have_saved_comes_to_m_ranks_and_from_there_to_l() {
    for level in [Level::Process, Level::System] {
        let bed = Bed::new();
        let jobs = [(0, 4, 1), (1, 3, 0), (2, 6, 2), (3, 1, 0), (3, 5, 1), (4, 2, 0), (0, 7, 1), (1, 7, 0), (2, 4, 1)];
        for ((way, ranks, halo), version) in jobs.into_iter().zip(1u64..) {
            let expected = (version > 1).then(|| version - 1);
            let nodes: Vec<u32> = (0..ranks).map(|rank| rank * 2 / ranks).collect();
            on_nodes(
                &bed,
                &nodes,
                |_| (),
                |rank, session| {
                    go_on(&session, rank, (way, ranks, halo), expected, version, level);
                    session.close().expect("closed");
                },
            );
        }
    }
}

/// Takes version 5 with regions of all kinds, on four ranks of two nodes.
pub(super) fn take_all(bed: &Bed, change: impl Fn(&mut Config), level: Level) {
    on_nodes(bed, &[0, 0, 1, 1], change, |rank, session| {
        let on = session.decompose(boxes_dealt(0, rank, 4, 0)).expect("it tiles");
        let memory = memory(&dealt(0, rank, 4), 0, |y, x| value(5, y, x));
        let mut checkpoint = session.begin_checkpoint("heat", 5).expect("begun");
        checkpoint.save_on("t", &on, &memory[0]).expect("saved");
        checkpoint.shared("step", &("five".to_owned(), 5u64)).expect("saved");
        checkpoint.per_rank("seed", &vec![rank; rank as usize], OnResize::Ask).expect("saved");
        checkpoint.per_rank("scratch", &rank, OnResize::Drop).expect("saved");
        checkpoint.capture().expect("captured").wait(level).expect("committed");
        session.close().expect("closed");
    });
}

fn t_of(session: &Session, way: usize, rank: u32, ranks: u32, r: &mut Attempt) -> Result<Vec<Vec<f64>>, Error> {
    // The array was decomposed earlier: an attempt makes collective calls of its own.
    let on = &ONS.with(|ons| ons.borrow().clone()).expect("decomposed before");
    let _ = session;
    let mut memory = memory(&dealt(way, rank, ranks), 0, |_, _| 0.0);
    let mut slices: Vec<&mut [f64]> = memory.iter_mut().map(|memory| &mut memory[..]).collect();
    r.load_boxes_on("t", on, &mut slices)?;
    Ok(memory)
}

thread_local! {
    static ONS: std::cell::RefCell<Option<Decomposition>> = const { std::cell::RefCell::new(None) };
}

#[test]
fn values_of_ranks_are_shared_dropped_or_asked_for_on_another_number_of_ranks() {
    let bed = Bed::new();
    take_all(&bed, |_| (), Level::Process);
    for ranks in [1u32, 3, 4, 6] {
        let nodes: Vec<u32> = (0..ranks).map(|rank| rank * 2 / ranks).collect();
        on_nodes(
            &bed,
            &nodes,
            |config| config.job.interval.steps = 1000,
            |rank, session| {
                assert!(!session.should_checkpoint().expect("answered"));
                session
                    .begin_restore("heat")
                    .run(|r| {
                        assert_eq!(r.saved_ranks(), 4);
                        assert_eq!(r.shared::<(String, u64)>("step")?, ("five".to_owned(), 5));
                        // Each rank asks for its share, and the last rank asks for nothing.
                        let wanted = if rank + 1 == ranks && ranks > 1 { 4..9 } else { rank..4 };
                        let seeds: Vec<Vec<u32>> = r.of_ranks("seed", wanted.clone())?;
                        assert_eq!(
                            seeds,
                            wanted.take_while(|of| *of < 4).map(|of| vec![of; of as usize]).collect::<Vec<_>>()
                        );
                        if ranks != 4 {
                            let text = r.value::<u32>("scratch").expect_err("no shard is its own").to_string();
                            assert!(text.contains("was taken by 4 ranks and this run has"), "{text}");
                            assert_eq!(r.regions()?.len(), 4);
                        } else {
                            assert_eq!(r.value::<u32>("scratch")?, rank);
                        }
                        let text = r.of_ranks::<u32>("scratch", 0..1).expect_err("dropped").to_string();
                        assert!(text.contains("not saved as a value that ranks may ask for"), "{text}");
                        Ok(())
                    })
                    .expect("restored")
                    .expect("version 5");
                // If four ranks protected the state before, a new checkpoint soon protects it for the new number of ranks.
                assert_eq!(session.should_checkpoint().expect("answered"), ranks != 4);
                session.close().expect("closed");
            },
        );
    }
}

#[test]
fn a_rank_that_ends_its_attempt_early_is_heard_by_those_that_load_together() {
    for rejects in [true, false] {
        let bed = Bed::new();
        take_all(&bed, |_| (), Level::Process);
        let ends = on_nodes(
            &bed,
            &[0, 0, 1],
            |_| (),
            |rank, session| {
                let on = session.decompose(boxes_dealt(1, rank, 3, 0)).expect("it tiles");
                ONS.with(|ons| *ons.borrow_mut() = Some(on));
                let mut tries = 0;
                let end = session.begin_restore("heat").run(|r| {
                    tries += 1;
                    if rank == 1 {
                        let missing = LoadError::Missing {
                            rank: crate::base::Rank(1),
                            key: r.key(),
                            region: "gone".into(),
                            present: vec![],
                        };
                        if rejects {
                            r.reject("a bad value");
                            return Ok(());
                        }
                        return Err(missing.into());
                    }
                    t_of(&session, 1, rank, 3, r).map(drop)
                });
                session.close().expect("closed");
                (end.map(drop), tries)
            },
        );
        let (ends, tries): (Vec<_>, Vec<u32>) = ends.into_iter().unzip();
        let text = the_same(ends);
        let says = if rejects { "rejected by the program: a bad value" } else { "has no region \"gone\"" };
        assert!(text.contains(&format!("rank 1: {says}")) || text.contains(says), "{text}");
        assert_eq!(tries, [1; 3], "{text}");
    }
}

#[test]
fn what_was_never_saved_and_an_array_of_another_shape_end_the_restart_on_all_ranks() {
    let bed = Bed::new();
    on_nodes(
        &bed,
        &[0, 1],
        |_| (),
        |rank, session| {
            // A refinement level covers only a part of its array.
            let on =
                session.decompose(Boxes::of([40, 6]).own([u64::from(rank) * 10, 0], [10, 6]).sparse()).expect("apart");
            let memory = vec![1u16; 60];
            let mut checkpoint = session.begin_checkpoint("heat", 1).expect("begun");
            checkpoint.save_on("level", &on, &memory).expect("saved");
            checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
            session.close().expect("closed");
        },
    );
    for (boxes, text) in [
        (Boxes::of([40, 6]), "was not loaded: no rank saved elements [20, 0..6], which rank 1 loads"),
        (Boxes::of([40, 7]), "is part of an array of shape [40, 6], not [40, 7]"),
    ] {
        let columns = boxes.shape()[1];
        let ends = on_nodes(
            &bed,
            &[0, 1, 1],
            |_| (),
            |rank, session| {
                let own = boxes.clone().own([u64::from(rank) * 11, 0], [11, columns]).sparse();
                let on = session.decompose(own).expect("apart");
                let end = session
                    .begin_restore("heat")
                    .run(|r| Ok(r.load_on("level", &on, &mut vec![0u16; 11 * columns as usize])?));
                session.close().expect("closed");
                end
            },
        );
        let found = the_same(ends);
        assert!(found.contains(text), "{found}");
    }
}

/// Loads the version that [`take_all`] took on boxes cut in way `way`, and returns the version and the tier from which it came.
pub(super) fn load_all(session: &Session, way: usize, rank: u32, ranks: u32) -> Result<(u64, &'static str), Error> {
    let on = session.decompose(boxes_dealt(way, rank, ranks, 1)).expect("it tiles");
    let own = dealt(way, rank, ranks);
    let mut memory = memory(&own, 1, |_, _| 0.0);
    let restored = session.begin_restore("heat").run(|r| {
        {
            let mut slices: Vec<&mut [f64]> = memory.iter_mut().map(|memory| &mut memory[..]).collect();
            r.load_boxes_on("t", &on, &mut slices)?;
            r.shared::<(String, u64)>("step").map(drop)
        }
        .map_err(Error::from)
    })?;
    let restored = restored.expect("there is one");
    assert_eq!(memory, self::memory(&own, 1, |y, x| value(restored.version, y, x)), "rank {rank}");
    Ok((restored.version, restored.tier.name()))
}

#[test]
fn a_lost_shard_is_rebuilt_and_read_in_ranges_and_the_job_goes_on_with_fewer_ranks() {
    for scheme in [Scheme::Xor { members: 4 }, Scheme::Rs { data: 2, parity: 2 }, Scheme::Partner { copies: 1 }] {
        let bed = Bed::new();
        let change = |config: &mut Config| {
            config.job.redundancy.scheme = scheme;
        };
        on_nodes(&bed, &[0, 0, 1, 1, 2, 2, 3, 3], change, |rank, session| {
            let on = session.decompose(boxes_dealt(2, rank, 8, 0)).expect("it tiles");
            let memory = memory(&dealt(2, rank, 8), 0, |y, x| value(5, y, x));
            let mut checkpoint = session.begin_checkpoint("heat", 5).expect("begun");
            checkpoint.save_on("t", &on, &memory[0]).expect("saved");
            checkpoint.shared("step", &("five".to_owned(), 5u64)).expect("saved");
            // The version may reach the global tier first, so all levels are awaited.
            assert!(ended(&checkpoint.capture().expect("captured")).iter().all(|(_, why)| why.is_none()));
            // Ends as a killed process would.
            drop(session);
        });
        // A node dies, and its memory is lost with it. The others run six ranks, which are killed before they have taken anything, then
        // five, and so on.
        std::fs::remove_dir_all(bed.memory.path().join("node-1")).expect("our own folder");
        for (way, nodes) in
            [(2, &[0, 0, 2, 2, 3, 3][..]), (1, &[3, 2, 2, 0, 0]), (0, &[0, 2, 3]), (3, &[0, 0, 0, 2, 2, 2, 3, 3, 3])]
        {
            bed.disk.drop_locks();
            let ends = on_nodes(&bed, nodes, change, |rank, session| {
                let end = load_all(&session, way, rank, nodes.len() as u32);
                drop(session);
                end
            });
            let ends: Vec<_> = ends.into_iter().map(|end| end.expect("restored")).collect();
            assert!(
                ends.iter().all(|(version, tier)| *version == 5 && *tier != "global"),
                "{scheme:?} {nodes:?} {ends:?}"
            );
            // A whole copy is read where it is, and its parts are sent to the ranks that want them. The root, however, reads what all ranks
            // share from the peers.
            let are_from_peers = ends.iter().map(|(_, tier)| *tier == "peers");
            match scheme {
                Scheme::Partner { .. } => assert!(!are_from_peers.skip(1).any(|is| is), "{nodes:?} {ends:?}"),
                _ => assert!(are_from_peers.into_iter().any(|is| is), "{scheme:?} {nodes:?} {ends:?}"),
            }
        }
    }
}

#[test]
fn what_lies_in_the_memory_of_other_nodes_only_comes_from_there() {
    for (way, nodes) in [(0, &[1, 1, 0][..]), (2, &[1, 0]), (1, &[1, 1, 1, 0, 0, 0])] {
        let bed = Bed::new();
        let change = |config: &mut Config| {
            config.job.local_enabled = false;
            config.job.global_enabled = false;
        };
        take_all(&bed, change, Level::Process);
        bed.disk.drop_locks();
        let ends = on_nodes(&bed, nodes, change, |rank, session| {
            let end = load_all(&session, way, rank, nodes.len() as u32);
            session.close().expect("closed");
            end
        });
        for end in ends {
            assert_eq!(end.expect("restored").0, 5, "{nodes:?}");
        }
    }
}

/// Flips a bit of an element wherever the memory of a node holds the element. Returns how many bits were flipped.
pub(super) fn flip(bed: &Bed, node: u32, element: f64) -> usize {
    use std::os::unix::fs::FileExt;
    let mut flipped = 0;
    for file in std::fs::read_dir(bed.memory.path().join(format!("node-{node}"))).expect("our own folder") {
        let path = file.expect("readable").path();
        let bytes = std::fs::read(&path).expect("readable");
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("our own file");
        let pattern = element.to_le_bytes();
        for at in (0..bytes.len().saturating_sub(8)).step_by(8).filter(|at| bytes[*at..at + 8] == pattern) {
            file.write_all_at(&[pattern[1] ^ 1], at as u64 + 1).expect("written");
            flipped += 1;
        }
    }
    flipped
}

#[test]
fn a_flipped_bit_in_an_old_shard_comes_to_nobody_on_another_number_of_ranks() {
    for (scheme, level, from) in [
        (Scheme::Partner { copies: 1 }, Level::NodeLoss, Some(5)),
        (Scheme::Xor { members: 2 }, Level::NodeLoss, Some(5)),
        (Scheme::None, Level::System, Some(5)),
        (Scheme::None, Level::Process, Some(1)),
    ] {
        let bed = Bed::new();
        let change = |config: &mut Config| {
            config.job.redundancy.scheme = scheme;
            config.node.local_directory = None;
        };
        let change = |config: &mut Config| {
            change(config);
            if level == Level::Process {
                // No other copy of the next version exists then.
                (config.job.local.every, config.job.global.every) = (1000.into(), 1000.into());
            }
        };
        on_nodes(&bed, &[0, 0, 1, 1], change, |rank, session| {
            let on = session.decompose(boxes_dealt(0, rank, 4, 0)).expect("it tiles");
            let take = |version: u64| {
                let memory = memory(&dealt(0, rank, 4), 0, |y, x| value(version, y, x));
                let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
                checkpoint.save_on("t", &on, &memory[0]).expect("saved");
                checkpoint.shared("step", &("one".to_owned(), version)).expect("saved");
                checkpoint.capture().expect("captured")
            };
            // The first checkpoint of a run goes to all tiers.
            ended(&take(1));
            let pending = take(5);
            pending.wait(level).expect("committed");
            if level != Level::Process {
                ended(&pending);
            }
            drop(session);
        });
        // A process that has died holds no locks; here, it may still be ending.
        bed.disk.drop_locks();
        // The element is in the shard of rank 2, on the second node.
        assert!(flip(&bed, 1, value(5, 60, 31)) > 0);
        let nodes: &[u32] = if level == Level::Process { &[0, 1, 1] } else { &[0, 0, 1] };
        let ends = on_nodes(&bed, nodes, change, |rank, session| {
            let end = load_all(&session, 1, rank, 3);
            session.close().expect("closed");
            end
        });
        for end in ends {
            assert_eq!(
                end.map(|(version, _)| version).map_err(|error| error.to_string()),
                Ok(from.expect("some")),
                "{scheme:?}"
            );
        }
    }
}

/// Rows of several MiB are read in pieces. No rank wants anything from some of these pieces before the next row of others.
#[test]
fn long_rows_come_to_those_that_want_columns_and_back() {
    const COLUMNS: u64 = 150_000;
    let bed = Bed::new();
    let own = |way: usize, rank: u32, ranks: u32| {
        let (rank, ranks) = (u64::from(rank), u64::from(ranks));
        let cut = |extent: u64| (rank * extent / ranks, (rank + 1) * extent / ranks - rank * extent / ranks);
        match way {
            0 => (cut(3), (0, COLUMNS)),
            _ => ((0, 3), cut(COLUMNS)),
        }
    };
    let change = |config: &mut Config| config.node.memory_budget = Budget::Bytes(64 << 20);
    for (way, ranks, version) in [(0, 1, 1u64), (1, 4, 2), (0, 2, 3), (1, 3, 4), (1, 5, 5)] {
        let nodes: Vec<u32> = (0..ranks).map(|rank| rank * 2 / ranks).collect();
        on_nodes(&bed, &nodes, change, |rank, session| {
            let ((y, rows), (x, columns)) = own(way, rank, ranks);
            let boxes = Boxes::of([3, COLUMNS]).own([y, x], [rows, columns]);
            let on = session.decompose(boxes).expect("it tiles");
            let of = |version: u64| -> Vec<f64> {
                let cells = (y..y + rows).flat_map(|y| (x..x + columns).map(move |x| (y, x)));
                cells.map(|(y, x)| (version * 10_000_000 + y * 1_000_000 + x) as f64).collect()
            };
            let mut field = vec![0.0; (rows * columns) as usize];
            let restored =
                session.begin_restore("heat").run(|r| Ok(r.load_on("t", &on, &mut field)?)).expect("restored");
            assert_eq!(restored.as_ref().map(|restored| restored.version), (version > 1).then(|| version - 1));
            if let Some(restored) = restored {
                assert!(field == of(version - 1), "rank {rank} of {ranks}");
                // A rank reads what it wants, and the rest of the blocks that contain it.
                assert!(restored.bytes <= 3 * COLUMNS * 8 + (1 << 20), "{}", restored.bytes);
            }
            let next = of(version);
            let mut checkpoint = session.begin_checkpoint("heat", version).expect("begun");
            checkpoint.save_on("t", &on, &next).expect("saved");
            checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
            session.close().expect("closed");
        });
    }
}

/// The rows of an array on one node go to other ranks as columns, so that each rank wants a part of every block. The elements have 1, 3, 4
/// and 8 bytes, columns end inside pairs of words, and a bit is flipped in the only copy of a version.
#[test]
fn ranks_that_want_parts_of_the_same_blocks_check_them_together() {
    const ROWS: u64 = 120;
    const COLUMNS: u64 = 1021;
    let cut = |extent: u64, rank: u32, ranks: u32| {
        let first = |rank: u32| u64::from(rank) * extent / u64::from(ranks);
        (first(rank), first(rank + 1) - first(rank))
    };
    let at = |version: u64, y: u64, x: u64| (version * 1_000_000 + y * COLUMNS + x) * 0x9e37_79b9;
    let bytes = |version: u64, y: u64, x: u64| {
        let of = at(version, y, x).to_le_bytes();
        [of[0], of[1], of[2]]
    };
    let bed = Bed::new();
    let change = |config: &mut Config| {
        (config.job.local.every, config.job.global.every) = (1000.into(), 1000.into());
        config.node.memory_budget = Budget::Bytes(64 << 20);
    };
    on_nodes(&bed, &[0; 5], change, |rank, session| {
        let (y, rows) = cut(ROWS, rank, 5);
        let on = session.decompose(Boxes::of([ROWS, COLUMNS]).own([y, 0], [rows, COLUMNS])).expect("it tiles");
        for version in [1, 2] {
            let cells = || (y..y + rows).flat_map(|y| (0..COLUMNS).map(move |x| (y, x)));
            let eights: Vec<u64> = cells().map(|(y, x)| at(version, y, x)).collect();
            let fours: Vec<u32> = eights.iter().map(|value| *value as u32).collect();
            let ones: Vec<u8> = eights.iter().map(|value| *value as u8).collect();
            let threes: Vec<[u8; 3]> = cells().map(|(y, x)| bytes(version, y, x)).collect();
            let mut checkpoint = session.begin_checkpoint("turned", version).expect("begun");
            checkpoint.save_on("eights", &on, &eights).expect("saved");
            checkpoint.save_on("fours", &on, &fours).expect("saved");
            checkpoint.save_on("threes", &on, &threes).expect("saved");
            checkpoint.save_on("ones", &on, &ones).expect("saved");
            let pending = checkpoint.capture().expect("captured");
            pending.wait(Level::Process).expect("committed");
            if version == 1 {
                ended(&pending);
            }
        }
        drop(session);
    });
    let load = |ranks: u32| {
        bed.disk.drop_locks();
        let ends = on_nodes(&bed, &vec![0; ranks as usize], change, |rank, session| {
            let (x, columns) = cut(COLUMNS, rank, ranks);
            let on = session.decompose(Boxes::of([ROWS, COLUMNS]).own([0, x], [ROWS, columns])).expect("it tiles");
            let count = (ROWS * columns) as usize;
            let (mut eights, mut fours) = (vec![0u64; count], vec![0u32; count]);
            let (mut threes, mut ones) = (vec![[0u8; 3]; count], vec![0u8; count]);
            let restored = session.begin_restore("turned").run(|r| {
                r.load_on("eights", &on, &mut eights)?;
                r.load_on("fours", &on, &mut fours)?;
                r.load_on("threes", &on, &mut threes)?;
                Ok(r.load_on("ones", &on, &mut ones)?)
            });
            let restored = restored.expect("restored").expect("there is one");
            let mut cells = (0..ROWS).flat_map(|y| (x..x + columns).map(move |x| (y, x))).zip(0..);
            let is_right = cells.all(|((y, x), place): (_, usize)| {
                let value = at(restored.version, y, x);
                (eights[place], fours[place], ones[place]) == (value, value as u32, value as u8)
                    && threes[place] == bytes(restored.version, y, x)
            });
            assert!(is_right, "rank {rank} of {ranks}");
            drop(session);
            (restored.version, restored.bytes)
        });
        let versions: Vec<u64> = ends.iter().map(|(version, _)| *version).collect();
        assert!(versions.iter().all(|version| *version == versions[0]), "{versions:?}");
        (versions[0], ends.iter().map(|(_, bytes)| *bytes).sum::<u64>())
    };
    // Apart from the records, no rank has read more than it wants, and nothing was read twice.
    for ranks in [2, 4, 7] {
        let (version, bytes) = load(ranks);
        let more = bytes.checked_sub(ROWS * COLUMNS * 16);
        assert!(version == 2 && more.is_some_and(|more| more < 16 << 10), "{ranks} ranks: {version}, {more:?}");
    }
    assert!(flip(&bed, 0, f64::from_bits(at(2, 61, 500))) > 0);
    for ranks in [2, 7] {
        assert_eq!(load(ranks).0, 1, "{ranks} ranks");
    }
}

/// A bit is flipped in node memory while a file has the right bytes. The blocks that were checked together do not count: whole blocks are
/// read instead, and damaged ones come from the file. The next regions come from copies that differ between ranks.
#[test]
fn a_block_that_is_wrong_together_comes_from_another_copy() {
    const SIDE: u64 = 300;
    let bed = Bed::new();
    let change = |config: &mut Config| {
        config.node.local_directory = None;
        config.node.memory_budget = Budget::Bytes(64 << 20);
    };
    let cut = |rank: u32, ranks: u32| {
        let first = |rank: u32| u64::from(rank) * SIDE / u64::from(ranks);
        (first(rank), first(rank + 1) - first(rank))
    };
    let at = |y: u64, x: u64| (y * SIDE + x + 1) * 0x9e37_79b9;
    on_nodes(&bed, &[0; 4], change, |rank, session| {
        let (y, rows) = cut(rank, 4);
        let on = session.decompose(Boxes::of([SIDE, SIDE]).own([y, 0], [rows, SIDE])).expect("it tiles");
        let eights: Vec<u64> = (y..y + rows).flat_map(|y| (0..SIDE).map(move |x| at(y, x))).collect();
        let fours: Vec<u32> = eights.iter().map(|value| *value as u32).collect();
        let mut checkpoint = session.begin_checkpoint("turned", 1).expect("begun");
        checkpoint.save_on("fours", &on, &fours).expect("saved");
        checkpoint.save_on("eights", &on, &eights).expect("saved");
        checkpoint.save_on("again", &on, &fours).expect("saved");
        checkpoint.capture().expect("captured").wait(Level::System).expect("committed");
        drop(session);
    });
    assert!(flip(&bed, 0, f64::from_bits(at(130, 140))) > 0);
    for ranks in [3, 6] {
        bed.disk.drop_locks();
        on_nodes(&bed, &vec![0; ranks as usize], change, |rank, session| {
            let (x, columns) = cut(rank, ranks);
            let on = session.decompose(Boxes::of([SIDE, SIDE]).own([0, x], [SIDE, columns])).expect("it tiles");
            let count = (SIDE * columns) as usize;
            let (mut eights, mut fours, mut again) = (vec![0u64; count], vec![0u32; count], vec![0u32; count]);
            let restored = session.begin_restore("turned").run(|r| {
                r.load_on("fours", &on, &mut fours)?;
                r.load_on("eights", &on, &mut eights)?;
                Ok(r.load_on("again", &on, &mut again)?)
            });
            assert_eq!(restored.expect("restored").expect("there is one").version, 1);
            let cells = (0..SIDE).flat_map(|y| (x..x + columns).map(move |x| at(y, x)));
            let expected: Vec<u64> = cells.collect();
            assert!(eights == expected, "rank {rank} of {ranks}");
            let expected: Vec<u32> = expected.into_iter().map(|value| value as u32).collect();
            assert!(fours == expected && again == expected, "rank {rank} of {ranks}");
            drop(session);
        });
    }
}
