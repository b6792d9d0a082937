//! ISA-L, Intel's library of erasure-code kernels, opened at run time if it is installed.
//!
//! Two of its functions suffice: `ec_init_tables` prepares factors, and `ec_encode_data_update` adds multiples of one
//! source to several targets. They are always used together, because the layout of the tables is internal to the
//! library and differs between its versions and between processors. A library whose results differ from ours is not
//! used.

use super::gf;
use std::ffi::{CStr, c_int, c_uchar, c_void};

/// The name by which all 2.x versions are found.
const LIBRARY: &CStr = c"libisal.so.2";
/// The number of bytes of table for each factor.
const TABLE: usize = 32;
/// The maximum number of targets per call; more targets take several calls.
const TARGETS_MAX: usize = 8;
/// The library gets only multiples of the width of its widest registers, because shorter pieces take other paths in it,
/// which differ between versions.
pub(super) const LINE: usize = 64;
/// The maximum number of bytes per call: the library counts in C integers.
const BYTES_MAX: usize = 1 << 30;

/// `void ec_init_tables(int k, int rows, unsigned char *a, unsigned char *gftbls)`
type InitTables = unsafe extern "C" fn(c_int, c_int, *mut c_uchar, *mut c_uchar);
/// `void ec_encode_data_update(int len, int k, int rows, int vec_i, unsigned char *g_tbls, unsigned char *data,
/// unsigned char **coding)`
type EncodeUpdate = unsafe extern "C" fn(c_int, c_int, c_int, c_int, *mut c_uchar, *mut c_uchar, *mut *mut c_uchar);

/// The functions of a library that was opened and tested.
#[derive(Clone, Copy)]
pub(super) struct Isal {
    init_tables: InitTables,
    encode_update: EncodeUpdate,
}

impl Isal {
    /// Opens the library and tests it.
    ///
    /// # Errors
    /// The reason, in words, why the library cannot be used.
    pub fn open() -> Result<Isal, String> {
        // SAFETY: the name is a C string; ISA-L's initialisers touch nothing but itself. The handle is never closed, so
        // the functions stay valid as long as the process lives.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(last_error());
        }
        let init_tables = symbol(handle, c"ec_init_tables")?;
        let encode_update = symbol(handle, c"ec_encode_data_update")?;
        // SAFETY: the symbols were found in version 2 of the library, whose erasure_code.h declares them with exactly
        // these types.
        let isal = unsafe {
            Isal {
                init_tables: std::mem::transmute::<*mut c_void, InitTables>(init_tables),
                encode_update: std::mem::transmute::<*mut c_void, EncodeUpdate>(encode_update),
            }
        };
        if isal.gives_our_bytes() { Ok(isal) } else { Err("its products differ from those of the format".to_owned()) }
    }

    /// `target ^= factor * source` for each factor and its target.
    ///
    /// # Panics
    /// If the number of targets differs from that of factors, if the length of a target differs from that of the
    /// source, or if this length is not a multiple of [`LINE`].
    pub fn add(&self, factors: &[u8], source: &[u8], targets: &mut [&mut [u8]]) {
        assert_eq!(factors.len(), targets.len(), "a target for each factor");
        assert!(source.len().is_multiple_of(LINE) && targets.iter().all(|target| target.len() == source.len()));
        for (factors, targets) in factors.chunks(TARGETS_MAX).zip(targets.chunks_mut(TARGETS_MAX)) {
            let rows = factors.len();
            let (mut values, mut tables) = ([0u8; TARGETS_MAX], [0u8; TABLE * TARGETS_MAX]);
            values[..rows].copy_from_slice(factors);
            // SAFETY: `values` holds k * rows = rows factors and `tables` 32 bytes for each of them.
            unsafe { (self.init_tables)(1, rows as c_int, values.as_mut_ptr(), tables.as_mut_ptr()) };
            for start in (0..source.len()).step_by(BYTES_MAX) {
                let piece = &source[start..source.len().min(start + BYTES_MAX)];
                let mut outputs = [std::ptr::null_mut(); TARGETS_MAX];
                for (output, target) in outputs.iter_mut().zip(targets.iter_mut()) {
                    *output = target[start..start + piece.len()].as_mut_ptr();
                }
                // SAFETY: `piece` and the `rows` targets to which `outputs` points are `piece.len()` bytes long, which
                // fits an int (BYTES_MAX); the targets are borrowed mutably, so nothing overlaps; the source is only
                // read, although C's declaration lacks the const; the tables were made for k = 1 and these rows, and
                // vec_i = 0 is the only source.
                unsafe {
                    (self.encode_update)(
                        piece.len() as c_int,
                        1,
                        rows as c_int,
                        0,
                        tables.as_mut_ptr(),
                        piece.as_ptr().cast_mut(),
                        outputs.as_mut_ptr(),
                    );
                }
            }
        }
        clean_wide_registers();
    }

    /// Tests each factor on each byte, and each number of targets.
    fn gives_our_bytes(&self) -> bool {
        let source: [u8; 256] = std::array::from_fn(|at| at as u8);
        let values: [u8; 256] = std::array::from_fn(|at| (at as u8).wrapping_mul(41));
        let mut rows = (1..=TARGETS_MAX).cycle();
        let mut rest = &values[..];
        while !rest.is_empty() {
            let (factors, after) = rest.split_at(rest.len().min(rows.next().unwrap_or(1)));
            rest = after;
            let mut outputs = vec![source; factors.len()];
            let mut targets: Vec<&mut [u8]> = outputs.iter_mut().map(|output| &mut output[..]).collect();
            self.add(factors, &source, &mut targets);
            let is_right = factors.iter().zip(&outputs).all(|(factor, output)| {
                source.iter().zip(output).all(|(byte, sum)| *sum == byte ^ gf::multiply(*factor, *byte))
            });
            if !is_right {
                return false;
            }
        }
        true
    }
}

