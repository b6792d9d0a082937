! Restarts on another number of ranks through the module, and its mistakes: `save` on 3 ranks, then `load` on others.
! tests/mpi_fortran.rs runs it; rank 0 prints `all right`.
program elastic
  use, intrinsic :: iso_fortran_env, only: error_unit, int16, int32, int64, real64
  use, intrinsic :: iso_c_binding, only: c_loc, c_ptr
  use mpi_f08
  use bivouac
  implicit none

  ! The first index is the fastest, along a row.
  integer, parameter :: NX = 17, NY = 23, MESH = 501
  type(bvk_session_t) :: session
  type(bvk_boxes_t) :: bands, turns, none
  type(c_ptr), allocatable :: rows(:)
  integer :: rank, ranks, provided, first, count, x, y
  integer, allocatable :: mine(:)
  ! There is one ghost cell before a row and two after it, and a row of ghost cells on both sides.
  real(real64), allocatable, target :: band(:, :)
  integer(int16), allocatable, target :: taken(:, :)
  integer(int64), target :: step = 0
  integer(int32), target :: seed(2) = -1
  character(len=8) :: what

  call MPI_Init_thread(MPI_THREAD_MULTIPLE, provided)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks)
  call get_command_argument(1, what)
  call is(bvk_open(MPI_COMM_WORLD, session), BVK_OK)
  call cut()
  if (what == 'save') then
    call save_all()
    call save_mesh()
  else
    call load_all()
    call load_mesh()
  end if
  call is(bvk_boxes_close(bands), BVK_OK)
  call is(bvk_protect_on(session, 'band', bands, band), BVK_ERR_ARGUMENT)
  call is(bvk_boxes_close(bands), BVK_OK)
  call is(bvk_close(session), BVK_OK)
  if (rank == 0) print '(a)', 'all right'
  call MPI_Finalize()

