//! Arrays whose elements have numbers, of which each rank has a list: what is proved about the lists, and what is saved and loaded on them.

use super::decomposed::{decompose, the_same};
use super::*;
use crate::base::Rank;
use crate::decomposition::ids::List;
use crate::decomposition::ids::windows::Windows;
use crate::decomposition::{Boxes, Decomposition, Identity, Ids};
use crate::recovery::LoadError;

/// The number of vertices of a mesh: more than a cell holds, and not a round number.
const TOTAL: u64 = 30_011;

/// A number that looks random but is the same everywhere.
fn mixed(number: u64, seed: u64) -> u64 {
    let once = (number ^ seed << 40).wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (once ^ once >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) >> 20
}

/// The vertices of a rank: some in whole pieces of the mesh and in mesh order, the others one by one and in another order. Of three or more
/// ranks, rank 1 has none.
fn list(rank: u32, ranks: u32, seed: u64) -> Vec<u64> {
    let owners: Vec<u32> = (0..ranks).filter(|rank| *rank != 1 || ranks == 2).collect();
    let owner = |number: u64| {
        let piece = if number < TOTAL / 2 { number / 700 } else { number };
        owners[(mixed(piece, seed) % owners.len() as u64) as usize]
    };
    let mut own: Vec<u64> = (0..TOTAL).filter(|number| owner(*number) == rank).collect();
    let half = own.len() / 3;
    own[half..].sort_by_key(|number| mixed(*number, seed + 1));
    own
}

fn is_marked(number: &u64) -> bool {
    number.is_multiple_of(7)
}

/// The value of a vertex.
fn value(number: u64) -> f64 {
    number as f64 * 0.5 - 3.0
}

fn on(session: &Session, rank: u32, ranks: u32, seed: u64) -> (Vec<u64>, Decomposition) {
    let own = list(rank, ranks, seed);
    let on = session.decompose(Ids::of(TOTAL).own(own.iter().copied())).expect("each has one");
    assert_eq!((on.elements(), on.shape()), (own.len() as u64, &[TOTAL][..]));
    (own, on)
}

/// Takes a version on as many ranks as there are nodes.
fn take_on(bed: &Bed, nodes: &[u32], change: impl Fn(&mut Config), level: Level) {
    let ranks = nodes.len() as u32;
    on_nodes(bed, nodes, change, |rank, session| {
        let (own, mesh) = on(&session, rank, ranks, 1);
        let some: Vec<u64> = own.iter().copied().filter(is_marked).collect();
        let marked = session.decompose(Ids::of(TOTAL).own(some.iter().copied()).sparse()).expect("apart");
        let t: Vec<f64> = own.iter().map(|number| value(*number)).collect();
        let edge: Vec<[u8; 3]> = own.iter().map(|number| [*number as u8, (*number >> 8) as u8, 7]).collect();
        let mark: Vec<u64> = some.iter().map(|number| !number).collect();
        let mut checkpoint = session.begin_checkpoint("mesh", 5).expect("begun");
        checkpoint.save_on("t", &mesh, &t).expect("saved");
        checkpoint.save_on("mark", &marked, &mark).expect("saved");
        checkpoint.save_boxes_on("edge", &mesh, &[&edge]).expect("saved");
        checkpoint.shared("step", &5u64).expect("saved");
        let end = checkpoint.capture().expect("captured").wait(level).expect("committed");
        assert!(end >= level);
        if level == Level::NodeLoss { drop(session) } else { session.close().expect("closed") }
    });
}

/// Loads all regions on other lists.
fn load_on(session: &Session, rank: u32, ranks: u32, seed: u64) -> (u64, &'static str) {
    let (own, mesh) = on(session, rank, ranks, seed);
    let some: Vec<u64> = own.iter().copied().filter(is_marked).collect();
    let marked = session.decompose(Ids::of(TOTAL).own(some.iter().copied()).sparse()).expect("apart");
    let (mut t, mut mark, mut edge) = (vec![0.0; own.len()], vec![0u64; some.len()], vec![[0u8; 3]; own.len()]);
    let restored = session.begin_restore("mesh").run(|r| {
        r.load_on("t", &mesh, &mut t)?;
        r.load_on("mark", &marked, &mut mark)?;
        r.load_on("edge", &mesh, &mut edge)?;
        assert_eq!(r.shared::<u64>("step")?, 5);
        Ok(())
    });
    let restored = restored.expect("restored").expect("there is one");
    let who = format!("rank {rank} of {ranks}");
    assert!(t.iter().zip(&own).all(|(t, number)| *t == value(*number)), "{who}");
    assert!(mark.iter().zip(&some).all(|(mark, number)| *mark == !number), "{who}");
    assert!(edge.iter().zip(&own).all(|(edge, number)| *edge == [*number as u8, (*number >> 8) as u8, 7]), "{who}");
    (restored.version, restored.tier.name())
}

