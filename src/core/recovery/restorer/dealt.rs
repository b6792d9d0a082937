//! Loading what lies on a decomposition, and what its ranks share.

use super::super::outline::{Outline, OutlinedDecomposition};
use super::super::remade::{Remaking, Target};
use super::Shards;
use super::{LoadError, Restorer};
use crate::coordination::Culprit;
use crate::decomposition::{Decomposition, Identity, Record, Rule};
use crate::format::{ElementType, Region};
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
        let bytes: Vec<&mut [u8]> = memory.iter_mut().map(|memory| bytemuck::cast_slice_mut(memory)).collect();
        self.load_typed_on(name, on, T::TYPE, bytes)
    }

    /// The same for a type that is known at run time only.
    fn load_typed_on(
        &mut self,
        name: &str,
        on: &Decomposition,
        element: ElementType,
        mut memory: Vec<&mut [u8]>,
    ) -> Result<(), LoadError> {
        let (rank, size) = (self.rank, element.bytes());
        let unfit = |source| LoadError::Region { rank, source };
        let elements = memory.iter().map(|memory| memory.len() / size.max(1) as usize);
        let fits = region::check_place(name, on, (rank, self.ranks))
            .and_then(|()| region::check_memory(name, on, elements))
            .map_err(unfit);
        let lies = self.lies_on(name, element)?;
        if lies.identity != on.identity() {
            if lies.shape != on.shape() {
                let found = format!("is of an array of shape {:?}, and not of {:?}", lies.shape, on.shape());
                return Err(LoadError::Decomposition { rank, key: self.key, region: name.into(), found });
            }
            let target = fits.map(|()| Target::new(on, memory, size));
            return self.remake(name, on, element, lies.identity, target);
        }
        fits?;
        let region = self.find(name)?;
        self.check_array(&region, element, on.elements() * size)?;
        if let ([memory], Some(placement)) = (&mut memory[..], &self.placement) {
            placement.before_load(name, memory);
        }
        self.load_with(&region, |source, region| {
            let boxes = memory.iter_mut().enumerate();
            let boxes = boxes.map(|(number, memory)| (&mut **memory, on.own().strides(number, size)));
            Ok(source.read_scattered(region, Unpacked::new(boxes))?)
        })
    }

    /// Loads a region that lies on another decomposition, together with all ranks.
    fn remake(
        &mut self,
        name: &str,
        on: &Decomposition,
        element: ElementType,
        from: Identity,
        target: Result<Target<'_>, LoadError>,
    ) -> Result<(), LoadError> {
        let engine = self.engine.clone().ok_or_else(|| LoadError::Others {
            key: self.key,
            region: name.into(),
            culprits: vec![Culprit::of(self.rank, "it cannot be loaded by all ranks together here")],
        })?;
        let remaking = Remaking { engine: &engine, key: self.key, region: name, element, from, on };
        let shards = match &mut self.shards {
            Shards::Own(own) => std::slice::from_mut(&mut **own),
            Shards::Resized(resized) => &mut resized.homes,
        };
        remaking.load(shards, &mut self.plans, target)
    }

    /// The decomposition that a region of this element type lies on.
    fn lies_on(&mut self, name: &str, element: ElementType) -> Result<OutlinedDecomposition, LoadError> {
        let (rank, key) = (self.rank, self.key);
        let outline = match &self.shards {
            Shards::Resized(resized) => resized.outline.clone(),
            Shards::Own(_) => {
                let record = self.record()?;
                let source = self.source("the region table")?;
                Outline::of(&source.head().meta.regions, &record)
            }
        };
        let found = outline.region(name).ok_or_else(|| {
            let present = outline.regions.iter().map(|region| region.name.clone()).collect();
            LoadError::Missing { rank, key, region: name.into(), present }
        })?;
        let other = |found: String| LoadError::Decomposition { rank, key, region: name.into(), found };
        let plain = || other("was saved without a decomposition: load it with `load` or `value`".to_owned());
        let lies = outline.of_region(found).cloned().ok_or_else(plain)?;
        if found.element != element {
            let (found, expected) = (found.element.to_string(), element.to_string());
            return Err(LoadError::Mismatch { rank, key, region: name.into(), found, expected });
        }
        Ok(lies)
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
        self.source("the region table")?;
        self.own()?.shared_record()
    }
}
