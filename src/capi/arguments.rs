//! Converts C text, memory and structures to checked values.

use super::status::{Failure, Outcome};
use bivouac_core::format::ElementType;
use std::ffi::{CStr, c_char, c_int};

/// Unsigned bytes without further meaning. A negative type stands for an application-defined record; the absolute value of the type is the
/// size of the record in bytes: `BVK_RECORD(48)` in C, -48 in other languages.
pub const BVK_U8: c_int = 1;
/// Signed 8-bit integers.
pub const BVK_I8: c_int = 2;
/// Unsigned 16-bit integers.
pub const BVK_U16: c_int = 3;
/// Signed 16-bit integers.
pub const BVK_I16: c_int = 4;
/// Unsigned 32-bit integers.
pub const BVK_U32: c_int = 5;
/// Signed 32-bit integers.
pub const BVK_I32: c_int = 6;
/// Unsigned 64-bit integers.
pub const BVK_U64: c_int = 7;
/// Signed 64-bit integers.
pub const BVK_I64: c_int = 8;
/// IEEE single precision.
pub const BVK_F32: c_int = 9;
/// IEEE double precision.
pub const BVK_F64: c_int = 10;

/// Refuses numbers that no version has: a negative number from a language with signed integers, or a number that is too large.
pub(super) fn check_version(version: u64) -> Outcome<()> {
    match i64::try_from(version) {
        Ok(_) => Ok(()),
        Err(_) => Err(Failure::argument(format!("version {} is negative: versions start at 0", version as i64))),
    }
}

/// The element type that a number stands for.
pub(super) fn element(number: c_int) -> Outcome<ElementType> {
    Ok(match number {
        BVK_U8 => ElementType::U8,
        BVK_I8 => ElementType::I8,
        BVK_U16 => ElementType::U16,
        BVK_I16 => ElementType::I16,
        BVK_U32 => ElementType::U32,
        BVK_I32 => ElementType::I32,
        BVK_U64 => ElementType::U64,
        BVK_I64 => ElementType::I64,
        BVK_F32 => ElementType::F32,
        BVK_F64 => ElementType::F64,
        record if record < 0 => ElementType::Record(record.unsigned_abs()),
        _ => {
            return Err(Failure::argument(format!(
                "there is no element type {number}; see BVK_U8 to BVK_F64 and BVK_RECORD"
            )));
        }
    })
}

/// The number of an element type.
pub(super) fn number(element: ElementType) -> c_int {
    match element {
        ElementType::U8 => BVK_U8,
        ElementType::I8 => BVK_I8,
        ElementType::U16 => BVK_U16,
        ElementType::I16 => BVK_I16,
        ElementType::U32 => BVK_U32,
        ElementType::I32 => BVK_I32,
        ElementType::U64 => BVK_U64,
        ElementType::I64 => BVK_I64,
        ElementType::F32 => BVK_F32,
        ElementType::F64 => BVK_F64,
        ElementType::Record(bytes) => c_int::try_from(bytes).map_or(c_int::MIN, |bytes| -bytes),
    }
}

/// Text from C.
///
/// # Safety
/// `text` is NULL or ends with a zero byte, and stays as it is while the result is used.
pub(super) unsafe fn text<'a>(text: *const c_char, what: &str) -> Outcome<&'a str> {
    if text.is_null() {
        return Err(Failure::argument(format!("{what} is NULL")));
    }
    // SAFETY: not NULL, so it ends with a zero byte and stays, says the caller.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::argument(format!("{what} is not UTF-8 text: {text:?}")))
}

/// A name for a collective call. A name that cannot be read becomes the empty name, which this rank's session and the other ranks refuse
/// together.
///
/// # Safety
/// As [`text`].
pub(super) unsafe fn name<'a>(name: *const c_char) -> &'a str {
    // SAFETY: as the caller says.
    unsafe { text(name, "the name") }.unwrap_or_default()
}

/// Writes a result to `target`, unless it is NULL.
///
/// # Safety
/// `target` is NULL or points to a `T`.
pub(super) unsafe fn put<T>(target: *mut T, value: T) {
    if !target.is_null() {
        // SAFETY: not NULL, so it points to a `T`, says the caller.
        unsafe { target.write_unaligned(value) };
    }
}

