//! The engine: captures, writes in the background, votes, and releases what is no longer needed.
//!
//! There is one [`Engine`] per rank and session. The application's thread captures ([`Engine::capture`]); everything after that is done in
//! steps, by threads or by the session's own calls, through the same two functions: [`Engine::step`] moves the coordination along,
//! [`Engine::work`] does one piece of I/O. The simulation calls them from one thread, so what it proves holds for the code that runs in
//! production.
//!
//! # Who does what
//!
//! | files | task |
//! |---|---|
//! | `core/` | decisions, pure: the life of a checkpoint on this rank, the effects of events, where a checkpoint goes, which memory may be released |
//! | `engine` | connections: tells the books what happens and performs the effects; steps the coordination |
//! | `files`, `peers` | this rank's part of a level (`level::LevelWork`): a file of each tier, the exchange with the peers |
//! | `lanes`, `work`, `background` | the background work: which work waits for which tier, which piece is next, and doing it |
//! | `checkpoint`, `capture`, `held`, `stream`, `landing`, `remains` | captures: copying the regions to a slot or a file, unless they are already there, and voting |
//! | `fetch`, `posting`, `mail`, `desk` | requests of other ranks; posts to ranks that do not expect them; bulk data on its way; rounds that wait to be stepped |
//! | `report`, `status`, `events` | what is reported to the application, the log, the supervisor and later reports |
//! | `tuning`, `costs`, `profile` | what checkpoints cost, for intervals that the session chooses itself and for the machine profile |
//! | `fence`, `inherited`, `shards`, `reducer` and `chunking`, `node`, `write`, `pacing` | the claim; segments of older runs; bytes of the captures, and their packed forms; containers of a node; pieces of writes; the pace |
//! | `calls` | services for calls of the application: questions to all ranks, waiting, the end |
//!
//! Threads are listed in `src/ARCHITECTURE.md`, locks and their order in [`crate::base::sync`].
#![forbid(unsafe_code)]

mod background;
mod calls;
pub mod capture;
pub mod checkpoint;
mod chunking;
pub mod core;
pub mod costs;
mod desk;
pub mod engine;
mod error;
mod events;
mod fence;
pub mod fetch;
mod files;
mod held;
pub mod history;
mod inherited;
mod landing;
pub mod lanes;
mod level;
mod live;
mod mail;
mod marking;
pub mod node;
pub mod offload;
pub mod pacing;
mod peers;
pub mod posting;
pub mod profile;
pub mod progress;
mod reducer;
mod remains;
pub mod report;
mod setup;
mod shards;
pub mod stats;
mod status;
pub mod stream;
pub mod threads;
mod tuning;
mod waiting;
mod watching;
mod work;
pub mod write;

pub use desk::Decider;
pub use engine::Engine;
pub use error::CaptureError;
pub use events::Events;
pub use held::{Held, HoldSpec};
pub use live::LiveStats;
pub use progress::{LevelVerdict, Progress, Report, Waited};
pub use setup::{Identity, Lands, Later, Setup};
pub use stats::Stats;
pub use status::{Supervision, Teller};
pub use threads::Threads;
pub(crate) use waiting::Waiting;
