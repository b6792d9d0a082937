//! Arrays whose elements are spread over the ranks by lists of their numbers, such as those of unstructured meshes.
//!
//! A rank states which numbers it owns, in the order of its memory ([`Ids`]). A shard stores the list in blocks that can be read
//! separately ([`list`]), in a region `.bivouac/ids/<place>` ([`region_name`]). Together the ranks check that no number has two owners
//! and, for a load on other lists, find out which rank gets which elements from where. Numbers lie in cells, which arithmetic assigns to
//! the ranks and which are examined window by window ([`windows`]). All ranks tell the owner of a cell which of its numbers they have and
//! which they want ([`counter`]).

pub mod counter;
pub mod list;
pub mod windows;

use super::Identity;
use super::packed::{BOXES_MAX, ELEMENTS_MAX};
use crate::base::Rank;
use crate::format::numbers;
use std::sync::Arc;

/// The first byte of the hashed form of a list. The hashed form of boxes begins with the number of their dimensions.
const LIST: u8 = 0;
/// The prefix of the names of the regions of lists.
const NAME: &str = ".bivouac/ids/";

/// Why a list of numbers cannot be a rank's part of an array.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdsError {
    /// An array of too many elements.
    #[error("an array cannot have {total} numbered elements: at most {ELEMENTS_MAX} are possible")]
    TooLarge {
        /// The number of elements.
        total: u64,
    },
    /// A number that no element has.
    #[error("number {number}, at index {place} of this rank's list, is not less than {total}, the number of elements")]
    Outside {
        /// Its place in the list.
        place: u64,
        /// The number.
        number: u64,
        /// The number of elements of the array.
        total: u64,
    },
    /// A number that a rank has listed twice.
    #[error("number {number} occurs twice in this rank's list, at index {first} and at index {second}: list it once")]
    Twice {
        /// The number.
        number: u64,
        /// Its first place in the list.
        first: u64,
        /// Its next place.
        second: u64,
    },
}

/// A rank's part of a global array of numbered elements: a list of their numbers, counted from 0. The order of the list is the order of the
/// elements in the rank's memory.
///
/// ```
/// use bivouac_core::decomposition::Ids;
///
/// // This rank has three of the ten vertices of a mesh.
/// let vertices = Ids::of(10).own([7, 0, 3]);
/// assert_eq!(vertices.check().unwrap().head().count, 3);
/// // Of these only some are there at all.
/// let marked = Ids::of(10).own([2]).sparse();
/// assert!(marked.is_sparse());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ids {
    total: u64,
    own: Vec<u64>,
    is_sparse: bool,
}

impl Ids {
    /// Begins a rank's part of an array of `total` elements, without any numbers.
    pub fn of(total: u64) -> Ids {
        Ids { total, own: Vec::new(), is_sparse: false }
    }

    /// Adds the elements with these numbers, in this order: this rank owns them. Call this again to append more.
    #[must_use]
    pub fn own(mut self, numbers: impl IntoIterator<Item = u64>) -> Ids {
        self.own.extend(numbers);
        self
    }

    /// Makes the array sparse: the lists of all ranks together need not contain all numbers. An element may belong to no rank, but never to
    /// two.
    #[must_use]
    pub fn sparse(mut self) -> Ids {
        self.is_sparse = true;
        self
    }

    /// The number of elements of the array.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The lists of all ranks together need not contain all numbers.
    pub fn is_sparse(&self) -> bool {
        self.is_sparse
    }

