//! The engine: captures, writes in the background, votes, and lets go of what is no longer needed.
//!
//! One [`Engine`] per rank and session. The application's thread captures ([`Engine::capture`]); everything after that is
//! done in steps, by threads or by the session's own calls, through the same two functions: [`Engine::step`]
//! moves the coordination along, [`Engine::work`] does one piece of I/O. The simulation calls them from one thread, so
//! what it proves holds for the code that runs in production.
//!
//! # Threads
//!
//! | name | owner | does | may block on | how it stops |
//! |---|---|---|---|---|
//! | `bvk-comm` (0 or 1) | `Threads` of the session | `Engine::step`: messages, verdicts | nothing but short sleeps | stop flag; joined by `close`, by drop, and before `MPI_Finalize` |
//! | `bvk-write-N` (`engine.writers`) | `Threads` of the session | `Engine::work`: pieces of writes, manifests, retention | local and global file systems | stop flag; joined by `close` within its limit; otherwise they end with the piece in hand |
//! | `bvk-near` (1) | `Threads` of the session | `Engine::work` of the near side, so that nothing else waits for a global file system that hangs | the local file system | likewise |
//! | `bvk-far` (0 or 1) | `Threads` of the session | `Engine::work` of the far side, so that nothing else waits for a local file system that hangs | the global file system | likewise |
//! | `bvk-claim` (1, root) | `Threads` of the session | `Engine::guard_claim`: looks at the claims, renews ours | the file system of the claims | likewise |
//! | `bvk-farewell` (1, in `close`) | `Threads::finish` | closes the claim, writes the last status | the file systems of both | ends with that |
//! | `bvk-d2h` (2 for each `Caches`) | `history::Caches` | `Engine::on_landed` at the end of a download: seals a slot, leaves the vote with the engine | the device, its turn, the pace | stop flag, after the last staged shard; joined when the `Caches` are dropped |
//!
//! All of them block every signal. They inherit the CPU mask that the process was given, but for those of `Caches`
//! (`affinity::cpus`). Only the one stepping the driver calls MPI. Lock order: driver, then state; neither is held across I/O, and the state lock never across MPI.
#![forbid(unsafe_code)]

mod background;
mod calls;
pub mod capture;
pub mod checkpoint;
pub mod core;
mod desk;
pub mod engine;
mod error;
mod fence;
pub mod fetch;
mod files;
mod held;
pub mod history;
mod inherited;
mod landing;
pub mod lanes;
mod level;
mod mail;
pub mod node;
pub mod pacing;
mod peers;
pub mod progress;
pub mod report;
mod setup;
mod shards;
pub mod stats;
mod status;
pub mod threads;
mod waiting;
mod work;
pub mod write;

pub use desk::Decider;
pub use engine::Engine;
pub use error::CaptureError;
pub use held::{Held, HoldSpec};
pub use progress::{LevelVerdict, Progress, Report, Waited};
pub use setup::{Identity, Setup};
pub use stats::Stats;
pub use status::{Supervision, Teller};
pub use threads::Threads;
pub(crate) use threads::spawn;
pub(crate) use waiting::Waiting;
