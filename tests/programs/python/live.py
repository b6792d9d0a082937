"""A live array in Python: it is overwritten right after each checkpoint, and is restored as it was at the checkpoint. If the first
argument is "declared", only `session.writing` keeps later writes out. Rank 0 prints "ok" if this held on all ranks, and how the
data was copied."""

import gc
import sys
import weakref

import bivouac
import numpy
from bivouac import Level
from mpi4py import MPI

world = MPI.COMM_WORLD
is_declared = sys.argv[1] == "declared"
ROWS, COLUMNS, VERSIONS = 1024, 771, 6


def raises(kind, words, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except kind as error:
        assert words in str(error), f"{words!r} is not in {error}"
        return
    raise AssertionError(f"{call} did not raise {kind.__name__}")


class Elsewhere:
    """An array like those of CuPy."""

    def __init__(self, base):
        found = base.__array_interface__
        self.base = base
        self.__cuda_array_interface__ = {"shape": found["shape"], "typestr": found["typestr"], "data": found["data"], "version": 3}


def content(version):
    return numpy.arange(ROWS * COLUMNS, dtype="f8").reshape(ROWS, COLUMNS) + 1000003 * version + world.rank


def refusals(session, field):
    raises(bivouac.Error, "call bvk_offload first", session.before_write, field)
    raises(ValueError, "only host memory can be live", session.protect, "field", Elsewhere(field), live=True)
    raises(bivouac.Error, 'no region "field" is protected', session.unprotect, "field")
    raises(bivouac.Error, "call bvk_offload first", session.write_set, "advance", field)


def overwrite(session, field, writes, version, stride):
    """Writes from the last row to the first, because the copy reaches the last row last."""
    if is_declared and version % 2 == 0:
        with session.writing(writes):
            field[::-stride] = -1
        return
    for row in range(ROWS - 1, -1, -stride):
        if is_declared:
            session.before_write(field[row])
        field[row] = -1


def overwritten(session, field):
    session.protect("field", field, live=True)
    session.protect("step", step := numpy.array(0))
    writes = session.write_set("advance", field[: ROWS // 2], field[ROWS // 2 :])
    for version in range(1, VERSIONS + 1):
        field[:], step[...] = content(version), version
        if version % 3:
            pending = session.checkpoint("live", version)
        else:
            with session.begin_checkpoint("live", version) as checkpoint:
                checkpoint.save_protected()
            pending = checkpoint.pending
        # The writes are such that two of the 25 blocks are waited for: above 15 %, the next checkpoints would
        # copy all blocks at once.
        overwrite(session, field, writes, version, 400)
        pending.wait(Level.PROCESS)
        assert session.restore("live").version == version
        assert step == version and (field == content(version)).all()
    stats = session.stats()
    assert stats["live_regions"] + stats["live_at_once"] == VERSIONS, stats
    assert stats["live_bytes"] == stats["live_regions"] * field.nbytes, stats
    assert stats["unaudited"] == (VERSIONS if is_declared else 0) and stats["live_wait_total_s"] >= 0, stats
    session.unprotect("step")
    return [stats[f"live_{name}"] for name in ("regions", "at_once", "waited_bytes", "declared_bytes")]


def kept(session):
    """An array that is being copied lives until the copy has ended, whoever drops it."""

    def taken(version):
        array = content(version)
        session.protect("field", array, live=True)
        return weakref.ref(array), session.checkpoint("live", version)

    def replaced():
        session.protect("field", numpy.zeros((ROWS, COLUMNS)))

    for version, let_go in enumerate((replaced, lambda: session.unprotect("field"), session.unprotect_all), start=20):
        array, pending = taken(version)
        assert array() is not None
        let_go()
        gc.collect()
        assert array() is None
        pending.wait(Level.PROCESS)
        session.protect("field", found := numpy.zeros((ROWS, COLUMNS)))
        assert session.restore("live").version == version
        assert (found == content(version)).all()
    # The array is protected again without `live`, so it is copied at once.
    before = session.stats()
    session.checkpoint("live", 30)
    after = session.stats()
    assert all(before[name] == after[name] for name in ("live_regions", "live_at_once"))


def overwritten_as_a_whole(session, field):
    session.protect("field", field, live=True)
    for version in (41, 42):
        field[:] = content(version)
        pending = session.checkpoint("live", version)
        overwrite(session, field, session.write_set("all", field), version, 1)
        pending.wait(Level.PROCESS)
        assert session.restore("live").version == version
        assert (field == content(version)).all()


def given_up():
    """A session that nobody closes waits for its copies before its arrays are freed."""
    session = bivouac.Session(world, settings={"job.group": "given-up"})
    array = content(1)
    session.protect("field", array, live=True)
    session.checkpoint("live", 1)
    freed = weakref.ref(array)
    del session, array
    gc.collect()
    assert freed() is None
    # For the library, these regions still exist, because nobody has told it otherwise.


session = bivouac.Session(world)
field = numpy.zeros((ROWS, COLUMNS))
refusals(session, field)
counts = overwritten(session, field)
kept(session)
overwritten_as_a_whole(session, field)
session.settle()
session.close()
given_up()
sums = [world.allreduce(count) for count in counts]
if world.rank == 0:
    print("ok")
    print("ranks={} regions={} at_once={} waited={} declared={}".format(world.size, *sums))
