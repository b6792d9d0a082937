//! Compares two arrays that are spread differently over the ranks, by the places of their elements.
#![forbid(unsafe_code)]

use super::{Row, largest_of};
use crate::array::{Array, Found, Had, bands};
use crate::ending::Problem;
use crate::output::{list, short};
use bivouac_core::base::units::MIB;
use bivouac_core::decomposition::Cuboid;
use bivouac_core::format::ElementType;
use serde::Serialize;
use std::path::Path;

/// The number of bytes that are compared at a time on each side.
const BAND_BYTES: u64 = 16 * MIB;
/// The maximum number of elements that are shown.
const FIRST_MAX: usize = 4;
/// The marks of an element that the first array has, and of one that the second has.
const IN: [u8; 2] = [1, 2];

/// How an array differs.
#[derive(Serialize, Default, Debug)]
pub struct Elements {
    /// The number of elements that both have, with different values.
    differ: u64,
    /// The number of elements of sparse arrays that only the first has.
    only_in_a: u64,
    only_in_b: u64,
    /// The first of the elements that differ.
    first: Vec<First>,
}

/// An element that differs between the arrays.
#[derive(Serialize, Debug)]
struct First {
    index: Vec<u64>,
    /// The element's values; `None` where an array does not have it.
    values: [Option<String>; 2],
    /// The ranks to which the element belongs.
    ranks: [Option<u32>; 2],
}

impl Elements {
    /// The counts as text for people.
    pub fn counts(&self) -> String {
        let counts = [(self.differ, "elements"), (self.only_in_a, "only in a"), (self.only_in_b, "only in b")];
        let some = counts.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
        some.collect::<Vec<_>>().join(", ")
    }

    /// The first elements as text for people.
    pub fn places(&self) -> String {
        let side = |first: &First, side: usize| match (&first.values[side], first.ranks[side]) {
            (Some(value), Some(rank)) => format!("{value} (rank {rank})"),
            (Some(value), None) => value.clone(),
            (None, _) => "-".into(),
        };
        let shown =
            self.first.iter().map(|first| format!("{:?}: {} and {}", first.index, side(first, 0), side(first, 1)));
        let more = self.differ + self.only_in_a + self.only_in_b - self.first.len() as u64;
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        list(shown, FIRST_MAX, "; ") + &more
    }

    fn is_equal(&self) -> bool {
        self.differ + self.only_in_a + self.only_in_b == 0
    }
}

/// Compares a region that is spread over the ranks by different decompositions of an array.
///
/// # Errors
/// Elements are missing or damaged.
pub fn compare(paths: [&Path; 2], name: &str) -> Result<Option<Row>, Problem> {
    let find = |path: &Path| match Array::find(path, name)? {
        Found::Array(array) => Ok(*array),
        // The shards do not agree on what the region is.
        Found::Plain(_) => {
            Err(Problem::damage(format!("{}: region {:?} is not part of an array", path.display(), short(name))))
        }
    };
    let mut both = [find(paths[0])?, find(paths[1])?];
    let bytes = [0, 1].map(|side| Some(both[side].elements().saturating_mul(both[side].element.bytes())));
    let row = |what| Row::of(None, name, what, bytes);
    let [a, b] = &both;
    if a.shape() != b.shape() {
        return Ok(Some(row("shape")));
    }
    if a.element != b.element {
        return Ok(Some(row("type")));
    }
    for array in &both {
        array.prove(&array.whole, array.is_sparse)?;
    }
    let mut pass = Pass { elements: Elements::default(), largest: None };
    if both.iter().any(|array| array.is_sparse) {
        pass.box_by_box(&mut both)?;
    } else {
        let [a, _] = &both;
        for band in bands(&a.whole, a.dims, a.element.bytes(), BAND_BYTES) {
            pass.band(&mut both, &band)?;
        }
    }
    let Pass { elements, largest } = pass;
    Ok((!elements.is_equal()).then(|| Row { largest, elements: Some(elements), ..row("elements") }))
}

/// What has been found so far.
struct Pass {
    elements: Elements,
    largest: Option<(f64, u64)>,
}

impl Pass {
    /// Compares what the shards have, box by box, instead of the whole array, which may be nearly empty.
    fn box_by_box(&mut self, both: &mut [Array; 2]) -> Result<(), Problem> {
        let (dims, size) = (both[0].dims, both[0].element.bytes());
        for own in together(both[0].boxes().collect(), dims, size) {
            for band in bands(&own, dims, size, BAND_BYTES) {
                self.band(both, &band)?;
            }
        }
        // Then the elements that only the second array has.
        for own in together(both[1].boxes().collect(), dims, size) {
            for band in bands(&own, dims, size, BAND_BYTES) {
                self.lacking(both, &band)?;
            }
        }
        Ok(())
    }

