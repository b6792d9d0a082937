//! Shards of collective checkpoints in the GPU cache: they are copied there while the application waits, and downloaded to their slot in
//! node memory in the background.
//!
//! Staged shards share the cache with the versions of histories: [`crate::cache::Cache::stage`] finds room for them and never evicts them.
//! The `bvk-d2h` thread serves them before it flushes versions, because a rank's vote waits for its shard, and node memory is reserved for
//! the shard.
#![forbid(unsafe_code)]

use super::layout::Layout;
use super::lending::CacheHandle;
use super::links::name_of;
use super::shared::{Land, Landing, Line, LookAt, PATIENCE, Shared, Staged};
use crate::base::Digest;
use crate::base::log;
use crate::base::threads::spawn_scoped;
use crate::base::units::PAGE;
use crate::cache::{Admission, Link, Piece, Reason};
use crate::device::{DeviceError, Stream};
use crate::segment::SlotMut;
use crate::transfer::capture::{DeviceBytes, DevicePart, targets};
use crate::transfer::remains::Fill;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

/// The rate, in bytes per second, that is assumed for a download before one was measured: what pageable memory allows.
const RATE_ASSUMED: u64 = 8 << 30;
/// The smallest download, in bytes, that counts as a measurement of the link's speed.
const RATE_LEAST: u64 = 4 << 20;

/// Adds a part to lines and gaps. It joins the last line if nothing but padding separates the two, both here and in the shard. Pure.
fn append(lines: &mut Vec<Line>, gaps: &mut Vec<Range<u64>>, part: Line) {
    let gap = lines.last().map(|last| (part.at - (last.at + last.bytes), last.place + last.bytes));
    match (gap, lines.last_mut()) {
        (Some((gap, end)), Some(last)) if gap < PAGE && end + gap == part.place => {
            if gap > 0 {
                gaps.push(part.at - gap..part.at);
            }
            last.bytes += gap + part.bytes;
        }
        _ => lines.push(part),
    }
}

impl CacheHandle {
    /// Enqueues a copy of device regions into the GPU cache on the application's stream. `None` if the cache will not have room sooner than
    /// a download would end, or if the device has no room for the copy's own tables.
    ///
    /// # Errors
    /// Any error that the device reports.
    ///
    /// # Blocking
    /// For room, at most as long as a download of the regions would take.
    pub(in crate::transfer) fn stage(
        &self,
        parts: &[DevicePart],
        block_bytes: u64,
        stream: &dyn Stream,
    ) -> Result<Option<Staged>, DeviceError> {
        let layout = Layout::of_parts(parts.iter().map(|part| (part.at, part.memory.bytes())), block_bytes);
        let Some((shard, pieces)) = self.0.find_staging_room(layout.bytes) else { return Ok(None) };
        let shared = self.0.clone();
        let (lines, gaps) = (Vec::new(), Vec::new());
        let mut staged = Staged { shared, shard, bytes: layout.bytes, lines, gaps, copied: None };
        let mut runs = Vec::new();
        for cut in layout.cuts(&pieces) {
            let (part, place) = (&parts[cut.field], self.0.range.span(cut.place, cut.bytes)?);
            let line = Line { place: cut.place, bytes: cut.bytes, at: part.at + cut.start };
            append(&mut staged.lines, &mut staged.gaps, line);
            runs.push(match &part.memory {
                DeviceBytes::Span(span) => layout.run(&cut, span.part(cut.start, cut.bytes)?, Some(place)),
                // Digested where it is in one piece.
                DeviceBytes::Rows(rows) => {
                    stream.pack(&rows.copies(cut.start, cut.bytes), &place)?;
                    layout.run(&cut, place, None)
                }
            });
        }
        if !runs.is_empty() {
            staged.copied = match stream.copy_blocks(runs, block_bytes) {
                // For the tables of the copy. A copy that bypasses the cache needs fewer tables, and earlier copies may have given theirs
                // back.
                Err(error @ DeviceError::OutOfMemory { .. }) => {
                    log::warn!("event=not-staged bytes={} error={error}", layout.bytes);
                    return Ok(None);
                }
                copied => Some(copied?),
            };
        }
        Ok(Some(staged))
    }
}

impl CacheHandle {
    /// `bytes` bytes go from the device into a slot, bypassing the cache.
    pub(in crate::transfer) fn pin_soon(&self, slot: &SlotMut, bytes: u64) {
        self.0.pin_soon(slot, bytes);
    }
}

