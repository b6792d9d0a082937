! Rows through the module, and its mistakes: `save` on 3 ranks, then `load` on any number of ranks. tests/mpi_fortran.rs runs it; rank 0
! prints `all right`.
module owners_of_rows
  use, intrinsic :: iso_fortran_env, only: int64, real32
  use, intrinsic :: iso_c_binding
  implicit none
  integer :: ranks

contains

  pure function owner(id)
    integer(int64), intent(in) :: id
    integer :: owner
    owner = int(mod(mod(id*7, 11_int64), int(ranks, int64)))
  end function

  subroutine by_id(values, count, owners, user) bind(c)
    type(c_ptr), value :: values, user
    integer(c_size_t), value :: count
    integer(c_int), intent(inout) :: owners(count)
    integer(c_int64_t), pointer :: id(:), asked
    integer(c_size_t) :: at
    call c_f_pointer(values, id, [count])
    call c_f_pointer(user, asked)
    asked = asked + int(count, c_int64_t)
    do at = 1, count
      owners(at) = owner(id(at))
    end do
  end subroutine

  ! Without a `user`, all rows go to the last rank.
  subroutine by_speed(values, count, owners, user) bind(c)
    type(c_ptr), value :: values, user
    integer(c_size_t), value :: count
    integer(c_int), intent(inout) :: owners(count)
    real(c_float), pointer :: v(:, :)
    call c_f_pointer(values, v, [3_c_size_t, count])
    owners = -1
    if (.not. c_associated(user) .and. all(v(3, :) == v(1, :) + 2)) owners = ranks - 1
  end subroutine

  subroutine of_nothing(values, count, owners, user) bind(c)
    type(c_ptr), value :: values, user
    integer(c_size_t), value :: count
    integer(c_int), intent(inout) :: owners(count)
    if (c_associated(values) .and. .not. c_associated(user)) owners(1) = -1
  end subroutine
end module

program rows_program
  use, intrinsic :: iso_fortran_env, only: error_unit, int64, real32, real64
  use, intrinsic :: iso_c_binding
  use mpi_f08
  use bivouac
  use owners_of_rows
  implicit none

  integer, parameter :: OLD = 3
  integer(int64), parameter :: COUNTS(OLD) = [4000_int64, 0_int64, 37_int64], TOTAL = sum(COUNTS)
  type(bvk_session_t) :: session
  integer :: rank, provided
  integer(int64), allocatable, target :: id(:)
  real(real32), allocatable, target :: v(:, :)
  complex(real64), allocatable, target :: z(:)
  character(len=8) :: what

  call MPI_Init_thread(MPI_THREAD_MULTIPLE, provided)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call get_command_argument(1, what)
  call is(bvk_open(MPI_COMM_WORLD, session), BVK_OK)
  if (what == 'save') then
    call save_all()
  else
    call load_all()
    call load_wrongly()
  end if
  call is(bvk_close(session), BVK_OK)
  if (rank == 0) print '(a)', 'all right'
  call MPI_Finalize()

