//! Sealing: a history as part of a collective checkpoint. Each field of each version is a region that is read, when it is captured, from
//! the tier that holds the version straight into its place, and compared with the digests made when it was appended.
//!
//! The versions stay as they are: nothing is claimed, consumed or moved to another tier, and a version that is being read stays until the
//! read has ended. A value, the *index*, lists versions and fields, so that an empty history can be distinguished from one that was not
//! sealed.
#![forbid(unsafe_code)]

use super::error::HistoryError;
use super::field::{compare_blocks, digest_slice};
use super::layout::{Cut, FieldInfo, Layout};
use super::shared::{Entry, History, lines_gone};
use super::steps::CallKind;
use crate::base::Digest;
use crate::cache::{Cache, EntryId, Piece, Tier};
use crate::device::{Priority, Stream};
use crate::format::ElementType;
use crate::region::ReadBlocks;
use crate::transfer::capture::targets;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// Versions in ascending order, each with the names of its fields in the version's order.
pub(crate) type Index = Vec<(u64, Vec<String>)>;

/// The name of the value that holds the [`Index`] of a history.
pub(crate) fn index_name(history: &str) -> String {
    format!("{history}/versions")
}

/// The name of the region that holds a field of a version.
pub(crate) fn region_name(history: &str, version: u64, field: &str) -> String {
    format!("{history}/{version}/{field}")
}

/// A field of a version that is to be captured.
pub(crate) struct KeptField<'a> {
    history: &'a History,
    version: u64,
    /// The field's index among the version's fields.
    field: usize,
    layout: Arc<Layout>,
    digests: Arc<[Digest]>,
    stream: Arc<dyn Stream>,
}

impl History {
    /// A separate stream on the device of the caches.
    ///
    /// # Errors
    /// [`HistoryError::Device`].
    pub(crate) fn stream(&self) -> Result<Arc<dyn Stream>, HistoryError> {
        Ok(self.shared.device.stream(Priority::High)?)
    }

    /// The present versions and all their fields, except for versions that a restore has reported as lost.
    ///
    /// # Blocking
    /// For enqueued copies, and for versions that another thread is appending; at most for `timeouts.room`.
    ///
    /// # Errors
    /// [`HistoryError::TimedOut`], [`HistoryError::Device`], [`HistoryError::Closed`].
    pub(crate) fn kept(&self) -> Result<(Index, Vec<KeptField<'_>>), HistoryError> {
        let begun = Instant::now();
        let stream = self.stream()?;
        let mut books = self.shared.settle_all();
        if self.shared.is_stopping() {
            return Err(HistoryError::Closed { history: self.name.clone() });
        }
        let ids = EntryId { history: self.id, version: 0 }..=EntryId { history: self.id, version: u64::MAX };
        while let Some((id, _)) = books.entries.range(ids.clone()).find(|(_, entry)| entry.digests.is_none()) {
            let version = id.version;
            books = self.wait_for(books, version, begun)?;
        }
        let (mut index, mut kept) = (Index::new(), Vec::new());
        // A version that a restore has reported as lost is not sealed: the application knows of the loss.
        for (id, entry) in books.entries.range(ids).filter(|(_, entry)| !entry.is_told_lost) {
            let Some(digests) = &entry.digests else { continue };
            let (layout, version) = (&entry.layout, id.version);
            index.push((version, layout.fields.iter().map(|info| info.name.clone()).collect()));
            kept.extend((0..layout.fields.len()).map(|field| {
                let (layout, digests, stream) = (layout.clone(), digests.clone(), stream.clone());
                KeptField { history: self, version, field, layout, digests, stream }
            }));
        }
        Ok((index, kept))
    }
}

