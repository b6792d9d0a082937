! Calls every function of the module once, and checks its promises. Rank 0 prints "all right" if all of them held on all ranks.
program every
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env
  use mpi_f08
  use bivouac
  implicit none
  type(bvk_session_t) :: session, other
  integer :: rank, ranks, provided, wrong, all_wrong
  type, bind(c) :: particle
    real(c_double) :: at(3)
    integer(c_int) :: kind, group
  end type
  integer, parameter :: RECORD = -32 ! the contents of a particle
  integer(int8), target :: i8(3)
  integer(int16), target :: i16(2, 3)
  integer(int32), target :: i32(2, 2, 2)
  integer(int64), target :: i64
  real(real32), target :: f32(2, 1, 3, 1)
  real(real64), allocatable, target :: f64(:, :), nothing(:)
  complex(real32), target :: c32(2)
  complex(real64), target :: c64(3)
  type(particle), target :: particles(4)

  call MPI_Init_thread(MPI_THREAD_MULTIPLE, provided)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  wrong = 0
  allocate (f64(3, 5), nothing(0))

  call holds(RECORD == -c_sizeof(particles(1)), 'the bytes of a particle')
  call opening()
  call protected_regions()
  call refusals()
  call put_together()
  call companions()
  call attempts()
  call decisions()
  call past()
  call offloading()
  call tier_that_is_off()
  call expect(bvk_close(session), BVK_OK, 'close')
  call expect(bvk_close(session), BVK_OK, 'close again')
  call expect(bvk_unprotect_all(session), BVK_ERR_HANDLE, 'use after close')
  call expect(bvk_close(other), BVK_OK, 'close the other')

  call MPI_Allreduce(wrong, all_wrong, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
  if (rank == 0 .and. all_wrong == 0) print '(a)', 'all right'
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

  subroutine opening()
    integer(int64) :: generation
    call holds(bvk_error_text() == '', 'no error yet')
    call holds(index(bvk_version(), '.') > 0, 'a version')
    call holds(bvk_status_name(BVK_ERR_LOAD) == 'BVK_ERR_LOAD', 'a name of a status')
    call expect(bvk_open(MPI_COMM_WORLD, session, settings=['memory.bugdet=1 MiB']), BVK_ERR_OPEN, 'a key that is none')
    call holds(index(bvk_error_text(), 'memory.budget') > 0, 'the key that was meant')
    call expect(bvk_open(MPI_COMM_WORLD, session, config_file='/nowhere', config_text='[job]'), BVK_ERR_OPEN, 'two texts')
    call expect(bvk_open(MPI_COMM_WORLD, session, config_text='[job]'//new_line('a')//'group = "first"', &
      settings=['memory.budget=64 MiB    ', 'local.keep_last=2       ']), BVK_OK, 'open')
    ! This opens the same library with a handle of mpi and mpif.h, which is an integer.
    call expect(bvk_open(MPI_COMM_WORLD%MPI_VAL, other, settings=['job.group=second']), BVK_OK, 'open by an integer')
    call expect(bvk_generation(session, generation), BVK_OK, 'generation')
    call holds(generation >= 1, 'a generation')
    call expect(bvk_pin(session, BVK_PIN_LAUNCHER), BVK_OK, 'pin')
    call expect(bvk_set_affinity(session, BVK_AFFINITY_CAPTURE), BVK_OK, 'affinity')
    call expect(bvk_set_stream(session, c_null_ptr), BVK_OK, 'stream')
    call expect(bvk_prepare(session, 4096_int64), BVK_OK, 'prepare')
    call expect(bvk_log(9), BVK_ERR_ARGUMENT, 'a level that is none')
  end subroutine

  subroutine fill(seed)
    integer, intent(in) :: seed
    integer :: at
    i8 = [(int(seed + at, int8), at=1, 3)]
    i16 = int(seed + reshape([(at, at=1, 6)], [2, 3]), int16)
    i32 = seed + reshape([(at, at=1, 8)], [2, 2, 2])
    i64 = seed
    f32 = real(seed, real32) + reshape([(real(at, real32), at=1, 6)], [2, 1, 3, 1])
    f64 = real(seed, real64) + reshape([(real(at, real64)/3, at=1, 15)], [3, 5])
    c32 = cmplx(seed, 1, real32)
    c64 = cmplx(1, seed, real64)
    particles%kind = seed
    particles%at(1) = seed
  end subroutine

  logical function filled(seed)
    integer, intent(in) :: seed
    integer :: at
    filled = all(i8 == [(int(seed + at, int8), at=1, 3)]) .and. all(i16 == seed + reshape([(at, at=1, 6)], [2, 3])) &
      .and. all(i32 == seed + reshape([(at, at=1, 8)], [2, 2, 2])) .and. i64 == seed .and. f32(2, 1, 3, 1) == seed + 6 &
      .and. f64(3, 5) == real(seed, real64) + 15.0_real64/3 .and. all(c32 == cmplx(seed, 1, real32)) &
      .and. all(c64 == cmplx(1, seed, real64)) .and. all(particles%kind == seed)
  end function

  ! All types, and all ranks of arrays.
  subroutine protected_regions()
    type(bvk_pending_t) :: pending
    type(bvk_restored) :: restored
    integer(int64), allocatable :: versions(:)
    integer :: reached
    logical :: finished
    call expect(bvk_protect(session, 'i8', i8), BVK_OK, 'i8')
    call expect(bvk_protect(session, 'i16', i16), BVK_OK, 'i16')
    call expect(bvk_protect(session, 'i32', i32), BVK_OK, 'i32')
    call expect(bvk_protect(session, 'i64   ', i64), BVK_OK, 'i64')
    call expect(bvk_protect(session, 'f32', f32), BVK_OK, 'f32')
    call expect(bvk_protect(session, 'f64', f64), BVK_OK, 'f64')
    call expect(bvk_protect(session, 'c32', c32), BVK_OK, 'c32')
    call expect(bvk_protect(session, 'c64', c64), BVK_OK, 'c64')
    call expect(bvk_protect(session, 'nothing', nothing), BVK_OK, 'nothing')
    call expect(bvk_protect(session, 'particles', c_loc(particles), 4_int64, RECORD), BVK_OK, 'particles')
    call fill(10*rank)
    call expect(bvk_checkpoint(session, 'series', 1_int64, pending), BVK_OK, 'checkpoint')
    call fill(-1)
    call expect(bvk_wait(pending, BVK_LEVEL_SYSTEM, reached), BVK_OK, 'wait')
    call holds(reached == BVK_LEVEL_SYSTEM, 'the level that was reached')
    call expect(bvk_level(pending, reached), BVK_OK, 'level')
    call holds(reached == BVK_LEVEL_SYSTEM, 'the level')
    call expect(bvk_poll(pending, finished), BVK_OK, 'poll')
    call expect(bvk_release(pending), BVK_OK, 'release')
    call expect(bvk_poll(pending, finished), BVK_ERR_HANDLE, 'poll after release')
    call expect(bvk_restore(session, 'series', restored=restored), BVK_OK, 'restart')
    call holds(filled(10*rank), 'what was restored')
    call holds(restored%version == 1 .and. restored%bytes > 200, 'what is told of the restart')
    call expect(bvk_checkpoint(session, 'series', -3_int64), BVK_ERR_ARGUMENT, 'a negative version')
    call holds(index(bvk_error_text(), '-3') > 0, 'which version it was')
    call fill(7)
    call expect(bvk_checkpoint(session, 'series', 2_int64), BVK_OK, 'checkpoint without a handle')
    call fill(-1)
    call expect(bvk_restore(session, 'series', 1_int64), BVK_OK, 'restart of an older one')
    call holds(filled(10*rank), 'what was restored of the older one')
    call expect(bvk_versions(session, 'series', versions), BVK_OK, 'versions')
    call holds(size(versions) == 2 .and. versions(1) == 2, 'the versions')
    call expect(bvk_restore(session, 'another'), BVK_NOTHING, 'a series that is none')
    call expect(bvk_unprotect(session, 'i8'), BVK_OK, 'unprotect')
    call expect(bvk_unprotect(session, 'i8'), BVK_ERR_ARGUMENT, 'unprotect again')
    call expect(bvk_unprotect_all(session), BVK_OK, 'unprotect all')
  end subroutine

  subroutine refusals()
    call expect(bvk_protect(session, 'rows', f64(1:2, :)), BVK_ERR_ARGUMENT, 'a section with gaps')
    call holds(index(bvk_error_text(), '"rows": the elements are not contiguous') > 0, 'the text of it')
    call expect(bvk_protect(session, 'every second', f64(1, ::2)), BVK_ERR_ARGUMENT, 'every second column')
    call expect(bvk_protect(session, 'columns', f64(:, 2:3)), BVK_OK, 'a section without gaps')
    call expect(bvk_protect(session, 'one column', f64(:, 2)), BVK_OK, 'a column')
    call expect(bvk_protect(session, '', f64), BVK_ERR_REGION, 'no name')
    call holds(index(bvk_error_text(), 'contiguous') == 0, 'the text is that of the last error')
    call expect(bvk_protect(session, 'null', c_null_ptr, 4_int64, BVK_F64), BVK_ERR_ARGUMENT, 'nowhere')
    call expect(bvk_unprotect_all(session), BVK_OK, 'unprotect all')
  end subroutine

  subroutine put_together()
    type(bvk_checkpoint_t) :: checkpoint
    type(bvk_pending_t) :: pending
    type(bvk_report) :: report
    type(bvk_restart_t) :: restart
    real(real64), target :: held(3, 5), again(9)
    character(len=:), allocatable :: path
    integer(int64) :: found
    integer :: status, heard, unit, number
    logical :: is_there
    call expect(bvk_protect(session, 'i16', i16), BVK_OK, 'protect')
    call fill(20 + rank)
    call expect(bvk_begin_checkpoint(session, 'made', 5_int64, checkpoint), BVK_OK, 'begin')
    call expect(bvk_save_protected(checkpoint), BVK_OK, 'save protected')
    call expect(bvk_save(checkpoint, 'f64', f64), BVK_OK, 'save')
    call expect(bvk_save(checkpoint, 'f64', f64), BVK_ERR_REGION, 'save twice')
    call expect(bvk_hold(checkpoint), BVK_OK, 'hold')
    held = f64
    f64 = -1
    call expect(bvk_stream_begin(checkpoint, 'stream'), BVK_OK, 'begin a stream')
    call expect(bvk_stream_write(checkpoint, c_loc(held), 40_int64), BVK_OK, 'write')
    call expect(bvk_stream_write(checkpoint, c_loc(held), 8*int(rank, int64)), BVK_OK, 'write, another length on each rank')
    call expect(bvk_stream_end(checkpoint), BVK_OK, 'end a stream')
    call expect(bvk_stream_end(checkpoint), BVK_ERR_STATE, 'end it again')
    call expect(bvk_route(checkpoint, 'dump', path), BVK_OK, 'a path')
    open (newunit=unit, file=path, status='new', action='write')
    write (unit, '(i0)') rank
    close (unit)
    call expect(bvk_route(checkpoint, 'f64', path), BVK_ERR_REGION, 'a path for a region that is there')
    call expect(bvk_save(checkpoint, 'rows', f64(1:2, :)), BVK_ERR_ARGUMENT, 'save a section with gaps')
    call expect(bvk_save(checkpoint, 'particles', c_loc(particles), 4_int64, RECORD), BVK_OK, 'by address')
    call expect(bvk_capture(checkpoint, pending), BVK_OK, 'capture')
    call expect(bvk_capture(checkpoint), BVK_ERR_HANDLE, 'capture again')
    call expect(bvk_wait(pending, BVK_LEVEL_SYSTEM), BVK_OK, 'wait')
    call expect(bvk_release(pending), BVK_OK, 'release')
    call expect(bvk_begin_checkpoint(session, 'made', 6_int64, checkpoint), BVK_OK, 'begin')
    call expect(bvk_abort(checkpoint), BVK_OK, 'abort')
    heard = 0
    do
      status = bvk_next_report(session, report)
      if (status /= BVK_OK) exit
      if (report%name == 'made' .and. report%version == 5 .and. report%committed == 1) heard = heard + 1
    end do
    call expect(status, BVK_NOTHING, 'the last report')
    call holds(heard >= 1, 'a report')
    call expect(bvk_begin_restore(session, 'made', restart), BVK_OK, 'begin')
    call expect(bvk_load(restart, 'f64', f64), BVK_OK, 'load')
    call expect(bvk_stream_read(restart, 'stream', 8_int64, c_loc(again), 72_int64, found), BVK_OK, 'read a stream')
    call expect(bvk_route_saved(restart, 'dump', path), BVK_OK, 'bring it back')
    open (newunit=unit, file=path, status='old', action='read')
    read (unit, *) number
    close (unit)
    call holds(number == rank, 'what was written to the file')
    call expect(bvk_end_restore(restart, .true.), BVK_OK, 'end')
    inquire (file=path, exist=is_there)
    call holds(.not. is_there, 'the file has gone')
    call holds(all(f64 == held), 'what was held')
    call holds(found == 32 + 8*min(rank, 5) .and. again(1) == held(2, 1) .and. again(4) == held(2, 2), 'what was written')
  end subroutine

  ! A time series to which the first rank appends is cut to its length in the restored version.
  subroutine companions()
    character(len=*), parameter :: SERIES = 'energies'
    character(len=:), allocatable :: current
    character(len=64) :: name
    type(bvk_checkpoint_t) :: checkpoint
    type(bvk_restart_t) :: restart
    integer(int64) :: version
    integer :: unit, status, lines, values(1)
    name = 'energies.csv'
    call expect(bvk_companion(session, SERIES, 7), BVK_ERR_ARGUMENT, 'what nobody knows')
    if (rank == 0) then
      call expect(bvk_companion(session, SERIES, BVK_RESTART_TRUNCATE, trim(name)), BVK_OK, 'the one that writes')
      call expect(bvk_companion_path(session, SERIES, trim(name), current), BVK_OK, 'where it is')
      call holds(index(current, trim(name)) > 1, 'an absolute path')
    else
      call expect(bvk_companion(session, SERIES, BVK_RESTART_TRUNCATE), BVK_OK, 'the others')
      call expect(bvk_companion_path(session, SERIES, trim(name), current), BVK_ERR_ARGUMENT, 'none of this rank')
    end if
    values = rank
    do version = 1, 3
      if (rank == 0) then
        open (newunit=unit, file=trim(name), position='append', action='write')
        write (unit, '(a, i0)') 'step ', version
        close (unit)
      end if
      if (version == 3) exit
      call expect(bvk_begin_checkpoint(session, SERIES, version, checkpoint), BVK_OK, 'begin')
      call expect(bvk_save(checkpoint, 'values', values), BVK_OK, 'save')
      call expect(bvk_capture(checkpoint), BVK_OK, 'capture')
    end do
    call expect(bvk_begin_restore(session, SERIES, restart), BVK_OK, 'begin')
    call expect(bvk_end_restore(restart, .true.), BVK_OK, 'end')
    if (rank == 0) then
      open (newunit=unit, file=trim(name), status='old', action='read')
      lines = 0
      do
        read (unit, *, iostat=status)
        if (status /= 0) exit
        lines = lines + 1
      end do
      close (unit, status='delete')
      call holds(lines == 2, 'what came after the last checkpoint is cut')
    end if
  end subroutine

  ! The second rank cannot use the newest version, so all ranks go back to the previous one.
  subroutine attempts()
    type(bvk_restart_t) :: restart
    type(bvk_restored) :: restored
    integer(int64) :: version, count
    integer :: status, rounds, kind
    call fill(30)
    call expect(bvk_checkpoint(session, 'tried', 1_int64), BVK_OK, 'checkpoint')
    call fill(31)
    call expect(bvk_checkpoint(session, 'tried', 2_int64), BVK_OK, 'checkpoint')
    call fill(-1)
    call expect(bvk_begin_restore(session, 'nobody', restart), BVK_NOTHING, 'nothing to begin')
    call expect(bvk_begin_restore(session, 'tried', restart), BVK_OK, 'begin')
    rounds = 0
    do
      rounds = rounds + 1
      call expect(bvk_saved_version(restart, version), BVK_OK, 'its version')
      call holds(version == 1 .or. (version == 2 .and. rounds == 1), 'its version, and in the end an older one')
      call expect(bvk_region_size(restart, 'i16', count, kind), BVK_OK, 'its size')
      call holds(count == 6 .and. kind == BVK_I16, 'the size')
      if (version == 2) then
        call expect(bvk_load(restart, 'i16', i16), BVK_OK, 'load')
      else
        call expect(bvk_load(restart, 'f64', f64), BVK_ERR_LOAD, 'a region that is none')
        call expect(bvk_load(restart, 'i16', i8), BVK_ERR_LOAD, 'another type')
        call expect(bvk_load(restart, 'i16', i16(1:1, :)), BVK_ERR_ARGUMENT, 'a section with gaps')
        call expect(bvk_load_protected(restart), BVK_OK, 'load protected')
      end if
      if (version == 2 .and. rank == ranks - 1) call expect(bvk_reject(restart, 'not a number'), BVK_OK, 'reject')
      status = bvk_end_restore(restart, .true., restored)
      if (status /= BVK_AGAIN) exit
    end do
    call expect(status, BVK_OK, 'end')
    call holds(rounds == 2 .and. restored%version == 1 .and. i16(1, 1) == 31, 'the older one')
  end subroutine

  subroutine decisions()
    type(bvk_stats) :: stats
    type(bvk_level_stats) :: of_level
    logical :: yes
    call expect(bvk_should_checkpoint(session, yes), BVK_OK, 'should checkpoint')
    call expect(bvk_should_exit(session, yes), BVK_OK, 'should exit')
    call holds(.not. yes, 'nobody asked for an end')
    call expect(bvk_progress(session), BVK_OK, 'progress')
    call expect(bvk_get_stats(session, stats), BVK_OK, 'stats')
    call expect(bvk_get_level_stats(session, BVK_LEVEL_SYSTEM, of_level), BVK_OK, 'stats of a level')
    call holds(stats%captured == 7 .and. stats%blocked_total_s > 0 .and. of_level%committed >= 1, 'the counters')
    call holds(stats%looked_on_device == 0 .and. stats%look_total_s == 0 .and. stats%compressed_from == 0 &
      .and. stats%compress_total_s == 0, 'the counters at the end')
  end subroutine

  ! A directory that cannot be used: a report without a name says so, and so does a wait for the level that cannot be reached.
  subroutine tier_that_is_off()
    type(bvk_session_t) :: off
    type(bvk_pending_t) :: pending
    type(bvk_report) :: report
    call expect(bvk_open(MPI_COMM_WORLD, off, settings=['job.group=off              ', 'global.directory=/proc/nope']), BVK_OK, &
      'open')
    call expect(bvk_next_report(off, report), BVK_OK, 'a report of the tier')
    call holds(report%name == '' .and. report%level == BVK_LEVEL_SYSTEM .and. report%committed == 0, 'what it is about')
    call holds(index(report%reason, '/proc/nope') > 0, 'its reason')
    call expect(bvk_protect(off, 'f64', f64), BVK_OK, 'a region')
    call expect(bvk_checkpoint(off, 'off', 1_int64, pending), BVK_OK, 'checkpoint')
    call expect(bvk_wait(pending, BVK_LEVEL_SYSTEM), BVK_ERR_NOT_COMMITTED, 'wait for what is off')
    call holds(index(bvk_error_text(), '/proc/nope') > 0, 'why it is off')
    call expect(bvk_release(pending), BVK_OK, 'release')
    call expect(bvk_close(off), BVK_OK, 'close')
  end subroutine

  ! Without a GPU, every call is accepted, and nothing is marked.
  subroutine offloading()
    type(bvk_write_set_t) :: set
    type(bvk_pending_t) :: pending
    type(bvk_stats) :: stats
    type(c_ptr) :: addresses(2)
    addresses = [c_loc(f64), c_loc(i64)]
    call expect(bvk_unprotect_all(session), BVK_OK, 'unprotect what was before')
    call expect(bvk_settle(session), BVK_OK, 'settle before all')
    call expect(bvk_before_write(session, f64), BVK_ERR_STATE, 'declare before all')
    call holds(index(bvk_error_text(), 'call bvk_offload first') > 0, 'what to do')
    call expect(bvk_write_set(session, 'advance', addresses, [120_int64, 8_int64], set), BVK_ERR_STATE, 'a set before all')
    call expect(bvk_allow_marks(session), BVK_ERR_STATE, 'allow marks before all')
    call expect(bvk_offload(session, -7, 0_int64), BVK_ERR_ARGUMENT, 'no such GPU')
    call expect(bvk_offload(session, BVK_NO_GPU, 4096_int64), BVK_OK, 'offload')
    call expect(bvk_offload(session, 0, 0_int64), BVK_ERR_STATE, 'offload another GPU')
    call expect(bvk_write_set(session, 'advance', addresses, [120_int64, 8_int64], set), BVK_OK, 'a set')
    call expect(bvk_write_set(session, 'odd', addresses, [120_int64], set), BVK_ERR_ARGUMENT, 'too few numbers')
    call fill(40)
    call expect(bvk_protect(session, 'f64', f64), BVK_OK, 'protect')
    call expect(bvk_checkpoint(session, 'not marked', 1_int64, pending), BVK_OK, 'checkpoint')
    call expect(bvk_before_write(session, f64), BVK_OK, 'declare')
    call expect(bvk_before_write(session, c64, c_null_ptr), BVK_OK, 'declare on a stream')
    call expect(bvk_before_write(session, f64(1:2, :)), BVK_ERR_ARGUMENT, 'declare a section with gaps')
    call expect(bvk_before_write(session, c_loc(f64), 120_int64), BVK_OK, 'declare by address')
    call expect(bvk_before_write(session, c_loc(f64), 120_int64, c_null_ptr), BVK_OK, 'declare by address on a stream')
    call expect(bvk_before_write(session, c_null_ptr, 8_int64), BVK_ERR_ARGUMENT, 'declare nowhere')
    call expect(bvk_before(set), BVK_OK, 'declare a set')
    call expect(bvk_before(set, c_null_ptr), BVK_OK, 'declare a set on a stream')
    f64 = -1
    call expect(bvk_wait(pending, BVK_LEVEL_PROCESS), BVK_OK, 'wait')
    call expect(bvk_release(pending), BVK_OK, 'release')
    call expect(bvk_restore(session, 'not marked'), BVK_OK, 'restart')
    call holds(f64(3, 5) == 45, 'what was captured')
    call expect(bvk_settle(session), BVK_OK, 'settle')
    call expect(bvk_allow_marks(session), BVK_OK, 'allow marks')
    call expect(bvk_write_set_close(set), BVK_OK, 'close the set')
    call expect(bvk_write_set_close(set), BVK_OK, 'close it again')
    call expect(bvk_before(set), BVK_ERR_HANDLE, 'declare what was closed')
    call expect(bvk_get_stats(session, stats), BVK_OK, 'stats')
    call holds(stats%marks == 0 .and. stats%marked_bytes == 0 .and. stats%mark_waits == 0 .and. stats%mark_wait_total_s == 0, &
      'nothing was marked')
    call expect(bvk_unprotect_all(session), BVK_OK, 'unprotect')
  end subroutine

  subroutine past()
    type(bvk_history_t) :: history, again
    type(bvk_checkpoint_t) :: checkpoint
    type(bvk_restart_t) :: restart
    integer(int64) :: count, step
    call expect(bvk_history_open(session, 'shot', BVK_NO_GPU, BVK_KEEP_ALL, history), BVK_OK, 'a history')
    call expect(bvk_history_field(history, 'f64', f64), BVK_OK, 'a field')
    call expect(bvk_history_field(history, 'gaps', f64(1:2, :)), BVK_ERR_ARGUMENT, 'a field with gaps')
    call expect(bvk_history_field(history, 'particles', c_loc(particles), 4_int64, RECORD), BVK_OK, 'by address')
    do step = 1, 4
      call fill(int(step))
      call expect(bvk_history_append(history, step), BVK_OK, 'append')
    end do
    call expect(bvk_history_hint(history, [4_int64, 2_int64]), BVK_OK, 'hint')
    call expect(bvk_history_start_prefetch(history), BVK_OK, 'prefetch')
    call expect(bvk_history_restore(history, 2_int64), BVK_OK, 'restore')
    call holds(f64(3, 5) == 7 .and. all(particles%kind == 2), 'what was restored')
    call expect(bvk_history_restore(history, 9_int64), BVK_ERR_DEVICE, 'a version that is none')
    call expect(bvk_history_wait_flushed(history), BVK_OK, 'flushed')
    call expect(bvk_begin_checkpoint(session, 'shots', 1_int64, checkpoint), BVK_OK, 'begin')
    call expect(bvk_save_history(checkpoint, history), BVK_OK, 'save it')
    call expect(bvk_reduce(checkpoint, 'nothing of that name', 'list'), BVK_OK, 'reduce')
    call expect(bvk_reduce(checkpoint, 'nothing of that name', 'lists'), BVK_ERR_ARGUMENT, 'reduce by no method')
    call expect(bvk_capture(checkpoint), BVK_OK, 'capture')
    call expect(bvk_history_clear_fields(history), BVK_OK, 'clear')
    call expect(bvk_history_close(history), BVK_OK, 'close')
    call expect(bvk_history_open(session, 'shot', BVK_NO_GPU, BVK_KEEP_ALL, again), BVK_OK, 'again')
    call expect(bvk_history_field(again, 'f64', f64), BVK_OK, 'a field')
    call expect(bvk_history_field(again, 'particles', c_loc(particles), 4_int64, RECORD), BVK_OK, 'by address')
    call expect(bvk_begin_restore(session, 'shots', restart), BVK_OK, 'begin')
    call expect(bvk_load_history(restart, again, count), BVK_OK, 'load it')
    call expect(bvk_end_restore(restart, .true.), BVK_OK, 'end')
    call holds(count == 4, 'all versions')
    call expect(bvk_history_restore(again, 3_int64), BVK_OK, 'restore')
    call holds(all(particles%kind == 3), 'what was restored again')
    call expect(bvk_history_close(again), BVK_OK, 'close')
  end subroutine
end program
