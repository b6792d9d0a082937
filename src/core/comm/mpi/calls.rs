//! The MPI functions that we use, each as a Rust function that checks the return code.
//!
//! The functions are unsafe where MPI trusts its caller: handles must be live, memory must be valid, MPI must be
//! initialized and not finalized, and the calling thread must be allowed to call. "Callable" in the safety sections
//! below means the last three. Every return code goes through [`Reporter::check`].

use crate::base::Rank;
use crate::base::log;
use crate::comm::{CommError, ThreadLevel, Unusable};
use ::mpi::ffi::{self, MPI_Comm, MPI_Group, MPI_Message, MPI_Request, MPI_Status};
use std::mem::MaybeUninit;
use std::os::raw::{c_char, c_int, c_void};

/// The tags on our own communicator.
#[derive(Clone, Copy)]
pub(super) enum Tag {
    /// A message.
    Message = 1,
    /// The head that announces a parcel.
    Head = 2,
    /// The bytes of a parcel.
    Body = 3,
}

/// The rank that reports errors, which is the calling rank.
#[derive(Clone, Copy)]
pub(super) struct Reporter(pub(super) Rank);

impl Reporter {
    /// Turns a return code into a result, with the library's description of an error.
    pub(super) fn check(self, call: &'static str, code: c_int) -> Result<(), CommError> {
        if code == ffi::MPI_SUCCESS as c_int {
            return Ok(());
        }
        Err(CommError::Mpi { rank: self.0, call, code, text: error_text(code) })
    }

    /// An error that MPI did not report as one.
    pub(super) fn strange(self, call: &'static str, code: c_int, text: String) -> CommError {
        CommError::Mpi { rank: self.0, call, code, text }
    }
}

/// The library's description of an error code.
fn error_text(code: c_int) -> String {
    let mut text = [0u8; ffi::MPI_MAX_ERROR_STRING as usize + 1];
    let mut length: c_int = 0;
    // SAFETY: the buffer has room for MPI_MAX_ERROR_STRING characters, which is what the function may write. An error
    // code exists only after another MPI function returned it, so the library is loaded.
    let result = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut length) };
    if result != ffi::MPI_SUCCESS as c_int {
        return "no description (MPI_Error_string failed as well)".to_owned();
    }
    let length = usize::try_from(length).unwrap_or(0).min(text.len());
    String::from_utf8_lossy(&text[..length]).trim_end().to_owned()
}

pub(super) fn comm_null() -> MPI_Comm {
    // SAFETY: a constant of the C shim, set at link time and never written.
    unsafe { ffi::RSMPI_COMM_NULL }
}

pub(super) fn comm_world() -> MPI_Comm {
    // SAFETY: as in `comm_null`.
    unsafe { ffi::RSMPI_COMM_WORLD }
}

pub(super) fn comm_self() -> MPI_Comm {
    // SAFETY: as in `comm_null`.
    unsafe { ffi::RSMPI_COMM_SELF }
}

/// The handle for Fortran's number of a communicator. MPI must be initialized.
pub(super) fn comm_from_fortran(number: c_int) -> Result<MPI_Comm, CommError> {
    if size_of::<MPI_Comm>() == size_of::<c_int>() {
        // In MPICH and its derivatives, Fortran's number is the handle, and the conversion is a macro.
        // SAFETY: both are integers of the same size.
        return Ok(unsafe { std::mem::transmute_copy(&number) });
    }
    // SAFETY: the name ends with a zero byte; the MPI library is linked, so it is found among the symbols of the
    // process.
    let convert = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"MPI_Comm_f2c".as_ptr()) };
    if convert.is_null() {
        return Err(Reporter(Rank::ROOT).strange(
            "MPI_Comm_f2c",
            number,
            "the MPI library has no such function".into(),
        ));
    }
    // SAFETY: the standard gives the function this signature, MPI_Fint being an int; it looks the number up in a table.
    unsafe {
        let convert: unsafe extern "C" fn(c_int) -> MPI_Comm = std::mem::transmute(convert);
        Ok(convert(number))
    }
}

