//! Host memory that the application continues to write to while a checkpoint of it is taken.
//!
//! A protected region is *live* after [`bvk_set_live`]: it is copied after the capture has returned. Only regions that are protected and
//! live may be in such a copy: before a region is unprotected, moves or ceases to be live, its copy is waited for.

use super::arguments::text;
use super::open::{Open, with};
use super::regions::Region;
use super::session::SessionHandle;
use super::status::{BVK_OK, Failure, Outcome};
use std::ffi::{c_char, c_int};

impl Open {
    /// Sets whether a protected region of the host is copied after captures have returned.
    fn set_live(&mut self, name: &str, is_live: bool) -> Outcome<()> {
        let Some(region) = self.protected.get_mut(name) else {
            let text = format!("no region {name:?} is protected: call bvk_protect before bvk_set_live");
            return Err(Failure::argument(text));
        };
        if let Some(gpu) = region.gpu().filter(|_| is_live) {
            return Err(Failure::argument(format!(
                "region {name:?} is on GPU {gpu}, but only host memory can be live: use bvk_offload for GPU memory"
            )));
        }
        if is_live && !region.is_own() {
            return Err(Failure::argument(format!(
                "region {name:?} was protected on boxes or as a value: only a region of bvk_protect can be live"
            )));
        }
        let was_live = std::mem::replace(&mut region.is_live, is_live);
        self.has_live = true;
        if was_live && !is_live {
            self.session.settle();
        }
        Ok(())
    }

    /// Waits for copies of these regions that may be running, before their memory ceases to be as the application has promised.
    pub(super) fn let_go<'a>(&self, regions: impl IntoIterator<Item = &'a Region>) {
        if regions.into_iter().any(|region| region.is_live) {
            self.session.settle();
        }
    }
}

/// Makes the protected region `name`, which must be in host memory, *live* if `on` is not 0. After this call, checkpoints write-protect its
/// pages, and a thread of Bivouac copies them while the application continues. A thread that writes to a page that has not been copied
/// waits for the copy of that page. Live copying pays off if little of the region is written soon after a checkpoint. If it does not pay
/// off, or is not possible (`docs/OFFLOAD.md` says when), the region is copied before the checkpoint call returns, as without this call. If
/// `on` is 0, the region is no longer live. A region that is protected again stays live. Regions that `bvk_save` adds are never live.
///
/// After the first call of `bvk_set_live`, `bvk_before_write` is accepted even without `bvk_offload`, so that a program can
/// declare its writes in either case.
///
/// Local. Never waits if `on` is not 0; otherwise blocks until the region has been copied.
///
/// Errors: `BVK_ERR_ARGUMENT` if no such region is protected, if it is on a GPU, or if it was protected on boxes or as a value;
/// `BVK_ERR_HANDLE`.
///
/// # Safety
/// The following holds from each checkpoint with the region until `bvk_settle`, `bvk_unprotect` of this region, the next checkpoint with a
/// live region, or `bvk_close` has returned. The region's memory stays mapped and readable, and its pages are not replaced: the memory is
/// not freed or reallocated, and its pages are not dropped or moved (`madvise`, `mremap`). The memory is written only by instructions of
/// this process, or by system calls that copy into it (`read`). Every other write is declared beforehand (`bvk_before_write`): MPI receives
/// by a network card, transfers from a GPU, and writes through buffers that are registered with the kernel, through other mappings of the
/// memory, or by other processes. With `offload.host_writes = "declared"`, every write is declared beforehand. An undeclared write may put
/// later bytes into the checkpoint, and nothing detects this. While a checkpoint call runs, no thread writes to the memory. `name` is NULL
/// or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bvk_set_live(session: *mut SessionHandle, name: *const c_char, on: c_int) -> c_int {
    with(session, |open| {
        // SAFETY: as the caller says.
        open.set_live(unsafe { text(name, "the name of a region") }?, on != 0)?;
        Ok(BVK_OK)
    })
}
