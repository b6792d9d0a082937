//! Appending a version: its place, the copies of its fields, and their digests.
#![forbid(unsafe_code)]

use super::error::HistoryError;
use super::field::Field;
use super::field::{FieldData, FromHost, digests_of, get};
use super::layout::Layout;
use super::shared::{Announced, BOUNCE_BYTES, Enqueued, EnqueuedCall, Entry, History, lines_gone};
use super::steps::CallKind;
use super::trace::{Operation, Step};
use crate::base::Digest;
use crate::cache::{Admission, EntryId, Link, Piece, Reason, Tier};
use crate::device::Stream;
use crate::tier::posix::PageBuffer;
use std::sync::Arc;
use std::time::Instant;

/// When an append or a restore returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Return {
    /// When the fields have been copied. Whatever the application does next, on whichever stream, the version is safe, and what was
    /// restored is what was appended. This is the default, because an application with several streams would otherwise have to order each
    /// of them.
    #[default]
    Done,
    /// When the copy is enqueued. Work that the application enqueues on the same stream runs after the copy. The application must order
    /// work on other streams, and the host's own access to host fields.
    Enqueued,
}

impl History {
    /// Appends a version: fields in device memory, in host memory, or both.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For the copy inside the device (see [`Return`]). If the GPU cache has no room, for the versions that must leave it first. If neither
    /// the GPU cache nor host memory will have any room, for the write to the next tier. At most for `timeouts.room`.
    ///
    /// # Errors
    /// [`HistoryError::Exists`], [`HistoryError::Field`], [`HistoryError::NoRoom`], [`HistoryError::TimedOut`],
    /// [`HistoryError::Device`], [`HistoryError::Store`], [`HistoryError::Damaged`]; the version is then not in the history.
    pub fn append(&self, version: u64, fields: &[Field<'_>], stream: &dyn Stream) -> Result<(), HistoryError> {
        self.append_and(version, fields, stream, Return::Done)
    }

    /// Appends a version as [`History::append`] does, and returns when `until` says.
    ///
    /// # Errors
    /// See [`History::append`]. With [`Return::Enqueued`], an error of the copy itself is reported when the version is
    /// restored: the version is then unknown.
    pub fn append_and(
        &self,
        version: u64,
        fields: &[Field<'_>],
        stream: &dyn Stream,
        until: Return,
    ) -> Result<(), HistoryError> {
        let begun = Instant::now();
        let shared = &self.shared;
        let _call = shared.bursts.call(CallKind::Write);
        shared.settle_enqueued(false);
        let lengths = fields.iter().map(|field| (field.name, field.element, field.bytes()));
        let layout = Arc::new(Layout::new(lengths, shared.config.block_bytes));
        let id = EntryId { history: self.id, version };
        self.check_names(version, fields.iter().map(|field| field.name))?;
        let (tier, pieces) = self.admit(id, &layout)?;
        let mut announced = None;
        let written = match tier {
            Tier::Device => self.write_device(id, &layout, fields, &pieces, stream, until, &mut announced),
            Tier::Host => self.write_host(&layout, fields, &pieces, stream).map(|digests| Some((digests, 0.0))),
            Tier::Store => self.write_store(&layout, fields, &pieces, stream).map(|digests| Some((digests, 0.0))),
        };
        let mut books = shared.lock();
        let mut device_seconds = 0.0;
        let outcome = match written {
            Ok(None) => Ok(()),
            Ok(Some((digests, seconds))) => {
                device_seconds = seconds;
                books.written(id, Some(digests));
                Ok(())
            }
            Err(error) => {
                books.written(id, None);
                Err(error)
            }
        };
        let step = Step::new(version, Operation::Append, layout.bytes, tier, device_seconds);
        books.trace.step(step, begun, shared.started);
        shared.changed_for(books, if tier == Tier::Device { &[Link::Down] } else { &Link::ALL });
        drop(announced);
        outcome
    }

    /// Finds room for a new version.
    fn admit(&self, id: EntryId, layout: &Arc<Layout>) -> Result<(Tier, Vec<Piece>), HistoryError> {
        let shared = &self.shared;
        let (name, version) = (|| self.name.clone(), id.version);
        let begun = Instant::now();
        shared.settle_restores_for(layout.bytes);
        let mut books = shared.lock();
        loop {
            // Histories outlive their caches, and afterwards nobody moves anything any more.
            let answer = match shared.is_stopping() {
                true => Admission::Never(Reason::Closed),
                false => books.cache.admit(id, layout.bytes, self.keep, shared.now()),
            };
            // When enqueued copies end, they may free the version number, or room.
            let is_settled = books.enqueued.is_empty() && books.settling == 0;
            if !is_settled && matches!(answer, Admission::Never(Reason::Exists | Reason::NoRoom)) {
                books = shared.wait_for_room(books);
                continue;
            }
            let no_room = |reason: &str| {
                let (bytes, reason) = (layout.bytes, reason.to_owned());
                Err(HistoryError::NoRoom { history: name(), version, bytes, reason })
            };
            let place = match answer {
                Admission::Device(pieces) => (Tier::Device, pieces),
                Admission::Host(pieces) => (Tier::Host, pieces),
                Admission::Store(pieces) => (Tier::Store, pieces),
                Admission::Never(Reason::Exists) => {
                    return Err(HistoryError::Exists { history: name(), version });
                }
                Admission::Never(Reason::TooLarge) => return no_room("it is larger than every tier"),
                Admission::Never(Reason::NoRoom) => {
                    return no_room("all tiers hold versions that are still to be restored");
                }
                Admission::Never(Reason::Closed) => return no_room("the history, or its caches, were closed"),
                Admission::Wait { .. } => {
                    if begun.elapsed() >= shared.config.room {
                        books.cache.written(id, false);
                        let seconds = begun.elapsed().as_secs_f64();
                        return Err(HistoryError::TimedOut { history: name(), version, seconds });
                    }
                    books = shared.wait_for_room(books);
                    continue;
                }
            };
            let entry = Entry { layout: layout.clone(), digests: None, complaint: None, is_told_lost: false };
            books.entries.insert(id, entry);
            return Ok(place);
        }
    }

    /// Writes into the GPU cache. `None`: the copy is only enqueued.
    #[allow(clippy::too_many_arguments)]
    fn write_device<'a>(
        &'a self,
        id: EntryId,
        layout: &Layout,
        fields: &[Field<'_>],
        pieces: &[Piece],
        stream: &dyn Stream,
        until: Return,
        announced: &mut Option<Announced<'a>>,
    ) -> Result<Option<(Vec<Digest>, f64)>, HistoryError> {
        let cuts = layout.cuts(pieces);
        let mut runs = Vec::with_capacity(cuts.len());
        for cut in &cuts {
            let target = self.shared.range.span(cut.place, cut.bytes)?;
            match fields[cut.field].data {
                FieldData::Device(span) => {
                    let source = span.part(cut.start, cut.bytes)?;
                    runs.push(layout.run(cut, source, Some(target)));
                }
                FieldData::Host(slice) => {
                    let source = &slice[cut.start as usize..(cut.start + cut.bytes) as usize];
                    stream.upload(&[(source, target.clone())], None)?;
                    runs.push(layout.run(cut, target, None));
                }
            }
        }
        let copied = stream.copy_blocks(runs, layout.block_bytes)?;
        if until == Return::Enqueued {
            let from_host = FromHost::new(layout, fields);
            let enqueued = Enqueued::new(id, stream, copied, EnqueuedCall::Append(from_host));
            self.shared.lock().enqueued.push_back(enqueued);
            return Ok(None);
        }
        *announced = Some(Announced::new(&self.shared, Link::Down));
        let from_host = FromHost::new(layout, fields);
        let digests = copied.digests()?;
        from_host.check(layout, &digests)?;
        Ok(Some((digests, copied.seconds()?)))
    }

    /// Writes straight to host memory.
    fn write_host(
        &self,
        layout: &Layout,
        fields: &[Field<'_>],
        pieces: &[Piece],
        stream: &dyn Stream,
    ) -> Result<Vec<Digest>, HistoryError> {
        for cut in layout.cuts(pieces) {
            let place = Piece { offset: cut.place, bytes: cut.bytes };
            let mut parts = self.shared.lines.lend(place).ok_or_else(lines_gone)?;
            let mut at = cut.start;
            for part in &mut parts {
                get(&fields[cut.field], at, part, stream)?;
                at += part.len() as u64;
            }
        }
        digests_of(layout, fields, stream)
    }

    /// Writes straight to the file.
    fn write_store(
        &self,
        layout: &Layout,
        fields: &[Field<'_>],
        pieces: &[Piece],
        stream: &dyn Stream,
    ) -> Result<Vec<Digest>, HistoryError> {
        let spill = self.shared.spill.as_ref().ok_or_else(lines_gone)?;
        let mut bounce = PageBuffer::new(BOUNCE_BYTES.min(layout.bytes) as usize);
        for cut in layout.cuts(pieces) {
            for at in (0..cut.bytes).step_by(BOUNCE_BYTES as usize) {
                let bytes = &mut bounce[..BOUNCE_BYTES.min(cut.bytes - at) as usize];
                get(&fields[cut.field], cut.start + at, bytes, stream)?;
                spill.write(bytes, cut.place + at).map_err(|error| self.shared.store_failed(&error))?;
            }
        }
        digests_of(layout, fields, stream)
    }
}
