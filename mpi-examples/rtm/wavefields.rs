//! Where the source wavefield of a shot waits for its correlation: in a history of Bivouac, or simply in device memory.
//!
//! All calls to Bivouac that a shot makes are in [`Wavefields`]: hints before anything is appended, appends while the source
//! propagates, the start of prefetching when time is reversed, and restores on the way back.
#![forbid(unsafe_code)]

use super::machine::Machine;
use super::timeline::Counts;
use bivouac::device::DeviceSpan;
use bivouac::history::{Keep, Span};
use bivouac::{Caches, Field, FieldMut, History};
use std::collections::BTreeMap;
use std::error::Error;

/// The field's name in the history.
const FIELD: &str = "p";

/// The kept states of one shot.
pub enum Wavefields {
    /// In a history, each until it is restored.
    History(History),
    /// In their own device memory.
    Reference(BTreeMap<u64, DeviceSpan>),
}

impl Wavefields {
    /// A place for states 1 to `states` of a shot, which will be asked for from the last to the first. Without caches it is
    /// device memory.
    pub fn new(caches: Option<&Caches>, shot: usize, states: u64) -> Wavefields {
        let Some(caches) = caches else { return Wavefields::Reference(BTreeMap::new()) };
        let history = caches.history(&format!("shot-{shot}"), Keep::UntilRead);
        history.hint((1..=states).rev());
        Wavefields::History(history)
    }

    /// Keeps a field.
    ///
    /// # Errors
    /// Any error that the history or the device reports.
    pub fn keep(&mut self, machine: &dyn Machine, state: u64, field: &DeviceSpan) -> Result<(), Box<dyn Error>> {
        match self {
            Wavefields::History(history) => {
                history.append(state, &[Field::device::<f32>(FIELD, field)], machine.stream())?;
            }
            Wavefields::Reference(kept) => {
                let copy = machine.device().allocate(field.bytes())?;
                machine.stream().copy(field, &copy)?;
                machine.stream().finish()?;
                kept.insert(state, copy);
            }
        }
        Ok(())
    }

    /// From here on, states are read back: starts prefetching them.
    pub fn turn(&self) {
        if let Wavefields::History(history) = self {
            history.start_prefetch();
        }
    }

    /// Brings a kept state back, which can be done only once.
    ///
    /// # Errors
    /// Any error that the history or the device reports.
    pub fn recall(&mut self, machine: &dyn Machine, state: u64, field: &DeviceSpan) -> Result<(), Box<dyn Error>> {
        match self {
            Wavefields::History(history) => {
                history.restore(state, &mut [FieldMut::device::<f32>(FIELD, field)], machine.stream())?;
            }
            Wavefields::Reference(kept) => {
                let copy = kept.remove(&state).ok_or_else(|| format!("state {state} was not kept"))?;
                machine.stream().copy(&copy, field)?;
                machine.stream().finish()?;
            }
        }
        Ok(())
    }

    /// What the caches of this rank have done so far, and the spans since the last call.
    pub fn account(&self) -> (Counts, Vec<Span>) {
        match self {
            Wavefields::History(history) => (history.stats().into(), history.take_spans()),
            Wavefields::Reference(_) => Default::default(),
        }
    }
}