contains

  ! Makes the rows whose numbers begin with `first`.
  subroutine make(first, count)
    integer(int64), intent(in) :: first, count
    integer(int64) :: at
    call make_room(count)
    do at = 1, count
      id(at) = first + at - 1
      v(:, at) = real(mod(id(at), 1000_int64), real32) + [0, 1, 2]
      z(at) = cmplx(id(at), -id(at), real64)
    end do
  end subroutine

  subroutine make_room(count)
    integer(int64), intent(in) :: count
    if (allocated(id)) deallocate (id, v, z)
    allocate (id(count), v(3, count), z(count))
  end subroutine

  subroutine mistakes(checkpoint)
    type(bvk_checkpoint_t), intent(in) :: checkpoint
    type(bvk_rows) :: rows
    real(real64), target :: x(6), one
    x = 0
    one = 0
    call is(bvk_save_rows(checkpoint, 'wrong', rows), BVK_ERR_REGION)
    call says('no column')
    call is(bvk_add_column(rows, 'one', one), BVK_ERR_ARGUMENT)
    call says('its last dimension counts rows')
    call is(bvk_add_column(rows, 'x', x(::2)), BVK_ERR_ARGUMENT)
    call says('not contiguous')
    call is(bvk_add_column(rows, 'x', x), BVK_OK)
    call is(bvk_add_column(rows, 'y', x(:5)), BVK_OK)
    call is(bvk_save_rows(checkpoint, 'wrong', rows), BVK_ERR_ARGUMENT)
    call says('columns "x" and "y" have different numbers of rows')
    rows = bvk_rows()
    call is(bvk_add_column(rows, 'a/b', x), BVK_OK)
    call is(bvk_save_rows(checkpoint, 'wrong', rows), BVK_ERR_REGION)
    rows = bvk_rows()
    call is(bvk_add_column(rows, 'x', c_loc(x), 3_int64, BVK_F64, 0), BVK_OK)
    call is(bvk_save_rows(checkpoint, 'wrong', rows), BVK_ERR_REGION)
    rows = bvk_rows()
    call is(bvk_add_column(rows, 'x', x), BVK_OK)
    call is(bvk_save_rows(checkpoint, 'wrong', rows, low=[1.0_real64]), BVK_ERR_ARGUMENT)
    call is(bvk_save_rows(checkpoint, 'wrong', rows, low=[1.0_real64], high=[1.0_real64, 2.0_real64]), BVK_ERR_ARGUMENT)
  end subroutine

  subroutine save_all()
    type(bvk_checkpoint_t) :: checkpoint
    type(bvk_pending_t) :: pending
    type(bvk_boxes_t) :: boxes
    type(bvk_rows) :: rows
    real(real64), target :: row(3, 1)
    real(real64) :: at
    integer :: reached
    call is(bvk_begin_checkpoint(session, 'wrong', 1_int64, checkpoint), BVK_OK)
    call mistakes(checkpoint)
    call is(bvk_abort(checkpoint), BVK_OK)
    call make(sum(COUNTS(:rank)), COUNTS(rank + 1))
    row = rank
    at = rank
    call is(bvk_boxes(session, [3, OLD], [1, rank + 1], [3, 1], boxes), BVK_OK)
    call is(bvk_begin_checkpoint(session, 'plasma', 5_int64, checkpoint), BVK_OK)
    call is(bvk_save_on(checkpoint, 'table', boxes, row), BVK_OK)
    call is(bvk_add_column(rows, 'id', id), BVK_OK)
    call is(bvk_add_column(rows, 'v', v), BVK_OK)
    call is(bvk_add_column(rows, 'z', address_of(z), size(z, kind=int64), -16, 1), BVK_OK)
    call is(bvk_save_rows(checkpoint, 'electrons', rows, low=[at, -at], high=[at + 1, at]), BVK_OK)
    call is(bvk_capture(checkpoint, pending), BVK_OK)
    call is(bvk_wait(pending, BVK_LEVEL_PROCESS, reached), BVK_OK)
    call is(bvk_release(pending), BVK_OK)
  end subroutine

  function address_of(z) result(address)
    complex(real64), target, intent(in) :: z(:)
    type(c_ptr) :: address
    address = c_null_ptr
    if (size(z) > 0) address = c_loc(z)
  end function

  ! Loads all columns of the dealt rows.
  subroutine load_columns(rows, count)
    type(bvk_loaded_rows_t), intent(inout) :: rows
    integer(int64), intent(in) :: count
    integer(int64) :: at
    call make_room(count)
    call is(bvk_load_column(rows, 'z', z), BVK_OK)
    call is(bvk_load_column(rows, 'id', id), BVK_OK)
    if (count > 0) then
      call is(bvk_load_column(rows, 'v', c_loc(v), count, BVK_F32, 3), BVK_OK)
    else
      call is(bvk_load_column(rows, 'v', v), BVK_OK)
    end if
    call is(bvk_loaded_rows_close(rows), BVK_OK)
    do at = 1, count
      call check(all(v(:, at) == real(mod(id(at), 1000_int64), real32) + [0, 1, 2]), 'a velocity')
      call check(real(z(at)) == id(at) .and. aimag(z(at)) == -id(at), 'a complex number')
    end do
  end subroutine

  ! Checks rows that follow one another, from number `first` on.
  subroutine check_run(rows, count, first, wanted)
    type(bvk_loaded_rows_t), intent(inout) :: rows
    integer(int64), intent(in) :: count, first, wanted
    integer(int64) :: at
    call check(count == wanted, 'a number of rows')
    call load_columns(rows, count)
    call check(all(id == [(first + at, at=0, count - 1)]), 'rows in their order')
  end subroutine

  subroutine load_all()
    type(bvk_restart_t) :: restart
    type(bvk_loaded_rows_t) :: rows
    integer(int64) :: count, first, wanted, all_asked
    integer(c_int64_t), target :: asked
    call is(bvk_begin_restore(session, 'plasma', restart), BVK_OK)
    call check_columns(restart)
    call is(bvk_load_rows(restart, 'electrons', BVK_ROWS_EVEN, rows, count), BVK_OK)
    first = TOTAL*rank/ranks
    call check_run(rows, count, first, TOTAL*(rank + 1)/ranks - first)
    first = 100*rank
    wanted = merge(2000, 0, rank > 0)
    call is(bvk_load_rows_range(restart, 'electrons', first + 1, wanted, rows, count), BVK_OK)
    call check_run(rows, count, first, wanted)
    asked = 0
    call is(bvk_load_rows_by(restart, 'electrons', 'id', BVK_I64, 1, by_id, rows, count, c_loc(asked)), BVK_OK)
    call MPI_Allreduce(asked, all_asked, 1, MPI_INTEGER8, MPI_SUM, MPI_COMM_WORLD)
    call check(all_asked == TOTAL, 'each row is asked for once')
    call load_columns(rows, count)
    wanted = 0
    do first = 0, TOTAL - 1
      if (owner(first) /= rank) cycle
      wanted = wanted + 1
      call check(id(wanted) == first, 'its rows')
    end do
    call check(count == wanted, 'all of its rows')
    call is(bvk_load_rows_by(restart, 'electrons', 'v', BVK_F32, 3, by_speed, rows, count), BVK_OK)
    call check_run(rows, count, 0_int64, merge(TOTAL, 0_int64, rank == ranks - 1))
    if (ranks == OLD) then
      call is(bvk_load_rows(restart, 'electrons', BVK_ROWS_OWN, rows, count), BVK_OK)
      call check_run(rows, count, sum(COUNTS(:rank)), COUNTS(rank + 1))
    end if
    call check_parts(restart)
    call is(bvk_end_restore(restart, .true.), BVK_OK)
  end subroutine

  subroutine check_columns(restart)
    type(bvk_restart_t), intent(in) :: restart
    character(len=:), allocatable :: column
    integer :: kind, width
    call is(bvk_column_at(restart, 'electrons', 2, column, kind, width), BVK_OK)
    call check(column == 'v' .and. kind == BVK_F32 .and. width == 3, 'the second column')
    call is(bvk_column_at(restart, 'electrons', 3, column, kind, width), BVK_OK)
    call check(column == 'z' .and. kind == -16 .and. width == 1, 'the third column')
    call is(bvk_column_at(restart, 'electrons', 4, column, kind, width), BVK_NOTHING)
    call is(bvk_column_at(restart, 'electrons', 0, column, kind, width), BVK_ERR_ARGUMENT)
  end subroutine

  subroutine check_parts(restart)
    type(bvk_restart_t), intent(in) :: restart
    type(bvk_parts_t) :: parts
    type(bvk_part) :: part
    integer(int64) :: origins(2, 2), extents(2, 2), narrow(1, 2)
    integer :: at
    call is(bvk_parts(restart, 'electrons', 0, OLD, parts), BVK_OK)
    do at = 0, OLD - 1
      call is(bvk_part_of(parts, at, part), BVK_OK)
      call check(part%kind == BVK_PART_ROWS .and. part%count == COUNTS(at + 1) .and. part%dimensions == 2, 'rows of a rank')
      call check(all(part%low(:2) == [at, -at]) .and. all(part%high(:2) == [at + 1, at]), 'bounds of a rank')
    end do
    call is(bvk_part_of(parts, OLD, part), BVK_ERR_ARGUMENT)
    call is(bvk_boxes_of(parts, 0, origins, extents), BVK_ERR_ARGUMENT)
    call says('had no boxes')
    call is(bvk_parts_close(parts), BVK_OK)
    call is(bvk_parts(restart, 'table', 2, 1, parts), BVK_OK)
    call is(bvk_part_of(parts, 2, part), BVK_OK)
    call check(part%kind == BVK_PART_BOXES .and. part%count == 1 .and. all(part%shape(:2) == [3, OLD]), 'boxes of a rank')
    call is(bvk_boxes_of(parts, 2, origins, extents), BVK_OK)
    call check(all(origins(:, 1) == [1, 3]) .and. all(extents(:, 1) == [3, 1]) .and. all(origins(:, 2) == 0), 'a box')
    call is(bvk_boxes_of(parts, 2, narrow, extents), BVK_ERR_ARGUMENT)
  end subroutine

  ! One rank or all of them make a mistake, and the restart ends on all ranks.
  subroutine load_wrongly()
    type(bvk_restart_t) :: restart
    type(bvk_loaded_rows_t) :: rows
    integer(int64) :: count
    call is(bvk_begin_restore(session, 'plasma', restart), BVK_OK)
    call is(bvk_load_rows_by(restart, 'electrons', 'id', BVK_I64, 1, of_nothing, rows, count), BVK_ERR_LOAD)
    call says('given to no rank')
    call is(bvk_end_restore(restart, .false.), BVK_ERR_RESTART)
    call is(bvk_begin_restore(session, 'plasma', restart), BVK_OK)
    call is(bvk_load_rows_range(restart, 'electrons', 0_int64, 1_int64, rows, count), BVK_ERR_ARGUMENT)
    call says('counted from 1')
    call is(bvk_load_rows(restart, 'electrons', 7, rows, count), BVK_ERR_ARGUMENT)
    call is(bvk_end_restore(restart, .false.), BVK_ERR_RESTART)
    call is(bvk_begin_restore(session, 'plasma', restart), BVK_OK)
    call is(bvk_load_rows(restart, 'electrons', BVK_ROWS_EVEN, rows, count), BVK_OK)
    call make_room(count + merge(1, 0, rank == 0))
    call is(bvk_load_column(rows, 'id', id), BVK_ERR_LOAD)
    call is(bvk_load_column(rows, 'v', v(1, :)), BVK_ERR_ARGUMENT)
    call is(bvk_end_restore(restart, .false.), BVK_ERR_RESTART)
    call is(bvk_loaded_rows_close(rows), BVK_ERR_HANDLE)
  end subroutine

  subroutine is(status, expected)
    integer, intent(in) :: status, expected
    call check(status == expected, bvk_status_name(status)//' and not '//bvk_status_name(expected)//': '//bvk_error_text())
  end subroutine

  subroutine says(words)
    character(len=*), intent(in) :: words
    call check(index(bvk_error_text(), words) > 0, '"'//words//'" is not in '//bvk_error_text())
  end subroutine

  subroutine check(condition, text)
    logical, intent(in) :: condition
    character(len=*), intent(in) :: text
    if (condition) return
    write (error_unit, '(a,i0,2a)') 'rank ', rank, ': ', text
    call MPI_Abort(MPI_COMM_WORLD, 1)
  end subroutine
end program
