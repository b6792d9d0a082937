//! Versions that were announced with `VELOC_Prefetch_enqueue`. They go to a history of this rank instead of to checkpoints.

use crate::handles::Id;
use crate::open::Open;
use crate::open::Past;
use crate::regions::{Region, only_gpu};
use crate::status::{Failure, Outcome};
use bivouac_core::cache::Keep;
use bivouac_core::session::Error;
use std::collections::BTreeMap;

/// The number of this history among those of its session. The histories that have handles are numbered from 1.
const HISTORY: Id = 0;

/// The announced versions, and those in the history.
#[derive(Default)]
pub(super) struct Ahead {
    /// How often each announced version is to be restored.
    announced: BTreeMap<u64, usize>,
    /// Versions that were announced before the history existed.
    early: Vec<u64>,
    is_started: bool,
    /// The series of each version in the history.
    kept: BTreeMap<u64, String>,
}

impl Ahead {
    /// Notes that a version is to be restored after those that were announced earlier.
    pub(super) fn announce(&mut self, open: &Open, version: u64) {
        *self.announced.entry(version).or_default() += 1;
        match open.histories.get(&HISTORY) {
            Some(past) => past.history.hint([version]),
            None => self.early.push(version),
        }
    }

    /// Allows announced versions to be fetched from now on.
    pub(super) fn start(&mut self, open: &Open) {
        self.is_started = true;
        if let Some(past) = open.histories.get(&HISTORY) {
            past.history.start_prefetch();
        }
    }

    /// Does a version go to the history?
    pub(super) fn takes(&self, version: u64) -> bool {
        self.announced.contains_key(&version)
    }

    /// Is this version in the history?
    pub(super) fn has(&self, series: &str, version: u64) -> bool {
        self.kept.get(&version).is_some_and(|kept| kept == series)
    }

    /// The series of a version in the history.
    pub(super) fn series_of(&self, version: u64) -> Option<&String> {
        self.kept.get(&version)
    }

    /// Appends a version. It counts once [`Ahead::appended`] is told that all ranks have appended it.
    ///
    /// # Errors
    /// An older version with that number is in the history, and a restore would take it.
    ///
    /// # Safety
    /// The application's promises about the memory of the regions hold.
    pub(super) unsafe fn append(&mut self, open: &mut Open, version: u64, regions: &[Region]) -> Outcome<()> {
        if let Some(series) = self.kept.get(&version) {
            return Err(Failure::state(format!(
                "version {version} of {series:?} was announced and saved before, and has not been restored as often as it \
                 was announced"
            )));
        }
        if !open.histories.contains_key(&HISTORY) {
            let past = Past::open(open, "veloc", only_gpu(regions)?, Keep::UntilRead)?;
            past.history.hint(self.early.drain(..));
            if self.is_started {
                past.history.start_prefetch();
            }
            open.histories.insert(HISTORY, past);
        }
        let Open { histories, gpus, stream, .. } = open;
        let past = histories.get_mut(&HISTORY).ok_or_else(gone)?;
        past.clear();
        regions.iter().for_each(|region| past.set(region.clone()));
        // SAFETY: as the caller says.
        unsafe { past.append(gpus, *stream, version) }
    }

    /// Notes that all ranks have appended a version.
    pub(super) fn appended(&mut self, series: &str, version: u64) {
        self.kept.insert(version, series.to_owned());
    }

    /// The regions of a version, with their lengths in bytes.
    pub(super) fn sizes(&self, open: &Open, version: u64) -> Outcome<BTreeMap<String, u64>> {
        let past = open.histories.get(&HISTORY).ok_or_else(gone)?;
        let fields = past.history.fields(version).map_err(|error| Failure::from(Error::from(error)))?;
        Ok(fields.into_iter().map(|field| (field.name, field.bytes)).collect())
    }

    /// Restores a version into regions of exactly its lengths. [`Ahead::restored`] must be called once all ranks have done so.
    ///
    /// # Safety
    /// See [`Ahead::append`]. In addition, nobody else uses the memory meanwhile.
    pub(super) unsafe fn restore(&mut self, open: &mut Open, version: u64, regions: &[Region]) -> Outcome<()> {
        let Open { histories, gpus, stream, .. } = open;
        let past = histories.get_mut(&HISTORY).ok_or_else(gone)?;
        past.clear();
        regions.iter().for_each(|region| past.set(region.clone()));
        // SAFETY: as the caller says.
        unsafe { past.restore(gpus, *stream, version) }
    }

    /// Notes that all ranks have restored a version.
    pub(super) fn restored(&mut self, version: u64) {
        let left = self.announced.get_mut(&version).map(|left| {
            *left -= 1;
            *left
        });
        if left.is_none_or(|left| left == 0) {
            self.announced.remove(&version);
            self.kept.remove(&version);
        }
    }
}

fn gone() -> Failure {
    Failure::state("there is no history of announced versions")
}
