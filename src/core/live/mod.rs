//! Host memory that the program continues to write to while a checkpoint of it is taken.
//!
//! ```text
//!  program      ... capture │ write to a page that is not copied yet ──┐ waits ┌─ continues ...
//!  capture      protect all whole pages of the region                  ▼       │
//!  bvk-live               block, block, block, ... the blocks of that page; let it pass ... all copied: no protection any more
//! ```
//!
//! [`LiveMemory`] is what the program promises to leave mapped. [`Watch`] asks the kernel to stop writers (userfaultfd, write-protect mode). Which
//! blocks have been copied is in [`Blocks`], and whether it is worth it in [`Habit`]: both pure.
//!
//! Why the full mode of userfaultfd and not the one that every process may use: with the latter a `read()` into a protected page, or a message that the
//! kernel copies there (`process_vm_writev`), fails with EFAULT, and the program with it.
//!
//! What DMA writes (a network card, a GPU) passes under the protection; so it is declared, as everything is where the kernel offers none.
#![deny(unsafe_op_in_unsafe_fn)]

mod blocks;
mod habit;
mod memory;
mod watch;

pub use blocks::Blocks;
pub use habit::Habit;
pub use memory::LiveMemory;
pub use watch::{Mappings, Protected, Watch, WatchError, page_bytes};