impl Staged {
    /// Hands the shard over to the thread that downloads it into `slot`, lets it be looked at meanwhile, fills the rest
    /// of the slot, and then calls `land`. If that thread has panicked, `land` is dropped with the [`Caches`], at the
    /// latest.
    pub(in crate::transfer) fn send_down(
        self,
        slot: SlotMut,
        version: u64,
        look: Option<LookAt>,
        fill: Option<Fill>,
        land: Land,
    ) {
        let shared = self.shared.clone();
        let mut books = shared.lock();
        books.landings.push_back(Landing { staged: self, slot, version, look, fill, land });
        shared.given[Link::Down as usize].fetch_add(1, Ordering::Relaxed);
        drop(books);
        shared.links[Link::Down as usize].notify_all();
    }

    /// Waits until the regions are in the cache; returns their digests, one region after the other.
    ///
    /// # Errors
    /// The device's error.
    pub(in crate::transfer) fn digests(&mut self) -> Result<Vec<Digest>, DeviceError> {
        self.copied.take().map_or_else(|| Ok(Vec::new()), |copied| copied.digests())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Waits, because until the copy has ended the device writes into memory that others would be given.
        self.copied = None;
        let mut books = self.shared.lock();
        books.cache.unstage(self.shard);
        books.staged -= 1;
        self.shared.changed(books);
    }
}

impl Landing {
    /// Downloads the shard and reports the outcome.
    pub(super) fn run(self, stream: &dyn Stream) {
        let Landing { staged, mut slot, version, look, fill, land } = self;
        let begun = Instant::now();
        let (shared, bytes) = (staged.shared.clone(), staged.bytes);
        let mut burst = shared.burst(version, bytes);
        let copy = |line: &Line| Ok((shared.range.span(line.place, line.bytes)?, line.at));
        let copies = staged.lines.iter().map(copy).collect::<Result<Vec<_>, DeviceError>>();
        let mut spent = Duration::ZERO;
        let outcome = copies.and_then(|copies| {
            let spans = copies.iter().map(|(span, at)| (*at, span.clone())).collect();
            std::thread::scope(|scope| {
                let work = |look: LookAt| spawn_scoped(scope, "bvk-look", || look(&*shared.device, spans));
                let beside = look.map(work).transpose();
                let down = burst.download(stream, &mut targets(copies.into_iter(), slot.as_mut_slice()));
                spent = begun.elapsed().saturating_sub(burst.held_back());
                // Others may use the link now.
                drop(burst);
                match beside.map(|beside| beside.map(ScopedJoinHandle::join)) {
                    Ok(None | Some(Ok(()))) => {}
                    // Blocks are compared instead.
                    Ok(Some(Err(_))) => log::error!("event=look-panicked version={version}"),
                    Err(error) => log::debug!("event=not-looked-at version={version} error={error}"),
                }
                down
            })
        });
        let outcome = outcome.map_err(|error| error.to_string()).and_then(|()| match &fill {
            Some(fill) => fill.copy_to(slot.as_mut_slice()).map_err(|flipped| flipped.to_string()),
            None => Ok(()),
        });
        drop(fill);
        for gap in &staged.gaps {
            slot.as_mut_slice()[gap.start as usize..gap.end as usize].fill(0);
        }
        let mut books = shared.lock();
        books.trace.span(name_of(Link::Down), version, bytes, begun, shared.started);
        // A small download tells nothing about the link.
        let spent = if bytes < RATE_LEAST { Duration::ZERO } else { spent };
        books.note_moved(Link::Down, bytes, spent, outcome.is_ok());
        drop(books);
        drop(staged);
        shared.pin_soon(&slot, bytes);
        land(outcome.map(|()| slot));
    }
}

