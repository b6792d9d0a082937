//! How ranks agree: numbered reductions over a tree, decided by the root.
//!
//! Every collective call of a session is an *operation* with a number; a checkpoint has further *phases*, one for each
//! durable level. One [`Round`] (operation and phase) is one reduction: each rank casts a [`Ballot`], inner ranks of
//! the [`tree`] merge what their children sent, the root decides, and its [`Verdict`] travels down the same tree. A
//! rank sends one message up and one to each of its children, of which it has at most four. So a round takes O(log P)
//! messages in depth and a constant number per rank, and no rank waits on the application's path.
//!
//! [`core`] is pure: events in, effects out. [`driver`] feeds it from a [`crate::comm::Comm`] and a clock, and
//! carries out its sends. Three rules make the outcome safe:
//!
//! - Only the root decides, and only the root turns lateness into `Abandoned`. A rank that cannot reach the root ends with
//!   `Unknown`: its session fails, and the next restart settles the matter from the shards themselves.
//! - A verdict is final for its round, and a late rank finds it under the number of the round.
//! - Nothing here opens a file. Whoever answers [`core::Effect::Decide`] makes durable what must be durable before a verdict
//!   (a manifest).
//!
//! [`posts`] is separate: it handles messages that ranks send to others that do not expect them.
#![forbid(unsafe_code)]

pub mod ballot;
pub mod core;
pub mod driver;
pub mod posts;
pub mod tree;

pub use ballot::{Alike, Ballot, CallGroup, Culprit, Payload, Ranks, Span, join};
pub use core::{Core, Outcome, Phase, Round, Verdict};
pub use driver::Driver;
