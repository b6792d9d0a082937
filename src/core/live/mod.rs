//! Host memory that the program continues to write to while a checkpoint of it is taken.
//!
//! ```text
//!  program      ... capture │ write to a page that is not copied yet ──┐ waits ┌─ continues ...
//!  capture      protect all whole pages of the region                  ▼       │
//!  bvk-live               block, block, block, ... the blocks of that page; let it pass ... all copied: no protection any more
//! ```
//!
//! [`LiveMemory`] is memory that the program promises to keep mapped. [`Watch`] asks the kernel to stop writers (userfaultfd, write-protect
//! mode). [`Blocks`] records which blocks have been copied, and [`Habit`] whether live copying is worthwhile; both are pure.
//!
//! The full mode of userfaultfd is used, and not the mode that every process may use, because with the latter a `read()` into a protected
//! page, or a message that the kernel copies there (`process_vm_writev`), fails with EFAULT, and the program fails with it.
//!
//! Writes by DMA (from a network card or a GPU) bypass the protection. They must therefore be declared, as must all writes if the kernel
//! offers no protection.
#![deny(unsafe_op_in_unsafe_fn)]

mod blocks;
mod habit;
mod memory;
mod watch;

pub use blocks::Blocks;
pub use habit::Habit;
pub use memory::LiveMemory;
pub use watch::{Mappings, Protected, Watch, WatchError, page_bytes};
