"""Sessions and what is made from them."""

import contextlib
import ctypes
import enum
import math
import operator
import os
import weakref
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
from typing import NamedTuple

from . import _library
from ._boxes import Described, Listed, OnBoxes, OnResize, agreed, on_host
from ._library import AGAIN, NEWEST, NO_GPU, NOTHING, LoadError, RestartError, call, sized
from ._memory import SIZES, covered, memory
from ._rows import Described as DescribedRows
from ._rows import loaded, parts
from ._streams import Reader, Writer


class Level(enum.IntEnum):
    """What a checkpoint survives."""

    #: The application's next write, and nothing else.
    CAPTURED = 0
    #: Killed processes: it is in node memory.
    PROCESS = 1
    #: A reboot of the node: it is on node-local storage.
    NODE_REBOOT = 2
    #: The loss of a node: copies or parity are on other nodes.
    NODE_LOSS = 3
    #: The loss of all nodes: it is on the parallel file system.
    SYSTEM = 4


class Pin(enum.IntEnum):
    """Where :meth:`Session.pin` puts threads."""

    #: Where the launcher bound them.
    LAUNCHER = 0
    #: The threads of each rank on that rank's share of neighbouring cores.
    COMPACT = 1
    #: The same, but with the threads in turn on the share's NUMA nodes or caches.
    SCATTER = 2


class Affinity(enum.IntEnum):
    """Which parts of the affinity a restart brings back."""

    FULL = 0
    THREADS = 1
    PAGES = 2
    #: Neither threads nor pages.
    CAPTURE = 3


class Keep(enum.IntEnum):
    """How long a history keeps its versions."""

    #: Until they have been restored and no further hint names them.
    UNTIL_READ = 0
    #: Until the history is closed.
    ALL = 1


class OnRestart(enum.IntEnum):
    """What a restart does with a companion that is longer than the length that the restored checkpoint recorded."""

    #: The restart truncates the file to that length.
    TRUNCATE = 0
    #: The restart ends with an error on all ranks, and the file stays unchanged.
    REFUSE = 1
    #: The file stays unchanged, and the program continues in another one (:attr:`Companion.path`).
    ANOTHER = 2


class Restored(NamedTuple):
    """What a restart restored: the version, the run that took it, the bytes that this rank read, the seconds from the call to the
    agreement of all ranks, the level of the farthest tier that this rank read from, and the number of ranks that took the version."""

    version: int
    generation: int
    bytes: int
    seconds: float
    level: Level
    ranks: int


class Report(NamedTuple):
    """The verdict on one level of one checkpoint. ``committed`` is None if the root could not be reached. A report without a name says
    that a tier was requested but cannot be used, so that nothing reaches its level; ``reason`` says why."""

    name: str
    version: int
    level: Level
    committed: "bool | None"
    reason: str


def _text(text):
    if not isinstance(text, str):
        raise TypeError(f"a name must be a string, not {type(text).__name__}")
    if "\0" in text:
        raise ValueError(f"{text!r} contains a null character")
    return text.encode()


def _version(version):
    if version is None:
        return NEWEST
    number = operator.index(version)  # 1.5 is refused
    if not 0 <= number < NEWEST:
        raise ValueError(f"{version} is not a version: versions are from 0 to 2**64 - 2")
    return number


def _restored(found):
    return Restored(found.version, found.generation, found.bytes, found.seconds, Level(found.level), found.ranks)


