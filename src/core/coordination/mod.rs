//! How ranks agree: numbered reductions over a tree, decided by the root.
//!
//! Every collective call of a session is an *operation* with a number; a checkpoint has further *phases*, one
//! for each durable level. One [`Round`] (operation and phase) is one reduction: each rank casts a [`Ballot`],
//! inner ranks of the [`tree`] merge what their children sent, the root decides, and its [`Verdict`] goes down
//! the same tree. A rank sends one message up and one to each of its at most four children, so a round costs
//! O(log P) messages in depth and a constant number per rank, and nobody waits on the application's path.
//!
//! [`core`] is pure: events in, effects out. [`driver`] feeds it from a [`crate::comm::Comm`] and a clock, and
//! carries out its sends. Three rules make the outcome safe:
//!
//! - Only the root decides. Lateness becomes `Abandoned` only there; a rank that cannot reach the root ends with
//!   `Unknown`, which fails its session and is settled at restart from the shards themselves.
//! - A verdict is final for its round, and a late rank finds it under its number.
//! - Nothing here opens a file. What must be durable before a verdict (a manifest) is done by whoever answers
//!   [`core::Effect::Decide`].
//!
//! [`posts`] are separate: messages that ranks send to others that do not expect them.
#![forbid(unsafe_code)]

pub mod ballot;
pub mod core;
pub mod driver;
pub mod posts;
pub mod tree;

pub use ballot::{Alike, Ballot, CallGroup, Culprit, Payload, Ranks, Span, join};
pub use core::{Core, Outcome, Phase, Round, Verdict};
pub use driver::Driver;
