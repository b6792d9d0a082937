//! Regions that are files, which the program itself writes and reads.

use super::arguments::{self, must_put, text};
use super::checkpoint::{CheckpointHandle, with as with_checkpoint};
use super::open::{Begun, with as with_session};
use super::restart::{RestartHandle, with as with_restart};
use super::session::SessionHandle;
use super::status::{BVK_OK, Failure, Outcome};
use bivouac_core::session::OnRestart;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Adds a file as region `name`. The program itself writes the file, or a library that needs a path does. `*path` says where to write it:
/// in node-local storage, below `local.directory`. The text of the path is valid until the checkpoint is captured or aborted. The file must
/// be complete when `bvk_capture` is called; that call reads the file and removes it. `bvk_route_saved` brings the file back; for
/// `bvk_load` the region is an array of bytes. The same name always gives the same path.
///
/// Collective: all ranks or none, between the same other collective calls, with the same names; lengths may differ. Returns without waiting
/// for the other ranks. Blocks on node-local storage.
///
/// Errors: `BVK_ERR_REGION`; `BVK_ERR_CAPTURE`: the file cannot be created there. `bvk_capture` then fails, too, and the other ranks are
/// told. The same happens if a file is missing when `bvk_capture` is called.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string; `path` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_route(
    checkpoint: *mut CheckpointHandle,
    name: *const c_char,
    path: *mut *const c_char,
) -> c_int {
    with_checkpoint(checkpoint, |open, at| {
        open.check_no_restart()?;
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name of a region") }?;
        let (id, mut begun) = open.begun.remove(at);
        let routed = begun.route(name, |begun| begun.begin_holding(open)?.route(name).map_err(Failure::from));
        open.begun.push((id, begun));
        // SAFETY: as the caller says.
        unsafe { must_put(path, routed?, "path") }?;
        Ok(BVK_OK)
    })
}

impl Begun {
    fn route(&mut self, name: &str, prepare: impl FnOnce(&mut Begun) -> Outcome<PathBuf>) -> Outcome<*const c_char> {
        if let Some(path) = self.paths.find(name) {
            return Ok(path);
        }
        self.check_new(name)?;
        let path = prepare(self).map_err(|failure| self.refused(failure))?;
        self.paths.keep(name, &path)
    }
}

/// Writes to a file the region `name` of the version being restored. The region is one that `bvk_route` saved, or any other array that
/// belongs to this rank. `*path` is in node-local storage. The file, which has mode 600, and the text of the path stay valid until
/// `bvk_end_restore`. After `BVK_AGAIN`, make this call again. Every block is checked before it is written.
///
/// Local. Blocks on the tier that holds the copy, and on node-local storage.
///
/// Errors: as for `bvk_load`, and `BVK_ERR_LOAD` if the file cannot be written.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string; `path` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_route_saved(
    restart: *mut RestartHandle,
    name: *const c_char,
    path: *mut *const c_char,
) -> c_int {
    with_restart(restart, |_, running| {
        // SAFETY: as the caller says.
        let name = unsafe { text(name, "the name of a region") }?;
        let routed = match (running.paths.find(name), running.restart.attempt()) {
            (Some(known), _) => known,
            (None, attempt) => match attempt.route(name) {
                Ok(routed) => running.paths.keep(name, &routed)?,
                Err(error) => return Err(running.missing(error)),
            },
        };
        // SAFETY: as the caller says.
        unsafe { must_put(path, routed, "path") }?;
        Ok(BVK_OK)
    })
}

/// If the companion is longer than it was at the restored checkpoint, a restart truncates it to that length.
pub const BVK_RESTART_TRUNCATE: c_int = 0;
/// If the companion is longer than it was at the restored checkpoint, the restart ends with an error on all ranks, and the companion stays
/// unchanged.
pub const BVK_RESTART_REFUSE: c_int = 1;
/// If the companion is longer than it was at the restored checkpoint, it stays unchanged, and the program continues in another file next
/// to it, for example in `traj.part0002.xtc` after `traj.xtc`.
pub const BVK_RESTART_ANOTHER: c_int = 2;

