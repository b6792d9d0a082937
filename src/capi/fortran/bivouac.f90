! Bivouac for Fortran: the functions of bivouac.h under the same names, with Fortran's arrays, texts and communicators.
!
! Every function except bvk_error_text, bvk_status_name and bvk_version returns a status as an integer: BVK_OK (0), another outcome
! (positive), or an error (negative), whose text bvk_error_text() gives. bivouac.h says what each function does, which functions
! are collective and which may block; docs/FORTRAN.md shows them in a program. The differences from C are:
!
! - Variables whose addresses are kept (bvk_protect, bvk_save, bvk_history_field) need the TARGET or POINTER attribute where they
!   are declared, and must exist until they are unprotected, captured or replaced. Pass variables, never expressions.
! - Arrays may have any rank and any of the types int8 to int64, real32, real64 and the complex types; a section whose elements are
!   not contiguous is refused, never copied. Extents are recorded slowest first, so a(3, 5) is recorded as 5 by 3. Complex numbers
!   are records of 8 or 16 bytes. For everything else, pass its address (type(c_ptr)), the number of its elements and their type.
! - The shape, origins and extents that bvk_boxes takes are in Fortran's order of dimensions, and elements are counted from 1.
!   bvk_protect_on, bvk_save_on and bvk_load_on take the array of a rank with one box, or the addresses of the memory of any number
!   of boxes. The numbers that bvk_ids takes are counted from 1.
! - Each column of rows has its own name and array: bvk_add_column collects the columns, and bvk_save_rows saves them. The last
!   dimension of an array counts the rows. Rows are counted from 1, and ranks from 0 as in MPI.
! - bvk_before_write and bvk_before take the stream as an optional last argument (in C, each of them is two functions).
! - Versions are integer(int64). Names and texts may end with blanks, which are ignored.
! - A communicator is a type(MPI_Comm) of mpi_f08, or an integer of mpi or mpif.h.
!
! The module needs a compiler with assumed-rank arrays (Fortran 2018). It is tested with gfortran 12, and should work with ifx,
! with gfortran 9 or later, and with nagfor 7.1 or later.
module bivouac
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: int8, int16, int32, int64, real32, real64
  implicit none
  private

  ! Outcomes; bivouac.h says what each of them means.
  integer, parameter, public :: BVK_OK = 0, BVK_AGAIN = 1, BVK_NOTHING = 2
  integer, parameter, public :: BVK_ERR_ARGUMENT = -1, BVK_ERR_HANDLE = -2, BVK_ERR_STATE = -3, BVK_ERR_OPEN = -4, &
    BVK_ERR_MPI = -5, BVK_ERR_REGION = -6, BVK_ERR_CAPTURE = -7, BVK_ERR_LOAD = -8, BVK_ERR_RESTART = -9, &
    BVK_ERR_NOT_COMMITTED = -10, BVK_ERR_DISAGREED = -11, BVK_ERR_FAILED = -12, BVK_ERR_UNDRAINED = -13, BVK_ERR_DEVICE = -14, &
    BVK_ERR_INTERNAL = -15

  ! The element types of memory that is passed as an address. For an application-defined record, pass minus its size in bytes.
  integer, parameter, public :: BVK_U8 = 1, BVK_I8 = 2, BVK_U16 = 3, BVK_I16 = 4, BVK_U32 = 5, BVK_I32 = 6, BVK_U64 = 7, &
    BVK_I64 = 8, BVK_F32 = 9, BVK_F64 = 10
  integer, parameter :: BVK_RECORD_C32 = -8, BVK_RECORD_C64 = -16

  integer, parameter, public :: BVK_LEVEL_CAPTURED = 0, BVK_LEVEL_PROCESS = 1, BVK_LEVEL_NODE_REBOOT = 2, &
    BVK_LEVEL_NODE_LOSS = 3, BVK_LEVEL_SYSTEM = 4
  integer, parameter, public :: BVK_PIN_LAUNCHER = 0, BVK_PIN_COMPACT = 1, BVK_PIN_SCATTER = 2
  integer, parameter, public :: BVK_AFFINITY_FULL = 0, BVK_AFFINITY_THREADS = 1, BVK_AFFINITY_PAGES = 2, BVK_AFFINITY_CAPTURE = 3
  integer, parameter, public :: BVK_KEEP_UNTIL_READ = 0, BVK_KEEP_ALL = 1
  ! In place of a GPU number: no GPU.
  integer, parameter, public :: BVK_NO_GPU = -1
  ! What happens to a per-rank value on a different number of ranks.
  integer, parameter, public :: BVK_RESIZE_REFUSE = 0, BVK_RESIZE_DROP = 1, BVK_RESIZE_ASK = 2
  integer, parameter, public :: BVK_RESTART_TRUNCATE = 0, BVK_RESTART_REFUSE = 1, BVK_RESTART_ANOTHER = 2
  ! Which rows a rank gets, and what a rank's part consists of: rows, boxes or numbers.
  integer, parameter, public :: BVK_ROWS_OWN = 0, BVK_ROWS_EVEN = 1, BVK_PART_ROWS = 1, BVK_PART_BOXES = 2, &
    BVK_PART_IDS = 3
  ! As a version: the newest that all ranks can restore. All bits are set, as in C.
  integer(int64), parameter, public :: BVK_NEWEST = -1_int64

  ! Handles. Using one that was never opened, or that was closed, is an error, not a crash.
  type, public :: bvk_session_t
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: bvk_checkpoint_t
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: bvk_pending_t
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: bvk_restart_t
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: bvk_history_t
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: bvk_write_set_t
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: bvk_boxes_t
    type(c_ptr) :: handle = c_null_ptr
    ! The extents of each box in memory, including ghost cells: memory(:, box), slowest first.
    integer(c_int64_t), allocatable, private :: memory(:, :)
  end type

  type, public :: bvk_loaded_rows_t
    type(c_ptr) :: handle = c_null_ptr
  end type
  type, public :: bvk_parts_t
    type(c_ptr) :: handle = c_null_ptr
  end type

  type :: row_column
    character(len=:), allocatable :: name
    type(c_ptr) :: data = c_null_ptr
    integer(c_int64_t) :: count = 0, width = 0
    integer :: kind = 0
  end type
  ! This rank's rows of a set: the columns that bvk_add_column has added. `rows = bvk_rows()` removes all of them.
  type, public :: bvk_rows
    type(row_column), allocatable, private :: columns(:)
  end type

  ! Counters and times of this rank since its session was opened.
  type, bind(c), public :: bvk_stats
    integer(c_size_t) :: size = 0
    integer(c_int64_t) :: captured = 0, abandoned = 0, in_flight = 0, bytes_captured = 0, room_waits = 0, direct_captures = 0
    integer(c_int64_t) :: damaged = 0
    real(c_double) :: blocked_last_s = 0, blocked_max_s = 0, blocked_total_s = 0
    integer(c_int64_t) :: packed_files = 0, whole_files = 0, reduced_bytes = 0, stored_bytes = 0, partial_captures = 0
    integer(c_int64_t) :: looked_on_device = 0
    real(c_double) :: look_total_s = 0
    integer(c_int64_t) :: compressed_from = 0, compressed_to = 0
    real(c_double) :: compress_total_s = 0
    integer(c_int64_t) :: marks = 0, marks_refused = 0, marked_bytes = 0, equal_bytes = 0, doubled_bytes = 0, urgent_bytes = 0
    integer(c_int64_t) :: mark_waits = 0
    real(c_double) :: mark_wait_total_s = 0
    integer(c_int64_t) :: unaudited = 0
    integer(c_int64_t) :: live_regions = 0, live_bytes = 0, live_waited_bytes = 0, live_declared_bytes = 0, live_at_once = 0
    integer(c_int64_t) :: live_waits = 0
    real(c_double) :: live_wait_total_s = 0
  end type

  ! Counters of this rank for one level, summed over all tiers that have this level.
  type, bind(c), public :: bvk_level_stats
    integer(c_size_t) :: size = 0
    integer(c_int64_t) :: committed = 0, level_failures = 0, write_failures = 0, flushed_bytes = 0, restored_bytes = 0, damaged = 0
    real(c_double) :: flushed_s = 0
  end type

  ! What a restart restored: the version, the run that took it, the bytes that this rank read, the duration in seconds, the level
  ! of the farthest tier that this rank read from, and the number of ranks that took the version.
  type, bind(c), public :: bvk_restored
    integer(c_size_t) :: size = 0
    integer(c_int64_t) :: version = 0, generation = 0, bytes = 0
    real(c_double) :: seconds = 0
    integer(c_int64_t) :: level = 0, ranks = 0
  end type

  ! The verdict on one level of one checkpoint. committed: 1 yes, 0 no (the reason says why), -1 unknown.
  type, public :: bvk_report
    integer(int64) :: version = 0
    integer :: level = 0, committed = 0
    character(len=:), allocatable :: name, reason
  end type

  ! The part that one of the ranks that took a checkpoint had: kind is BVK_PART_ROWS, BVK_PART_BOXES or BVK_PART_IDS, and count is
  ! the number of rows, boxes or numbers. For boxes, shape holds the extents of the array, fastest first; for numbers, shape(1) is
  ! the number of elements of the array. For rows, low and high are the least and the greatest coordinates that were given to
  ! bvk_save_rows.
  type, bind(c), public :: bvk_part
    integer(c_size_t) :: size = 0
    integer(c_int) :: kind = 0, dimensions = 0
    integer(c_int64_t) :: count = 0, shape(8) = 0
    real(c_double) :: low(8) = 0, high(8) = 0
  end type

  type, bind(c) :: c_column
    type(c_ptr) :: name, data
    integer(c_int) :: kind
    integer(c_int32_t) :: width
  end type
  type, bind(c) :: c_rows
    integer(c_size_t) :: size
    integer(c_int64_t) :: count
    type(c_ptr) :: columns
    integer(c_size_t) :: column_count, dimensions
    type(c_ptr) :: low, high
  end type
  type, bind(c) :: c_options
    integer(c_size_t) :: size
    type(c_ptr) :: config_file, config_text, settings
  end type
  type, bind(c) :: c_report
    integer(c_size_t) :: size
    integer(c_int64_t) :: version
    integer(c_int) :: level, committed
    character(kind=c_char) :: name(136), reason(512)
  end type

  public :: bvk_error_text, bvk_status_name, bvk_version, bvk_log
  public :: bvk_open, bvk_close, bvk_generation, bvk_set_stream, bvk_should_checkpoint, bvk_should_exit, bvk_prepare, &
    bvk_progress, bvk_pin, bvk_set_affinity, bvk_get_stats, bvk_get_level_stats, bvk_next_report
  public :: bvk_protect, bvk_unprotect, bvk_unprotect_all
  public :: bvk_checkpoint, bvk_begin_checkpoint, bvk_save, bvk_save_protected, bvk_save_history, bvk_hold, &
    bvk_reduce, bvk_capture, bvk_abort
  public :: bvk_poll, bvk_level, bvk_wait, bvk_release
  public :: bvk_restore, bvk_begin_restore, bvk_saved_version, bvk_region_size, bvk_load, bvk_load_protected, &
    bvk_load_history, bvk_reject, bvk_end_restore, bvk_versions
  public :: bvk_stream_begin, bvk_stream_write, bvk_stream_end, bvk_stream_read, bvk_route, bvk_route_saved, &
    bvk_companion, bvk_companion_path
  public :: bvk_history_open, bvk_history_field, bvk_history_clear_fields, bvk_history_append, bvk_history_restore, &
    bvk_history_hint, bvk_history_start_prefetch, bvk_history_wait_flushed, bvk_history_close
  public :: bvk_boxes, bvk_ids, bvk_boxes_close, bvk_protect_on, bvk_save_on, bvk_load_on
  public :: bvk_protect_shared, bvk_save_shared, bvk_load_shared, bvk_protect_per_rank, bvk_save_per_rank, bvk_load_per_rank, &
    bvk_saved_ranks, bvk_of_ranks
  public :: bvk_add_column, bvk_save_rows, bvk_load_rows, bvk_load_rows_range, bvk_load_rows_by, bvk_column_at, bvk_load_column, &
    bvk_loaded_rows_close, bvk_owners
  public :: bvk_parts, bvk_part_of, bvk_boxes_of, bvk_parts_close
  public :: bvk_set_live, bvk_offload, bvk_before_write, bvk_write_set, bvk_before, bvk_write_set_close, bvk_settle, bvk_allow_marks

  interface bvk_open
    module procedure open_f08, open_integer
  end interface

  interface bvk_protect
    module procedure protect_i8, protect_i16, protect_i32, protect_i64, protect_f32, &
      protect_f64, protect_c32, protect_c64, protect_address
  end interface

  interface bvk_save
    module procedure save_i8, save_i16, save_i32, save_i64, save_f32, &
      save_f64, save_c32, save_c64, save_address
  end interface

  interface bvk_load
    module procedure load_i8, load_i16, load_i32, load_i64, load_f32, &
      load_f64, load_c32, load_c64, load_address
  end interface

  interface bvk_history_field
    module procedure history_field_i8, history_field_i16, history_field_i32, history_field_i64, history_field_f32, &
      history_field_f64, history_field_c32, history_field_c64, history_field_address
  end interface

  interface bvk_before_write
    module procedure before_write_i8, before_write_i16, before_write_i32, before_write_i64, before_write_f32, &
      before_write_f64, before_write_c32, before_write_c64, before_write_address
  end interface

  interface bvk_boxes
    module procedure boxes_one_i32, boxes_one_i64, boxes_many_i32, boxes_many_i64
  end interface

  interface bvk_ids
    module procedure ids_i32, ids_i64
  end interface

  interface bvk_protect_on
    module procedure protect_on_i8, protect_on_i16, protect_on_i32, protect_on_i64, protect_on_f32, &
      protect_on_f64, protect_on_c32, protect_on_c64, protect_on_address
  end interface

  interface bvk_save_on
    module procedure save_on_i8, save_on_i16, save_on_i32, save_on_i64, save_on_f32, &
      save_on_f64, save_on_c32, save_on_c64, save_on_address
  end interface

  interface bvk_load_on
    module procedure load_on_i8, load_on_i16, load_on_i32, load_on_i64, load_on_f32, &
      load_on_f64, load_on_c32, load_on_c64, load_on_address
  end interface

  interface bvk_protect_shared
    module procedure protect_shared_i32, protect_shared_i64, protect_shared_f32, &
      protect_shared_f64, protect_shared_address
  end interface

  interface bvk_save_shared
    module procedure save_shared_i32, save_shared_i64, save_shared_f32, &
      save_shared_f64, save_shared_address
  end interface

  interface bvk_load_shared
    module procedure load_shared_i32, load_shared_i64, load_shared_f32, &
      load_shared_f64, load_shared_address
  end interface

  interface bvk_protect_per_rank
    module procedure protect_per_rank_i32, protect_per_rank_i64, protect_per_rank_f32, &
      protect_per_rank_f64, protect_per_rank_address
  end interface

  interface bvk_save_per_rank
    module procedure save_per_rank_i32, save_per_rank_i64, save_per_rank_f32, &
      save_per_rank_f64, save_per_rank_address
  end interface

  interface bvk_load_per_rank
    module procedure load_per_rank_i32, load_per_rank_i64, load_per_rank_f32, &
      load_per_rank_f64, load_per_rank_address
  end interface

  interface bvk_add_column
    module procedure add_column_i8, add_column_i16, add_column_i32, add_column_i64, add_column_f32, &
      add_column_f64, add_column_c32, add_column_c64, add_column_address
  end interface

  interface bvk_load_column
    module procedure load_column_i8, load_column_i16, load_column_i32, load_column_i64, load_column_f32, &
      load_column_f64, load_column_c32, load_column_c64, load_column_address
  end interface

  ! Says which rank gets each of `count` rows. `values` points to the values of a column for these rows, row after row, with as
  ! many values per row as the column has (c_f_pointer makes an array of them). `user` is passed through from bvk_load_rows_by.
  abstract interface
    subroutine bvk_owners(values, count, owners, user) bind(c)
      import :: c_int, c_ptr, c_size_t
      type(c_ptr), value :: values, user
      integer(c_size_t), value :: count
      integer(c_int), intent(inout) :: owners(count)
    end subroutine
  end interface

  interface bvk_of_ranks
    module procedure of_ranks_i32, of_ranks_i64, &
      of_ranks_f32, of_ranks_f64
  end interface

  ! The text of an error that this module found before it called the library. Its length is fixed, because threads may share it.
  character(len=256), save :: own_text = ' '
  logical, save :: own_error = .false.

  interface
    function c_error() result(text) bind(c, name='bvk_error')
      import :: c_ptr
      type(c_ptr) :: text
    end function
    function c_status_name(status) result(text) bind(c, name='bvk_status_name')
      import :: c_ptr, c_int
      integer(c_int), value :: status
      type(c_ptr) :: text
    end function
    function c_version() result(text) bind(c, name='bvk_version')
      import :: c_ptr
      type(c_ptr) :: text
    end function
    function c_strlen(text) result(length) bind(c, name='strlen')
      import :: c_ptr, c_size_t
      type(c_ptr), value :: text
      integer(c_size_t) :: length
    end function
    function c_log(level) result(status) bind(c, name='bvk_log')
      import :: c_int
      integer(c_int), value :: level
      integer(c_int) :: status
    end function

    function c_open(comm, options, session) result(status) bind(c, name='bvk_open_f')
      import :: c_int, c_ptr, c_options
      integer(c_int), value :: comm
      type(c_options), intent(in) :: options
      type(c_ptr), intent(inout) :: session
      integer(c_int) :: status
    end function
    function c_close(session) result(status) bind(c, name='bvk_close')
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: session
      integer(c_int) :: status
    end function
    function c_generation(session, generation) result(status) bind(c, name='bvk_generation')
      import :: c_int, c_ptr, c_int64_t
      type(c_ptr), value :: session
      integer(c_int64_t), intent(inout) :: generation
      integer(c_int) :: status
    end function
    function c_set_stream(session, stream) result(status) bind(c, name='bvk_set_stream')
      import :: c_int, c_ptr
      type(c_ptr), value :: session, stream
      integer(c_int) :: status
    end function
    function c_should_checkpoint(session, yes) result(status) bind(c, name='bvk_should_checkpoint')
      import :: c_int, c_ptr
      type(c_ptr), value :: session
      integer(c_int), intent(inout) :: yes
      integer(c_int) :: status
    end function
    function c_should_exit(session, yes) result(status) bind(c, name='bvk_should_exit')
      import :: c_int, c_ptr
      type(c_ptr), value :: session
      integer(c_int), intent(inout) :: yes
      integer(c_int) :: status
    end function
    function c_prepare(session, bytes) result(status) bind(c, name='bvk_prepare')
      import :: c_int, c_ptr, c_int64_t
      type(c_ptr), value :: session
      integer(c_int64_t), value :: bytes
      integer(c_int) :: status
    end function
    function c_progress(session) result(status) bind(c, name='bvk_progress')
      import :: c_int, c_ptr
      type(c_ptr), value :: session
      integer(c_int) :: status
    end function
    function c_pin(session, policy) result(status) bind(c, name='bvk_pin')
      import :: c_int, c_ptr
      type(c_ptr), value :: session
      integer(c_int), value :: policy
      integer(c_int) :: status
    end function
    function c_set_affinity(session, mode) result(status) bind(c, name='bvk_set_affinity')
      import :: c_int, c_ptr
      type(c_ptr), value :: session
      integer(c_int), value :: mode
      integer(c_int) :: status
    end function
    function c_get_stats(session, stats) result(status) bind(c, name='bvk_get_stats')
      import :: c_int, c_ptr, bvk_stats
      type(c_ptr), value :: session
      type(bvk_stats), intent(inout) :: stats
      integer(c_int) :: status
    end function
    function c_get_level_stats(session, level, stats) result(status) bind(c, name='bvk_get_level_stats')
      import :: c_int, c_ptr, bvk_level_stats
      type(c_ptr), value :: session
      integer(c_int), value :: level
      type(bvk_level_stats), intent(inout) :: stats
      integer(c_int) :: status
    end function
    function c_next_report(session, report) result(status) bind(c, name='bvk_next_report')
      import :: c_int, c_ptr, c_report
      type(c_ptr), value :: session
      type(c_report), intent(inout) :: report
      integer(c_int) :: status
    end function

    function c_protect(session, name, data, kind, dimensions, shape) result(status) bind(c, name='bvk_protect_shaped')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: session, data
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: kind, dimensions
      integer(c_int64_t), intent(in) :: shape(*)
      integer(c_int) :: status
    end function
    function c_unprotect(session, name) result(status) bind(c, name='bvk_unprotect')
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int) :: status
    end function
    function c_unprotect_all(session) result(status) bind(c, name='bvk_unprotect_all')
      import :: c_int, c_ptr
      type(c_ptr), value :: session
      integer(c_int) :: status
    end function

    ! `pending` is c_null_ptr, or the address of a handle.
    function c_checkpoint(session, name, version, pending) result(status) bind(c, name='bvk_checkpoint')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: session, pending
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: version
      integer(c_int) :: status
    end function
    function c_begin_checkpoint(session, name, version, checkpoint) result(status) bind(c, name='bvk_begin_checkpoint')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: version
      type(c_ptr), intent(inout) :: checkpoint
      integer(c_int) :: status
    end function
    function c_save(checkpoint, name, data, kind, dimensions, shape) result(status) bind(c, name='bvk_save_shaped')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: checkpoint, data
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: kind, dimensions
      integer(c_int64_t), intent(in) :: shape(*)
      integer(c_int) :: status
    end function
    function c_save_protected(checkpoint) result(status) bind(c, name='bvk_save_protected')
      import :: c_int, c_ptr
      type(c_ptr), value :: checkpoint
      integer(c_int) :: status
    end function
    function c_hold(checkpoint) result(status) bind(c, name='bvk_hold')
      import :: c_int, c_ptr
      type(c_ptr), value :: checkpoint
      integer(c_int) :: status
    end function
    function c_reduce(checkpoint, region, method) result(status) bind(c, name='bvk_reduce')
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: checkpoint
      character(kind=c_char), intent(in) :: region(*), method(*)
      integer(c_int) :: status
    end function
    function c_save_history(checkpoint, history) result(status) bind(c, name='bvk_save_history')
      import :: c_int, c_ptr
      type(c_ptr), value :: checkpoint, history
      integer(c_int) :: status
    end function
    function c_capture(checkpoint, pending) result(status) bind(c, name='bvk_capture')
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: checkpoint
      type(c_ptr), value :: pending
      integer(c_int) :: status
    end function
    function c_abort(checkpoint) result(status) bind(c, name='bvk_abort')
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: checkpoint
      integer(c_int) :: status
    end function

    function c_poll(pending, finished) result(status) bind(c, name='bvk_poll')
      import :: c_int, c_ptr
      type(c_ptr), value :: pending
      integer(c_int), intent(inout) :: finished
      integer(c_int) :: status
    end function
    function c_level(pending, reached) result(status) bind(c, name='bvk_level')
      import :: c_int, c_ptr
      type(c_ptr), value :: pending
      integer(c_int), intent(inout) :: reached
      integer(c_int) :: status
    end function
    function c_wait(pending, level, reached) result(status) bind(c, name='bvk_wait')
      import :: c_int, c_ptr
      type(c_ptr), value :: pending
      integer(c_int), value :: level
      integer(c_int), intent(inout) :: reached
      integer(c_int) :: status
    end function
    function c_release(pending) result(status) bind(c, name='bvk_release')
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: pending
      integer(c_int) :: status
    end function

    function c_restore(session, name, version, restored) result(status) bind(c, name='bvk_restore')
      import :: c_int, c_ptr, c_char, c_int64_t, bvk_restored
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: version
      type(bvk_restored), intent(inout) :: restored
      integer(c_int) :: status
    end function
    function c_begin_restore(session, name, version, restart) result(status) bind(c, name='bvk_begin_restore')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: version
      type(c_ptr), intent(inout) :: restart
      integer(c_int) :: status
    end function
    function c_saved_version(restart, version) result(status) bind(c, name='bvk_saved_version')
      import :: c_int, c_ptr, c_int64_t
      type(c_ptr), value :: restart
      integer(c_int64_t), intent(inout) :: version
      integer(c_int) :: status
    end function
    function c_region_size(restart, name, count, kind) result(status) bind(c, name='bvk_region_size')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: restart
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), intent(inout) :: count
      integer(c_int), intent(inout) :: kind
      integer(c_int) :: status
    end function
    function c_load(restart, name, data, count, kind) result(status) bind(c, name='bvk_load')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: restart, data
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: count
      integer(c_int), value :: kind
      integer(c_int) :: status
    end function
    function c_load_protected(restart) result(status) bind(c, name='bvk_load_protected')
      import :: c_int, c_ptr
      type(c_ptr), value :: restart
      integer(c_int) :: status
    end function
    function c_load_history(restart, history, count) result(status) bind(c, name='bvk_load_history')
      import :: c_int, c_ptr, c_int64_t
      type(c_ptr), value :: restart, history
      integer(c_int64_t), intent(inout) :: count
      integer(c_int) :: status
    end function
    function c_stream_begin(checkpoint, name) result(status) bind(c, name='bvk_stream_begin')
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: checkpoint
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int) :: status
    end function
    function c_stream_write(checkpoint, data, bytes) result(status) bind(c, name='bvk_stream_write')
      import :: c_int, c_ptr, c_int64_t
      type(c_ptr), value :: checkpoint, data
      integer(c_int64_t), value :: bytes
      integer(c_int) :: status
    end function
    function c_stream_end(checkpoint) result(status) bind(c, name='bvk_stream_end')
      import :: c_int, c_ptr
      type(c_ptr), value :: checkpoint
      integer(c_int) :: status
    end function
    function c_stream_read(restart, name, at, data, bytes, found) result(status) bind(c, name='bvk_stream_read')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: restart, data
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: at, bytes
      integer(c_int64_t), intent(inout) :: found
      integer(c_int) :: status
    end function
    function c_companion(session, name, path, on_restart) result(status) bind(c, name='bvk_companion')
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: session, path
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: on_restart
      integer(c_int) :: status
    end function
    function c_companion_path(session, name, path, current) result(status) bind(c, name='bvk_companion_path')
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: name(*), path(*)
      type(c_ptr), intent(inout) :: current
      integer(c_int) :: status
    end function
    function c_route(checkpoint, name, path) result(status) bind(c, name='bvk_route')
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: checkpoint
      character(kind=c_char), intent(in) :: name(*)
      type(c_ptr), intent(inout) :: path
      integer(c_int) :: status
    end function
    function c_route_saved(restart, name, path) result(status) bind(c, name='bvk_route_saved')
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: restart
      character(kind=c_char), intent(in) :: name(*)
      type(c_ptr), intent(inout) :: path
      integer(c_int) :: status
    end function
    function c_reject(restart, reason) result(status) bind(c, name='bvk_reject')
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: restart
      character(kind=c_char), intent(in) :: reason(*)
      integer(c_int) :: status
    end function
    function c_end_restore(restart, loaded, restored) result(status) bind(c, name='bvk_end_restore')
      import :: c_int, c_ptr, bvk_restored
      type(c_ptr), intent(inout) :: restart
      integer(c_int), value :: loaded
      type(bvk_restored), intent(inout) :: restored
      integer(c_int) :: status
    end function
    function c_versions(session, name, versions, capacity, count) result(status) bind(c, name='bvk_versions')
      import :: c_int, c_ptr, c_char, c_int64_t, c_size_t
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), intent(inout) :: versions(*)
      integer(c_size_t), value :: capacity
      integer(c_size_t), intent(inout) :: count
      integer(c_int) :: status
    end function

    ! A list without entries is passed as c_null_ptr.
    function c_boxes(session, dimensions, shape, count, origins, extents, before, after, sparse, boxes) result(status) &
      bind(c, name='bvk_boxes')
      import :: c_int, c_ptr, c_size_t
      type(c_ptr), value :: session, shape, origins, extents, before, after
      integer(c_int), value :: dimensions, sparse
      integer(c_size_t), value :: count
      type(c_ptr), intent(inout) :: boxes
      integer(c_int) :: status
    end function
    function c_ids(session, total, count, numbers, sparse, boxes) result(status) bind(c, name='bvk_ids')
      import :: c_int, c_int64_t, c_ptr, c_size_t
      type(c_ptr), value :: session, numbers
      integer(c_int64_t), value :: total
      integer(c_int), value :: sparse
      integer(c_size_t), value :: count
      type(c_ptr), intent(inout) :: boxes
      integer(c_int) :: status
    end function
    function c_boxes_close(boxes) result(status) bind(c, name='bvk_boxes_close')
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: boxes
      integer(c_int) :: status
    end function
    function c_protect_on(session, name, boxes, count, data, elements, kind) result(status) bind(c, name='bvk_protect_boxes_on')
      import :: c_int, c_ptr, c_char, c_int64_t, c_size_t
      type(c_ptr), value :: session, boxes
      character(kind=c_char), intent(in) :: name(*)
      integer(c_size_t), value :: count
      type(c_ptr), intent(in) :: data(*)
      integer(c_int64_t), intent(in) :: elements(*)
      integer(c_int), value :: kind
      integer(c_int) :: status
    end function
    function c_save_on(checkpoint, name, boxes, count, data, elements, kind) result(status) bind(c, name='bvk_save_boxes_on')
      import :: c_int, c_ptr, c_char, c_int64_t, c_size_t
      type(c_ptr), value :: checkpoint, boxes
      character(kind=c_char), intent(in) :: name(*)
      integer(c_size_t), value :: count
      type(c_ptr), intent(in) :: data(*)
      integer(c_int64_t), intent(in) :: elements(*)
      integer(c_int), value :: kind
      integer(c_int) :: status
    end function
    function c_load_on(restart, name, boxes, count, data, elements, kind) result(status) bind(c, name='bvk_load_boxes_on')
      import :: c_int, c_ptr, c_char, c_int64_t, c_size_t
      type(c_ptr), value :: restart, boxes
      character(kind=c_char), intent(in) :: name(*)
      integer(c_size_t), value :: count
      type(c_ptr), intent(in) :: data(*)
      integer(c_int64_t), intent(in) :: elements(*)
      integer(c_int), value :: kind
      integer(c_int) :: status
    end function
    function c_protect_shared(session, name, data, count, kind) result(status) bind(c, name='bvk_protect_shared')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: session, data
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: count
      integer(c_int), value :: kind
      integer(c_int) :: status
    end function
    function c_protect_per_rank(session, name, data, count, kind, on_resize) result(status) bind(c, name='bvk_protect_per_rank')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: session, data
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: count
      integer(c_int), value :: kind, on_resize
      integer(c_int) :: status
    end function
    function c_save_shared(checkpoint, name, data, count, kind) result(status) bind(c, name='bvk_save_shared')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: checkpoint, data
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: count
      integer(c_int), value :: kind
      integer(c_int) :: status
    end function
    function c_save_per_rank(checkpoint, name, data, count, kind, on_resize) result(status) bind(c, name='bvk_save_per_rank')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: checkpoint, data
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: count
      integer(c_int), value :: kind, on_resize
      integer(c_int) :: status
    end function
    function c_load_shared(restart, name, data, count, kind) result(status) bind(c, name='bvk_load_shared')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: restart, data
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: count
      integer(c_int), value :: kind
      integer(c_int) :: status
    end function
    function c_load_per_rank(restart, name, data, count, kind) result(status) bind(c, name='bvk_load_per_rank')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: restart, data
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: count
      integer(c_int), value :: kind
      integer(c_int) :: status
    end function
    function c_save_rows(checkpoint, name, rows) result(status) bind(c, name='bvk_save_rows')
      import :: c_int, c_ptr, c_char, c_rows
      type(c_ptr), value :: checkpoint
      character(kind=c_char), intent(in) :: name(*)
      type(c_rows), intent(in) :: rows
      integer(c_int) :: status
    end function
    function c_load_rows(restart, name, how, rows, count) result(status) bind(c, name='bvk_load_rows')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: restart
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: how
      type(c_ptr), intent(inout) :: rows
      integer(c_int64_t), intent(inout) :: count
      integer(c_int) :: status
    end function
    function c_load_rows_range(restart, name, first, wanted, rows, count) result(status) bind(c, name='bvk_load_rows_range')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: restart
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: first, wanted
      type(c_ptr), intent(inout) :: rows
      integer(c_int64_t), intent(inout) :: count
      integer(c_int) :: status
    end function
    function c_load_rows_by(restart, name, column, kind, width, owners, user, rows, count) result(status) &
      bind(c, name='bvk_load_rows_by')
      import :: c_int, c_ptr, c_funptr, c_char, c_int32_t, c_int64_t
      type(c_ptr), value :: restart, user
      character(kind=c_char), intent(in) :: name(*), column(*)
      integer(c_int), value :: kind
      integer(c_int32_t), value :: width
      type(c_funptr), value :: owners
      type(c_ptr), intent(inout) :: rows
      integer(c_int64_t), intent(inout) :: count
      integer(c_int) :: status
    end function
    function c_column_at(restart, name, at, column, kind, width) result(status) bind(c, name='bvk_column_at')
      import :: c_int, c_ptr, c_char, c_size_t, c_int32_t
      type(c_ptr), value :: restart
      character(kind=c_char), intent(in) :: name(*)
      integer(c_size_t), value :: at
      type(c_ptr), intent(inout) :: column
      integer(c_int), intent(inout) :: kind
      integer(c_int32_t), intent(inout) :: width
      integer(c_int) :: status
    end function
    function c_load_column(rows, column, data, elements, kind, width) result(status) bind(c, name='bvk_load_column')
      import :: c_int, c_ptr, c_char, c_int32_t, c_int64_t
      type(c_ptr), value :: rows, data
      character(kind=c_char), intent(in) :: column(*)
      integer(c_int64_t), value :: elements
      integer(c_int), value :: kind
      integer(c_int32_t), value :: width
      integer(c_int) :: status
    end function
    function c_loaded_rows_close(rows) result(status) bind(c, name='bvk_loaded_rows_close')
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: rows
      integer(c_int) :: status
    end function
    function c_parts(restart, name, first, count, parts) result(status) bind(c, name='bvk_parts')
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: restart
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: first, count
      type(c_ptr), intent(inout) :: parts
      integer(c_int) :: status
    end function
    function c_part_of(parts, rank, found) result(status) bind(c, name='bvk_part_of')
      import :: c_int, c_ptr, bvk_part
      type(c_ptr), value :: parts
      integer(c_int), value :: rank
      type(bvk_part), intent(inout) :: found
      integer(c_int) :: status
    end function
    function c_part_boxes(parts, rank, capacity, origins, extents) result(status) bind(c, name='bvk_boxes_of')
      import :: c_int, c_ptr, c_size_t, c_int64_t
      type(c_ptr), value :: parts
      integer(c_int), value :: rank
      integer(c_size_t), value :: capacity
      integer(c_int64_t), intent(inout) :: origins(*), extents(*)
      integer(c_int) :: status
    end function
    function c_parts_close(parts) result(status) bind(c, name='bvk_parts_close')
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: parts
      integer(c_int) :: status
    end function
    function c_saved_ranks(restart, ranks) result(status) bind(c, name='bvk_saved_ranks')
      import :: c_int, c_ptr
      type(c_ptr), value :: restart
      integer(c_int), intent(inout) :: ranks
      integer(c_int) :: status
    end function
    function c_of_ranks(restart, name, first, count, data, each, kind) result(status) bind(c, name='bvk_of_ranks')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: restart, data
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: first, count, kind
      integer(c_int64_t), value :: each
      integer(c_int) :: status
    end function

    function c_history_open(session, name, gpu, keep, history) result(status) bind(c, name='bvk_history_open')
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: gpu, keep
      type(c_ptr), intent(inout) :: history
      integer(c_int) :: status
    end function
    function c_history_field(history, name, data, count, kind) result(status) bind(c, name='bvk_history_field')
      import :: c_int, c_ptr, c_char, c_int64_t
      type(c_ptr), value :: history, data
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: count
      integer(c_int), value :: kind
      integer(c_int) :: status
    end function
    function c_history_clear_fields(history) result(status) bind(c, name='bvk_history_clear_fields')
      import :: c_int, c_ptr
      type(c_ptr), value :: history
      integer(c_int) :: status
    end function
    function c_history_append(history, version) result(status) bind(c, name='bvk_history_append')
      import :: c_int, c_ptr, c_int64_t
      type(c_ptr), value :: history
      integer(c_int64_t), value :: version
      integer(c_int) :: status
    end function
    function c_history_restore(history, version) result(status) bind(c, name='bvk_history_restore')
      import :: c_int, c_ptr, c_int64_t
      type(c_ptr), value :: history
      integer(c_int64_t), value :: version
      integer(c_int) :: status
    end function
    function c_history_hint(history, versions, count) result(status) bind(c, name='bvk_history_hint')
      import :: c_int, c_ptr, c_int64_t, c_size_t
      type(c_ptr), value :: history
      integer(c_int64_t), intent(in) :: versions(*)
      integer(c_size_t), value :: count
      integer(c_int) :: status
    end function
    function c_history_start_prefetch(history) result(status) bind(c, name='bvk_history_start_prefetch')
      import :: c_int, c_ptr
      type(c_ptr), value :: history
      integer(c_int) :: status
    end function
    function c_history_wait_flushed(history) result(status) bind(c, name='bvk_history_wait_flushed')
      import :: c_int, c_ptr
      type(c_ptr), value :: history
      integer(c_int) :: status
    end function
    function c_history_close(history) result(status) bind(c, name='bvk_history_close')
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: history
      integer(c_int) :: status
    end function

    function c_set_live(session, name, on) result(status) bind(c, name='bvk_set_live')
      import :: c_int, c_ptr, c_char
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: on
      integer(c_int) :: status
    end function
    function c_offload(session, gpu, bytes) result(status) bind(c, name='bvk_offload')
      import :: c_int, c_ptr, c_int64_t
      type(c_ptr), value :: session
      integer(c_int), value :: gpu
      integer(c_int64_t), value :: bytes
      integer(c_int) :: status
    end function
    function c_before_write(session, data, bytes) result(status) bind(c, name='bvk_before_write')
      import :: c_int, c_ptr, c_int64_t
      type(c_ptr), value :: session, data
      integer(c_int64_t), value :: bytes
      integer(c_int) :: status
    end function
    function c_before_write_on(session, data, bytes, stream) result(status) bind(c, name='bvk_before_write_on')
      import :: c_int, c_ptr, c_int64_t
      type(c_ptr), value :: session, data, stream
      integer(c_int64_t), value :: bytes
      integer(c_int) :: status
    end function
    function c_write_set(session, name, data, bytes, count, set) result(status) bind(c, name='bvk_write_set')
      import :: c_int, c_ptr, c_char, c_int64_t, c_size_t
      type(c_ptr), value :: session
      character(kind=c_char), intent(in) :: name(*)
      type(c_ptr), intent(in) :: data(*)
      integer(c_int64_t), intent(in) :: bytes(*)
      integer(c_size_t), value :: count
      type(c_ptr), intent(inout) :: set
      integer(c_int) :: status
    end function
    function c_before(set) result(status) bind(c, name='bvk_before')
      import :: c_int, c_ptr
      type(c_ptr), value :: set
      integer(c_int) :: status
    end function
    function c_before_on(set, stream) result(status) bind(c, name='bvk_before_on')
      import :: c_int, c_ptr
      type(c_ptr), value :: set, stream
      integer(c_int) :: status
    end function
    function c_write_set_close(set) result(status) bind(c, name='bvk_write_set_close')
      import :: c_int, c_ptr
      type(c_ptr), intent(inout) :: set
      integer(c_int) :: status
    end function
    function c_settle(session) result(status) bind(c, name='bvk_settle')
      import :: c_int, c_ptr
      type(c_ptr), value :: session
      integer(c_int) :: status
    end function
    function c_allow_marks(session) result(status) bind(c, name='bvk_allow_marks')
      import :: c_int, c_ptr
      type(c_ptr), value :: session
      integer(c_int) :: status
    end function
  end interface

