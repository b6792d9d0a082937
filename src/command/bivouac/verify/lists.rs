//! A proof that each number is in one list, from the lists of all ranks. Pure.
//!
//! This proof has nothing in common with the one that sessions make: it uses a bit for each number, for as many numbers at a time
//! as there is room for.
#![forbid(unsafe_code)]

use bivouac_core::base::Rank;
use bivouac_core::decomposition::ids::Listed;
use bivouac_core::decomposition::ids::counter::Wrong;
use bivouac_core::decomposition::ids::list::Reader;

/// The count of numbers that are examined at a time: 128 MiB of bits.
const AT_ONCE: u64 = 1 << 30;
/// The maximum number of passes over the lists.
const TIMES_MAX: u64 = 64;

/// The result of a proof.
pub enum Verdict {
    /// Each number is in one list; in a sparse array, in at most one.
    Proved,
    /// A number is not in one list.
    Wrong(Wrong),
    /// The proof would take too long.
    Open,
}

/// Are the bytes a valid list?
pub fn is_one(head: Listed, numbers: &[u8]) -> bool {
    let mut reader = Reader::new(head.total, head.count);
    reader.take(numbers, |_, _| ()).is_some() && reader.is_through()
}

/// Examines the lists of all ranks, each of which is valid.
pub fn prove(lists: &[(Rank, Listed, &[u8])]) -> Verdict {
    prove_by(lists, AT_ONCE)
}

fn prove_by(lists: &[(Rank, Listed, &[u8])], at_once: u64) -> Verdict {
    let Some((_, head, _)) = lists.first() else { return Verdict::Proved };
    // Numbers after the last one in any list need no bits.
    let mut end = 0;
    for (_, head, numbers) in lists {
        each(*head, numbers, |number| end = end.max(number + 1));
    }
    if end.div_ceil(at_once) > TIMES_MAX {
        return Verdict::Open;
    }
    let mut gap = None;
    for start in (0..end).step_by(at_once as usize) {
        let length = at_once.min(end - start);
        let mut bits = vec![0u64; length.div_ceil(64) as usize];
        let mut twice: Option<u64> = None;
        for (_, head, numbers) in lists {
            each(*head, numbers, |number| {
                let Some(at) = number.checked_sub(start).filter(|at| *at < length) else { return };
                let (word, bit) = (&mut bits[(at / 64) as usize], 1u64 << (at % 64));
                if *word & bit != 0 {
                    twice = Some(twice.map_or(number, |twice| twice.min(number)));
                }
                *word |= bit;
            });
        }
        if let Some(number) = twice {
            return Verdict::Wrong(owners(lists, number));
        }
        if gap.is_none() {
            gap = first_zeros(&bits, length).map(|(from, to)| (start + from, start + to));
        }
    }
    let gap = gap.or((end < head.total).then_some((end, head.total)));
    match gap.filter(|_| !head.is_sparse) {
        Some((from, to)) => Verdict::Wrong(Wrong::Gap(from, to)),
        None => Verdict::Proved,
    }
}

/// Passes each number of a list to `take`.
fn each(head: Listed, numbers: &[u8], mut take: impl FnMut(u64)) {
    Reader::new(head.total, head.count).take(numbers, |_, some| some.iter().for_each(|number| take(*number)));
}

/// The first two ranks that have a number; they are the same if one list has it twice.
fn owners(lists: &[(Rank, Listed, &[u8])], of: u64) -> Wrong {
    let mut owners = Vec::new();
    for (rank, head, numbers) in lists {
        each(*head, numbers, |number| owners.extend((number == of).then_some(*rank)));
    }
    let one = owners.first().copied().unwrap_or(Rank(0));
    Wrong::Twice(of, one, owners.get(1).copied().unwrap_or(one))
}

/// The first range of bits that are not set, among the first `length` bits.
fn first_zeros(bits: &[u64], length: u64) -> Option<(u64, u64)> {
    let is_set = |at: &u64| bits[(*at / 64) as usize] >> (at % 64) & 1 == 1;
    let word = bits.iter().position(|word| *word != u64::MAX)? as u64 * 64;
    let from = (word..length).find(|at| !is_set(at))?;
    Some((from, (from..length).find(is_set).unwrap_or(length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_core::decomposition::ids::{Ids, List};
    use proptest::prelude::*;

    fn found(lists: &[List], at_once: u64) -> Option<Wrong> {
        let all: Vec<_> =
            (0..).map(Rank).zip(lists).map(|(rank, list)| (rank, list.head(), &list.packed()[..])).collect();
        assert!(all.iter().all(|(_, head, numbers)| is_one(*head, numbers)));
        match prove_by(&all, at_once) {
            Verdict::Proved => None,
            Verdict::Wrong(wrong) => Some(wrong),
            Verdict::Open => panic!("it is short"),
        }
    }

    proptest! {
        #[test]
        fn it_says_what_counting_says(
            owners in proptest::collection::vec(prop_oneof![9 => 0usize..3, 1 => Just(3usize)], 1..400),
            again in proptest::option::of((0usize..400, 0usize..3)),
            sparse in any::<bool>(),
            at_once in 10u64..500,
        ) {
            let total = owners.len() as u64;
            let again = again.filter(|(number, rank)| *number < owners.len() && owners[*number] != *rank);
            let lists: Vec<List> = (0..3).map(|rank| {
                let own = (0..total).filter(|number| owners[*number as usize] == rank);
                let again = again.filter(|(_, of)| *of == rank).map(|(number, _)| number as u64);
                let ids = Ids::of(total).own(own.chain(again).collect::<Vec<_>>().into_iter().rev());
                (if sparse { ids.sparse() } else { ids }).check().expect("inside")
            }).collect();
            let twice = again.filter(|(number, _)| owners[*number] < 3);
            let nobody = |number: &usize| owners[*number] == 3 && again.is_none_or(|(of, _)| of != *number);
            let gap = (0..owners.len()).find(nobody);
            match (found(&lists, at_once), twice, gap.filter(|_| !sparse)) {
                (Some(Wrong::Twice(number, one, other)), Some((of, rank)), _) => {
                    let mut both = [owners[of] as u32, rank as u32];
                    both.sort_unstable();
                    prop_assert_eq!((number, [one.0, other.0]), (of as u64, both));
                }
                (Some(Wrong::Gap(from, _)), None, Some(gap)) => prop_assert_eq!(from, gap as u64),
                (None, None, None) => {}
                other => prop_assert!(false, "{:?}", other),
            }
        }
    }

    #[test]
    fn what_takes_too_long_is_left_open() {
        let list = Ids::of(1 << 60).own([1 << 59]).sparse().check().expect("inside");
        assert!(matches!(prove(&[(Rank(0), list.head(), list.packed())]), Verdict::Open));
        let list = Ids::of(0).check().expect("none");
        assert!(matches!(prove(&[(Rank(0), list.head(), list.packed())]), Verdict::Proved));
    }
}
