//! Restoring a version from the fastest tier that has a good copy, with a comparison of the digests.
#![forbid(unsafe_code)]

use super::append::Return;
use super::error::HistoryError;
use super::field::FieldMut;
use super::field::{FieldDataMut, check, compare, digest_slice, put};
use super::layout::{Cut, Layout};
use super::shared::{Announced, BOUNCE_BYTES, Books, Enqueued, EnqueuedCall, Expected, History, lines_gone};
use super::steps::CallKind;
use super::trace::{Operation, Step};
use crate::base::Digest;
use crate::base::log;
use crate::base::sync::Guard;
use crate::cache::{Cache, EntryId, Keep, Link, Noted, Piece, Read, Tier};
use crate::device::{Copied, Stream};
use crate::tier::posix::PageBuffer;
use std::sync::Arc;
use std::time::Instant;

impl Expected {
    pub(super) fn compare(&self, found: Vec<Digest>) -> Result<(), HistoryError> {
        compare_in_cache(&self.layout, &self.digests, found, &self.targets)
    }
}

fn compare_in_cache(
    layout: &Layout,
    digests: &[Digest],
    mut found: Vec<Digest>,
    targets: &[usize],
) -> Result<(), HistoryError> {
    // If only some fields are restored, digests exist up to the last block of these fields; an empty field may follow it.
    found.resize(layout.blocks as usize, Digest::default());
    compare(layout, digests, &found, targets.iter().copied(), "device")
}

/// The wanted parts of the version, each with its target.
fn cuts_of(layout: &Layout, pieces: &[Piece], targets: &[usize]) -> Vec<(Cut, usize)> {
    let mut target_of = vec![None; layout.fields.len()];
    targets.iter().enumerate().for_each(|(target, field)| target_of[*field] = Some(target));
    layout.cuts(pieces).into_iter().filter_map(|cut| Some((cut, target_of[cut.field]?))).collect()
}

/// The copy of a version that a restore has chosen and holds.
struct Held {
    tier: Tier,
    pieces: Vec<Piece>,
    /// The layout and the digests of the version.
    known: Option<(Arc<Layout>, Arc<[Digest]>)>,
    /// For each field of the caller, the index of the version's field.
    targets: Vec<usize>,
}

/// What has happened to a copy that a restore holds.
enum Taken {
    /// It was read, which took the device this many seconds.
    Read(f64),
    /// A copy from it was enqueued.
    Enqueued(Box<dyn Copied>, Expected),
}

impl Books {
    /// Ends a read.
    fn read(&mut self, id: EntryId, tier: Tier, keep: Keep) {
        self.cache.read_done(id, tier, true);
        self.forget_if_gone(id, keep == Keep::UntilRead);
    }

    fn forget_if_gone(&mut self, id: EntryId, may_be: bool) {
        if may_be && self.cache.states(id) == [None; 3] {
            self.entries.remove(&id);
        }
    }

    /// Ends a read that has failed. The copy is given up only if the copy itself is at fault.
    pub(super) fn not_read(&mut self, id: EntryId, tier: Tier, name: &str, error: &HistoryError) {
        if !error.is_of_copy() {
            return self.cache.read_undone(id, tier);
        }
        log::warn!("event=copy-given-up history={name:?} version={} error={error}", id.version);
        self.cache.read_done(id, tier, false);
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.complaint = Some(error.clone());
        }
    }

    /// Ends a restore that was enqueued.
    pub(super) fn restored(&mut self, id: EntryId, expected: &Expected, outcome: Result<(), HistoryError>) {
        let Err(error) = outcome else {
            self.cache.read_ended(id, Tier::Device, true, expected.noted);
            return self.forget_if_gone(id, expected.noted.leaves);
        };
        self.not_read(id, Tier::Device, &expected.name, &error);
        self.cache.hint_again(id, expected.noted);
        let (history, version, reason) = (expected.name.clone(), id.version, error.to_string());
        log::warn!("event=restore-failed history={history:?} version={version} error={error}");
        self.late.entry(id.history).or_default().push_back(HistoryError::Late { history, version, reason });
    }

    /// The next error of a history's enqueued restores that the application has not been told; it is told now.
    fn next_late(&mut self, history: u32) -> Option<HistoryError> {
        let late = self.late.get_mut(&history)?.pop_front();
        if self.late[&history].is_empty() {
            self.late.remove(&history);
        }
        if let Some(HistoryError::Late { version, .. }) = late {
            let id = EntryId { history, version };
            if let Some(entry) = self.entries.get_mut(&id).filter(|_| self.cache.states(id) == [None; 3]) {
                entry.is_told_lost = true;
            }
        }
        late
    }
}

