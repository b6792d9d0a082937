//! Decompositions: arrays that the ranks have agreed on.

use super::cells::{Cells, Sums};
use super::ids::List;
use super::{Boxes, Identity, Ids, Own};
use crate::base::Rank;
use std::sync::Arc;

/// A rank's part of an array, as a program describes it: boxes of the array, or the numbers of its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// Boxes.
    Boxes(Boxes),
    /// Numbers.
    Ids(Ids),
}

impl Part {
    /// Checks everything that this rank can check alone.
    ///
    /// # Errors
    /// The reason why the part is not a possible part of an array.
    pub(crate) fn check(self) -> Result<Checked, String> {
        match self {
            Part::Boxes(boxes) => Ok(Checked::Boxes(boxes.check().map_err(|mistake| mistake.to_string())?.into())),
            Part::Ids(ids) => Ok(Checked::List(ids.check().map_err(|mistake| mistake.to_string())?)),
        }
    }
}

/// A rank's part, checked.
pub(crate) enum Checked {
    Boxes(Box<Own>),
    List(List),
}

impl Checked {
    /// The description of the array, which has to be the same on all ranks.
    pub fn array(&self) -> String {
        let an = |is_sparse| if is_sparse { "a sparse" } else { "an" };
        match self {
            Checked::Boxes(own) => format!("{} array of shape {:?}", an(own.parts().is_sparse()), own.parts().shape()),
            Checked::List(list) => {
                format!("{} array of {} numbered elements", an(list.head().is_sparse), list.head().total)
            }
        }
    }

    /// This rank's terms of the sums over all ranks, each with a key.
    pub fn sums(&self, rank: Rank, ranks: u32) -> Vec<(u64, u64)> {
        match self {
            Checked::Boxes(own) => Sums::of_rank(own.parts(), rank, ranks).numbers(),
            Checked::List(list) => {
                let limbs = list.identity(rank, ranks).limbs();
                (0..).zip([list.head().count, list.stretches()].into_iter().chain(limbs)).collect()
            }
        }
    }

    /// A decomposition made from this part and the sums, without a proof that each element has one owner.
    pub fn unproved(self, sums: &[(u64, u64)], (rank, ranks): (Rank, u32)) -> Decomposition {
        match self {
            Checked::Boxes(own) => {
                let sums = Sums::of_numbers(sums);
                let cells = Cells::new(own.parts(), &sums, ranks);
                Decomposition::of_boxes(*own, sums.identity, cells, (rank, ranks)).unproved()
            }
            Checked::List(list) => {
                let ListSums { identity, .. } = ListSums::of_numbers(sums);
                Decomposition::of_list(list, identity, (rank, ranks)).unproved()
            }
        }
    }
}

/// The sums over the lists of all ranks.
pub(crate) struct ListSums {
    /// The number of entries in all lists.
    pub count: u64,
    /// The number of stretches in all lists.
    pub stretches: u64,
    /// The identity of the lists.
    pub identity: Identity,
}

impl ListSums {
    /// The sums from the numbers that ranks have added up.
    pub fn of_numbers(sums: &[(u64, u64)]) -> ListSums {
        let sum = |of: u64| sums.iter().find(|(key, _)| *key == of).map_or(0, |(_, sum)| *sum);
        let identity = Identity::from_limbs(std::array::from_fn(|limb| sum(2 + limb as u64)));
        ListSums { count: sum(0), stretches: sum(1), identity }
    }
}

impl From<Boxes> for Part {
    fn from(boxes: Boxes) -> Part {
        Part::Boxes(boxes)
    }
}

impl From<Ids> for Part {
    fn from(ids: Ids) -> Part {
        Part::Ids(ids)
    }
}

/// How an array is spread over the ranks of a group. The ranks have proved it, and it is the same on all of them.
/// [`Session::decompose`](crate::session::Session::decompose) makes it, and regions are saved and loaded on it.
///
/// A decomposition is cheap to clone, and may outlive its session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decomposition(Arc<Inner>);