/// Is a handle that is a pointer null? Handles that are integers may well be zero.
pub(super) fn is_zero_pointer(comm: MPI_Comm) -> bool {
    if size_of::<MPI_Comm>() != size_of::<usize>() {
        return false;
    }
    // SAFETY: both have the same size, and every bit pattern is a number.
    let number: usize = unsafe { std::mem::transmute_copy(&comm) };
    number == 0
}

/// Whether `MPI_Finalize` has been called. This may be called at any time.
pub(super) fn is_finalized(reporter: Reporter) -> Result<bool, CommError> {
    let mut flag: c_int = 0;
    // SAFETY: MPI_Finalized may be called at any time and from any thread; it writes one integer.
    reporter.check("MPI_Finalized", unsafe { ffi::MPI_Finalized(&mut flag) })?;
    Ok(flag != 0)
}

/// Whether MPI may be called here and now; if so, the thread level that was granted.
pub(super) fn usable_from_this_thread() -> Result<ThreadLevel, CommError> {
    let reporter = Reporter(Rank::ROOT);
    let (mut initialized, mut level, mut main): (c_int, c_int, c_int) = (0, 0, 0);
    // SAFETY: MPI_Initialized may be called at any time and from any thread; it writes one integer.
    reporter.check("MPI_Initialized", unsafe { ffi::MPI_Initialized(&mut initialized) })?;
    if initialized == 0 {
        return Err(Unusable::NotInitialized.into());
    }
    if is_finalized(reporter)? {
        return Err(Unusable::Finalized.into());
    }
    // SAFETY: MPI is initialized and not finalized; both functions may then be called from any thread and write one
    // integer each.
    unsafe {
        reporter.check("MPI_Query_thread", ffi::MPI_Query_thread(&mut level))?;
        reporter.check("MPI_Is_thread_main", ffi::MPI_Is_thread_main(&mut main))?;
    }
    let level = thread_level(level);
    if level < ThreadLevel::Serialized && main == 0 {
        return Err(Unusable::WrongThread { level }.into());
    }
    Ok(level)
}

/// The level for an MPI constant. By the standard the constants are in ascending order, and a value between two of them
/// is read as the lower one.
fn thread_level(raw: c_int) -> ThreadLevel {
    // SAFETY: constants of the C shim, set at link time and never written.
    let (funneled, serialized, multiple) =
        unsafe { (ffi::RSMPI_THREAD_FUNNELED, ffi::RSMPI_THREAD_SERIALIZED, ffi::RSMPI_THREAD_MULTIPLE) };
    match raw {
        _ if raw >= multiple => ThreadLevel::Multiple,
        _ if raw >= serialized => ThreadLevel::Serialized,
        _ if raw >= funneled => ThreadLevel::Funneled,
        _ => ThreadLevel::Single,
    }
}

/// Turns a number that MPI promises to be non-negative into an unsigned one.
fn unsigned(reporter: Reporter, call: &'static str, value: c_int) -> Result<u32, CommError> {
    u32::try_from(value).map_err(|_| reporter.strange(call, value, format!("it returned the number {value}")))
}

/// # Safety
/// Callable; `comm` live.
pub(super) unsafe fn comm_rank(reporter: Reporter, comm: MPI_Comm) -> Result<Rank, CommError> {
    let mut rank: c_int = 0;
    // SAFETY: the caller's promise; one integer is written.
    reporter.check("MPI_Comm_rank", unsafe { ffi::MPI_Comm_rank(comm, &mut rank) })?;
    unsigned(reporter, "MPI_Comm_rank", rank).map(Rank)
}

/// # Safety
/// Callable; `comm` live.
pub(super) unsafe fn comm_size(reporter: Reporter, comm: MPI_Comm) -> Result<u32, CommError> {
    let mut size: c_int = 0;
    // SAFETY: the caller's promise; one integer is written.
    reporter.check("MPI_Comm_size", unsafe { ffi::MPI_Comm_size(comm, &mut size) })?;
    unsigned(reporter, "MPI_Comm_size", size)
}

