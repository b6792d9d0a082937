//! The content of a checkpoint that a different number of ranks took: what all ranks are told about it before any of them loads.
//!
//! The root reads it from one shard, because the names and rules of regions and the identities of decompositions are the same in all
//! shards.

use super::access::ShardAccess;
use super::load_error::LoadError;
use crate::base::log;
use crate::decomposition::ids::{self, Listed};
use crate::decomposition::record::binds;
use crate::decomposition::{Identity, Own, Parts, Record, Rule};
use crate::format::{ElementType, Region, RegionKind};
use crate::region;
use crate::tier::source::Source;
use crate::tier::storage::zeroed;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The maximum length of a record, which is that of a rank with as many boxes as possible.
const RECORD_MAX: u64 = 1 << 30;

/// The properties of a region that are the same in all shards.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outlined {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: RegionKind,
    /// The type of its elements.
    pub element: ElementType,
    /// How it is spread over the ranks; `None`: it belongs to the rank that saved it.
    pub rule: Option<Rule>,
}

/// The properties of a decomposition that are the same in all shards.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OutlinedDecomposition {
    /// What distinguishes it from others.
    pub identity: Identity,
    /// The extents of its array.
    pub shape: Vec<u64>,
    /// The parts of all ranks together need not cover the array.
    pub is_sparse: bool,
    /// Its elements are numbered, and each rank has a list of numbers.
    pub is_listed: bool,
}

impl OutlinedDecomposition {
    /// The decomposition on which the region at this place in a shard lies.
    pub fn of_region(record: &Record, place: usize) -> Option<OutlinedDecomposition> {
        let boxes = record.of_region(place).map(OutlinedDecomposition::of_boxes);
        boxes.or_else(|| record.list_of(place).map(|(_, list)| OutlinedDecomposition::of_list(list)))
    }

    /// The decomposition of which one rank has these parts.
    fn of_boxes((identity, parts): &(Identity, Parts)) -> OutlinedDecomposition {
        let (shape, is_sparse) = (parts.shape().to_vec(), parts.is_sparse());
        OutlinedDecomposition { identity: *identity, shape, is_sparse, is_listed: false }
    }

    /// The decomposition of which one rank has this list.
    fn of_list((identity, list): &(Identity, Listed)) -> OutlinedDecomposition {
        let shape = vec![list.total];
        OutlinedDecomposition { identity: *identity, shape, is_sparse: list.is_sparse, is_listed: true }
    }
}

/// The content of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Outline {
    /// The regions of the application, in order.
    pub regions: Vec<Outlined>,
    /// The decompositions on which these regions lie.
    pub decompositions: Vec<OutlinedDecomposition>,
    /// The decompositions that are lists of numbers.
    pub lists: Vec<OutlinedDecomposition>,
}

impl Outline {
    /// The outline of a shard.
    pub fn of(regions: &[Region], record: &Record) -> Outline {
        let named = regions.iter().enumerate().filter(|(_, region)| !region::is_reserved(&region.name));
        let regions = named.map(|(place, region)| Outlined {
            name: region.name.clone(),
            kind: region.kind,
            element: region.element,
            rule: record.rules.get(&place).copied(),
        });
        let decompositions = record.decompositions.iter().map(OutlinedDecomposition::of_boxes);
        let lists = record.lists.iter().map(OutlinedDecomposition::of_list);
        Outline { regions: regions.collect(), decompositions: decompositions.collect(), lists: lists.collect() }
    }

    /// The regions because of which the checkpoint can be restored only on the number of ranks that took it.
    pub fn bound(&self) -> Vec<String> {
        self.regions.iter().filter(|region| binds(region.rule.as_ref())).map(|region| region.name.clone()).collect()
    }

    /// The region of that name.
    pub fn region(&self, name: &str) -> Option<&Outlined> {
        self.regions.iter().find(|region| region.name == name)
    }

    /// The decomposition on which a region lies.
    pub fn of_region(&self, region: &Outlined) -> Option<&OutlinedDecomposition> {
        match region.rule {
            Some(Rule::On(of)) => self.decompositions.get(of),
            Some(Rule::Numbered(of)) => self.lists.get(of),
            Some(Rule::Shared | Rule::PerRank(_) | Rule::Rows { .. }) | None => None,
        }
    }
}

/// A region of a shard that lies on a decomposition, or is a column of rows.
pub struct Dealt {
    /// The copy to read it from.
    pub source: Source,
    /// The region.
    pub region: Region,
    record: Arc<Record>,
    place: usize,
    /// The elements of a list, or the rows of a column, as an array of this shard alone.
    line: Option<(Identity, Parts)>,
}

