//! Regions that are written and read as streams of bytes, also through a `FILE`.

use super::arguments::{must_put, text};
use super::checkpoint::{CheckpointHandle, with as with_checkpoint};
use super::columns::SavedRows;
use super::cookie::{Calls, FILE, fopencookie};
use super::handles::{Id, Part, part, to_pointer};
use super::open::{Begun, Holding, Open};
use super::regions::{Region, Value};
use super::restart::{RestartHandle, with as with_restart};
use super::status::{BVK_OK, Failure, Outcome, call, keep_failure};

use bivouac_core::recovery::Window;
use bivouac_core::transfer::stream::ByteStream;
use std::ffi::{c_char, c_int, c_void};

impl Begun {
    /// The stream that is being written, and its checkpoint.
    fn stream(&mut self) -> Outcome<(&mut bivouac_core::session::CheckpointBuilder<'static>, ByteStream)> {
        let stream =
            self.stream.take().ok_or_else(|| Failure::state("no region of this checkpoint is being written"))?;
        match &mut self.held {
            Holding::Some(checkpoint) => Ok((checkpoint, stream)),
            Holding::Refused(failure) => Err(failure.clone()),
            Holding::Nothing => Err(Failure::state("no region of this checkpoint is being written")),
        }
    }

    fn begin_stream(&mut self, open: &Open, name: &str) -> Outcome<()> {
        if self.stream.is_some() {
            return Err(Failure::state("another region of this checkpoint is being written: end it first (fclose)"));
        }
        self.check_new(name)?;
        let later = self.with_protected.then(|| open.protected.iter()).into_iter().flatten();
        let values = self.values.iter().map(Value::body);
        let rows = self.rows.iter().map(SavedRows::body);
        let room = self.regions.iter().chain(later).map(Region::body).chain(values).chain(rows).sum();
        let checkpoint = self.begin_holding(open)?;
        let begun = checkpoint.begin_stream(name, room);
        match begun {
            Ok(stream) => {
                self.stream = Some(stream);
                Ok(())
            }
            Err(error) => Err(self.refused(error.into())),
        }
    }

    fn write_stream(&mut self, bytes: &[u8]) -> Outcome<()> {
        let (checkpoint, mut stream) = self.stream()?;
        match checkpoint.write_stream(&mut stream, bytes) {
            Ok(()) => {
                self.stream = Some(stream);
                Ok(())
            }
            Err(error) => Err(self.refused(error.into())),
        }
    }

    fn end_stream(&mut self) -> Outcome<()> {
        let (checkpoint, stream) = self.stream()?;
        let ended = checkpoint.end_stream(stream);
        ended.map_err(|error| self.refused(error.into()))
    }

    /// Records that a capture would lack this region: the other ranks are told why.
    pub(super) fn refused(&mut self, failure: Failure) -> Failure {
        if let Holding::Some(checkpoint) = std::mem::replace(&mut self.held, Holding::Refused(failure.clone())) {
            checkpoint.refuse(&failure.text);
        }
        failure
    }
}

/// Works on a checkpoint that was begun, with its session.
fn with_begun(checkpoint: *mut CheckpointHandle, work: impl FnOnce(&Open, &mut Begun) -> Outcome<()>) -> c_int {
    with_checkpoint(checkpoint, |open, at| {
        open.check_no_restart()?;
        let (id, mut begun) = open.begun.remove(at);
        let outcome = work(open, &mut begun);
        open.begun.push((id, begun));
        outcome.map(|()| BVK_OK)
    })
}

/// Begins a region of bytes whose length is not known yet. `bvk_stream_write` copies bytes to this region immediately, so that their
/// memory may be overwritten when it returns. `bvk_stream_end` ends the region. Only one region can be written at a time. `bvk_fopen`
/// does the same through a `FILE`.
///
/// Collective: all ranks or none, between the same other collective calls, with the same names; lengths may differ. Returns without waiting
/// for the other ranks. Blocks like `bvk_checkpoint`.
///
/// Errors: `BVK_ERR_CAPTURE` if no tier has room; `bvk_capture` then also fails, and the other ranks are told. `BVK_ERR_REGION`;
/// `BVK_ERR_STATE` while a region is being written, or a restart is open.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_stream_begin(checkpoint: *mut CheckpointHandle, name: *const c_char) -> c_int {
    with_begun(checkpoint, |open, begun| {
        // SAFETY: as the caller says.
        begun.begin_stream(open, unsafe { text(name, "the name of a region") }?)
    })
}