    /// Checks everything that this rank can check alone.
    ///
    /// # Errors
    /// [`IdsError`]: the first mistake.
    pub fn check(self) -> Result<List, IdsError> {
        let Ids { total, own, is_sparse } = self;
        if total > ELEMENTS_MAX {
            return Err(IdsError::TooLarge { total });
        }
        if let Some((place, number)) = (0..).zip(&own).find(|(_, number)| **number >= total) {
            return Err(IdsError::Outside { place, number: *number, total });
        }
        // Most lists are in ascending order, and need no copy.
        if !own.is_sorted_by(|one, next| one < next) {
            let mut sorted = own.clone();
            sorted.sort_unstable();
            if let Some(twice) = sorted.windows(2).find(|two| two[0] == two[1]).map(|two| two[0]) {
                let mut places = (0..).zip(&own).filter(|(_, number)| **number == twice).map(|(place, _)| place);
                let (first, second) = (places.next().unwrap_or(0), places.next().unwrap_or(0));
                return Err(IdsError::Twice { number: twice, first, second });
            }
        }
        let head = Listed { total, is_sparse, count: own.len() as u64 };
        Ok(List { head, stretches: windows::stretches(&own), packed: list::pack(&own).into() })
    }
}

/// A rank's part of an array of numbered elements, without the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The number of elements of the array.
    pub total: u64,
    /// The lists of all ranks together need not have all numbers.
    pub is_sparse: bool,
    /// The number of numbers that this rank has.
    pub count: u64,
}

impl Listed {
    /// Appends it to `bytes`.
    pub(crate) fn put(&self, bytes: &mut Vec<u8>) {
        bytes.push(u8::from(self.is_sparse));
        numbers::put(bytes, self.total);
        numbers::put(bytes, self.count);
    }

    /// Takes one off the front of `bytes`; `None` unless it is possible.
    pub(crate) fn take(bytes: &mut &[u8]) -> Option<Listed> {
        let (is_sparse, rest) = bytes.split_first().filter(|(first, _)| **first <= 1)?;
        *bytes = rest;
        let total = numbers::take(bytes).filter(|total| *total <= ELEMENTS_MAX)?;
        let count = numbers::take(bytes).filter(|count| *count <= total)?;
        Some(Listed { total, is_sparse: *is_sparse == 1, count })
    }

    /// Can a list of `bytes` bytes have this many numbers? Each number takes at least one byte.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.count <= bytes && (self.count > 0 || bytes == 0)
    }
}

/// The region of the list at a place of a record.
pub fn region_name(place: usize) -> String {
    format!("{NAME}{place}")
}

/// A list as the parts of a record: boxes of one dimension, in the order of the list, each of consecutive numbers. This is for tools,
/// which process lists in the same way as boxes. `None` if the bytes are no such list, or there are more boxes than parts can have.
pub fn as_parts(head: Listed, packed: &[u8]) -> Option<Vec<u8>> {
    let each = |take: &mut dyn FnMut(u64, u64)| {
        let mut open: Option<(u64, u64)> = None;
        let mut reader = list::Reader::new(head.total, head.count);
        reader.take(packed, |_, numbers| {
            for number in numbers {
                match &mut open {
                    Some((_, end)) if *end == *number => *end += 1,
                    _ => {
                        open.into_iter().for_each(|(from, end)| take(from, end - from));
                        open = Some((*number, number + 1));
                    }
                }
            }
        })?;
        open.into_iter().for_each(|(from, end)| take(from, end - from));
        reader.is_through().then_some(())
    };
    let mut count = 0usize;
    each(&mut |_, _| count += 1)?;
    let mut bytes = vec![1, u8::from(head.is_sparse)];
    numbers::put(&mut bytes, head.total);
    numbers::put(&mut bytes, Some(count).filter(|count| *count <= BOXES_MAX)? as u64);
    let mut before = (0u64, 0u64);
    each(&mut |from, extent| {
        numbers::put(&mut bytes, numbers::from_step(from.wrapping_sub(before.0) as i64));
        numbers::put(&mut bytes, numbers::from_step(extent.wrapping_sub(before.1) as i64));
        before = (from, extent);
    })?;
    Some(bytes)
}

/// The term of a rank's list in the identity of the whole array.
pub fn identity_of(head: Listed, packed: &[u8], rank: Rank, ranks: u32) -> Identity {
    let mut bytes = vec![LIST];
    head.put(&mut bytes);
    bytes.extend_from_slice(packed);
    Identity::of_packed(&bytes, rank.0, ranks)
}

/// A rank's list in the form of shards, checked. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    head: Listed,
    stretches: u64,
    packed: Arc<[u8]>,
}