class Session:
    """Ranks that take and restore checkpoints together.

    ``comm`` is an mpi4py communicator, or an integer handle as in Fortran; the default is ``MPI.COMM_WORLD``. The configuration comes
    from a TOML file or string (otherwise from the file that ``BIVOUAC_CONFIG`` names), then from the environment, then from ``settings``,
    such as ``{"global.directory": "/scratch/me"}``; later sources take precedence.

    Opening a session is collective, and blocks until all ranks have made the call. As a context manager, the session is closed at the
    end. An exception leaves the session open, unless all ranks get this exception (:class:`RestartError`). The reason is that closing
    waits for the other ranks, which may never reach that point.
    """

    def __init__(self, comm=None, *, config_file=None, config_text=None, settings=None):
        if comm is None:
            from mpi4py import MPI

            comm = MPI.COMM_WORLD
        options = sized(_library.Options)
        options.config_file = None if config_file is None else str(config_file).encode()
        options.config_text = None if config_text is None else config_text.encode()
        if settings is not None:
            pairs = [f"{key}={_word(value)}".encode() for key, value in settings.items()]
            options.settings = (ctypes.c_char_p * (len(pairs) + 1))(*pairs, None)
        self._handle = c_void_p()
        self._protected = {}
        # The arrays that are sent from where they are, and must not be freed before they have been sent; the number of marks; and whether a
        # GPU is offloaded.
        self._marked, self._marks, self._offloads = [], 0, False
        # The names of live regions, and the finalizer that waits for their copies if nobody closes the session.
        self._live, self._end = set(), None
        fortran = comm if isinstance(comm, int) else comm.py2f()
        call("bvk_open_f", fortran, byref(options), byref(self._handle))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None or issubclass(kind, RestartError):
            self.close()

    def close(self):
        """Waits for all checkpoints that are being written, and closes the session with everything made from it. Collective."""
        try:
            call("bvk_close", byref(self._handle))
        finally:
            # After a refused call, for example from the wrong thread, the session may still be reading these arrays.
            if not self._handle:
                self._protected.clear()
                self._marked.clear()
                self._live.clear()

    @property
    def generation(self):
        """The number of this run on its store, which grows with every run."""
        number = c_uint64()
        call("bvk_generation", self._handle, byref(number))
        return number.value

    def protect(self, name, array, live=False):
        """From now on :meth:`checkpoint` saves ``array`` and :meth:`restore` loads it. An array that is already protected under this name
        is replaced.

        With ``live`` an array in host memory is copied after the checkpoint call, while the program continues. A write to a page that has
        not been copied waits until that page has been copied. Live copying pays off if little of the array is written soon after a
        checkpoint. Writes that are not made by instructions of this process, such as receives of MPI by a network card, transfers from a GPU
        and writes by other processes, must be declared in advance (:meth:`writing`). Where ``offload.host_writes`` is ``"declared"``, all
        writes must be declared. See ``docs/OFFLOAD.md``.

        The session keeps a reference. Local. If a live array is replaced, waits until that array has been copied; otherwise never waits.
        """
        found = memory(f"region {name!r}", array, True)
        if live and found.is_on_gpu:
            raise ValueError(f"region {name!r}: only host memory can be live; for GPU memory use Session.offload")
        call("bvk_protect_shaped", self._handle, _text(name), found.address, found.kind, len(found.shape), found.extents())
        self._protected[name] = found
        if live:
            # Arrays are freed when nobody refers to the session any more, but an array that is being copied must not be freed.
            self._end = self._end or weakref.finalize(self, _settle, self._handle)
            self._live.add(name)
            call("bvk_set_live", self._handle, _text(name), 1)
        elif name in self._live:
            call("bvk_set_live", self._handle, _text(name), 0)
            self._live.discard(name)

    def boxes(self, shape, own=(), halo=0, behind=None, sparse=False):
        """Says which elements this rank owns in an array with the extents ``shape``, and proves together with the other ranks that each
        element has one owner. Returns :class:`Boxes`. Arrays that are protected or saved on these boxes can be restored on any number of
        ranks, and on any other boxes of an array of that shape::

            boxes = session.boxes((ny, nx), own=((first, 0), (rows, nx)), halo=1)
            session.protect_on("field", boxes, field)           # field.shape == (rows + 2, nx + 2)

        ``own`` is a pair of an origin and an extent, a list of such pairs for several boxes, or empty for none. In memory each box has
        ``halo`` ghost cells on both sides of each dimension (one number, or one for each dimension). If ``behind`` is given, each box has
        ``halo`` ghost cells before it and ``behind`` after it. Ghost cells are not saved, and a load leaves them unchanged. With
        ``sparse``, the boxes of all ranks together need not cover the array.

        Collective; blocks until all ranks have made the call. Raises :class:`Error` on all ranks if an element has two owners or none.
        """
        return agreed(self, "bvk_boxes", lambda: Described(shape, own, halo, behind), sparse)

    def ids(self, total, own=(), sparse=False):
        """Says which elements this rank owns in an array of ``total`` numbered elements, such as the elements of an unstructured mesh, and
        proves together with the other ranks that each element has one owner. Returns :class:`Boxes`, whose memory is one array with an
        element for each number::

            vertices = session.ids(total, own=mine)             # mine: numbers from 0 to total - 1, in any order
            session.protect_on("pressure", vertices, pressure)  # pressure[k] is that of vertex mine[k]

        Arrays that are protected or saved on these boxes can be restored on any number of ranks, and on any other lists of an array of the
        same size. With ``sparse``, the lists of all ranks together need not contain all numbers.

        Collective; blocks until all ranks have made the call. Raises :class:`Error` on all ranks if an element has two owners or none.
        """
        return agreed(self, "bvk_ids", lambda: Listed(total, own), sparse)

    def protect_on(self, name, boxes, array):
        """Like :meth:`protect`, for this rank's part of an array: the memory of its box, or a list with one array for each box.
        :meth:`restore` loads it on any number of ranks. A rank that owns nothing passes an array without elements. The arrays of a rank
        must all be in host memory, or all on one GPU. Local, never waits."""
        found = OnBoxes(name, boxes, array, True)
        found.call("bvk_protect_boxes_on", self._handle, _text(name))
        self._protects(name, found)

    def protect_shared(self, name, array):
        """Like :meth:`protect`, for an array that is the same on all ranks, such as a step or a time. It must be in host memory and take
        less than 1 MiB. :meth:`restore` loads it on any number of ranks. If it differs on a rank, the checkpoint is abandoned. Local, never
        waits."""
        found = on_host(f"value {name!r}", array, True, "values are")
        call("bvk_protect_shared", self._handle, _text(name), found.address, found.count, found.kind)
        self._protects(name, found)

    def protect_per_rank(self, name, array, on_resize):
        """Like :meth:`protect`, for an array that only this rank has. It must be in host memory and take less than 1 MiB. ``on_resize``
        (:class:`OnResize`) says what happens to it on a different number of ranks: :meth:`restore` is then refused, or leaves the array
        unchanged. Local, never waits."""
        found = on_host(f"value {name!r}", array, True, "values are")
        call("bvk_protect_per_rank", self._handle, _text(name), found.address, found.count, found.kind, OnResize(on_resize))
        self._protects(name, found)

    def _protects(self, name, found):
        self._protected[name] = found
        self._live.discard(name)

    def unprotect(self, name):
        """Ends the protection of a region. Local. If the region is live, waits until it has been copied; otherwise never waits."""
        call("bvk_unprotect", self._handle, _text(name))
        self._protected.pop(name, None)
        self._live.discard(name)

    def unprotect_all(self):
        """Ends the protection of all regions. Local; waits as :meth:`unprotect` does."""
        call("bvk_unprotect_all", self._handle)
        self._protected.clear()
        self._live.clear()

    def set_stream(self, stream):
        """Says that device arrays are complete once the work enqueued on ``stream`` has run. ``stream`` is the address of a CUDA stream
        (``stream.ptr`` in CuPy); 0 is the legacy default stream, which is used until another one is set. Local."""
        call("bvk_set_stream", self._handle, stream or None)

    def should_checkpoint(self):
        """Is it time for a checkpoint, according to the configured interval? Collective: all ranks, once per step."""
        yes = c_int()
        call("bvk_should_checkpoint", self._handle, byref(yes))
        return bool(yes.value)

    def should_exit(self):
        """Is it time to stop, because of a signal, the end of the allocation or ``bivouac halt``? Collective: all ranks, once per
        step."""
        yes = c_int()
        call("bvk_should_exit", self._handle, byref(yes))
        return bool(yes.value)

    def prepare(self, size):
        """Prepares node memory in the background for checkpoints of about ``size`` bytes per rank. Local."""
        call("bvk_prepare", self._handle, size)

    def progress(self):
        """Exchanges coordination messages; needed only if the session has no thread for these messages (``engine.progress = "stepped"``)
        and other calls are rare. Local."""
        call("bvk_progress", self._handle)

    def pin(self, policy):
        """Puts the threads of this rank where ``policy`` (:class:`Pin`) says. Local."""
        call("bvk_pin", self._handle, policy)

    def set_affinity(self, mode):
        """Sets which parts of the affinity a restart brings back from now on (:class:`Affinity`). Local."""
        call("bvk_set_affinity", self._handle, mode)

    def stats(self):
        """Counters and times of this rank as a dictionary, as ``bivouac.h`` describes them. Local."""
        found = sized(_library.Stats)
        call("bvk_get_stats", self._handle, byref(found))
        return {name: getattr(found, name) for name, _ in found._fields_ if name != "size"}

    def level_stats(self, level):
        """Counters of this rank for one level (:class:`Level`) as a dictionary, summed over all tiers that have this level. Local."""
        found = sized(_library.LevelStats)
        call("bvk_get_level_stats", self._handle, level, byref(found))
        return {name: getattr(found, name) for name, _ in found._fields_ if name != "size"}

    def reports(self):
        """The verdicts (:class:`Report`) that the ranks have agreed on since the last call, in the order of the checkpoints. Local."""
        reports = []
        while True:
            found = sized(_library.Report)
            if call("bvk_next_report", self._handle, byref(found)) == NOTHING:
                return reports
            committed = None if found.committed < 0 else bool(found.committed)
            name, reason = found.name.decode(), found.reason.decode("utf-8", "replace")
            reports.append(Report(name, found.version, Level(found.level), committed, reason))

    def checkpoint(self, name, version):
        """Takes a checkpoint of all protected regions, as version ``version`` of the series ``name``. Returns a :class:`Pending`.

        When this returns, the arrays may be changed, including live ones. Collective: all ranks, with the same name, version and regions
        (lengths may differ). The call does not wait for the other ranks.
        """
        pending = c_void_p()
        call("bvk_checkpoint", self._handle, _text(name), _version(version), byref(pending))
        self._keep(self._protected.values())
        return Pending(pending)

    def _keep(self, captured):
        """Keeps references to the arrays that a capture has marked. Nothing is marked again until the previous mark has been sent."""
        if not self._offloads:
            return
        marks = self.stats()["marks"]
        if marks != self._marks:
            self._marks, self._marked = marks, [found for found in captured if found.is_on_gpu]

    def begin_checkpoint(self, name, version):
        """Begins a :class:`Checkpoint` that names its own arrays. Collective, together with the call that ends it."""
        handle = c_void_p()
        call("bvk_begin_checkpoint", self._handle, _text(name), _version(version), byref(handle))
        return Checkpoint(self, handle)

    def companion(self, name, path=None, on_restart=OnRestart.TRUNCATE):
        """Keeps an output file consistent with the checkpoints of the series ``name``. The program appends to this file, which may be
        a trajectory or a time series, for example. Each checkpoint records the length of the file at the capture and a digest of its last
        64 KiB (flush the file before the capture). A restart brings the file back to that length, as ``on_restart`` says, so that what a
        run wrote after its last checkpoint is not repeated. Call this once, before the restart; ranks that do not write a file pass no
        path::

            energies = session.companion("heat", "energy.csv" if rank == 0 else None)
            is_restored = session.restore("heat") is not None
            if rank == 0:
                file = open(energies.path, "a" if is_restored else "w")

        If the file is shorter than recorded, or the digest differs, the file does not match the version: all ranks continue with the next
        older one. Returns a :class:`Companion`. Collective; blocks until all ranks have made the call."""
        found = None if path is None else os.fsencode(path)
        call("bvk_companion", self._handle, _text(name), found, OnRestart(on_restart))
        return Companion(self, _text(name), found)

    def restore(self, name, version=None):
        """Loads version ``version`` (by default the newest that all ranks can load) of the series ``name`` into all protected regions.

        Returns :class:`Restored`, or None if there is nothing to restore. Collective; blocks until all ranks have loaded.
        """
        found = sized(_library.Restored)
        if call("bvk_restore", self._handle, _text(name), _version(version), byref(found)) == NOTHING:
            return None
        return _restored(found)

    def begin_restore(self, name, version=None):
        """Returns a :class:`Restart`, in which the application loads the regions itself. Collective as soon as its first attempt
        begins."""
        return Restart(self, name, version)

    def versions(self, name):
        """The versions of the series that all ranks can restore, newest first. Collective."""
        room = 256
        while True:
            found, count = (c_uint64 * room)(), c_size_t()
            call("bvk_versions", self._handle, _text(name), found, room, byref(count))
            # All ranks get the same number, so all of them ask again or none does.
            if count.value <= room:
                return list(found[: count.value])
            room = 2 * count.value

    def offload(self, size=0, gpu=None):
        """From now on checkpoints of arrays on GPU number ``gpu`` are *marked*: while the program continues, the arrays are sent from where
        they are, and the program declares what it is about to write to (:meth:`writing`). Without a number nothing is marked, so that a
        program runs unchanged without a GPU.

        Node memory is prepared for marked checkpoints with ``size`` bytes of arrays. With 0 no memory is prepared, and the first
        checkpoints are copied. From a checkpoint until the next one, all work that writes to a saved array, on any stream, must be
        declared, or the checkpoint is refused on all ranks. Marked arrays are kept alive until they have been sent. Local; blocks for about
        half a second per GiB.
        """
        call("bvk_offload", self._handle, NO_GPU if gpu is None else gpu, size)
        self._offloads = True

    def before_write(self, *arrays, stream=None):
        """Declares that work that is enqueued on ``stream`` between this call and the next checkpoint may write to ``arrays``: arrays,
        views of arrays (with their elements in any order), or a :class:`WriteSet`. ``stream`` is the address of a CUDA stream (0: the
        legacy default stream); the default is the session's stream. The declared parts of live arrays in host memory have been copied when
        this returns. Arrays that are not saved are ignored, and so are other arrays in host memory.

        This must not be called while the stream is captured into a CUDA graph: declare everything that a graph writes to before each
        launch of the graph. Local, never waits for a GPU.
        """
        for array in arrays:
            if isinstance(array, WriteSet):
                array.before(stream)
                continue
            address, size = covered("before_write", array)
            if stream is None:
                call("bvk_before_write", self._handle, address, size)
            else:
                call("bvk_before_write_on", self._handle, address, size, stream or None)

    @contextlib.contextmanager
    def writing(self, *arrays, stream=None):
        """:meth:`before_write` as a context manager: the work that is enqueued inside it may write to ``arrays``::

            with session.writing(u, v):
                advance(u, v)

        The arrays are declared on entry. Nothing happens on exit: the work may still be running.
        """
        self.before_write(*arrays, stream=stream)
        yield

    def write_set(self, name, *arrays):
        """Returns a :class:`WriteSet` of the arrays that some work writes to, so that they can be declared together each time. This is
        faster than declaring them one by one. Make a new set after the first :meth:`offload`. Local."""
        found = [covered(f"set {name!r}", array) for array in arrays]
        addresses = (c_void_p * len(found))(*(address for address, _ in found))
        sizes = (c_uint64 * len(found))(*(size for _, size in found))
        handle = c_void_p()
        call("bvk_write_set", self._handle, _text(name), addresses, sizes, len(found), byref(handle))
        return WriteSet(self, handle)

    def settle(self):
        """Waits until all marked arrays have been sent, and all live arrays have been copied. Call this method before a write to these
        arrays that cannot be declared, such as a write by another process or another GPU. Local; blocks for the transfer, at full speed,
        and for the copy."""
        call("bvk_settle", self._handle)
        self._marked.clear()

    def allow_marks(self):
        """Allows checkpoints to be marked again. After two refused checkpoints in a row, the next ones are copied until this is called.
        Local."""
        call("bvk_allow_marks", self._handle)

    def history(self, name, gpu=None, keep=Keep.UNTIL_READ):
        """Opens a :class:`History` of this rank, with a cache on GPU number ``gpu`` if one is given. Local."""
        handle = c_void_p()
        call("bvk_history_open", self._handle, _text(name), NO_GPU if gpu is None else gpu, keep, byref(handle))
        return History(self, handle)


