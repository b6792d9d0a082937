//! Chunks of regions in device memory: the tables of each series on the device, and the chunks that were found with them.
//!
//! A staged shard is searched while it is copied to node memory, before this rank votes. What files may refer to is not chosen by then, so
//! the search covers what they could refer to by the previous choice. Chunks that were found only in other places are stored in the shard's
//! own file after all, and the table is told so with the next version.
#![forbid(unsafe_code)]

use crate::base::log;
use crate::base::sync::{Lock, Order};
use crate::config::Budget;
use crate::device::chunks::{ChunkTable, Place, TableSize};
use crate::device::{Device, DeviceError, DeviceSpan};
use crate::reduction::{Field, Found, Grouping, Part, Question, kept};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A shard whose regions in device memory are to be looked at.
pub(super) struct Looking<'a> {
    /// Series.
    pub name: &'a str,
    /// The operation of its checkpoint.
    pub operation: u64,
    /// Bytes of a block.
    pub block: u64,
    /// The regions.
    pub fields: Vec<Field>,
    /// Where their bytes are now, by their first byte among the bodies; ascending.
    pub spans: Vec<(u64, DeviceSpan)>,
    /// Only the blocks that have changed since the previous version are there.
    pub is_partial: bool,
}

/// What was found of a shard, and how long that took.
pub(super) struct Looked {
    pub found: Found,
    pub took: Duration,
}

/// Name, first byte among the bodies, and length of a field.
type Shape = (String, u64, u64);

/// What is known of a series.
#[derive(Default)]
struct State {
    series: Option<Series>,
    /// There is no table, and there will be none as things are: the last shard found no room in the cache, or the table found none on the
    /// device.
    is_hopeless: bool,
}

/// The table of a series.
struct Series {
    table: Box<dyn ChunkTable>,
    /// The last version that was looked at, and its fields; `None`: the table begins anew.
    last: Option<(u64, Vec<Shape>)>,
    /// What the file of that version has stored itself besides this.
    kept: Option<(u64, Vec<Part>)>,
}

/// The tables of all series.
pub(super) struct DeviceTables {
    grouping: Grouping,
    chunk: Option<u64>,
    budget: Budget,
    series: Lock<HashMap<String, Arc<Lock<State>>>>,
    has_said: AtomicBool,
}

impl DeviceTables {
    /// No tables yet; each will take at most `budget` of its device's memory.
    pub fn new(grouping: Grouping, chunk: Option<u64>, budget: Budget) -> DeviceTables {
        DeviceTables { grouping, chunk, budget, series: Lock::default(), has_said: AtomicBool::new(false) }
    }

    /// Looks at a shard; files may refer to the `allowed` checkpoints, as far as is known. `None`, after a message in the log, if that is
    /// impossible.
    ///
    /// # Blocking
    /// For the device.
    pub fn look(&self, device: &dyn Device, looking: Looking<'_>, allowed: Vec<u64>) -> Option<Looked> {
        let place = self.place(looking.name);
        let mut place = place.lock();
        let begun = Instant::now();
        let operation = looking.operation;
        match self.ask(device, &mut place, looking, allowed) {
            Ok(found) => found.map(|found| Looked { found, took: begun.elapsed() }),
            Err(error) => {
                if !self.has_said.swap(true, Ordering::Relaxed) {
                    let advice = "blocks are compared instead, or the processor looks for chunks, which takes longer; logged once";
                    log::warn!("event=reduction-not-on-device operation={operation} error={error}: {advice}");
                }
                None
            }
        }
    }

    fn place(&self, name: &str) -> Arc<Lock<State>> {
        let mut series = self.series.lock();
        series.entry(name.to_owned()).or_insert_with(|| Arc::new(Lock::at(Order::Outer, State::default()))).clone()
    }

