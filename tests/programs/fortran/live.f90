! A live region in Fortran: an array that is overwritten right after each checkpoint is restored as it was at the checkpoint. If
! the first argument is "declared", only bvk_before_write keeps later writes out. Rank 0 prints "ok" if this held on all ranks,
! and how the data was copied.
program live
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env
  use mpi_f08
  use bivouac
  implicit none
  integer, parameter :: ROWS = 1024, COLUMNS = 771, VERSIONS = 6
  type(bvk_session_t) :: session
  type(bvk_pending_t) :: pending
  type(bvk_write_set_t) :: set
  type(bvk_stats) :: stats
  real(real64), allocatable, target :: field(:, :), other(:, :)
  integer(int64), target :: step
  integer(int64) :: version, counts(4), sums(4)
  integer :: rank, ranks, provided, wrong, all_wrong
  logical :: is_declared
  character(len=16) :: mode

  call MPI_Init_thread(MPI_THREAD_MULTIPLE, provided)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call get_command_argument(1, mode)
  is_declared = mode == 'declared'
  wrong = 0
  allocate (field(ROWS, COLUMNS), other(ROWS, COLUMNS))

  call expect(bvk_open(MPI_COMM_WORLD, session), BVK_OK, 'open')
  call expect(bvk_set_live(session, 'field', .true.), BVK_ERR_ARGUMENT, 'live before it is protected')
  call holds(index(bvk_error_text(), 'call bvk_protect before bvk_set_live') > 0, 'what to do')
  call expect(bvk_before_write(session, field), BVK_ERR_STATE, 'declare before anything is live')
  call expect(bvk_protect(session, 'field', field), BVK_OK, 'protect')
  call expect(bvk_protect(session, 'step', step), BVK_OK, 'protect the step')
  call expect(bvk_set_live(session, 'field   ', .true.), BVK_OK, 'live')
  call expect(bvk_before_write(session, field(:, 1:2)), BVK_OK, 'declare')
  call expect(bvk_before_write(session, field(1:2, :)), BVK_ERR_ARGUMENT, 'declare a section with gaps')
  call expect(bvk_write_set(session, 'advance', [c_loc(field)], [size(field, kind=int64)*8], set), BVK_OK, 'a set')

  do version = 1, VERSIONS
    call fill(version)
    call expect(bvk_checkpoint(session, 'live', version, pending), BVK_OK, 'checkpoint')
    ! The writes are such that two of the 25 blocks are waited for: above 15 %, the next checkpoints would copy all blocks at once.
    call overwrite(300)
    call expect(bvk_wait(pending, BVK_LEVEL_PROCESS), BVK_OK, 'wait')
    call expect(bvk_release(pending), BVK_OK, 'release')
    call expect(bvk_restore(session, 'live'), BVK_OK, 'restart')
    call holds(filled(field, version), 'what was captured')
  end do
  call expect(bvk_get_stats(session, stats), BVK_OK, 'stats')
  call holds(stats%live_regions + stats%live_at_once == VERSIONS, 'the regions that were live')
  call holds(stats%live_bytes == stats%live_regions*size(field)*8, 'their bytes')
  call holds(stats%unaudited == merge(VERSIONS, 0, is_declared) .and. stats%live_wait_total_s >= 0, 'who watches')
  counts = [stats%live_regions, stats%live_at_once, stats%live_waited_bytes, stats%live_declared_bytes]

  ! The array may be deallocated as soon as it is no longer protected, or as soon as another one has replaced it.
  version = 50
  call fill(version)
  call expect(bvk_checkpoint(session, 'live', 50_int64, pending), BVK_OK, 'checkpoint before it is replaced')
  call expect(bvk_protect(session, 'field', other), BVK_OK, 'protect another one')
  deallocate (field)
  call expect(bvk_wait(pending, BVK_LEVEL_PROCESS), BVK_OK, 'wait for it')
  call expect(bvk_release(pending), BVK_OK, 'release it')
  call expect(bvk_restore(session, 'live'), BVK_OK, 'restart into the other one')
  call holds(filled(other, 50_int64), 'what was in the one before')
  call expect(bvk_checkpoint(session, 'live', 51_int64, pending), BVK_OK, 'checkpoint before it is taken out')
  call expect(bvk_set_live(session, 'field', .false.), BVK_OK, 'live no more')
  call expect(bvk_unprotect(session, 'field'), BVK_OK, 'unprotect')
  deallocate (other)
  allocate (other(ROWS, COLUMNS), source=0.0_real64)
  call expect(bvk_wait(pending, BVK_LEVEL_PROCESS), BVK_OK, 'wait for that')
  call expect(bvk_release(pending), BVK_OK, 'release that')
  call expect(bvk_protect(session, 'field', other), BVK_OK, 'protect a third one')
  call expect(bvk_restore(session, 'live'), BVK_OK, 'restart into the third one')
  call holds(filled(other, 50_int64), 'what was in all of them')

  ! All of it is overwritten at once.
  call expect(bvk_unprotect(session, 'field'), BVK_OK, 'unprotect the third one')
  allocate (field(ROWS, COLUMNS))
  call expect(bvk_protect(session, 'field', field), BVK_OK, 'protect a fourth one')
  call expect(bvk_set_live(session, 'field', .true.), BVK_OK, 'live again')
  do version = 61, 62
    call expect(bvk_write_set_close(set), BVK_OK, 'close the set')
    call expect(bvk_write_set(session, 'advance', [c_loc(field)], [size(field, kind=int64)*8], set), BVK_OK, 'another set')
    call fill(version)
    call expect(bvk_checkpoint(session, 'live', version, pending), BVK_OK, 'checkpoint before all of it is overwritten')
    call overwrite(1)
    call expect(bvk_wait(pending, BVK_LEVEL_PROCESS), BVK_OK, 'wait for all of it')
    call expect(bvk_release(pending), BVK_OK, 'release all of it')
    call expect(bvk_restore(session, 'live'), BVK_OK, 'restart of all of it')
    call holds(filled(field, version), 'all that was captured')
  end do
  call expect(bvk_settle(session), BVK_OK, 'settle')
  call expect(bvk_close(session), BVK_OK, 'close')

  call MPI_Allreduce(wrong, all_wrong, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
  call MPI_Allreduce(counts, sums, 4, MPI_INTEGER8, MPI_SUM, MPI_COMM_WORLD)
  if (rank == 0 .and. all_wrong == 0) then
    print '(a)', 'ok'
    print '(5(a,i0))', 'ranks=', ranks, ' regions=', sums(1), ' at_once=', sums(2), ' waited=', sums(3), ' declared=', sums(4)
  end if
  call MPI_Finalize()
  if (all_wrong > 0) error stop

contains

  subroutine expect(status, wanted, what)
    integer, intent(in) :: status, wanted
    character(len=*), intent(in) :: what
    if (status == wanted) return
    wrong = wrong + 1
    write (error_unit, '(a,i0,7a)') 'rank ', rank, ': ', what, ': ', bvk_status_name(status), ' and not ', &
      bvk_status_name(wanted), ': '//bvk_error_text()
  end subroutine

  subroutine holds(condition, what)
    logical, intent(in) :: condition
    character(len=*), intent(in) :: what
    if (condition) return
    wrong = wrong + 1
    write (error_unit, '(a,i0,3a)') 'rank ', rank, ': not so: ', what, ' ('//bvk_error_text()//')'
  end subroutine

  ! The contents of a column in a version.
  pure function content(of, column) result(numbers)
    integer(int64), intent(in) :: of
    integer, intent(in) :: column
    real(real64) :: numbers(ROWS)
    integer :: row
    numbers = [(real(of*1000003 + column*ROWS + row, real64), row=1, ROWS)]
  end function

  subroutine fill(of)
    integer(int64), intent(in) :: of
    integer :: column
    do column = 1, COLUMNS
      field(:, column) = content(of, column)
    end do
    step = of
  end subroutine

  logical function filled(array, of)
    real(real64), intent(in) :: array(:, :)
    integer(int64), intent(in) :: of
    integer :: column
    filled = step == of
    do column = 1, COLUMNS
      filled = filled .and. all(array(:, column) == content(of, column))
    end do
  end function

  ! The writes go from the last column to the first, because the copy reaches the last one last.
  subroutine overwrite(stride)
    integer, intent(in) :: stride
    integer :: column
    if (is_declared .and. mod(version, 2_int64) == 0) call expect(bvk_before(set), BVK_OK, 'declare the set')
    do column = COLUMNS, 1, -1
      if (mod(column, stride) /= 0) cycle
      if (is_declared .and. mod(version, 2_int64) == 1) then
        call expect(bvk_before_write(session, field(:, column)), BVK_OK, 'declare a column')
      end if
      field(:, column) = -1
    end do
    step = -1
  end subroutine
end program
