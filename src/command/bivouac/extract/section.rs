//! Parses the options of `extract`: a box of an array, and a value for its elements. Pure.
#![forbid(unsafe_code)]

use bivouac_core::decomposition::Cuboid;
use bivouac_core::format::ElementType;

/// Parses a text such as `0:100,20:,-1` that describes a box of an array.
///
/// # Errors
/// The text has another form or a different number of dimensions, or the box is not inside the array.
pub fn parse(text: &str, shape: &[u64]) -> Result<Cuboid, String> {
    let ranges: Vec<&str> = text.split(',').collect();
    if ranges.len() != shape.len() {
        let (given, dims) = (ranges.len(), shape.len());
        return Err(format!(
            "--box {text:?} has {given} ranges, but the array of shape {shape:?} has {dims} dimensions"
        ));
    }
    let sides = ranges.iter().zip(shape).map(|(range, extent)| {
        let outside = || format!("--box: {range:?} is not inside an extent of {extent}");
        let (from, to) = side(range, *extent).ok_or_else(|| {
            format!("--box: {range:?} is not a range: give FROM:TO, FROM:, :TO, : or a number for each dimension")
        })?;
        let is_inside = 0 <= from && from <= to && to <= i128::from(*extent);
        if is_inside { Ok((from as u64, (to - from) as u64)) } else { Err(outside()) }
    });
    let (origin, extent): (Vec<u64>, Vec<u64>) = sides.collect::<Result<Vec<_>, String>>()?.into_iter().unzip();
    Cuboid::at(&origin, &extent).ok_or_else(|| format!("--box {text:?} has too many dimensions"))
}

/// The first element and the one after the last, which need not be inside the extent; `None` if the text is not a range.
fn side(range: &str, extent: u64) -> Option<(i128, i128)> {
    let number = |text: &str| {
        let number = i128::from(text.trim().parse::<i64>().ok()?);
        Some(if number < 0 { number + i128::from(extent) } else { number })
    };
    match range.split_once(':') {
        None => number(range).map(|at| (at, at + 1)),
        Some((from, to)) => {
            let from = if from.trim().is_empty() { 0 } else { number(from)? };
            let to = if to.trim().is_empty() { i128::from(extent) } else { number(to)? };
            Some((from, to))
        }
    }
}

/// The bytes of an element with this value.
///
/// # Errors
/// The type has no such value.
pub fn fill(text: &str, element: ElementType) -> Result<Vec<u8>, String> {
    fn whole<T: std::str::FromStr, const N: usize>(text: &str, bytes: fn(T) -> [u8; N]) -> Option<Vec<u8>> {
        text.parse().ok().map(|value| bytes(value).to_vec())
    }
    let (bytes, what) = match element {
        ElementType::U8 => (whole(text, u8::to_le_bytes), "unsigned 8-bit integers"),
        ElementType::I8 => (whole(text, i8::to_le_bytes), "8-bit integers"),
        ElementType::U16 => (whole(text, u16::to_le_bytes), "unsigned 16-bit integers"),
        ElementType::I16 => (whole(text, i16::to_le_bytes), "16-bit integers"),
        ElementType::U32 => (whole(text, u32::to_le_bytes), "unsigned 32-bit integers"),
        ElementType::I32 => (whole(text, i32::to_le_bytes), "32-bit integers"),
        ElementType::U64 => (whole(text, u64::to_le_bytes), "unsigned 64-bit integers"),
        ElementType::I64 => (whole(text, i64::to_le_bytes), "64-bit integers"),
        ElementType::F32 => (whole(text, f32::to_le_bytes), "32-bit floating-point numbers"),
        ElementType::F64 => (whole(text, f64::to_le_bytes), "64-bit floating-point numbers"),
        // Nobody knows what a record contains.
        ElementType::Record(bytes) => {
            ((text == "0").then(|| vec![0; bytes as usize]), "records, for which only 0 is allowed")
        }
    };
    bytes.ok_or_else(|| format!("--fill {text:?} does not fit: the elements are {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_those_of_python_and_nothing_outside() {
        let at = |origin: &[u64], extent: &[u64]| Cuboid::at(origin, extent);
        assert_eq!(parse("2:5,:,-1", &[9, 4, 7]).ok(), at(&[2, 0, 6], &[3, 4, 1]));
        assert_eq!(parse(" 3:, :-2 ,4:4", &[9, 4, 7]).ok(), at(&[3, 0, 4], &[6, 2, 0]));
        assert_eq!(parse("-9:9", &[9]).ok(), at(&[0], &[9]));
        for wrong in ["0:10", "9", "-10", "5:4", "-10:2", "10:10"] {
            assert!(parse(wrong, &[9]).is_err_and(|text| text.contains("not inside an extent of 9")), "{wrong}");
        }
        for wrong in ["", "a", "1:2:3", "1.5", ":x"] {
            assert!(parse(wrong, &[9]).is_err_and(|text| text.contains("is not a range")), "{wrong}");
        }
        assert!(parse("1,2", &[9]).is_err_and(|text| text.contains("2 ranges, but the array of shape [9] has 1")));
    }

    #[test]
    fn a_value_is_one_of_the_elements_type() {
        assert_eq!(fill("-1", ElementType::I16), Ok(vec![0xff, 0xff]));
        assert_eq!(fill("1.5", ElementType::F32), Ok(1.5f32.to_le_bytes().into()));
        assert!(fill("nan", ElementType::F64).is_ok_and(|bytes| bytes.len() == 8));
        assert_eq!(fill("0", ElementType::Record(3)), Ok(vec![0; 3]));
        for (text, element) in [("-1", ElementType::U8), ("256", ElementType::U8), ("1.5", ElementType::I64)] {
            assert!(fill(text, element).is_err_and(|text| text.contains("--fill")), "{text}");
        }
        assert!(fill("1", ElementType::Record(3)).is_err());
    }
}