impl KeptField<'_> {
    fn info(&self) -> &FieldInfo {
        &self.layout.fields[self.field]
    }

    /// The name of the field's region.
    pub(crate) fn region_name(&self) -> String {
        region_name(&self.history.name, self.version, &self.info().name)
    }

    /// The field's name.
    pub(crate) fn name(&self) -> &str {
        &self.info().name
    }

    /// The field's element type.
    pub(crate) fn element(&self) -> ElementType {
        self.info().element
    }

    /// Reads the field from the fastest tier that has a good copy.
    fn read_best(&self, at: u64, target: &mut [u8], digests: &mut [Digest]) -> Result<(), HistoryError> {
        let (begun, shared) = (Instant::now(), &self.history.shared);
        let _call = shared.bursts.call(CallKind::Other);
        let id = EntryId { history: self.history.id, version: self.version };
        loop {
            let (mut books, tier, pieces) = self.history.find(shared.lock(), id, begun, Cache::peek)?;
            // A version with the same number that was appended since is a different one.
            let is_same =
                |entry: &Entry| entry.digests.as_ref().is_some_and(|digests| Arc::ptr_eq(digests, &self.digests));
            if !books.entries.get(&id).is_some_and(is_same) {
                books.cache.read_undone(id, tier);
                shared.changed(books);
                return Err(HistoryError::Gone { history: self.history.name.clone(), version: self.version });
            }
            drop(books);
            let read = self.read_from(tier, &pieces, at, target);
            let checked = read.and_then(|()| self.check(tier, at, target, digests));
            let mut books = shared.lock();
            match &checked {
                Ok(()) => {
                    books.cache.read_undone(id, tier);
                    books.trace.stats.sealed_bytes[tier as usize] += target.len() as u64;
                }
                Err(error) => books.not_read(id, tier, &self.history.name, error),
            }
            shared.changed(books);
            match checked {
                Err(error) if error.is_of_copy() => {}
                checked => return checked,
            }
        }
    }

    fn read_from(&self, tier: Tier, pieces: &[Piece], at: u64, target: &mut [u8]) -> Result<(), HistoryError> {
        let shared = &self.history.shared;
        let range = at..at + target.len() as u64;
        let cuts = self.layout.cuts(pieces).into_iter().filter(|cut| cut.field == self.field);
        let cuts = cuts.filter_map(|cut| cut.within(&range));
        let place_of = |cut: &Cut| (cut.start - at) as usize..(cut.start - at + cut.bytes) as usize;
        match tier {
            Tier::Device => {
                let span = |cut: Cut| Ok((shared.range.span(cut.place, cut.bytes)?, cut.start - at));
                let copies = cuts.map(span).collect::<Result<Vec<_>, HistoryError>>()?;
                self.stream.download(&mut targets(copies.into_iter(), target), None)?;
            }
            Tier::Host => {
                for cut in cuts {
                    let views = shared.lines.view(Piece { offset: cut.place, bytes: cut.bytes });
                    let mut rest = &mut target[place_of(&cut)];
                    for view in views.ok_or_else(lines_gone)? {
                        let (bytes, behind) = rest.split_at_mut(view.len());
                        bytes.copy_from_slice(&view);
                        rest = behind;
                    }
                }
            }
            Tier::Store => {
                let spill = shared.spill.as_ref().ok_or_else(lines_gone)?;
                for cut in cuts {
                    let read = spill.read(&mut target[place_of(&cut)], cut.place);
                    read.map_err(|error| shared.store_failed(&error))?;
                }
            }
        }
        Ok(())
    }

    /// Compares the bytes that have arrived with the digests made at the append.
    fn check(&self, tier: Tier, at: u64, landed: &[u8], digests: &mut [Digest]) -> Result<(), HistoryError> {
        let block_bytes = self.layout.block_bytes;
        digest_slice(landed, block_bytes, digests);
        let first = at / block_bytes;
        let expected = &self.digests[self.info().blocks(block_bytes)][first as usize..];
        let name = match tier {
            Tier::Device => "device",
            Tier::Host => "memory",
            Tier::Store => "local",
        };
        compare_blocks(self.info(), first, expected, digests, name)
    }
}

impl ReadBlocks for KeptField<'_> {
    fn bytes(&self) -> u64 {
        self.info().bytes
    }

    fn read(&self, at: u64, block_bytes: u64, target: &mut [u8], digests: &mut [Digest]) -> Result<(), String> {
        let own = self.layout.block_bytes;
        if block_bytes != own {
            return Err(format!(
                "the history has a digest for every {own} bytes, but checkpoints for every {block_bytes}"
            ));
        }
        self.read_best(at, target, digests).map_err(|error| error.to_string())
    }
}

