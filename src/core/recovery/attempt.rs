//! A restart attempt, from which the application loads.

mod companions;
mod dealt;
mod file;
mod history;
mod parts;
mod rows;
mod stream;
mod wanted;

pub use parts::RankPart;
pub use rows::{DealtRows, How, LoadedRows};
pub use stream::{RegionReader, Window};

use super::access::{Attempted, Copies, ShardAccess};
use super::homes::homed;
use super::load_error::LoadError;
use super::opener::Opener;
use super::outline::Outline;
use super::remade::{Plans, Readers};
use crate::affinity::keeper::{Keeper, Placement};
use crate::base::log;
use crate::base::{CheckpointKey, Rank};
use crate::device::{DeviceSpan, Stream};
use crate::format::shard::Head;
use crate::format::{ElementType, Region, RegionKind, codec};
use crate::region::{self, Element};
use crate::segment::SlotMut;
use crate::tier::routed::Folder;
use crate::tier::source::MemoryShard;
use crate::tier::source::{Source, UploadError};
use crate::tier::storage::zeroed;
use crate::tier::{PerTier, TierId};
use crate::transfer::history::{Field, History, Index, index_name, region_name};
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// One attempt to load one checkpoint on one rank.
pub struct Attempt {
    rank: Rank,
    /// The number of ranks of this run.
    ranks: u32,
    key: CheckpointKey,
    shards: Shards,
    /// Set if threads are moved back only at the first load, because the record of where they ran is on another node or on the global tier.
    goes_back_to: Option<Arc<Keeper>>,
    /// The NUMA nodes of the pages of regions.
    placement: Option<Placement>,
    /// Opens shards for loads by all ranks together.
    opener: Option<Opener>,
    /// Which rank reads which shard in such loads.
    readers: Readers,
    /// Plans for such loads.
    plans: Plans,
    /// Why the program rejects the version.
    rejection: Option<String>,
    /// The folder in which regions were brought back as files, if any were.
    routed: Option<Folder>,
}

/// The shards of an attempt.
enum Shards {
    /// This rank's own shard: as many ranks took the checkpoint as there are now.
    Own(Box<ShardAccess>),
    /// Shards of a checkpoint that a different number of ranks took.
    Resized(Box<Resized>),
}

impl Drop for Attempt {
    /// Removes files that were brought back, which exist until the attempt ends.
    fn drop(&mut self) {
        if let Some(folder) = &self.routed {
            folder.remove();
        }
    }
}

/// What a rank knows about a checkpoint that a different number of ranks took.
struct Resized {
    /// The number of ranks that took it.
    of: u32,
    /// The outline of its content.
    outline: Outline,
    /// The shards whose home this rank is, in order.
    homes: Vec<ShardAccess>,
}

impl Attempt {
    /// An attempt to load a rank's own shard, in a run of this many ranks.
    pub fn new(ranks: u32, attempted: &Attempted, copies: Copies) -> Attempt {
        let own = ShardAccess::new(attempted.rank, attempted, copies);
        Attempt::of(ranks, attempted, Shards::Own(Box::new(own)))
    }

    /// An attempt to load the elected checkpoint, with its outline if a different number of ranks took it.
    pub(crate) fn opened(opener: Opener, outline: Option<Outline>) -> Attempt {
        let (rank, ranks) = (opener.engine().identity().rank, opener.engine().identity().size);
        let access = |shard: Rank| opener.access(shard, opener.home(shard));
        let shards = match outline {
            None => Shards::Own(Box::new(access(rank))),
            Some(outline) => {
                let of = opener.elected().candidate.group_size;
                let homes = homed(rank, of, ranks).map(|shard| access(Rank(shard))).collect();
                Shards::Resized(Box::new(Resized { of, outline, homes }))
            }
        };
        let mut restorer = Attempt::of(ranks, opener.attempted(), shards);
        restorer.opener = Some(opener);
        restorer
    }

    fn of(ranks: u32, attempted: &Attempted, shards: Shards) -> Attempt {
        let Attempted { rank, key, .. } = *attempted;
        Attempt {
            rank,
            ranks,
            key,
            shards,
            goes_back_to: None,
            placement: None,
            opener: None,
            readers: Readers::default(),
            plans: Plans::default(),
            rejection: None,
            routed: None,
        }
    }

