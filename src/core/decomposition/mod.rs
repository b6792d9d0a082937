//! How the elements of a global array are spread over the ranks of a group: the program's description, the proof that each element has one
//! owner, and the record in a shard. Pure.
//!
//! A program describes its own part of an array: [`Boxes`] of elements, or a list of their numbers ([`Ids`]). All ranks together prove once
//! that the parts tile the array ([`cells`], [`proof`]), or that each number is in one list ([`ids`]). The result is a [`Decomposition`],
//! on which regions are saved and loaded. Its [`Identity`] is the same on all ranks, and differs from that of every other decomposition. If
//! a region is loaded on the decomposition on which it was saved, each rank reads its own shard and nothing else.
//!
//! The memory of a box may have ghost cells around it ([`strides`]). Only the elements of the boxes are saved, box after box, and each box
//! in the order of memory. A load does not change ghost cells.
//!
//! ```
//! use bivouac_core::decomposition::Boxes;
//!
//! // Rows 0 to 4 of an array of 8 rows and 6 columns, with one ghost cell around them in memory.
//! let boxes = Boxes::of([8, 6]).own([0, 0], [4, 6]).halo([1, 1]);
//! assert_eq!(boxes.check().unwrap().memory_elements(0), 6 * 8);
//! ```
#![forbid(unsafe_code)]

mod boxes;
pub mod cells;
pub mod cuboid;
mod identity;
pub mod ids;
mod layers;
pub mod matching;
mod packed;
pub mod proof;
mod proved;
pub mod record;
pub mod rows;
pub mod run;
pub mod shelf;
pub mod strides;

pub use boxes::{Boxes, DecompositionError, Own, Parts};
pub use cuboid::{Cuboid, DIMS};
pub use identity::Identity;
pub use ids::{Ids, IdsError};
pub use packed::{BOXES_MAX, ELEMENTS_MAX, PackedParts};
pub(crate) use proved::{Checked, Layout, ListSums};
pub use proved::{Decomposition, Part};
pub use record::{OnResize, Record, Rule, View};
pub use rows::RowSet;
