//! A shard's record of the decompositions that its regions lie on, and of the rules for other regions on a different number of
//! ranks.
//!
//! It is the body of the region [`DECOMPOSITION`](crate::region::DECOMPOSITION), with its own version number. `docs/FORMAT.md`
//! describes the bytes.

use super::ids::{self, Listed};
use super::rows::{RowSet, names_of};
use super::{Identity, PackedParts, Parts};
use crate::format::{FormatError, Region, RegionKind, numbers};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the bytes.
const VERSION: u8 = 1;
const WHAT: &str = "decomposition record";
/// More regions than a region table of 64 MiB can have.
const REGIONS_MAX: usize = 1 << 21;

/// What happens to a rank's value when a checkpoint is restored on a different number of ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum OnResize {
    /// The checkpoint cannot be restored on a different number of ranks.
    Refuse,
    /// The value is dropped.
    Drop,
    /// Ranks ask for the values of old ranks by the numbers of these ranks.
    Ask,
}

/// How a region is spread over the ranks. A region without a rule belongs to its rank, and binds its checkpoint to the number of ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Rule {
    /// It is the rank's part of an array, on the decomposition at this place of the record.
    On(usize),
    /// It is the same on all ranks.
    Shared,
    /// Each rank has its own.
    PerRank(OnResize),
    /// It is a column of rows. Each rank may have any number of rows, and any rank may get them.
    Rows {
        /// The place of the set of rows in the record.
        set: usize,
        /// The number of elements in each row.
        width: u32,
    },
    /// It is the rank's part of an array of numbered elements, with the list at this place of the record.
    Numbered(usize),
}

/// Does a region with this rule bind its checkpoint to the number of ranks that took it?
pub fn binds(rule: Option<&Rule>) -> bool {
    matches!(rule, None | Some(Rule::PerRank(OnResize::Refuse)))
}

/// The record of one shard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// The decompositions, each with this rank's part.
    pub decompositions: Vec<(Identity, Parts)>,
    /// Rules of regions, by their places in the shard.
    pub rules: BTreeMap<usize, Rule>,
    /// Sets of rows, with the number of rows that this rank has.
    pub rows: Vec<RowSet>,
    /// Lists, without their numbers, which are in regions of their own.
    pub lists: Vec<(Identity, Listed)>,
}

impl Record {
    /// The record as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let packed = self.decompositions.iter().map(|(identity, parts)| {
            let mut bytes = Vec::new();
            parts.put(&mut bytes);
            (*identity, bytes)
        });
        encode(&packed.collect::<Vec<_>>(), &self.rules, (&self.rows, &self.lists))
    }

    /// Decodes a record from bytes.
    ///
    /// # Errors
    /// [`FormatError`] if they are of another version, truncated, or impossible.
    pub fn decode(bytes: &[u8]) -> Result<Record, FormatError> {
        let Taken { decompositions, rules, rows, lists } = decode(bytes, REGIONS_MAX, Parts::take)?;
        Ok(Record { decompositions, rules, rows, lists })
    }

    /// Does it fit the regions of its shard?
    ///
    /// # Errors
    /// [`FormatError`] with the first region that it does not fit.
    pub fn check(&self, regions: &[Region]) -> Result<(), FormatError> {
        let elements = |of: usize| self.decompositions.get(of).map_or(0, |(_, parts)| parts.elements());
        check(&self.rules, (&self.rows, &self.lists), regions, elements)
    }

    /// The decomposition on which the region at this place lies.
    pub fn of_region(&self, place: usize) -> Option<&(Identity, Parts)> {
        match self.rules.get(&place)? {
            Rule::On(of) => self.decompositions.get(*of),
            Rule::Shared | Rule::PerRank(_) | Rule::Rows { .. } | Rule::Numbered(_) => None,
        }
    }

    /// The list of the numbers whose elements the region at this place holds, with the place of the list among the
    /// lists.
    pub fn list_of(&self, place: usize) -> Option<(usize, &(Identity, Listed))> {
        match self.rules.get(&place)? {
            Rule::Numbered(of) => Some((*of, self.lists.get(*of)?)),
            Rule::On(_) | Rule::Shared | Rule::PerRank(_) | Rule::Rows { .. } => None,
        }
    }

    /// The rows of which the region at this place is a column, and the number of elements that each row has in it.
    pub fn rows_of(&self, place: usize) -> Option<(&RowSet, u32)> {
        match self.rules.get(&place)? {
            Rule::Rows { set, width } => Some((self.rows.get(*set)?, *width)),
            Rule::On(_) | Rule::Shared | Rule::PerRank(_) | Rule::Numbered(_) => None,
        }
    }

    /// Does the region at this place bind its checkpoint to the number of ranks that took it?
    pub fn is_bound(&self, place: usize) -> bool {
        binds(self.rules.get(&place))
    }
}

