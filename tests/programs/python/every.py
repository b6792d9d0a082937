"""Calls every method once, and checks its promises; rank 0 prints "all right" if all of them held on all ranks."""

import array
import gc
import io
import os
import pickle
import sys
import tempfile
import weakref

import bivouac
import numpy
from bivouac import Level
from mpi4py import MPI

world = MPI.COMM_WORLD
last = world.size - 1


def raises(kind, words, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except kind as error:
        assert words in str(error), f"{words!r} is not in {error}"
        return error
    raise AssertionError(f"{call} did not raise {kind.__name__}")


class Elsewhere:
    """An array like those of CuPy; its memory is on the host if there is no GPU."""

    def __init__(self, base):
        self.base = base
        found = base.__array_interface__
        self.__cuda_array_interface__ = {"shape": found["shape"], "typestr": found["typestr"], "data": found["data"], "version": 3}


class Described:
    """Memory that only an array interface describes; by default, two doubles."""

    def __init__(self, **more):
        self.__array_interface__ = {"shape": (2,), "typestr": numpy.dtype("f8").str, "version": 3, **more}


def opening():
    error = raises(bivouac.OpenError, "memory.budget", bivouac.Session, world, settings={"memory.bugdet": "1 MiB"})
    assert error.status == -4 and error.name == "BVK_ERR_OPEN"
    raises(bivouac.OpenError, "choose one", bivouac.Session, world, config_file="/nowhere", config_text="")
    text = '[job]\ngroup = "first"\n'
    session = bivouac.Session(world, config_text=text, settings={"memory.budget": "64 MiB", "local.allow_tmpfs": True})
    assert session.generation >= 1
    session.pin(bivouac.Pin.LAUNCHER)
    session.set_affinity(bivouac.Affinity.CAPTURE)
    session.set_stream(0)
    session.prepare(4096)
    session.progress()
    raises(bivouac.Error, "BVK_ERR_ARGUMENT", bivouac.log, 9)
    return session


def all_types():
    regions = {name: numpy.arange(6, dtype=name).reshape(2, 3) for name in (
        "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16")}
    regions["bool"] = numpy.array([True, False])
    regions["record"] = numpy.array([(1, 2.5), (3, 4.5)], dtype=[("id", "i4"), ("weight", "f8")])
    regions["text"] = numpy.array(["ab", "c"])
    regions["time"] = numpy.array(["2024-02-29"], dtype="M8[s]")
    regions["scalar"] = numpy.array(7)
    regions["empty"] = numpy.zeros((0, 3))
    regions["buffer"] = array.array("d", [1.5, 2.5])
    regions["bytes"] = bytearray(b"abc")
    return regions


def clear(region):
    if isinstance(region, (bytearray, array.array)):
        region[:] = type(region)(*([region.typecode] if isinstance(region, array.array) else []), [0] * len(region))
    else:
        region[...] = numpy.zeros((), region.dtype)


def protected_regions(session):
    regions, wanted = all_types(), all_types()
    for name, region in regions.items():
        session.protect(name, region)
    far = numpy.full(5, float(world.rank))
    session.protect("far", Elsewhere(far))
    pending = session.checkpoint("series", 1)
    for region in regions.values():
        clear(region)
    far[:] = -1
    assert pending.wait(Level.SYSTEM) is Level.SYSTEM and pending.level is Level.SYSTEM
    pending.poll()
    pending.release()
    raises(bivouac.Error, "BVK_ERR_HANDLE", pending.poll)
    restored = session.restore("series")
    assert restored.version == 1 and restored.bytes > 300 and restored.level in Level
    for name, region in regions.items():
        assert numpy.array_equal(region, wanted[name]), name
    assert (far == world.rank).all()
    session.checkpoint("series", numpy.int64(2))
    assert session.restore("series", 1).version == 1
    assert session.versions("series") == [2, 1]
    assert session.restore("another") is None
    raises(ValueError, "not a version", session.checkpoint, "series", -1)
    raises(TypeError, "float", session.checkpoint, "series", 1.5)
    raises(TypeError, "float", session.restore, "series", 1.0)
    raises(TypeError, "a name must be a string", session.unprotect, 7)
    session.unprotect("u1")
    raises(bivouac.Error, "u1", session.unprotect, "u1")
    session.unprotect_all()


def refusals(session):
    field = numpy.zeros((4, 6))
    raises(ValueError, "C order", session.protect, "x", field[:, 1:3])
    raises(ValueError, "C order", session.protect, "x", field.T)
    session.protect("x", field[1:3])
    session.protect("x", field[:1, ::1])
    frozen = numpy.zeros(3)
    frozen.flags.writeable = False
    raises(ValueError, "read-only", session.protect, "x", frozen)
    raises(TypeError, "a value, not an array", session.protect, "x", numpy.float64(1))
    raises(TypeError, "Python objects", session.protect, "x", numpy.array([None]))
    raises(TypeError, "mask", session.protect, "x", numpy.ma.array([1.0, 2.0], mask=[True, False]))
    raises(TypeError, "byte order", session.protect, "x", numpy.zeros(2, ">f8"))
    raises(TypeError, "neither an array nor a buffer", session.protect, "x", 3)
    raises(ValueError, "read-only", session.protect, "x", b"abc")
    raises(bivouac.RegionError, "", session.protect, "", field)
    session.unprotect_all()


def interfaces(session):
    """The data of an array interface is an address with a flag, or a buffer; two bytes are a buffer."""
    raises(ValueError, "read-only", session.protect, "x", Described(data=b"\1\0"))
    raises(ValueError, "has 2", session.protect, "x", Described(data=bytearray(b"\1\0")))
    raises(TypeError, "neither an array nor a buffer", session.protect, "x", Described(data=[4096, False]))
    raises(TypeError, "neither an array nor a buffer", session.protect, "x", Described())
    for data in ((4096,), ("4096", False), (True, False), (-8, False), (None, False)):
        raises(TypeError, "not a pair of an address", session.protect, "x", Described(data=data))
    raises(ValueError, "read-only", session.protect, "x", Described(data=(4096, True)))
    raises(ValueError, "from byte 1 on", session.protect, "x", Described(data=bytearray(16), offset=1))
    raises(ValueError, "from byte -8 on", session.protect, "x", Described(data=bytearray(16), offset=-8))
    raises(ValueError, "negative", session.protect, "x", Described(data=bytearray(16), shape=(-1,)))
    far = Elsewhere(numpy.zeros(2))
    far.__cuda_array_interface__["data"] = bytearray(16)
    raises(TypeError, "not an address", session.protect, "x", far)
    data = bytearray(numpy.array([0.0, 1.5, 2.5]).tobytes())
    session.protect("described", Described(data=data, offset=8))
    # The owner of the array interface is gone by now, but its buffer must not move.
    gc.collect()
    raises(BufferError, "", data.extend, bytes(1 << 20))
    session.checkpoint("described", 1)
    data[:] = bytes(24)
    session.restore("described")
    assert list(numpy.frombuffer(data)) == [0.0, 1.5, 2.5]
    session.unprotect_all()


def references(session):
    """A protected array is not freed, and an array that is no longer protected is."""
    field = numpy.zeros(1000)
    alive = weakref.ref(field)
    session.protect("field", field)
    del field
    gc.collect()
    assert alive() is not None
    session.protect("field", numpy.zeros(10))
    gc.collect()
    assert alive() is None
    session.unprotect_all()


def put_together(session):
    field = numpy.full((3, 5), 20.0 + world.rank)
    kept = numpy.arange(4)
    session.protect("kept", kept)
    with session.begin_checkpoint("made", 5) as checkpoint:
        checkpoint.save_protected()
        checkpoint.save("field", field)
        frozen = numpy.zeros(2)
        frozen.flags.writeable = False
        checkpoint.save("frozen", frozen)
        raises(bivouac.RegionError, "field", checkpoint.save, "field", field)
        raises(ValueError, "C order", checkpoint.save, "columns", field[:, :2])
        checkpoint.hold()
        field[:] = -1
    checkpoint.pending.wait(Level.SYSTEM)
    raises(bivouac.Error, "BVK_ERR_HANDLE", checkpoint.capture)
    try:
        with session.begin_checkpoint("made", 6):
            raise KeyError("the application's own")
    except KeyError:
        pass
    session.begin_checkpoint("made", 7).abort()
    reports = [report for report in session.reports() if report.name == "made" and report.version == 5]
    assert reports and all(report.committed for report in reports), reports
    assert session.versions("made") == [5]

    restart = session.begin_restore("made")
    for attempt in restart:
        with attempt:
            assert attempt.version == 5 and attempt.count("field") == 15
            attempt.load_protected()
            field[:] = 0
            attempt.load("field", field)
    assert restart.restored.version == 5 and (field == 20.0 + world.rank).all()
    session.unprotect_all()


def captured_later(session):
    """A capture that an open restart refuses keeps the saved regions for the capture after the restart."""
    field, read = numpy.full(1000, 3.0 + world.rank), numpy.zeros(15)
    alive = weakref.ref(field)
    checkpoint = session.begin_checkpoint("late", 1)
    checkpoint.save("field", field)
    del field
    for attempt in session.begin_restore("made"):
        with attempt:
            raises(bivouac.Error, "BVK_ERR_STATE", checkpoint.capture)
            attempt.load("field", read)
    gc.collect()
    assert alive() is not None
    checkpoint.capture().wait(Level.SYSTEM)
    gc.collect()
    assert alive() is None
    field = numpy.zeros(1000)
    assert session.begin_restore("late").run(lambda attempt: attempt.load("field", field)).version == 1
    assert (field == 3.0 + world.rank).all()


def attempts(session):
    """The last rank cannot use the newest version: all ranks load again, and finally get the previous one."""
    number = numpy.array(0)
    session.protect("number", number)
    for version in (1, 2):
        number[...] = 10 * version
        session.checkpoint("tried", version)
    seen = []

    def load(attempt):
        seen.append(attempt.version)
        attempt.load("number", number)
        if world.rank == last and attempt.version == 2:
            attempt.reject("the application cannot use it")

    restored = session.begin_restore("tried").run(load)
    assert restored.version == 1 and number == 10 and seen == [2, 1], (restored, seen)
    assert session.begin_restore("nobody").run(load) is None

    # Without `with`, a body has loaded everything when it reaches its end.
    restart = session.begin_restore("tried", 2)
    for attempt in restart:
        attempt.load("number", number)
    assert restart.restored.version == 2 and number == 20

    # A mistake on all ranks ends the restart, and all ranks get it as the error.
    def mistaken(attempt):
        attempt.load("another", number)

    raises(bivouac.RestartError, "another", session.begin_restore("tried").run, mistaken)
    assert session.restore("tried").version == 2
    session.unprotect_all()


def streams(session):
    """Data that other libraries write to a file becomes a region."""
    tree = {"rank": world.rank, "leaves": [{"at": at, "text": "x" * at} for at in range(500)]}
    field = numpy.arange(3_000_000, dtype="f8").reshape(3, -1) + world.rank
    text = b"".join(b"line %d\n" % at for at in range(100_000 + world.rank))
    with session.begin_checkpoint("streams", 1) as checkpoint:
        with checkpoint.open("tree") as file:
            pickle.dump(tree, file)
            raises(bivouac.Error, "another region", checkpoint.open, "second")
        with checkpoint.open("field") as file:
            numpy.save(file, field)
        with checkpoint.open("text") as file:
            for at in range(0, len(text), 777):
                file.write(text[at : at + 777])
        with checkpoint.open("none"):
            pass
        checkpoint.save("number", numpy.array([world.rank]))
    checkpoint.pending.wait(bivouac.Level.PROCESS)

    found = {}

    def load(attempt):
        with attempt.open("tree") as file:
            found["tree"] = pickle.load(file)
        with attempt.open("field") as file:
            found["field"] = numpy.load(file)
        with attempt.open("text") as file:
            found["lines"] = sum(1 for _ in file)
            file.seek(-len(b"line 99999\n"), io.SEEK_END)
            found["last"] = file.read()
            file.seek(5)
            found["first"] = file.read(1)
        with attempt.open("none") as file:
            found["none"] = file.read()
        # Any array can be read as a file of its bytes.
        with attempt.open("number") as file:
            found["number"] = int.from_bytes(file.read(), sys.byteorder)
        raises(bivouac.LoadError, "nobody", attempt.open, "nobody")

    assert session.begin_restore("streams").run(load).version == 1
    assert found["tree"] == tree and (found["field"] == field).all() and found["none"] == b"" and found["number"] == world.rank
    assert found["lines"] == 100_000 + world.rank and found["first"] == b"0" and text.endswith(found["last"]), found["lines"]
    # A file that is still open is not a region: the capture is refused, and the next checkpoint is taken.
    checkpoint = session.begin_checkpoint("streams", 2)
    file = checkpoint.open("open")
    raises(bivouac.Error, "still being written", checkpoint.capture)
    raises(bivouac.Error, "", file.close)
    with session.begin_checkpoint("streams", 3) as checkpoint, checkpoint.open("last") as file:
        file.write(b"z")
    assert session.begin_restore("streams").run(lambda attempt: attempt.open("last").read() == b"z" or 1 / 0).version == 3


def files(session):
    """Files that the program writes itself are regions, and files that grow with each checkpoint are cut back to their earlier lengths."""
    with session.begin_checkpoint("files", 1) as checkpoint:
        path = checkpoint.route("out/dump.npy")
        numpy.save(path, numpy.arange(1000) * world.rank)
        assert checkpoint.route("out/dump.npy") == path
        checkpoint.save("number", numpy.array([world.rank]))
        raises(bivouac.RegionError, "twice", checkpoint.route, "number")
    checkpoint.pending.wait(bivouac.Level.PROCESS)
    assert not os.path.exists(path)
    found = {}

    def load(attempt):
        found["path"] = attempt.route("out/dump.npy")
        found["dump"] = numpy.load(found["path"])
        raises(bivouac.LoadError, "nobody", attempt.route, "nobody")

    assert session.begin_restore("files").run(load).version == 1
    assert (found["dump"] == numpy.arange(1000) * world.rank).all() and not os.path.exists(found["path"])

    with tempfile.TemporaryDirectory() as folder:
        own = os.path.join(folder, "energy.csv") if world.rank == last else None
        raises(ValueError, "7", session.companion, "energies", own, 7)
        energies = session.companion("energies", own, bivouac.OnRestart.ANOTHER)
        assert energies.path == own
        for version in [1, 2]:
            if own:
                with open(own, "a") as file:
                    file.write(f"step {version}\n")
            with session.begin_checkpoint("energies", version) as checkpoint:
                checkpoint.save("number", numpy.array([world.rank]))
            checkpoint.pending.wait(bivouac.Level.PROCESS)
        assert session.begin_restore("energies").run(lambda attempt: None).version == 2 and energies.path == own
        assert session.begin_restore("energies", 1).run(lambda attempt: None).version == 1
        if own:
            assert energies.path == os.path.join(folder, "energy.part0002.csv"), energies.path
            with open(own) as file:
                assert file.read() == "step 1\nstep 2\n"


def ended_by_one(session):
    """Whatever one rank does in its attempts, no other rank waits for it, and the next restart begins anew."""
    number = numpy.array(0)

    # The last rank has too little memory: the restart ends on all ranks, with that reason.
    def short(attempt):
        attempt.load("number", number)
        if world.rank == last:
            raise MemoryError("too little for this rank")

    restart = session.begin_restore("tried")
    raises(RuntimeError, "has not ended", getattr, restart, "restored")
    error = raises(bivouac.RestartError, "", restart.run, short)
    assert isinstance(error.__cause__, MemoryError) == (world.rank == last)
    assert raises(bivouac.RestartError, "", getattr, restart, "restored") is error

    # The same happens in a body without `with`, which the exception leaves.
    def bare():
        for attempt in session.begin_restore("tried"):
            short(attempt)

    raises(MemoryError if world.rank == last else bivouac.RestartError, "", bare)

    # The last rank leaves the loop when another attempt is due.
    def leaving():
        restart = session.begin_restore("tried")
        for attempt in restart:
            with attempt:
                attempt.load("number", number)
                if world.rank == 0:
                    attempt.reject("the application cannot use it")
            if world.rank == last:
                break
        return restart.restored

    raises(bivouac.RestartError, "", leaving)

    # The last rank leaves inside the attempt, before anything is loaded.
    def left():
        restart = session.begin_restore("tried")
        for attempt in restart:
            with attempt:
                if world.rank == last:
                    break
                attempt.load("number", number)
        return restart.restored

    raises(bivouac.RestartError, "", left)
    assert session.begin_restore("tried").run(lambda attempt: attempt.load("number", number)).version == 2 and number == 20


def decisions(session):
    assert session.should_checkpoint() in (True, False)
    assert session.should_exit() is False
    stats = session.stats()
    assert stats["stored_bytes"] <= stats["reduced_bytes"] and stats["looked_on_device"] == stats["look_total_s"] == 0, stats
    assert stats["compressed_from"] >= stats["compressed_to"] >= 0 and stats["compress_total_s"] >= 0, stats
    assert stats["captured"] >= 5 and stats["blocked_total_s"] > 0 and session.level_stats(Level.SYSTEM)["committed"] >= 1, stats


def past(session):
    wave = numpy.zeros((4, 4))
    with session.history("shot", keep=bivouac.Keep.ALL) as history:
        history.field("wave", wave)
        for version in range(1, 5):
            wave[:] = version
            history.append(version)
        history.hint([4, 2])
        history.start_prefetch()
        history.restore(2)
        assert (wave == 2).all()
        raises(bivouac.DeviceError, "9", history.restore, 9)
        history.wait_flushed()
        with session.begin_checkpoint("shots", 1) as checkpoint:
            checkpoint.save_history(history)
            checkpoint.reduce("nothing of that name", "auto")
            raises(bivouac.Error, "BVK_ERR_ARGUMENT", checkpoint.reduce, "nothing of that name", "none")
        history.clear_fields()
    raises(bivouac.Error, "BVK_ERR_HANDLE", history.append, 5)
    again = session.history("shot", keep=bivouac.Keep.ALL)
    again.field("wave", wave)
    counts = []
    session.begin_restore("shots").run(lambda attempt: counts.append(attempt.load_history(again)))
    assert counts[-1] == 4
    again.restore(3)
    assert (wave == 3).all()
    again.close()


def offloading(session):
    """Without a GPU, every call is accepted, and nothing is marked."""
    field, row = numpy.full((4, 5), 40.0), numpy.zeros(3)
    far = Elsewhere(field)
    session.unprotect_all()
    session.settle()
    raises(bivouac.Error, "call bvk_offload first", session.before_write, field)
    raises(bivouac.Error, "call bvk_offload first", session.write_set, "advance", field)
    assert raises(bivouac.Error, "call bvk_offload first", session.allow_marks).name == "BVK_ERR_STATE"
    raises(bivouac.Error, "there is no GPU -7", session.offload, gpu=-7)
    session.offload(1 << 20)
    raises(bivouac.Error, "already offloads BVK_NO_GPU", session.offload, gpu=0)
    session.protect("field", far)
    taken = session.checkpoint("not marked", 1)
    writes = session.write_set("advance", field, far, row)
    with session.writing(field, far, field[1:-1, ::2], field[::-1], numpy.zeros((0, 3)), bytearray(7), writes):
        field[:] = -1
    with session.writing(writes, row, stream=0):
        row[:] = 1
    taken.wait(Level.PROCESS)
    session.restore("not marked")
    assert (field == 40).all()
    session.settle()
    session.allow_marks()
    assert all(session.stats()[name] == 0 for name in ("marks", "marks_refused", "marked_bytes", "mark_waits", "mark_wait_total_s"))
    raises(TypeError, "neither an array nor a buffer", session.before_write, 7)
    raises(TypeError, "a name must be a string", session.write_set, 7, field)
    writes.close()
    writes.close()
    raises(bivouac.Error, "BVK_ERR_HANDLE", writes.before)
    session.unprotect_all()
    covering()


def covering():
    """The range to which a view may write: from its first element to its last."""
    covered = bivouac._memory.covered
    field = numpy.zeros((6, 8))
    start = field.ctypes.data
    assert covered("", field) == (start, 384)
    assert covered("", field[1:3]) == (start + 64, 128)
    assert covered("", field[1:-1, 1:-1]) == (start + 8 * 9, 8 * (4 * 8 - 2))
    assert covered("", field[::-1, ::-1]) == (start, 384) and covered("", field.T) == (start, 384)
    assert covered("", field[::2, 3]) == (start + 8 * 3, 8 * 33)
    assert covered("", field[2:2])[1] == 0 and covered("", field[2:2, ::2]) == (None, 0)
    records = numpy.zeros(5, dtype=[("id", "i4"), ("weight", "f8")])
    assert covered("", records[1::2]) == (records.ctypes.data + 12, 36) and covered("", records["weight"])[1] == 4 * 12 + 8


def tier_that_is_off():
    """A directory that cannot be used: a report without a name says so, and so does a wait for the level that cannot be reached."""
    with bivouac.Session(world, settings={"job.group": "off", "global.directory": "/proc/nope"}) as session:
        [report] = session.reports()
        assert report[:4] == ("", 0, Level.SYSTEM, False) and "/proc/nope" in report.reason, report
        session.protect("numbers", numpy.zeros(8))
        pending = session.checkpoint("off", 1)
        error = raises(bivouac.NotCommittedError, "/proc/nope", pending.wait, Level.SYSTEM)
        assert error.name == "BVK_ERR_NOT_COMMITTED"


session = opening()
for test in (protected_regions, refusals, interfaces, references, put_together, captured_later, attempts, streams, files, ended_by_one, decisions, past, offloading):
    test(session)
session.close()
session.close()
raises(bivouac.Error, "BVK_ERR_HANDLE", session.unprotect_all)
with bivouac.Session(world.py2f(), settings={"job.group": "second"}) as second:
    assert second.versions("series") == []
raises(bivouac.Error, "BVK_ERR_HANDLE", second.progress)
tier_that_is_off()
assert bivouac.__version__ == bivouac.version()
world.Barrier()
if world.rank == 0:
    print("all right")
