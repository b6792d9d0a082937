! Heat spreads over a plate, and the run survives being killed: mpi-examples/heat2d.rs in Fortran.
!
!   mpirun -n 4 heat2d --dir /scratch/me/heat --grid 1024x1024 --steps 5000 --every 100
!
! The plate is cut into bands of rows, one for each rank; the first index of an array runs from west to east. Every cell is
! computed by the same expression in the same order as in the Rust example. Both programs therefore print the same digest for
! every number of ranks, however often the run was killed, provided that the compiler does not contract a product and a sum
! (-ffp-contract=off). The program may be started again on a different number of ranks.
program heat2d
  use, intrinsic :: iso_fortran_env, only: error_unit, output_unit, int8, int64, real64
  use, intrinsic :: iso_c_binding, only: c_int
  use mpi_f08
  use bivouac
  implicit none

  real(real64), parameter :: RATE = 0.2_real64, HOTTEST = 100.0_real64
  character(len=*), parameter :: NAME = 'heat'

  ! The options of the command line.
  integer :: nx = 1024, ny = 1024, die_rank = -1, wait_level = -1
  integer(int64) :: steps = 1000, every = 0, die_step = -1
  character(len=:), allocatable :: directory

  type(MPI_Comm) :: world
  type(bvk_session_t) :: session
  type(bvk_boxes_t) :: boxes
  integer :: rank, ranks, provided, first, rows
  ! Bivouac reads these at each checkpoint and writes them at a restart.
  real(real64), allocatable, target :: now(:, :)
  integer(int64), target :: step = 0
  real(real64), allocatable :: next(:, :), conductivity(:, :)
  logical :: due, stopped

  directory = ''
  call MPI_Init_thread(MPI_THREAD_MULTIPLE, provided)
  world = MPI_COMM_WORLD
  call MPI_Comm_rank(world, rank)
  call MPI_Comm_size(world, ranks)
  call read_command_line()
  if (ny < ranks) call fail('more ranks than rows')
  first = share(rank)
  rows = share(rank + 1) - first
  call start_plate()

  call open_session()
  ! This rank's part of the plate begins in row first + 1, and has the indices 1 to nx and 1 to rows in `now`.
  call check(bvk_boxes(session, [nx, ny], [1, first + 1], [nx, rows], boxes, lbound(now), ubound(now)), 'bvk_boxes')
  call check(bvk_protect_on(session, 'temperature', boxes, now), 'bvk_protect_on')
  call check(bvk_protect_shared(session, 'step', step), 'bvk_protect_shared')
  call restart()

  stopped = .false.
  do while (step < steps .and. .not. stopped)
    call exchange(now)
    call advance()
    step = step + 1
    call check(bvk_should_exit(session, stopped), 'bvk_should_exit')
    if (every > 0) then
      due = mod(step, every) == 0
    else
      call check(bvk_should_checkpoint(session, due), 'bvk_should_checkpoint')
    end if
    if (due .or. stopped) call checkpoint()
    if (step == die_step .and. rank == die_rank) call die()
  end do

  if (step < steps) then
    if (rank == 0) print '(a,i0,a,i0)', 'stopped step=', step, ' of=', steps
  else
    call print_digest()
  end if
  if (bvk_close(session) < 0) write (error_unit, '(2a)') 'bvk_close: ', bvk_error_text()
  call MPI_Finalize()

