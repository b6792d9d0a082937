//! How the elements of a global array are dealt over the ranks of a group: what a program says of it, the proof that
//! each element has one owner, and what a shard records of it. Pure.
//!
//! A program describes its own part of an array, [`Boxes`] of elements or a list of their numbers ([`Ids`]). All ranks together prove once that the parts
//! tile the array ([`cells`], [`proof`]), or that each number is in one list ([`ids`]); what comes out is a [`Decomposition`], which regions are saved and loaded on. Its [`Identity`]
//! is the same on all ranks, and that of no other decomposition: a load on the one that a region was saved on reads
//! the rank's own shard, and nothing else.
//!
//! The memory of a box may have a margin of ghost cells around it ([`strides`]). What is saved are the elements of the boxes alone, box behind box,
//! each in the order of memory; a load leaves margins as they are.
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
