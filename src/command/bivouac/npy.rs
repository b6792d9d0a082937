//! NumPy's file format: magic bytes, a header that is a dictionary in Python's syntax, and the elements in C order.
//!
//! `numpy/lib/format.py` describes it. Elements begin at a multiple of 64 bytes, so that they can be mapped.
#![forbid(unsafe_code)]

use bivouac_core::format::ElementType;

const MAGIC: &[u8] = b"\x93NUMPY";
const ALIGNMENT: usize = 64;

/// NumPy's word for an element type, in little-endian order. A record is plain bytes, which `view` can turn into anything.
pub fn descr(element: ElementType) -> String {
    match element {
        ElementType::U8 => "|u1".into(),
        ElementType::I8 => "|i1".into(),
        ElementType::U16 => "<u2".into(),
        ElementType::I16 => "<i2".into(),
        ElementType::U32 => "<u4".into(),
        ElementType::I32 => "<i4".into(),
        ElementType::U64 => "<u8".into(),
        ElementType::I64 => "<i8".into(),
        ElementType::F32 => "<f4".into(),
        ElementType::F64 => "<f8".into(),
        ElementType::Record(bytes) => format!("|V{bytes}"),
    }
}

/// A shape as Python writes it: `()`, `(3,)`, `(3, 4)`.
pub fn tuple(shape: &[u64]) -> String {
    let extents: Vec<String> = shape.iter().map(u64::to_string).collect();
    match extents.as_slice() {
        [one] => format!("({one},)"),
        all => format!("({})", all.join(", ")),
    }
}

/// Everything before the elements. Version 1 has two bytes for its length; version 2, which is for very many
/// dimensions, has four.
pub fn header(element: ElementType, shape: &[u64]) -> Vec<u8> {
    let words = format!("{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}", descr(element), tuple(shape));
    let is_long = words.len() + ALIGNMENT > usize::from(u16::MAX);
    let before = MAGIC.len() + 2 + if is_long { 4 } else { 2 };
    let total = (before + words.len() + 1).next_multiple_of(ALIGNMENT);
    let length = total - before;
    let mut bytes = MAGIC.to_vec();
    if is_long {
        bytes.extend([2, 0]);
        bytes.extend((length as u32).to_le_bytes());
    } else {
        bytes.extend([1, 0]);
        bytes.extend((length as u16).to_le_bytes());
    }
    bytes.extend(words.as_bytes());
    bytes.resize(total - 1, b' ');
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_what_numpy_writes() {
        let bytes = header(ElementType::F64, &[60, 50]);
        assert_eq!(&bytes[..10], b"\x93NUMPY\x01\x00\x76\x00");
        assert_eq!((bytes.len(), bytes.last()), (128, Some(&b'\n')));
        let words = "{'descr': '<f8', 'fortran_order': False, 'shape': (60, 50), }";
        assert!(std::str::from_utf8(&bytes[10..]).is_ok_and(|text| text.trim_end() == words));
        assert_eq!([tuple(&[]), tuple(&[7]), tuple(&[0, 2])], ["()", "(7,)", "(0, 2)"]);
        assert_eq!([descr(ElementType::U8), descr(ElementType::Record(24))], ["|u1", "|V24"]);
    }

    #[test]
    fn elements_are_aligned_whatever_the_shape_is() {
        for dimensions in [0, 1, 2, 5, 20, 100, 40_000] {
            let bytes = header(ElementType::Record(1000), &vec![u64::MAX; dimensions]);
            assert!(bytes.len().is_multiple_of(ALIGNMENT), "{dimensions}");
            assert_eq!(bytes[6], if dimensions == 40_000 { 2 } else { 1 });
        }
    }
}