/// A record that is read in place, with the regions of its shard. Whatever its bytes say, it takes memory only in proportion to the
/// table of these regions.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View<'a> {
    /// The decompositions, each with this rank's part.
    pub decompositions: Vec<(Identity, PackedParts<'a>)>,
    /// Rules of regions, by their places in the shard.
    pub rules: BTreeMap<usize, Rule>,
    /// Sets of rows, with the number of rows that this rank has.
    pub rows: Vec<RowSet>,
    /// Lists, without their numbers.
    pub lists: Vec<(Identity, Listed)>,
}

impl View<'_> {
    /// The view of a record in `bytes`, whose shard has these regions.
    ///
    /// # Errors
    /// As for [`Record::decode`] and [`Record::check`]; also if it has more decompositions or rules than there are
    /// regions.
    pub fn of<'a>(bytes: &'a [u8], regions: &[Region]) -> Result<View<'a>, FormatError> {
        let Taken { decompositions, rules, rows, lists } = decode(bytes, regions.len(), PackedParts::take)?;
        let view = View { decompositions, rules, rows, lists };
        let elements = |of: usize| view.decompositions.get(of).map_or(0, |(_, parts)| parts.elements());
        check(&view.rules, (&view.rows, &view.lists), regions, elements)?;
        Ok(view)
    }
}

/// The content of a record.
struct Taken<P> {
    decompositions: Vec<(Identity, P)>,
    rules: BTreeMap<usize, Rule>,
    rows: Vec<RowSet>,
    lists: Vec<(Identity, Listed)>,
}

/// Decodes a record, with at most `most` entries of each kind.
fn decode<'a, P>(
    bytes: &'a [u8],
    most: usize,
    parts: impl Fn(&mut &'a [u8]) -> Option<P>,
) -> Result<Taken<P>, FormatError> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => {
            take(rest, most, parts).ok_or_else(|| FormatError::invalid(WHAT, "it is truncated or invalid"))
        }
        Some((version, _)) => Err(FormatError::invalid(WHAT, format!("version {version}, and {VERSION} is known"))),
        None => Err(FormatError::invalid(WHAT, "it is empty")),
    }
}

fn take<'a, P>(mut bytes: &'a [u8], most: usize, parts: impl Fn(&mut &'a [u8]) -> Option<P>) -> Option<Taken<P>> {
    let rest = &mut bytes;
    let count = |rest: &mut &[u8]| numbers::take(rest).filter(|count| *count <= most as u64);
    let identity = |rest: &mut &[u8]| {
        let (identity, behind) = rest.split_first_chunk()?;
        *rest = behind;
        Some(Identity(u128::from_le_bytes(*identity)))
    };
    let (mut decompositions, mut rules) = (Vec::new(), BTreeMap::new());
    for _ in 0..count(rest)? {
        decompositions.push((identity(rest)?, parts(rest)?));
    }
    let mut next = 0usize;
    for _ in 0..count(rest)? {
        let region = next.checked_add(usize::try_from(numbers::take(rest)?).ok()?)?;
        rules.insert(region, take_rule(rest, decompositions.len())?);
        next = region.checked_add(1)?;
    }
    let (mut rows, mut lists) = (Vec::new(), Vec::new());
    // If there are neither rows nor lists, the counts of both are absent; if there are rows but no lists, the count of
    // lists is absent.
    if !rest.is_empty() {
        for _ in 0..count(rest)? {
            rows.push(RowSet::take(rest)?);
        }
        if !rest.is_empty() || rows.is_empty() {
            for _ in 0..count(rest).filter(|count| *count > 0)? {
                lists.push((identity(rest)?, Listed::take(rest)?));
            }
        }
    }
    let is_known = |rule: &Rule| match rule {
        Rule::Rows { set, .. } => *set < rows.len(),
        Rule::Numbered(of) => *of < lists.len(),
        Rule::On(_) | Rule::Shared | Rule::PerRank(_) => true,
    };
    (rest.is_empty() && rules.values().all(is_known)).then_some(Taken { decompositions, rules, rows, lists })
}