#[test]
fn elements_come_to_other_ranks_by_their_numbers_from_every_tier() {
    for (level, ranks, seed) in [
        (Level::Process, 4u32, 1u64),
        (Level::Process, 4, 2),
        (Level::Process, 3, 2),
        (Level::System, 1, 3),
        (Level::System, 6, 4),
    ] {
        let bed = Bed::new();
        take_on(&bed, &[0, 0, 1, 1], |_| (), level);
        let nodes: Vec<u32> = (0..ranks).map(|rank| rank * 2 / ranks).collect();
        let work = |rank, session: Session| {
            let end = load_on(&session, rank, ranks, seed);
            session.close().expect("closed");
            end
        };
        let ends = on_nodes(&bed, &nodes, |_| (), work);
        assert!(ends.iter().all(|(version, _)| *version == 5), "{ends:?}");
    }
}

#[test]
fn the_numbers_of_a_lost_node_are_rebuilt_and_dealt_over_those_that_are_left() {
    let bed = Bed::new();
    let change = |config: &mut Config| {
        config.job.redundancy.scheme = Scheme::Xor { members: 4 };
        (config.job.local_enabled, config.job.global_enabled) = (false, false);
    };
    take_on(&bed, &[0, 1, 2, 3], change, Level::NodeLoss);
    let _ = std::fs::remove_dir_all(bed.memory.path().join("node-3"));
    for nodes in [&[0, 1, 2][..], &[2, 2, 0, 0, 1, 1]] {
        bed.disk.drop_locks();
        let ranks = nodes.len() as u32;
        let work = |rank, session: Session| {
            let end = load_on(&session, rank, ranks, 9);
            drop(session);
            end
        };
        let ends = on_nodes(&bed, nodes, change, work);
        assert!(ends.iter().all(|(version, _)| *version == 5), "{nodes:?} {ends:?}");
    }
}

/// The numbers fill several windows. They are proved with a gap, with a duplicate, and without either.
#[test]
fn more_numbers_than_a_window_has_are_proved_and_loaded_window_by_window() {
    const MANY: u64 = 1_300_000;
    let bed = Bed::new();
    // Blocks of 1000 numbers go to the ranks in turn. In each block, the even numbers come first and the odd ones follow, so that no number
    // is next to its predecessor.
    let own = |rank: u32, ranks: u32| {
        let own = (0..MANY).filter(move |number| (number / 1000) % u64::from(ranks) == u64::from(rank));
        own.map(|number| number / 1000 * 1000 + number % 500 * 2 + number % 1000 / 500)
    };
    on_nodes(
        &bed,
        &[0, 0],
        |_| (),
        |rank, session| {
            let refused = |ids: Ids| session.decompose(ids).expect_err("refused").to_string();
            let text = refused(Ids::of(MANY).own(own(rank, 2).filter(|number| !(700_123..700_125).contains(number))));
            assert!(text.ends_with("numbers 700123 to 700124 are in no rank's list"), "{text}");
            let extra = (rank == 1).then_some(600_000);
            let text = refused(Ids::of(MANY).own(own(rank, 2).chain(extra)));
            assert!(text.ends_with("number 600000 is in the lists of both rank 0 and rank 1"), "{text}");
            let on = session.decompose(Ids::of(MANY).own(own(rank, 2))).expect("each has one");
            assert!(Windows::new(MANY, 2).count() > 1, "one window would do");
            let t: Vec<u32> = own(rank, 2).map(|number| number as u32 ^ 5).collect();
            let mut checkpoint = session.begin_checkpoint("mesh", 1).expect("begun");
            checkpoint.save_on("t", &on, &t).expect("saved");
            checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
            session.close().expect("closed");
        },
    );
    on_nodes(
        &bed,
        &[0],
        |_| (),
        |_, session| {
            let on = session.decompose(Ids::of(MANY).own((0..MANY).rev())).expect("each has one");
            let mut t = vec![0u32; MANY as usize];
            session
                .begin_restore("mesh")
                .run(|r| Ok(r.load_on("t", &on, &mut t)?))
                .expect("restored")
                .expect("there is one");
            assert!((0..MANY).rev().zip(&t).all(|(number, t)| *t == number as u32 ^ 5));
            session.close().expect("closed");
        },
    );
}

