"""The shared library: where it is, its functions and structures, and statuses as exceptions."""

import ctypes
import os
import sys
from ctypes import CFUNCTYPE, POINTER, Structure, c_char, c_char_p, c_double, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

# The interface that this package was written for; before 1.0 each minor version may change it.
INTERFACE = "0.1"

OK, AGAIN, NOTHING = 0, 1, 2
NEWEST = 2**64 - 1
NO_GPU = -1


class Options(Structure):
    _fields_ = [("size", c_size_t), ("config_file", c_char_p), ("config_text", c_char_p), ("settings", POINTER(c_char_p))]


class Stats(Structure):
    _fields_ = (
        [("size", c_size_t)]
        + [(name, c_uint64) for name in (
            "captured", "abandoned", "in_flight", "bytes_captured", "room_waits", "direct_captures", "damaged")]
        + [(name, c_double) for name in ("blocked_last_s", "blocked_max_s", "blocked_total_s")]
        + [(name, c_uint64) for name in (
            "packed_files", "whole_files", "reduced_bytes", "stored_bytes", "partial_captures", "looked_on_device")]
        + [("look_total_s", c_double), ("compressed_from", c_uint64), ("compressed_to", c_uint64), ("compress_total_s", c_double)]
        + [(name, c_uint64) for name in (
            "marks", "marks_refused", "marked_bytes", "equal_bytes", "doubled_bytes", "urgent_bytes", "mark_waits")]
        + [("mark_wait_total_s", c_double)]
        + [(name, c_uint64) for name in (
            "unaudited", "live_regions", "live_bytes", "live_waited_bytes", "live_declared_bytes", "live_at_once", "live_waits")]
        + [("live_wait_total_s", c_double)]
    )


class LevelStats(Structure):
    _fields_ = (
        [("size", c_size_t)]
        + [(name, c_uint64) for name in (
            "committed", "level_failures", "write_failures", "flushed_bytes", "restored_bytes", "damaged")]
        + [("flushed_s", c_double)]
    )


class Report(Structure):
    _fields_ = [("size", c_size_t), ("version", c_uint64), ("level", c_int), ("committed", c_int), ("name", c_char * 136),
                ("reason", c_char * 512)]


class Restored(Structure):
    _fields_ = [("size", c_size_t), ("version", c_uint64), ("generation", c_uint64), ("bytes", c_uint64), ("seconds", c_double),
                ("level", c_int64), ("ranks", c_uint64)]


class Column(Structure):
    _fields_ = [("name", c_char_p), ("data", c_void_p), ("kind", c_int), ("width", c_uint32)]


class Rows(Structure):
    _fields_ = [("size", c_size_t), ("count", c_uint64), ("columns", POINTER(Column)), ("column_count", c_size_t), ("dimensions", c_size_t),
                ("low", POINTER(c_double)), ("high", POINTER(c_double))]


class Part(Structure):
    _fields_ = [("size", c_size_t), ("kind", c_int), ("dimensions", c_int), ("count", c_uint64), ("shape", c_uint64 * 8),
                ("low", c_double * 8), ("high", c_double * 8)]


# A function that says which rank gets each of some rows. Its arguments: the values, the number of rows, where it writes the ranks of the
# rows, and the pointer that the call was given.
OWNERS = CFUNCTYPE(None, c_void_p, c_size_t, POINTER(c_int), c_void_p)


def sized(structure):
    """An empty structure whose ``size`` is set."""
    return structure(size=ctypes.sizeof(structure))


class Error(Exception):
    """A call to the library failed. ``status`` is the number of the error, ``name`` is its name, and ``text`` says what is known about
    it."""

    def __init__(self, status, name, text):
        super().__init__(f"{name}: {text}")
        self.status, self.name, self.text = status, name, text


class OpenError(Error):
    """The configuration has problems, or the session could not be opened. All ranks get this error; its text names ranks and keys."""


class RegionError(Error):
    """A name or a shape cannot be used, or a region was named twice."""


