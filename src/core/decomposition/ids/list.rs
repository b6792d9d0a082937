//! A rank's list of numbers in the form of shards: in blocks that can be read independently.
//!
//! ```text
//!   block     place of its first number in the list, count, the first number, then the differences of the others from the one before; zeros up to its end
//! ```
//!
//! All of these are short numbers (`format::numbers`), which take as few bytes as possible; differences have their sign in the lowest bit.
//! Every block but the last is [`BLOCK`] bytes long, a divisor of the blocks of every shard, and is as full as possible: equal lists are
//! equal bytes.

use crate::format::numbers;

/// The length of a block in bytes.
pub const BLOCK: usize = 4 << 10;
/// The encoding of a difference of one.
const NEXT: u8 = 2;
/// The maximum number of bytes of a number.
const NUMBER: usize = 10;
/// The maximum number of bytes of the place and the count.
const HEAD: usize = 2 * NUMBER;

/// Some numbers of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Portion {
    /// The place of the first of them in the list.
    pub at: u64,
    /// The numbers.
    pub numbers: Vec<u64>,
}

/// Encodes a list in the form of shards.
pub fn pack(list: &[u64]) -> Vec<u8> {
    let (mut bytes, mut steps) = (Vec::new(), Vec::with_capacity(BLOCK));
    let mut at = 0;
    while at < list.len() {
        steps.clear();
        let mut before = 0u64;
        let mut end = at;
        while let Some(number) = list.get(end) {
            // Most lists consist of consecutive numbers.
            if end > at && *number == before.wrapping_add(1) {
                let room = (BLOCK - HEAD).saturating_sub(steps.len());
                let pairs = list[end - 1..].windows(2).take(room);
                let next = pairs.take_while(|pair| pair[0].wrapping_add(1) == pair[1]).count();
                if next == 0 {
                    break;
                }
                steps.resize(steps.len() + next, NEXT);
                (before, end) = (before + next as u64, end + next);
                continue;
            }
            let length = steps.len();
            numbers::put(&mut steps, numbers::from_step(number.wrapping_sub(before) as i64));
            if HEAD + steps.len() > BLOCK {
                steps.truncate(length);
                break;
            }
            (before, end) = (*number, end + 1);
        }
        numbers::put(&mut bytes, at as u64);
        numbers::put(&mut bytes, (end - at) as u64);
        bytes.extend_from_slice(&steps);
        at = end;
        if at < list.len() {
            bytes.resize(bytes.len().next_multiple_of(BLOCK), 0);
        }
    }
    bytes
}

/// Decodes the numbers of one block of a list, for an array of this many elements. `None` if the block is truncated or impossible: it has
/// a number beyond the array, or no numbers. The memory that decoding takes is proportional to the block.
pub fn unpack(block: &[u8], total: u64) -> Option<Portion> {
    if block.len() > BLOCK {
        return None;
    }
    let mut rest = block;
    let at = numbers::take(&mut rest)?;
    let count = usize::try_from(numbers::take(&mut rest)?).ok().filter(|count| (1..=rest.len()).contains(count))?;
    at.checked_add(count as u64)?;
    let (mut found, mut before) = (Vec::with_capacity(count), 0u64);
    while found.len() < count {
        let next = rest.iter().take(count - found.len()).take_while(|step| **step == NEXT).count();
        if next == 0 {
            before = before.wrapping_add(numbers::to_step(numbers::take(&mut rest)?) as u64);
            found.push(Some(before).filter(|number| *number < total)?);
            continue;
        }
        let last = before.checked_add(next as u64).filter(|last| *last < total)?;
        found.extend(before + 1..=last);
        (before, rest) = (last, &rest[next..]);
    }
    rest.iter().all(|byte| *byte == 0).then_some(Portion { at, numbers: found })
}

/// Reads the blocks of a list one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reader {
    total: u64,
    count: u64,
    at: u64,
}

impl Reader {
    /// A reader of a list of `count` numbers of an array of `total` elements.
    pub fn new(total: u64, count: u64) -> Reader {
        Reader { total, count, at: 0 }
    }