impl fmt::Debug for KeptField<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeptField({})", self.region_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::ids::{Generation, Incarnation};
    use crate::base::limit::wait_until;
    use crate::base::units::MIB;
    use crate::cache::{Keep, Read, State};
    use crate::device::host::{HostDevice, HostModel};
    use crate::segment::{Segment, SegmentSpec};
    use crate::transfer::history::{CacheConfig, Caches, Field};

    const BLOCK: u64 = 16 << 10;
    const BYTES: usize = 100_001;

    /// Flips a bit of a field in the copy that would be read, and returns the tier of that copy.
    fn damage(kept: &KeptField<'_>, byte: u64) -> Tier {
        let (shared, id) = (&kept.history.shared, EntryId { history: kept.history.id, version: kept.version });
        let mut books = shared.lock();
        let (tier, pieces) = match books.cache.peek(id) {
            Read::Device(pieces) => (Tier::Device, pieces),
            Read::Host(pieces) => (Tier::Host, pieces),
            Read::Store(pieces) => (Tier::Store, pieces),
            answer => panic!("{answer:?}"),
        };
        books.cache.read_undone(id, tier);
        drop(books);
        let cuts = kept.layout.cuts(&pieces).into_iter().filter(|cut| cut.field == kept.field);
        let place = cuts.filter_map(|cut| cut.within(&(byte..byte + 1))).next().expect("it lies somewhere").place;
        match tier {
            Tier::Device => {
                let (span, mut byte) = (shared.range.span(place, 1).expect("mapped"), [0]);
                kept.stream.download(&mut [(span.clone(), &mut byte)], None).expect("read");
                kept.stream.upload(&[(&[byte[0] ^ 1], span)], None).expect("written");
            }
            Tier::Host => {
                let mut parts = shared.lines.lend(Piece { offset: place, bytes: 1 }).expect("leased");
                parts[0][0] ^= 1;
            }
            Tier::Store => {
                let (spill, mut byte) = (shared.spill.as_ref().expect("a file"), [0]);
                spill.read(&mut byte, place).expect("read");
                spill.write(&[byte[0] ^ 1], place).expect("written");
            }
        }
        tier
    }

    #[test]
    fn blocks_are_read_from_the_fastest_good_copy_until_none_is_left() {
        let place =
            tempfile::Builder::new().prefix("bivouac-test-").tempdir_in("/dev/shm").expect("a directory in /dev/shm");
        let spec = SegmentSpec {
            directory: place.path().to_owned(),
            name: "seal".into(),
            job: 1,
            group: 2,
            generation: Generation(3),
            incarnation: Incarnation([4; 16]),
            store: 0,
            budget: 16 * MIB,
            node_ranks: 1,
            group_size: 1,
        };
        let segment = Arc::new(Segment::create(&spec).expect("segment"));
        let device = Arc::new(HostDevice::new(HostModel::default()));
        let config = CacheConfig {
            device_bytes: 8 * MIB,
            host_bytes: 4 * MIB,
            store_bytes: 4 * MIB,
            store_directory: Some(place.path().to_owned()),
            line_bytes: MIB,
            block_bytes: BLOCK,
            ..CacheConfig::default()
        };
        let caches = Caches::open(device, Some(segment), config).expect("caches");
        let history = caches.history("wave", Keep::All);
        // `wait_flushed` does not count a flush that waits for host memory.
        wait_until("host memory is ready (is /dev/shm large enough?)", || caches.is_ready());
        let bytes: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        let fields = [Field::host("small", &bytes[..5]), Field::host("p", &bytes)];
        history.append(3, &fields, &*history.stream().expect("a stream")).expect("room");
        history.wait_flushed();

        let (index, kept) = history.kept().expect("all is there");
        assert_eq!(index, [(3, vec!["small".to_owned(), "p".to_owned()])]);
        let p = &kept[1];
        for tier in Tier::ALL {
            let before = history.stats().sealed_bytes;
            let states = || history.shared.lock().cache.states(EntryId { history: history.id, version: 3 });
            let (mut target, mut digests) = (vec![0; BYTES], [Digest::default(); BYTES.div_ceil(BLOCK as usize)]);
            p.read(0, BLOCK, &mut target, &mut digests).expect("a good copy");
            assert!(target == bytes, "from {tier:?}");
            // The damaged copy above has been given up by now. Two blocks are read at a time, as for a file.
            let unread = states();
            assert!(unread.iter().flatten().all(|state| [State::Flushed, State::WriteComplete].contains(state)));
            target.fill(0);
            for (index, target) in target.chunks_mut(2 * BLOCK as usize).enumerate() {
                let blocks = target.len().div_ceil(BLOCK as usize);
                let digests = &mut digests[2 * index..][..blocks];
                p.read(2 * index as u64 * BLOCK, BLOCK, target, digests).expect("a good copy");
            }
            assert!(target == bytes, "from {tier:?}");
            let mut expected = digests;
            digest_slice(&bytes, BLOCK, &mut expected);
            assert_eq!(digests, expected);
            let mut after = before;
            after[tier as usize] += 2 * BYTES as u64;
            assert_eq!((history.stats().sealed_bytes, states()), (after, unread), "the copies stay as they were");
            assert_eq!(damage(p, BYTES as u64 - 1), tier);
            // Nothing is wrong with other blocks: only a read of the damaged block gives the copy up.
            let (target, digest) = (&mut target[..BLOCK as usize], &mut digests[..1]);
            p.read(0, BLOCK, target, digest).expect("a good block");
        }
        let refused = p.read(0, 2 * BLOCK, &mut [0; 8], &mut [Digest::default()]).expect_err("other blocks");
        assert!(refused.contains("for every 16384 bytes"), "{refused}");
        let (target, digests) = (&mut vec![0; BYTES], &mut [Digest::default(); 7]);
        let lost = p.read(0, BLOCK, target, digests).expect_err("all are damaged");
        assert!(lost.contains("version 3 of history \"wave\" is lost: local tier, field \"p\", block 6"), "{lost}");
    }
}