#[test]
fn what_is_wrong_with_lists_is_told_alike_on_all_ranks() {
    let of = |rank: u32, own: Vec<u64>| {
        let even = (0..100u64).filter(move |number| number % 4 == u64::from(rank));
        Ids::of(100).own(even.chain(own))
    };
    assert!(decompose(|rank| of(rank, vec![]), 4).into_iter().all(|end| end.is_ok()));
    let text = the_same(decompose(|rank| of(rank, if rank == 3 { vec![40] } else { vec![] }), 4));
    assert_eq!(
        text,
        "the array of shape [100] cannot be decomposed: number 40 is in the lists of both rank 0 and rank 3"
    );
    let text = the_same(decompose(|rank| if rank == 2 { Ids::of(100) } else { of(rank, vec![]) }, 4));
    assert!(text.ends_with("number 2 is in no rank's list"), "{text}");
    let text = the_same(decompose(|rank| of(rank, if rank == 1 { vec![100] } else { vec![] }), 4));
    assert!(text.starts_with("decompose: rank 1: number 100, at index 25 of this rank's list"), "{text}");
    let text = the_same(decompose(|rank| of(rank, if rank == 1 { vec![5] } else { vec![] }), 4));
    assert!(
        text.starts_with("decompose: rank 1: number 5 occurs twice in this rank's list, at index 1 and at index 25"),
        "{text}"
    );
    let text = the_same(decompose(|rank| if rank == 1 { Ids::of(99) } else { of(rank, vec![]) }, 4));
    assert!(text.contains("rank 1: called decompose an array of 99 numbered elements"), "{text}");
    let mixed = |rank: u32| match rank {
        1 => crate::decomposition::Part::from(Boxes::of([100])),
        _ => of(rank, vec![]).into(),
    };
    assert!(the_same(decompose(mixed, 4)).contains("rank 1: called decompose an array of shape [100]"));
    assert!(decompose(|_| Ids::of(0), 3).into_iter().all(|end| end.is_ok()));
}

#[test]
fn what_nobody_has_saved_and_what_lies_on_boxes_end_the_restart_on_all_ranks() {
    let bed = Bed::new();
    take_on(&bed, &[0, 0, 1, 1], |_| (), Level::Process);
    let ends = on_nodes(
        &bed,
        &[0, 0, 1],
        |_| (),
        |rank, session| {
            let (own, mesh) = on(&session, rank, 3, 2);
            let first = |rank: u32| u64::from(rank) * TOTAL / 3;
            let slab = Boxes::of([TOTAL]).own([first(rank)], [first(rank + 1) - first(rank)]);
            let slab = session.decompose(slab).expect("it tiles");
            let small = session.decompose(Ids::of(9).own(if rank == 0 { 0..9 } else { 0..0 })).expect("all");
            let mut t = vec![0.0f64; slab.elements().max(mesh.elements()) as usize];
            let mut refused = |name: &str, on: &Decomposition| {
                let length = on.elements() as usize;
                let end = session.begin_restore("mesh").run(|r| Ok(r.load_on(name, on, &mut t[..length])?));
                end.expect_err("refused").to_string()
            };
            let texts = [refused("t", &slab), refused("t", &small)];
            let mut mark = vec![0u64; own.len()];
            let end = session.begin_restore("mesh").run(|r| Ok(r.load_on("mark", &mesh, &mut mark)?));
            let end = end.expect_err("refused").to_string();
            session.close().expect("closed");
            [texts[0].clone(), texts[1].clone(), end]
        },
    );
    for [slab, small, mark] in &ends {
        assert!(slab.contains("was saved on lists of numbers: load it on lists, not on boxes"), "{slab}");
        assert!(small.contains("is part of an array of shape [30011], not [9]"), "{small}");
        assert!(mark.contains("no rank saved number 1, which rank"), "{mark}");
        assert_eq!(*mark, ends[0][2]);
    }
}

/// A list with correct digests contains a number that belongs to another rank. No rank loads the version of this list.
#[test]
fn a_forged_list_is_no_checkpoint_on_another_number_of_ranks() {
    let bed = Bed::new();
    on_nodes(
        &bed,
        &[0, 0, 1, 1],
        |_| (),
        |rank, session| {
            let (own, right) = on(&session, rank, 4, 1);
            let mut numbers = own.clone();
            if rank == 3 {
                numbers[0] = list(0, 4, 1)[17];
            }
            let forged: List = Ids::of(TOTAL).own(numbers).check().expect("inside");
            let forged = Decomposition::of_list(forged, Identity(7), (Rank(rank), 4));
            let t: Vec<f64> = own.iter().map(|number| value(*number)).collect();
            for (version, on) in [(5u64, &right), (6, &forged)] {
                let mut checkpoint = session.begin_checkpoint("mesh", version).expect("begun");
                checkpoint.save_on("t", on, &t).expect("saved");
                checkpoint.capture().expect("captured").wait(Level::Process).expect("committed");
            }
            session.close().expect("closed");
        },
    );
    let ends = on_nodes(
        &bed,
        &[0, 0, 1],
        |_| (),
        |rank, session| {
            let (own, mesh) = on(&session, rank, 3, 2);
            let (mut t, mut tried) = (vec![0.0f64; own.len()], Vec::new());
            let restored = session.begin_restore("mesh").run(|r| {
                let end = r.load_on("t", &mesh, &mut t);
                tried.push(end.as_ref().err().map(LoadError::to_string));
                Ok(end?)
            });
            assert_eq!(restored.expect("restored").expect("there is one").version, 5);
            assert!(t.iter().zip(&own).all(|(t, number)| *t == value(*number)));
            session.close().expect("closed");
            tried
        },
    );
    for tried in &ends {
        assert_eq!(tried, &ends[0]);
        let [Some(first), .., None] = &tried[..] else { panic!("{tried:?}") };
        assert!(first.contains("is in the lists of both rank 0 and rank 3"), "{first}");
    }
}
