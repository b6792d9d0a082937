//! How a job fares on a machine, before it runs there: machines as a few numbers ([`machine`]), some of them known ([`presets`], and those of a
//! paper: [`ics19`]), what their checkpoints cost at each level, for [`crate::policy::intervals`], what nodes keep for each other ([`protection`]), jobs
//! played from failure to failure ([`play`]), and how often one fails, by what it was seen to do ([`estimate`]). What was measured on a machine comes
//! from its profile ([`profiled`]). Pure.
#![forbid(unsafe_code)]

pub mod estimate;
pub mod ics19;
pub mod machine;
pub mod play;
pub mod presets;
pub mod profiled;
pub mod protection;

pub use machine::{Failures, Machine, Site, Store};
