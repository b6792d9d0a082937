"""Restarts on another number of ranks through the package, and its mistakes: `save` on 3 ranks, then `load` on others.
tests/mpi_python.rs runs it; rank 0 prints `all right`."""

import sys

import bivouac
import numpy
from bivouac import OnResize
from mpi4py import MPI

NY, NX = 23, 17
world = MPI.COMM_WORLD
rank, size = world.rank, world.size
first, last = NY * rank // size, NY * (rank + 1) // size


def cells():
    return numpy.arange(NY)[first:last, numpy.newaxis] * 1000.0 + numpy.arange(NX)[numpy.newaxis, :]


def refused(kind, words, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kind as error:
        assert words in str(error), f"{words!r} is not in {error!r}"
        assert type(error).__module__ in ("bivouac", "builtins"), f"a traceback names it as {type(error).__module__}"
    else:
        raise AssertionError(f"it was taken; expected {words!r}")


class OnGpu:
    def __init__(self, array):
        self.__cuda_array_interface__ = dict(array.__array_interface__, version=3)


def cut(session):
    """Bands of rows with more ghost cells after a row than before it; and rows in turn, each in an array of its own."""
    bands = session.boxes((NY, NX), own=((first, 0), (last - first, NX)), halo=(1, 1), behind=(1, 2))
    assert bands.shapes == [(last - first + 2, NX + 3)]
    # Rank 0 owns no rows.
    mine = range(rank, NY) if size == 1 else range(rank - 1, NY, size - 1) if rank else []
    turns = session.boxes((NY, NX), own=[((row, 0), (1, NX)) for row in mine])
    rows = [numpy.zeros((1, NX), numpy.int16) for _ in mine] or numpy.zeros(0, numpy.int16)
    return bands, numpy.full(bands.shapes[0], -1.0), turns, rows, list(mine)


def mistakes(session, bands, band):
    # The package finds a mistake: the other ranks hear of it, and the next call is in step.
    if rank == 1:
        refused(ValueError, "has 1 numbers", session.boxes, (NY, NX), own=((0,), (1, 1)))
    else:
        refused(bivouac.Error, "rank 1", session.boxes, (NY, NX), own=())
    refused(bivouac.Error, "belong to no rank", session.boxes, (NY, NX))
    refused(bivouac.Error, "belong both to box 0 of rank", session.boxes, (NY, NX), own=((0, 0), (NY, NX)))
    for wrong in [(), (1,) * 9]:
        refused(ValueError, "use 1 to 8 dimensions", session.boxes, wrong)
    refused(ValueError, "negative", session.boxes, (NY, NX), own=((0, 0), (NY, NX)), halo=-1)
    refused(TypeError, "integer", session.boxes, (NY, NX), own=((0, 0), (NY, 1.5)))
    session.boxes((NY, NX), sparse=True).close()
    refused(ValueError, "with ghost cells", session.protect_on, "t", bands, band[1:-1, 1:-2].copy())
    refused(ValueError, "without gaps", session.protect_on, "t", bands, band.T.copy().T)
    refused(ValueError, "2 arrays, but this rank owns 1", session.protect_on, "t", bands, [band, band])
    refused(ValueError, "no array", session.protect_on, "t", bands, [])
    refused(TypeError, "on a GPU", session.protect_shared, "t", OnGpu(band))
    refused(TypeError, "a result of Session.boxes or Session.ids", session.protect_on, "t", None, band)
    refused(ValueError, "9 is not a valid OnResize", session.protect_per_rank, "t", band, 9)
    refused(bivouac.RegionError, "may have at most", session.protect_shared, "t", numpy.zeros(1 << 17))


VERTICES = 501
mine_of_mesh = numpy.arange(VERTICES)[::-1][numpy.arange(VERTICES)[::-1] * 7 % 11 % size == rank]


def wrong_lists(session):
    refused(bivouac.Error, "in no rank's list", session.ids, VERTICES, own=mine_of_mesh[1:])
    refused(bivouac.Error, "number 501, at index", session.ids, VERTICES, own=[*mine_of_mesh.tolist(), VERTICES])
    for wrong, kind, words in [([1.5], TypeError, "integer"), ([-1], ValueError, "negative"), (numpy.zeros((2, 2), int), ValueError, "2 dimensions")]:
        # The other ranks hear of the mistake.
        if rank == 1:
            refused(kind, words, session.ids, VERTICES, own=wrong)
        else:
            refused(bivouac.Error, "rank 1: numbers is NULL", session.ids, VERTICES, own=mine_of_mesh)
    refused(ValueError, "cannot have", session.ids, -1)
    session.ids(VERTICES, sparse=True).close()


def save_mesh(session):
    wrong_lists(session)
    # The list may have any integer type.
    vertices = session.ids(VERTICES, own=mine_of_mesh.astype(numpy.int32))
    refused(ValueError, "the array has shape", session.protect_on, "p", vertices, numpy.zeros(len(mine_of_mesh) + 1))
    with session.begin_checkpoint("mesh", 1) as checkpoint:
        checkpoint.save_on("pressure", vertices, mine_of_mesh * 0.5)
    checkpoint.pending.wait(bivouac.Level.PROCESS)


def load_mesh(session):
    vertices, pressure = session.ids(VERTICES, own=mine_of_mesh), numpy.zeros(len(mine_of_mesh))

    def attempt_of_mesh(attempt):
        parts = attempt.parts("pressure")
        assert all(part.total == VERTICES for part in parts) and sum(part.count for part in parts) == VERTICES
        attempt.load_on("pressure", vertices, pressure)

    session.begin_restore("mesh").run(attempt_of_mesh)
    assert (pressure == mine_of_mesh * 0.5).all()


def save(session):
    save_mesh(session)
    bands, band, turns, rows, mine = cut(session)
    mistakes(session, bands, band)
    if len(mine) > 1:
        refused(TypeError, "others in host memory", session.protect_on, "t", turns, [OnGpu(rows[0]), *rows[1:]])
    band[1:-1, 1:-2] = cells()
    for row, array in zip(mine, rows):
        array[:] = row
    step, seed = numpy.array(5), numpy.array([rank * 10, size])
    session.protect_on("band", bands, band)
    session.protect_on("rows", turns, rows)
    session.protect_shared("step", step)
    session.protect_per_rank("seed", seed, OnResize.ASK)
    session.checkpoint("protected", 5).wait(bivouac.Level.PROCESS)
    with session.begin_checkpoint("saved", 6) as checkpoint:
        checkpoint.save_on("band", bands, band)
        checkpoint.save_on("rows", turns, rows)
        checkpoint.save_shared("step", step)
        checkpoint.save_per_rank("seed", seed, OnResize.ASK)
        step += 1
    checkpoint.pending.wait(bivouac.Level.PROCESS)


def check(band, rows, mine):
    assert (band[1:-1, 1:-2] == cells()).all()
    assert (band[0] == -1).all() and (band[-1] == -1).all() and (band[:, 0] == -1).all() and (band[:, -2:] == -1).all()
    assert all((array == row).all() for row, array in zip(mine, rows))


def load(session):
    load_mesh(session)
    bands, band, turns, rows, mine = cut(session)
    step, seed = numpy.array(0), numpy.array([-1, -1])
    session.protect_on("band", bands, band)
    session.protect_on("rows", turns, rows)
    session.protect_shared("step", step)
    session.protect_per_rank("seed", seed, OnResize.ASK)
    assert session.restore("protected").ranks == 3
    check(band, rows, mine)
    assert step == 5 and seed.tolist() == ([rank * 10, 3] if size == 3 else [-1, -1])

    band.fill(-1)
    for array in rows:
        array.fill(0)
    step.fill(0)
    restart = session.begin_restore("saved")
    for attempt in restart:
        with attempt:
            assert attempt.saved_ranks == 3
            attempt.load_on("band", bands, band)
            attempt.load_on("rows", turns, rows)
            attempt.load_shared("step", step)
            seeds = numpy.zeros((3 if rank else 0, 2), int)
            attempt.of_ranks("seed", 0, seeds)
            if size == 3:
                attempt.load_per_rank("seed", seed)
    assert restart.restored.version == 6 and step == 5
    check(band, rows, mine)
    assert seeds.tolist() == ([[0, 3], [10, 3], [20, 3]] if rank else [])

    def other_array(attempt):
        attempt.load_on("band", wide, numpy.zeros(wide.shapes[0]))

    wide = session.boxes((NY, NX + 1), own=((first, 0), (last - first, NX + 1)))
    refused(bivouac.RestartError, "of an array of shape [23, 17], not [23, 18]", session.begin_restore("saved").run, other_array)

    def wrong_on_one_rank(attempt):
        attempt.load_on("band", bands, band if rank else band[1:])

    refused(bivouac.RestartError, "rank 0", session.begin_restore("saved").run, wrong_on_one_rank)


def load_of_c(session):
    """Loads the checkpoint that tests/programs/c/elastic.c has saved on 4 ranks."""
    bands, band, _, _, _ = cut(session)
    step, seeds = numpy.zeros(1, numpy.uint64), numpy.zeros((4, 2), numpy.uint64)

    def attempt_of_c(attempt):
        assert attempt.saved_ranks == 4
        attempt.load_on("rows", bands, band)
        attempt.load_shared("step", step)
        attempt.of_ranks("seed", 0, seeds)

    session.begin_restore("saved").run(attempt_of_c)
    check(band, [], [])
    assert step.tolist() == [9] and seeds.tolist() == [[rank * 10, 4] for rank in range(4)]


with bivouac.Session(world) as session:
    {"save": save, "load": load, "load-of-c": load_of_c}[sys.argv[1]](session)
if rank == 0:
    print("all right")