/// Do rules, sets of rows and lists fit the regions of their shard? `elements` gives the number of elements of a decomposition's parts.
fn check(
    rules: &BTreeMap<usize, Rule>,
    (rows, lists): (&[RowSet], &[(Identity, Listed)]),
    regions: &[Region],
    elements: impl Fn(usize) -> u64,
) -> Result<(), FormatError> {
    // The name of each set, which is the same for all its columns.
    let mut sets: Vec<Option<&str>> = vec![None; rows.len()];
    for (place, rule) in rules {
        let Some(region) = regions.get(*place) else {
            let text = format!("it has a rule for region {place}, but the shard has only {} regions", regions.len());
            return Err(FormatError::invalid(WHAT, text));
        };
        let (name, bytes) = (&region.name, region.bytes);
        let is_array = |elements: u64| {
            region.kind == RegionKind::Array && elements.checked_mul(region.element.bytes()) == Some(bytes)
        };
        let wrong = match rule {
            Rule::On(of) => {
                let elements = elements(*of);
                (!is_array(elements))
                    .then(|| format!("region {name:?} has {bytes} bytes, but its boxes have {elements} elements"))
            }
            Rule::Numbered(of) => {
                let count = lists.get(*of).map_or(0, |(_, list)| list.count);
                (!is_array(count))
                    .then(|| format!("region {name:?} has {bytes} bytes, but its list has {count} numbers"))
            }
            Rule::Shared | Rule::PerRank(_) => (region.kind != RegionKind::Value)
                .then(|| format!("region {name:?} is an array, but has the rule of a value")),
            Rule::Rows { set, width } => {
                let count = rows.get(*set).map_or(0, |rows| rows.count);
                // Without this rule, there could be any number of rows without bytes.
                let row = u64::from(*width).checked_mul(region.element.bytes()).filter(|row| *row > 0);
                let need = row.and_then(|row| row.checked_mul(count));
                let of = names_of(name).map(|(of, _)| of);
                let is_one = of.is_some() && sets.get(*set).is_some_and(|known| known.is_none() || *known == of);
                sets.get_mut(*set).into_iter().for_each(|known| *known = of);
                if !is_one {
                    Some(format!("region {name:?} is a column of no set, or of another column's set"))
                } else {
                    (region.kind != RegionKind::Array || need != Some(bytes)).then(|| {
                        format!(
                            "region {name:?} has {bytes} bytes, but is a column of {count} rows of {width} elements"
                        )
                    })
                }
            }
        };
        if let Some(text) = wrong {
            return Err(FormatError::invalid(WHAT, text));
        }
    }
    check_lists(lists, regions)
}

/// Does each list have its region?
fn check_lists(lists: &[(Identity, Listed)], regions: &[Region]) -> Result<(), FormatError> {
    if lists.is_empty() {
        return Ok(());
    }
    let by_name: BTreeMap<&str, &Region> = regions.iter().map(|region| (region.name.as_str(), region)).collect();
    for (place, (_, list)) in lists.iter().enumerate() {
        let name = ids::region_name(place);
        let region = by_name.get(name.as_str()).filter(|region| region.kind == RegionKind::Value);
        let Some(region) = region else {
            return Err(FormatError::invalid(WHAT, format!("there is no region {name:?}")));
        };
        if !list.fits(region.bytes) {
            let text = format!("region {name:?} of {} bytes cannot be a list of {} numbers", region.bytes, list.count);
            return Err(FormatError::invalid(WHAT, text));
        }
    }
    Ok(())
}

/// The record of these decompositions, whose parts have already been packed, with rules, sets of rows and lists.
pub fn encode(
    decompositions: &[(Identity, impl AsRef<[u8]>)],
    rules: &BTreeMap<usize, Rule>,
    (rows, lists): (&[RowSet], &[(Identity, Listed)]),
) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    numbers::put(&mut bytes, decompositions.len() as u64);
    for (identity, parts) in decompositions {
        bytes.extend(identity.0.to_le_bytes());
        bytes.extend_from_slice(parts.as_ref());
    }
    numbers::put(&mut bytes, rules.len() as u64);
    let mut next = 0;
    for (region, rule) in rules {
        numbers::put(&mut bytes, (region - next) as u64);
        put_rule(*rule, decompositions.len(), &mut bytes);
        next = region + 1;
    }
    if !rows.is_empty() || !lists.is_empty() {
        numbers::put(&mut bytes, rows.len() as u64);
        rows.iter().for_each(|rows| rows.put(&mut bytes));
    }
    if !lists.is_empty() {
        numbers::put(&mut bytes, lists.len() as u64);
        for (identity, list) in lists {
            bytes.extend(identity.0.to_le_bytes());
            list.put(&mut bytes);
        }
    }
    bytes
}

