//! Arrays whose elements are dealt by lists of their numbers, as those of unstructured meshes are.
//!
//! A rank says which numbers it owns, in the order of its memory ([`Ids`]). Shards have the list in blocks that can be read alone ([`list`]). That no
//! number has two owners, and who gets what from where in a load on other lists, ranks find out together: numbers lie in cells, which are dealt over
//! the ranks by arithmetic and looked at window by window ([`windows`]); the owner of a cell hears from all ranks what they have of it and want of it
//! ([`counter`]).

pub mod counter;
pub mod list;
pub mod windows;

use super::Identity;
use super::packed::ELEMENTS_MAX;
use crate::base::Rank;
use crate::format::numbers;
use std::sync::Arc;

/// The first byte of what is hashed of a rank's list, where that of boxes has their dimensions.
const LIST: u8 = 0;

/// Why a list of numbers cannot be a rank's part of an array.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdsError {
    /// An array of too many elements.
    #[error("an array of {total} numbered elements has more than {ELEMENTS_MAX} elements")]
    TooLarge {
        /// How many.
        total: u64,
    },
    /// A number that no element has.
    #[error("number {number}, at place {place} of the list of this rank, is not below {total}, the number of elements")]
    Outside {
        /// Its place in the list.
        place: u64,
        /// It.
        number: u64,
        /// Elements of the array.
        total: u64,
    },
    /// A number that a rank has said twice.
    #[error("number {number} is both at place {first} and at place {second} of the list of this rank")]
    Twice {
        /// It.
        number: u64,
        /// The first place of it in the list.
        first: u64,
        /// The next one.
        second: u64,
    },
}

/// A rank's part of a global array of numbered elements: a list of their numbers, from 0 on. Its order is that of the rank's memory.
///
/// ```
/// use bivouac_core::decomposition::Ids;
///
/// // This rank has three of the ten vertices of a mesh.
/// let vertices = Ids::of(10).own([7, 0, 3]);
/// assert_eq!(vertices.check().unwrap().numbers(), [7, 0, 3]);
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
    /// None yet of an array of so many elements.
    pub fn of(total: u64) -> Ids {
        Ids { total, own: Vec::new(), is_sparse: false }
    }

    /// This rank owns the elements with these numbers, in this order. May be said again: these come behind those said before.
    #[must_use]
    pub fn own(mut self, numbers: impl IntoIterator<Item = u64>) -> Ids {
        self.own.extend(numbers);
        self
    }

    /// The lists of all ranks need not have all numbers: elements may belong to nobody, but to two ranks never.
    #[must_use]
    pub fn sparse(mut self) -> Ids {
        self.is_sparse = true;
        self
    }

    /// Elements of the array.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The lists need not have all of them.
    pub fn is_sparse(&self) -> bool {
        self.is_sparse
    }

    /// Looks at what this rank alone can know.
    ///
    /// # Errors
    /// [`IdsError`]: the first thing that cannot be.
    pub fn check(self) -> Result<OwnIds, IdsError> {
        let Ids { total, own, is_sparse } = self;
        if total > ELEMENTS_MAX {
            return Err(IdsError::TooLarge { total });
        }
        if let Some((place, number)) = (0..).zip(&own).find(|(_, number)| **number >= total) {
            return Err(IdsError::Outside { place, number: *number, total });
        }
        // Most lists ascend, and need no copy.
        if !own.is_sorted_by(|one, next| one < next) {
            let mut sorted = own.clone();
            sorted.sort_unstable();
            if let Some(twice) = sorted.windows(2).find(|two| two[0] == two[1]).map(|two| two[0]) {
                let mut places = (0..).zip(&own).filter(|(_, number)| **number == twice).map(|(place, _)| place);
                let (first, second) = (places.next().unwrap_or(0), places.next().unwrap_or(0));
                return Err(IdsError::Twice { number: twice, first, second });
            }
        }
        Ok(OwnIds { total, is_sparse, numbers: own.into() })
    }
}

/// A rank's list, looked at. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnIds {
    total: u64,
    is_sparse: bool,
    numbers: Arc<[u64]>,
}

impl OwnIds {
    /// Elements of the array.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The lists of all ranks need not have all of them.
    pub fn is_sparse(&self) -> bool {
        self.is_sparse
    }

    /// The numbers, in the order of memory.
    pub fn numbers(&self) -> &[u64] {
        &self.numbers
    }

    /// What this rank adds to the identity of the whole, the order of its list included, once the list is packed ([`list::pack`]).
    pub fn identity(&self, packed: &[u8], rank: Rank, ranks: u32) -> Identity {
        let mut bytes = vec![LIST, u8::from(self.is_sparse)];
        numbers::put(&mut bytes, self.total);
        numbers::put(&mut bytes, self.numbers.len() as u64);
        bytes.extend_from_slice(packed);
        Identity::of_packed(&bytes, rank.0, ranks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn what_cannot_be_a_list_is_refused() {
        let refused = |ids: Ids| ids.check().expect_err("it cannot be").to_string();
        assert!(refused(Ids::of(1 << 62)).contains("more than 4611686018427387903"));
        assert!(refused(Ids::of(u64::MAX).own([0])).contains("more than"));
        let outside = refused(Ids::of(9).own([3, 9]));
        assert_eq!(outside, "number 9, at place 1 of the list of this rank, is not below 9, the number of elements");
        assert!(refused(Ids::of(0).own([0])).contains("not below 0"));
        let twice = refused(Ids::of(9).own([4, 8]).own([1, 8]));
        assert_eq!(twice, "number 8 is both at place 1 and at place 3 of the list of this rank");
        assert!(refused(Ids::of(9).own([5, 5])).contains("place 0 and at place 1"));
        assert!(Ids::of((1 << 62) - 1).own([0, (1 << 62) - 2]).check().is_ok());
        assert!(Ids::of(0).check().is_ok());
    }

    #[test]
    fn whatever_is_dealt_otherwise_has_another_identity() {
        let of = |ids: Ids, rank, ranks| {
            let own = ids.check().expect("inside");
            own.identity(&list::pack(own.numbers()), Rank(rank), ranks)
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
