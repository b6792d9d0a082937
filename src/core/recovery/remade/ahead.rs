//! Reads pieces of shards in a thread of its own, and checks them there, while those before them are packed and sent.

use crate::base::threads::spawn_scoped;
use crate::base::units::page_ceil;
use crate::format::Region;
use crate::tier::TierError;
use crate::tier::posix::PageBuffer;
use crate::tier::source::Source;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

/// Pieces that are asked for at once: one is read while another one waits to be taken.
const AHEAD: usize = 2;

/// A piece that is to be read: whole blocks of a region.
struct Wanted {
    source: Source,
    region: Arc<Region>,
    range: Range<usize>,
    buffer: PageBuffer,
}

/// One that was.
struct Got {
    range: Range<usize>,
    buffer: PageBuffer,
    outcome: Result<(), TierError>,
}

/// The other thread, as long as there is one.
struct Thread {
    wanted: Sender<Wanted>,
    got: Receiver<Got>,
}

/// Reads ahead from one copy at a time.
pub(super) struct Ahead<'s, 'e> {
    scope: &'s Scope<'s, 'e>,
    thread: Option<Thread>,
    /// There was none to be had.
    is_alone: bool,
    /// What was asked for and has not been taken, in order.
    asked: VecDeque<Range<usize>>,
    spare: Vec<PageBuffer>,
}

impl<'s, 'e> Ahead<'s, 'e> {
    /// Nothing yet. The thread begins with the first piece that is asked for, and ends with this.
    pub fn new(scope: &'s Scope<'s, 'e>) -> Ahead<'s, 'e> {
        Ahead { scope, thread: None, is_alone: false, asked: VecDeque::new(), spare: Vec::new() }
    }

    /// What is asked for: where the next piece behind it begins, at the earliest.
    pub fn end(&self) -> Option<usize> {
        self.asked.back().map(|range| range.end)
    }

    /// May another piece be asked for?
    pub fn has_room(&self) -> bool {
        !self.is_alone && self.asked.len() < AHEAD
    }

    /// Asks for a piece of the copy that all others which are asked for are of. False if nobody reads it ahead.
    pub fn ask(&mut self, source: &Source, region: &Arc<Region>, range: Range<usize>) -> bool {
        if !source.is_read_beside() {
            return false;
        }
        if self.thread.is_none() {
            self.thread = self.begin();
            self.is_alone = self.thread.is_none();
        }
        let buffer = self.buffer(range.len());
        let wanted = Wanted { source: source.clone(), region: region.clone(), range: range.clone(), buffer };
        let is_asked = self.thread.as_ref().is_some_and(|thread| thread.wanted.send(wanted).is_ok());
        if is_asked {
            self.asked.push_back(range);
        }
        is_asked
    }

    fn begin(&self) -> Option<Thread> {
        let ((wanted, asked), (answer, got)) = (channel::<Wanted>(), channel());
        let body = move || {
            while let Ok(Wanted { source, region, range, mut buffer }) = asked.recv() {
                let outcome = source.read_blocks(&region, range.start, &mut buffer[..range.len()]);
                if answer.send(Got { range, buffer, outcome }).is_err() {
                    return;
                }
            }
        };
        spawn_scoped(self.scope, "bvk-ahead", body).ok().map(|_| Thread { wanted, got })
    }

    /// A buffer of at least so many bytes.
    pub fn buffer(&mut self, length: usize) -> PageBuffer {
        let fits = self.spare.iter().position(|buffer| buffer.len() >= length);
        fits.map_or_else(|| PageBuffer::new(page_ceil(length as u64) as usize), |at| self.spare.swap_remove(at))
    }

    /// Takes a buffer back.
    pub fn give_back(&mut self, buffer: PageBuffer) {
        if self.spare.len() <= AHEAD {
            self.spare.push(buffer);
        }
    }

    /// The piece that was asked for and has this byte, and what became of it; those before it are dropped. `None` if there is none, or nobody
    /// reads it any more.
    ///
    /// # Blocking
    /// Until it was read.
    pub fn take(&mut self, at: usize) -> Option<(Range<usize>, PageBuffer, Result<(), TierError>)> {
        while let Some(range) = self.asked.pop_front() {
            let Ok(Got { range: of, buffer, outcome }) = self.thread.as_ref()?.got.recv() else {
                self.asked.clear();
                return None;
            };
            debug_assert_eq!(range, of, "pieces come in the order in which they were asked for");
            if of.contains(&at) {
                return Some((of, buffer, outcome));
            }
            self.give_back(buffer);
        }
        None
    }

    /// Drops what was asked for: another copy, or another shard, comes next.
    pub fn drop_all(&mut self) {
        // No byte of any region has this place.
        _ = self.take(usize::MAX);
    }
}
