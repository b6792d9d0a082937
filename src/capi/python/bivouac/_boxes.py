"""Arrays that are spread over the ranks, in boxes or by numbers: the elements that a rank owns, and its memory for them."""

import array
import enum
import operator
from ctypes import byref, c_uint64, c_void_p

from ._library import LIBRARY, call
from ._memory import memory


class OnResize(enum.IntEnum):
    """What happens to a per-rank value when its checkpoint is restored on a different number of ranks."""

    #: The restart is refused, as with :meth:`Session.protect`.
    REFUSE = 0
    #: The value is dropped.
    DROP = 1
    #: Each rank may ask for the values of old ranks (:meth:`Attempt.of_ranks`).
    ASK = 2


def _numbers(what, numbers, dims):
    found = [operator.index(number) for number in numbers]
    if len(found) != dims:
        raise ValueError(f"{what} {tuple(found)} has {len(found)} numbers, but the array has {dims} dimensions")
    if min(found) < 0:
        raise ValueError(f"{what} {tuple(found)} has a negative number")
    return found


def _margin(what, width, dims):
    return _numbers(what, width if hasattr(width, "__iter__") else [width] * dims, dims)


class Described:
    """A rank's description of its part of an array, checked as far as possible without the library."""

    def __init__(self, shape, own, halo, behind):
        shape = list(shape)
        self.dims = dims = len(shape)
        if not 1 <= dims <= 8:
            raise ValueError(f"an array of {dims} dimensions cannot be cut into boxes: use 1 to 8 dimensions")
        self.shape = _numbers("the shape", shape, dims)
        self.before = _margin("the halo", halo, dims)
        self.after = self.before if behind is None else _margin("the halo behind", behind, dims)
        boxes = list(own)
        # One box is a pair of an origin and an extent.
        if len(boxes) == 2 and not any(hasattr(number, "__iter__") for box in boxes for number in box):
            boxes = [boxes]
        self.origins = [_numbers("the origin", origin, dims) for origin, _ in boxes]
        self.extents = [_numbers("the extent", extent, dims) for _, extent in boxes]

    def shapes(self):
        """The extents of each box in memory."""
        return [tuple(map(sum, zip(extent, self.before, self.after))) for extent in self.extents]

    def arguments(self):
        """The arguments that bvk_boxes takes for this description."""
        return (self.dims, _list([self.shape]), len(self.origins), _list(self.origins), _list(self.extents), _list([self.before]), _list([self.after]))


class Listed:
    """The numbers of the elements that a rank owns, checked as far as possible without the library."""

    def __init__(self, total, own):
        self.total = operator.index(total)
        if not 0 <= self.total < 1 << 64:
            raise ValueError(f"an array cannot have {self.total} elements")
        what = "the list of numbers"
        if hasattr(own, "__array_interface__"):
            self.own = memory(what, own, False)
            if len(self.own.shape) != 1:
                raise ValueError(f"{what} has {len(self.own.shape)} dimensions, but must have 1")
        # Numbers of 64 bits are passed to the library where they are, without a copy.
        if not hasattr(own, "__array_interface__") or self.own.kind not in (7, 8):
            try:
                self.own = memory(what, array.array("Q", own), False)
            except OverflowError:
                raise ValueError(f"{what} has a number that is negative, or has more than 64 bits") from None

    def shapes(self):
        """The extent of the memory."""
        return [(self.own.count,)]

    def arguments(self):
        """The arguments that bvk_ids takes for this list."""
        return (self.total, self.own.count, self.own.address)


def _list(rows):
    numbers = [number for row in rows for number in row]
    return (c_uint64 * len(numbers))(*numbers)


class Boxes:
    """How an array is spread over the ranks. Made by :meth:`Session.boxes` and :meth:`Session.ids`."""

    def __init__(self, session, handle, shapes):
        self._session, self._handle = session, handle
        #: The shape of the memory of each box that this rank owns, including ghost cells.
        self.shapes = shapes

    def close(self):
        """Releases the boxes; what was protected or saved on them stays protected or saved. Local."""
        call("bvk_boxes_close", byref(self._handle))


#: For each function, the arguments that tell the library about a mistake.
MISTAKEN = {"bvk_boxes": (1, None, 0, None, None, None, None), "bvk_ids": (0, 1, None)}


def agreed(session, function, described, sparse):
    """Passes to the library what ``described()`` returns. There, the ranks prove together that each element has one owner."""
    handle = c_void_p()
    try:
        found = described()
    except (TypeError, ValueError):
        # The other ranks wait for this rank, so it takes part without a description, and the other ranks are told of its mistake.
        getattr(LIBRARY, function)(session._handle, *MISTAKEN[function], 0, byref(handle))
        raise
    call(function, session._handle, *found.arguments(), int(sparse), byref(handle))
    return Boxes(session, handle, found.shapes())


class OnBoxes:
    """The memory of a rank's boxes. This object keeps the arrays alive."""

    def __init__(self, name, boxes, given, written):
        what = f"region {name!r}"
        if not isinstance(boxes, Boxes):
            raise TypeError(f"{what}: {type(boxes).__name__} is not a result of Session.boxes or Session.ids")
        self.boxes = boxes
        arrays = given if isinstance(given, (list, tuple)) else [given]
        self.memories = [memory(what, one, written) for one in arrays]
        if not self.memories:
            raise ValueError(f"{what}: no array; a rank that owns nothing must pass one without elements, of the right type")
        self.kind = self.memories[0].kind
        if not boxes.shapes and len(self.memories) == 1 and not self.memories[0].count:
            self.memories = []
        shapes = [found.shape for found in self.memories]
        if len(shapes) != len(boxes.shapes):
            raise ValueError(f"{what}: {len(shapes)} arrays, but this rank owns {len(boxes.shapes)} boxes")
        for number, (found, need) in enumerate(zip(shapes, boxes.shapes)):
            if found != need:
                raise ValueError(f"{what}: the array has shape {found}, but box {number} of this rank needs {need} with ghost cells")
        filled = {found.is_on_gpu for found in self.memories if found.count}
        if len(filled) > 1:
            raise TypeError(f"{what}: some arrays are on a GPU, and others in host memory")
        self.is_on_gpu = True in filled
        if any(found.kind != self.kind for found in self.memories):
            raise TypeError(f"{what}: the arrays have elements of different types")

    def call(self, function, handle, name):
        """Passes this memory to a function of the library."""
        count = len(self.memories)
        addresses = (c_void_p * count)(*(found.address for found in self.memories))
        elements = (c_uint64 * count)(*(found.count for found in self.memories))
        call(function, handle, name, self.boxes._handle, count, addresses, elements, self.kind)


def on_host(what, given, written, who):
    """The memory of an array in host memory."""
    found = memory(what, given, written)
    if found.is_on_gpu:
        raise TypeError(f"{what}: the array is on a GPU, but {who} taken from host memory only: copy it there first")
    return found
