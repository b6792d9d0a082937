//! How a version's fields are arranged in its bytes: one after the other, each at a multiple of 256.
#![forbid(unsafe_code)]

use crate::base::units::PAGE;
use crate::cache::Piece;
use crate::format::ElementType;
use std::ops::Range;

/// Fields begin at multiples of this, so that GPU loads of 16 bytes stay aligned and runs can be cut at any allocation unit.
const FIELD_ALIGN: u64 = 256;
/// The length of a version is a multiple of this, so that direct I/O can transfer all of it.
const ENTRY_ALIGN: u64 = 4096;

/// One field of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldInfo {
    /// The name of the field.
    pub name: String,
    /// The element type.
    pub element: ElementType,
    /// Length in bytes.
    pub bytes: u64,
    /// Where the field begins in the version.
    pub(super) at: u64,
    /// The index of the field's first block among the version's digests.
    pub(super) first_block: u32,
}

/// A version's fields and their places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub fields: Vec<FieldInfo>,
    pub block_bytes: u64,
    pub bytes: u64,
    pub blocks: u32,
}

/// A part of a field that is in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Index of the field.
    pub field: usize,
    /// Where it starts in the field.
    pub start: u64,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where it begins in the tier.
    pub place: u64,
}

impl Cut {
    /// The part of the cut that is within a range of its field, if there is any.
    pub fn within(&self, range: &Range<u64>) -> Option<Cut> {
        let (start, end) = (self.start.max(range.start), (self.start + self.bytes).min(range.end));
        let place = self.place + start.saturating_sub(self.start);
        (start < end).then(|| Cut { start, bytes: end - start, place, ..*self })
    }
}

impl Layout {
    /// Places fields of the given names, types and lengths.
    pub(super) fn new<'a>(fields: impl Iterator<Item = (&'a str, ElementType, u64)>, block_bytes: u64) -> Layout {
        let mut layout = Layout { fields: Vec::new(), block_bytes, bytes: 0, blocks: 0 };
        for (name, element, bytes) in fields {
            let (at, first_block) = (layout.bytes.next_multiple_of(FIELD_ALIGN), layout.blocks);
            layout.fields.push(FieldInfo { name: name.into(), element, bytes, at, first_block });
            layout.blocks += bytes.div_ceil(block_bytes) as u32;
            layout.bytes = at + bytes;
        }
        layout.bytes = layout.bytes.max(1).next_multiple_of(ENTRY_ALIGN);
        layout
    }

    /// Places parts of a shard, each given by its beginning in the shard, in order. Two parts that have only padding between them there
    /// have only padding between them here, too, so that they can be copied to the shard as one.
    pub(super) fn of_parts(parts: impl Iterator<Item = (u64, u64)>, block_bytes: u64) -> Layout {
        let mut layout = Layout { fields: Vec::new(), block_bytes, bytes: 0, blocks: 0 };
        let mut last_end = None;
        for (start, bytes) in parts {
            let gap = last_end.map(|end| start - end).filter(|gap| *gap < PAGE);
            let at = gap.map_or(layout.bytes.next_multiple_of(PAGE), |gap| layout.bytes + gap);
            let name = String::new();
            layout.fields.push(FieldInfo { name, element: ElementType::U8, bytes, at, first_block: layout.blocks });
            layout.blocks += bytes.div_ceil(block_bytes) as u32;
            layout.bytes = at + bytes;
            last_end = Some(start + bytes);
        }
        layout.bytes = layout.bytes.max(1).next_multiple_of(ENTRY_ALIGN);
        layout
    }

    /// The fields, cut where the pieces that hold the version end.
    pub(super) fn cuts(&self, pieces: &[Piece]) -> Vec<Cut> {
        let mut cuts = Vec::with_capacity(self.fields.len() + pieces.len());
        let (mut piece, mut begin) = (0, 0);
        for (field, info) in self.fields.iter().enumerate() {
            let (mut at, end) = (info.at, info.at + info.bytes);
            while at < end {
                while at >= begin + pieces[piece].bytes {
                    begin += pieces[piece].bytes;
                    piece += 1;
                }
                let inside = at - begin;
                let bytes = (end - at).min(pieces[piece].bytes - inside);
                cuts.push(Cut { field, start: at - info.at, bytes, place: pieces[piece].offset + inside });
                at += bytes;
            }
        }
        cuts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_are_aligned_and_whole() {
        let fields = [("a", ElementType::U8, 5), ("b", ElementType::F64, 8000), ("empty", ElementType::U8, 0)];
        let layout = Layout::new(fields.into_iter(), 4096);
        assert_eq!(
            layout.fields.iter().map(|field| (field.at, field.first_block)).collect::<Vec<_>>(),
            [(0, 0), (256, 1), (8448, 3)]
        );
        assert_eq!((layout.bytes, layout.blocks), (12_288, 3));
        assert_eq!(Layout::new([].into_iter(), 4096).bytes, 4096);
    }

    #[test]
    fn parts_keep_the_padding_between_them_and_nothing_else() {
        let layout =
            Layout::of_parts([(4096, 100), (8192, 4096), (12_288, 0), (12_288, 5), (1 << 20, 9)].into_iter(), 4096);
        let places: Vec<_> = layout.fields.iter().map(|field| (field.at, field.first_block)).collect();
        assert_eq!(places, [(0, 0), (4096, 1), (8192, 2), (8192, 2), (12_288, 3)]);
        assert_eq!((layout.bytes, layout.blocks), (16_384, 4));
    }

    proptest! {
        /// Every byte of every field has one place, inside the pieces, in order.
        #[test]
        fn cuts_cover_all_fields(lengths in proptest::collection::vec(0u64..20_000, 0..12), units in proptest::collection::vec(1u64..6, 1..40)) {
            let layout = Layout::new(lengths.iter().map(|bytes| ("x", ElementType::U8, *bytes)), 4096);
            let (mut pieces, mut have, mut offset) = (Vec::new(), 0, 4096);
            for unit in units.iter().cycle() {
                if have >= layout.bytes {
                    break;
                }
                pieces.push(Piece { offset, bytes: unit * 4096 });
                have += unit * 4096;
                offset += (unit + 1) * 4096;
            }
            let cuts = layout.cuts(&pieces);
            for (index, bytes) in lengths.iter().enumerate() {
                let mut next = 0;
                for cut in cuts.iter().filter(|cut| cut.field == index) {
                    prop_assert_eq!(cut.start, next);
                    prop_assert!(cut.start.is_multiple_of(64));
                    prop_assert!(pieces.iter().any(|piece| cut.place >= piece.offset && cut.place + cut.bytes <= piece.end()));
                    next += cut.bytes;
                }
                prop_assert_eq!(next, *bytes);
                // Every cut is cut once more, at any byte.
                let half = bytes / 2;
                for range in [0..half, half..*bytes] {
                    let mut next = range.start;
                    for (whole, part) in cuts.iter().filter(|cut| cut.field == index).filter_map(|cut| Some((cut, cut.within(&range)?))) {
                        prop_assert_eq!((part.start, part.place - whole.place), (next, part.start - whole.start));
                        next += part.bytes;
                    }
                    prop_assert_eq!(next, range.end);
                }
            }
        }
    }
}
