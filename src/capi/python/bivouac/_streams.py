"""Regions as files of Python."""

import io
from ctypes import byref, c_uint64

from ._library import call
from ._memory import memory


class Writing(io.RawIOBase):
    """A region of a checkpoint that is being written."""

    def __init__(self, handle, name):
        super().__init__()
        self._handle = handle
        call("bvk_stream_begin", handle, name)

    def writable(self):
        return True

    def write(self, data):
        found = memory("what is written", memoryview(data).cast("B"), False)
        call("bvk_stream_write", self._handle, found.address, found.count)
        return found.count

    def close(self):
        if not self.closed:
            super().close()
            call("bvk_stream_end", self._handle)


class Reading(io.RawIOBase):
    """A region of the version that is being restored."""

    def __init__(self, restart, name, length):
        super().__init__()
        self._restart, self._name, self._length, self._at = restart, name, length, 0

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        if start + offset < 0:
            raise ValueError(f"byte {start + offset} is before the first one")
        self._at = start + offset
        return self._at

    def tell(self):
        return self._at

    def readinto(self, target):
        found, read = memory("what is read", memoryview(target).cast("B"), True), c_uint64()
        call("bvk_stream_read", self._restart._handle, self._name, self._at, found.address, found.count, byref(read))
        self._at += read.value
        return read.value
