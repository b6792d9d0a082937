//! Decides which regions a call concerns. Pure.
#![forbid(unsafe_code)]

use super::names;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::c_int;

/// The selection of regions that a call concerns. These are VELOC's modes, with the same numbers for
/// checkpoints and restarts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    /// All regions.
    All,
    /// The listed regions.
    Some,
    /// All regions except the listed ones.
    Rest,
}

impl Mode {
    /// Finds the mode with a number.
    pub(super) fn of(number: c_int) -> Result<Mode, String> {
        match number {
            0 => Ok(Mode::All),
            1 => Ok(Mode::Some),
            2 => Ok(Mode::Rest),
            _ => Err(format!("there is no mode {number}: 0 selects all regions, 1 the listed ones, 2 the rest")),
        }
    }
}

/// The names that a mode and its numbers choose from `all`. A number selects its region in any group.
fn chosen(mode: Mode, ids: &[c_int], all: &BTreeMap<String, u64>, what: &str) -> Result<Vec<String>, String> {
    let id_of = |name: &str| names::parse_region(name).map(|(_, id)| id);
    if mode != Mode::All {
        let known: BTreeSet<c_int> = all.keys().filter_map(|name| id_of(name)).collect();
        if let Some(unknown) = ids.iter().find(|id| !known.contains(id)) {
            return Err(format!("region {unknown} is not {what}"));
        }
    }
    let is_meant = |name: &&String| match mode {
        Mode::All => true,
        Mode::Some => id_of(name).is_some_and(|id| ids.contains(&id)),
        Mode::Rest => id_of(name).is_some_and(|id| !ids.contains(&id)),
    };
    Ok(all.keys().filter(is_meant).cloned().collect())
}

/// The protected regions that are to be saved.
///
/// # Errors
/// A listed number is not protected.
pub(super) fn saved(mode: Mode, ids: &[c_int], protected: &BTreeMap<String, u64>) -> Result<Vec<String>, String> {
    chosen(mode, ids, protected, "protected")
}

/// The stored regions that are to be loaded, with their stored lengths in bytes, into protected regions
/// that are at least as long.
///
/// # Errors
/// A listed number is not stored, or a stored region has no protected region or one that is too small.
pub(super) fn loaded(
    mode: Mode,
    ids: &[c_int],
    stored: &BTreeMap<String, u64>,
    protected: &BTreeMap<String, u64>,
) -> Result<Vec<(String, u64)>, String> {
    let names = chosen(mode, ids, stored, "in the checkpoint")?;
    let fit = |name: String| match (stored[&name], protected.get(&name)) {
        (_, None) => Err(format!("region {name} is in the checkpoint but not protected: call VELOC_Mem_protect first")),
        (bytes, Some(room)) if *room < bytes => {
            Err(format!("region {name} has {bytes} bytes in the checkpoint, but only {room} are protected"))
        }
        (bytes, Some(_)) => Ok((name, bytes)),
    };
    names.into_iter().map(fit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(entries: &[(&str, u64)]) -> BTreeMap<String, u64> {
        entries.iter().map(|(name, bytes)| ((*name).to_owned(), *bytes)).collect()
    }

    #[test]
    fn modes_choose_by_number_in_every_group() {
        let protected = table(&[("#1", 8), ("#2", 8), ("heat#2", 16)]);
        let of = |mode, ids: &[c_int]| saved(Mode::of(mode).unwrap(), ids, &protected);
        assert_eq!(of(0, &[99]).unwrap(), ["#1", "#2", "heat#2"], "what is listed with ALL is not looked at");
        assert_eq!(of(1, &[2]).unwrap(), ["#2", "heat#2"]);
        assert_eq!(of(2, &[2]).unwrap(), ["#1"]);
        assert_eq!((of(1, &[]).unwrap().len(), of(2, &[]).unwrap().len()), (0, 3));
        assert!(of(1, &[1, 3]).is_err() && of(2, &[3]).is_err() && Mode::of(3).is_err() && Mode::of(-1).is_err());
    }

    #[test]
    fn what_is_stored_needs_a_place_and_a_larger_one_will_do() {
        let stored = table(&[("#1", 8), ("#2", 0)]);
        let protected = table(&[("#1", 100), ("#2", 0), ("#9", 1)]);
        let all = loaded(Mode::All, &[], &stored, &protected).unwrap();
        assert_eq!(all, [("#1".to_owned(), 8), ("#2".to_owned(), 0)], "9 was not saved and stays as it is");
        assert!(loaded(Mode::All, &[], &stored, &table(&[("#1", 8)])).is_err());
        assert!(loaded(Mode::Some, &[1], &stored, &table(&[("#1", 8)])).is_ok());
        assert!(loaded(Mode::Rest, &[2], &stored, &table(&[("#1", 7)])).is_err());
        assert!(loaded(Mode::Some, &[9], &stored, &protected).is_err());
    }
}