def _settle(handle):
    """Waits for live arrays that are still being copied when a session is discarded without having been closed."""
    if handle:
        _library.LIBRARY.bvk_settle(handle)


def _word(value):
    """A value of a setting as the configuration writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


class Pending:
    """A captured checkpoint on its way down the tiers. The checkpoint continues even if this object is not kept."""

    def __init__(self, handle):
        self._handle = handle

    def poll(self):
        """Has each level of this checkpoint been reached or given up? Local, never waits, any thread."""
        finished = c_int()
        call("bvk_poll", self._handle, byref(finished))
        return bool(finished.value)

    @property
    def level(self):
        """The highest :class:`Level` that all ranks have reached, as far as this rank knows. Local, never waits, any thread."""
        reached = c_int()
        call("bvk_level", self._handle, byref(reached))
        return Level(reached.value)

    def wait(self, level):
        """Waits until the checkpoint is committed at ``level`` or a higher one, and returns the level at which it is committed. Any thread.

        Raises :class:`NotCommittedError` as soon as it is known that the level will not be reached.
        """
        reached = c_int()
        call("bvk_wait", self._handle, level, byref(reached))
        return Level(reached.value)

    def release(self):
        """Releases the handle. This also happens when nothing refers to this object any more. Local, never waits, any thread."""
        call("bvk_release", byref(self._handle))

    def __del__(self):
        # At the end of the interpreter the module may be gone before its objects.
        if call is not None and self._handle:
            _library.LIBRARY.bvk_release(byref(self._handle))


class Companion:
    """An output file that is kept consistent with the checkpoints of a series. Made by :meth:`Session.companion`."""

    def __init__(self, session, name, path):
        self._session, self._name, self._path = session, name, path

    @property
    def path(self):
        """The path to which the program writes the file now; None on a rank that has no such file. Ask for the path again after a restart,
        which may have started another file."""
        if self._path is None:
            return None
        return _library.path("bvk_companion_path", self._session._handle, self._name, self._path)


class Checkpoint:
    """A checkpoint under construction. As a context manager, it is captured at the end, or given up after an exception::

        with session.begin_checkpoint("heat", 7) as checkpoint:
            checkpoint.save("field", field)
        checkpoint.pending.wait(bivouac.Level.PROCESS)
    """

    def __init__(self, session, handle):
        # The session keeps the arrays that are protected, which the capture may read.
        self._session, self._handle = session, handle
        self._saved = []
        #: The :class:`Pending` of the capture.
        self.pending = None

    def save(self, name, array):
        """Adds an array as region ``name``. Nothing is read before the capture. Local, never waits."""
        found = memory(f"region {name!r}", array, False)
        call("bvk_save_shaped", self._handle, _text(name), found.address, found.kind, len(found.shape), found.extents())
        self._saved.append(found)

    def save_on(self, name, boxes, array):
        """Adds this rank's part of an array, as :meth:`Session.protect_on` takes it. It is read by the capture, not by :meth:`hold`. Local, never
        waits."""
        found = OnBoxes(name, boxes, array, False)
        found.call("bvk_save_boxes_on", self._handle, _text(name))
        self._saved.append(found)

    def save_shared(self, name, array):
        """Adds a small array that is the same on all ranks, as :meth:`Session.protect_shared` takes it. It is copied now. Local, never waits."""
        found = on_host(f"value {name!r}", array, False, "values are")
        call("bvk_save_shared", self._handle, _text(name), found.address, found.count, found.kind)

    def save_per_rank(self, name, array, on_resize):
        """Adds a small array that is this rank's own, as :meth:`Session.protect_per_rank` takes it. It is copied now. Local, never waits."""
        found = on_host(f"value {name!r}", array, False, "values are")
        call("bvk_save_per_rank", self._handle, _text(name), found.address, found.count, found.kind, OnResize(on_resize))

    def save_rows(self, name, columns, bounds=None):
        """Adds this rank's rows of a set, for example of particles. ``columns`` is a dictionary with an array for each column, all with
        the same number of rows. The first dimension counts the rows, and a row may have several elements of a column; an array of a
        structured type is a column of records. Each rank has its own number of rows, which may change between checkpoints. Columns and
        their types must be the same on all ranks, including ranks without rows::

            checkpoint.save_rows("electrons", {"x": x, "v": v, "id": id})      # v.shape == (len(x), 3)

        ``bounds``, a pair of the least and the greatest coordinates, is recorded, but not used otherwise. Any number of ranks can load
        the rows (:meth:`Attempt.load_rows`). The rows are read by the capture, not by :meth:`hold`. The arrays must be in host memory.
        Local, never waits."""
        found = DescribedRows(name, columns, bounds)
        call("bvk_save_rows", self._handle, _text(name), byref(found.rows))
        self._saved.append(found)

    def open(self, name):
        """Begins a region of bytes of any length, and returns a binary file to write them to, for example with :mod:`pickle`,
        ``numpy.save`` or ``torch.save``. What is written is copied to its place in the checkpoint. The region ends when the file is
        closed; only one region can be written at a time::

            with checkpoint.open("tree") as file:
                pickle.dump(tree, file)

        Collective: on all ranks or on none, with the same names; lengths may differ. The call does not wait for the other ranks."""
        return Writer(self._handle, _text(name))

    def route(self, name):
        """Adds a file as region ``name``: the program, or a library that needs a path, writes the file to the path that this method
        returns, in node-local storage. The file must be complete at the capture, which reads and removes it. :meth:`Attempt.route` brings
        it back::

            with h5py.File(checkpoint.route("dump.h5"), "w") as file:
                file["temperature"] = temperature

        If the library can write to a Python file object, :meth:`open` avoids the detour. Collective: on all ranks or on none, with the
        same names; lengths may differ. The call does not wait for the other ranks."""
        return _library.path("bvk_route", self._handle, _text(name))

    def save_protected(self):
        """Adds all regions that are protected on the session at the capture. Local."""
        call("bvk_save_protected", self._handle)

    def hold(self):
        """Copies into the checkpoint the host arrays that were added with :meth:`save`. These arrays may be changed as soon as this method
        returns, before the capture. Collective: on all ranks or on none; returns without waiting for the other ranks."""
        call("bvk_hold", self._handle)

    def save_history(self, history):
        """Adds the versions that a history has at the capture. Local."""
        call("bvk_save_history", self._handle, history._handle)

    def reduce(self, name, method):
        """Chooses "full", "basic", "list", "tree" or "auto" as the method by which files reuse earlier files for region ``name`` of this
        checkpoint. This method replaces the configured one. The choice has an effect only where ``reduction.method`` or
        ``reduction.regions`` asks for a method. Local."""
        call("bvk_reduce", self._handle, _text(name), _text(method))

    def capture(self):
        """Copies all regions, and returns a :class:`Pending`. The arrays may then be changed. Collective.

        A capture that is refused because a restart is open may be repeated after the restart.
        """
        pending = c_void_p()
        try:
            call("bvk_capture", byref(self._handle), byref(pending))
            self._session._keep([*self._saved, *self._session._protected.values()])
        finally:
            # A capture that is refused inside an open restart leaves the checkpoint as it is, to be captured later.
            if not self._handle:
                self._saved.clear()
        self.pending = Pending(pending)
        return self.pending

    def abort(self):
        """Gives up the checkpoint; the other ranks are told. Collective, in place of the capture; never waits."""
        call("bvk_abort", byref(self._handle))
        self._saved.clear()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if not self._handle:
            return
        if kind is None:
            self.capture()
        else:
            self.abort()


