//! The memory segments of older runs on this node: which of them may be removed, and when.
#![forbid(unsafe_code)]

use super::desk::Desk;
use crate::base::ids::text_hash;
use crate::base::log;
use crate::base::sync::Lock;
use crate::base::{CheckpointKey, Level};
use crate::catalog::{Ledger, LedgerEntry, Levels, Moment, Occasion, Place, is_succeeded};
use crate::segment::{OldSegment, OldSlot, SlotState};
use std::collections::HashMap;
use std::sync::Arc;

/// Segments that are kept until this run has committed something of each of their series.
#[derive(Default)]
pub(super) struct Inherited(Lock<Vec<Arc<OldSegment>>>);

impl Inherited {
    pub fn keep(&self, old: Vec<OldSegment>) {
        self.0.lock().extend(old.into_iter().map(Arc::new));
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Gives back the memory of older runs' versions of a series that were not elected.
    ///
    /// An older version that may survive the loss of nodes stays, unless the elected version is known to survive that, too: by its slots,
    /// or because it `is_global`.
    pub fn forget_others(&self, name: &str, elected: &CheckpointKey, is_global: bool) {
        let hash = text_hash(name);
        // Not under the lock, because it takes time to ask whether a process lives, and to give memory back.
        let segments = self.0.lock().clone();
        let of_series = |slot: &OldSlot| slot.state == SlotState::Sealed && slot.name == hash;
        let slots = || {
            let of = |segment: &Arc<OldSegment>| segment.slots().iter().filter(|slot| of_series(slot)).count();
            segments.iter().map(of)
        };
        let entries = segments.iter().flat_map(|segment| {
            segment.slots().iter().filter(|slot| of_series(slot)).map(move |slot| entry(segment, slot))
        });
        let occasion = Occasion::Elected { elected: Moment::of(elected), is_global };
        let rulings = Ledger::new(entries.collect()).judge(&occasion);
        let mut rulings = rulings.as_slice();
        for (segment, count) in segments.iter().zip(slots()) {
            let (own, others) = rulings.split_at(count);
            rulings = others;
            if segment.is_alive().unwrap_or(true) {
                continue;
            }
            let mut own = own.iter();
            // A torn slot has no name, and nobody can restore it.
            let sealed = segment.slots().iter().filter(|slot| slot.state == SlotState::Sealed);
            let stays = |slot: &&OldSlot| !of_series(slot) || own.next().is_none_or(|ruling| !ruling.may_go());
            let keep: Vec<OldSlot> = sealed.filter(stays).copied().collect();
            match segment.punch_except(&keep) {
                Ok(freed) => log::info!("event=old-slots-freed path={} bytes={freed}", segment.path().display()),
                Err(error) => log::warn!("event=old-slots-not-freed error={error}"),
            }
        }
    }

    /// Removes segments if, for each of their series, this run has committed something at the same level or a higher one; the others stay.
    /// `reached` has, by the hash of the name, the highest level that this run has committed of each series; `fresh` names the series of
    /// which this run has checkpoints without having restored any.
    ///
    /// After each further commit, this is called again as long as any segments are left.
    pub fn remove_outlived(&self, reached: &HashMap<u64, Level>, fresh: &[String], desk: &Desk) {
        let gone: Vec<Arc<OldSegment>> = {
            let mut segments = self.0.lock();
            let is_past = |segment: &Arc<OldSegment>| {
                is_outlived(segment, |name| reached.get(name).copied()) && !segment.is_alive().unwrap_or(true)
            };
            let (gone, kept) = std::mem::take(&mut *segments).into_iter().partition(is_past);
            *segments = kept;
            gone
        };
        for name in fresh {
            let hash = text_hash(name);
            let newest_in = |segment: &Arc<OldSegment>| {
                let slots = segment.slots().iter().filter(|slot| slot.name == hash && slot.level >= Level::Process);
                slots.map(|slot| (segment.header().generation, slot.version)).max()
            };
            if let Some(newest) = gone.iter().filter_map(newest_in).max() {
                desk.note_started_over(name, newest);
            }
        }
        for segment in gone {
            if let Err(error) = segment.unlink() {
                log::warn!("event=old-segment-not-removed path={} error={error}", segment.path().display());
            } else {
                log::info!("event=old-segment-removed path={}", segment.path().display());
            }
        }
    }
}

/// Has this run committed at least as much as everything that a segment of an older run holds?
fn is_outlived(segment: &OldSegment, committed: impl Fn(&u64) -> Option<Level>) -> bool {
    let sealed = segment.slots().iter().filter(|slot| slot.state == SlotState::Sealed);
    let mut entries = sealed.map(|slot| entry(segment, slot));
    entries.all(|entry| is_succeeded(&entry, committed(&entry.series)))
}

/// A sealed slot of an older run, for the ledger.
fn entry(segment: &OldSegment, slot: &OldSlot) -> LedgerEntry<u64> {
    LedgerEntry {
        series: slot.name,
        taken: Moment { generation: segment.header().generation, operation: slot.operation },
        version: slot.version,
        place: Place::Slot,
        known: Levels::noted(slot.level),
        doubt: Levels::NONE,
        is_open: false,
        needs: Vec::new(),
    }
}
