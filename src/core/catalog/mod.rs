//! Which versions exist where, and which of them may be restored or deleted. Pure: no I/O, no messages.
//!
//! [`lineage`] says what may be restored, and [`ledger`] says what may be deleted.
#![forbid(unsafe_code)]

pub mod ledger;
pub mod lineage;
#[cfg(test)]
mod tests;

pub use ledger::{
    Elsewhere, Folder, Ledger, LedgerEntry, Levels, Moment, Occasion, Place, Reason, Ruling, is_succeeded, started_over,
};
pub use lineage::{Candidate, Lineage, Stretches, WINDOW, newest, restorable};
