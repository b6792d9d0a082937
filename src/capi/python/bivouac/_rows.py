"""Rows whose number may change freely, such as particles, as a dictionary with an array for each column."""

import ctypes
import enum
import math
import operator
from ctypes import byref, c_char_p, c_int, c_uint32, c_uint64, c_void_p
from typing import NamedTuple

from . import _library
from ._boxes import on_host
from ._library import NOTHING, call, sized
from ._memory import KINDS

# NumPy's types for the kinds of elements; a kind that is missing here is a record.
TYPES = {kind: letter + str(size) for (letter, size), kind in KINDS.items() if letter in "uif"}
ROWS, BOXES, IDS = 1, 2, 3
RANKS_MAX = 2**31 - 1


class Deal(enum.IntEnum):
    """Which rows a rank gets in a restart."""

    #: The rows that it saved, if the same number of ranks took the checkpoint.
    OWN = 0
    #: Its share of all rows, in the order of the ranks that saved them.
    EVEN = 1


class By(NamedTuple):
    """Each row goes to the rank that ``owners`` returns for its values in ``column``.

    ``owners`` gets the values of some rows as an array of shape ``(n,)``, or ``(n, width)`` if a row has several values, and returns for
    each row the number of a rank of this run. Its result must depend only on the values: it is called on whichever rank reads the rows,
    on some ranks often and on others never, and each row is passed to it once. It must call neither Bivouac nor MPI. An exception in it
    ends the restart on all ranks.
    """

    column: str
    owners: object


class RowsPart(NamedTuple):
    """A rank's part of a set of rows: how many rows it had, and the least and the greatest coordinate in each dimension, as given to
    :meth:`Checkpoint.save_rows`."""

    count: int
    bounds: list


class BoxesPart(NamedTuple):
    """A rank's part of an array of shape ``shape``: the origin and the extent of each of its boxes."""

    shape: tuple
    boxes: list


class IdsPart(NamedTuple):
    """A rank's part of an array of ``total`` numbered elements: how many of them it had."""

    total: int
    count: int


class Described:
    """A rank's rows as the library takes them. This object keeps the arrays alive."""

    is_on_gpu = False

    def __init__(self, name, columns, bounds):
        what = f"rows {name!r}"
        if not hasattr(columns, "items"):
            raise TypeError(f"{what}: the columns must be a dictionary of arrays, not {type(columns).__name__}")
        self.rows, self.held, counts = sized(_library.Rows), [], {}
        self.columns = (_library.Column * len(columns))()
        for place, (column, array) in zip(self.columns, columns.items()):
            found = on_host(f"{what}: column {column!r}", array, False, "rows are")
            if not found.shape:
                raise ValueError(f"{what}: column {column!r} has no dimension that counts rows")
            place.name, place.data, place.kind, place.width = _name(column), found.address, found.kind, math.prod(found.shape[1:])
            counts[column] = found.shape[0]
            self.held.append(found)
        if len(set(counts.values())) > 1:
            raise ValueError(f"{what}: its columns have different numbers of rows: {counts}")
        self.rows.count = next(iter(counts.values()), 0)
        self.rows.columns, self.rows.column_count = self.columns, len(self.columns)
        low, high = ([float(number) for number in corner] for corner in (bounds or ((), ())))
        if len(low) != len(high):
            raise ValueError(f"{what}: the bounds have {len(low)} least coordinates, but {len(high)} greatest")
        self.rows.dimensions = len(low)
        self.rows.low, self.rows.high = (ctypes.c_double * len(low))(*low), (ctypes.c_double * len(high))(*high)


def _name(text):
    if not isinstance(text, str) or "\0" in text:
        raise TypeError(f"a name must be a string without null characters, not {text!r}")
    return text.encode()


def _columns(restart, name):
    """The name, the kind and the width of each column of a set."""
    found, column, kind, width = [], c_char_p(), c_int(), c_uint32()
    while call("bvk_column_at", restart, _name(name), len(found), byref(column), byref(kind), byref(width)) != NOTHING:
        found.append((column.value.decode("utf-8", "replace"), kind.value, width.value))
    return found


def _type(numpy, kind):
    return numpy.dtype(TYPES.get(kind, f"V{-kind}"))