    /// This rank's own shard.
    fn own(&mut self) -> Result<&mut ShardAccess, LoadError> {
        match &mut self.shards {
            Shards::Own(own) => Ok(own),
            Shards::Resized(resized) => {
                let (found, ours) = (resized.of, self.ranks);
                Err(LoadError::Resized { rank: self.rank, key: self.key, found, ours })
            }
        }
    }

    /// The shards that this rank reads.
    fn accesses(&self) -> impl Iterator<Item = &ShardAccess> {
        let own = match &self.shards {
            Shards::Own(own) => std::slice::from_ref(&**own),
            Shards::Resized(resized) => &resized.homes,
        };
        own.iter().chain(self.readers.accesses())
    }

    /// The number of ranks that took the checkpoint.
    ///
    /// # Collective
    /// Local. The same on all ranks.
    pub fn saved_ranks(&self) -> u32 {
        match &self.shards {
            Shards::Own(_) => self.ranks,
            Shards::Resized(resized) => resized.of,
        }
    }

    /// Did a different number of ranks take the checkpoint?
    pub(crate) fn is_resized(&self) -> bool {
        matches!(self.shards, Shards::Resized(_))
    }

    /// Moves threads back to where they ran when the checkpoint was taken, and has regions loaded where they were. A record that cannot be
    /// read changes nothing. If this node has no copy, all of this waits for the first load, because a rank that loads nothing asks no
    /// other rank. Records of a different number of ranks are not used.
    pub(crate) fn go_back(&mut self, keeper: &Arc<Keeper>) {
        if let Shards::Resized(resized) = &self.shards {
            keeper.stay(resized.of, self.ranks);
            return;
        }
        if !self.own().is_ok_and(|own| own.is_open()) {
            self.goes_back_to = Some(keeper.clone());
        } else {
            self.go_back_now(keeper);
        }
    }

    fn go_back_now(&mut self, keeper: &Arc<Keeper>) {
        let had_failed = self.failure().is_some();
        let found = self.find(region::AFFINITY);
        // A rank that loads nothing needs no copy.
        if let (false, Ok(own)) = (had_failed, self.own()) {
            own.forgive();
        }
        let Some(region) = found.ok().filter(|region| region.bytes <= codec::LIMIT as u64) else { return };
        let mut bytes = vec![0; region.bytes as usize];
        // A record that cannot be read is no reason to give up a copy: what the application loads is in other blocks.
        let read = self.source(&region.name).map(|source| source.read_region(&region, &mut bytes));
        match read {
            Ok(Ok(())) => self.placement = keeper.restore(&bytes),
            Ok(Err(error)) => log::warn!("event=affinity-unread rank={} error=\"{error}\"", self.rank),
            Err(error) => log::warn!("event=affinity-unread rank={} error=\"{error}\"", self.rank),
        }
    }

    /// The version that is being restored.
    pub fn version(&self) -> u64 {
        self.key.version
    }

    /// Rejects a version that can be loaded but must not be used, because it contains a NaN or fails another of the program's checks. Once
    /// the attempt has ended, all ranks continue with the next older version. Their logs give the reason, and so does the error if there is
    /// no older version. A call on one rank is enough. If a rank gives several reasons, the first counts.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, t: &mut [f64]) -> bivouac::Result<()> {
    /// session.begin_restore("heat").run(|attempt| {
    ///     attempt.load("temperature", t)?;
    ///     if t.iter().any(|t| t.is_nan()) {
    ///         attempt.reject("the temperature has NaN");
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local.
    pub fn reject(&mut self, reason: impl Into<String>) {
        self.rejection.get_or_insert(reason.into());
    }

    /// Has this rank rejected the version?
    #[doc(hidden)]
    pub fn is_rejected(&self) -> bool {
        self.rejection.is_some()
    }

    /// The reason for which the program rejects the version, if it does.
    pub(crate) fn rejection(&self) -> Option<&str> {
        self.rejection.as_deref()
    }

    /// The checkpoint that is being restored.
    #[doc(hidden)]
    pub fn key(&self) -> CheckpointKey {
        self.key
    }

    /// The generation of the run that took it.
    pub fn generation(&self) -> u64 {
        self.key.generation.0
    }