/// Zeroes the upper halves of the vector registers. ISA-L (2.30) leaves values there. Until these are cleared, every
/// 128-bit instruction of the process, including those of the application, has to preserve them. By measurement, they make
/// the portable loop of this project four times slower.
fn clean_wide_registers() {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the processor has AVX. By the calling convention no caller keeps values in those halves.
        unsafe { zero_upper() };
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
fn zero_upper() {
    std::arch::x86_64::_mm256_zeroupper();
}

fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the handle came from dlopen and was not closed; the name is a C string.
    let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if address.is_null() { Err(last_error()) } else { Ok(address) }
}

/// The dynamic loader's message about its last failure in this thread.
fn last_error() -> String {
    // SAFETY: dlerror gives null or a C string that stays valid until this thread's next call to the loader; it is copied
    // here.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
    };
    text.unwrap_or_else(|| "the dynamic loader gives no reason".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keeps the factor in the first byte of its table, as only this library does.
    unsafe extern "C" fn init(k: c_int, rows: c_int, factors: *mut c_uchar, tables: *mut c_uchar) {
        for at in 0..(k * rows) as usize {
            // SAFETY: the caller has k * rows factors and 32 bytes of table for each.
            unsafe { *tables.add(at * TABLE) = *factors.add(at) };
        }
    }

    /// Adds products; one product of the factor `WRONG` is wrong.
    unsafe extern "C" fn update<const WRONG: i32>(
        length: c_int,
        _: c_int,
        rows: c_int,
        _: c_int,
        tables: *mut c_uchar,
        source: *mut c_uchar,
        targets: *mut *mut c_uchar,
    ) {
        for row in 0..rows as usize {
            for at in 0..length as usize {
                // SAFETY: the caller has `rows` tables and targets, and `length` bytes in the source and in each target.
                unsafe {
                    let factor = *tables.add(row * TABLE);
                    let is_wrong = i32::from(factor) == WRONG && *source.add(at) == 200;
                    *(*targets.add(row)).add(at) ^= gf::multiply(factor, *source.add(at)) ^ u8::from(is_wrong);
                }
            }
        }
    }

    #[test]
    fn a_library_with_one_wrong_product_is_not_used() {
        assert!(Isal { init_tables: init, encode_update: update::<-1> }.gives_our_bytes());
        for isal in [update::<0>, update::<1>, update::<41>, update::<255>] {
            assert!(!Isal { init_tables: init, encode_update: isal }.gives_our_bytes());
        }
    }
}