class _Asked:
    """A function of the application, as the library calls it."""

    def __init__(self, numpy, owners, kind, width):
        self.failure = None
        dtype = _type(numpy, kind)

        def call_owners(values, count, ranks, _):
            # Entries that the function does not set name no rank, and loading then fails on all ranks.
            try:
                if self.failure is not None:
                    return
                held = (ctypes.c_char * (count * width * dtype.itemsize)).from_address(values)
                # A copy, because this memory is no longer valid once the function has returned.
                rows = numpy.frombuffer(held, dtype).copy().reshape((count,) if width == 1 else (count, width))
                found = numpy.asarray(owners(rows))
                if found.shape != (count,):
                    raise ValueError(f"owners have shape {found.shape}, but there are {count} rows")
                if found.dtype.kind not in "iu":
                    raise TypeError(f"owners must be numbers of ranks, not {found.dtype}")
                if count and not 0 <= int(found.min()) <= int(found.max()) <= RANKS_MAX:
                    raise ValueError(f"owners from {found.min()} to {found.max()} are not all ranks")
                numpy.ctypeslib.as_array(ranks, (count,))[:] = found
            except BaseException as error:
                self.failure = error

        self.function = _library.OWNERS(call_owners)


def loaded(restart, name, how, dtypes):
    """Distributes the rows of a set over the ranks, and loads their columns into new arrays."""
    import numpy

    columns = _columns(restart, name)
    rows, count = c_void_p(), c_uint64()
    if isinstance(how, By):
        kinds = {column: (kind, width) for column, kind, width in columns}
        if how.column not in kinds:
            raise KeyError(f"rows {name!r} have no column {how.column!r}; they have {', '.join(kinds)}")
        asked = _Asked(numpy, how.owners, *kinds[how.column])
        try:
            call("bvk_load_rows_by", restart, _name(name), _name(how.column), *kinds[how.column], asked.function, None, byref(rows), byref(count))
        except _library.LoadError:
            if asked.failure is not None:
                raise asked.failure from None
            raise
    elif isinstance(how, range):
        if how.step != 1:
            raise ValueError(f"rows {name!r}: {how} leaves rows out: use a step of 1")
        call("bvk_load_rows_range", restart, _name(name), operator.index(how.start), len(how), byref(rows), byref(count))
    else:
        call("bvk_load_rows", restart, _name(name), Deal(how), byref(rows), byref(count))
    try:
        arrays = {}
        for column, kind, width in columns:
            dtype = numpy.dtype((dtypes or {}).get(column, _type(numpy, kind)))
            if dtype.hasobject:
                raise TypeError(f"rows {name!r}: column {column!r} cannot have the type {dtype}")
            array = numpy.empty((count.value,) if width == 1 else (count.value, width), dtype)
            found = on_host(f"rows {name!r}: column {column!r}", array, True, "rows are")
            call("bvk_load_column", rows, _name(column), found.address, found.count, found.kind, width)
            arrays[column] = array
        return arrays
    finally:
        call("bvk_loaded_rows_close", byref(rows))


def parts(restart, name, first, count):
    """The parts of some of the ranks that took the checkpoint."""
    handle, found = c_void_p(), sized(_library.Part)
    call("bvk_parts", restart, _name(name), first, count, byref(handle))
    try:
        return [_part(handle, rank, found) for rank in range(first, first + count)]
    finally:
        call("bvk_parts_close", byref(handle))


def _part(handle, rank, found):
    call("bvk_part_of", handle, rank, byref(found))
    dims = found.dimensions
    if found.kind == ROWS:
        return RowsPart(found.count, list(zip(found.low[:dims], found.high[:dims])))
    if found.kind == IDS:
        return IdsPart(found.shape[0], found.count)
    origins, extents = (c_uint64 * (found.count * dims))(), (c_uint64 * (found.count * dims))()
    call("bvk_boxes_of", handle, rank, found.count, origins, extents)
    cut = [slice(at * dims, (at + 1) * dims) for at in range(found.count)]
    return BoxesPart(tuple(found.shape[:dims]), [(tuple(origins[one]), tuple(extents[one])) for one in cut])