/// # Safety
/// Callable; `comm` live.
pub(super) unsafe fn comm_is_inter(reporter: Reporter, comm: MPI_Comm) -> Result<bool, CommError> {
    let mut flag: c_int = 0;
    // SAFETY: the caller's promise; one integer is written.
    reporter.check("MPI_Comm_test_inter", unsafe { ffi::MPI_Comm_test_inter(comm, &mut flag) })?;
    Ok(flag != 0)
}

/// A new communicator with all ranks of `comm` in the order of `key`. Collective.
///
/// # Safety
/// Callable; `comm` a live intracommunicator.
pub(super) unsafe fn comm_split_together(reporter: Reporter, comm: MPI_Comm, key: Rank) -> Result<MPI_Comm, CommError> {
    let mut new = comm_null();
    // SAFETY: the caller's promise; one handle is written.
    reporter.check("MPI_Comm_split", unsafe { ffi::MPI_Comm_split(comm, 0, key.0 as c_int, &mut new) })?;
    Ok(new)
}

/// A new communicator with the ranks of `comm` that share this rank's node, in the order of `key`. Collective.
///
/// # Safety
/// Callable; `comm` a live intracommunicator.
pub(super) unsafe fn comm_split_shared(reporter: Reporter, comm: MPI_Comm, key: Rank) -> Result<MPI_Comm, CommError> {
    let mut new = comm_null();
    // SAFETY: the caller's promise; the two constants are set at link time; one handle is written.
    let code = unsafe {
        ffi::MPI_Comm_split_type(comm, ffi::RSMPI_COMM_TYPE_SHARED, key.0 as c_int, ffi::RSMPI_INFO_NULL, &mut new)
    };
    reporter.check("MPI_Comm_split_type", code)?;
    Ok(new)
}

/// Makes errors on `comm` return instead of ending the job.
///
/// # Safety
/// Callable; `comm` live.
pub(super) unsafe fn comm_set_errors_return(reporter: Reporter, comm: MPI_Comm) -> Result<(), CommError> {
    // SAFETY: the caller's promise; the handler is a predefined constant.
    reporter.check("MPI_Comm_set_errhandler", unsafe { ffi::MPI_Comm_set_errhandler(comm, ffi::RSMPI_ERRORS_RETURN) })
}

/// Frees a communicator. The call is collective by the standard; in Open MPI and MPICH it only decrements a reference
/// count.
///
/// # Safety
/// Callable; `comm` live, not predefined, and not used afterwards.
pub(super) unsafe fn comm_free(reporter: Reporter, mut comm: MPI_Comm) -> Result<(), CommError> {
    // SAFETY: the caller's promise; the handle that is overwritten is our copy.
    reporter.check("MPI_Comm_free", unsafe { ffi::MPI_Comm_free(&mut comm) })
}

/// A group that is freed when it goes out of scope.
struct Group(MPI_Group, Reporter);

impl Group {
    /// # Safety
    /// Callable, until the group is dropped; `comm` live.
    unsafe fn of(reporter: Reporter, comm: MPI_Comm) -> Result<Self, CommError> {
        // SAFETY: a constant of the C shim; then the caller's promise; one handle is written.
        let (group, code) = unsafe {
            let mut group = ffi::RSMPI_GROUP_NULL;
            let code = ffi::MPI_Comm_group(comm, &mut group);
            (group, code)
        };
        reporter.check("MPI_Comm_group", code)?;
        Ok(Group(group, reporter))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // SAFETY: the group is live: it was made in `of` and is freed only here.
        if let Err(error) = self.1.check("MPI_Group_free", unsafe { ffi::MPI_Group_free(&mut self.0) }) {
            log::warn!(target: super::TARGET, "event=group_free_failed error={error:?}");
        }
    }
}

