//! What of a checkpoint earlier files hold already. Pure.
//!
//! [`Versions`] knows the shards of a series that a rank has captured in this run, by their digests, and what the file of each stores
//! itself. Of a new shard it says how many bytes it could leave to each of them, and, when the root has chosen which of them files may refer
//! to, the extents of its packed form ([`crate::format::packed`]) by whole blocks. [`Chunks`] makes them of chunks of 32 B to 4 KiB, which may have
//! moved. [`Worth`] says whether to compress what is left.
//!
//! A block or chunk is unchanged if its length and its digest are equal. Two different ones agree with a probability of 2^-64 at most for a
//! comparison, with half of the digest's bits given away: 10^12 comparisons take one for the other with 5 * 10^-8. Nothing later would see it.
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
