//! What `inspect` shows about how the regions of a shard are spread over the ranks. Pure.
#![forbid(unsafe_code)]

use crate::ending::{Ending, Problem};
use crate::output::{list, most, short};
use bivouac_core::decomposition::ids::Listed;
use bivouac_core::decomposition::record::binds;
use bivouac_core::decomposition::{Cuboid, Identity, OnResize, PackedParts, RowSet, Rule, View};
use bivouac_core::format::Region;
use bivouac_core::region::is_reserved;
use serde::Serialize;

/// The maximum number of boxes of a rank that are shown, and that documents have.
const BOXES_SHOWN: usize = 4;
const BOXES_MAX: usize = 64;
/// The maximum number of arrays that are shown.
const ARRAYS_MAX: usize = 20;
/// The maximum number of regions that are named because they bind a checkpoint to its number of ranks.
const BOUND_SHOWN: usize = 6;

/// How the regions of a shard are spread over the ranks.
#[derive(Serialize, Default)]
pub struct DealtView {
    /// What is wrong with the record; in this case nothing else is known.
    why: Option<String>,
    /// How bad that is.
    #[serde(skip)]
    pub ending: Ending,
    /// The regions because of which only as many ranks as took the checkpoint can restore it. If the list is empty, any
    /// number of ranks can.
    pub bound: Option<Vec<String>>,
    /// The arrays that regions are parts of.
    arrays: Vec<ArrayView>,
    /// The lists of the element numbers that regions have.
    lists: Vec<ListView>,
    /// The application's regions, in order.
    regions: Vec<RuleView>,
}

/// What the record says about a list of numbers.
#[derive(Serialize)]
struct ListView {
    identity: String,
    /// Elements of the array.
    total: u64,
    /// The lists of all ranks together need not have all elements.
    sparse: bool,
    /// The count of numbers in this rank's list.
    count: u64,
}

/// An array, and the boxes of it that the rank has.
#[derive(Serialize)]
struct ArrayView {
    /// Tells this way of spreading the array over the ranks from all others.
    identity: String,
    shape: Vec<u64>,
    /// The boxes of all ranks together need not cover the array.
    sparse: bool,
    boxes: usize,
    /// Elements in the boxes.
    elements: u64,
    /// The first boxes.
    first_boxes: Vec<BoxView>,
    #[serde(skip)]
    shown: Vec<String>,
}

#[derive(Serialize)]
struct BoxView {
    origin: Vec<u64>,
    extent: Vec<u64>,
}

/// What the program said about a region.
#[derive(Serialize)]
struct RuleView {
    region: String,
    /// `array`: the rank's part of an array; `numbered`: the elements of a list; `shared`: the same on all ranks; `rows`: a column of rows,
    /// which other ranks may get; `refuse`, `drop` or `ask`: each rank has its own, and this happens to it on a different number of ranks;
    /// `own`: the program said nothing, so the region belongs to its rank.
    rule: &'static str,
    /// The index of the array.
    array: Option<usize>,
    /// The index of the list.
    list: Option<usize>,
    /// For `rows`: the rows of this rank.
    rows: Option<RowsView>,
}

/// A column of rows.
#[derive(Serialize)]
struct RowsView {
    count: u64,
    /// Elements of each row.
    width: u32,
    /// The least and the greatest coordinate of the rows in each dimension, as the program gave them; `null` for a value
    /// that is not a number.
    bounds: Vec<[f64; 2]>,
}

impl RowsView {
    fn of(rows: &RowSet, width: u32) -> RowsView {
        RowsView { count: rows.count, width, bounds: rows.bounds() }
    }
}

impl DealtView {
    /// Makes the view of a record that was read, or of the problem with it.
    pub fn of(bytes: Result<Vec<u8>, Problem>, regions: &[Region]) -> DealtView {
        let viewed = bytes.and_then(|bytes| match View::of(&bytes, regions) {
            Ok(view) => Ok(DealtView::shown(&view, regions)),
            Err(error) => Err(Problem::damage(error.to_string())),
        });
        viewed.unwrap_or_else(|Problem { ending, text }| DealtView { why: Some(text), ending, ..DealtView::default() })
    }

    fn shown(view: &View<'_>, regions: &[Region]) -> DealtView {
        let own = || regions.iter().enumerate().filter(|(_, region)| !is_reserved(&region.name));
        let is_bound = |place: &usize| binds(view.rules.get(place));
        let rule = |(place, region): (usize, &Region)| {
            let rule = view.rules.get(&place).copied();
            let array = if let Some(Rule::On(of)) = rule { Some(of) } else { None };
            let list = if let Some(Rule::Numbered(of)) = rule { Some(of) } else { None };
            let rows = match rule {
                Some(Rule::Rows { set, width }) => view.rows.get(set).map(|rows| RowsView::of(rows, width)),
                _ => None,
            };
            RuleView { region: region.name.clone(), rule: word(rule), array, list, rows }
        };
        DealtView {
            bound: Some(own().filter(|(place, _)| is_bound(place)).map(|(_, region)| region.name.clone()).collect()),
            arrays: view.decompositions.iter().map(|(identity, parts)| array(*identity, parts)).collect(),
            lists: view.lists.iter().map(|(identity, list)| listed(*identity, *list)).collect(),
            regions: own().map(rule).collect(),
            ..DealtView::default()
        }
    }