/// The ranks that the given ranks of `from` have in `to`; `None` for ranks that `to` does not have. Local.
///
/// # Safety
/// Callable; both communicators live; `ranks` valid in `from`.
pub(super) unsafe fn translate_ranks(
    reporter: Reporter,
    from: MPI_Comm,
    ranks: &[c_int],
    to: MPI_Comm,
) -> Result<Vec<Option<u32>>, CommError> {
    let mut translated: Vec<c_int> = vec![0; ranks.len()];
    // SAFETY: the caller's promise. The output has as many numbers as the input, and there are at most as many as
    // ranks in a communicator, which MPI counts in a `c_int`.
    let code = unsafe {
        let (from, to) = (Group::of(reporter, from)?, Group::of(reporter, to)?);
        ffi::MPI_Group_translate_ranks(from.0, ranks.len() as c_int, ranks.as_ptr(), to.0, translated.as_mut_ptr())
    };
    reporter.check("MPI_Group_translate_ranks", code)?;
    // MPI_UNDEFINED is negative in all libraries, and ranks are not.
    Ok(translated.into_iter().map(|rank| u32::try_from(rank).ok()).collect())
}

/// Every rank's `value`, by rank. Collective.
///
/// # Safety
/// Callable; `comm` live, of `size` ranks.
pub(super) unsafe fn allgather(
    reporter: Reporter,
    comm: MPI_Comm,
    value: c_int,
    size: u32,
) -> Result<Vec<c_int>, CommError> {
    const { assert!(size_of::<c_int>() == 4, "c_int is sent as MPI_INT32_T") };
    let mut all: Vec<c_int> = vec![0; size as usize];
    // SAFETY: the caller's promise; one number is read and `size` numbers are written.
    let code = unsafe {
        let int = ffi::RSMPI_INT32_T;
        ffi::MPI_Allgather((&raw const value).cast::<c_void>(), 1, int, all.as_mut_ptr().cast::<c_void>(), 1, int, comm)
    };
    reporter.check("MPI_Allgather", code)?;
    Ok(all)
}

/// Starts to send a message.
///
/// # Safety
/// Callable; `comm` live; `to` a member; the bytes, at most [`MAX_MESSAGE_BYTES`](crate::comm::MAX_MESSAGE_BYTES), stay
/// in place and unchanged until the request is complete.
pub(super) unsafe fn isend(
    reporter: Reporter,
    comm: MPI_Comm,
    bytes: *const [u8],
    to: Rank,
    tag: Tag,
) -> Result<MPI_Request, CommError> {
    // SAFETY: the caller's promise; the length fits: MAX_MESSAGE_BYTES is far below the largest `c_int`.
    let (request, code) = unsafe {
        let mut request = ffi::RSMPI_REQUEST_NULL;
        let (start, length) = (bytes.cast::<c_void>(), bytes.len() as c_int);
        let code = ffi::MPI_Isend(start, length, ffi::RSMPI_UINT8_T, to.0 as c_int, tag as c_int, comm, &mut request);
        (request, code)
    };
    reporter.check("MPI_Isend", code)?;
    Ok(request)
}

/// Starts to send; the request is complete only when the receiver has matched the message.
///
/// # Safety
/// As [`isend`].
pub(super) unsafe fn issend(
    reporter: Reporter,
    comm: MPI_Comm,
    bytes: *const [u8],
    to: Rank,
    tag: Tag,
) -> Result<MPI_Request, CommError> {
    // SAFETY: as in `isend`.
    let (request, code) = unsafe {
        let mut request = ffi::RSMPI_REQUEST_NULL;
        let (start, length) = (bytes.cast::<c_void>(), bytes.len() as c_int);
        let code = ffi::MPI_Issend(start, length, ffi::RSMPI_UINT8_T, to.0 as c_int, tag as c_int, comm, &mut request);
        (request, code)
    };
    reporter.check("MPI_Issend", code)?;
    Ok(request)
}

/// The length of the message that a status describes.
fn bytes_of(reporter: Reporter, status: &MPI_Status) -> Result<usize, CommError> {
    let mut count: c_int = 0;
    // SAFETY: the status is a live value that MPI has written; one integer is written.
    reporter.check("MPI_Get_count", unsafe { ffi::MPI_Get_count(status, ffi::RSMPI_UINT8_T, &mut count) })?;
    Ok(unsigned(reporter, "MPI_Get_count", count)? as usize)
}

/// A message that was matched and must be received with [`imrecv`].
pub(super) struct Announced {
    message: MPI_Message,
    pub(super) from: Rank,
    pub(super) bytes: usize,
}