/// Writes `bytes` bytes to the region, after those written earlier.
///
/// Local. Blocks for the copy; if node memory has no room left, blocks like `bvk_checkpoint`.
///
/// Errors: as for `bvk_stream_begin`.
///
/// # Safety
/// The `bytes` bytes at `data` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_stream_write(checkpoint: *mut CheckpointHandle, data: *const c_void, bytes: u64) -> c_int {
    with_begun(checkpoint, |_, begun| {
        if bytes == 0 {
            return Ok(());
        }
        if data.is_null() {
            return Err(Failure::argument("data is NULL"));
        }
        // SAFETY: as the caller says.
        begun.write_stream(unsafe { std::slice::from_raw_parts(data.cast(), bytes as usize) })
    })
}

/// Ends the region that is being written.
///
/// Local. Blocks while the rest of the region is written.
///
/// Errors: as for `bvk_stream_begin`.
#[unsafe(no_mangle)]
pub extern "C" fn bvk_stream_end(checkpoint: *mut CheckpointHandle) -> c_int {
    with_begun(checkpoint, |_, begun| begun.end_stream())
}

/// Reads into `data` at most `bytes` bytes of the region `name`, starting at byte `at` of the region. `*found` says how many bytes were
/// read, which is fewer than `bytes` only at the end of the region. Any array can be read in this way. Every block is checked before a
/// byte of it is returned. `bvk_fopen_saved` does the same through a `FILE`, and is faster for small pieces.
///
/// Local. Blocks on the tier that holds the copy.
///
/// Errors: as for `bvk_load`; the contents of `data` are then unspecified.
///
/// # Safety
/// `data` has room for `bytes` bytes; `found` points to a number; `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_stream_read(
    restart: *mut RestartHandle,
    name: *const c_char,
    at: u64,
    data: *mut c_void,
    bytes: u64,
    found: *mut u64,
) -> c_int {
    with_restart(restart, |_, running| {
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name of a region") }?;
        if data.is_null() && bytes > 0 {
            return Err(Failure::argument("data is NULL"));
        }
        let target: &mut [u8] = match bytes {
            0 => &mut [],
            // SAFETY: as the caller says.
            _ => unsafe { std::slice::from_raw_parts_mut(data.cast(), bytes as usize) },
        };
        let attempt = running.restart.attempt();
        let read = Window::new(attempt, name).and_then(|mut window| window.read(attempt, at, target));
        let mut count = 0;
        running.note(Ok(read.map(|read| count = read as u64)))?;
        // SAFETY: as the caller says.
        unsafe { must_put(found, count, "found") }?;
        Ok(BVK_OK)
    })
}

/// Begins a region of bytes and returns a `FILE` for writing the region. This `FILE` works with all functions that take one, and is not
/// seekable. `fclose` ends the region, and fails if the region could not be written completely (`bvk_error` says why); `bvk_capture` then
/// also fails. Small writes are collected in the buffer of the `FILE`: a larger buffer than the usual few KiB (`setvbuf`) makes them
/// faster. After an error the call returns NULL, and `bvk_error` returns the text.
///
/// Collective and blocking like `bvk_stream_begin`.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string. The file is closed before the checkpoint is captured.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_fopen(checkpoint: *mut CheckpointHandle, name: *const c_char) -> *mut FILE {
    // SAFETY: as the caller says.
    if unsafe { bvk_stream_begin(checkpoint, name) } != BVK_OK {
        return std::ptr::null_mut();
    }
    let calls = Calls { read: None, write: Some(write), seek: None, close: Some(end_written) };
    // A handle is a number: there is nothing to free.
    // SAFETY: the functions take what they are given here; the mode ends with zero.
    let file = unsafe { fopencookie(checkpoint.cast(), c"w".as_ptr(), calls) };
    if file.is_null() {
        bvk_stream_end(checkpoint);
        keep_failure(&Failure::state("the C library has no memory for a file"));
    }
    file
}

