//! Predicts how a job fares on a machine before it runs there. A machine is described by a few numbers ([`machine`]). Some
//! machines are known ([`presets`]), among them those of a paper ([`ics19`]); the figures of a machine that was measured come
//! from its profile ([`profiled`]).
//!
//! [`machine`] works out what checkpoints cost at each level, for [`crate::policy::intervals`], and [`protection`] what nodes keep for each
//! other. [`play`] simulates jobs from failure to failure. [`estimate`] says how often a job fails, from the failures that it has been seen
//! to have. Nothing here does I/O.
#![forbid(unsafe_code)]

pub mod estimate;
pub mod ics19;
pub mod machine;
pub mod play;
pub mod presets;
pub mod profiled;
pub mod protection;

pub use machine::{Failures, Machine, Site, Store};
