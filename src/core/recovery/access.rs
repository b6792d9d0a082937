//! The copies of one shard: the nearest undamaged copy is read, and a damaged one is given up.

use super::load_error::LoadError;
use super::remote::Peers;
use crate::base::log;
use crate::base::{CheckpointKey, Clock, Rank};
use crate::decomposition::Record;
use crate::device::DeviceError;
use crate::format::{Manifest, Region};
use crate::tier::names::Series;
use crate::tier::source::{Source, UploadError};
use crate::tier::{PerTier, Tier, TierError, TierId, mend, open_or_mend, patiently};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a shard is found.
pub struct Copies {
    /// Copies that this rank can read itself, nearest first.
    pub own: Vec<Source>,
    /// Copies that other nodes have.
    pub peers: Option<Peers>,
    /// Copies on tiers that all nodes share, nearest first.
    pub shared: Vec<(Arc<dyn Tier>, Manifest)>,
    /// All tiers in use, to find what files refer to.
    pub tiers: Vec<Arc<dyn Tier>>,
}

/// The properties that are the same for all shards of an attempt.
#[derive(Clone)]
pub struct Attempted {
    /// This rank, which reads.
    pub rank: Rank,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The checkpoint.
    pub key: CheckpointKey,
    /// Its series.
    pub series: Series,
}

/// The part of one shard of a checkpoint that this rank can read.
pub struct ShardAccess {
    /// The rank whose shard it is.
    shard: Rank,
    rank: Rank,
    clock: Arc<dyn Clock>,
    key: CheckpointKey,
    series: Series,
    /// Copies that are still trusted, nearest first.
    sources: Vec<Source>,
    /// Copies on other nodes, until they have been opened.
    peers: Option<Peers>,
    /// The tiers that all nodes share, nearest first, until they have been opened.
    shared: VecDeque<(Arc<dyn Tier>, Manifest)>,
    /// All tiers in use, to find other copies of what files refer to.
    tiers: Vec<Arc<dyn Tier>>,
    /// Files that have already been mended with such copies.
    mended: Vec<PathBuf>,
    causes: Vec<String>,
    failure: Option<String>,
    read: PerTier<u64>,
    damaged: PerTier<u64>,
    /// How its regions are spread over the ranks, once somebody has asked.
    record: Option<Arc<Record>>,
}