class WriteSet:
    """Arrays that some work writes to, and that are declared together. Made by :meth:`Session.write_set`. The set keeps none of them
    alive. After an array has been replaced by another one, make a new set."""

    def __init__(self, session, handle):
        self._session, self._handle = session, handle

    def before(self, stream=None):
        """Like :meth:`Session.before_write`, for all arrays of the set. Local, never waits."""
        if stream is None:
            call("bvk_before", self._handle)
        else:
            call("bvk_before_on", self._handle, stream or None)

    def close(self):
        """Forgets the set. Local."""
        call("bvk_write_set_close", byref(self._handle))


class Restart:
    """A restart in which the application loads the regions itself, in attempts, until all ranks have loaded one version::

        restart = session.begin_restore("heat")
        for attempt in restart:
            with attempt:
                attempt.load("field", field)
        if restart.restored is None:
            ...  # there was nothing to restore

    If a rank finds damage, or rejects the version (:meth:`Attempt.reject`), all ranks get another attempt, which reads other copies or an
    older version; what was loaded before must not be used. Any other exception in an attempt ends the restart with a
    :class:`RestartError` on all ranks; on the rank where the exception was raised, it is the cause of that error. Do not leave the loop
    early: a rank that does so ends the restart on all ranks. :meth:`run` runs this loop with a function.
    """

    def __init__(self, session, name, version):
        self._session, self._name, self._version = session, name, version
        self._handle = c_void_p()
        self._attempt = None
        self._restored = None
        self._nothing = False
        self._failure = None

    @property
    def restored(self):
        """:class:`Restored`, once all ranks have loaded; None if there was nothing to restore.

        Raises :class:`RestartError` if the ranks found a version but could not load it, and RuntimeError before the restart has ended.
        """
        if self._failure is not None:
            raise self._failure
        if self._restored is None and not self._nothing:
            raise RuntimeError(f"the restart of {self._name!r} has not ended: run its attempts until their loop ends")
        return self._restored

    def __iter__(self):
        if self._attempt is None:
            session = self._session._handle
            status = call("bvk_begin_restore", session, _text(self._name), _version(self._version), byref(self._handle))
            self._nothing = status == NOTHING
            while not self._nothing:
                self._attempt = Attempt(self)
                try:
                    yield self._attempt
                except GeneratorExit:
                    # The loop was left. The other ranks would wait for this one's next attempt.
                    self._give_up()
                    raise
                # A loop body without `with` that reaches this point has loaded everything.
                self._attempt._end(1)
                if not self._handle:
                    return

    def _end(self, loaded):
        """Ends one attempt. If no other attempt follows, the handle is gone, and the result counts. ``loaded``: 1, 0, or -1 if no other
        version would help."""
        found = sized(_library.Restored)
        try:
            if call("bvk_end_restore", byref(self._handle), loaded, byref(found)) != AGAIN:
                self._restored = _restored(found)
        except RestartError as error:
            self._failure = error.with_traceback(None)
            raise

    def _give_up(self):
        """Ends the restart on all ranks, whatever they have loaded, and returns the error that the restart ended with, if any."""
        if self._handle:
            try:
                self._end(-1)
            except RestartError as error:
                return error
        return self._failure

    def run(self, load):
        """Calls ``load(attempt)`` until all ranks have loaded, and returns :class:`Restored`, or None if there is nothing to restore.
        Collective."""
        for attempt in self:
            with attempt:
                load(attempt)
        return self.restored