/// The rules with codes below those of decompositions.
const PLAIN: [Rule; 4] =
    [Rule::Shared, Rule::PerRank(OnResize::Refuse), Rule::PerRank(OnResize::Drop), Rule::PerRank(OnResize::Ask)];

/// Appends the code of a rule, given the number of decompositions, and the fields that the rule has.
fn put_rule(rule: Rule, decompositions: usize, bytes: &mut Vec<u8>) {
    let code = match rule {
        Rule::On(of) => PLAIN.len() + of,
        Rule::Shared => 0,
        Rule::PerRank(OnResize::Refuse) => 1,
        Rule::PerRank(OnResize::Drop) => 2,
        Rule::PerRank(OnResize::Ask) => 3,
        Rule::Rows { .. } => PLAIN.len() + decompositions,
        Rule::Numbered(_) => PLAIN.len() + decompositions + 1,
    };
    numbers::put(bytes, code as u64);
    match rule {
        Rule::Rows { set, width } => {
            numbers::put(bytes, set as u64);
            numbers::put(bytes, u64::from(width));
        }
        Rule::Numbered(of) => numbers::put(bytes, of as u64),
        Rule::On(_) | Rule::Shared | Rule::PerRank(_) => {}
    }
}

fn take_rule(rest: &mut &[u8], decompositions: usize) -> Option<Rule> {
    let code = usize::try_from(numbers::take(rest)?).ok()?;
    let Some(of) = code.checked_sub(PLAIN.len()) else { return PLAIN.get(code).copied() };
    if of < decompositions {
        return Some(Rule::On(of));
    }
    let place = usize::try_from(numbers::take(rest)?).ok()?;
    match of - decompositions {
        0 => {
            let width = u32::try_from(numbers::take(rest)?).ok().filter(|width| *width > 0)?;
            Some(Rule::Rows { set: place, width })
        }
        1 => Some(Rule::Numbered(place)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Boxes;
    use super::*;
    use crate::format::ElementType;
    use proptest::prelude::*;

    fn some() -> Record {
        let on = |boxes: Boxes, identity| (Identity(identity), boxes.check().expect("inside").parts().clone());
        Record {
            decompositions: vec![
                on(Boxes::of([40, 7]).own([10, 0], [10, 7]).halo([1, 1]), u128::MAX - 5),
                on(Boxes::of([9]).sparse(), 7),
            ],
            rules: [
                (0, Rule::On(0)),
                (1, Rule::Shared),
                (3, Rule::PerRank(OnResize::Ask)),
                (4, Rule::PerRank(OnResize::Refuse)),
                (900, Rule::On(1)),
                (901, Rule::PerRank(OnResize::Drop)),
            ]
            .into(),
            rows: vec![],
            lists: vec![],
        }
    }

    #[test]
    fn a_record_comes_back_and_a_cut_one_is_refused() {
        let bytes = some().encode();
        assert_eq!(Record::decode(&bytes), Ok(some()));
        assert_eq!(Record::decode(&Record::default().encode()), Ok(Record::default()));
        assert!((0..bytes.len()).all(|end| Record::decode(&bytes[..end]).is_err()));
        assert!(Record::decode(&[&bytes[..], &[0]].concat()).is_err());
        let mut newer = bytes.clone();
        newer[0] = 2;
        assert!(Record::decode(&newer).unwrap_err().to_string().contains("version 2, and 1 is known"));
        // Counts that are followed by nothing.
        for count in [1u64 << 40, u64::MAX] {
            let mut forged = vec![VERSION, 0];
            numbers::put(&mut forged, count);
            assert!(Record::decode(&forged).is_err());
            let mut forged = vec![VERSION];
            numbers::put(&mut forged, count);
            assert!(Record::decode(&forged).is_err());
        }
        // A rule for a decomposition that does not exist.
        assert!(Record::decode(&[VERSION, 0, 1, 0, PLAIN.len() as u8]).is_err());
        assert!(Record::decode(&[VERSION, 0, 1, 0, 0]).is_ok());
    }

    #[test]
    fn a_record_that_does_not_fit_its_shard_is_refused() {
        let region = |name: &str, kind, bytes| Region {
            name: name.into(),
            kind,
            element: if kind == RegionKind::Array { ElementType::F64 } else { ElementType::U8 },
            shape: vec![],
            bytes,
            offset: 0,
            first_block: 0,
        };
        let mut record = some();
        record.rules.retain(|place, _| *place < 5);
        let regions = |t, kind| {
            vec![
                region("t", RegionKind::Array, t),
                region("step", kind, 8),
                region("rest", RegionKind::Array, 16),
                region("seed", RegionKind::Value, 16),
                region("more", RegionKind::Value, 16),
            ]
        };
        assert_eq!(record.check(&regions(560, RegionKind::Value)), Ok(()));
        let refused = |regions: Vec<Region>| record.check(&regions).unwrap_err().to_string();
        assert!(
            refused(regions(552, RegionKind::Value)).contains("\"t\" has 552 bytes, but its boxes have 70 elements")
        );
        assert!(refused(regions(560, RegionKind::Array)).contains("\"step\" is an array"));
        assert!(refused(regions(560, RegionKind::Value)[..4].to_vec()).contains("a rule for region 4"));
        assert_eq!([0, 1, 2, 3, 4].map(|place| record.is_bound(place)), [false, false, true, false, true]);
        assert_eq!(record.of_region(0).map(|(_, parts)| parts.elements()), Some(70));
        assert!(record.of_region(1).is_none() && record.of_region(2).is_none());
    }

    #[test]
    fn lists_come_back_and_have_a_region_that_can_have_their_numbers() {
        let list = |total, count| (Identity(9), Listed { total, is_sparse: total > 100, count });
        let record = Record {
            rules: [(0, Rule::Numbered(0)), (1, Rule::Numbered(1)), (2, Rule::Shared)].into(),
            lists: vec![list(100, 7), list(101, 0)],
            ..Record::default()
        };
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes).as_ref(), Ok(&record));
        assert!((0..bytes.len()).all(|end| Record::decode(&bytes[..end]).is_err()));
        let set = RowSet::new(5, (&[], &[])).expect("it can be");
        let both = Record { rows: vec![set], ..record.clone() };
        assert_eq!(Record::decode(&both.encode()), Ok(both));
        // A list has more numbers than the array has elements.
        let forged = Record { lists: vec![list(100, 101), list(101, 0)], ..record.clone() };
        assert!(Record::decode(&forged.encode()).is_err());
        assert!(Record::decode(&Record { lists: vec![list(100, 7)], ..record.clone() }.encode()).is_err(), "no list 1");
        let region = |name: &str, kind, bytes| Region {
            name: name.into(),
            kind,
            element: if kind == RegionKind::Array { ElementType::F64 } else { ElementType::U8 },
            shape: vec![],
            bytes,
            offset: 0,
            first_block: 0,
        };
        let regions = |t, numbers, more: &str| {
            let (array, value) = (RegionKind::Array, RegionKind::Value);
            let own = [region("t", array, t), region("u", array, 0), region("step", value, 8)];
            own.into_iter()
                .chain([region(".bivouac/ids/0", value, numbers), region(more, value, 0)])
                .collect::<Vec<_>>()
        };
        let more = ".bivouac/ids/1";
        let fit = regions(56, 9, more);
        assert_eq!(record.check(&fit), Ok(()));
        assert_eq!(View::of(&bytes, &fit).map(|view| view.lists), Ok(record.lists.clone()));
        assert_eq!(record.list_of(0), Some((0, &record.lists[0])));
        assert!(record.list_of(2).is_none() && record.of_region(0).is_none() && !record.is_bound(0));
        let refused = |regions: Vec<Region>| record.check(&regions).unwrap_err().to_string();
        assert!(refused(regions(64, 9, more)).contains("\"t\" has 64 bytes, but its list has 7 numbers"));
        assert!(refused(regions(56, 6, more)).contains("of 6 bytes cannot be a list of 7 numbers"));
        assert!(refused(regions(56, 9, "other")).contains("there is no region \".bivouac/ids/1\""));
    }

    #[test]
    fn rows_come_back_and_their_columns_have_as_many_rows_as_the_record_says() {
        let set = RowSet::new(5, (&[0.0, 1.0], &[2.0, 3.0])).expect("it can be");
        let column = |set, width| Rule::Rows { set, width };
        let record = Record {
            rules: [(0, column(0, 1)), (1, column(0, 3)), (2, column(1, 1)), (3, Rule::On(0))].into(),
            rows: vec![set, RowSet::default()],
            decompositions: some().decompositions[..1].to_vec(),
            ..Record::default()
        };
        let bytes = record.encode();
        assert_eq!(Record::decode(&bytes).as_ref(), Ok(&record));
        assert!((0..bytes.len()).all(|end| Record::decode(&bytes[..end]).is_err()));
        let region = |name: &str, bytes| Region {
            element: ElementType::F64,
            ..Region::of_bytes(name, RegionKind::Array, bytes)
        };
        let regions = |names: [&str; 3], lengths: [u64; 3]| {
            let columns = names.into_iter().zip(lengths).map(|(name, bytes)| region(name, bytes));
            columns.chain([region("t", 560)]).collect::<Vec<_>>()
        };
        let names = ["a/x", "a/v", "b/x"];
        let fit = regions(names, [40, 120, 0]);
        assert_eq!(record.check(&fit), Ok(()));
        assert_eq!(View::of(&bytes, &fit).map(|view| view.rows), Ok(record.rows.clone()));
        assert_eq!(record.rows_of(1), Some((&record.rows[0], 3)));
        assert!((0..4).all(|place| !record.is_bound(place)) && record.of_region(0).is_none());
        let refused = |regions: Vec<Region>| record.check(&regions).unwrap_err().to_string();
        assert!(refused(regions(names, [40, 112, 0])).contains("112 bytes, but is a column of 5 rows of 3 elements"));
        assert!(refused(regions(["a/x", "c/v", "b/x"], [40, 120, 0])).contains("\"c/v\" is a column of no set"));
        assert!(refused(regions(["x", "a/v", "b/x"], [40, 120, 0])).contains("\"x\" is a column of no set"));
        // A set that does not exist, a row without elements, and counts whose product is too large.
        for rule in [column(2, 1), column(0, 0)] {
            let forged = Record { rules: [(0, rule)].into(), ..record.clone() };
            assert!(Record::decode(&forged.encode()).is_err());
        }
        let huge = RowSet::new(1 << 61, (&[], &[])).expect("it can be");
        let forged = Record { rules: [(0, column(0, u32::MAX))].into(), rows: vec![huge], ..Record::default() };
        assert_eq!(Record::decode(&forged.encode()).as_ref(), Ok(&forged));
        assert!(forged.check(&[region("a/x", 0)]).is_err());
        // Rows without bytes.
        let nothing = Region { element: ElementType::Record(0), ..region("a/x", 0) };
        assert!(Record { rules: [(0, column(0, 1))].into(), ..forged }.check(&[nothing]).is_err());
        // The record states that there are no sets, although it should leave this out.
        assert!(Record::decode(&[VERSION, 0, 0, 0]).is_err());
    }

    #[test]
    fn a_view_says_what_the_record_says_and_has_no_more_than_its_shard() {
        let region = |kind, bytes| Region {
            element: if kind == RegionKind::Array { ElementType::F64 } else { ElementType::U8 },
            ..Region::of_bytes("r", kind, bytes)
        };
        let mut record = some();
        record.rules.retain(|place, _| *place < 5);
        let mut regions: Vec<Region> = [560, 8, 16, 16, 16].map(|bytes| region(RegionKind::Value, bytes)).into();
        regions[0] = region(RegionKind::Array, 560);
        let bytes = record.encode();
        let view = View::of(&bytes, &regions).expect("it fits");
        assert_eq!(view.rules, record.rules);
        let unpack = |packed: &PackedParts<'_>| Parts::take(&mut packed.bytes()).expect("looked at before");
        let unpacked = view.decompositions.iter().map(|(identity, packed)| (*identity, unpack(packed)));
        assert_eq!(unpacked.collect::<Vec<_>>(), record.decompositions);
        regions[0].bytes = 552;
        assert_eq!(View::of(&bytes, &regions).map(drop), record.check(&regions));
        // A good record, but with more decompositions than regions.
        record.rules.clear();
        assert_eq!(Record::decode(&record.encode()).as_ref(), Ok(&record));
        assert!(View::of(&record.encode(), &regions[..1]).is_err() && View::of(&record.encode(), &regions).is_ok());
    }

    proptest! {
        #[test]
        fn whatever_is_decoded_was_encoded(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = VERSION;
            }
            if let Ok(record) = Record::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }
    }
}