/// # Safety
/// `cookie` is the handle of a checkpoint; there are `bytes` bytes at `data`.
unsafe extern "C" fn write(cookie: *mut c_void, data: *const c_char, bytes: usize) -> isize {
    // SAFETY: as the caller says.
    match unsafe { bvk_stream_write(cookie.cast(), data.cast(), bytes as u64) } {
        BVK_OK => bytes as isize,
        // Anything else would be taken for a part that was written.
        _ => 0,
    }
}

/// # Safety
/// `cookie` is the handle of a checkpoint.
unsafe extern "C" fn end_written(cookie: *mut c_void) -> c_int {
    if bvk_stream_end(cookie.cast()) == BVK_OK { 0 } else { -1 }
}

/// The region that a file for reading reads.
struct Reading {
    restart: Id,
    window: Window,
    at: u64,
}

/// Returns a `FILE` that reads the region `name` of the version being restored. The `FILE` is seekable. Each attempt needs its own file:
/// after `BVK_AGAIN`, reading from an earlier file fails. After an error the call returns NULL, and `bvk_error` returns the text.
///
/// Local. Blocks on the tier that holds the copy, and so does reading from the file.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_fopen_saved(restart: *mut RestartHandle, name: *const c_char) -> *mut FILE {
    let mut window = None;
    let found = with_restart(restart, |_, running| {
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name of a region") }?;
        match Window::new(running.restart.attempt(), name) {
            Ok(found) => window = Some(found),
            Err(error) => return Err(running.missing(error)),
        }
        Ok(BVK_OK)
    });
    let Some(window) = window.filter(|_| found == BVK_OK) else { return std::ptr::null_mut() };
    let cookie = Box::into_raw(Box::new(Reading { restart: restart.addr(), window, at: 0 }));
    let calls = Calls { read: Some(read), write: None, seek: Some(seek), close: Some(end_read) };
    // SAFETY: the functions take what they are given here; the mode ends with zero.
    let file = unsafe { fopencookie(cookie.cast(), c"r".as_ptr(), calls) };
    if file.is_null() {
        // SAFETY: it was made above, and nobody else has it.
        drop(unsafe { Box::from_raw(cookie) });
        keep_failure(&Failure::state("the C library has no memory for a file"));
    }
    file
}

/// # Safety
/// `cookie` was made by [`bvk_fopen_saved`]; there is room for `bytes` bytes at `data`.
unsafe extern "C" fn read(cookie: *mut c_void, data: *mut c_char, bytes: usize) -> isize {
    // SAFETY: as the caller says; the library calls for one file at a time.
    let (reading, target) =
        unsafe { (&mut *cookie.cast::<Reading>(), std::slice::from_raw_parts_mut(data.cast::<u8>(), bytes)) };
    let mut count = 0;
    let done = call(|| {
        let (id, open) = part::<RestartHandle>(to_pointer(reading.restart), Part::Restart)?;
        super::restart::on(
            &open,
            |running| running.id == id,
            |_, running| {
                let attempt = running.restart.attempt();
                if !reading.window.is_of(attempt) {
                    return Err(Failure::state(
                        "the restart has continued with another version: open the region again",
                    ));
                }
                let read = reading.window.read(attempt, reading.at, target);
                running.note(Ok(read.map(|read| count = read)))
            },
        )
    });
    reading.at += count as u64;
    if done == BVK_OK { count as isize } else { -1 }
}

/// # Safety
/// `cookie` was made by [`bvk_fopen_saved`]; `offset` points to a number.
unsafe extern "C" fn seek(cookie: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    // SAFETY: as the caller says; the library calls for one file at a time.
    let (reading, offset) = unsafe { (&mut *cookie.cast::<Reading>(), &mut *offset) };
    let from = match whence {
        0 => Some(0),
        1 => Some(reading.at),
        2 => Some(reading.window.length()),
        _ => None,
    };
    match from.and_then(|from| from.checked_add_signed(*offset)).and_then(|at| i64::try_from(at).ok()) {
        Some(at) => {
            reading.at = at as u64;
            *offset = at;
            0
        }
        None => -1,
    }
}

/// # Safety
/// `cookie` was made by [`bvk_fopen_saved`], and is not used again.
unsafe extern "C" fn end_read(cookie: *mut c_void) -> c_int {
    // SAFETY: as the caller says.
    drop(unsafe { Box::from_raw(cookie.cast::<Reading>()) });
    0
}