impl List {
    /// The part of the list that records store.
    pub fn head(&self) -> Listed {
        self.head
    }

    /// The number of stretches of consecutive numbers.
    pub fn stretches(&self) -> u64 {
        self.stretches
    }

    /// The numbers, packed by [`list::pack`].
    pub fn packed(&self) -> &Arc<[u8]> {
        &self.packed
    }

    /// Passes the numbers to `each` in the order of memory, some at a time, with the place of the first.
    pub fn each(&self, each: impl FnMut(u64, &[u64])) {
        let taken = list::Reader::new(self.head.total, self.head.count).take(&self.packed, each);
        debug_assert!(taken.is_some(), "it was packed here");
    }

    /// The term of this rank in the identity of the whole array, which depends on the order of the list.
    pub fn identity(&self, rank: Rank, ranks: u32) -> Identity {
        identity_of(self.head, &self.packed, rank, ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::super::PackedParts;
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn what_cannot_be_a_list_is_refused() {
        let refused = |ids: Ids| ids.check().expect_err("it cannot be").to_string();
        assert!(refused(Ids::of(1 << 62)).contains("at most 4611686018427387903"));
        assert!(refused(Ids::of(u64::MAX).own([0])).contains("at most"));
        let outside = refused(Ids::of(9).own([3, 9]));
        assert_eq!(outside, "number 9, at index 1 of this rank's list, is not less than 9, the number of elements");
        assert!(refused(Ids::of(0).own([0])).contains("not less than 0"));
        let twice = refused(Ids::of(9).own([4, 8]).own([1, 8]));
        assert_eq!(twice, "number 8 occurs twice in this rank's list, at index 1 and at index 3: list it once");
        assert!(refused(Ids::of(9).own([5, 5])).contains("index 0 and at index 1"));
        assert!(Ids::of((1 << 62) - 1).own([0, (1 << 62) - 2]).check().is_ok());
        assert!(Ids::of(0).check().is_ok());
    }

    #[test]
    fn a_list_is_boxes_in_its_order() {
        let numbers = (5..6000).chain([2, 3, 1, 0, 9000]).chain(7000..7003);
        let list = Ids::of(9001).own(numbers).sparse().check().expect("inside");
        let bytes = as_parts(list.head(), list.packed()).expect("boxes");
        let parts = PackedParts::of(&bytes).expect("parts");
        assert!(parts.is_sparse() && parts.shape() == [9001] && parts.elements() == list.head().count);
        let boxes: Vec<[u64; 2]> = parts.boxes().map(|own| [own.from[0], own.to[0]]).collect();
        assert_eq!(boxes, [[5, 6000], [2, 4], [1, 2], [0, 1], [9000, 9001], [7000, 7003]]);
        let none = Ids::of(3).check().expect("none");
        let bytes = as_parts(none.head(), none.packed()).expect("boxes");
        assert_eq!(PackedParts::of(&bytes).map(|parts| parts.count()), Some(0));
        assert_eq!(as_parts(Listed { count: 1, ..none.head() }, none.packed()), None);
    }

    #[test]
    fn whatever_is_dealt_otherwise_has_another_identity() {
        let of = |ids: Ids, rank, ranks| {
            let own = ids.check().expect("inside");
            own.identity(Rank(rank), ranks)
        };
        let all = [
            of(Ids::of(9).own([1, 2, 3]), 0, 2),
            of(Ids::of(9).own([1, 3, 2]), 0, 2),
            of(Ids::of(9).own([1, 2]), 0, 2),
            of(Ids::of(8).own([1, 2, 3]), 0, 2),
            of(Ids::of(9).own([1, 2, 3]).sparse(), 0, 2),
            of(Ids::of(9).own([1, 2, 3]), 1, 2),
            of(Ids::of(9).own([1, 2, 3]), 0, 3),
            of(Ids::of(9), 0, 2),
        ];
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
        assert_eq!(all[0], of(Ids::of(9).own([1]).own([2, 3]), 0, 2));
    }
}
