//! The copies of one shard: the nearest that is right is read, and one that is not is given up.

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
    /// Those that this rank can read itself, nearest first.
    pub own: Vec<Source>,
    /// Those that other nodes have.
    pub peers: Option<Peers>,
    /// Those on tiers that all nodes share, nearest first.
    pub shared: Vec<(Arc<dyn Tier>, Manifest)>,
    /// All tiers in use, for what files refer to.
    pub tiers: Vec<Arc<dyn Tier>>,
}

/// What does not change from shard to shard of an attempt.
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
    /// Whose it is.
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
    /// All tiers in use, for other copies of what files refer to.
    tiers: Vec<Arc<dyn Tier>>,
    /// Files that were joined with such copies already.
    mended: Vec<PathBuf>,
    causes: Vec<String>,
    failure: Option<String>,
    read: PerTier<u64>,
    damaged: PerTier<u64>,
    /// How its regions are spread over the ranks, once somebody has asked.
    record: Option<Arc<Record>>,
}

impl ShardAccess {
    /// The shard of `shard`, over the copies that there are.
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

    /// Whose shard it is.
    pub fn shard(&self) -> Rank {
        self.shard
    }

    /// What it records of its decompositions, read once.
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

    /// Bytes were read of a copy on that tier.
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

    /// Has it a copy that is open?
    pub fn is_open(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Reads from this copy first; the others follow.
    pub fn prefer(&mut self, copy: Source) {
        self.sources.insert(0, copy);
    }

    /// Reads of regions from the nearest copy that is right; `read` says how many bytes it has read.
    ///
    /// # Errors
    /// [`LoadError::NoCopy`]; [`LoadError::Device`] if it is not the fault of a copy.
    pub fn load_all<'a>(
        &mut self,
        regions: impl Iterator<Item = &'a Region> + Clone,
        mut read: impl FnMut(&Source) -> Result<u64, UploadError>,
    ) -> Result<(), LoadError> {
        let Some(first) = regions.clone().next() else { return Ok(()) };
        loop {
            let source = self.source(&first.name)?;
            let tier = source.tier();
            // Copies of one checkpoint have one region table; another one is damage that its checksum missed, and it
            // must not be read by: its offsets may lie anywhere.
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

    /// Drops the nearest copy; where the damage is in a file that it refers to, a good copy of that on another tier takes its place.
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

    /// It has no such value.
    pub fn missing(&self, region: &str) -> LoadError {
        LoadError::Missing { rank: self.rank, key: self.key, region: region.into(), present: Vec::new() }
    }

    /// It lies otherwise here than elsewhere, though it is said to lie alike.
    pub fn lies_otherwise(&self, region: &str) -> LoadError {
        let found = format!("is laid out differently in the shard of rank {} than in others", self.shard);
        LoadError::Decomposition { rank: self.rank, key: self.key, region: region.into(), found }
    }

    /// A device did not take what it holds.
    pub fn failed_device(&self, region: &str, source: DeviceError) -> LoadError {
        LoadError::Device { rank: self.rank, key: self.key, what: format!("region {region:?}"), source }
    }

    /// There is no memory for what it holds.
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
