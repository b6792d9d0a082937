//! The Rust API: a session on a communicator, checkpoints taken through it, and restarts.
//!
//! ```no_run
//! # #[cfg(feature = "mpi")]
//! # fn main() -> bivouac::Result<()> {
//! use bivouac::Session;
//! let universe = mpi::initialize().expect("MPI is not initialised yet");
//! let world = universe.world();
//! let session = Session::from_env(&world)?;
//! let (mut step, mut t) = (0u64, vec![0.0f64; 1 << 20]);
//! session.begin_restore("heat").run(|r| {
//!     r.load("temperature", &mut t)?;
//!     step = r.value("step")?;
//!     Ok(())
//! })?;
//! while step < 1000 {
//!     step += 1; // … compute …
//!     if step % 100 == 0 {
//!         let mut ckpt = session.begin_checkpoint("heat", step)?;
//!         ckpt.save("temperature", &t)?;
//!         ckpt.value("step", &step)?;
//!         ckpt.capture()?;
//!     }
//! }
//! session.close()?;
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "mpi"))]
//! # fn main() {}
//! ```
//!
//! # Messages in flight
//!
//! A checkpoint is consistent if the application is: when a rank calls [`CheckpointBuilder::capture`], all of the application's own
//! communication on which the checkpoint depends must be complete. Bivouac sees the application's memory, not its messages. A message that
//! is still in flight is not part of any checkpoint. Bivouac's own messages use a separate communicator.
#![forbid(unsafe_code)]
#![allow(clippy::module_inception, reason = "the session is what this module is about")]

mod accompany;
mod asking;
mod caches;
mod checkpoint;
mod companions;
mod decide;
mod decompose;
mod device;
mod domains;
mod error;
mod events;
mod files;
mod layer;
mod looking;
mod offload;
mod open;
mod pending;
pub mod place;
mod protected;
mod protected_device;
mod protected_rows;
mod restart;
mod routed;
mod rows;
mod session;
mod stream;
mod summary;
mod terms;
#[cfg(test)]
mod tests;

pub use checkpoint::CheckpointBuilder;
pub use companions::{Companion, OnRestart};
pub use device::DeviceCheckpointBuilder;
pub use error::{Error, Result};
#[cfg(feature = "mpi")]
pub use layer::prepare_to_wait;
pub use pending::Pending;
#[doc(hidden)]
pub use protected::named;
pub use protected::{Checkpoint, Protect, Protected};
pub use protected_device::DeviceProtected;
pub use protected_rows::RowsMut;
pub use restart::{AttemptEnd, Loaded, Restart, Restore, Restored, UncountedEnd, VersionInfo};
pub use rows::Rows;
pub use session::Session;
pub use stream::RegionWriter;
