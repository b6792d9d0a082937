//! Loading what lies on a decomposition, and what its ranks share.

use super::{LoadError, Restorer};
use crate::decomposition::{Decomposition, Record, Rule};
use crate::format::Region;
use crate::region::{self, Element, Unpacked};
use serde::de::DeserializeOwned;
use std::sync::Arc;

impl Restorer {
    /// Loads a region into this rank's part of an array, on the decomposition that it was saved on: the memory of its box, with the margin that the
    /// decomposition says. The margin is left as it is.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// On the tier that holds the copy.
    ///
    /// # Errors
    /// As [`Restorer::load`]. [`LoadError::Region`]: the memory has another length than box and margin, or this rank owns several boxes
    /// ([`Restorer::load_boxes_on`] takes those). [`LoadError::Decomposition`]: the region lies on another decomposition, or on none.
    pub fn load_on<T: Element>(&mut self, name: &str, on: &Decomposition, memory: &mut [T]) -> Result<(), LoadError> {
        match on.boxes() {
            0 if memory.is_empty() => self.load_boxes_on::<T>(name, on, &mut []),
            _ => self.load_boxes_on(name, on, &mut [memory]),
        }
    }

    /// The same for a rank that owns any number of boxes: the memory of each, in the order in which they were described.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Blocking
    /// As [`Restorer::load_on`].
    ///
    /// # Errors
    /// As [`Restorer::load_on`].
    pub fn load_boxes_on<T: Element>(
        &mut self,
        name: &str,
        on: &Decomposition,
        memory: &mut [&mut [T]],
    ) -> Result<(), LoadError> {
        let rank = self.rank;
        let unfit = |source| LoadError::Region { rank, source };
        region::check_memory(name, on, memory.iter().map(|memory| memory.len())).map_err(unfit)?;
        region::check_place(name, on, (rank, self.ranks)).map_err(unfit)?;
        let (place, region, record) = self.find_dealt(name)?;
        let wrong = match record.of_region(place) {
            Some((identity, _)) if *identity == on.identity() => None,
            Some((_, parts)) => {
                Some(format!("lies on another decomposition, of an array of shape {:?}", parts.shape()))
            }
            None => Some("was saved without a decomposition: load it with `load` or `value`".to_owned()),
        };
        if let Some(found) = wrong {
            return Err(LoadError::Decomposition { rank, key: self.key, region: name.into(), found });
        }
        self.check_array(&region, T::TYPE, on.elements() * T::TYPE.bytes())?;
        if let ([memory], Some(placement)) = (&mut *memory, &self.placement) {
            placement.before_load(name, bytemuck::cast_slice_mut(memory));
        }
        let size = size_of::<T>() as u64;
        self.load_with(&region, |source, region| {
            let boxes = memory.iter_mut().enumerate();
            let boxes =
                boxes.map(|(number, memory)| (bytemuck::cast_slice_mut(memory), on.own().strides(number, size)));
            Ok(source.read_scattered(region, Unpacked::new(boxes))?)
        })
    }

    /// Loads a small value that all ranks share.
    ///
    /// # Collective
    /// Local.
    ///
    /// # Errors
    /// As [`Restorer::value`]; [`LoadError::Decomposition`] if it was not saved as such a one.
    pub fn shared<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, LoadError> {
        let (place, _, record) = self.find_dealt(name)?;
        if record.rules.get(&place) != Some(&Rule::Shared) {
            let found = "was not saved as one that all ranks share: load it with `value` or `load`".to_owned();
            return Err(LoadError::Decomposition { rank: self.rank, key: self.key, region: name.into(), found });
        }
        self.value(name)
    }

    /// A region, its place, and the record of its shard.
    fn find_dealt(&mut self, name: &str) -> Result<(usize, Region, Arc<Record>), LoadError> {
        let record = self.record()?;
        let source = self.source("the region table")?;
        let head = source.head();
        let place = head.meta.regions.iter().position(|region| region.name == name);
        let place = place.ok_or_else(|| self.missing(head, name))?;
        Ok((place, head.meta.regions[place].clone(), record))
    }

    /// What the shard records of its decompositions.
    fn record(&mut self) -> Result<Arc<Record>, LoadError> {
        if let Some(record) = &self.record {
            return Ok(record.clone());
        }
        self.source("the region table")?;
        let record = self.own()?.record()?;
        Ok(self.record.insert(Arc::new(record)).clone())
    }
}
