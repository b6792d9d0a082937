//! Loading histories whose fields are parts of arrays.

use super::super::load_error::LoadError;
use super::Attempt;
use crate::decomposition::Decomposition;
use crate::format::ElementType;
use crate::tier::storage::zeroed;
use crate::transfer::history::{Field, History, Index, index_name, region_name};
use std::collections::BTreeMap;

impl Attempt {
    /// Loads a history whose fields are parts of arrays
    /// ([`CheckpointBuilder::save_history_on`](crate::CheckpointBuilder::save_history_on)), version by version, on any number of ranks.
    /// `on` gives the name of each field and the decomposition on which it lies now. A field receives the elements that this rank owns,
    /// without ghost cells.
    ///
    /// # Collective
    /// All ranks, unless the checkpoint was taken on the same number of ranks and on the same decompositions.
    ///
    /// # Blocking
    /// See [`Attempt::load_on`] and [`History::append`]. The call uses as much host memory as the largest version needs.
    ///
    /// # Errors
    /// The errors of [`Attempt::load_on`] and [`Attempt::load_history`], and [`LoadError::Decomposition`] if a field is not named.
    pub fn load_history_on(&mut self, history: &History, on: &[(&str, &Decomposition)]) -> Result<u64, LoadError> {
        let (rank, key) = (self.rank, self.key);
        let refused = |error| LoadError::History { rank, key, source: Box::new(error) };
        let index: Index = self.shared(&index_name(history.name()))?;
        let elements: BTreeMap<String, ElementType> = self.regions()?.into_iter().collect();
        let bare = |(name, on): &(&str, &Decomposition)| ((*name).to_owned(), on.without_margins());
        let on: BTreeMap<String, Decomposition> = on.iter().map(bare).collect();
        let stream = history.stream().map_err(refused)?;
        for (version, names) in &index {
            let mut loaded = Vec::new();
            for name in names {
                let region = region_name(history.name(), *version, name);
                let unnamed = || "is a field for which no decomposition was given".to_owned();
                let on = on.get(name).ok_or_else(|| LoadError::Decomposition {
                    rank,
                    key,
                    region: region.clone(),
                    found: unnamed(),
                })?;
                let element = *elements.get(&region).ok_or_else(|| LoadError::Missing {
                    rank,
                    key,
                    region: region.clone(),
                    present: elements.keys().cloned().collect(),
                })?;
                let bytes = on.elements().saturating_mul(element.bytes());
                let mut memory: Vec<u8> = zeroed(bytes).map_err(|_| self.no_memory(&region, bytes))?;
                let (mut rest, mut boxes) = (&mut memory[..], Vec::new());
                for own in on.own().parts().own() {
                    let (target, behind) = rest.split_at_mut((own.volume() * element.bytes()) as usize);
                    boxes.push(target);
                    rest = behind;
                }
                self.load_typed_on(&region, on, element, boxes)?;
                loaded.push((element, memory));
            }
            let fields = names.iter().zip(&loaded);
            let fields: Vec<Field<'_>> =
                fields.map(|(name, (element, memory))| Field::host_bytes(name, *element, memory)).collect();
            history.append(*version, &fields, &*stream).map_err(refused)?;
        }
        Ok(index.len() as u64)
    }
}