contains

  ! ------------------------------------------------------------------------------------------- errors and texts

  ! The error text of the last failed call; empty if no call has failed.
  function bvk_error_text() result(text)
    character(len=:), allocatable :: text
    if (own_error) then
      text = trim(own_text)
    else
      text = text_of(c_error())
    end if
  end function

  ! The name of a status, for example BVK_ERR_LOAD.
  function bvk_status_name(status) result(text)
    integer, intent(in) :: status
    character(len=:), allocatable :: text
    text = text_of(c_status_name(int(status, c_int)))
  end function

  ! The version of the library, for example 0.1.0.
  function bvk_version() result(text)
    character(len=:), allocatable :: text
    text = text_of(c_version())
  end function

  ! Sets which lines Bivouac writes to standard error, whatever job.log and BIVOUAC_LOG say: 0 nothing; 1 errors; 2 warnings, and
  ! one line each when a session opens, restores and closes; 3 events; 4 details; 5 everything.
  function bvk_log(level) result(status)
    integer, intent(in) :: level
    integer :: status
    status = told(c_log(int(level, c_int)))
  end function

  ! The status of a call to the library. If the call has failed, bvk_error_text() gives the library's text from now on.
  function told(found) result(status)
    integer(c_int), intent(in) :: found
    integer :: status
    status = int(found)
    if (status < 0) own_error = .false.
  end function

  ! Records an error that this module has found, and returns its status.
  function refused(text) result(status)
    character(len=*), intent(in) :: text
    integer :: status
    own_text = text
    own_error = .true.
    status = BVK_ERR_ARGUMENT
  end function

  ! The Fortran text of a C string.
  function text_of(address) result(text)
    type(c_ptr), intent(in) :: address
    character(len=:), allocatable :: text
    character(kind=c_char), pointer :: bytes(:)
    if (.not. c_associated(address)) then
      text = ''
      return
    end if
    call c_f_pointer(address, bytes, [c_strlen(address)])
    text = text_of_bytes(bytes)
  end function

  ! The characters before the first zero.
  function text_of_bytes(bytes) result(text)
    character(kind=c_char), intent(in) :: bytes(:)
    character(len=:), allocatable :: text
    integer :: length, at
    length = findloc(bytes, c_null_char, dim=1) - 1
    if (length < 0) length = size(bytes)
    allocate (character(len=length) :: text)
    do at = 1, length
      text(at:at) = bytes(at)
    end do
  end function

  ! A text for C: without trailing blanks, and with a zero at its end.
  pure function ended(text) result(with_zero)
    character(len=*), intent(in) :: text
    character(kind=c_char, len=:), allocatable :: with_zero
    with_zero = trim(text)//c_null_char
  end function

  ! --------------------------------------------------------------------------------------------------- sessions

  ! Opens a session on the ranks of `comm`. The configuration comes from a TOML file or TOML text (otherwise from the file that
  ! BIVOUAC_CONFIG names), then from the environment, then from settings ('section.key=value'); later sources take precedence.
  function open_f08(comm, session, config_file, config_text, settings) result(status)
    use mpi_f08, only: MPI_Comm
    type(MPI_Comm), intent(in) :: comm
    type(bvk_session_t), intent(inout) :: session
    character(len=*), intent(in), optional :: config_file, config_text, settings(:)
    integer :: status
    status = open_integer(comm%MPI_VAL, session, config_file, config_text, settings)
  end function

  function open_integer(comm, session, config_file, config_text, settings) result(status)
    integer, intent(in) :: comm
    type(bvk_session_t), intent(inout) :: session
    character(len=*), intent(in), optional :: config_file, config_text, settings(:)
    integer :: status
    character(kind=c_char, len=:), allocatable, target :: file, text
    character(kind=c_char), allocatable, target :: words(:, :)
    type(c_ptr), allocatable, target :: entries(:)
    type(c_options) :: options
    integer :: at

    options = c_options(0, c_null_ptr, c_null_ptr, c_null_ptr)
    options%size = c_sizeof(options)
    if (present(config_file)) then
      file = ended(config_file)
      options%config_file = c_loc(file)
    end if
    if (present(config_text)) then
      text = ended(config_text)
      options%config_text = c_loc(text)
    end if
    if (present(settings)) then
      allocate (words(len(settings) + 1, size(settings)), entries(size(settings) + 1))
      words = c_null_char
      entries = c_null_ptr
      do at = 1, size(settings)
        words(:len_trim(settings(at)), at) = transfer(trim(settings(at)), words(:0, at))
        entries(at) = c_loc(words(1, at))
      end do
      options%settings = c_loc(entries)
    end if
    status = told(c_open(int(comm, c_int), options, session%handle))
  end function

  ! Waits for all checkpoints that are being written, and ends the session and everything that was made from it.
  function bvk_close(session) result(status)
    type(bvk_session_t), intent(inout) :: session
    integer :: status
    status = told(c_close(session%handle))
  end function

  ! The number of this run on its store.
  function bvk_generation(session, generation) result(status)
    type(bvk_session_t), intent(in) :: session
    integer(int64), intent(inout) :: generation
    integer :: status
    status = told(c_generation(session%handle, generation))
  end function

  ! Sets the session's stream: regions in device memory are complete once the work that is enqueued on it has run.
  function bvk_set_stream(session, stream) result(status)
    type(bvk_session_t), intent(in) :: session
    type(c_ptr), intent(in) :: stream
    integer :: status
    status = told(c_set_stream(session%handle, stream))
  end function

  ! Is it time for a checkpoint?
  function bvk_should_checkpoint(session, yes) result(status)
    type(bvk_session_t), intent(in) :: session
    logical, intent(out) :: yes
    integer :: status
    integer(c_int) :: answer
    answer = 0
    status = told(c_should_checkpoint(session%handle, answer))
    yes = answer /= 0
  end function

  ! Is it time to stop?
  function bvk_should_exit(session, yes) result(status)
    type(bvk_session_t), intent(in) :: session
    logical, intent(out) :: yes
    integer :: status
    integer(c_int) :: answer
    answer = 0
    status = told(c_should_exit(session%handle, answer))
    yes = answer /= 0
  end function

  ! Prepares node memory for checkpoints of about `bytes` bytes per rank.
  function bvk_prepare(session, bytes) result(status)
    type(bvk_session_t), intent(in) :: session
    integer(int64), intent(in) :: bytes
    integer :: status
    status = told(c_prepare(session%handle, bytes))
  end function

  ! Exchanges coordination messages.
  function bvk_progress(session) result(status)
    type(bvk_session_t), intent(in) :: session
    integer :: status
    status = told(c_progress(session%handle))
  end function

  ! Puts the threads of this rank where `policy` says (BVK_PIN_...).
  function bvk_pin(session, policy) result(status)
    type(bvk_session_t), intent(in) :: session
    integer, intent(in) :: policy
    integer :: status
    status = told(c_pin(session%handle, int(policy, c_int)))
  end function

  ! Sets which parts of the affinity a restart brings back from now on (BVK_AFFINITY_...).
  function bvk_set_affinity(session, mode) result(status)
    type(bvk_session_t), intent(in) :: session
    integer, intent(in) :: mode
    integer :: status
    status = told(c_set_affinity(session%handle, int(mode, c_int)))
  end function

  ! Counters and times of this rank.
  function bvk_get_stats(session, stats) result(status)
    type(bvk_session_t), intent(in) :: session
    type(bvk_stats), intent(inout) :: stats
    integer :: status
    stats%size = c_sizeof(stats)
    status = told(c_get_stats(session%handle, stats))
  end function

  ! Counters of this rank for one level (BVK_LEVEL_PROCESS to BVK_LEVEL_SYSTEM).
  function bvk_get_level_stats(session, level, stats) result(status)
    type(bvk_session_t), intent(in) :: session
    integer, intent(in) :: level
    type(bvk_level_stats), intent(inout) :: stats
    integer :: status
    stats%size = c_sizeof(stats)
    status = told(c_get_level_stats(session%handle, int(level, c_int), stats))
  end function

  ! The next verdict that has not been read yet; BVK_NOTHING if all have been read.
  function bvk_next_report(session, report) result(status)
    type(bvk_session_t), intent(in) :: session
    type(bvk_report), intent(inout) :: report
    integer :: status
    type(c_report) :: found
    found%size = c_sizeof(found)
    status = told(c_next_report(session%handle, found))
    if (status /= BVK_OK) return
    report%version = found%version
    report%level = int(found%level)
    report%committed = int(found%committed)
    report%name = text_of_bytes(found%name)
    report%reason = text_of_bytes(found%reason)
  end function

  ! ------------------------------------------------------------------------------------------ memory and its type

  ! Where `data` is, and its extents, slowest first; an error if its elements are not contiguous.
  function place(name, data, address, extents) result(status)
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(in) :: data
    type(c_ptr), intent(out) :: address
    integer(c_int64_t), allocatable, intent(out) :: extents(:)
    integer :: status, dimension
    status = BVK_OK
    address = c_null_ptr
    allocate (extents(rank(data)))
    do dimension = 1, rank(data)
      extents(rank(data) + 1 - dimension) = size(data, dimension, c_int64_t)
    end do
    if (any(extents == 0)) return
    if (rank(data) > 0) then
      if (.not. is_contiguous(data)) then
        status = refused('region "'//trim(name)//'": the elements are not contiguous; give a whole array, or a section of it ' &
          //'without gaps, or copy it first')
        return
      end if
    end if
    address = c_loc(data)
  end function

  function protect_any(session, name, data, kind) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    status = place(name, data, address, extents)
    if (status == BVK_OK) then
      status = told(c_protect(session%handle, ended(name), address, int(kind, c_int), size(extents, &
        kind=c_int), extents))
    end if
  end function

  function save_any(checkpoint, name, data, kind) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    status = place(name, data, address, extents)
    if (status == BVK_OK) then
      status = told(c_save(checkpoint%handle, ended(name), address, int(kind, c_int), size(extents, &
        kind=c_int), extents))
    end if
  end function

  function load_any(restart, name, data, kind) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    status = place(name, data, address, extents)
    if (status == BVK_OK) status = told(c_load(restart%handle, ended(name), address, product(extents), int(kind, c_int)))
  end function

  function history_field_any(history, name, data, kind) result(status)
    type(bvk_history_t), intent(in) :: history
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    status = place(name, data, address, extents)
    if (status == BVK_OK) then
      status = told(c_history_field(history%handle, ended(name), address, product(extents), int(kind, c_int)))
    end if
  end function

  ! Memory that is passed as an address, on the host or on a GPU: `count` elements of the type `kind` (BVK_..., or minus the size
  ! of a record in bytes).
  function protect_address(session, name, address, count, kind) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: count
    integer, intent(in) :: kind
    integer :: status
    status = told(c_protect(session%handle, ended(name), address, int(kind, c_int), 1_c_int, [count]))
  end function

  function save_address(checkpoint, name, address, count, kind) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: count
    integer, intent(in) :: kind
    integer :: status
    status = told(c_save(checkpoint%handle, ended(name), address, int(kind, c_int), 1_c_int, [count]))
  end function

  function load_address(restart, name, address, count, kind) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: count
    integer, intent(in) :: kind
    integer :: status
    status = told(c_load(restart%handle, ended(name), address, count, int(kind, c_int)))
  end function

  function history_field_address(history, name, address, count, kind) result(status)
    type(bvk_history_t), intent(in) :: history
    character(len=*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: count
    integer, intent(in) :: kind
    integer :: status
    status = told(c_history_field(history%handle, ended(name), address, count, int(kind, c_int)))
  end function

  ! One function for each type: the compiler chooses according to the type of `data`.

  function protect_i8(session, name, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(int8), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_any(session, name, data, BVK_I8)
  end function

  function protect_i16(session, name, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(int16), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_any(session, name, data, BVK_I16)
  end function

  function protect_i32(session, name, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(int32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_any(session, name, data, BVK_I32)
  end function

  function protect_i64(session, name, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(int64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_any(session, name, data, BVK_I64)
  end function

  function protect_f32(session, name, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    real(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_any(session, name, data, BVK_F32)
  end function

  function protect_f64(session, name, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    real(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_any(session, name, data, BVK_F64)
  end function

  function protect_c32(session, name, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    complex(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_any(session, name, data, BVK_RECORD_C32)
  end function

  function protect_c64(session, name, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    complex(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_any(session, name, data, BVK_RECORD_C64)
  end function

  function save_i8(checkpoint, name, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    integer(int8), dimension(..), target, intent(inout) :: data
    integer :: status
    status = save_any(checkpoint, name, data, BVK_I8)
  end function

  function save_i16(checkpoint, name, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    integer(int16), dimension(..), target, intent(inout) :: data
    integer :: status
    status = save_any(checkpoint, name, data, BVK_I16)
  end function

  function save_i32(checkpoint, name, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    integer(int32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = save_any(checkpoint, name, data, BVK_I32)
  end function

  function save_i64(checkpoint, name, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    integer(int64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = save_any(checkpoint, name, data, BVK_I64)
  end function

  function save_f32(checkpoint, name, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    real(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = save_any(checkpoint, name, data, BVK_F32)
  end function

  function save_f64(checkpoint, name, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    real(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = save_any(checkpoint, name, data, BVK_F64)
  end function

  function save_c32(checkpoint, name, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    complex(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = save_any(checkpoint, name, data, BVK_RECORD_C32)
  end function

  function save_c64(checkpoint, name, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    complex(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = save_any(checkpoint, name, data, BVK_RECORD_C64)
  end function

  function load_i8(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer(int8), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_any(restart, name, data, BVK_I8)
  end function

  function load_i16(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer(int16), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_any(restart, name, data, BVK_I16)
  end function

  function load_i32(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer(int32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_any(restart, name, data, BVK_I32)
  end function

  function load_i64(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer(int64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_any(restart, name, data, BVK_I64)
  end function

  function load_f32(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    real(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_any(restart, name, data, BVK_F32)
  end function

  function load_f64(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    real(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_any(restart, name, data, BVK_F64)
  end function

  function load_c32(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    complex(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_any(restart, name, data, BVK_RECORD_C32)
  end function

  function load_c64(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    complex(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_any(restart, name, data, BVK_RECORD_C64)
  end function

  function history_field_i8(history, name, data) result(status)
    type(bvk_history_t), intent(in) :: history
    character(len=*), intent(in) :: name
    integer(int8), dimension(..), target, intent(inout) :: data
    integer :: status
    status = history_field_any(history, name, data, BVK_I8)
  end function

  function history_field_i16(history, name, data) result(status)
    type(bvk_history_t), intent(in) :: history
    character(len=*), intent(in) :: name
    integer(int16), dimension(..), target, intent(inout) :: data
    integer :: status
    status = history_field_any(history, name, data, BVK_I16)
  end function

  function history_field_i32(history, name, data) result(status)
    type(bvk_history_t), intent(in) :: history
    character(len=*), intent(in) :: name
    integer(int32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = history_field_any(history, name, data, BVK_I32)
  end function

  function history_field_i64(history, name, data) result(status)
    type(bvk_history_t), intent(in) :: history
    character(len=*), intent(in) :: name
    integer(int64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = history_field_any(history, name, data, BVK_I64)
  end function

  function history_field_f32(history, name, data) result(status)
    type(bvk_history_t), intent(in) :: history
    character(len=*), intent(in) :: name
    real(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = history_field_any(history, name, data, BVK_F32)
  end function

  function history_field_f64(history, name, data) result(status)
    type(bvk_history_t), intent(in) :: history
    character(len=*), intent(in) :: name
    real(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = history_field_any(history, name, data, BVK_F64)
  end function

  function history_field_c32(history, name, data) result(status)
    type(bvk_history_t), intent(in) :: history
    character(len=*), intent(in) :: name
    complex(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = history_field_any(history, name, data, BVK_RECORD_C32)
  end function

  function history_field_c64(history, name, data) result(status)
    type(bvk_history_t), intent(in) :: history
    character(len=*), intent(in) :: name
    complex(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = history_field_any(history, name, data, BVK_RECORD_C64)
  end function

  ! Ends the protection of a region.
  function bvk_unprotect(session, name) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer :: status
    status = told(c_unprotect(session%handle, ended(name)))
  end function

  ! Ends the protection of all regions.
  function bvk_unprotect_all(session) result(status)
    type(bvk_session_t), intent(in) :: session
    integer :: status
    status = told(c_unprotect_all(session%handle))
  end function

  ! ------------------------------------------------------------------------------------------------ checkpoints

  ! Takes a checkpoint of all protected regions, as version `version` of the series `name`.
  function bvk_checkpoint(session, name, version, pending) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(int64), intent(in) :: version
    type(bvk_pending_t), intent(inout), target, optional :: pending
    integer :: status
    type(c_ptr) :: place
    place = c_null_ptr
    if (present(pending)) place = c_loc(pending%handle)
    status = told(c_checkpoint(session%handle, ended(name), version, place))
  end function

  ! Begins a checkpoint that names its own regions: bvk_save adds the regions, bvk_capture takes the checkpoint, and bvk_abort
  ! aborts it.
  function bvk_begin_checkpoint(session, name, version, checkpoint) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(int64), intent(in) :: version
    type(bvk_checkpoint_t), intent(inout) :: checkpoint
    integer :: status
    status = told(c_begin_checkpoint(session%handle, ended(name), version, checkpoint%handle))
  end function

  ! Adds all regions that are protected on the session when the checkpoint is captured.
  function bvk_save_protected(checkpoint) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    integer :: status
    status = told(c_save_protected(checkpoint%handle))
  end function

  ! Copies into the checkpoint the host regions that were added with bvk_save. The application may overwrite these regions as soon
  ! as this function returns, before bvk_capture. Collective.
  function bvk_hold(checkpoint) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    integer :: status
    status = told(c_hold(checkpoint%handle))
  end function

  ! Chooses full, basic, list, tree or auto as the method by which files reuse earlier files for a region of this checkpoint. This
  ! method replaces the configured one. Local.
  function bvk_reduce(checkpoint, region, method) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: region, method
    integer :: status
    status = told(c_reduce(checkpoint%handle, ended(region), ended(method)))
  end function

  ! Adds the versions that a history has when the checkpoint is captured.
  function bvk_save_history(checkpoint, history) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    type(bvk_history_t), intent(in) :: history
    integer :: status
    status = told(c_save_history(checkpoint%handle, history%handle))
  end function

  ! Copies all regions. When this returns, the application may overwrite them.
  function bvk_capture(checkpoint, pending) result(status)
    type(bvk_checkpoint_t), intent(inout) :: checkpoint
    type(bvk_pending_t), intent(inout), target, optional :: pending
    integer :: status
    type(c_ptr) :: place
    place = c_null_ptr
    if (present(pending)) place = c_loc(pending%handle)
    status = told(c_capture(checkpoint%handle, place))
  end function

  ! Gives up a checkpoint that was begun.
  function bvk_abort(checkpoint) result(status)
    type(bvk_checkpoint_t), intent(inout) :: checkpoint
    integer :: status
    status = told(c_abort(checkpoint%handle))
  end function

  ! Has each level been reached or given up?
  function bvk_poll(pending, finished) result(status)
    type(bvk_pending_t), intent(in) :: pending
    logical, intent(out) :: finished
    integer :: status
    integer(c_int) :: answer
    answer = 0
    status = told(c_poll(pending%handle, answer))
    finished = answer /= 0
  end function

  ! The highest level that all ranks have reached.
  function bvk_level(pending, reached) result(status)
    type(bvk_pending_t), intent(in) :: pending
    integer, intent(inout) :: reached
    integer :: status
    integer(c_int) :: level
    level = int(reached, c_int)
    status = told(c_level(pending%handle, level))
    reached = int(level)
  end function

  ! Waits until the checkpoint is committed at `level` or a higher one.
  function bvk_wait(pending, level, reached) result(status)
    type(bvk_pending_t), intent(in) :: pending
    integer, intent(in) :: level
    integer, intent(inout), optional :: reached
    integer :: status
    integer(c_int) :: found
    found = BVK_LEVEL_CAPTURED
    status = told(c_wait(pending%handle, int(level, c_int), found))
    if (present(reached)) reached = int(found)
  end function

  ! Releases the handle; the checkpoint continues.
  function bvk_release(pending) result(status)
    type(bvk_pending_t), intent(inout) :: pending
    integer :: status
    status = told(c_release(pending%handle))
  end function

  ! --------------------------------------------------------------------------------------------------- restarts

  ! Restores the newest version, or `version` if it is given, into all protected regions. BVK_NOTHING: there is nothing to restore.
  function bvk_restore(session, name, version, restored) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(int64), intent(in), optional :: version
    type(bvk_restored), intent(inout), optional :: restored
    integer :: status
    type(bvk_restored) :: found
    found%size = c_sizeof(found)
    status = told(c_restore(session%handle, ended(name), chosen(version), found))
    if (present(restored)) restored = found
  end function

  ! Begins a restart in which the application loads the regions itself; bvk_end_restore ends each attempt.
  function bvk_begin_restore(session, name, restart, version) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(bvk_restart_t), intent(inout) :: restart
    integer(int64), intent(in), optional :: version
    integer :: status
    status = told(c_begin_restore(session%handle, ended(name), chosen(version), restart%handle))
  end function

  function chosen(version) result(number)
    integer(int64), intent(in), optional :: version
    integer(int64) :: number
    number = BVK_NEWEST
    if (present(version)) number = version
  end function

  ! The version that is being restored.
  function bvk_saved_version(restart, version) result(status)
    type(bvk_restart_t), intent(in) :: restart
    integer(int64), intent(inout) :: version
    integer :: status
    status = told(c_saved_version(restart%handle, version))
  end function

  ! The number and the type of the elements that the region has in the version that is being restored.
  function bvk_region_size(restart, name, count, kind) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer(int64), intent(inout) :: count
    integer, intent(inout), optional :: kind
    integer :: status
    integer(c_int) :: number
    number = 0
    status = told(c_region_size(restart%handle, ended(name), count, number))
    if (present(kind)) kind = int(number)
  end function

  ! Loads all protected regions.
  function bvk_load_protected(restart) result(status)
    type(bvk_restart_t), intent(in) :: restart
    integer :: status
    status = told(c_load_protected(restart%handle))
  end function

  ! Appends to `history` all versions that were saved under its name; `count` says how many. Each attempt needs its own history:
  ! after BVK_AGAIN, close this one and open another.
  function bvk_load_history(restart, history, count) result(status)
    type(bvk_restart_t), intent(in) :: restart
    type(bvk_history_t), intent(in) :: history
    integer(int64), intent(inout), optional :: count
    integer :: status
    integer(c_int64_t) :: found
    found = 0
    status = told(c_load_history(restart%handle, history%handle, found))
    if (present(count)) count = found
  end function

  ! Begins a region of bytes whose length is not known yet; bvk_stream_write writes it piece by piece, and bvk_stream_end ends it.
  function bvk_stream_begin(checkpoint, name) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    integer :: status
    status = told(c_stream_begin(checkpoint%handle, ended(name)))
  end function

  ! Writes the `bytes` bytes at `data` (c_loc of an array) to the region, after those written earlier. The bytes at `data` are
  ! copied.
  function bvk_stream_write(checkpoint, data, bytes) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    type(c_ptr), intent(in) :: data
    integer(int64), intent(in) :: bytes
    integer :: status
    status = told(c_stream_write(checkpoint%handle, data, bytes))
  end function

  function bvk_stream_end(checkpoint) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    integer :: status
    status = told(c_stream_end(checkpoint%handle))
  end function

  ! Reads into `data` bytes of a region, starting at byte `at` of the region (counted from 0). `found` says how many bytes were
  ! read, at most `bytes`.
  function bvk_stream_read(restart, name, at, data, bytes, found) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer(int64), intent(in) :: at, bytes
    type(c_ptr), intent(in) :: data
    integer(int64), intent(out) :: found
    integer :: status
    integer(int64) :: count
    count = 0
    status = told(c_stream_read(restart%handle, ended(name), at, data, bytes, count))
    found = count
  end function

  ! Adds a file as a region: the program, or a library that needs a path, writes it to `path`, in node-local storage. The file must
  ! be complete when bvk_capture is called; that call reads and removes it.
  function bvk_route(checkpoint, name, path) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    character(len=:), allocatable, intent(out) :: path
    integer :: status
    type(c_ptr) :: found
    found = c_null_ptr
    status = told(c_route(checkpoint%handle, ended(name), found))
    path = text_of(found)
  end function

  ! Writes to a file a region of the version that is being restored. `path` is in node-local storage; the file exists until
  ! bvk_end_restore. After BVK_AGAIN, call this function again.
  function bvk_route_saved(restart, name, path) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    character(len=:), allocatable, intent(out) :: path
    integer :: status
    type(c_ptr) :: found
    found = c_null_ptr
    status = told(c_route_saved(restart%handle, ended(name), found))
    path = text_of(found)
  end function

  ! Keeps an output file consistent with the checkpoints of the series `name`. The program appends to this file, which may be a
  ! trajectory or a time series, for example. Each checkpoint records the length of the file at the capture (call flush
  ! beforehand). A restart brings the file back to that length, as `on_restart` (BVK_RESTART_...) says. All ranks call this
  ! function; ranks that do not write a file leave out `path`.
  function bvk_companion(session, name, on_restart, path) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer, intent(in) :: on_restart
    character(len=*), intent(in), optional :: path
    integer :: status
    character(kind=c_char), allocatable, target :: text(:)
    type(c_ptr) :: address
    address = c_null_ptr
    if (present(path)) then
      text = transfer(ended(path), [c_null_char], len_trim(path) + 1)
      address = c_loc(text)
    end if
    status = told(c_companion(session%handle, ended(name), address, int(on_restart, c_int)))
  end function

  ! The path to which the program writes a companion now. After a restart with BVK_RESTART_ANOTHER, this may be a different path
  ! from the one that the program gave.
  function bvk_companion_path(session, name, path, current) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name, path
    character(len=:), allocatable, intent(out) :: current
    integer :: status
    type(c_ptr) :: found
    found = c_null_ptr
    status = told(c_companion_path(session%handle, ended(name), ended(path), found))
    current = text_of(found)
  end function

  ! Rejects a version that can be loaded but must not be used, because it contains a NaN or fails another check. After
  ! bvk_end_restore all ranks continue with the next older version. It is enough for one rank to call this.
  function bvk_reject(restart, reason) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: reason
    integer :: status
    status = told(c_reject(restart%handle, ended(reason)))
  end function

  ! Ends an attempt. `loaded` says whether this rank has loaded what it needs. BVK_AGAIN means that a rank has found damage or has
  ! rejected the version: load everything again from the same handle. If a rank has not loaded for any other reason, the restart
  ! ends on all ranks. With `gives_up`, a rank that has found damage also ends the restart on all ranks.
  function bvk_end_restore(restart, loaded, restored, gives_up) result(status)
    type(bvk_restart_t), intent(inout) :: restart
    logical, intent(in) :: loaded
    type(bvk_restored), intent(inout), optional :: restored
    logical, intent(in), optional :: gives_up
    integer :: status
    type(bvk_restored) :: found
    integer(c_int) :: not_loaded
    not_loaded = 0
    if (present(gives_up)) not_loaded = merge(-1_c_int, 0_c_int, gives_up)
    found%size = c_sizeof(found)
    status = told(c_end_restore(restart%handle, merge(1_c_int, not_loaded, loaded), found))
    if (present(restored)) restored = found
  end function

  ! The versions that all ranks can restore, newest first.
  function bvk_versions(session, name, versions) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(int64), allocatable, intent(out) :: versions(:)
    integer :: status
    integer(c_size_t) :: count, room
    room = 256
    do
      if (allocated(versions)) deallocate (versions)
      allocate (versions(room))
      count = 0
      status = told(c_versions(session%handle, ended(name), versions, room, count))
      ! All ranks get the same number, so all of them ask again or none does.
      if (count <= room) exit
      room = 2*count
    end do
    versions = versions(:count)
  end function

  ! ----------------------------------------------------------- restarts on a different number of ranks: arrays on boxes

  ! Says which elements this rank owns in an array with the extents `shape`, and proves together with the other ranks that each
  ! element has one owner. Collective; a rank with a mistake takes part nevertheless. All arguments are in Fortran's order of
  ! dimensions, first index fastest.
  !
  ! One box: `origin` is the position of its first element in the array, counted from 1, and `extent` is the number of its
  ! elements in each dimension. In memory the box has the indices 1 to extent(d) in each dimension d, inside an array with the
  ! bounds `lower` and `upper`; the elements outside the box are ghost cells. For an array t, the bounds are lbound(t) and
  ! ubound(t); without bounds there are no ghost cells.
  !
  ! Several boxes, or none: `origin` and `extent` have a column for each box, and `before` and `after` give the number of ghost
  ! cells before and after each box in each dimension.
  !
  ! With `sparse`, the boxes of all ranks together need not cover the array.
  function boxes_one_i32(session, shape, origin, extent, boxes, lower, upper, sparse) result(status)
    type(bvk_session_t), intent(in) :: session
    integer(int32), intent(in) :: shape(:), origin(:), extent(:)
    type(bvk_boxes_t), intent(inout) :: boxes
    integer(int32), intent(in), optional :: lower(:), upper(:)
    logical, intent(in), optional :: sparse
    integer :: status
    integer(int64), allocatable :: before(:), after(:)
    before = spread(0_int64, 1, size(shape))
    after = before
    if (present(lower)) before = 1 - int(lower, int64)
    if (present(upper)) then
      if (size(upper) == size(extent)) then
        after = int(upper, int64) - extent
      else
        after = int(upper, int64)
      end if
    end if
    status = boxes_any(session, int(shape, int64), spread(int(origin, int64), 2, 1), spread(int(extent, int64), 2, 1), boxes, &
      before, after, sparse)
  end function

  function boxes_many_i32(session, shape, origin, extent, boxes, before, after, sparse) result(status)
    type(bvk_session_t), intent(in) :: session
    integer(int32), intent(in) :: shape(:), origin(:, :), extent(:, :)
    type(bvk_boxes_t), intent(inout) :: boxes
    integer(int32), intent(in), optional :: before(:), after(:)
    logical, intent(in), optional :: sparse
    integer :: status
    integer(int64), allocatable :: margins(:, :)
    allocate (margins(size(shape), 2), source=0_int64)
    if (present(before)) then
      if (size(before) /= size(shape)) then
        status = no_boxes(session, boxes, 'before has not as many numbers as shape')
        return
      end if
      margins(:, 1) = before
    end if
    if (present(after)) then
      if (size(after) /= size(shape)) then
        status = no_boxes(session, boxes, 'after has not as many numbers as shape')
        return
      end if
      margins(:, 2) = after
    end if
    status = boxes_any(session, int(shape, int64), int(origin, int64), int(extent, int64), boxes, margins(:, 1), margins(:, 2), &
      sparse)
  end function

  function boxes_one_i64(session, shape, origin, extent, boxes, lower, upper, sparse) result(status)
    type(bvk_session_t), intent(in) :: session
    integer(int64), intent(in) :: shape(:), origin(:), extent(:)
    type(bvk_boxes_t), intent(inout) :: boxes
    integer(int64), intent(in), optional :: lower(:), upper(:)
    logical, intent(in), optional :: sparse
    integer :: status
    integer(int64), allocatable :: before(:), after(:)
    before = spread(0_int64, 1, size(shape))
    after = before
    if (present(lower)) before = 1 - int(lower, int64)
    if (present(upper)) then
      if (size(upper) == size(extent)) then
        after = int(upper, int64) - extent
      else
        after = int(upper, int64)
      end if
    end if
    status = boxes_any(session, int(shape, int64), spread(int(origin, int64), 2, 1), spread(int(extent, int64), 2, 1), boxes, &
      before, after, sparse)
  end function

  function boxes_many_i64(session, shape, origin, extent, boxes, before, after, sparse) result(status)
    type(bvk_session_t), intent(in) :: session
    integer(int64), intent(in) :: shape(:), origin(:, :), extent(:, :)
    type(bvk_boxes_t), intent(inout) :: boxes
    integer(int64), intent(in), optional :: before(:), after(:)
    logical, intent(in), optional :: sparse
    integer :: status
    integer(int64), allocatable :: margins(:, :)
    allocate (margins(size(shape), 2), source=0_int64)
    if (present(before)) then
      if (size(before) /= size(shape)) then
        status = no_boxes(session, boxes, 'before has not as many numbers as shape')
        return
      end if
      margins(:, 1) = before
    end if
    if (present(after)) then
      if (size(after) /= size(shape)) then
        status = no_boxes(session, boxes, 'after has not as many numbers as shape')
        return
      end if
      margins(:, 2) = after
    end if
    status = boxes_any(session, int(shape, int64), int(origin, int64), int(extent, int64), boxes, margins(:, 1), margins(:, 2), &
      sparse)
  end function

  function boxes_any(session, shape, origin, extent, boxes, before, after, sparse) result(status)
    type(bvk_session_t), intent(in) :: session
    integer(int64), intent(in) :: shape(:), origin(:, :), extent(:, :), before(:), after(:)
    type(bvk_boxes_t), intent(inout) :: boxes
    logical, intent(in), optional :: sparse
    integer :: status, box
    integer(c_int64_t), allocatable, target :: lists(:, :), origins(:, :), extents(:, :)
    integer(c_int) :: is_sparse
    if (size(origin, 1) /= size(shape) .or. size(extent, 1) /= size(shape) .or. size(origin, 2) /= size(extent, 2) &
      .or. size(before) /= size(shape) .or. size(after) /= size(shape)) then
      status = no_boxes(session, boxes, 'shape, origin, extent and what surrounds a box have different numbers of dimensions, ' &
        //'or there are not as many origins as extents')
      return
    end if
    if (any(before < 0) .or. any(after < 0)) then
      status = no_boxes(session, boxes, 'a box reaches out of its memory: its indices there are 1 to extent, and the bounds ' &
        //'are narrower')
      return
    end if
    if (any(origin < 1)) then
      status = no_boxes(session, boxes, 'an origin is less than 1: elements are counted from 1')
      return
    end if
    if (any(shape < 0) .or. any(extent < 0)) then
      status = no_boxes(session, boxes, 'an extent is negative')
      return
    end if
    ! The library expects the slowest dimension first.
    allocate (lists(size(shape), 3))
    lists(:, 1) = shape(size(shape):1:-1)
    lists(:, 2) = before(size(shape):1:-1)
    lists(:, 3) = after(size(shape):1:-1)
    origins = origin(size(shape):1:-1, :) - 1
    extents = extent(size(shape):1:-1, :)
    is_sparse = 0
    if (present(sparse)) is_sparse = merge(1_c_int, 0_c_int, sparse)
    status = told(c_boxes(session%handle, size(shape, kind=c_int), address_of(lists(:, 1:1)), size(extents, 2, c_size_t), &
      address_of(origins), address_of(extents), address_of(lists(:, 2:2)), address_of(lists(:, 3:3)), is_sparse, boxes%handle))
    if (status /= BVK_OK) return
    do box = 1, size(extents, 2)
      extents(:, box) = extents(:, box) + lists(:, 2) + lists(:, 3)
    end do
    call move_alloc(extents, boxes%memory)
  end function

  ! The address of a list; c_null_ptr if the list is empty.
  function address_of(list) result(address)
    integer(c_int64_t), intent(in), contiguous, target :: list(:, :)
    type(c_ptr) :: address
    address = c_null_ptr
    if (size(list) > 0) address = c_loc(list)
  end function

  ! Takes part in bvk_boxes after this module has found a mistake, so that the other ranks are told of it.
  function no_boxes(session, boxes, text) result(status)
    type(bvk_session_t), intent(in) :: session
    type(bvk_boxes_t), intent(inout) :: boxes
    character(len=*), intent(in) :: text
    integer :: status
    status = told(c_boxes(session%handle, 1_c_int, c_null_ptr, 0_c_size_t, c_null_ptr, c_null_ptr, c_null_ptr, c_null_ptr, &
      0_c_int, boxes%handle))
    if (status == BVK_ERR_DISAGREED) status = refused(text)
  end function

  ! Says which elements this rank owns in an array of `total` numbered elements, such as the elements of an unstructured mesh, and
  ! proves together with the other ranks that each element has one owner. Collective; a rank with a mistake takes part
  ! nevertheless. Elements are counted from 1. `numbers` lists the elements of this rank, in any order; the memory of this rank is
  ! one array with an element for each number. With `sparse`, the lists of all ranks together need not contain all numbers.
  function ids_i32(session, total, numbers, boxes, sparse) result(status)
    type(bvk_session_t), intent(in) :: session
    integer(int32), intent(in) :: total, numbers(:)
    type(bvk_boxes_t), intent(inout) :: boxes
    logical, intent(in), optional :: sparse
    integer :: status
    status = ids_i64(session, int(total, int64), int(numbers, int64), boxes, sparse)
  end function

  function ids_i64(session, total, numbers, boxes, sparse) result(status)
    type(bvk_session_t), intent(in) :: session
    integer(int64), intent(in) :: total, numbers(:)
    type(bvk_boxes_t), intent(inout) :: boxes
    logical, intent(in), optional :: sparse
    integer :: status
    integer(c_int64_t), allocatable, target :: list(:, :)
    integer(c_int) :: is_sparse
    if (total < 0 .or. any(numbers < 1)) then
      ! The other ranks are told of this rank's mistake.
      status = told(c_ids(session%handle, 0_c_int64_t, 1_c_size_t, c_null_ptr, 0_c_int, boxes%handle))
      if (status == BVK_ERR_DISAGREED) status = refused('total is negative, or a number is less than 1: elements are ' &
        //'counted from 1')
      return
    end if
    allocate (list(size(numbers), 1))
    list(:, 1) = numbers - 1
    is_sparse = 0
    if (present(sparse)) is_sparse = merge(1_c_int, 0_c_int, sparse)
    status = told(c_ids(session%handle, total, size(numbers, kind=c_size_t), address_of(list), is_sparse, boxes%handle))
    if (status /= BVK_OK) return
    if (allocated(boxes%memory)) deallocate (boxes%memory)
    allocate (boxes%memory(1, 1))
    boxes%memory(1, 1) = size(numbers, kind=c_int64_t)
  end function

  ! Releases boxes. Regions that were protected or saved on them stay so.
  function bvk_boxes_close(boxes) result(status)
    type(bvk_boxes_t), intent(inout) :: boxes
    integer :: status
    status = told(c_boxes_close(boxes%handle))
    if (status == BVK_OK .and. allocated(boxes%memory)) deallocate (boxes%memory)
  end function

  ! The memory of this rank's only box. The array must have the extents of the box with its ghost cells, or one dimension and
  ! the same number of elements. A rank without a box passes an array without elements.
  function place_on(name, boxes, data, addresses, elements) result(status)
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    type(*), dimension(..), target, intent(in) :: data
    type(c_ptr), allocatable, intent(out) :: addresses(:)
    integer(c_int64_t), allocatable, intent(out) :: elements(:)
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    allocate (addresses(0), elements(0))
    status = place(name, data, address, extents)
    if (status /= BVK_OK) return
    if (.not. allocated(boxes%memory)) then
      status = refused('region "'//trim(name)//'": its boxes were closed, or are none: call bvk_boxes first')
    else if (size(boxes%memory, 2) == 0 .and. product(extents) == 0) then
      return
    else if (size(boxes%memory, 2) /= 1) then
      status = refused('region "'//trim(name)//'": this rank has not one box; give the addresses of the memory of each')
    else if (size(extents) > 1 .and. .not. same(extents, boxes%memory(:, 1))) then
      status = refused('region "'//trim(name)//'": the array has not the extents of the box with its ghost cells')
    else
      addresses = [address]
      elements = [product(extents)]
    end if
  end function

  pure function same(one, other)
    integer(c_int64_t), intent(in) :: one(:), other(:)
    logical :: same
    same = size(one) == size(other)
    if (same) same = all(one == other)
  end function

  function protect_on_any(session, name, boxes, data, kind) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer :: status
    type(c_ptr), allocatable :: addresses(:)
    integer(c_int64_t), allocatable :: elements(:)
    status = place_on(name, boxes, data, addresses, elements)
    if (status == BVK_OK) then
      status = told(c_protect_on(session%handle, ended(name), boxes%handle, size(addresses, kind=c_size_t), addresses, elements, &
        int(kind, c_int)))
    end if
  end function

  ! The memory of any number of boxes, passed as addresses, with the ghost cells that were given to bvk_boxes.
  function protect_on_address(session, name, boxes, addresses, kind) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    type(c_ptr), intent(in) :: addresses(:)
    integer, intent(in) :: kind
    integer :: status
    status = told(c_protect_on(session%handle, ended(name), boxes%handle, size(addresses, kind=c_size_t), [addresses], &
      elements_of(boxes, size(addresses)), int(kind, c_int)))
  end function

  function save_on_any(checkpoint, name, boxes, data, kind) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer :: status
    type(c_ptr), allocatable :: addresses(:)
    integer(c_int64_t), allocatable :: elements(:)
    status = place_on(name, boxes, data, addresses, elements)
    if (status == BVK_OK) then
      status = told(c_save_on(checkpoint%handle, ended(name), boxes%handle, size(addresses, kind=c_size_t), addresses, elements, &
        int(kind, c_int)))
    end if
  end function

  ! The memory of any number of boxes, passed as addresses, with the ghost cells that were given to bvk_boxes.
  function save_on_address(checkpoint, name, boxes, addresses, kind) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    type(c_ptr), intent(in) :: addresses(:)
    integer, intent(in) :: kind
    integer :: status
    status = told(c_save_on(checkpoint%handle, ended(name), boxes%handle, size(addresses, kind=c_size_t), [addresses], &
      elements_of(boxes, size(addresses)), int(kind, c_int)))
  end function

  function load_on_any(restart, name, boxes, data, kind) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer :: status
    integer :: mistake
    type(c_ptr), allocatable :: addresses(:)
    integer(c_int64_t), allocatable :: elements(:)
    status = place_on(name, boxes, data, addresses, elements)
    if (status == BVK_OK) then
      status = told(c_load_on(restart%handle, ended(name), boxes%handle, size(addresses, kind=c_size_t), addresses, elements, &
        int(kind, c_int)))
    else
      ! This rank takes part with memory that does not fit, so that the other ranks do not wait. The error text remains the one
      ! from this module.
      mistake = int(c_load_on(restart%handle, ended(name), boxes%handle, 0_c_size_t, addresses, elements, int(kind, c_int)))
      if (mistake == BVK_ERR_HANDLE) status = told(int(mistake, c_int))
    end if
  end function

  ! The memory of any number of boxes, passed as addresses, with the ghost cells that were given to bvk_boxes.
  function load_on_address(restart, name, boxes, addresses, kind) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    type(c_ptr), intent(in) :: addresses(:)
    integer, intent(in) :: kind
    integer :: status
    status = told(c_load_on(restart%handle, ended(name), boxes%handle, size(addresses, kind=c_size_t), [addresses], &
      elements_of(boxes, size(addresses)), int(kind, c_int)))
  end function

  ! The number of elements in the memory of each box; 0 for each address beyond the last box.
  pure function elements_of(boxes, count) result(elements)
    type(bvk_boxes_t), intent(in) :: boxes
    integer, intent(in) :: count
    integer(c_int64_t) :: elements(count)
    integer :: box
    elements = 0
    if (.not. allocated(boxes%memory)) return
    do box = 1, min(count, size(boxes%memory, 2))
      elements(box) = product(boxes%memory(:, box))
    end do
  end function

  function protect_on_i8(session, name, boxes, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    integer(int8), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_on_any(session, name, boxes, data, BVK_I8)
  end function

  function protect_on_i16(session, name, boxes, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    integer(int16), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_on_any(session, name, boxes, data, BVK_I16)
  end function

  function protect_on_i32(session, name, boxes, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    integer(int32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_on_any(session, name, boxes, data, BVK_I32)
  end function

  function protect_on_i64(session, name, boxes, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    integer(int64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_on_any(session, name, boxes, data, BVK_I64)
  end function

  function protect_on_f32(session, name, boxes, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    real(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_on_any(session, name, boxes, data, BVK_F32)
  end function

  function protect_on_f64(session, name, boxes, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    real(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_on_any(session, name, boxes, data, BVK_F64)
  end function

  function protect_on_c32(session, name, boxes, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    complex(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_on_any(session, name, boxes, data, BVK_RECORD_C32)
  end function

  function protect_on_c64(session, name, boxes, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    complex(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_on_any(session, name, boxes, data, BVK_RECORD_C64)
  end function

  function save_on_i8(checkpoint, name, boxes, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    integer(int8), dimension(..), target, intent(in) :: data
    integer :: status
    status = save_on_any(checkpoint, name, boxes, data, BVK_I8)
  end function

  function save_on_i16(checkpoint, name, boxes, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    integer(int16), dimension(..), target, intent(in) :: data
    integer :: status
    status = save_on_any(checkpoint, name, boxes, data, BVK_I16)
  end function

  function save_on_i32(checkpoint, name, boxes, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    integer(int32), dimension(..), target, intent(in) :: data
    integer :: status
    status = save_on_any(checkpoint, name, boxes, data, BVK_I32)
  end function

  function save_on_i64(checkpoint, name, boxes, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    integer(int64), dimension(..), target, intent(in) :: data
    integer :: status
    status = save_on_any(checkpoint, name, boxes, data, BVK_I64)
  end function

  function save_on_f32(checkpoint, name, boxes, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    real(real32), dimension(..), target, intent(in) :: data
    integer :: status
    status = save_on_any(checkpoint, name, boxes, data, BVK_F32)
  end function

  function save_on_f64(checkpoint, name, boxes, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    real(real64), dimension(..), target, intent(in) :: data
    integer :: status
    status = save_on_any(checkpoint, name, boxes, data, BVK_F64)
  end function

  function save_on_c32(checkpoint, name, boxes, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    complex(real32), dimension(..), target, intent(in) :: data
    integer :: status
    status = save_on_any(checkpoint, name, boxes, data, BVK_RECORD_C32)
  end function

  function save_on_c64(checkpoint, name, boxes, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    complex(real64), dimension(..), target, intent(in) :: data
    integer :: status
    status = save_on_any(checkpoint, name, boxes, data, BVK_RECORD_C64)
  end function

  function load_on_i8(restart, name, boxes, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    integer(int8), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_on_any(restart, name, boxes, data, BVK_I8)
  end function

  function load_on_i16(restart, name, boxes, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    integer(int16), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_on_any(restart, name, boxes, data, BVK_I16)
  end function

  function load_on_i32(restart, name, boxes, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    integer(int32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_on_any(restart, name, boxes, data, BVK_I32)
  end function

  function load_on_i64(restart, name, boxes, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    integer(int64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_on_any(restart, name, boxes, data, BVK_I64)
  end function

  function load_on_f32(restart, name, boxes, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    real(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_on_any(restart, name, boxes, data, BVK_F32)
  end function

  function load_on_f64(restart, name, boxes, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    real(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_on_any(restart, name, boxes, data, BVK_F64)
  end function

  function load_on_c32(restart, name, boxes, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    complex(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_on_any(restart, name, boxes, data, BVK_RECORD_C32)
  end function

  function load_on_c64(restart, name, boxes, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(bvk_boxes_t), intent(in) :: boxes
    complex(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_on_any(restart, name, boxes, data, BVK_RECORD_C64)
  end function

  ! ----------------------------------------------------- restarts on a different number of ranks: shared and per-rank values

  ! Each value takes less than 1 MiB. A bvk_..._shared value is the same on all ranks. A bvk_..._per_rank value belongs to this
  ! rank alone, and `on_resize` (BVK_RESIZE_...) says what happens to it on a different number of ranks. Values of types other than
  ! int32, int64, real32 and real64 are passed as addresses.

  function protect_shared_any(session, name, data, kind) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    status = place(name, data, address, extents)
    if (status == BVK_OK) then
      status = told(c_protect_shared(session%handle, ended(name), address, product(extents), int(kind, &
        c_int)))
    end if
  end function

  function protect_shared_address(session, name, address, count, kind) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: count
    integer, intent(in) :: kind
    integer :: status
    status = told(c_protect_shared(session%handle, ended(name), address, count, int(kind, c_int)))
  end function

  function protect_shared_i32(session, name, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(int32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_shared_any(session, name, data, BVK_I32)
  end function

  function protect_shared_i64(session, name, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(int64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_shared_any(session, name, data, BVK_I64)
  end function

  function protect_shared_f32(session, name, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    real(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_shared_any(session, name, data, BVK_F32)
  end function

  function protect_shared_f64(session, name, data) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    real(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = protect_shared_any(session, name, data, BVK_F64)
  end function

  function save_shared_any(checkpoint, name, data, kind) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    status = place(name, data, address, extents)
    if (status == BVK_OK) then
      status = told(c_save_shared(checkpoint%handle, ended(name), address, product(extents), int(kind, &
        c_int)))
    end if
  end function

  function save_shared_address(checkpoint, name, address, count, kind) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: count
    integer, intent(in) :: kind
    integer :: status
    status = told(c_save_shared(checkpoint%handle, ended(name), address, count, int(kind, c_int)))
  end function

  function save_shared_i32(checkpoint, name, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    integer(int32), dimension(..), target, intent(in) :: data
    integer :: status
    status = save_shared_any(checkpoint, name, data, BVK_I32)
  end function

  function save_shared_i64(checkpoint, name, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    integer(int64), dimension(..), target, intent(in) :: data
    integer :: status
    status = save_shared_any(checkpoint, name, data, BVK_I64)
  end function

  function save_shared_f32(checkpoint, name, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    real(real32), dimension(..), target, intent(in) :: data
    integer :: status
    status = save_shared_any(checkpoint, name, data, BVK_F32)
  end function

  function save_shared_f64(checkpoint, name, data) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    real(real64), dimension(..), target, intent(in) :: data
    integer :: status
    status = save_shared_any(checkpoint, name, data, BVK_F64)
  end function

  function load_shared_any(restart, name, data, kind) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    status = place(name, data, address, extents)
    if (status == BVK_OK) then
      status = told(c_load_shared(restart%handle, ended(name), address, product(extents), int(kind, &
        c_int)))
    end if
  end function

  function load_shared_address(restart, name, address, count, kind) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: count
    integer, intent(in) :: kind
    integer :: status
    status = told(c_load_shared(restart%handle, ended(name), address, count, int(kind, c_int)))
  end function

  function load_shared_i32(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer(int32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_shared_any(restart, name, data, BVK_I32)
  end function

  function load_shared_i64(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer(int64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_shared_any(restart, name, data, BVK_I64)
  end function

  function load_shared_f32(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    real(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_shared_any(restart, name, data, BVK_F32)
  end function

  function load_shared_f64(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    real(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_shared_any(restart, name, data, BVK_F64)
  end function

  function protect_per_rank_any(session, name, data, kind, on_resize) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer, intent(in) :: on_resize
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    status = place(name, data, address, extents)
    if (status == BVK_OK) then
      status = told(c_protect_per_rank(session%handle, ended(name), address, product(extents), int(kind, &
        c_int), int(on_resize, c_int)))
    end if
  end function

  function protect_per_rank_address(session, name, address, count, kind, on_resize) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: count
    integer, intent(in) :: kind
    integer, intent(in) :: on_resize
    integer :: status
    status = told(c_protect_per_rank(session%handle, ended(name), address, count, int(kind, c_int), int(on_resize, c_int)))
  end function

  function protect_per_rank_i32(session, name, data, on_resize) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(int32), dimension(..), target, intent(inout) :: data
    integer, intent(in) :: on_resize
    integer :: status
    status = protect_per_rank_any(session, name, data, BVK_I32, on_resize)
  end function

  function protect_per_rank_i64(session, name, data, on_resize) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer(int64), dimension(..), target, intent(inout) :: data
    integer, intent(in) :: on_resize
    integer :: status
    status = protect_per_rank_any(session, name, data, BVK_I64, on_resize)
  end function

  function protect_per_rank_f32(session, name, data, on_resize) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    real(real32), dimension(..), target, intent(inout) :: data
    integer, intent(in) :: on_resize
    integer :: status
    status = protect_per_rank_any(session, name, data, BVK_F32, on_resize)
  end function

  function protect_per_rank_f64(session, name, data, on_resize) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    real(real64), dimension(..), target, intent(inout) :: data
    integer, intent(in) :: on_resize
    integer :: status
    status = protect_per_rank_any(session, name, data, BVK_F64, on_resize)
  end function

  function save_per_rank_any(checkpoint, name, data, kind, on_resize) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer, intent(in) :: on_resize
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    status = place(name, data, address, extents)
    if (status == BVK_OK) then
      status = told(c_save_per_rank(checkpoint%handle, ended(name), address, product(extents), int(kind, &
        c_int), int(on_resize, c_int)))
    end if
  end function

  function save_per_rank_address(checkpoint, name, address, count, kind, on_resize) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: count
    integer, intent(in) :: kind
    integer, intent(in) :: on_resize
    integer :: status
    status = told(c_save_per_rank(checkpoint%handle, ended(name), address, count, int(kind, c_int), int(on_resize, c_int)))
  end function

  function save_per_rank_i32(checkpoint, name, data, on_resize) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    integer(int32), dimension(..), target, intent(in) :: data
    integer, intent(in) :: on_resize
    integer :: status
    status = save_per_rank_any(checkpoint, name, data, BVK_I32, on_resize)
  end function

  function save_per_rank_i64(checkpoint, name, data, on_resize) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    integer(int64), dimension(..), target, intent(in) :: data
    integer, intent(in) :: on_resize
    integer :: status
    status = save_per_rank_any(checkpoint, name, data, BVK_I64, on_resize)
  end function

  function save_per_rank_f32(checkpoint, name, data, on_resize) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    real(real32), dimension(..), target, intent(in) :: data
    integer, intent(in) :: on_resize
    integer :: status
    status = save_per_rank_any(checkpoint, name, data, BVK_F32, on_resize)
  end function

  function save_per_rank_f64(checkpoint, name, data, on_resize) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    real(real64), dimension(..), target, intent(in) :: data
    integer, intent(in) :: on_resize
    integer :: status
    status = save_per_rank_any(checkpoint, name, data, BVK_F64, on_resize)
  end function

  function load_per_rank_any(restart, name, data, kind) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    status = place(name, data, address, extents)
    if (status == BVK_OK) then
      status = told(c_load_per_rank(restart%handle, ended(name), address, product(extents), int(kind, &
        c_int)))
    end if
  end function

  function load_per_rank_address(restart, name, address, count, kind) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: count
    integer, intent(in) :: kind
    integer :: status
    status = told(c_load_per_rank(restart%handle, ended(name), address, count, int(kind, c_int)))
  end function

  function load_per_rank_i32(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer(int32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_per_rank_any(restart, name, data, BVK_I32)
  end function

  function load_per_rank_i64(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer(int64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_per_rank_any(restart, name, data, BVK_I64)
  end function

  function load_per_rank_f32(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    real(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_per_rank_any(restart, name, data, BVK_F32)
  end function

  function load_per_rank_f64(restart, name, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    real(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_per_rank_any(restart, name, data, BVK_F64)
  end function

  ! How many ranks took the checkpoint that is being restored.
  function bvk_saved_ranks(restart, ranks) result(status)
    type(bvk_restart_t), intent(in) :: restart
    integer, intent(out) :: ranks
    integer :: status
    integer(c_int) :: saved
    saved = 0
    status = told(c_saved_ranks(restart%handle, saved))
    ranks = int(saved)
  end function

  function of_ranks_any(restart, name, first, count, data, kind) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer, intent(in) :: first, count, kind
    type(*), dimension(..), target, intent(in) :: data
    integer :: status, mistake
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    status = place(name, data, address, extents)
    if (status == BVK_OK) then
      if (mod(product(extents), int(max(count, 1), c_int64_t)) /= 0) then
        status = refused('value "'//trim(name)//'": the array is not of as many parts of one length as ranks are asked for')
      end if
    end if
    if (status == BVK_OK) then
      status = told(c_of_ranks(restart%handle, ended(name), int(first, c_int), int(count, c_int), address, &
        product(extents)/max(count, 1), int(kind, c_int)))
    else
      ! This rank takes part but asks for nothing, so that the other ranks do not wait.
      mistake = int(c_of_ranks(restart%handle, ended(name), 0_c_int, 0_c_int, c_null_ptr, 0_c_int64_t, int(kind, c_int)))
    end if
  end function

  ! Loads the values that the old ranks `first` to `first + count - 1` saved with BVK_RESIZE_ASK. Old ranks are the ranks that took
  ! the checkpoint; they are counted from 0, as in MPI. `data` has an equal part for each of them, rank after rank. Collective;
  ! `count` may be 0.
  function of_ranks_i32(restart, name, first, count, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer, intent(in) :: first, count
    integer(int32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = of_ranks_any(restart, name, first, count, data, BVK_I32)
  end function

  function of_ranks_i64(restart, name, first, count, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer, intent(in) :: first, count
    integer(int64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = of_ranks_any(restart, name, first, count, data, BVK_I64)
  end function

  function of_ranks_f32(restart, name, first, count, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer, intent(in) :: first, count
    real(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = of_ranks_any(restart, name, first, count, data, BVK_F32)
  end function

  function of_ranks_f64(restart, name, first, count, data) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer, intent(in) :: first, count
    real(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = of_ranks_any(restart, name, first, count, data, BVK_F64)
  end function

  ! ----------------------------------------------------------------------- restarts on a different number of ranks: rows

  ! Adds to `rows` a column from an array whose last dimension counts the rows. The array needs the TARGET attribute, and must stay
  ! where it is until bvk_capture has returned.
  function add_column_any(rows, name, data, kind) result(status)
    type(bvk_rows), intent(inout) :: rows
    character(len=*), intent(in) :: name
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    status = place(name, data, address, extents)
    if (status /= BVK_OK) return
    if (size(extents) == 0) then
      status = refused('column "'//trim(name)//'" is not an array: its last dimension counts rows')
      return
    end if
    status = add_column_at(rows, row_column(trim(name), address, extents(1), product(extents(2:)), kind))
  end function

  ! The same for memory that is passed as an address: `count` rows of `width` elements each, of the type `kind` (BVK_..., or minus
  ! the size of a record in bytes).
  function add_column_address(rows, name, address, count, kind, width) result(status)
    type(bvk_rows), intent(inout) :: rows
    character(len=*), intent(in) :: name
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: count
    integer, intent(in) :: kind, width
    integer :: status
    status = add_column_at(rows, row_column(trim(name), address, count, int(width, c_int64_t), kind))
  end function

  function add_column_at(rows, column) result(status)
    type(bvk_rows), intent(inout) :: rows
    type(row_column), intent(in) :: column
    integer :: status
    type(row_column), allocatable :: more(:)
    integer :: count
    status = BVK_OK
    count = 0
    if (allocated(rows%columns)) count = size(rows%columns)
    allocate (more(count + 1))
    if (count > 0) more(:count) = rows%columns
    more(count + 1) = column
    call move_alloc(more, rows%columns)
  end function

  ! Adds this rank's rows of a set to a checkpoint. `low` and `high`, the least and the greatest coordinate in each dimension, are
  ! recorded, but not used otherwise.
  function bvk_save_rows(checkpoint, name, rows, low, high) result(status)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    character(len=*), intent(in) :: name
    type(bvk_rows), intent(in) :: rows
    real(real64), intent(in), optional :: low(:), high(:)
    integer :: status, at, count, length
    character(kind=c_char), allocatable, target :: names(:, :)
    type(c_column), allocatable, target :: columns(:)
    real(c_double), allocatable, target :: corners(:, :)
    type(c_rows) :: described

    status = BVK_OK
    count = 0
    if (allocated(rows%columns)) count = size(rows%columns)
    described = c_rows(0, 0, c_null_ptr, int(count, c_size_t), 0, c_null_ptr, c_null_ptr)
    described%size = c_sizeof(described)
    length = 1
    do at = 1, count
      length = max(length, len(rows%columns(at)%name) + 1)
    end do
    allocate (names(length, count), columns(count))
    names = c_null_char
    do at = 1, count
      associate (column => rows%columns(at))
        if (column%count /= rows%columns(1)%count) then
          status = refused('rows "'//trim(name)//'": columns "'//rows%columns(1)%name//'" and "'//column%name// &
            '" have different numbers of rows')
          return
        end if
        if (column%width < 0 .or. column%width > huge(0_c_int32_t)) then
          status = refused('rows "'//trim(name)//'": column "'//column%name//'" has too many elements in a row')
          return
        end if
        names(:len(column%name), at) = transfer(column%name, names(:0, at))
        columns(at) = c_column(c_loc(names(1, at)), column%data, int(column%kind, c_int), int(column%width, c_int32_t))
      end associate
    end do
    if (count > 0) then
      described%count = rows%columns(1)%count
      described%columns = c_loc(columns)
    end if
    if (present(low) .or. present(high)) then
      if (.not. (present(low) .and. present(high))) then
        status = refused('rows "'//trim(name)//'": bounds are low and high')
      else if (size(low) /= size(high)) then
        status = refused('rows "'//trim(name)//'": low and high have different numbers of dimensions')
      end if
      if (status /= BVK_OK) return
      allocate (corners(size(low), 2))
      corners(:, 1) = low
      corners(:, 2) = high
      described%dimensions = size(low, kind=c_size_t)
      if (size(low) > 0) then
        described%low = c_loc(corners(1, 1))
        described%high = c_loc(corners(1, 2))
      end if
    end if
    status = told(c_save_rows(checkpoint%handle, ended(name), described))
  end function

  ! Determines which rows of a set this rank gets (BVK_ROWS_OWN, BVK_ROWS_EVEN), and how many. bvk_load_column then loads their
  ! columns.
  function bvk_load_rows(restart, name, how, rows, count) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer, intent(in) :: how
    type(bvk_loaded_rows_t), intent(inout) :: rows
    integer(int64), intent(out) :: count
    integer :: status
    count = 0
    status = told(c_load_rows(restart%handle, ended(name), int(how, c_int), rows%handle, count))
  end function

  ! The same for `wanted` rows, starting with row number `first` (counted from 1), in the order of the ranks that saved them.
  function bvk_load_rows_range(restart, name, first, wanted, rows, count) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer(int64), intent(in) :: first, wanted
    type(bvk_loaded_rows_t), intent(inout) :: rows
    integer(int64), intent(out) :: count
    integer :: status
    count = 0
    if (first < 1 .or. wanted < 0) then
      status = refused('rows "'//trim(name)//'": rows are counted from 1, and their number is not negative')
      return
    end if
    status = told(c_load_rows_range(restart%handle, ended(name), first - 1, wanted, rows%handle, count))
  end function

  ! The same, but `owners` says which rank gets each row, according to the values of a column of the type `kind` with `width`
  ! elements per row. `owners` calls neither Bivouac nor MPI.
  function bvk_load_rows_by(restart, name, column, kind, width, owners, rows, count, user) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name, column
    integer, intent(in) :: kind, width
    procedure(bvk_owners) :: owners
    type(bvk_loaded_rows_t), intent(inout) :: rows
    integer(int64), intent(out) :: count
    type(c_ptr), intent(in), optional :: user
    integer :: status
    type(c_ptr) :: given
    count = 0
    given = c_null_ptr
    if (present(user)) given = user
    status = told(c_load_rows_by(restart%handle, ended(name), ended(column), int(kind, c_int), int(width, c_int32_t), &
      c_funloc(owners), given, rows%handle, count))
  end function

  ! Column number `at` (counted from 1) of a set: its name, the type of its elements, and how many of them a row has. BVK_NOTHING
  ! after the last column.
  function bvk_column_at(restart, name, at, column, kind, width) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer, intent(in) :: at
    character(len=:), allocatable, intent(out) :: column
    integer, intent(out) :: kind, width
    integer :: status
    type(c_ptr) :: text
    integer(c_int) :: its_kind
    integer(c_int32_t) :: its_width
    kind = 0
    width = 0
    if (at < 1) then
      status = refused('columns are counted from 1')
      return
    end if
    text = c_null_ptr
    its_kind = 0
    its_width = 0
    status = told(c_column_at(restart%handle, ended(name), int(at - 1, c_size_t), text, its_kind, its_width))
    if (status /= BVK_OK) return
    column = text_of(text)
    kind = int(its_kind)
    width = int(its_width)
  end function

  ! Loads a column of rows into an array whose last dimension counts the rows. The array has the type that was saved.
  function load_column_any(rows, column, data, kind) result(status)
    type(bvk_loaded_rows_t), intent(in) :: rows
    character(len=*), intent(in) :: column
    type(*), dimension(..), target, intent(in) :: data
    integer, intent(in) :: kind
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    integer(c_int64_t) :: width
    status = place(column, data, address, extents)
    if (status /= BVK_OK) return
    width = 0
    if (size(extents) > 0) width = product(extents(2:))
    if (width < 1 .or. width > huge(0_c_int32_t)) then
      status = refused('column "'//trim(column)//'": the last dimension of its array counts rows, and the others are not empty')
      return
    end if
    status = told(c_load_column(rows%handle, ended(column), address, product(extents), int(kind, c_int), int(width, c_int32_t)))
  end function

  ! The same for memory that is passed as an address, with room for `count` rows of `width` elements each.
  function load_column_address(rows, column, address, count, kind, width) result(status)
    type(bvk_loaded_rows_t), intent(in) :: rows
    character(len=*), intent(in) :: column
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: count
    integer, intent(in) :: kind, width
    integer :: status
    status = told(c_load_column(rows%handle, ended(column), address, count*width, int(kind, c_int), int(width, c_int32_t)))
  end function

  ! Releases loaded rows; bvk_end_restore closes handles that are still open.
  function bvk_loaded_rows_close(rows) result(status)
    type(bvk_loaded_rows_t), intent(inout) :: rows
    integer :: status
    status = told(c_loaded_rows_close(rows%handle))
  end function

  ! Asks which part of an array on boxes, or which rows, each of the old ranks `first` to `first + count - 1` had. Old ranks are
  ! the ranks that took the checkpoint.
  function bvk_parts(restart, name, first, count, parts) result(status)
    type(bvk_restart_t), intent(in) :: restart
    character(len=*), intent(in) :: name
    integer, intent(in) :: first, count
    type(bvk_parts_t), intent(inout) :: parts
    integer :: status
    status = told(c_parts(restart%handle, ended(name), int(first, c_int), int(count, c_int), parts%handle))
  end function

  ! The part that old rank number `rank` had.
  function bvk_part_of(parts, rank, part) result(status)
    type(bvk_parts_t), intent(in) :: parts
    integer, intent(in) :: rank
    type(bvk_part), intent(inout) :: part
    integer :: status, dims
    part%size = c_sizeof(part)
    status = told(c_part_of(parts%handle, int(rank, c_int), part))
    if (status /= BVK_OK .or. part%kind /= BVK_PART_BOXES) return
    dims = int(part%dimensions)
    part%shape(:dims) = part%shape(dims:1:-1)
  end function

  ! Lists the boxes that old rank number `rank` had, as many as fit. The lists have a column for each box, as in bvk_boxes.
  function bvk_boxes_of(parts, rank, origins, extents) result(status)
    type(bvk_parts_t), intent(in) :: parts
    integer, intent(in) :: rank
    integer(int64), intent(out) :: origins(:, :), extents(:, :)
    integer :: status, dims, boxes
    integer(c_int64_t), allocatable :: found(:, :, :)
    type(bvk_part) :: part
    origins = 0
    extents = 0
    status = bvk_part_of(parts, rank, part)
    if (status /= BVK_OK) return
    dims = int(part%dimensions)
    boxes = min(size(origins, 2), size(extents, 2))
    if (part%kind == BVK_PART_BOXES .and. (size(origins, 1) /= dims .or. size(extents, 1) /= dims)) then
      status = refused('origins and extents have other numbers of dimensions than the array')
      return
    end if
    allocate (found(dims, max(boxes, 1), 2))
    found = 0
    status = told(c_part_boxes(parts%handle, int(rank, c_int), int(boxes, c_size_t), found(:, :, 1), found(:, :, 2)))
    if (status /= BVK_OK) return
    boxes = int(min(int(boxes, c_int64_t), part%count))
    origins(:, :boxes) = found(dims:1:-1, :boxes, 1) + 1
    extents(:, :boxes) = found(dims:1:-1, :boxes, 2)
  end function

  ! Releases the result of bvk_parts.
  function bvk_parts_close(parts) result(status)
    type(bvk_parts_t), intent(inout) :: parts
    integer :: status
    status = told(c_parts_close(parts%handle))
  end function

  function add_column_i8(rows, name, data) result(status)
    type(bvk_rows), intent(inout) :: rows
    character(len=*), intent(in) :: name
    integer(int8), dimension(..), target, intent(in) :: data
    integer :: status
    status = add_column_any(rows, name, data, BVK_I8)
  end function

  function add_column_i16(rows, name, data) result(status)
    type(bvk_rows), intent(inout) :: rows
    character(len=*), intent(in) :: name
    integer(int16), dimension(..), target, intent(in) :: data
    integer :: status
    status = add_column_any(rows, name, data, BVK_I16)
  end function

  function add_column_i32(rows, name, data) result(status)
    type(bvk_rows), intent(inout) :: rows
    character(len=*), intent(in) :: name
    integer(int32), dimension(..), target, intent(in) :: data
    integer :: status
    status = add_column_any(rows, name, data, BVK_I32)
  end function

  function add_column_i64(rows, name, data) result(status)
    type(bvk_rows), intent(inout) :: rows
    character(len=*), intent(in) :: name
    integer(int64), dimension(..), target, intent(in) :: data
    integer :: status
    status = add_column_any(rows, name, data, BVK_I64)
  end function

  function add_column_f32(rows, name, data) result(status)
    type(bvk_rows), intent(inout) :: rows
    character(len=*), intent(in) :: name
    real(real32), dimension(..), target, intent(in) :: data
    integer :: status
    status = add_column_any(rows, name, data, BVK_F32)
  end function

  function add_column_f64(rows, name, data) result(status)
    type(bvk_rows), intent(inout) :: rows
    character(len=*), intent(in) :: name
    real(real64), dimension(..), target, intent(in) :: data
    integer :: status
    status = add_column_any(rows, name, data, BVK_F64)
  end function

  function add_column_c32(rows, name, data) result(status)
    type(bvk_rows), intent(inout) :: rows
    character(len=*), intent(in) :: name
    complex(real32), dimension(..), target, intent(in) :: data
    integer :: status
    status = add_column_any(rows, name, data, BVK_RECORD_C32)
  end function

  function add_column_c64(rows, name, data) result(status)
    type(bvk_rows), intent(inout) :: rows
    character(len=*), intent(in) :: name
    complex(real64), dimension(..), target, intent(in) :: data
    integer :: status
    status = add_column_any(rows, name, data, BVK_RECORD_C64)
  end function

  function load_column_i8(rows, column, data) result(status)
    type(bvk_loaded_rows_t), intent(in) :: rows
    character(len=*), intent(in) :: column
    integer(int8), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_column_any(rows, column, data, BVK_I8)
  end function

  function load_column_i16(rows, column, data) result(status)
    type(bvk_loaded_rows_t), intent(in) :: rows
    character(len=*), intent(in) :: column
    integer(int16), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_column_any(rows, column, data, BVK_I16)
  end function

  function load_column_i32(rows, column, data) result(status)
    type(bvk_loaded_rows_t), intent(in) :: rows
    character(len=*), intent(in) :: column
    integer(int32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_column_any(rows, column, data, BVK_I32)
  end function

  function load_column_i64(rows, column, data) result(status)
    type(bvk_loaded_rows_t), intent(in) :: rows
    character(len=*), intent(in) :: column
    integer(int64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_column_any(rows, column, data, BVK_I64)
  end function

  function load_column_f32(rows, column, data) result(status)
    type(bvk_loaded_rows_t), intent(in) :: rows
    character(len=*), intent(in) :: column
    real(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_column_any(rows, column, data, BVK_F32)
  end function

  function load_column_f64(rows, column, data) result(status)
    type(bvk_loaded_rows_t), intent(in) :: rows
    character(len=*), intent(in) :: column
    real(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_column_any(rows, column, data, BVK_F64)
  end function

  function load_column_c32(rows, column, data) result(status)
    type(bvk_loaded_rows_t), intent(in) :: rows
    character(len=*), intent(in) :: column
    complex(real32), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_column_any(rows, column, data, BVK_RECORD_C32)
  end function

  function load_column_c64(rows, column, data) result(status)
    type(bvk_loaded_rows_t), intent(in) :: rows
    character(len=*), intent(in) :: column
    complex(real64), dimension(..), target, intent(inout) :: data
    integer :: status
    status = load_column_any(rows, column, data, BVK_RECORD_C64)
  end function

  ! -------------------------------------------------------------------------------------------------- histories

  ! Opens a history of this rank, with a cache on GPU number `gpu` unless that is BVK_NO_GPU. `keep` is one of BVK_KEEP_...
  function bvk_history_open(session, name, gpu, keep, history) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    integer, intent(in) :: gpu, keep
    type(bvk_history_t), intent(inout) :: history
    integer :: status
    status = told(c_history_open(session%handle, ended(name), int(gpu, c_int), int(keep, c_int), history%handle))
  end function

  ! Forgets all fields.
  function bvk_history_clear_fields(history) result(status)
    type(bvk_history_t), intent(in) :: history
    integer :: status
    status = told(c_history_clear_fields(history%handle))
  end function

  ! Appends a copy of all fields as version `version`.
  function bvk_history_append(history, version) result(status)
    type(bvk_history_t), intent(in) :: history
    integer(int64), intent(in) :: version
    integer :: status
    status = told(c_history_append(history%handle, version))
  end function

  ! Copies version `version` back into the fields.
  function bvk_history_restore(history, version) result(status)
    type(bvk_history_t), intent(in) :: history
    integer(int64), intent(in) :: version
    integer :: status
    status = told(c_history_restore(history%handle, version))
  end function

  ! Says in which order versions will be restored.
  function bvk_history_hint(history, versions) result(status)
    type(bvk_history_t), intent(in) :: history
    integer(int64), intent(in) :: versions(:)
    integer :: status
    status = told(c_history_hint(history%handle, versions, size(versions, kind=c_size_t)))
  end function

  ! Starts the prefetching of hinted versions.
  function bvk_history_start_prefetch(history) result(status)
    type(bvk_history_t), intent(in) :: history
    integer :: status
    status = told(c_history_start_prefetch(history%handle))
  end function

  ! Waits until nothing is left to flush.
  function bvk_history_wait_flushed(history) result(status)
    type(bvk_history_t), intent(in) :: history
    integer :: status
    status = told(c_history_wait_flushed(history%handle))
  end function

  ! Deletes the history with all its versions.
  function bvk_history_close(history) result(status)
    type(bvk_history_t), intent(inout) :: history
    integer :: status
    status = told(c_history_close(history%handle))
  end function

  ! --------------------------------------------------------------------- memory that is written to while it is saved

  ! Makes the protected region `name`, which must be in host memory, live if `on` is true: from now on checkpoints copy it while
  ! the program continues. Until bvk_settle, bvk_unprotect or bvk_close has returned, the region must stay allocated where it is:
  ! it must not be deallocated or reallocated, or go out of scope.
  function bvk_set_live(session, name, on) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    logical, intent(in) :: on
    integer :: status
    status = told(c_set_live(session%handle, ended(name), merge(1_c_int, 0_c_int, on)))
  end function

  ! From now on checkpoints with regions on GPU number `gpu` are marked, and sent while the program continues; with BVK_NO_GPU
  ! nothing is marked. Node memory is prepared for `bytes` bytes of regions. From a checkpoint until the next one, the program
  ! declares all work that writes to the regions of the checkpoint.
  function bvk_offload(session, gpu, bytes) result(status)
    type(bvk_session_t), intent(in) :: session
    integer, intent(in) :: gpu
    integer(int64), intent(in) :: bytes
    integer :: status
    status = told(c_offload(session%handle, int(gpu, c_int), bytes))
  end function

  ! bvk_before_write(session, data) declares that work that is enqueued from now on may write to `data`, an array in device memory.
  ! Pass the array under its device address (in CUDA Fortran, or inside `host_data use_device` of OpenACC or
  ! `target data use_device_addr` of OpenMP). The work runs on `stream` if it is given, otherwise on the session's stream. The
  ! call also declares writes to a live array on the host (bvk_set_live).
  function before_write_any(session, data, element, stream) result(status)
    type(bvk_session_t), intent(in) :: session
    type(*), dimension(..), target, intent(in) :: data
    integer(c_int64_t), intent(in) :: element
    type(c_ptr), intent(in), optional :: stream
    integer :: status
    type(c_ptr) :: address
    integer(c_int64_t), allocatable :: extents(:)
    status = place('bvk_before_write', data, address, extents)
    if (status == BVK_OK) status = before_write_address(session, address, product(extents)*element, stream)
  end function

  ! The same for the `bytes` bytes that start at an address.
  function before_write_address(session, address, bytes, stream) result(status)
    type(bvk_session_t), intent(in) :: session
    type(c_ptr), intent(in) :: address
    integer(int64), intent(in) :: bytes
    type(c_ptr), intent(in), optional :: stream
    integer :: status
    if (present(stream)) then
      status = told(c_before_write_on(session%handle, address, bytes, stream))
    else
      status = told(c_before_write(session%handle, address, bytes))
    end if
  end function

  function before_write_i8(session, data, stream) result(status)
    type(bvk_session_t), intent(in) :: session
    integer(int8), dimension(..), target, intent(in) :: data
    type(c_ptr), intent(in), optional :: stream
    integer :: status
    status = before_write_any(session, data, 1_c_int64_t, stream)
  end function

  function before_write_i16(session, data, stream) result(status)
    type(bvk_session_t), intent(in) :: session
    integer(int16), dimension(..), target, intent(in) :: data
    type(c_ptr), intent(in), optional :: stream
    integer :: status
    status = before_write_any(session, data, 2_c_int64_t, stream)
  end function

  function before_write_i32(session, data, stream) result(status)
    type(bvk_session_t), intent(in) :: session
    integer(int32), dimension(..), target, intent(in) :: data
    type(c_ptr), intent(in), optional :: stream
    integer :: status
    status = before_write_any(session, data, 4_c_int64_t, stream)
  end function

  function before_write_i64(session, data, stream) result(status)
    type(bvk_session_t), intent(in) :: session
    integer(int64), dimension(..), target, intent(in) :: data
    type(c_ptr), intent(in), optional :: stream
    integer :: status
    status = before_write_any(session, data, 8_c_int64_t, stream)
  end function

  function before_write_f32(session, data, stream) result(status)
    type(bvk_session_t), intent(in) :: session
    real(real32), dimension(..), target, intent(in) :: data
    type(c_ptr), intent(in), optional :: stream
    integer :: status
    status = before_write_any(session, data, 4_c_int64_t, stream)
  end function

  function before_write_f64(session, data, stream) result(status)
    type(bvk_session_t), intent(in) :: session
    real(real64), dimension(..), target, intent(in) :: data
    type(c_ptr), intent(in), optional :: stream
    integer :: status
    status = before_write_any(session, data, 8_c_int64_t, stream)
  end function

  function before_write_c32(session, data, stream) result(status)
    type(bvk_session_t), intent(in) :: session
    complex(real32), dimension(..), target, intent(in) :: data
    type(c_ptr), intent(in), optional :: stream
    integer :: status
    status = before_write_any(session, data, 8_c_int64_t, stream)
  end function

  function before_write_c64(session, data, stream) result(status)
    type(bvk_session_t), intent(in) :: session
    complex(real64), dimension(..), target, intent(in) :: data
    type(c_ptr), intent(in), optional :: stream
    integer :: status
    status = before_write_any(session, data, 16_c_int64_t, stream)
  end function

  ! Names the pieces of memory that some work writes to, each by its address and its size in bytes.
  function bvk_write_set(session, name, addresses, bytes, set) result(status)
    type(bvk_session_t), intent(in) :: session
    character(len=*), intent(in) :: name
    type(c_ptr), intent(in) :: addresses(:)
    integer(int64), intent(in) :: bytes(:)
    type(bvk_write_set_t), intent(inout) :: set
    integer :: status
    if (size(addresses) /= size(bytes)) then
      status = refused('set "'//trim(name)//'": there are not as many numbers of bytes as addresses')
      return
    end if
    status = told(c_write_set(session%handle, ended(name), addresses, bytes, size(addresses, kind=c_size_t), set%handle))
  end function

  ! Declares all memory that a set names, as bvk_before_write does.
  function bvk_before(set, stream) result(status)
    type(bvk_write_set_t), intent(in) :: set
    type(c_ptr), intent(in), optional :: stream
    integer :: status
    if (present(stream)) then
      status = told(c_before_on(set%handle, stream))
    else
      status = told(c_before(set%handle))
    end if
  end function

  ! Deletes a set.
  function bvk_write_set_close(set) result(status)
    type(bvk_write_set_t), intent(inout) :: set
    integer :: status
    status = told(c_write_set_close(set%handle))
  end function

  ! Waits until Bivouac no longer reads marked regions on a GPU or live regions on the host. Call this before the memory of such a
  ! region is freed.
  function bvk_settle(session) result(status)
    type(bvk_session_t), intent(in) :: session
    integer :: status
    status = told(c_settle(session%handle))
  end function

  ! Allows checkpoints to be marked again. After two refused checkpoints in a row, the next ones are copied until this is called.
  function bvk_allow_marks(session) result(status)
    type(bvk_session_t), intent(in) :: session
    integer :: status
    status = told(c_allow_marks(session%handle))
  end function
end module
