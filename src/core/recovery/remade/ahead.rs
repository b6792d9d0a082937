//! Reads pieces of shards in separate threads and checks them there, while the pieces before them are packed and sent.

use crate::base::threads::spawn_scoped;
use crate::base::units::page_ceil;
use crate::format::Region;
use crate::tier::TierError;
use crate::tier::posix::PageBuffer;
use crate::tier::source::{FILE_READERS, Source};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

/// The number of pieces of memory for which one thread is asked at once: one is read while another one waits to be taken.
const OF_MEMORY: usize = 2;
/// The number of pieces of files that are asked for at once, each from a separate thread: a single request leaves a device idle.
const OF_FILES: usize = FILE_READERS;

/// A piece that is to be read: whole blocks of a region.
struct Wanted {
    source: Source,
    region: Arc<Region>,
    range: Range<usize>,
    buffer: PageBuffer,
}

/// A piece that was read.
struct Got {
    range: Range<usize>,
    buffer: PageBuffer,
    outcome: Result<(), TierError>,
}

/// A thread that reads.
struct Thread {
    wanted: Sender<Wanted>,
    got: Receiver<Got>,
}

/// Reads ahead from one copy at a time.
pub(super) struct Ahead<'s, 'e> {
    scope: &'s Scope<'s, 'e>,
    threads: Vec<Thread>,
    /// No further thread can be started.
    are_all: bool,
    /// The ranges that were asked for and have not been taken, in order, each with the place of the thread that reads it.
    asked: VecDeque<(Range<usize>, usize)>,
    /// The thread that is asked next.
    next: usize,
    spare: Vec<PageBuffer>,
}

impl<'s, 'e> Ahead<'s, 'e> {
    /// Has asked for nothing yet. Threads begin with the first pieces that are asked for, and end with this object.
    pub fn new(scope: &'s Scope<'s, 'e>) -> Ahead<'s, 'e> {
        let (threads, asked, spare) = (Vec::new(), VecDeque::new(), Vec::new());
        Ahead { scope, threads, are_all: false, asked, next: 0, spare }
    }

    /// The end of what was asked for, at which the next piece can begin at the earliest.
    pub fn end(&self) -> Option<usize> {
        self.asked.back().map(|(range, _)| range.end)
    }

    /// May another piece of this copy be asked for?
    pub fn has_room(&self, source: &Source) -> bool {
        let is_alone = self.are_all && self.threads.is_empty();
        !is_alone && source.is_read_beside() && self.asked.len() < pieces_of(source)
    }

    /// Asks for a piece of the copy to which all pieces belong that are currently asked for. False if no thread reads it ahead.
    pub fn ask(&mut self, source: &Source, region: &Arc<Region>, range: Range<usize>) -> bool {
        let most = if matches!(source, Source::Memory(_)) { 1 } else { OF_FILES };
        if self.threads.len() < most && !self.are_all {
            let begun = self.begin();
            self.are_all = begun.is_none();
            self.threads.extend(begun);
        }
        let at = self.next % self.threads.len().clamp(1, most);
        let buffer = self.buffer(range.len());
        let wanted = Wanted { source: source.clone(), region: region.clone(), range: range.clone(), buffer };
        let is_asked = self.threads.get(at).is_some_and(|thread| thread.wanted.send(wanted).is_ok());
        if is_asked {
            self.asked.push_back((range, at));
            self.next = at + 1;
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

    /// A buffer of at least `length` bytes.
    pub fn buffer(&mut self, length: usize) -> PageBuffer {
        let fits = self.spare.iter().position(|buffer| buffer.len() >= length);
        fits.map_or_else(|| PageBuffer::new(page_ceil(length as u64) as usize), |at| self.spare.swap_remove(at))
    }

    /// Takes a buffer back.
    pub fn give_back(&mut self, buffer: PageBuffer) {
        if self.spare.len() <= OF_FILES {
            self.spare.push(buffer);
        }
    }

    /// The piece that was asked for and contains the byte `at`, and the outcome of reading it. The pieces before it are dropped. `None` if
    /// there is no such piece, or if its thread no longer reads.
    ///
    /// # Blocking
    /// Until the piece has been read.
    pub fn take(&mut self, at: usize) -> Option<(Range<usize>, PageBuffer, Result<(), TierError>)> {
        while let Some((range, thread)) = self.asked.pop_front() {
            let Ok(Got { range: of, buffer, outcome }) = self.threads.get(thread)?.got.recv() else {
                // The pieces that the other threads have read would be taken for those that they are asked for next.
                self.asked.clear();
                self.threads.clear();
                self.are_all = true;
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
        // No byte of any region is at this place.
        _ = self.take(usize::MAX);
    }
}

/// How many pieces of a copy are asked for at once.
fn pieces_of(source: &Source) -> usize {
    if matches!(source, Source::Memory(_)) { OF_MEMORY } else { OF_FILES }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The other ends of a reader: what it is asked, and its answers.
    type Ends = (Receiver<Wanted>, Sender<Got>);

    /// Readers whose answers the test gives.
    fn ahead<'s, 'e>(scope: &'s Scope<'s, 'e>, readers: usize) -> (Ahead<'s, 'e>, Vec<Ends>) {
        let mut ahead = Ahead::new(scope);
        let ends = (0..readers).map(|_| {
            let ((wanted, asked), (answer, got)) = (channel(), channel());
            ahead.threads.push(Thread { wanted, got });
            (asked, answer)
        });
        let ends = ends.collect();
        (ahead, ends)
    }

    fn got(range: Range<usize>) -> Got {
        let mut buffer = PageBuffer::new(4096);
        buffer[0] = range.start as u8;
        Got { range, buffer, outcome: Ok(()) }
    }

    #[test]
    fn nothing_that_other_readers_have_read_is_taken_once_one_has_died() {
        std::thread::scope(|scope| {
            let (mut ahead, mut ends) = ahead(scope, 2);
            ahead.asked.extend([(0..10, 0), (10..20, 1), (20..30, 0)]);
            ends[1].1.send(got(10..20)).expect("there");
            drop(ends.remove(0));
            assert!(ahead.take(0).is_none());
            assert_eq!((ahead.end(), ahead.threads.len(), ahead.are_all), (None, 0, true));
            assert!(ahead.take(10).is_none(), "it is read by the caller");
        });
    }

    #[test]
    fn what_is_dropped_is_not_taken_for_what_is_asked_next() {
        std::thread::scope(|scope| {
            let (mut ahead, ends) = ahead(scope, 2);
            ahead.asked.extend([(0..10, 0), (10..20, 1), (20..30, 0)]);
            for (thread, range) in [(0, 0..10), (1, 10..20), (0, 20..30)] {
                ends[thread].1.send(got(range)).expect("there");
            }
            let (range, buffer, _) = ahead.take(12).expect("it was asked for");
            assert_eq!((range, buffer[0]), (10..20, 10));
            assert_eq!(ahead.spare.len(), 1, "that of the piece before");
            // Another copy follows, whose first piece begins at the same place as a piece that nobody took.
            ahead.drop_all();
            assert_eq!(ahead.end(), None);
            ahead.asked.push_back((20..25, 0));
            ends[0].1.send(got(20..25)).expect("there");
            let (range, ..) = ahead.take(20).expect("it was asked for");
            assert_eq!(range, 20..25);
        });
    }
}