class Attempt:
    """One version, on its way into the application's arrays."""

    def __init__(self, restart):
        self._restart = restart
        self._ended = False

    @property
    def version(self):
        """The version that is being restored."""
        number = c_uint64()
        call("bvk_saved_version", self._restart._handle, byref(number))
        return number.value

    def reject(self, reason):
        """Rejects this version, which can be loaded but must not be used, because it contains a NaN or fails another check of the
        program. When the attempt ends, all ranks continue with the next older version. It is enough for one rank to call this. ``reason``
        is for the log, and for the error if there is no older version::

            attempt.load("temperature", temperature)
            if numpy.isnan(temperature).any():
                attempt.reject("the temperature has NaN")

        Local, never waits."""
        call("bvk_reject", self._restart._handle, _text(reason))

    def count(self, name):
        """How many elements the region ``name`` has. Local; blocks on the tier that holds the copy."""
        number = c_uint64()
        call("bvk_region_size", self._restart._handle, _text(name), byref(number), None)
        return number.value

    def load(self, name, array):
        """Loads the region ``name`` into an array of its length and type. Local; blocks on the tier that holds the copy."""
        found = memory(f"region {name!r}", array, True)
        call("bvk_load", self._restart._handle, _text(name), found.address, found.count, found.kind)

    def open(self, name):
        """Returns a seekable binary file to read region ``name`` from. The region is one that :meth:`Checkpoint.open` has written, or any
        other array. Every block is checked before a byte of it is returned. Local; blocks on the tier that holds the copy, and so does
        reading::

            with attempt.open("tree") as file:
                tree = pickle.load(file)
        """
        return Reader(self._restart, _text(name), self._bytes(name))

    def route(self, name):
        """Writes region ``name`` to a file in node-local storage, and returns the path of the file. The region is one that
        :meth:`Checkpoint.route` has saved, or any other array of this rank's own. The file exists until the attempt ends. Every block is
        checked before it is written. Local; blocks on the tier that holds the copy, and on node-local storage."""
        return _library.path("bvk_route_saved", self._restart._handle, _text(name))

    def _bytes(self, name):
        """How many bytes the region has."""
        number, kind = c_uint64(), c_int()
        call("bvk_region_size", self._restart._handle, _text(name), byref(number), byref(kind))
        return number.value * (-kind.value if kind.value < 0 else SIZES[kind.value])

    def load_on(self, name, boxes, array):
        """Loads the region ``name`` into this rank's part of an array, as :meth:`Session.protect_on` takes it; ghost cells stay
        unchanged. The boxes may differ from those that the region was saved on. Local if the region was saved on the same number of ranks
        and on the same boxes; otherwise collective: all ranks load the same regions in the same order."""
        OnBoxes(name, boxes, array, True).call("bvk_load_boxes_on", self._restart._handle, _text(name))

    def load_shared(self, name, array):
        """Loads a value that all ranks share. ``array`` must have the length and the type of the value. Collective if a different number of
        ranks took the checkpoint."""
        found = on_host(f"value {name!r}", array, True, "values are")
        call("bvk_load_shared", self._restart._handle, _text(name), found.address, found.count, found.kind)

    def load_per_rank(self, name, array):
        """Loads a value that this rank has saved as its own. ``array`` must have the length and the type of the value. The same number of
        ranks must have taken the checkpoint. Local."""
        found = on_host(f"value {name!r}", array, True, "values are")
        call("bvk_load_per_rank", self._restart._handle, _text(name), found.address, found.count, found.kind)

    @property
    def saved_ranks(self):
        """How many ranks took the checkpoint. Local."""
        ranks = c_int()
        call("bvk_saved_ranks", self._restart._handle, byref(ranks))
        return ranks.value

    def of_ranks(self, name, first, array):
        """Loads the values that some old ranks (those that took the checkpoint) saved with :attr:`OnResize.ASK`: the value of old rank
        ``first`` into ``array[0]``, that of the next old rank into ``array[1]``, and so forth. Each rank may ask for the values of any old
        ranks; a rank that wants none passes an empty array. Collective."""
        found = on_host(f"value {name!r}", array, True, "values are")
        if not found.shape:
            raise ValueError(f"value {name!r}: the array has no dimension that counts ranks")
        each = math.prod(found.shape[1:])
        call("bvk_of_ranks", self._restart._handle, _text(name), first, found.shape[0], found.address, each, found.kind)

    def load_rows(self, name, how, dtypes=None):
        """Loads this rank's share of the rows that :meth:`Checkpoint.save_rows` has saved, and returns a dictionary of new NumPy arrays.
        ``how`` says which rows these are. It is a member of :class:`Deal`, a ``range`` of rows in the order of the ranks that saved them,
        or a :class:`By`, which asks the program::

            electrons = attempt.load_rows("electrons", bivouac.By("x", lambda x: (x / length * ranks).astype(int)))

        ``dtypes`` gives the types of columns of records, which are otherwise bytes:
        ``{"particle": numpy.dtype([("x", "f8"), ("id", "u8")])}``.

        Collective, except for :attr:`Deal.OWN`: all ranks load the same sets in the same order with the same ``how``; only the numbers of
        a range may differ.
        """
        return loaded(self._restart._handle, name, how, dtypes)

    def parts(self, name, first=0, count=None):
        """Returns which part of an array on boxes, or which rows, each of ``count`` old ranks had, starting with old rank ``first``. Old
        ranks are the ranks that took the checkpoint. The result is a list of :class:`BoxesPart`, :class:`IdsPart` or :class:`RowsPart`.
        Without ``count``, the list covers all old ranks starting with ``first``. Each rank may ask for any old ranks. Nothing is loaded.
        Collective."""
        return parts(self._restart._handle, name, first, self.saved_ranks - first if count is None else count)

    def load_protected(self):
        """Loads all protected regions. Local, except for arrays on boxes and for values: for these it is collective where :meth:`load_on`
        and :meth:`load_shared` are. Blocks on the tiers that hold the copies."""
        call("bvk_load_protected", self._restart._handle)

    def load_history(self, history):
        """Appends to ``history`` all versions that were saved under its name, and returns how many. Local; blocks on the tier that holds
        the copy.

        Each attempt needs a history of its own, because the history of an earlier attempt already contains versions. Close that history,
        and open another.
        """
        number = c_uint64()
        call("bvk_load_history", self._restart._handle, history._handle, byref(number))
        return number.value

    def _end(self, loaded):
        if self._ended:
            return
        self._ended = True
        self._restart._end(loaded)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            # Seen from here, a body that was left by `break` or `return` looks like one that ran to its end. The attempt counts when the
            # loop asks for the next one.
            return False
        if self._ended:
            return False
        if issubclass(kind, LoadError):
            # The other ranks decide what follows: another attempt, or an error on all ranks.
            try:
                self._end(0)
            except RestartError as all_ranks:
                raise all_ranks from error
            return True
        self._ended = True
        all_ranks = self._restart._give_up()
        if all_ranks is not None and issubclass(kind, Exception):
            # This is the outcome that all ranks share, so that they all continue in the same way: the others may close the session, for
            # example, and wait for this rank.
            raise all_ranks from error
        return False