    /// Passes the numbers of the next blocks to `each`. The blocks are whole, unless the list ends in them. `None` if they do not follow
    /// the previous ones, or have more numbers than the list.
    pub fn take(&mut self, blocks: &[u8], mut each: impl FnMut(u64, &[u64])) -> Option<()> {
        for block in blocks.chunks(BLOCK) {
            let portion = unpack(block, self.total)?;
            let end = portion.at.checked_add(portion.numbers.len() as u64).filter(|end| *end <= self.count)?;
            // Only the last block may be shorter.
            if portion.at != self.at || (block.len() < BLOCK && end < self.count) {
                return None;
            }
            self.at = end;
            each(portion.at, &portion.numbers);
        }
        Some(())
    }

    /// Has the whole list been read?
    pub fn is_through(&self) -> bool {
        self.at == self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8], total: u64, count: u64, step: usize) -> Option<Vec<u64>> {
        let (mut reader, mut got) = (Reader::new(total, count), Vec::new());
        for blocks in bytes.chunks(step * BLOCK) {
            reader.take(blocks, |at, numbers| {
                assert_eq!(at, got.len() as u64);
                got.extend_from_slice(numbers);
            })?;
        }
        reader.is_through().then_some(got)
    }

    proptest! {
        #[test]
        fn a_list_comes_back_in_its_order_and_each_block_alone(
            list in proptest::collection::vec(prop_oneof![0u64..5000, 0u64..(1 << 62) - 1], 0..4000),
            step in 1usize..4,
        ) {
            let (bytes, total) = (pack(&list), (1 << 62) - 1);
            prop_assert_eq!(read(&bytes, total, list.len() as u64, step), Some(list.clone()));
            for block in bytes.chunks(BLOCK) {
                let portion = unpack(block, total).expect("whole");
                prop_assert_eq!(&list[portion.at as usize..][..portion.numbers.len()], &portion.numbers[..]);
            }
        }

        #[test]
        fn whatever_bytes_come_nothing_beyond_the_array_comes_of_them(
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            total in 0u64..300,
        ) {
            if let Some(portion) = unpack(&bytes, total) {
                prop_assert!(portion.numbers.len() <= bytes.len() && !portion.numbers.is_empty());
                prop_assert!(portion.numbers.iter().all(|number| *number < total));
            }
        }
    }

    #[test]
    fn lists_that_are_cut_forged_or_exchanged_are_refused() {
        let list: Vec<u64> = (0..9000).collect();
        let bytes = pack(&list);
        assert!(bytes.len() > 2 * BLOCK && bytes.len() < 9100, "a byte for each, {}", bytes.len());
        assert_eq!(read(&bytes, 9000, 9000, 1), Some(list));
        assert_eq!(read(&bytes, 8999, 9000, 1), None, "a number beyond the array");
        assert_eq!(read(&bytes, 9000, 8999, 1), None, "more than the record says");
        assert_eq!(read(&bytes, 9000, 9001, 1), None, "fewer");
        assert_eq!(read(&bytes[..bytes.len() - 1], 9000, 9000, 1), None, "cut");
        assert_eq!(read(&bytes[..2 * BLOCK], 9000, 9000, 1), None, "the last block is missing");
        let exchanged = [&bytes[BLOCK..2 * BLOCK], &bytes[..BLOCK], &bytes[2 * BLOCK..]].concat();
        assert_eq!(read(&exchanged, 9000, 9000, 1), None, "in another order");
        let mut padded = bytes.clone();
        padded[BLOCK - 1] = 1;
        assert_eq!(read(&padded, 9000, 9000, 1), None, "something behind the numbers");
        // Counts that are followed by nothing.
        for count in [1u64 << 40, u64::MAX] {
            let mut forged = vec![0];
            numbers::put(&mut forged, count);
            forged.push(0);
            assert_eq!(unpack(&forged, 9000), None);
        }
        let mut forged = Vec::new();
        [u64::MAX, 1, 0].into_iter().for_each(|number| numbers::put(&mut forged, number));
        assert_eq!(unpack(&forged, 9000), None, "a place that cannot be");
        assert_eq!(unpack(&[0, 0], 9000), None, "no number");
        assert!(pack(&[]).is_empty() && read(&[], 9, 0, 1) == Some(vec![]));
    }
}