    /// Loads a region into `target`, which must have its element type and length.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, t: &mut [f64]) -> bivouac::Result<()> {
    /// session.begin_restore("heat").run(|r| Ok(r.load("temperature", t)?))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// On the tier that holds the copy.
    ///
    /// # Errors
    /// [`LoadError::Missing`] and [`LoadError::Mismatch`] leave `target` untouched, and other regions can still be loaded. After
    /// [`LoadError::NoCopy`], the content of `target` is unspecified: return the error from the closure.
    pub fn load<T: Element>(&mut self, name: &str, target: &mut [T]) -> Result<(), LoadError> {
        self.load_bytes(name, T::TYPE, bytemuck::cast_slice_mut(target))
    }

    /// Loads a region as [`Attempt::load`] does, with elements of a type that is known only at run time.
    #[doc(hidden)]
    pub fn load_bytes(&mut self, name: &str, element: ElementType, target: &mut [u8]) -> Result<(), LoadError> {
        let region = self.find_array(name, element, target.len() as u64)?;
        if let Some(placement) = &self.placement {
            placement.before_load(name, target);
        }
        self.load_with(&region, |source, region| Ok(source.read_region(region, target)?))
    }

    /// Loads a region into device memory of exactly its length, whether it was saved from host or device memory. Its blocks are checked on
    /// the device.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, t: &bivouac::device::DeviceSpan, stream: &dyn bivouac::device::Stream)
    /// # -> bivouac::Result<()> {
    /// session.begin_restore("heat").run(|r| Ok(r.load_device::<f64>("temperature", t, stream)?))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// For the work that is enqueued on the stream, for the tier that holds the copy, and for the transfer and the check. When this
    /// returns, the region is complete for work on any stream.
    ///
    /// # Errors
    /// The errors of [`Attempt::load`], and [`LoadError::Device`] if the device fails. Another copy or an older checkpoint would not
    /// help, but the region can still be loaded into host memory.
    pub fn load_device<T: Element>(
        &mut self,
        name: &str,
        target: &DeviceSpan,
        stream: &dyn Stream,
    ) -> Result<(), LoadError> {
        self.load_span(name, T::TYPE, target, stream)
    }

