"""Regions as Python files."""

import io
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_ssize_t, c_uint64, c_void_p, py_object, pythonapi

from ._library import call
from ._memory import memory


class _Held(Structure):
    """A buffer while it is held (``Py_buffer``): the only way to obtain the address of read-only bytes."""

    _fields_ = [
        ("buf", c_void_p), ("obj", c_void_p), ("len", c_ssize_t), ("itemsize", c_ssize_t), ("readonly", c_int), ("ndim", c_int),
        ("format", c_char_p), ("shape", c_void_p), ("strides", c_void_p), ("suboffsets", c_void_p), ("internal", c_void_p),
    ]

    def __init__(self, data):
        super().__init__()
        _hold(data, byref(self), 0)


_hold, _release = pythonapi.PyObject_GetBuffer, pythonapi.PyBuffer_Release
_hold.argtypes, _hold.restype = [py_object, POINTER(_Held), c_int], c_int
_release.argtypes, _release.restype = [POINTER(_Held)], None


class Writing(io.RawIOBase):
    """A region of a checkpoint that is being written."""

    def __init__(self, handle, name):
        super().__init__()
        # An object whose region was refused is closed like any other when it is collected, and must not end the region of another object.
        self._handle, self._has_begun = handle, False
        call("bvk_stream_begin", handle, name)
        self._has_begun = True

    def writable(self):
        return True

    def write(self, data):
        held = _Held(data)
        try:
            call("bvk_stream_write", self._handle, held.buf, held.len)
            return held.len
        finally:
            _release(byref(held))

    def close(self):
        if not self.closed:
            super().close()
            if self._has_begun:
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


class Writer(io.BufferedIOBase):
    """A region to write to, through a buffer. It is not an ``io.BufferedWriter``, because old versions of NumPy take those for files of
    the operating system."""

    def __init__(self, handle, name):
        super().__init__()
        self._buffer = None
        self._buffer = io.BufferedWriter(Writing(handle, name), 1 << 20)

    def writable(self):
        return True

    def write(self, data):
        return self._buffer.write(data)

    def flush(self):
        if self._buffer is not None and not self._buffer.closed:
            self._buffer.flush()

    def close(self):
        if not self.closed:
            try:
                if self._buffer is not None:
                    self._buffer.close()
            finally:
                super().close()


class Reader(io.BufferedIOBase):
    """A region to read from, through a buffer."""

    def __init__(self, restart, name, length):
        super().__init__()
        self._buffer = None
        self._buffer = io.BufferedReader(Reading(restart, name, length), 4 << 20)

    def readable(self):
        return True

    def seekable(self):
        return True

    def read(self, size=-1):
        return self._buffer.read(size)

    def read1(self, size=-1):
        return self._buffer.read1(size)

    def readinto(self, target):
        return self._buffer.readinto(target)

    def readline(self, size=-1):
        return self._buffer.readline(size)

    def seek(self, offset, whence=io.SEEK_SET):
        return self._buffer.seek(offset, whence)

    def tell(self):
        return self._buffer.tell()

    def close(self):
        if not self.closed:
            if self._buffer is not None:
                self._buffer.close()
            super().close()