impl Shared {
    /// Finds room for a shard of `bytes` bytes, and the number under which the cache knows the shard; `None` if there is no room in time.
    fn find_staging_room(&self, bytes: u64) -> Option<(u64, Vec<Piece>)> {
        let begun = Instant::now();
        self.settle_enqueued(false);
        self.settle_restores_for(bytes);
        let mut books = self.lock();
        let shard = books.next_shard();
        let rate = books.cache.rate(Link::Down).unwrap_or(RATE_ASSUMED);
        let patience = Duration::from_secs_f64(bytes as f64 / rate as f64);
        loop {
            let expected = match books.cache.stage(shard, bytes, self.now()) {
                Admission::Device(pieces) => {
                    books.staged += 1;
                    return Some((shard, pieces));
                }
                Admission::Wait { expected } => expected.unwrap_or_default(),
                // The planner does not know that staged shards leave without further action.
                Admission::Never(Reason::NoRoom) if books.staged > 0 => Duration::ZERO,
                _ => Duration::MAX,
            };
            let left = patience.saturating_sub(begun.elapsed());
            if expected >= left || self.is_stopping() {
                books.cache.unstage(shard);
                return None;
            }
            // A new waiting call may change which jobs the links can do.
            books.dispatch(self, &Link::ALL);
            books = self.wait_at_most(books, left.min(PATIENCE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::units::MIB;
    use crate::device::Copied;
    use crate::device::host::{HostDevice, HostModel};
    use crate::device::{Device, Priority};
    use crate::transfer::history::{CacheConfig, Caches};
    use std::sync::Arc;
    use std::sync::{Mutex, mpsc};

    /// A copy that is under way until the test ends it.
    struct Held {
        copied: Box<dyn Copied>,
        tell: mpsc::Sender<&'static str>,
        end: Mutex<mpsc::Receiver<()>>,
    }

    impl Copied for Held {
        fn is_done(&self) -> Result<bool, DeviceError> {
            self.copied.is_done()
        }

        fn wait(&self) -> Result<(), DeviceError> {
            self.copied.wait()
        }

        fn digests(&self) -> Result<Vec<Digest>, DeviceError> {
            self.copied.digests()
        }

        fn read_digests(&self, first: usize, into: &mut [Digest]) -> Result<(), DeviceError> {
            self.copied.read_digests(first, into)
        }

        fn seconds(&self) -> Result<f64, DeviceError> {
            self.copied.seconds()
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // The test may have failed and ended.
            let _ = self.tell.send("waits");
            let _ = self.end.lock().expect("no panic").recv();
        }
    }

    #[test]
    fn regions_with_nothing_but_padding_between_them_are_one_line() {
        let line = |place, bytes, at| Line { place, bytes, at };
        let joined = |parts: &[(u64, u64, u64)]| {
            let (mut lines, mut gaps) = (Vec::new(), Vec::new());
            parts.iter().for_each(|(place, bytes, at)| append(&mut lines, &mut gaps, line(*place, *bytes, *at)));
            (lines, gaps)
        };
        let padded = joined(&[(0, 100, 8192), (4096, 4096, 12_288), (8192, 7, 16_384)]);
        let zeros: Vec<u64> = padded.1.iter().flat_map(|gap| [gap.start, gap.end]).collect();
        assert_eq!((padded.0, zeros), (vec![line(0, 8199, 8192)], vec![8292, 12_288]));
        // Something else is in between: in the shard a region of the host, here another shard.
        assert_eq!(joined(&[(0, 4096, 4096), (4096, 8, 12_288)]).0.len(), 2);
        assert_eq!(joined(&[(0, 4096, 4096), (12_288, 8, 8192)]).0.len(), 2);
    }

    /// While the copy into the cache is under way, its room must not be given to another shard.
    #[test]
    fn a_staged_shard_that_is_dropped_keeps_its_room_until_its_copy_has_ended() {
        const BYTES: u64 = 2 * MIB;
        let device = Arc::new(HostDevice::new(HostModel::default()));
        let config = CacheConfig { device_bytes: BYTES, host_bytes: 0, ..CacheConfig::default() };
        let caches = Caches::open(device.clone(), None, config).expect("caches");
        let stream = device.stream(Priority::High).expect("a stream");
        let source = device.allocate(BYTES).expect("room");
        let stage = || {
            let parts = [DevicePart { memory: DeviceBytes::Span(source.clone()), at: 0, blocks: 0..512, region: 0 }];
            caches.handle().stage(&parts, 4096, &*stream).expect("the device works")
        };
        let mut first = std::iter::repeat_with(stage).flatten().next().expect("mapped in the end");
        let ((tell, told), (end, ended)) = (mpsc::channel(), mpsc::channel());
        let copied = first.copied.take().expect("a copy");
        first.copied = Some(Box::new(Held { copied, tell: tell.clone(), end: Mutex::new(ended) }));
        std::thread::scope(|scope| {
            // The end of the copy belongs to this closure, so a failure here ends the copy.
            let end = end;
            scope.spawn(move || {
                drop(first);
                tell.send("is gone")
            });
            assert_eq!(told.recv(), Ok("waits"));
            assert!(stage().is_none(), "the room was given away while the copy was under way");
            end.send(()).expect("it is awaited");
            assert_eq!(told.recv(), Ok("is gone"));
            drop(std::iter::repeat_with(stage).flatten().next().expect("room in the end"));
        });
    }
}