impl History {
    /// Copies a version back, and compares its digests. `fields` names the fields to restore, which may be only some of those that were
    /// appended.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For a copy inside the device if the version is in the GPU cache. Otherwise for the transfer from where it is, or for a transfer that
    /// is already under way, for at most `timeouts.room`.
    ///
    /// # Errors
    /// [`HistoryError::Unknown`], [`HistoryError::Gone`], [`HistoryError::Lost`], [`HistoryError::Field`], [`HistoryError::TimedOut`],
    /// [`HistoryError::Device`], [`HistoryError::Store`]; [`HistoryError::Late`] for an earlier restore that had returned early
    /// ([`Return::Enqueued`]). After an error, the content of the fields is unspecified.
    pub fn restore(&self, version: u64, fields: &mut [FieldMut<'_>], stream: &dyn Stream) -> Result<(), HistoryError> {
        self.restore_and(version, fields, stream, Return::Done)
    }

    /// Restores a version as [`History::restore`] does, and returns when `until` says. With [`Return::Enqueued`], a version that is in the
    /// GPU cache, and all of whose named fields are in device memory, is copied in the stream's order. Its digests are compared when the
    /// copy has ended. For any other version, the call waits.
    ///
    /// Such a version keeps its place in the GPU cache until the next call notes that the copy has ended.
    ///
    /// # Errors
    /// See [`History::restore`].
    pub fn restore_and(
        &self,
        version: u64,
        fields: &mut [FieldMut<'_>],
        stream: &dyn Stream,
        until: Return,
    ) -> Result<(), HistoryError> {
        let begun = Instant::now();
        let shared = &self.shared;
        let _call = shared.bursts.call(CallKind::Other);
        shared.settle_enqueued(false);
        if until == Return::Done {
            // The version's append may be among this history's copies, and errors are reported now. Copies of other histories are not
            // waited for, because they may be queued after other work.
            shared.settle_some(true, |enqueued| enqueued.id.history == self.id);
        }
        let is_on_device = |field: &FieldMut<'_>| matches!(field.data, FieldDataMut::Device(_));
        let may_return = until == Return::Enqueued && fields.iter().all(is_on_device);
        let id = EntryId { history: self.id, version };
        let mut books = shared.lock();
        if let Some(error) = books.next_late(self.id) {
            return Err(error);
        }
        let distance = if books.trace.is_on { books.cache.prefetch_distance(self.id) } else { 0 };
        loop {
            let held = self.hold(books, id, fields, begun)?;
            let mut announced = None;
            let outcome = self.read_held(version, &held, may_return, fields, stream, &mut announced);
            books = shared.lock();
            match outcome {
                Ok(taken) => {
                    let seconds = self.note_taken(&mut books, id, held.tier, stream, taken);
                    let bytes = held.known.map_or(0, |(layout, _)| layout.bytes);
                    let step = Step { distance, ..Step::new(version, Operation::Restore, bytes, held.tier, seconds) };
                    books.trace.step(step, begun, shared.started);
                    shared.changed_for(books, if held.tier == Tier::Device { &[Link::Up] } else { &Link::ALL });
                    drop(announced);
                    return Ok(());
                }
                Err(error) => {
                    books.not_read(id, held.tier, &self.name, &error);
                    if !error.is_of_copy() {
                        shared.changed(books);
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Holds the best existing copy of a version for a restore of `fields`.
    ///
    /// # Errors
    /// See [`History::restore`].
    fn hold<'a>(
        &'a self,
        mut books: Guard<'a, Books>,
        id: EntryId,
        fields: &[FieldMut<'_>],
        begun: Instant,
    ) -> Result<Held, HistoryError> {
        loop {
            // A mistake in the call is no damage: it is detected before the version is touched.
            let (layout, targets) = match books.entries.get(&id) {
                Some(entry) => (Some(entry.layout.clone()), self.targets(id.version, &entry.layout, fields)?),
                None => (None, Vec::new()),
            };
            let (held, tier, pieces) =
                self.find(books, id, begun, Cache::read).inspect_err(|error| self.note_told(id, error))?;
            books = held;
            let known = books.entries.get(&id).and_then(|entry| Some((entry.layout.clone(), entry.digests.clone()?)));
            if let (Some((now, _)), Some(then)) = (&known, &layout)
                && !Arc::ptr_eq(now, then)
            {
                // Meanwhile, another thread has appended the version anew.
                books.cache.read_undone(id, tier);
                continue;
            }
            return Ok(Held { tier, pieces, known, targets });
        }
    }

    /// Reads the copy that a restore holds, or enqueues the read if the call may return early.
    fn read_held<'a>(
        &'a self,
        version: u64,
        held: &Held,
        may_return: bool,
        fields: &mut [FieldMut<'_>],
        stream: &dyn Stream,
        announced: &mut Option<Announced<'a>>,
    ) -> Result<Taken, HistoryError> {
        let Held { tier, pieces, known, targets } = held;
        match known {
            Some((layout, digests)) if may_return && *tier == Tier::Device => {
                let cuts = cuts_of(layout, pieces, targets);
                let copied = self.copy_from_device(layout, &cuts, fields, stream)?;
                let (name, layout, digests) = (self.name.clone(), layout.clone(), digests.clone());
                let expected = Expected { name, layout, digests, targets: targets.clone(), noted: Noted::default() };
                Ok(Taken::Enqueued(copied, expected))
            }
            Some((layout, digests)) => {
                let read = self.read_from(*tier, layout, digests, pieces, targets, fields, stream, announced);
                read.map(Taken::Read)
            }
            None => Err(HistoryError::Unknown { history: self.name.clone(), version }),
        }
    }

    /// Notes that a copy was read, or will have been read when the enqueued copy has ended. Returns the device's seconds.
    fn note_taken(&self, books: &mut Books, id: EntryId, tier: Tier, stream: &dyn Stream, taken: Taken) -> f64 {
        match taken {
            Taken::Read(seconds) => {
                books.read(id, tier, self.keep);
                seconds
            }
            Taken::Enqueued(copied, expected) => {
                let noted = books.cache.note_read(id);
                let call = EnqueuedCall::Restore(Expected { noted, ..expected });
                books.enqueued.push_back(Enqueued::new(id, stream, copied, call));
                0.0
            }
        }
    }

    /// Waits for enqueued restores and appends ([`Return::Enqueued`]), and reports an unreported error of an enqueued restore, if
    /// there is one. If there are several such errors, each call reports one, oldest first, until the answer is `Ok`. Call this before
    /// results leave the program, including into a checkpoint.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For the enqueued copies of all histories of these caches.
    ///
    /// # Errors
    /// [`HistoryError::Late`].
    pub fn settle(&self) -> Result<(), HistoryError> {
        self.shared.settle_all().next_late(self.id).map_or(Ok(()), Err)
    }

    /// Notes that the application is told that a version is lost.
    fn note_told(&self, id: EntryId, error: &HistoryError) {
        if matches!(error, HistoryError::Lost { .. })
            && let Some(entry) = self.shared.lock().entries.get_mut(&id)
        {
            entry.is_told_lost = true;
        }
    }

    /// Holds the copy of a version that `ask` names, and waits for a copy that is being written or fetched.
    ///
    /// # Errors
    /// As [`History::restore`].
    pub(super) fn find<'a>(
        &'a self,
        mut books: Guard<'a, Books>,
        id: EntryId,
        begun: Instant,
        ask: impl Fn(&mut Cache, EntryId) -> Read,
    ) -> Result<(Guard<'a, Books>, Tier, Vec<Piece>), HistoryError> {
        loop {
            let (tier, pieces) = match ask(&mut books.cache, id) {
                Read::Device(pieces) => (Tier::Device, pieces),
                Read::Host(pieces) => (Tier::Host, pieces),
                Read::Store(pieces) => (Tier::Store, pieces),
                Read::Wait => {
                    books = self.wait_for(books, id.version, begun)?;
                    continue;
                }
                answer => return Err(self.not_there(&mut books, id, answer)),
            };
            return Ok((books, tier, pieces));
        }
    }

    /// Lets a call that began at `begun` sleep until the books change.
    ///
    /// # Errors
    /// [`HistoryError::TimedOut`].
    pub(super) fn wait_for<'a>(
        &'a self,
        books: Guard<'a, Books>,
        version: u64,
        begun: Instant,
    ) -> Result<Guard<'a, Books>, HistoryError> {
        if begun.elapsed() >= self.shared.config.room || self.shared.is_stopping() {
            let (history, seconds) = (self.name.clone(), begun.elapsed().as_secs_f64());
            return Err(HistoryError::TimedOut { history, version, seconds });
        }
        if books.enqueued.is_empty() {
            return Ok(self.shared.wait(books));
        }
        // The end of a copy that another thread has enqueued meanwhile is noted only when somebody looks.
        drop(books);
        self.shared.settle_enqueued(true);
        Ok(self.shared.lock())
    }

    fn not_there(&self, books: &mut Books, id: EntryId, answer: Read) -> HistoryError {
        let (history, version) = (self.name.clone(), id.version);
        match answer {
            Read::Gone => HistoryError::Gone { history, version },
            Read::Lost => {
                let complaint = books.entries.get(&id).and_then(|entry| entry.complaint.as_ref());
                let reason = complaint.map_or_else(|| "its copy failed".to_owned(), ToString::to_string);
                HistoryError::Lost { history, version, reason }
            }
            _ => HistoryError::Unknown { history, version },
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn read_from<'a>(
        &'a self,
        tier: Tier,
        layout: &Layout,
        digests: &[Digest],
        pieces: &[Piece],
        targets: &[usize],
        fields: &mut [FieldMut<'_>],
        stream: &dyn Stream,
        announced: &mut Option<Announced<'a>>,
    ) -> Result<f64, HistoryError> {
        let cuts = cuts_of(layout, pieces, targets);
        match tier {
            Tier::Device => self.read_device(layout, digests, &cuts, targets, fields, stream, announced),
            Tier::Host => {
                for (cut, target) in &cuts {
                    let place = Piece { offset: cut.place, bytes: cut.bytes };
                    let views = self.shared.lines.view(place).ok_or_else(lines_gone)?;
                    let mut at = cut.start;
                    for view in views {
                        put(&mut fields[*target], at, &view, stream)?;
                        at += view.len() as u64;
                    }
                }
                check(layout, digests, targets, fields, "memory", stream).map(|()| 0.0)
            }
            Tier::Store => {
                let spill = self.shared.spill.as_ref().ok_or_else(lines_gone)?;
                let mut bounce = PageBuffer::new(BOUNCE_BYTES.min(layout.bytes) as usize);
                for (cut, target) in &cuts {
                    for at in (0..cut.bytes).step_by(BOUNCE_BYTES as usize) {
                        let bytes = &mut bounce[..BOUNCE_BYTES.min(cut.bytes - at) as usize];
                        spill.read(bytes, cut.place + at).map_err(|error| self.shared.store_failed(&error))?;
                        put(&mut fields[*target], cut.start + at, bytes, stream)?;
                    }
                }
                check(layout, digests, targets, fields, "local", stream).map(|()| 0.0)
            }
        }
    }

    /// For each field of the caller, the index of the version's field.
    fn targets(&self, version: u64, layout: &Layout, fields: &[FieldMut<'_>]) -> Result<Vec<usize>, HistoryError> {
        self.check_names(version, fields.iter().map(|field| field.name))?;
        let mut targets = Vec::with_capacity(fields.len());
        for field in fields {
            let refuse = |reason: String| {
                let (history, field) = (self.name.clone(), field.name.to_owned());
                HistoryError::Field { history, version, field, reason }
            };
            // Usually the field after the last one.
            let next = targets.last().map_or(0, |last| last + 1);
            let index = match layout.fields.get(next) {
                Some(info) if info.name == field.name => Some(next),
                _ => layout.fields.iter().position(|info| info.name == field.name),
            };
            let index = index.ok_or_else(|| refuse("no such field was appended".into()))?;
            let info = &layout.fields[index];
            if info.bytes != field.bytes() {
                return Err(refuse(format!(
                    "{} bytes were appended, but the target has {}",
                    info.bytes,
                    field.bytes()
                )));
            }
            if info.element != field.element {
                return Err(refuse(format!("{} was appended, but the target is {}", info.element, field.element)));
            }
            targets.push(index);
        }
        Ok(targets)
    }

    /// Enqueues the copy from the GPU cache for fields in device memory, and only the digests for the other fields.
    fn copy_from_device(
        &self,
        layout: &Layout,
        cuts: &[(Cut, usize)],
        fields: &[FieldMut<'_>],
        stream: &dyn Stream,
    ) -> Result<Box<dyn Copied>, HistoryError> {
        let mut runs = Vec::with_capacity(cuts.len());
        for (cut, target) in cuts {
            let source = self.shared.range.span(cut.place, cut.bytes)?;
            let to = match &fields[*target].data {
                FieldDataMut::Device(span) => Some(span.part(cut.start, cut.bytes)?),
                FieldDataMut::Host(_) => None,
            };
            runs.push(layout.run(cut, source, to));
        }
        Ok(stream.copy_blocks(runs, layout.block_bytes)?)
    }

    #[allow(clippy::too_many_arguments)]
    fn read_device<'a>(
        &'a self,
        layout: &Layout,
        digests: &[Digest],
        cuts: &[(Cut, usize)],
        targets: &[usize],
        fields: &mut [FieldMut<'_>],
        stream: &dyn Stream,
        announced: &mut Option<Announced<'a>>,
    ) -> Result<f64, HistoryError> {
        let copied = self.copy_from_device(layout, cuts, fields, stream)?;
        *announced = Some(Announced::new(&self.shared, Link::Up));
        for (cut, target) in cuts {
            if let FieldDataMut::Host(slice) = &mut fields[*target].data {
                let bytes = &mut slice[cut.start as usize..(cut.start + cut.bytes) as usize];
                stream.download(&mut [(self.shared.range.span(cut.place, cut.bytes)?, bytes)], None)?;
            }
        }
        compare_in_cache(layout, digests, copied.digests()?, targets)?;
        // Check that the bytes that came over the link are those of the cache.
        let mut found = digests.to_vec();
        for (field, target) in fields.iter().zip(targets) {
            if let FieldDataMut::Host(slice) = &field.data {
                let blocks = layout.fields[*target].blocks(layout.block_bytes);
                digest_slice(slice, layout.block_bytes, &mut found[blocks]);
            }
        }
        compare(layout, digests, &found, targets.iter().copied(), "device")?;
        Ok(copied.seconds()?)
    }
}
