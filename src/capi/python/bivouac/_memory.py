"""Python's arrays as the library sees them: an address, an element type and a shape."""

import ctypes
import math
import operator
import sys

# The kind of element for each letter and number of bytes that an array interface gives; all other elements are records.
KINDS = {
    ("u", 1): 1, ("i", 1): 2, ("u", 2): 3, ("i", 2): 4, ("u", 4): 5, ("i", 4): 6, ("u", 8): 7, ("i", 8): 8, ("f", 4): 9, ("f", 8): 10,
    ("b", 1): 1, ("m", 8): 8, ("M", 8): 8,
}
# The size of each kind in bytes.
SIZES = {kind: size for (_, size), kind in KINDS.items()}
# The array interfaces' letter for each letter of the buffer protocol.
LETTERS = {"?": "b", "c": "u"}
LETTERS.update(dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQN", "u"), **dict.fromkeys("fd", "f"))
FOREIGN = ">" if sys.byteorder == "little" else "<"


class Memory:
    """Where an array is in memory. This object keeps the array alive."""

    def __init__(self, what, array, address, kind, shape):
        self.array, self.address, self.kind, self.shape = array, address, kind, shape
        self.count = 1
        for extent in shape:
            self.count *= extent
        if self.count == 0:
            self.address = None
        elif not address:
            raise ValueError(f"{what}: the array has no memory")

    @property
    def is_on_gpu(self):
        return getattr(self.array[0], "__cuda_array_interface__", None) is not None

    @property
    def size(self):
        """The size of the array in bytes."""
        return self.count * (-self.kind if self.kind < 0 else SIZES[self.kind])

    def extents(self):
        return (ctypes.c_uint64 * len(self.shape))(*self.shape)


def memory(what, array, written):
    """Describes the memory of ``array``, which the library will write to if ``written``.

    Raises TypeError for an object that has no memory of plain elements, and ValueError if the elements are not in C order.
    """
    if "numpy" in sys.modules and isinstance(array, sys.modules["numpy"].generic):
        raise TypeError(f"{what}: {type(array).__name__} is a value, not an array; use numpy.array(value)")
    if isinstance(array, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
        raise TypeError(f"{what}: the array has a mask; pass its data and its mask separately")
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        interface = getattr(array, "__array_interface__", None)
    if interface is None:
        return _of_buffer(what, array, written)
    if getattr(getattr(array, "dtype", None), "hasobject", False) or interface["typestr"][1] == "O":
        raise TypeError(f"{what}: the elements are Python objects, whose bytes mean nothing in another process")
    if interface.get("mask") is not None:
        raise TypeError(f"{what}: the array has a mask; pass its data and its mask separately")
    shape, typestr = tuple(operator.index(extent) for extent in interface["shape"]), interface["typestr"]
    if min(shape, default=0) < 0:
        raise ValueError(f"{what}: its shape {shape} has a negative extent")
    if typestr[0] == FOREIGN:
        raise TypeError(f"{what}: the elements ({typestr}) are not in this machine's byte order")
    letter, size = typestr[1], int(typestr[2:].partition("[")[0])
    if letter == "U":
        size *= 4
    if size == 0:
        raise TypeError(f"{what}: the elements ({typestr}) have no bytes")
    strides = interface.get("strides")
    if strides is not None and not _in_order(shape, strides, size):
        raise ValueError(f"{what}: the elements are not in C order without gaps; use numpy.ascontiguousarray, and keep its result")
    address, held = _address(what, array, interface, written, math.prod(shape) * size)
    return Memory(what, (array, interface, held), address, KINDS.get((letter, size), -size), shape)


def covered(what, array):
    """The address and the size in bytes of the memory that may be written to through ``array``. This memory reaches from the first element
    to the last; the elements may be in any order and have gaps."""
    interface = getattr(array, "__cuda_array_interface__", None) or getattr(array, "__array_interface__", None) or {}
    strides = interface.get("strides")
    if strides is None or not isinstance(interface.get("data"), tuple):
        found = memory(what, array, True)
        return found.address, found.size
    shape = tuple(operator.index(extent) for extent in interface["shape"])
    if 0 in shape:
        return None, 0
    reach = [(extent - 1) * operator.index(stride) for extent, stride in zip(shape, strides)]
    before, behind = -sum(step for step in reach if step < 0), sum(step for step in reach if step > 0)
    first = memory(what, _Described({**interface, "shape": (), "strides": None}), True)
    return first.address - before, before + behind + first.size


class _Described:
    """Memory that an array interface describes."""

    def __init__(self, interface):
        self.__cuda_array_interface__ = interface


def _address(what, array, interface, written, length):
    """The address that an array interface gives, in one of its three forms, and the object that must live as long as the address is
    used."""
    data = interface.get("data")
    if isinstance(data, tuple):
        if len(data) != 2 or isinstance(data[0], bool) or not isinstance(data[0], int) or data[0] < 0:
            raise TypeError(f"{what}: the data of its array interface is {data!r}, not a pair of an address and a read-only flag")
        if written and data[1]:
            raise ValueError(f"{what}: the array is read-only")
        return data[0], None
    if getattr(array, "__cuda_array_interface__", None) is not None:
        raise TypeError(f"{what}: the data of its array interface is {type(data).__name__}, not an address")
    # The data are in a buffer, or the array itself is a buffer. Their length is what the buffer says, not what the shape says.
    offset = operator.index(interface.get("offset", 0))
    view = _writable(what, array if data is None else data, written)
    if offset < 0 or offset + length > view.nbytes:
        raise ValueError(f"{what}: its shape takes {length} bytes from byte {offset} on, but its buffer has {view.nbytes}")
    return _held(view, offset)


def _in_order(shape, strides, size):
    if 0 in shape:
        return True
    expected = size
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return True


def _of_buffer(what, array, written):
    view = _writable(what, array, written)
    letter, size = LETTERS.get(view.format), view.itemsize
    address, held = _held(view, 0)
    return Memory(what, (array, held), address, KINDS.get((letter, size), -size), tuple(view.shape))


def _writable(what, array, written):
    try:
        view = memoryview(array)
    except TypeError:
        raise TypeError(f"{what}: {type(array).__name__} is neither an array nor a buffer") from None
    if not view.c_contiguous:
        raise ValueError(f"{what}: the elements are not in C order without gaps")
    if view.readonly:
        if written:
            raise ValueError(f"{what}: the buffer is read-only")
        # Only a writable buffer reveals its address without a copy.
        raise TypeError(f"{what}: a read-only buffer cannot be saved in place; use bytearray or numpy.frombuffer")
    return view


def _held(view, offset):
    """The address of a part of a buffer, and the ctypes object that keeps the buffer in place: as long as it exists, the buffer can be
    neither resized nor freed."""
    if not view.nbytes:
        return None, None
    held = (ctypes.c_char * view.nbytes).from_buffer(view)
    return ctypes.addressof(held) + offset, held
