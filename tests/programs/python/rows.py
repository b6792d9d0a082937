"""Rows through the package, and its mistakes: `save` on 3 ranks, then `load` on any number of ranks, or `load-of-c` of what
tests/programs/c/rows.c has saved. tests/mpi_python.rs runs it; rank 0 prints `all right`."""

import sys

import bivouac
import numpy
from bivouac import By, Deal
from mpi4py import MPI

world = MPI.COMM_WORLD
rank, size = world.rank, world.size
COUNTS = [4000, 0, 37]
TOTAL = sum(COUNTS)
PARTICLE = numpy.dtype([("id", "u4"), ("x", "f8")])


def rows(ids):
    """The rows with these numbers."""
    ids = numpy.asarray(ids, "u8")
    particle = numpy.zeros(len(ids), PARTICLE)
    particle["id"], particle["x"] = ids, ids / 7
    x = numpy.sin(ids.astype(float))
    return {"id": ids, "x": x, "v": numpy.outer(ids, [1, 2, 3]).astype("f4"), "up": ids % 2 == 0, "particle": particle}


def check(found, ids):
    expected = rows(ids)
    assert list(found) == list(expected)
    for column, array in expected.items():
        assert found[column].shape == array.shape and (found[column] == array).all(), (rank, column)


def refused(kind, words, function, *arguments):
    try:
        function(*arguments)
    except kind as error:
        assert words in str(error), f"{words!r} is not in {error!r}"
    else:
        raise AssertionError(f"it was taken; expected {words!r}")


class OnGpu:
    def __init__(self, array):
        self.__cuda_array_interface__ = dict(array.__array_interface__, version=3)


def mistakes(session):
    checkpoint = session.begin_checkpoint("wrong", 1)
    x = numpy.zeros(3)
    for kind, words, columns in [
        (TypeError, "a dictionary of arrays", x),
        (ValueError, "different numbers of rows", {"x": x, "y": numpy.zeros(4)}),
        (ValueError, "no dimension that counts rows", {"x": numpy.array(1.0)}),
        (ValueError, "without gaps", {"x": numpy.zeros(6)[::2]}),
        (TypeError, "Python objects", {"x": numpy.array([None])}),
        (TypeError, "on a GPU", {"x": OnGpu(x)}),
        (TypeError, "must be a string", {1: x}),
        (bivouac.RegionError, "no column", {}),
        (bivouac.RegionError, "cannot be the name of a column", {"a/b": x}),
        (bivouac.RegionError, "", {"x": numpy.zeros((3, 0))}),
    ]:
        refused(kind, words, checkpoint.save_rows, "p", columns)
    refused(ValueError, "1 least coordinates, but 2 greatest", checkpoint.save_rows, "p", {"x": x}, ([0], [1, 1]))
    refused(ValueError, "", checkpoint.save_rows, "p", {"x": x}, ([0],))
    refused(bivouac.Error, "more than 8", checkpoint.save_rows, "p", {"x": x}, ([0] * 9, [1] * 9))
    checkpoint.save_rows("p", {"x": x})
    refused(bivouac.RegionError, "p/x", checkpoint.save_rows, "p", {"x": x})
    checkpoint.abort()


def save(session):
    mistakes(session)
    step = numpy.array(5)
    session.protect_shared("step", step)
    first = sum(COUNTS[:rank])
    with session.begin_checkpoint("plasma", 5) as checkpoint:
        checkpoint.save_protected()
        # Only the checkpoint keeps these rows.
        checkpoint.save_rows("electrons", rows(range(first, first + COUNTS[rank])), ([rank, -rank], [rank + 1, rank]))
    checkpoint.pending.wait(bivouac.Level.PROCESS)


def owner(ids):
    return (ids * 7 % 11 % size).astype(int)


def load_all(attempt):
    every = numpy.arange(TOTAL)
    types = {"up": bool, "particle": PARTICLE}
    check(attempt.load_rows("electrons", Deal.EVEN, types), every[TOTAL * rank // size : TOTAL * (rank + 1) // size])
    # The ranges overlap and leave rows out, and one rank wants none.
    some = range(100 * rank, 100 * rank + (2000 if rank else 0))
    check(attempt.load_rows("electrons", some, types), every[some.start : some.stop])
    check(attempt.load_rows("electrons", By("id", owner), types), every[owner(every) == rank])

    def by_speed(v):
        assert v.dtype == "f4" and v.shape[1] == 3 and (v[:, 2] == 3 * v[:, 0]).all()
        return numpy.full(len(v), size - 1, "i2")

    check(attempt.load_rows("electrons", By("v", by_speed), types), every if rank == size - 1 else [])
    # Values without a type of their own are loaded as bytes.
    bare = attempt.load_rows("electrons", Deal.EVEN)
    assert bare["particle"].dtype == "V12" and bare["up"].dtype == "u1"
    if size == len(COUNTS):
        first = sum(COUNTS[:rank])
        check(attempt.load_rows("electrons", Deal.OWN, types), every[first : first + COUNTS[rank]])
    parts = attempt.parts("electrons")
    assert parts == [bivouac.RowsPart(count, [(old, old + 1), (-old, old)]) for old, count in enumerate(COUNTS)]
    asked = min(rank, 2)
    assert attempt.parts("electrons", 1, asked) == parts[1 : 1 + asked]


def load(session):
    restart = session.begin_restore("plasma")
    for attempt in restart:
        with attempt:
            load_all(attempt)
    assert restart.restored.version == 5 and restart.restored.ranks == len(COUNTS)

    def ends(words, how, dtypes=None, name="electrons", kind=bivouac.RestartError):
        refused(kind, words, session.begin_restore("plasma").run, lambda attempt: attempt.load_rows(name, how, dtypes))

    ends("neutrons", Deal.EVEN, name="neutrons")
    ends(f"there are only {TOTAL}", range(0, TOTAL + 1))
    ends("", range(0, 4, 2))
    ends("", 7)
    ends("", By("y", owner))
    ends("", Deal.EVEN, {"x": "f4"})
    ends("", Deal.EVEN, {"x": object})
    for wrong in [lambda ids: ids[:-1], lambda ids: ids / 2, lambda ids: -ids - 1, lambda ids: ids + 2**40, lambda ids: 1 // 0]:
        ends("given to no rank", By("id", wrong))
    ends(f"given to rank {size}", By("id", lambda ids: numpy.full(len(ids), size)))
    # The error also contains this rank's reason.
    try:
        session.begin_restore("plasma").run(lambda attempt: attempt.load_rows("electrons", By("id", lambda ids: 1 // 0)))
    except bivouac.RestartError as error:
        causes = world.allgather(isinstance(error.__cause__, ZeroDivisionError))
        assert any(causes)


def load_of_c(session):
    def attempt_of_c(attempt):
        found = attempt.load_rows("electrons", By("id", lambda ids: ids % numpy.uint64(size)))
        assert list(found) == ["id", "x", "v", "tag"]
        assert (found["id"] == numpy.arange(rank, 5000 + 37 + 90000, size)).all()
        assert (found["v"] == (found["id"] % 1000)[:, None] + numpy.array([0, 0.25, 0.5], "f4")).all()
        assert (found["x"] == found["id"] * 2654435761 % 1000003 / 1000003.0).all()
        tables = attempt.parts("table")
        assert tables == [bivouac.BoxesPart((4, 3), [((old, 0), (1, 3))]) for old in range(4)]

    session.begin_restore("plasma").run(attempt_of_c)


with bivouac.Session(world) as session:
    {"save": save, "load": load, "load-of-c": load_of_c}[sys.argv[1]](session)
if rank == 0:
    print("all right")
