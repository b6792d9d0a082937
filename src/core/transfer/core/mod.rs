//! The engine's decisions, as values: events in, effects out. This module uses no thread, no clock, no message, no file and no byte of a
//! shard.
//!
//! [`Books`] has all checkpoints of a rank that are not over, one [`Life`] each, and, after the agreement on the call, one [`Flow`] with a
//! state for each tier. The engine tells the books what has happened and performs the returned [`Effect`]s, in their order, before anything
//! else can happen. The parts that do the work (captures, files, peers, reports) know nothing of these states.
//!
//! # A checkpoint's life on one rank
//!
//! ```text
//!  captured, part of it                 captured
//!  still in the GPU cache                  │
//!      │                                   │
//!      ▼           landed                  ▼    the votes before it are cast          agreed, with a plan
//!   Landing ──────────────────────────► Ready ──────────────────────────► Voting ────────────────────────► Agreed(Flow)
//!      │                                   │                                │ │                               │
//!      │ the others gave it up,            │ likewise                       │ └─ refused ──► Refused          │ every level has ended
//!      ▼ or the root is silent             ▼                                └─── silent ───► Doubtful         ▼
//!   Falling ── landed ─────────────────► Refused                                                           (over)
//! ```
//!
//! | life | this rank | its bytes | may others have heard that it is committed |
//! |---|---|---|---|
//! | `Landing` | has not voted | come down to a slot | no, but they will be asked |
//! | `Falling` | will not vote | come down, for nobody | no |
//! | `Ready` | votes when all before it have voted | in their place | no |
//! | `Voting` | has voted on the call | in their place | yes |
//! | `Agreed` | does its part for each level | needed until the last level has them | as its `Flow` says |
//! | `Refused` | | go | no |
//! | `Doubtful` | has voted, and the root is silent | stay for the restart to settle | yes |
//!
//! A verdict that arrives after all ends the doubt: what memory holds is then committed, or is removed, and nothing more is written.
//!
//! Refused, doubtful and ended checkpoints are forgotten as soon as the ledger releases their memory.
#![forbid(unsafe_code)]

mod books;
mod flow;
mod life;
mod outages;
mod plan;
mod references;

use crate::coordination::{Phase, Round};
use crate::tier::TierId;

pub use books::{Books, Captured, Effect, Facts};
pub use flow::{Flow, FlowEffect, LevelState, Settled};
pub use life::Life;
pub use outages::Outages;
pub use plan::{Plan, Wishes, plan};
pub use references::References;

/// The tier that a phase of a checkpoint is about; `None`: the call.
pub(super) fn tier_of(phase: Phase) -> Option<TierId> {
    match phase {
        Phase::Call => None,
        Phase::Level(tier) => TierId::at(tier),
    }
}

/// The round on the call with that number.
pub(super) fn call(operation: u64) -> Round {
    Round { operation, phase: Phase::Call }
}