#[derive(Debug, PartialEq, Eq)]
struct Inner {
    layout: Layout,
    shape: Vec<u64>,
    /// The rank's memory.
    own: Own,
    identity: Identity,
    rank: Rank,
    ranks: u32,
    /// Has it been proved that each element has one owner?
    is_proved: bool,
}

/// How the elements of an array are identified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// By boxes.
    Boxes {
        /// The cells that fit them.
        cells: Box<Cells>,
        /// This rank's parts in the form of records, which is written with each checkpoint.
        packed: Arc<[u8]>,
    },
    /// By lists of numbers.
    Listed(List),
}

impl Decomposition {
    /// A proved decomposition of boxes.
    pub(crate) fn of_boxes(own: Own, identity: Identity, cells: Cells, (rank, ranks): (Rank, u32)) -> Decomposition {
        let mut packed = Vec::new();
        own.parts().put(&mut packed);
        let shape = own.parts().shape().to_vec();
        Decomposition(Arc::new(Inner {
            layout: Layout::Boxes { cells: cells.into(), packed: packed.into() },
            shape,
            own,
            identity,
            rank,
            ranks,
            is_proved: true,
        }))
    }

    /// A proved decomposition of lists.
    pub(crate) fn of_list(list: List, identity: Identity, (rank, ranks): (Rank, u32)) -> Decomposition {
        let (shape, own) = (vec![list.head().total], Own::line(list.head().count));
        let (layout, is_proved) = (Layout::Listed(list), true);
        Decomposition(Arc::new(Inner { layout, shape, own, identity, rank, ranks, is_proved }))
    }

    /// This decomposition, but without the proof that each element has one owner.
    fn unproved(self) -> Decomposition {
        let Inner { layout, shape, own, identity, rank, ranks, .. } = &*self.0;
        let (layout, shape, own, is_proved) = (layout.clone(), shape.clone(), own.clone(), false);
        Decomposition(Arc::new(Inner {
            layout,
            shape,
            own,
            identity: *identity,
            rank: *rank,
            ranks: *ranks,
            is_proved,
        }))
    }

    /// Has it been proved that each element has one owner?
    pub(crate) fn is_proved(&self) -> bool {
        self.0.is_proved
    }

    /// This decomposition for memory without ghost cells.
    pub(crate) fn without_margins(&self) -> Decomposition {
        let Inner { layout, shape, own, identity, rank, ranks, is_proved } = &*self.0;
        let (layout, shape, own) = (layout.clone(), shape.clone(), own.without_margins());
        let (identity, rank, ranks, is_proved) = (*identity, *rank, *ranks, *is_proved);
        Decomposition(Arc::new(Inner { layout, shape, own, identity, rank, ranks, is_proved }))
    }

    /// How the elements are identified.
    pub(crate) fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// The identity, which is different for every decomposition.
    #[doc(hidden)]
    pub fn identity(&self) -> Identity {
        self.0.identity
    }

    /// This rank's part and its memory. Numbered elements are consecutive in memory, like those of an array that
    /// belongs to this rank alone.
    #[doc(hidden)]
    pub fn own(&self) -> &Own {
        &self.0.own
    }

    /// The rank to which the part belongs, and the number of ranks.
    #[doc(hidden)]
    pub fn place(&self) -> (Rank, u32) {
        (self.0.rank, self.0.ranks)
    }

    /// The extents of the array, in elements, slowest first.
    pub fn shape(&self) -> &[u64] {
        &self.0.shape
    }

    /// The number of boxes that this rank owns. A list of numbers counts as one.
    pub fn boxes(&self) -> usize {
        self.0.own.parts().own().len()
    }

    /// The number of elements that this rank owns.
    pub fn elements(&self) -> u64 {
        self.0.own.parts().elements()
    }
}