    /// Loads several regions into device memory. Each span must have exactly the length of its region. If the regions are in node memory,
    /// thousands of small ones are transferred together.
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, fields: &[(&str, bivouac::device::DeviceSpan)], stream: &dyn bivouac::device::Stream)
    /// # -> bivouac::Result<()> {
    /// session.begin_restore("heat").run(|r| Ok(r.load_devices::<f64>(fields, stream)?))?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// See [`Attempt::load_device`].
    ///
    /// # Errors
    /// The errors of [`Attempt::load_device`], for the first region that cannot be loaded.
    pub fn load_devices<T: Element>(
        &mut self,
        regions: &[(&str, DeviceSpan)],
        stream: &dyn Stream,
    ) -> Result<(), LoadError> {
        let typed = regions.iter().map(|(name, target)| (*name, T::TYPE, target.clone()));
        self.load_spans(&typed.collect::<Vec<_>>(), stream)
    }

    /// Loads a region as [`Attempt::load_device`] does, with elements of a type that is known only at run time.
    #[doc(hidden)]
    pub fn load_span(
        &mut self,
        name: &str,
        element: ElementType,
        target: &DeviceSpan,
        stream: &dyn Stream,
    ) -> Result<(), LoadError> {
        self.load_spans(&[(name, element, target.clone())], stream)
    }

    /// Loads regions as [`Attempt::load_devices`] does, with elements of types that are known only at run time.
    #[doc(hidden)]
    pub fn load_spans(
        &mut self,
        regions: &[(&str, ElementType, DeviceSpan)],
        stream: &dyn Stream,
    ) -> Result<(), LoadError> {
        if regions.is_empty() {
            return Ok(());
        }
        let (mut found, mut guess) = (Vec::with_capacity(regions.len()), 0);
        // There may be thousands of regions, so none is copied.
        let head = self.source("the region table")?.shared_head();
        for (name, element, target) in regions {
            let region = head.region_near(&mut guess, name).ok_or_else(|| self.missing(&head, name))?;
            self.check_array(region, *element, target.bytes())?;
            found.push((region, target.clone()));
        }
        let bytes = found.iter().map(|(region, _)| region.bytes).sum();
        let regions = found.iter().map(|(region, _)| *region);
        self.own()?.load_all(regions, |source| source.upload_regions(&found, stream).map(|()| bytes))
    }

    /// Loads a region of any length.
    ///
    /// # Errors
    /// See [`Attempt::load`].
    pub fn load_vec<T: Element>(&mut self, name: &str) -> Result<Vec<T>, LoadError> {
        let region = self.find(name)?;
        let length = region.bytes / (size_of::<T>() as u64).max(1);
        let mut target = zeroed::<T>(length).map_err(|_| self.no_memory(name, region.bytes))?;
        self.load(name, &mut target)?;
        Ok(target)
    }

    /// Loads a small value.
    ///
    /// # Errors
    /// The errors of [`Attempt::load`], and [`LoadError::Value`] if the value has another type.
    pub fn value<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, LoadError> {
        let region = self.find(name)?;
        if region.kind != RegionKind::Value {
            return Err(self.mismatch(&region, "a value".into()));
        }
        // No value is longer, and a forged region table may claim any length.
        let length = Some(region.bytes).filter(|bytes| *bytes <= codec::LIMIT as u64);
        let bytes = length.and_then(|length| zeroed::<u8>(length).ok());
        let mut bytes = bytes.ok_or_else(|| self.no_memory(name, region.bytes))?;
        self.load_with(&region, |source, region| Ok(source.read_region(region, &mut bytes)?))?;
        let rank = self.rank;
        region::decode_value(name, &bytes).map_err(|source| LoadError::Value { rank, source })
    }

    /// Appends to `history` all versions that were saved under its name
    /// ([`CheckpointBuilder::save_history`](crate::CheckpointBuilder::save_history)), in ascending order, and returns their number. Give
    /// hints beforehand, and make a new history for every attempt:
    ///
    /// ```no_run
    /// # fn f(session: &bivouac::Session, caches: &bivouac::Caches) -> bivouac::Result<()> {
    /// let mut history = None;
    /// session.begin_restore("adjoint").run(|r| {
    ///     let loaded = caches.history("wavefield", bivouac::history::Keep::UntilRead);
    ///     loaded.hint((0..r.value("step")?).rev());
    ///     r.load_history(&loaded)?;
    ///     history = Some(loaded);
    ///     Ok(())
    /// })?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// On the tier that holds the copy, and as [`History::append`] does. The call uses as much host memory as the largest version needs.
    ///
    /// # Errors
    /// The errors of [`Attempt::load`]; [`LoadError::Missing`] if no history of this name was saved; [`LoadError::History`] if `history`
    /// does not take a version, usually because it already has one with that number. It then has some of the versions: drop it.
    pub fn load_history(&mut self, history: &History) -> Result<u64, LoadError> {
        let (rank, key) = (self.rank, self.key);
        let refused = |error| LoadError::History { rank, key, source: Box::new(error) };
        let index: Index = self.value(&index_name(history.name()))?;
        let stream = history.stream().map_err(refused)?;
        let mut buffer = Vec::new();
        for (version, names) in &index {
            let find = |name: &String| self.find(&region_name(history.name(), *version, name));
            let regions = names.iter().map(find).collect::<Result<Vec<Region>, LoadError>>()?;
            let bytes = regions.iter().map(|region| region.bytes).sum::<u64>() as usize;
            let more = bytes.saturating_sub(buffer.len());
            buffer.try_reserve_exact(more).map_err(|_| self.no_memory(history.name(), bytes as u64))?;
            buffer.resize(bytes.max(buffer.len()), 0u8);
            let (mut rest, mut fields) = (&mut buffer[..], Vec::new());
            for (region, name) in regions.iter().zip(names) {
                let (target, behind) = rest.split_at_mut(region.bytes as usize);
                self.load_with(region, |source, region| Ok(source.read_region(region, target)?))?;
                fields.push(Field::host_bytes(name, region.element, target));
                rest = behind;
            }
            history.append(*version, &fields, &*stream).map_err(refused)?;
        }
        Ok(index.len() as u64)
    }

    /// Reads a whole undamaged copy. If the copy is in a file, it is kept in memory of its length from `room`, if there is any, so that a
    /// restore need not read the file again ([`Attempt::prefer`]).
    ///
    /// # Errors
    /// [`LoadError::NoCopy`].
    #[doc(hidden)]
    pub fn verify(&mut self, room: impl Fn(u64) -> Option<SlotMut>) -> Result<Option<Source>, LoadError> {
        loop {
            let source = self.source("the whole shard")?;
            let tier = source.tier();
            let own = self.own()?;
            let progress = |bytes| own.add_read(tier, bytes);
            let slot = match &source {
                Source::Memory(_) => None,
                Source::File(shard) => room(shard.head().header.total_len),
            };
            let read = match slot {
                None => source.verify(progress).map(|()| None),
                Some(mut slot) => source.read_regions(slot.as_mut_slice(), progress).map(|()| Some(slot)),
            };
            match read {
                Ok(slot) => {
                    return Ok(slot.map(|slot| Source::Memory(MemoryShard::read_from(&source, Arc::new(slot)))));
                }
                Err(error) => {
                    log::warn!("event=copy-distrusted rank={} {} error={error}", self.rank, self.key);
                    self.own()?.distrust(error.to_string(), tier);
                }
            }
        }
    }

    /// Makes this copy the first to load from; the others follow.
    #[doc(hidden)]
    pub fn prefer(&mut self, copy: Source) {
        if let Ok(own) = self.own() {
            own.prefer(copy);
        }
    }

    /// The checkpoint's entry for a region.
    #[doc(hidden)]
    pub fn describe(&mut self, name: &str) -> Result<Region, LoadError> {
        self.find(name)
    }

    /// The extents of a region.
    ///
    /// # Errors
    /// [`LoadError::Missing`], [`LoadError::NoCopy`].
    pub fn shape(&mut self, name: &str) -> Result<Vec<u64>, LoadError> {
        Ok(self.find(name)?.shape)
    }

    /// Names and element types of all regions, in the order in which they were saved.
    ///
    /// # Errors
    /// [`LoadError::NoCopy`].
    pub fn regions(&mut self) -> Result<Vec<(String, ElementType)>, LoadError> {
        if let Shards::Resized(resized) = &self.shards {
            let regions = resized.outline.regions.iter();
            return Ok(regions.map(|region| (region.name.clone(), region.element)).collect());
        }
        let source = self.source("the region table")?;
        let regions = source.head().meta.regions.iter().filter(|region| !region::is_reserved(&region.name));
        Ok(regions.map(|region| (region.name.clone(), region.element)).collect())
    }

    /// Bytes of shards read so far, by tier.
    pub fn read_bytes(&self) -> PerTier<u64> {
        let mut read = PerTier::default();
        for access in self.accesses() {
            TierId::all().for_each(|tier| read[tier] += access.read()[tier]);
        }
        read
    }

    /// Damaged copies found so far, by tier.
    pub fn damaged(&self) -> PerTier<u64> {
        let mut damaged = PerTier::default();
        for access in self.accesses() {
            TierId::all().for_each(|tier| damaged[tier] += access.damaged()[tier]);
        }
        damaged
    }

    /// The farthest tier from which bytes were read; memory if nothing was read.
    pub fn farthest(&self) -> TierId {
        let read = self.read_bytes();
        TierId::all().rev().find(|tier| read[*tier] > 0).unwrap_or(TierId::MEMORY)
    }

    /// The first damage for which there was no good copy, whether or not the application passed the error on.
    pub fn failure(&self) -> Option<&str> {
        self.accesses().find_map(ShardAccess::failure)
    }

    fn find(&mut self, name: &str) -> Result<Region, LoadError> {
        let source = self.source("the region table")?;
        source.head().region(name).cloned().ok_or_else(|| self.missing(source.head(), name))
    }

    fn missing(&self, head: &Head, name: &str) -> LoadError {
        let names = head.meta.regions.iter().map(|region| region.name.clone());
        let present = names.filter(|name| !region::is_reserved(name)).collect();
        LoadError::Missing { rank: self.rank, key: self.key, region: name.into(), present }
    }

    /// The region with that name, if it is an array of `bytes` bytes with that element type.
    fn find_array(&mut self, name: &str, element: ElementType, bytes: u64) -> Result<Region, LoadError> {
        let region = self.find(name)?;
        self.check_array(&region, element, bytes)?;
        Ok(region)
    }

    /// Checks that the region is an array of `bytes` bytes with that element type.
    fn check_array(&self, region: &Region, element: ElementType, bytes: u64) -> Result<(), LoadError> {
        if region.kind == RegionKind::Array && region.element == element && region.bytes == bytes {
            return Ok(());
        }
        let expected = format!("{} x {element}", bytes / element.bytes().max(1));
        Err(self.mismatch(region, expected))
    }

    fn mismatch(&self, region: &Region, expected: String) -> LoadError {
        let found = match region.kind {
            RegionKind::Value => "a value".into(),
            RegionKind::Array => format!("{} x {}", region.bytes / region.element.bytes().max(1), region.element),
        };
        LoadError::Mismatch { rank: self.rank, key: self.key, region: region.name.clone(), found, expected }
    }

    fn no_memory(&self, region: &str, bytes: u64) -> LoadError {
        LoadError::Memory { rank: self.rank, key: self.key, region: region.into(), bytes }
    }

    /// Reads a region from the nearest undamaged copy.
    fn load_with(
        &mut self,
        region: &Region,
        mut read: impl FnMut(&Source, &Region) -> Result<(), UploadError>,
    ) -> Result<(), LoadError> {
        self.source(&region.name)?;
        self.own()?.load_all(std::iter::once(region), |source| read(source, region).map(|()| region.bytes))
    }

    /// The nearest copy of this rank's shard that is still trusted.
    fn source(&mut self, what: &str) -> Result<Source, LoadError> {
        if let Some(keeper) = self.goes_back_to.take() {
            self.go_back_now(&keeper);
        }
        self.own()?.source(what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::affinity::keeper::Settings;
    use crate::base::Level;
    use crate::base::clock::SystemClock;
    use crate::config::{AffinityConfig, AffinityMode, Direct};
    use crate::format::Manifest;
    use crate::tier::Tier;
    use crate::tier::directory::DirectoryTier;
    use crate::tier::names::Series;
    use crate::tier::posix::PosixStorage;

    /// An attempt on a rank without a copy. The global tier has none for it either, but that shows only when the tier is opened.
    fn without_copies() -> (Attempt, Arc<Keeper>) {
        let settings =
            Settings { mode: AffinityMode::Full, config: AffinityConfig::default(), rank: 3, neighbours: vec![3] };
        let key = CheckpointKey::default();
        let manifest = Manifest {
            job: "job".into(),
            group: "world".into(),
            name: "series".into(),
            key,
            agreement: 1,
            group_size: 4,
            origin: None,
            level: Level::System,
            sources: Vec::new(),
            containers: Vec::new(),
        };
        let storage = Arc::new(PosixStorage::new(Direct::Off));
        let tier: Arc<dyn Tier> = Arc::new(DirectoryTier::new(TierId::GLOBAL, storage, "nowhere".into()));
        let series = Series { job: "job".into(), group: "world".into(), name: "series".into() };
        let clock = Arc::new(SystemClock::default());
        let copies = Copies { own: Vec::new(), peers: None, shared: vec![(tier, manifest)], tiers: Vec::new() };
        let restorer = Attempt::new(4, &Attempted { rank: Rank(3), clock, key, series }, copies);
        (restorer, Arc::new(Keeper::new(settings)))
    }

    #[test]
    fn a_missing_region_is_told_with_some_of_those_that_are_there() {
        let missing = |region: &str, count: usize| LoadError::Missing {
            rank: Rank(3),
            key: CheckpointKey::default(),
            region: region.into(),
            present: (0..count).map(|at| format!("r{at}")).collect(),
        };
        let few = missing("t", 2).to_string();
        assert!(few.ends_with("has no region \"t\"; it has: r0, r1"), "{few}");
        let many = missing(&"x".repeat(5000), 100).to_string();
        assert!(many.ends_with("; it has: r0, r1, r2, r3, r4, r5, r6, r7, r8, r9, and 90 more"), "{many}");
        assert!(many.contains("(4940 more characters)") && many.len() < 400, "{many}");
    }

    #[test]
    fn a_rank_that_loads_nothing_opens_nothing_to_go_back() {
        let (mut restorer, keeper) = without_copies();
        restorer.go_back(&keeper);
        assert_eq!((restorer.damaged(), restorer.failure()), (PerTier::default(), None));
        let error = restorer.load::<u8>("u", &mut [0]).expect_err("no copy");
        assert!(matches!(&error, LoadError::NoCopy { causes, .. } if causes.len() == 1), "{error}");
        assert_eq!(restorer.damaged()[TierId::GLOBAL], 1, "now it was looked for, once");
        assert_eq!(restorer.failure(), Some(&*error.to_string()));
    }
}