class CaptureError(Error):
    """This rank could not capture the checkpoint; the other ranks are told, and the application may continue."""


class LoadError(Error):
    """A region could not be loaded: it is not in the checkpoint, has a different type or length, or has no undamaged copy."""


class RestartError(Error):
    """The restart ended on all ranks without restoring a state."""


class NotCommittedError(Error):
    """The checkpoint did not reach the level that was waited for, and will not."""


class DeviceError(Error):
    """A device or a history cannot do what was asked for."""


EXCEPTIONS = {
    -4: OpenError, -6: RegionError, -7: CaptureError, -8: LoadError, -9: RestartError, -10: NotCommittedError, -14: DeviceError,
}


def packaged(name):
    """The path of the library in this package; None if the package contains no library because it is not a wheel. The library works with
    the MPI that the process has loaded."""
    path = os.path.join(os.path.dirname(__file__), "lib", name)
    if not os.path.exists(path):
        return None
    try:
        from mpi4py import MPI  # noqa: F401  It loads the MPI of the program.
    except ImportError:
        pass
    return path


def load():
    """Loads the shared library and returns it.

    If ``BIVOUAC_LIBRARY`` is set, only the file that it names is tried. Otherwise the library is the one in this package. If this package
    contains none, the library is the one that the loader finds, or else the one in the folder ``lib`` of this Python's prefix.
    """
    name = f"libbivouac.so.{INTERFACE}"
    chosen = os.environ.get("BIVOUAC_LIBRARY")
    inside = None if chosen else packaged(name)
    failures = []
    for path in [chosen] if chosen else [inside] if inside else [name, os.path.join(sys.prefix, "lib", name)]:
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            failures.append(str(error))
    raise ImportError(
        f"the library of Bivouac cannot be loaded ({'; '.join(failures)}): install it (ci/install.sh PREFIX), then set "
        f"BIVOUAC_LIBRARY=PREFIX/lib/{name}, or add PREFIX/lib to LD_LIBRARY_PATH")


HANDLE = c_void_p
TEXT = c_char_p
NUMBERS = POINTER(c_uint64)

