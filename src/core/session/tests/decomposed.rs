//! Arrays that are dealt over the ranks: what is proved, saved on it and loaded on it.

use super::*;
use crate::decomposition::{Boxes, Decomposition};

/// The same text for all ranks.
fn the_same<T>(all: Vec<Result<T, Error>>) -> String {
    let mut texts: Vec<String> = all.into_iter().map(|end| end.err().expect("refused").to_string()).collect();
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:?}");
    texts.remove(0)
}

fn decompose(of: impl Fn(u32) -> Boxes + Sync, ranks: u32) -> Vec<Result<Decomposition, Error>> {
    let nodes: Vec<u32> = (0..ranks).map(|rank| rank / 3).collect();
    on_nodes(
        &Bed::new(),
        &nodes,
        |_| (),
        |rank, session| {
            let end = session.decompose(of(rank));
            // Numbers of calls are still in step.
            session.agree("still together", crate::coordination::Payload::None, None).expect("together");
            session.close().expect("closed");
            end
        },
    )
}

/// Slabs of an array of 100 rows, as even as can be.
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
        "the array of shape [100, 6] is not decomposed: elements [38, 0..6] belong both to box 0 of rank 1 and to box 0 of rank 2"
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
    // 2,000 boxes on each of four ranks, single cells in turn.
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
                // It computes for ever, and ends without a word.
                std::thread::sleep(Duration::from_secs(2));
                return None;
            }
            Some(session.decompose(slab(rank, 3)).err().expect("not all are there").to_string())
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
                return Some(session.decompose(boxes).err().expect("not all are there").to_string());
            }
            // It says what it has, and is gone then.
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