    /// The cell of a region in the table of regions.
    pub fn cell(&self, region: &str) -> String {
        let said = self.regions.iter().find(|said| said.region == region);
        if let Some(RowsView { count, width, .. }) = said.and_then(|said| said.rows.as_ref()) {
            return match width {
                1 => format!("{count} rows"),
                _ => format!("{count} rows of {width}"),
            };
        }
        if let Some(list) = said.and_then(|said| said.list) {
            return format!("list {list}");
        }
        match said.map(|said| (said.rule, said.array)) {
            None => "-".into(),
            Some((_, Some(array))) => format!("array {array}"),
            Some(("shared", _)) => "shared".into(),
            Some(("own", _)) => "its rank's own".into(),
            Some((rule, _)) => format!("per rank, {rule}"),
        }
    }

    /// Lines that each have a label and a text.
    pub fn lines(&self, group_size: u32) -> Vec<[String; 2]> {
        let Some(bound) = &self.bound else {
            let why = self.why.as_deref().unwrap_or_default();
            return vec![["dealt".into(), format!("over the ranks, but how is not known: {why}")]];
        };
        let arrays = self.arrays.iter().enumerate().map(|(at, array)| {
            let ArrayView { shape, boxes, elements, shown, .. } = array;
            let sparse = if array.sparse { ", sparse" } else { "" };
            let shape = list(shape.iter().map(u64::to_string), shape.len(), " x ");
            let here = match *boxes {
                0 => "this rank has none of it".into(),
                _ => {
                    let left = boxes.saturating_sub(shown.len());
                    let more = if left == 0 { String::new() } else { format!(" and {left} more boxes") };
                    format!("this rank has {}{more}, {elements} elements", shown.join(", "))
                }
            };
            format!("{at}: {shape}{sparse}; {here}")
        });
        let arrays = most(arrays, ARRAYS_MAX, "and", "more arrays (--json shows all)");
        let mut lines: Vec<[String; 2]> = arrays.into_iter().map(|array| ["array".into(), array]).collect();
        let lists = self.lists.iter().enumerate().map(|(at, ListView { total, sparse, count, .. })| {
            let sparse = if *sparse { ", sparse" } else { "" };
            format!("{at}: {total} numbered elements{sparse}; this rank has {count} of them")
        });
        let lists = most(lists, ARRAYS_MAX, "and", "more lists (--json shows all)");
        lines.extend(lists.into_iter().map(|list| ["list".into(), list]));
        lines.push(["resize".into(), resize(bound, group_size)]);
        lines
    }
}

/// Says on how many ranks a checkpoint can be restored, if the regions `bound` belong to the rank that saved them.
pub fn resize(bound: &[String], group_size: u32) -> String {
    match bound {
        [] => "can be restored by any number of ranks".into(),
        _ => {
            let names = list(bound.iter().map(|name| short(name)), BOUND_SHOWN, ", ");
            format!("can be restored only by {group_size} ranks, because of {names}")
        }
    }
}

fn word(rule: Option<Rule>) -> &'static str {
    match rule {
        None => "own",
        Some(Rule::On(_)) => "array",
        Some(Rule::Numbered(_)) => "numbered",
        Some(Rule::Shared) => "shared",
        Some(Rule::Rows { .. }) => "rows",
        Some(Rule::PerRank(OnResize::Refuse)) => "refuse",
        Some(Rule::PerRank(OnResize::Drop)) => "drop",
        Some(Rule::PerRank(OnResize::Ask)) => "ask",
    }
}

fn listed(identity: Identity, list: Listed) -> ListView {
    ListView { identity: identity.to_string(), total: list.total, sparse: list.is_sparse, count: list.count }
}

fn array(identity: Identity, parts: &PackedParts<'_>) -> ArrayView {
    let dims = parts.dims();
    let view = |own: Cuboid| BoxView {
        origin: own.from[..dims].to_vec(),
        extent: (0..dims).map(|dim| own.extent(dim)).collect(),
    };
    ArrayView {
        identity: identity.to_string(),
        shape: parts.shape().to_vec(),
        sparse: parts.is_sparse(),
        boxes: parts.count(),
        elements: parts.elements(),
        first_boxes: parts.boxes().take(BOXES_MAX).map(view).collect(),
        shown: parts.boxes().take(BOXES_SHOWN).map(|own| own.shown(dims).to_string()).collect(),
    }
}