    fn ask(
        &self,
        device: &dyn Device,
        State { series: place, is_hopeless }: &mut State,
        looking: Looking<'_>,
        allowed: Vec<u64>,
    ) -> Result<Option<Found>, DeviceError> {
        let Looking { operation, block, fields, spans, is_partial, .. } = looking;
        let blocks = fields.iter().map(|field| field.blocks.len() as u64).sum::<u64>();
        let is_too_small = |series: &Series| {
            let size = series.table.size();
            size.block != block || size.blocks < blocks
        };
        // Blocks that are not on the device could not be looked at before either.
        if is_partial && place.as_ref().is_none_or(|series| series.last.is_none() || is_too_small(series)) {
            return Ok(None);
        }
        if place.as_ref().is_none_or(is_too_small) {
            // The old table is dropped first.
            (*place, *is_hopeless) = (None, true);
            let budget = self.budget.of(device.info().memory_bytes);
            let what = "a table of chunks in reduction.device_budget";
            let size = TableSize::that_fits(blocks.max(1), block, self.grouping, self.chunk, budget);
            let size = size.ok_or(DeviceError::OutOfMemory { what, bytes: budget })?;
            let table = device.chunk_table(size)?;
            log::debug!("event=table-on-device size={size:?} bytes={}", size.bytes());
            (*place, *is_hopeless) = (Some(Series { table, last: None, kept: None }), false);
        }
        let Some(series) = place else { return Ok(None) };
        let shapes: Vec<Shape> = fields.iter().map(|field| (field.name.clone(), field.at, field.bytes)).collect();
        if series.last.as_ref().is_some_and(|(last, _)| operation < *last) {
            // A later version has overtaken this one.
            return Ok(None);
        }
        let last = series.last.take();
        let is_of_last = |kept: &u64| last.as_ref().is_some_and(|(last, then)| kept == last && *then == shapes);
        let kept = series.kept.take().filter(|(kept, _)| is_of_last(kept));
        let places = places(&fields, &spans)?;
        let asked = Question { operation, allowed, block, fields, kept, known: Found::new() };
        let answer = series.table.look(&asked, &places);
        match &answer {
            Ok(Some(_)) => series.last = Some((operation, shapes)),
            // The device is a different one from now on, or there is none.
            Err(DeviceError::Lost { .. } | DeviceError::Foreign { .. }) => *place = None,
            Ok(None) | Err(_) => {}
        }
        answer
    }

    /// Is there a table for a series?
    pub fn has(&self, name: &str) -> bool {
        self.place(name).lock().series.is_some()
    }

    /// Has the table of a series looked at this version last, or will it have none?
    pub fn is_in_step(&self, name: &str, operation: u64) -> bool {
        let place = self.place(name);
        let place = place.try_lock();
        place.is_some_and(|state| match &state.series {
            Some(series) => series.last.as_ref().is_some_and(|(last, _)| *last == operation),
            None => state.is_hopeless,
        })
    }

    /// A shard did not find room in the cache, so it is not looked at.
    pub fn found_no_room(&self, name: &str) {
        let place = self.place(name);
        let mut state = place.lock();
        state.is_hopeless = state.series.is_none();
    }

    /// The content of a shard's file was decided on: files may refer to these checkpoints, and the file `is_whole` or stores what was found
    /// elsewhere.
    pub fn decided(&self, name: &str, operation: u64, found: &Found, allowed: &[u64], is_whole: bool) {
        let place = self.place(name);
        let mut place = place.lock();
        let Some(series) = place.series.as_mut() else { return };
        let Some((_, shapes)) = series.last.as_ref().filter(|(last, _)| *last == operation) else { return };
        let names: Vec<String> = shapes.iter().map(|(name, ..)| name.clone()).collect();
        let parts = kept(found, &names, operation, allowed, is_whole);
        series.kept = Some((operation, parts)).filter(|(_, parts)| !parts.is_empty());
    }
}

/// Where the bytes of fields are.
fn places(fields: &[Field], spans: &[(u64, DeviceSpan)]) -> Result<Vec<Place>, DeviceError> {
    let mut places = Vec::with_capacity(fields.len().max(spans.len()));
    for (index, field) in fields.iter().enumerate() {
        let end = field.at + field.bytes;
        let first = spans.partition_point(|(at, span)| at + span.bytes() <= field.at);
        for (at, span) in spans[first..].iter().take_while(|(at, _)| *at < end) {
            let (from, upto) = (field.at.max(*at), end.min(at + span.bytes()));
            let span = span.part(from - at, upto - from)?;
            places.push(Place { field: index, start: from - field.at, span });
        }
    }
    Ok(places)
}
