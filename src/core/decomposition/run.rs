//! Elements in transit between a region and a memory, both of which have them consecutively.
//!
//! The rank that finds out which elements these are tells the rank that reads the shard, in posts of a bounded length.

use crate::base::Rank;
use crate::format::numbers;

/// The approximate length of a post in bytes. More runs go into several.
const POST_BYTES: usize = 64 << 10;
/// The maximum number of bytes of a run in a post: two differences of ten bytes each, a count and a rank of five.
const RUN_BYTES: usize = 30;
/// The minimum number of bytes of a run: one for each of its four numbers.
const RUN_BYTES_MIN: usize = 4;

/// Consecutive elements of a region of a shard, which go to one place in the memory of one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The place of the first element in the region.
    pub at: u64,
    /// The number of elements.
    pub count: u32,
    /// The rank that gets them.
    pub to: Rank,
    /// The place of the first element in its memory.
    pub target: u64,
}

// In the worst case there is one run for each element, so runs must be small.
const _: () = assert!(size_of::<Run>() == 24);

/// Posts with the runs of a rank's shard, in their order. A run takes four bytes if it goes to the same rank as the previous one and
/// follows it directly in both places.
pub fn posts(shard: Rank, runs: &[Run]) -> impl Iterator<Item = Vec<u8>> + '_ {
    runs.chunks(POST_BYTES / RUN_BYTES).map(move |some| {
        let mut bytes = Vec::new();
        numbers::put(&mut bytes, u64::from(shard.0));
        let (mut at, mut to, mut target) = (0u64, 0u32, 0u64);
        for run in some {
            numbers::put(&mut bytes, numbers::from_step(run.at.wrapping_sub(at) as i64));
            numbers::put(&mut bytes, u64::from(run.count));
            numbers::put(&mut bytes, numbers::from_step(i64::from(run.to.0) - i64::from(to)));
            numbers::put(&mut bytes, numbers::from_step(run.target.wrapping_sub(target) as i64));
            let count = u64::from(run.count);
            (at, to, target) = (run.at.wrapping_add(count), run.to.0, run.target.wrapping_add(count));
        }
        bytes
    })
}

/// Decodes a post: the rank of the shard, and the runs. `None` if it is truncated or not valid. The runs take memory in proportion to the
/// post. The caller checks whether the shard has these elements, and whether their ranks exist.
pub fn told(mut bytes: &[u8]) -> Option<(Rank, Vec<Run>)> {
    let shard = Rank(u32::try_from(numbers::take(&mut bytes)?).ok()?);
    let mut runs = Vec::with_capacity(bytes.len() / RUN_BYTES_MIN / 2);
    let (mut at, mut to, mut target) = (0u64, 0i64, 0u64);
    while !bytes.is_empty() {
        at = at.wrapping_add(numbers::to_step(numbers::take(&mut bytes)?) as u64);
        let count = u32::try_from(numbers::take(&mut bytes)?).ok()?;
        to = to.checked_add(numbers::to_step(numbers::take(&mut bytes)?))?;
        target = target.wrapping_add(numbers::to_step(numbers::take(&mut bytes)?) as u64);
        runs.push(Run { at, count, to: Rank(u32::try_from(to).ok()?), target });
        (at, target) = (at.wrapping_add(u64::from(count)), target.wrapping_add(u64::from(count)));
    }
    Some((shard, runs))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn runs_come_back(
            shard in any::<u32>(),
            some in proptest::collection::vec(any::<(u64, u32, u32, u64)>(), 0..40),
            copies in 1usize..100,
        ) {
            let some: Vec<Run> =
                some.into_iter().map(|(at, count, to, target)| Run { at, count, to: Rank(to), target }).collect();
            let runs = some.repeat(copies);
            let mut got = Vec::new();
            for post in posts(Rank(shard), &runs) {
                prop_assert!(post.len() <= POST_BYTES);
                let (of, runs) = told(&post).expect("a post");
                prop_assert_eq!(of, Rank(shard));
                got.extend(runs);
            }
            prop_assert_eq!(got, runs);
        }

        #[test]
        fn whatever_comes_takes_memory_in_proportion(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some((_, runs)) = told(&bytes) {
                prop_assert!(runs.len() * RUN_BYTES_MIN <= bytes.len());
            }
        }
    }

    #[test]
    fn runs_one_behind_the_other_are_short_and_cut_posts_are_refused() {
        let runs: Vec<Run> =
            (0..100).map(|part| Run { at: 7 * part, count: 7, to: Rank(3), target: 50 + 7 * part }).collect();
        let post = posts(Rank(2), &runs).next().expect("one");
        assert!(post.len() <= 4 * 100 + 4, "{} bytes", post.len());
        assert_eq!(told(&post), Some((Rank(2), runs)));
        assert_eq!(told(&post[..post.len() - 1]), None);
        assert_eq!(told(&[]), None);
        // A rank below 0, and a count of 33 bits.
        assert_eq!(told(&[0, 0, 1, 1, 0]), None);
        let mut long = vec![0, 0];
        numbers::put(&mut long, 1 << 32);
        long.extend([0, 0]);
        assert_eq!(told(&long), None);
        assert_eq!(posts(Rank(2), &[]).count(), 0);
    }
}
