//! The C interface: what `include/bivouac.h` declares, generated from the functions of this module.
//!
//! It is the Rust interface with handles. A handle is a number in the shape of a pointer, which is looked up in [`handles`]. So using a
//! handle that was closed, or a pointer that never was a handle, is an error and not a crash. Every function returns a status, keeps the
//! text of a failure for the calling thread ([`status`]), and lets no panic out.
//!
//! | part | is |
//! |---|---|
//! | [`status`] | status codes, the last error of a thread, the guard around every call |
//! | [`handles`] | the mapping from handles to values and back |
//! | [`arguments`] | the conversion of C text, options and memory to checked values |
//! | [`open`] | an open session, and what was made from it |
//! | [`session`] | opening, configuration, decisions, statistics |
//! | [`regions`] | what was protected or is to be saved: pointers with their type and shape |
//! | [`checkpoint`], [`restart`], [`history`] | the calls of those names |
//! | [`boxes`] | arrays that are cut into boxes over the ranks, for restarts on any number of ranks |
//! | [`values`] | values that all ranks share, and values of one rank, in restarts on any number of ranks |
//! | [`columns`], [`rows`] | rows whose number changes freely, saved as columns and dealt anew |
//! | [`parts`] | what old ranks had of arrays and rows |
//! | [`stream`] | regions that are written and read as streams of bytes, and as a `FILE` |
//! | [`offload`] | checkpoints that are marked, and what the application declares for them |
//! | [`live`] | host memory that is copied after a capture has returned |
//! | [`gpu`] | device memory by its address: the caches of its device |
//! | [`veloc`] | what `libveloc-client.so` forwards to: VELOC's interface on the same parts |
//!
//! **Collective calls and mistakes.** If the session is known, a call with a bad argument still takes part in the collective operation: the
//! other ranks hear that this rank refuses, and the numbers of operations stay in step.
//!
//! **Threads.** A session and what was made from it belong to one thread at a time. Calls from several threads wait for each other on the
//! session's lock. Handles of pending checkpoints have no such lock.
#![cfg(feature = "mpi")]

pub mod arguments;
pub mod boxes;
pub mod checkpoint;
pub mod columns;
mod cookie;
pub mod files;
pub mod gpu;
pub mod handles;
pub mod history;
pub mod live;
pub mod offload;
pub mod open;
pub mod parts;
mod paths;
pub mod regions;
pub mod restart;
pub mod rows;
pub mod session;
pub mod status;
pub mod stream;
pub mod values;
pub mod veloc;