class History:
    """Versions of this rank's arrays that are kept to be restored in a known order, for example backwards::

        with session.history("shot") as history:
            history.field("wave", wave)
            history.append(1)
            history.hint([1])
            history.restore(1)
    """

    def __init__(self, session, handle):
        self._session, self._handle = session, handle
        self._fields = {}

    def field(self, name, array):
        """Adds a field ``name`` to all later versions. It replaces a field of the same name. A reference is kept. Local."""
        found = memory(f"field {name!r}", array, True)
        call("bvk_history_field", self._handle, _text(name), found.address, found.count, found.kind)
        self._fields[name] = found

    def clear_fields(self):
        """Forgets all fields. Local."""
        call("bvk_history_clear_fields", self._handle)
        self._fields.clear()

    def append(self, version):
        """Appends a copy of all fields as version ``version``; when this returns, the arrays may be changed. Local."""
        call("bvk_history_append", self._handle, _version(version))

    def restore(self, version):
        """Copies version ``version`` back into the fields. Local."""
        call("bvk_history_restore", self._handle, _version(version))

    def hint(self, versions):
        """Says in which order versions will be restored, after the versions that earlier hints named. Local."""
        numbers = [_version(version) for version in versions]
        call("bvk_history_hint", self._handle, (c_uint64 * len(numbers))(*numbers), len(numbers))

    def start_prefetch(self):
        """Starts the prefetching of hinted versions. Local."""
        call("bvk_history_start_prefetch", self._handle)

    def wait_flushed(self):
        """Waits until nothing is left to flush. Local."""
        call("bvk_history_wait_flushed", self._handle)

    def close(self):
        """Deletes the history with all its versions. Local."""
        call("bvk_history_close", byref(self._handle))
        self._fields.clear()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        self.close()