/// Writes to `target` the result that a call is made for; NULL is an error.
///
/// # Safety
/// As [`put`].
pub(super) unsafe fn must_put<T>(target: *mut T, value: T, what: &str) -> Outcome<()> {
    if target.is_null() {
        return Err(Failure::argument(format!("{what} is NULL")));
    }
    // SAFETY: as the caller says.
    unsafe { put(target, value) };
    Ok(())
}

/// Reads a structure that begins with its size, from a program whose header may be older or newer. Members that the program's structure
/// lacks are zero, and bytes beyond the end of this library's structure must be zero.
///
/// # Safety
/// `source` points to a `size_t` that says how many bytes are readable, starting at `source`, and a `T` whose bytes are all zero is valid.
pub(super) unsafe fn sized<T: Copy>(source: *const T, what: &str) -> Outcome<T> {
    // SAFETY: the structure begins with its size, says the caller.
    let size = unsafe { source.cast::<usize>().read_unaligned() };
    check_size(size, what)?;
    // SAFETY: `size` bytes can be read, says the caller.
    let bytes = unsafe { std::slice::from_raw_parts(source.cast::<u8>(), size) };
    if bytes.iter().skip(size_of::<T>()).any(|byte| *byte != 0) {
        return Err(Failure::argument(format!(
            "{what} has members that this library does not know: the library is older than the header; update it"
        )));
    }
    // SAFETY: all bytes zero is a valid value, says the caller, and as many bytes as both have are written over it.
    unsafe {
        let mut value: T = std::mem::zeroed();
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut value).cast::<u8>(), size.min(size_of::<T>()));
        Ok(value)
    }
}

/// Fills a structure that begins with its size, as far as the structure has room. The size member stays unchanged.
///
/// # Safety
/// `target` is NULL or points to a `size_t` that says how many bytes are writable, starting at `target`; `value` has no padding.
pub(super) unsafe fn fill<T: Copy>(target: *mut T, value: T, what: &str) -> Outcome<()> {
    if target.is_null() {
        return Ok(());
    }
    let head = size_of::<usize>();
    // SAFETY: the structure begins with its size, says the caller, and `size` bytes can be written.
    unsafe {
        let size = target.cast::<usize>().read_unaligned();
        check_size(size, what)?;
        let (from, to) = ((&raw const value).cast::<u8>(), target.cast::<u8>());
        std::ptr::copy_nonoverlapping(from.add(head), to.add(head), size.min(size_of::<T>()) - head);
    }
    Ok(())
}

/// Can [`fill`] fill this structure? A call asks this before it does anything that cannot be undone.
///
/// # Safety
/// As [`fill`].
pub(super) unsafe fn check_fillable<T>(target: *const T, what: &str) -> Outcome<()> {
    if target.is_null() {
        return Ok(());
    }
    // SAFETY: the structure begins with its size, says the caller.
    check_size(unsafe { target.cast::<usize>().read_unaligned() }, what)
}

fn check_size(size: usize, what: &str) -> Outcome<()> {
    if (size_of::<usize>()..=4096).contains(&size) {
        return Ok(());
    }
    Err(Failure::argument(format!("the size member of {what} is {size}: set it to sizeof({what}) first")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_numbers_are_one_to_one() {
        for number_of in (BVK_U8..=BVK_F64).chain([-1, -48, -c_int::MAX]) {
            assert_eq!(number(element(number_of).unwrap()), number_of);
        }
        assert!(element(0).is_err() && element(BVK_F64 + 1).is_err());
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Two {
        size: usize,
        first: u64,
        second: u64,
    }

    #[test]
    fn structures_of_older_and_newer_headers_are_read_and_filled() {
        let newer = [24usize + 8, 1, 2, 0];
        let older = [16usize, 7];
        // SAFETY: both begin with the size that they have.
        unsafe {
            let read = sized(newer.as_ptr().cast::<Two>(), "two").unwrap();
            assert_eq!((read.first, read.second), (1, 2));
            let read = sized(older.as_ptr().cast::<Two>(), "two").unwrap();
            assert_eq!((read.first, read.second), (7, 0));
            let unknown = [32usize, 1, 2, 3];
            assert!(sized(unknown.as_ptr().cast::<Two>(), "two").is_err());
            assert!(sized([0usize; 3].as_ptr().cast::<Two>(), "two").is_err());
            let mut room = [16usize, 0, 99];
            fill(room.as_mut_ptr().cast::<Two>(), Two { size: 24, first: 5, second: 6 }, "two").unwrap();
            assert_eq!(room, [16, 5, 99], "nothing is written behind what the caller has");
        }
    }
}