contains

  ! The array is cut into bands of rows; and into rows in turn, of which rank 0 has none if there are other ranks.
  subroutine cut()
    integer :: owners, at
    integer, allocatable :: origins(:, :), extents(:, :)
    first = NY*rank/ranks
    count = NY*(rank + 1)/ranks - first
    allocate (band(0:NX + 2, 0:count + 1))
    band = -1
    call is(bvk_boxes(session, [NX, NY], [1, first + 1], [NX, count], bands, lbound(band), ubound(band)), BVK_OK)
    owners = max(ranks - 1, 1)
    mine = [integer ::]
    if (rank > 0 .or. ranks == 1) mine = [(y, y=max(rank, 1), NY, owners)]
    allocate (origins(2, size(mine)), extents(2, size(mine)), taken(NX, size(mine)), rows(size(mine)))
    taken = 0
    do at = 1, size(mine)
      origins(:, at) = [1, mine(at)]
      extents(:, at) = [NX, 1]
      rows(at) = c_loc(taken(1, at))
    end do
    call is(bvk_boxes(session, [NX, NY], origins, extents, turns), BVK_OK)
  end subroutine

  pure function value(x, y)
    integer, intent(in) :: x, y
    real(real64) :: value
    value = 1000.0_real64*y + x
  end function

  subroutine check_all()
    integer :: at
    do y = 0, count + 1
      do x = 0, NX + 2
        if (x >= 1 .and. x <= NX .and. y >= 1 .and. y <= count) then
          call check(band(x, y) == value(x, first + y), 'a cell')
        else
          call check(band(x, y) == -1, 'a ghost cell')
        end if
      end do
    end do
    do at = 1, size(mine)
      call check(all(taken(:, at) == mine(at)), 'a row')
    end do
  end subroutine

  ! Mistakes that this module finds and mistakes that the library finds: the other ranks hear of them, and
  ! the next call is in step.
  subroutine mistakes()
    integer :: status
    if (rank == 1) then
      call is(bvk_boxes(session, [NX, NY], [1], [NX, NY], none), BVK_ERR_ARGUMENT)
      call says('different numbers of dimensions')
      call is(bvk_boxes(session, [NX, NY], [0, 1], [NX, NY], none), BVK_ERR_ARGUMENT)
      call says('counted from 1')
      call is(bvk_boxes(session, [NX, NY], [1, 1], [NX, NY], none, [2, 1]), BVK_ERR_ARGUMENT)
      call says('out of its memory')
    else
      do status = 1, 3
        call is(bvk_boxes(session, [NX, NY], [1, 1], [NX, NY], none), BVK_ERR_DISAGREED)
        call says('rank 1')
      end do
    end if
    call is(bvk_boxes(session, [NX, NY], [1, 1], [NX, NY], none), BVK_ERR_DISAGREED)
    call says('belong both to box 0 of rank')
    call is(bvk_boxes(session, [int(NX, int64), int(NY, int64)], [1_int64, 1_int64], [0_int64, 1_int64], none), BVK_ERR_DISAGREED)
    call says('belong to no rank')
    call is(bvk_boxes(session, [NX, NY], [1, 1], [0, 0], none, sparse=.true.), BVK_OK)
    call is(bvk_boxes_close(none), BVK_OK)
    call is(bvk_protect_on(session, 'band', bands, band(1:NX, 1:count)), BVK_ERR_ARGUMENT)
    call says('not contiguous')
    call is(bvk_protect_on(session, 'band', bands, band(:, 1:count)), BVK_ERR_ARGUMENT)
    call says('extents of the box with its ghost cells')
    call is(bvk_protect_on(session, 'band', bands, [c_loc(band), c_loc(band)], BVK_F64), BVK_ERR_REGION)
    call says('memory for 2 boxes was given, but this rank owns 1')
    call is(bvk_protect_per_rank(session, 'seed', seed, 7), BVK_ERR_ARGUMENT)
  end subroutine

  subroutine save_all()
    type(bvk_checkpoint_t) :: checkpoint
    type(bvk_pending_t) :: pending
    integer :: at, reached
    call mistakes()
    do y = 1, count
      do x = 1, NX
        band(x, y) = value(x, first + y)
      end do
    end do
    do at = 1, size(mine)
      taken(:, at) = int(mine(at), int16)
    end do
    step = 5
    seed = [rank*10, ranks]
    call protect_all()
    call is(bvk_checkpoint(session, 'protected', step, pending), BVK_OK)
    call is(bvk_wait(pending, BVK_LEVEL_PROCESS, reached), BVK_OK)
    call is(bvk_release(pending), BVK_OK)
    call is(bvk_begin_checkpoint(session, 'saved', 6_int64, checkpoint), BVK_OK)
    call is(bvk_save_on(checkpoint, 'band', bands, band), BVK_OK)
    call is(bvk_save_on(checkpoint, 'rows', turns, rows, BVK_I16), BVK_OK)
    call is(bvk_save_shared(checkpoint, 'step', step), BVK_OK)
    call is(bvk_save_per_rank(checkpoint, 'seed', seed, BVK_RESIZE_ASK), BVK_OK)
    call is(bvk_capture(checkpoint, pending), BVK_OK)
    call is(bvk_wait(pending, BVK_LEVEL_PROCESS, reached), BVK_OK)
    call is(bvk_release(pending), BVK_OK)
  end subroutine

  subroutine protect_all()
    call is(bvk_protect_on(session, 'band', bands, band), BVK_OK)
    call is(bvk_protect_on(session, 'rows', turns, rows, BVK_I16), BVK_OK)
    call is(bvk_protect_shared(session, 'step', step), BVK_OK)
    call is(bvk_protect_per_rank(session, 'seed', seed, BVK_RESIZE_ASK), BVK_OK)
  end subroutine

  subroutine load_all()
    type(bvk_restart_t) :: restart
    type(bvk_restored) :: restored
    integer :: saved, at
    integer(int32) :: seeds(2, 3)
    call protect_all()
    call is(bvk_restore(session, 'protected', restored=restored), BVK_OK)
    call check(restored%ranks == 3 .and. step == 5, 'what is shared')
    if (ranks == 3) then
      call check(all(seed == [rank*10, 3]), 'its own')
    else
      call check(all(seed == -1), 'what is left alone')
    end if
    call check_all()
    band = -1
    taken = 0
    step = 0
    call is(bvk_begin_restore(session, 'saved', restart=restart), BVK_OK)
    call is(bvk_saved_ranks(restart, saved), BVK_OK)
    call check(saved == 3, 'ranks that took it')
    call is(bvk_load_on(restart, 'band', bands, band), BVK_OK)
    call is(bvk_load_on(restart, 'rows', turns, rows, BVK_I16), BVK_OK)
    call is(bvk_load_shared(restart, 'step', step), BVK_OK)
    call is(bvk_of_ranks(restart, 'seed', 0, 3, seeds), BVK_OK)
    call check(all(seeds == reshape([(10*at, 3, at=0, 2)], [2, 3])), 'what old ranks had')
    if (ranks == 3) call is(bvk_load_per_rank(restart, 'seed', seed), BVK_OK)
    call is(bvk_end_restore(restart, .true., restored), BVK_OK)
    call check(step == 5, 'the step')
    call check_all()
    ! The memory does not fit on one rank: nobody waits, and the restart of all ranks ends.
    call is(bvk_begin_restore(session, 'saved', restart=restart), BVK_OK)
    if (rank == 0) then
      call is(bvk_load_on(restart, 'band', bands, band(:, 1:count)), BVK_ERR_ARGUMENT)
      call says('extents of the box with its ghost cells')
      call is(bvk_end_restore(restart, .false.), BVK_ERR_RESTART)
    else
      saved = bvk_load_on(restart, 'band', bands, band)
      call check(merge(saved == BVK_OK, saved == BVK_ERR_LOAD, ranks == 3), 'a load that ends')
      call is(bvk_end_restore(restart, saved == BVK_OK), BVK_ERR_RESTART)
    end if
    call says('boxes')
  end subroutine

  ! The vertices of a rank, in descending order, counted from 1.
  function vertices() result(numbers)
    integer, allocatable :: numbers(:)
    integer :: number
    numbers = pack([(number, number=MESH, 1, -1)], [(modulo(modulo(7*number, 11), ranks) == rank, number=MESH, 1, -1)])
  end function

  subroutine save_mesh()
    type(bvk_boxes_t) :: boxes
    type(bvk_checkpoint_t) :: checkpoint
    type(bvk_pending_t) :: pending
    integer, allocatable :: own(:)
    integer :: reached
    real(real64), allocatable :: pressure(:)
    allocate (own, source=vertices())
    if (rank == 1) then
      call is(bvk_ids(session, MESH, [own, 0], boxes), BVK_ERR_ARGUMENT)
      call says('counted from 1')
    else
      call is(bvk_ids(session, MESH, own, boxes), BVK_ERR_DISAGREED)
      call says('rank 1: numbers is NULL')
    end if
    call is(bvk_ids(session, MESH, own(2:), boxes), BVK_ERR_DISAGREED)
    call says('in no rank''s list')
    call is(bvk_ids(session, int(MESH, int64), int(own(2:), int64), boxes, sparse=.true.), BVK_OK)
    call is(bvk_boxes_close(boxes), BVK_OK)
    call is(bvk_ids(session, MESH, own, boxes), BVK_OK)
    pressure = 0.5_real64*own
    call is(bvk_protect_on(session, 'p', boxes, pressure(2:)), BVK_ERR_REGION)
    call is(bvk_begin_checkpoint(session, 'mesh', 1_int64, checkpoint), BVK_OK)
    call is(bvk_save_on(checkpoint, 'pressure', boxes, pressure), BVK_OK)
    call is(bvk_capture(checkpoint, pending), BVK_OK)
    call is(bvk_wait(pending, BVK_LEVEL_PROCESS, reached), BVK_OK)
    call is(bvk_release(pending), BVK_OK)
  end subroutine

  subroutine load_mesh()
    type(bvk_boxes_t) :: boxes
    type(bvk_restart_t) :: restart
    integer, allocatable :: own(:)
    real(real64), allocatable :: pressure(:)
    allocate (own, source=vertices())
    allocate (pressure(size(own)), source=0.0_real64)
    call is(bvk_ids(session, MESH, own, boxes), BVK_OK)
    call is(bvk_begin_restore(session, 'mesh', restart=restart), BVK_OK)
    call is(bvk_load_on(restart, 'pressure', boxes, pressure), BVK_OK)
    call is(bvk_end_restore(restart, .true.), BVK_OK)
    call check(all(pressure == 0.5_real64*own), 'the mesh')
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