impl ShardAccess {
    /// Access to the shard of rank `shard` through these copies.
    pub fn new(shard: Rank, of: &Attempted, copies: Copies) -> ShardAccess {
        let Copies { own: sources, peers, shared, tiers } = copies;
        let Attempted { rank, clock, key, series } = of.clone();
        ShardAccess {
            shard,
            rank,
            clock,
            key,
            series,
            sources,
            peers,
            shared: shared.into(),
            tiers,
            mended: Vec::new(),
            causes: Vec::new(),
            failure: None,
            read: PerTier::default(),
            damaged: PerTier::default(),
            record: None,
        }
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The rank whose shard it is.
    pub fn shard(&self) -> Rank {
        self.shard
    }

    /// What the shard records about its decompositions. It is read only once.
    ///
    /// # Errors
    /// [`LoadError::NoCopy`].
    pub fn shared_record(&mut self) -> Result<Arc<Record>, LoadError> {
        if let Some(record) = &self.record {
            return Ok(record.clone());
        }
        let record = Arc::new(self.record()?);
        Ok(self.record.insert(record).clone())
    }

    /// Bytes read per tier so far.
    pub fn read(&self) -> PerTier<u64> {
        self.read
    }

    /// Adds bytes that were read from a copy on that tier.
    pub fn add_read(&mut self, tier: TierId, bytes: u64) {
        self.read[tier] += bytes;
    }

    /// Damaged copies found per tier so far.
    pub fn damaged(&self) -> PerTier<u64> {
        self.damaged
    }

    /// The first damage that no copy could make good.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Forgets a failure that did not matter.
    pub fn forgive(&mut self) {
        self.failure = None;
    }

    /// Does the shard have an open copy?
    pub fn is_open(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Makes this copy the first to read from; the others follow.
    pub fn prefer(&mut self, copy: Source) {
        self.sources.insert(0, copy);
    }

    /// Reads regions from the nearest undamaged copy. `read` reads from a copy, and says how many bytes it has read.
    ///
    /// # Errors
    /// [`LoadError::NoCopy`]; [`LoadError::Device`] if the device is at fault, and not a copy.
    pub fn load_all<'a>(
        &mut self,
        regions: impl Iterator<Item = &'a Region> + Clone,
        mut read: impl FnMut(&Source) -> Result<u64, UploadError>,
    ) -> Result<(), LoadError> {
        let Some(first) = regions.clone().next() else { return Ok(()) };
        loop {
            let source = self.source(&first.name)?;
            let tier = source.tier();
            // All copies of a checkpoint have the same region table. A different table is damage that its checksum
            // missed. It must not be used for reading, because its offsets may point anywhere.
            let mut guess = 0;
            if regions.clone().any(|region| source.head().region_near(&mut guess, &region.name) != Some(region)) {
                self.distrust(format!("{tier} tier: its region table differs from other copies"), tier);
                continue;
            }
            match read(&source) {
                Ok(bytes) => {
                    self.read[tier] += bytes;
                    return Ok(());
                }
                Err(UploadError::Tier(error)) => {
                    log::warn!("event=copy-distrusted rank={} {} error={error}", self.rank, self.key);
                    self.distrust(error.to_string(), tier);
                }
                Err(UploadError::Device(source)) => {
                    let (rank, key, more) = (self.rank, self.key, regions.count() - 1);
                    let mut what = format!("region {:?}", first.name);
                    if more > 0 {
                        what += &format!(" (or one of {more} more that were loaded with it)");
                    }
                    return Err(LoadError::Device { rank, key, what, source });
                }
            }
        }
    }

    /// Drops the nearest copy. If the damage is in a file that the copy refers to, and another tier has a good copy of that file, the
    /// mended copy takes its place.
    pub fn distrust(&mut self, cause: String, tier: TierId) {
        self.damaged[tier] += 1;
        self.causes.push(cause);
        let Source::File(shard) = self.sources.remove(0) else { return };
        let path = shard.path().to_owned();
        if shard.sources().is_empty() || self.mended.contains(&path) {
            return;
        }
        self.mended.push(path.clone());
        let own = self.tiers.iter().find(|other| other.kind() == tier);
        match own.map(|own| mend(&**own, &self.tiers, &path, self.shard)) {
            Some(Ok(Some(mended))) => {
                log::warn!("event=source-replaced rank={} {} path={}", self.rank, self.key, path.display());
                self.sources.insert(0, Source::File(mended));
            }
            Some(Err(error)) => self.causes.push(error.to_string()),
            Some(Ok(None)) | None => {}
        }
    }

    /// The nearest copy that is still trusted; opens farther ones when they are needed.
    ///
    /// # Errors
    /// [`LoadError::NoCopy`].
    pub fn source(&mut self, what: &str) -> Result<Source, LoadError> {
        while self.sources.is_empty()
            && let Some(opened) = self.peers.as_mut().and_then(Peers::open_next)
        {
            match opened {
                Ok(source) => self.sources.push(source),
                Err(cause) => {
                    log::warn!("event=peers-unusable rank={} {} error={cause}", self.rank, self.key);
                    self.damaged[TierId::PEERS] += 1;
                    self.causes.push(cause);
                }
            }
        }
        while self.sources.is_empty()
            && let Some((tier, manifest)) = self.shared.pop_front()
        {
            match self.open_shared(&*tier, &manifest) {
                Ok(source) => self.sources.push(source),
                Err(cause) => {
                    self.damaged[tier.kind()] += 1;
                    self.causes.push(cause);
                }
            }
        }
        self.sources.first().cloned().ok_or_else(|| {
            let causes = self.causes.clone();
            let what = match self.shard == self.rank {
                true => what.to_owned(),
                false => format!("{what} in the shard of rank {}", self.shard),
            };
            let error = LoadError::NoCopy { rank: self.rank, key: self.key, what, causes };
            self.failure.get_or_insert(error.to_string());
            error
        })
    }

    /// The error for a region that the shard does not have.
    pub fn missing(&self, region: &str) -> LoadError {
        LoadError::Missing { rank: self.rank, key: self.key, region: region.into(), present: Vec::new() }
    }

    /// The error for a region that is laid out differently in this shard, although the layout should be the same in all shards.
    pub fn lies_otherwise(&self, region: &str) -> LoadError {
        let found = format!("is laid out differently in the shard of rank {} than in others", self.shard);
        LoadError::Decomposition { rank: self.rank, key: self.key, region: region.into(), found }
    }

    /// The error of a device that did not take a region of the shard.
    pub fn failed_device(&self, region: &str, source: DeviceError) -> LoadError {
        LoadError::Device { rank: self.rank, key: self.key, what: format!("region {region:?}"), source }
    }

    /// The error for a region of the shard for which there is no memory.
    pub fn no_memory(&self, region: &str, bytes: u64) -> LoadError {
        LoadError::Memory { rank: self.rank, key: self.key, region: region.into(), bytes }
    }

    /// Opens the copy on a tier that all nodes share.
    fn open_shared(&self, tier: &dyn Tier, manifest: &Manifest) -> Result<Source, String> {
        let kind = tier.kind();
        let lacking = || format!("{kind} tier: the manifest does not name its rank");
        let container = manifest.container_of(self.shard).ok_or_else(lacking)?;
        let folder = self.key.folder();
        let open = || open_or_mend(tier, &self.tiers, &self.series, &folder, &container.file, self.shard);
        let shard = patiently(open, |pause| self.clock.sleep(pause)).map_err(|error: TierError| error.to_string())?;
        if shard.head().header.agreement != manifest.agreement {
            return Err(format!("{kind} tier: the shard in {} belongs to another agreement", container.file));
        }
        Ok(Source::File(shard))
    }
}