    /// Compares a band; only the elements that the first array has count.
    fn band(&mut self, both: &mut [Array; 2], band: &Cuboid) -> Result<(), Problem> {
        let element = both[0].element;
        let size = element.bytes() as usize;
        let elements = band.volume() as usize;
        let mut marks = vec![0u8; elements];
        let mut buffers = [vec![0u8; elements * size], vec![0u8; elements * size]];
        for ((array, buffer), mark) in both.iter_mut().zip(&mut buffers).zip(IN) {
            array.read(band, buffer, |Had { from, to }| marks[from..to].iter_mut().for_each(|of| *of |= mark))?;
        }
        let [a, b] = &buffers;
        if a == b && marks.iter().all(|mark| *mark != IN[0]) {
            return Ok(());
        }
        for (at, ((one, other), mark)) in a.chunks_exact(size).zip(b.chunks_exact(size)).zip(&marks).enumerate() {
            if mark & IN[0] == 0 {
                continue;
            }
            let is_in_both = *mark == IN[0] | IN[1];
            if is_in_both && one == other {
                continue;
            }
            self.elements.differ += u64::from(is_in_both);
            self.elements.only_in_a += u64::from(*mark == IN[0]);
            let values = [Some(one), is_in_both.then_some(other)].map(|bytes| bytes.map(|bytes| shown(element, bytes)));
            let index = index(band, at as u64);
            if is_in_both {
                let place = flat(&both[0].whole, &index) * size as u64;
                largest_of(element, place, [one, other], &mut self.largest);
            }
            self.note(both, &index, values);
        }
        Ok(())
    }

    /// Counts the elements of a band that the second array has and the first one does not.
    fn lacking(&mut self, both: &mut [Array; 2], band: &Cuboid) -> Result<(), Problem> {
        let mut marks = vec![0u8; band.volume() as usize];
        for (array, mark) in both.iter().zip(IN) {
            array.look(band, |Had { from, to }| marks[from..to].iter_mut().for_each(|of| *of |= mark));
        }
        let element = both[0].element;
        for (at, _) in marks.iter().enumerate().filter(|(_, mark)| **mark == IN[1]) {
            self.elements.only_in_b += 1;
            if self.elements.first.len() < FIRST_MAX {
                let index = index(band, at as u64);
                let mut bytes = vec![0; element.bytes() as usize];
                both[1].read(&index, &mut bytes, |_| ())?;
                self.note(both, &index, [None, Some(shown(element, &bytes))]);
            }
        }
        Ok(())
    }

    fn note(&mut self, both: &[Array; 2], element: &Cuboid, values: [Option<String>; 2]) {
        if self.elements.first.len() < FIRST_MAX {
            let ranks = [0, 1].map(|side| values[side].as_ref().and_then(|_| both[side].rank_of(element)));
            self.elements.first.push(First { index: element.from[..both[0].dims].to_vec(), values, ranks });
        }
    }
}

/// The element at a position of a box, in C order.
fn index(of: &Cuboid, mut at: u64) -> Cuboid {
    let mut element = *of;
    for dim in (0..of.from.len()).rev() {
        element.from[dim] = of.from[dim] + at % of.extent(dim);
        element.to[dim] = element.from[dim] + 1;
        at /= of.extent(dim);
    }
    element
}

/// The position of an element in an array, in C order.
fn flat(whole: &Cuboid, element: &Cuboid) -> u64 {
    (0..whole.from.len()).fold(0, |at, dim| at * whole.extent(dim) + element.from[dim])
}

/// The value of an element as text.
fn shown(element: ElementType, bytes: &[u8]) -> String {
    let word = bytes.iter().rev().fold(0u128, |word, byte| word << 8 | u128::from(*byte));
    match element {
        ElementType::U8 | ElementType::U16 | ElementType::U32 | ElementType::U64 => word.to_string(),
        ElementType::I8 => (word as u8 as i8).to_string(),
        ElementType::I16 => (word as u16 as i16).to_string(),
        ElementType::I32 => (word as u32 as i32).to_string(),
        ElementType::I64 => (word as u64 as i64).to_string(),
        ElementType::F32 => format!("{:?}", f32::from_bits(word as u32)),
        ElementType::F64 => format!("{:?}", f64::from_bits(word as u64)),
        ElementType::Record(_) => bytes.iter().take(16).map(|byte| format!("{byte:02x}")).collect(),
    }
}

/// Boxes that together contain all the given boxes, and no element twice. In one dimension, the boxes that fit into a band become one box:
/// a list of numbers may have one box for each of them, and each look at a box passes through all boxes of a shard.
fn together(mut boxes: Vec<Cuboid>, dims: usize, size: u64) -> Vec<Cuboid> {
    if dims != 1 {
        return boxes;
    }
    boxes.sort_unstable_by_key(|own| own.from[0]);
    let most = BAND_BYTES / size.max(1);
    let mut all: Vec<Cuboid> = Vec::new();
    for own in boxes {
        match all.last_mut() {
            Some(last) if own.to[0].saturating_sub(last.from[0]) <= most => last.to[0] = last.to[0].max(own.to[0]),
            _ => all.push(own),
        }
    }
    all
}