/// Matches the next message of `from` (None: of any rank) with this tag, if one is announced. A message of more than
/// `longest` bytes is an error.
///
/// # Safety
/// Callable; `comm` live; `from` a member.
pub(super) unsafe fn improbe(
    reporter: Reporter,
    comm: MPI_Comm,
    from: Option<Rank>,
    tag: Tag,
    longest: usize,
) -> Result<Option<Announced>, CommError> {
    let mut flag: c_int = 0;
    let mut status = MaybeUninit::<MPI_Status>::zeroed();
    // SAFETY: the caller's promise; a flag, a handle and a status are written.
    let (message, code) = unsafe {
        let mut message = ffi::RSMPI_MESSAGE_NULL;
        let from = from.map_or(ffi::RSMPI_ANY_SOURCE, |rank| rank.0 as c_int);
        let code = ffi::MPI_Improbe(from, tag as c_int, comm, &mut flag, &mut message, status.as_mut_ptr());
        (message, code)
    };
    reporter.check("MPI_Improbe", code)?;
    if flag == 0 {
        return Ok(None);
    }
    // SAFETY: a status consists of integers, so zeroes are a valid value, and MPI has written it since.
    let status = unsafe { status.assume_init() };
    let from = Rank(unsigned(reporter, "MPI_Improbe", status.MPI_SOURCE)?);
    let bytes = bytes_of(reporter, &status)?;
    if bytes > longest {
        // Only we send on this communicator, and our own `send` refuses such a message.
        let text = format!("rank {from} announced {bytes} bytes, more than the limit of {longest}");
        return Err(reporter.strange("MPI_Improbe", bytes as c_int, text));
    }
    Ok(Some(Announced { message, from, bytes }))
}

/// Starts to receive a matched message.
///
/// # Safety
/// Callable; `into` points to as many bytes as were announced (which need not be initialized), and those bytes stay in
/// place and are not accessed until the request is complete.
pub(super) unsafe fn imrecv(
    reporter: Reporter,
    into: *mut u8,
    mut announced: Announced,
) -> Result<MPI_Request, CommError> {
    // SAFETY: the caller's promise; the message is live: only `improbe` makes an `Announced`, and it is consumed here.
    // The length fits, because the caller of `improbe` allowed it.
    let (request, code) = unsafe {
        let mut request = ffi::RSMPI_REQUEST_NULL;
        let (start, length) = (into.cast::<c_void>(), announced.bytes as c_int);
        let code = ffi::MPI_Imrecv(start, length, ffi::RSMPI_UINT8_T, &mut announced.message, &mut request);
        (request, code)
    };
    reporter.check("MPI_Imrecv", code)?;
    Ok(request)
}

/// Asks whether a request is complete; `call` is the function that made it. After `true` the request is gone. After
/// an error it must not be used again, and the memory lent to it must be given up as lost.
///
/// # Safety
/// Callable; `request` live.
pub(super) unsafe fn test(
    reporter: Reporter,
    call: &'static str,
    request: &mut MPI_Request,
) -> Result<bool, CommError> {
    let mut flag: c_int = 0;
    // SAFETY: the caller's promise; the null status is a constant that MPI takes for "not wanted".
    reporter.check(call, unsafe { ffi::MPI_Test(request, &mut flag, ffi::RSMPI_STATUS_IGNORE) })?;
    Ok(flag != 0)
}

/// Like `test`, but for a receive: returns the number of bytes that MPI has written once the request is complete.
///
/// # Safety
/// As `test`.
pub(super) unsafe fn test_received(
    reporter: Reporter,
    call: &'static str,
    request: &mut MPI_Request,
) -> Result<Option<usize>, CommError> {
    let mut flag: c_int = 0;
    let mut status = MaybeUninit::<MPI_Status>::zeroed();
    // SAFETY: the caller's promise; a flag and a status are written.
    reporter.check(call, unsafe { ffi::MPI_Test(request, &mut flag, status.as_mut_ptr()) })?;
    if flag == 0 {
        return Ok(None);
    }
    // SAFETY: a status consists of integers, so zeroes are a valid value.
    bytes_of(reporter, &unsafe { status.assume_init() }).map(Some)
}