# The functions that return a status, with the types of their arguments.
PROTOTYPES = {
    "bvk_log": [c_int],
    "bvk_open_f": [c_int, POINTER(Options), POINTER(HANDLE)],
    "bvk_close": [POINTER(HANDLE)],
    "bvk_generation": [HANDLE, NUMBERS],
    "bvk_protect_shaped": [HANDLE, TEXT, c_void_p, c_int, c_int, NUMBERS],
    "bvk_unprotect": [HANDLE, TEXT],
    "bvk_unprotect_all": [HANDLE],
    "bvk_set_live": [HANDLE, TEXT, c_int],
    "bvk_set_stream": [HANDLE, c_void_p],
    "bvk_should_checkpoint": [HANDLE, POINTER(c_int)],
    "bvk_should_exit": [HANDLE, POINTER(c_int)],
    "bvk_prepare": [HANDLE, c_uint64],
    "bvk_progress": [HANDLE],
    "bvk_pin": [HANDLE, c_int],
    "bvk_set_affinity": [HANDLE, c_int],
    "bvk_get_stats": [HANDLE, POINTER(Stats)],
    "bvk_get_level_stats": [HANDLE, c_int, POINTER(LevelStats)],
    "bvk_next_report": [HANDLE, POINTER(Report)],
    "bvk_checkpoint": [HANDLE, TEXT, c_uint64, POINTER(HANDLE)],
    "bvk_begin_checkpoint": [HANDLE, TEXT, c_uint64, POINTER(HANDLE)],
    "bvk_save_shaped": [HANDLE, TEXT, c_void_p, c_int, c_int, NUMBERS],
    "bvk_save_protected": [HANDLE],
    "bvk_hold": [HANDLE],
    "bvk_companion": [HANDLE, TEXT, TEXT, c_int],
    "bvk_companion_path": [HANDLE, TEXT, TEXT, POINTER(TEXT)],
    "bvk_route": [HANDLE, TEXT, POINTER(TEXT)],
    "bvk_route_saved": [HANDLE, TEXT, POINTER(TEXT)],
    "bvk_stream_begin": [HANDLE, TEXT],
    "bvk_stream_write": [HANDLE, c_void_p, c_uint64],
    "bvk_stream_end": [HANDLE],
    "bvk_stream_read": [HANDLE, TEXT, c_uint64, c_void_p, c_uint64, NUMBERS],
    "bvk_reject": [HANDLE, TEXT],
    "bvk_save_history": [HANDLE, HANDLE],
    "bvk_reduce": [HANDLE, TEXT, TEXT],
    "bvk_capture": [POINTER(HANDLE), POINTER(HANDLE)],
    "bvk_abort": [POINTER(HANDLE)],
    "bvk_poll": [HANDLE, POINTER(c_int)],
    "bvk_level": [HANDLE, POINTER(c_int)],
    "bvk_wait": [HANDLE, c_int, POINTER(c_int)],
    "bvk_release": [POINTER(HANDLE)],
    "bvk_restore": [HANDLE, TEXT, c_uint64, POINTER(Restored)],
    "bvk_begin_restore": [HANDLE, TEXT, c_uint64, POINTER(HANDLE)],
    "bvk_saved_version": [HANDLE, NUMBERS],
    "bvk_region_size": [HANDLE, TEXT, NUMBERS, POINTER(c_int)],
    "bvk_load": [HANDLE, TEXT, c_void_p, c_uint64, c_int],
    "bvk_load_protected": [HANDLE],
    "bvk_load_history": [HANDLE, HANDLE, NUMBERS],
    "bvk_end_restore": [POINTER(HANDLE), c_int, POINTER(Restored)],
    "bvk_versions": [HANDLE, TEXT, NUMBERS, c_size_t, POINTER(c_size_t)],
    "bvk_boxes": [HANDLE, c_int, NUMBERS, c_size_t, NUMBERS, NUMBERS, NUMBERS, NUMBERS, c_int, POINTER(HANDLE)],
    "bvk_ids": [HANDLE, c_uint64, c_size_t, c_void_p, c_int, POINTER(HANDLE)],
    "bvk_boxes_close": [POINTER(HANDLE)],
    "bvk_protect_boxes_on": [HANDLE, TEXT, HANDLE, c_size_t, POINTER(c_void_p), NUMBERS, c_int],
    "bvk_save_boxes_on": [HANDLE, TEXT, HANDLE, c_size_t, POINTER(c_void_p), NUMBERS, c_int],
    "bvk_load_boxes_on": [HANDLE, TEXT, HANDLE, c_size_t, POINTER(c_void_p), NUMBERS, c_int],
    "bvk_protect_shared": [HANDLE, TEXT, c_void_p, c_uint64, c_int],
    "bvk_save_shared": [HANDLE, TEXT, c_void_p, c_uint64, c_int],
    "bvk_load_shared": [HANDLE, TEXT, c_void_p, c_uint64, c_int],
    "bvk_protect_per_rank": [HANDLE, TEXT, c_void_p, c_uint64, c_int, c_int],
    "bvk_save_per_rank": [HANDLE, TEXT, c_void_p, c_uint64, c_int, c_int],
    "bvk_load_per_rank": [HANDLE, TEXT, c_void_p, c_uint64, c_int],
    "bvk_saved_ranks": [HANDLE, POINTER(c_int)],
    "bvk_of_ranks": [HANDLE, TEXT, c_int, c_int, c_void_p, c_uint64, c_int],
    "bvk_save_rows": [HANDLE, TEXT, POINTER(Rows)],
    "bvk_load_rows": [HANDLE, TEXT, c_int, POINTER(HANDLE), NUMBERS],
    "bvk_load_rows_range": [HANDLE, TEXT, c_uint64, c_uint64, POINTER(HANDLE), NUMBERS],
    "bvk_load_rows_by": [HANDLE, TEXT, TEXT, c_int, c_uint32, OWNERS, c_void_p, POINTER(HANDLE), NUMBERS],
    "bvk_column_at": [HANDLE, TEXT, c_size_t, POINTER(c_char_p), POINTER(c_int), POINTER(c_uint32)],
    "bvk_load_column": [HANDLE, TEXT, c_void_p, c_uint64, c_int, c_uint32],
    "bvk_loaded_rows_close": [POINTER(HANDLE)],
    "bvk_parts": [HANDLE, TEXT, c_int, c_int, POINTER(HANDLE)],
    "bvk_part_of": [HANDLE, c_int, POINTER(Part)],
    "bvk_boxes_of": [HANDLE, c_int, c_size_t, NUMBERS, NUMBERS],
    "bvk_parts_close": [POINTER(HANDLE)],
    "bvk_history_open": [HANDLE, TEXT, c_int, c_int, POINTER(HANDLE)],
    "bvk_history_field": [HANDLE, TEXT, c_void_p, c_uint64, c_int],
    "bvk_history_clear_fields": [HANDLE],
    "bvk_history_append": [HANDLE, c_uint64],
    "bvk_history_restore": [HANDLE, c_uint64],
    "bvk_history_hint": [HANDLE, NUMBERS, c_size_t],
    "bvk_history_start_prefetch": [HANDLE],
    "bvk_history_wait_flushed": [HANDLE],
    "bvk_history_close": [POINTER(HANDLE)],
    "bvk_offload": [HANDLE, c_int, c_uint64],
    "bvk_before_write": [HANDLE, c_void_p, c_uint64],
    "bvk_before_write_on": [HANDLE, c_void_p, c_uint64, c_void_p],
    "bvk_write_set": [HANDLE, TEXT, POINTER(c_void_p), NUMBERS, c_size_t, POINTER(HANDLE)],
    "bvk_before": [HANDLE],
    "bvk_before_on": [HANDLE, c_void_p],
    "bvk_write_set_close": [POINTER(HANDLE)],
    "bvk_settle": [HANDLE],
    "bvk_allow_marks": [HANDLE],
}

