//! What every other module builds on: identities, units, digests, clocks and seeded randomness.
//!
//! Nothing here knows what a checkpoint is made of. [`ids`] names ranks, generations and checkpoints. [`digest`] is the only block digest
//! of the project, together with the capture loop that copies and hashes in a single pass. [`clock`] and [`rng`] exist so that the
//! simulation can replace time and chance. [`sync`] has the locks and their order, and [`threads`] starts threads without signals.
//! [`pages`] populates the pages of memory that is about to be read. [`units`] reads and prints byte sizes and durations, and [`calendar`]
//! times of day. [`text`] shortens text that is too long for an error message.

pub mod calendar;
pub mod clock;
pub mod digest;
pub mod ids;
#[cfg(test)]
#[path = "../../../tests/common/limit.rs"]
pub mod limit;
pub mod log;
pub mod pages;
pub mod rng;
pub mod sync;
pub mod text;
pub mod threads;
pub mod units;

pub use clock::Clock;
pub use digest::Digest;
pub use ids::{CheckpointKey, Generation, Incarnation, Level, Origin, Rank};