/// Starts to add up the arrays `from` of all ranks; each rank gets the sum at its own index. Collective.
///
/// # Safety
/// Callable; `comm` live. `from` has one number per rank of `comm` and `into` one; both stay in place and are not
/// accessed until the request is complete.
pub(super) unsafe fn ireduce_scatter_sum(
    reporter: Reporter,
    comm: MPI_Comm,
    from: *const u64,
    into: *mut u64,
) -> Result<MPI_Request, CommError> {
    // SAFETY: the caller's promise.
    let (request, code) = unsafe {
        let mut request = ffi::RSMPI_REQUEST_NULL;
        let (from, into) = (from.cast::<c_void>(), into.cast::<c_void>());
        let (number, sum) = (ffi::RSMPI_UINT64_T, ffi::RSMPI_SUM);
        let code = ffi::MPI_Ireduce_scatter_block(from, into, 1, number, sum, comm, &mut request);
        (request, code)
    };
    reporter.check("MPI_Ireduce_scatter_block", code)?;
    Ok(request)
}

/// Starts to gather one byte of each rank at rank 0. Collective. This uses `MPI_Igatherv` instead of `MPI_Igather`, because
/// the libraries send its pieces straight to rank 0, so that a rank that does not call hides no other rank.
///
/// # Safety
/// Callable; `comm` live. `from` is one byte; `into`, `counts` (all 1) and `places` (ascending from 0) have on rank 0 one entry
/// for each rank of `comm`. All stay in place and are accessed only as MPI allows until the request is complete.
pub(super) unsafe fn igather_byte(
    reporter: Reporter,
    comm: MPI_Comm,
    from: *const u8,
    into: *mut u8,
    (counts, places): (*const c_int, *const c_int),
) -> Result<MPI_Request, CommError> {
    // SAFETY: the caller's promise.
    let (request, code) = unsafe {
        let mut request = ffi::RSMPI_REQUEST_NULL;
        let (from, into, byte) = (from.cast::<c_void>(), into.cast::<c_void>(), ffi::RSMPI_UINT8_T);
        let code = ffi::MPI_Igatherv(from, 1, byte, into, counts, places, byte, 0, comm, &mut request);
        (request, code)
    };
    reporter.check("MPI_Igatherv", code)?;
    Ok(request)
}

/// Starts to send bytes from rank 0 to all ranks. Collective.
///
/// # Safety
/// Callable; `comm` live. `bytes` has this length, stays in place and is not accessed until the request is complete.
pub(super) unsafe fn ibcast_bytes(
    reporter: Reporter,
    comm: MPI_Comm,
    bytes: *mut u8,
    length: usize,
) -> Result<MPI_Request, CommError> {
    // SAFETY: the caller's promise.
    let (request, code) = unsafe {
        let mut request = ffi::RSMPI_REQUEST_NULL;
        let code = ffi::MPI_Ibcast(bytes.cast::<c_void>(), length as c_int, ffi::RSMPI_UINT8_T, 0, comm, &mut request);
        (request, code)
    };
    reporter.check("MPI_Ibcast", code)?;
    Ok(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_levels_are_read_from_the_constants_of_the_library() {
        // SAFETY: constants of the C shim, set at link time and never written.
        let raw = unsafe {
            [
                ffi::RSMPI_THREAD_SINGLE,
                ffi::RSMPI_THREAD_FUNNELED,
                ffi::RSMPI_THREAD_SERIALIZED,
                ffi::RSMPI_THREAD_MULTIPLE,
            ]
        };
        let expected = [ThreadLevel::Single, ThreadLevel::Funneled, ThreadLevel::Serialized, ThreadLevel::Multiple];
        assert_eq!(raw.map(thread_level), expected);
    }

    #[test]
    fn a_return_code_becomes_an_error_that_names_rank_and_call() {
        let reporter = Reporter(Rank(3));
        assert_eq!(reporter.check("MPI_Send", ffi::MPI_SUCCESS as c_int), Ok(()));
        match reporter.strange("MPI_Improbe", -1, "text".to_owned()) {
            CommError::Mpi { rank: Rank(3), call: "MPI_Improbe", code: -1, text } => assert_eq!(text, "text"),
            other => panic!("{other}"),
        }
    }
}