/// Keeps an output file consistent with the checkpoints of the series `name`. The program appends to this file, which may be a trajectory
/// or a time series, for example. Each checkpoint records the length of the file at the capture and a digest of its last 64 KiB. A restart
/// brings the file back to that length, in the way that `on_restart` says (one of `BVK_RESTART_...`), so that the output that a run wrote
/// after its last checkpoint does not appear twice. Make this call once, before the restart.
///
/// The file must contain all output when the checkpoint is captured: call `fflush` first. A file that is shorter than the recorded length,
/// or whose last 64 KiB before that length have a different digest, does not match the version, and all ranks continue with the next older
/// version. This happens after the loss of a node that still held the end of the file in its page cache. If there is no checkpoint to
/// restore (`BVK_NOTHING`), the file stays unchanged.
///
/// Collective: all ranks, with the same name and `on_restart`. Ranks that do not write a file pass NULL; a file belongs to one rank. Blocks
/// until all ranks have made the call.
///
/// Errors: `BVK_ERR_DISAGREED`, the same on all ranks: the arguments differ, the name is not valid for a series, or a
/// path cannot be that of a file. `BVK_ERR_ARGUMENT`, on this rank alone: `on_restart` is none of `BVK_RESTART_...`. `BVK_ERR_STATE`: a
/// restart is open.
///
/// # Safety
/// `name` and `path` are NULL or NUL-terminated strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_companion(
    session: *mut SessionHandle,
    name: *const c_char,
    path: *const c_char,
    on_restart: c_int,
) -> c_int {
    with_session(session, |open| {
        open.check_no_restart()?;
        let on_restart = match on_restart {
            BVK_RESTART_TRUNCATE => OnRestart::Truncate,
            BVK_RESTART_REFUSE => OnRestart::Refuse,
            BVK_RESTART_ANOTHER => OnRestart::Another,
            _ => return Err(Failure::argument(format!("on_restart is {on_restart}; see BVK_RESTART_..."))),
        };
        // SAFETY: as the caller says.
        let (name, path) = unsafe { (arguments::name(name), given(path)) };
        let companion = open.session.companion(name, path, on_restart)?;
        if let Some(path) = path {
            open.companions.push(((name.to_owned(), path.to_owned()), companion, None));
        }
        Ok(BVK_OK)
    })
}

/// Tells the program which path to write a companion to. After a restart with `BVK_RESTART_ANOTHER`, this may be a different path from the
/// one that the program gave. The text of the path is valid until the next call for this file, or until the session is closed.
///
/// Local, never waits.
///
/// Errors: `BVK_ERR_ARGUMENT`: this rank has not made that path a companion of the series `name`.
///
/// # Safety
/// `name` and `path` are NULL or NUL-terminated strings; `current` points to a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_companion_path(
    session: *mut SessionHandle,
    name: *const c_char,
    path: *const c_char,
    current: *mut *const c_char,
) -> c_int {
    with_session(session, |open| {
        // SAFETY: as the caller says.
        let (name, path) = unsafe { (arguments::name(name), given(path)) };
        let mut known = open.companions.iter_mut();
        let found = known.find(|((series, known), ..)| series == name && Some(known.as_path()) == path);
        let Some((_, companion, kept)) = found else {
            let path = path.unwrap_or(Path::new("NULL"));
            return Err(Failure::argument(format!("{} is not a companion of {name:?} on this rank", path.display())));
        };
        let now = companion.path().unwrap_or_default();
        let now = CString::new(now.as_os_str().as_bytes());
        let now = kept.insert(now.map_err(|_| Failure::argument("the path contains a zero byte"))?);
        // SAFETY: as the caller says.
        unsafe { must_put(current, now.as_ptr(), "current") }?;
        Ok(BVK_OK)
    })
}

/// The caller's path; `None` for NULL.
///
/// # Safety
/// `path` is NULL or ends with zero.
unsafe fn given<'a>(path: *const c_char) -> Option<&'a Path> {
    // SAFETY: as the caller says.
    let path = (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) });
    path.map(|path| Path::new(OsStr::from_bytes(path.to_bytes())))
}