LIBRARY = load()


def version():
    """The version of the library, for example ``0.1.0``."""
    return LIBRARY.bvk_version().decode()


# The version is checked before anything else is looked up: a library with another interface may have other functions.
if not hasattr(LIBRARY, "bvk_version"):
    raise ImportError(f"{LIBRARY._name} is not a library of Bivouac: it has no bvk_version")
LIBRARY.bvk_version.argtypes, LIBRARY.bvk_version.restype = [], c_char_p
if not version().startswith(INTERFACE + "."):
    raise ImportError(f"this package is for libbivouac {INTERFACE}, but {LIBRARY._name} is {version()}: install matching versions")
for function, arguments in PROTOTYPES.items():
    getattr(LIBRARY, function).argtypes = arguments
    getattr(LIBRARY, function).restype = c_int
for function, arguments in {"bvk_error": [], "bvk_status_name": [c_int]}.items():
    getattr(LIBRARY, function).argtypes = arguments
    getattr(LIBRARY, function).restype = c_char_p


def path(function, *arguments):
    """Calls a function that returns a path."""
    found = c_char_p()
    call(function, *arguments, ctypes.byref(found))
    return os.fsdecode(found.value)


def call(function, *arguments):
    """Calls a function and returns its status, or raises an exception for an error. Other Python threads run meanwhile."""
    status = getattr(LIBRARY, function)(*arguments)
    if status < 0:
        text = LIBRARY.bvk_error().decode("utf-8", "replace")
        name = LIBRARY.bvk_status_name(status).decode()
        raise EXCEPTIONS.get(status, Error)(status, name, text)
    return status


def log(level):
    """Sets which lines Bivouac writes to standard error, whatever ``job.log`` and ``BIVOUAC_LOG`` say: 0 nothing; 1 errors; 2 warnings, and
    one line each when a session opens, restores and closes; 3 events; 4 details; 5 everything."""
    call("bvk_log", level)