impl Dealt {
    /// The parts of the region that the shard has, and the identity of their decomposition. The elements of a list form a separate array,
    /// and so do the rows of a column, which belongs to no decomposition.
    pub fn parts(&self) -> (Identity, &Parts) {
        if let Some((identity, line)) = &self.line {
            return (*identity, line);
        }
        let (identity, parts) = self.record.of_region(self.place).expect("it was looked for when this was made");
        (*identity, parts)
    }

    /// The list of the elements that the shard has, and the region that contains the list.
    pub fn list(&self) -> Option<(Listed, Region)> {
        let (of, (_, list)) = self.record.list_of(self.place)?;
        Some((*list, self.source.head().region(&ids::region_name(of))?.clone()))
    }
}

impl ShardAccess {
    /// What the shard records about its decompositions; an empty record if it records nothing. A copy whose record is impossible is not
    /// trusted.
    ///
    /// # Errors
    /// [`LoadError::NoCopy`].
    pub fn record(&mut self) -> Result<Record, LoadError> {
        loop {
            let source = self.source("the region table")?;
            let Some(region) = source.head().region(region::DECOMPOSITION).cloned() else {
                return Ok(Record::default());
            };
            let length = Some(region.bytes).filter(|bytes| *bytes <= RECORD_MAX);
            let bytes = length.and_then(|length| zeroed::<u8>(length).ok());
            let mut bytes = bytes.ok_or_else(|| self.no_memory(&region.name, region.bytes))?;
            self.load_all(std::iter::once(&region), |source| {
                source.read_region(&region, &mut bytes)?;
                Ok(region.bytes)
            })?;
            // The copy that was read need not be the one that was looked at before.
            let source = self.source("the region table")?;
            let record = Record::decode(&bytes).and_then(|record| {
                record.check(&source.head().meta.regions)?;
                Ok(record)
            });
            match record {
                Ok(record) => return Ok(record),
                Err(error) => {
                    let tier = source.tier();
                    let cause = format!("{tier} tier: {}: {error}", source.path().display());
                    log::warn!("event=copy-distrusted error={cause}");
                    self.distrust(cause, tier);
                }
            }
        }
    }

    /// A region that lies on a decomposition, or is a column of rows: the copy to read it from, what the region table of that copy says
    /// about it, and the record with its place.
    ///
    /// # Errors
    /// [`LoadError::NoCopy`]; [`LoadError::Missing`] if the shard has no such region.
    pub fn dealt(&mut self, name: &str) -> Result<Dealt, LoadError> {
        let record = self.shared_record()?;
        let source = self.source(name)?;
        let place = source.head().meta.regions.iter().position(|region| region.name == name);
        let rows = place.and_then(|place| record.rows_of(place)).map(|(rows, _)| (Identity::default(), rows.count));
        let list = place.and_then(|place| record.list_of(place)).map(|(_, (identity, list))| (*identity, list.count));
        let line = rows.or(list).map(|(identity, count)| (identity, Own::line(count).parts().clone()));
        let is_dealt = |place: &usize| line.is_some() || record.of_region(*place).is_some();
        let place = place.filter(is_dealt).ok_or_else(|| self.missing(name))?;
        let region = source.head().meta.regions[place].clone();
        Ok(Dealt { source, region, record, place, line })
    }

    /// The outline of the shard's checkpoint.
    ///
    /// # Errors
    /// [`LoadError::NoCopy`].
    pub fn outline(&mut self) -> Result<Outline, LoadError> {
        let record = self.record()?;
        let source = self.source("the region table")?;
        Ok(Outline::of(&source.head().meta.regions, &record))
    }

    /// The bytes of a value that other ranks may get.
    ///
    /// # Errors
    /// [`LoadError::NoCopy`]; [`LoadError::Missing`] if there is no such value; [`LoadError::Memory`] if it is too long, or there is no
    /// memory for it.
    pub fn shared_bytes(&mut self, name: &str) -> Result<Vec<u8>, LoadError> {
        let source = self.source(name)?;
        let region = source.head().region(name).filter(|region| region.kind == RegionKind::Value).cloned();
        let region = region.ok_or_else(|| self.missing(name))?;
        let length = Some(region.bytes).filter(|bytes| *bytes <= region::SHARED_MAX as u64);
        let bytes = length.and_then(|length| zeroed::<u8>(length).ok());
        let mut bytes = bytes.ok_or_else(|| self.no_memory(name, region.bytes))?;
        self.load_all(std::iter::once(&region), |source| {
            source.read_region(&region, &mut bytes)?;
            Ok(region.bytes)
        })?;
        Ok(bytes)
    }
}
