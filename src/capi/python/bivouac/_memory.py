"""Python's arrays as the library sees them: an address, an element type and a shape."""

import ctypes
import sys

# Kinds of elements by the letter and the bytes of an array interface; all others are records.
KINDS = {
    ("u", 1): 1, ("i", 1): 2, ("u", 2): 3, ("i", 2): 4, ("u", 4): 5, ("i", 4): 6, ("u", 8): 7, ("i", 8): 8, ("f", 4): 9, ("f", 8): 10,
    ("b", 1): 1, ("m", 8): 8, ("M", 8): 8,
}
# The letters that the buffer protocol has for them.
LETTERS = {"?": "b", "c": "u"}
LETTERS.update(dict.fromkeys("bhilqn", "i"), **dict.fromkeys("BHILQN", "u"), **dict.fromkeys("fd", "f"))
FOREIGN = ">" if sys.byteorder == "little" else "<"


class Memory:
    """Where an array is. It keeps the array alive."""

    def __init__(self, what, array, address, kind, shape):
        self.array, self.address, self.kind, self.shape = array, address, kind, shape
        self.count = 1
        for extent in shape:
            self.count *= extent
        if self.count == 0:
            self.address = None
        elif not address:
            raise ValueError(f"{what}: the array has no memory")

    def extents(self):
        return (ctypes.c_uint64 * len(self.shape))(*self.shape)


def memory(what, array, written):
    """Describes the memory of ``array``, which the library will write to if ``written``.

    Raises TypeError for what has no memory of plain elements, and ValueError for an order of elements that is not C's.
    """
    if "numpy" in sys.modules and isinstance(array, sys.modules["numpy"].generic):
        raise TypeError(f"{what}: {type(array).__name__} is a value, not an array; use numpy.array(value)")
    if isinstance(array, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
        raise TypeError(f"{what}: the array has a mask; give its data and its mask on their own")
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        interface = getattr(array, "__array_interface__", None)
    if interface is None:
        return _of_buffer(what, array, written)
    if getattr(getattr(array, "dtype", None), "hasobject", False) or interface["typestr"][1] == "O":
        raise TypeError(f"{what}: the elements are Python objects, whose bytes mean nothing in another process")
    address, read_only = interface["data"]
    if written and read_only:
        raise ValueError(f"{what}: the array is read-only")
    if interface.get("mask") is not None:
        raise TypeError(f"{what}: the array has a mask; give its data and its mask on their own")
    shape, typestr = tuple(interface["shape"]), interface["typestr"]
    if typestr[0] == FOREIGN:
        raise TypeError(f"{what}: the elements ({typestr}) are not in this machine's byte order")
    letter, size = typestr[1], int(typestr[2:].partition("[")[0])
    if letter == "U":
        size *= 4
    if size == 0:
        raise TypeError(f"{what}: the elements ({typestr}) have no bytes")
    strides = interface.get("strides")
    if strides is not None and not _in_order(shape, strides, size):
        raise ValueError(f"{what}: the elements are not in the order of C without gaps; use numpy.ascontiguousarray, and keep its result")
    return Memory(what, array, address, KINDS.get((letter, size), -size), shape)


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
    try:
        view = memoryview(array)
    except TypeError:
        raise TypeError(f"{what}: {type(array).__name__} is neither an array nor a buffer") from None
    if not view.c_contiguous:
        raise ValueError(f"{what}: the elements are not in the order of C without gaps")
    if view.readonly:
        if written:
            raise ValueError(f"{what}: the buffer is read-only")
        # Only a buffer that can be written to tells its address without a copy.
        raise TypeError(f"{what}: a read-only buffer cannot be saved from where it is; use bytearray or numpy.frombuffer")
    letter, size = LETTERS.get(view.format), view.itemsize
    shape = tuple(view.shape)
    # The object of ctypes keeps the buffer where it is: it can be neither resized nor freed.
    held = (ctypes.c_char * view.nbytes).from_buffer(array) if view.nbytes else None
    address = ctypes.addressof(held) if held is not None else None
    return Memory(what, (array, held), address, KINDS.get((letter, size), -size), shape)
