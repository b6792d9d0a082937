//! Finds what earlier files already hold of a checkpoint. Nothing here does I/O.
//!
//! [`Versions`] knows the shards of a series that a rank has captured in this run, by their digests, and what the file of each shard stores
//! itself. For a new shard it says how many bytes the shard could leave to each of these files. Once the root has chosen to which of them
//! files may refer, it gives the extents of the packed form ([`crate::format::packed`]) by whole blocks. [`Chunks`] makes extents of chunks
//! of 32 B to 4 KiB, which may have moved. [`Worth`] says whether compressing the rest pays.
//!
//! A block or chunk is unchanged if its length and its digest are equal. In one comparison, two different ones agree with a probability of
//! at most 2^-64, with half of the digest's bits given away. So 10^12 comparisons mistake one for another with a probability of 5 * 10^-8.
//! No later check would notice this.
#![forbid(unsafe_code)]

mod chunks;
mod homes;
mod methods;
mod versions;
mod worth;

pub use chunks::{Chunks, Grouping, LEAVES_MAX, chunk_of, chunk_that_fits, range_bytes};
pub use homes::{Field, Found, Home, Part, Question, Stretch, all_own, extents, kept};
pub use methods::{Methods, Way};
pub use versions::{Extents, STORED, Versions};
pub use worth::Worth;