contains

  ! ------------------------------------------------------------------------------------------------ calls to Bivouac

  subroutine open_session()
    character(len=len(directory) + 32) :: settings(2)
    settings(1) = 'global.directory='//directory//'/global'
    settings(2) = 'local.directory='//directory//'/local'
    if (len(directory) > 0) then
      call check(bvk_open(world, session, settings=settings), 'bvk_open')
    else
      call check(bvk_open(world, session), 'bvk_open')
    end if
  end subroutine

  ! Continues from the newest checkpoint that all ranks can load, if there is one.
  subroutine restart()
    type(bvk_restored) :: restored
    integer :: status
    status = bvk_restore(session, NAME, restored=restored)
    if (status == BVK_NOTHING) return
    call check(status, 'bvk_restore')
    if (rank == 0) print '(a,i0,a,i0,a,i0)', 'restored version=', restored%version, ' generation=', restored%generation, &
      ' level=', restored%level
    flush (output_unit)
  end subroutine

  ! The only cost of a checkpoint that fails is that a restart goes further back.
  subroutine checkpoint()
    type(bvk_pending_t) :: pending
    integer :: status, reached
    status = bvk_checkpoint(session, NAME, step, pending)
    if (status == BVK_OK .and. wait_level >= 0) then
      status = bvk_wait(pending, wait_level, reached)
      if (status == BVK_OK .and. rank == 0) print '(a,i0,a,i0)', 'committed version=', step, ' level=', reached
    end if
    if (status /= BVK_OK) write (error_unit, '(a,i0,a,i0,2a)') 'rank ', rank, ': checkpoint ', step, ': ', bvk_error_text()
    status = bvk_release(pending)
  end subroutine

  subroutine check(status, what)
    integer, intent(in) :: status
    character(len=*), intent(in) :: what
    if (status < 0) call fail(what//': '//bvk_status_name(status)//': '//bvk_error_text())
  end subroutine

  ! ------------------------------------------------------------------------------------------------- the physics

  ! The first row of a rank's band, counted from 0.
  function share(part) result(row)
    integer, intent(in) :: part
    integer :: row
    row = int(int(ny, int64)*part/ranks)
  end function

  ! Three warm spots on a plate with poorly conducting bands.
  subroutine start_plate()
    integer :: x, y
    real(real64) :: u, v, along
    allocate (now(0:nx + 1, 0:rows + 1), next(0:nx + 1, 0:rows + 1), conductivity(0:nx + 1, 0:rows + 1))
    now = 0
    conductivity = 0
    do y = 1, rows
      do x = 1, nx
        u = (real(x - 1, real64) + 0.5_real64)/real(nx, real64)
        v = (real(first + y - 1, real64) + 0.5_real64)/real(ny, real64)
        now(x, y) = min((spot(u, v, 0.25_real64, 0.3_real64, 1.0_real64) + spot(u, v, 0.7_real64, 0.2_real64, 0.6_real64)) &
          + spot(u, v, 0.6_real64, 0.75_real64, 0.8_real64), 1.0_real64)*HOTTEST
        along = (u + 0.5_real64*v)*6.0_real64
        if (along - aint(along) < 0.15_real64) then
          conductivity(x, y) = 0.05_real64
        else
          conductivity(x, y) = 0.4_real64 + 0.6_real64*v
        end if
      end do
    end do
    next = now
    call exchange(conductivity)
  end subroutine

  pure function spot(u, v, cx, cy, heat) result(value)
    real(real64), intent(in) :: u, v, cx, cy, heat
    real(real64) :: value
    value = heat/(1.0_real64 + 60.0_real64*((u - cx)*(u - cx) + (v - cy)*(v - cy)))
  end function

  ! Fills the ring around a band: from the neighbours, and at the plate's border, which no heat crosses, from the band itself.
  subroutine exchange(plane)
    real(real64), intent(inout), contiguous :: plane(0:, 0:)
    integer :: north, south
    north = merge(rank - 1, MPI_PROC_NULL, rank > 0)
    south = merge(rank + 1, MPI_PROC_NULL, rank + 1 < ranks)
    plane(1:nx, 0) = plane(1:nx, 1)
    plane(1:nx, rows + 1) = plane(1:nx, rows)
    plane(0, 1:rows) = plane(1, 1:rows)
    plane(nx + 1, 1:rows) = plane(nx, 1:rows)
    call MPI_Sendrecv(plane(1:nx, 1), nx, MPI_DOUBLE_PRECISION, north, 1, plane(1:nx, rows + 1), nx, MPI_DOUBLE_PRECISION, &
      south, 1, world, MPI_STATUS_IGNORE)
    call MPI_Sendrecv(plane(1:nx, rows), nx, MPI_DOUBLE_PRECISION, south, 2, plane(1:nx, 0), nx, MPI_DOUBLE_PRECISION, &
      north, 2, world, MPI_STATUS_IGNORE)
  end subroutine

  ! Takes one explicit step. The rings of both planes must be up to date.
  subroutine advance()
    integer :: x, y
    real(real64) :: here, conducts, flow
    do y = 1, rows
      do x = 1, nx
        here = now(x, y)
        conducts = conductivity(x, y)
        flow = (((conducts + conductivity(x - 1, y))*(now(x - 1, y) - here) &
          + (conducts + conductivity(x + 1, y))*(now(x + 1, y) - here)) &
          + (conducts + conductivity(x, y - 1))*(now(x, y - 1) - here)) &
          + (conducts + conductivity(x, y + 1))*(now(x, y + 1) - here)
        next(x, y) = here + (0.5_real64*RATE)*flow
      end do
    end do
    ! `now` stays where it is: Bivouac knows its address.
    now(1:nx, 1:rows) = next(1:nx, 1:rows)
  end subroutine

  ! Prints the digest of the whole plate, row by row; rank 0 holds the plate for a moment.
  subroutine print_digest()
    real(real64), allocatable :: plate(:), band(:)
    integer :: counts(0:ranks - 1), starts(0:ranks - 1), part
    counts = [(nx*(share(part + 1) - share(part)), part=0, ranks - 1)]
    starts = [(nx*share(part), part=0, ranks - 1)]
    allocate (plate(merge(nx*ny, 0, rank == 0)))
    band = reshape(now(1:nx, 1:rows), [nx*rows])
    call MPI_Gatherv(band, nx*rows, MPI_DOUBLE_PRECISION, plate, counts, starts, MPI_DOUBLE_PRECISION, 0, world)
    if (rank == 0) print '(2a)', 'digest ', digest_of(plate)
  end subroutine

  ! 64-bit FNV-1a over the bytes of doubles, in two halves of 32 bits, because Fortran's integers must not overflow.
  pure function digest_of(cells) result(text)
    real(real64), intent(in) :: cells(:)
    character(len=16) :: text
    integer(int64), parameter :: LOW = int(z'FFFFFFFF', int64)
    integer(int64) :: upper, lower
    integer(int8) :: bytes(8)
    integer :: cell, at
    upper = int(z'CBF29CE4', int64)
    lower = int(z'84222325', int64)
    do cell = 1, size(cells)
      bytes = transfer(cells(cell), bytes)
      do at = 1, 8
        lower = ieor(lower, iand(int(bytes(at), int64), 255_int64))
        ! Times 2**40 + 435.
        upper = 435*upper + ishft(435*lower, -32) + ishft(lower, 8)
        upper = iand(upper, LOW)
        lower = iand(435*lower, LOW)
      end do
    end do
    write (text, '(2z8.8)') upper, lower
    do at = 1, 16
      if (text(at:at) >= 'A') text(at:at) = achar(iachar(text(at:at)) + 32)
    end do
  end function

  ! ----------------------------------------------------------------------------------------- command line and errors

  subroutine read_command_line()
    character(len=:), allocatable :: option, value
    integer :: at, cut
    at = 1
    do while (at < command_argument_count())
      option = argument(at)
      value = argument(at + 1)
      at = at + 2
      select case (option)
      case ('--grid')
        cut = index(value, 'x')
        if (cut == 0) call fail('--grid wants WIDTHxHEIGHT, not '//value)
        nx = int(number(option, value(:cut - 1)))
        ny = int(number(option, value(cut + 1:)))
        if (nx < 1 .or. ny < 1 .or. int(nx, int64)*ny > huge(nx)) call fail('no such grid: '//value)
      case ('--steps')
        steps = number(option, value)
      case ('--every')
        every = number(option, value)
      case ('--dir')
        directory = value
      case ('--die-at')
        cut = index(value, ':')
        die_rank = ranks - 1
        if (cut > 0) die_rank = int(number(option, value(cut + 1:)))
        if (cut == 0) cut = len(value) + 1
        die_step = number(option, value(:cut - 1))
      case ('--wait')
        select case (value)
        case ('process')
          wait_level = BVK_LEVEL_PROCESS
        case ('node-reboot')
          wait_level = BVK_LEVEL_NODE_REBOOT
        case ('node-loss')
          wait_level = BVK_LEVEL_NODE_LOSS
        case ('system')
          wait_level = BVK_LEVEL_SYSTEM
        case default
          call fail('--wait wants process, node-reboot, node-loss or system, not '//value)
        end select
      case default
        call usage()
      end select
    end do
    if (at == command_argument_count()) call usage()
  end subroutine

  subroutine usage()
    call fail('heat2d [--grid NXxNY] [--steps N] [--every N] [--dir FOLDER] [--die-at STEP[:RANK]] [--wait LEVEL]')
  end subroutine

  function argument(at) result(text)
    integer, intent(in) :: at
    character(len=:), allocatable :: text
    integer :: length
    call get_command_argument(at, length=length)
    allocate (character(len=length) :: text)
    call get_command_argument(at, text)
  end function

  function number(option, text) result(value)
    character(len=*), intent(in) :: option, text
    integer(int64) :: value
    integer :: wrong
    value = 0
    read (text, *, iostat=wrong) value
    if (wrong /= 0 .or. verify(text, '0123456789') /= 0) call fail(option//' wants a number, not "'//text//'"')
  end function

  ! Kills this rank, as if from outside: nothing is flushed.
  subroutine die()
    interface
      function getpid() result(process) bind(c)
        import :: c_int
        integer(c_int) :: process
      end function
      function kill(process, signal) result(wrong) bind(c)
        import :: c_int
        integer(c_int), value :: process, signal
        integer(c_int) :: wrong
      end function
    end interface
    if (kill(getpid(), 9_c_int) /= 0) call fail('cannot kill itself')
  end subroutine

  ! Ends all ranks, because the others may be waiting for this one.
  subroutine fail(text)
    character(len=*), intent(in) :: text
    write (error_unit, '(a,i0,2a)') 'rank ', rank, ': ', text
    flush (error_unit)
    call MPI_Abort(world, 1)
    error stop
  end subroutine
end program
