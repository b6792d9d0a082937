"""Bivouac: collective checkpoint and restart for MPI simulations.

    import bivouac
    import numpy
    from mpi4py import MPI

    field, step = numpy.zeros((512, 512)), numpy.array(0)
    with bivouac.Session(MPI.COMM_WORLD) as session:
        session.protect("field", field)
        session.protect("step", step)
        session.restore("heat")
        while step < 1000:
            compute(field)
            step += 1
            if session.should_checkpoint():
                session.checkpoint("heat", int(step))

An array is any object with ``__array_interface__`` (NumPy), ``__cuda_array_interface__`` (CuPy, Numba, PyTorch) or the buffer protocol
(``array.array``, ``bytearray``). Its elements must be in C order and without gaps. Nothing is copied on the way to the library, which keeps
the address. So change arrays in place (``field[:] = ...``, ``step += 1``): a new array under an old name is not the one that is protected.
References are kept, so protected arrays are not freed.

A call that fails raises :class:`Error` or one of its subclasses, with the status and the text. Calls marked *Collective* must be made
by all ranks of the session, in the same order. Start programs with ``python3 -m mpi4py program.py``: an uncaught exception then ends all
ranks, instead of leaving the other ranks waiting.

The shared library is the one that ``BIVOUAC_LIBRARY`` names. If this variable is not set, a wheel uses its own library for the program's
MPI (a wheel contains one library for each kind of MPI). Without a wheel, the library is the one that the loader finds
(``LD_LIBRARY_PATH``).
"""

from ._boxes import Boxes, OnResize
from ._library import (
    CaptureError,
    DeviceError,
    Error,
    LoadError,
    NotCommittedError,
    OpenError,
    RegionError,
    RestartError,
    log,
    version,
)
from ._rows import BoxesPart, By, Deal, IdsPart, RowsPart
from ._session import (
    Affinity,
    Attempt,
    Checkpoint,
    Companion,
    History,
    Keep,
    Level,
    OnRestart,
    Pending,
    Pin,
    Report,
    Restart,
    Restored,
    Session,
    WriteSet,
)

__version__ = version()

# Tracebacks name an exception as programs do, and not by the file that it is in.
for _error in (CaptureError, DeviceError, Error, LoadError, NotCommittedError, OpenError, RegionError, RestartError):
    _error.__module__ = __name__

__all__ = [
    "Affinity", "Attempt", "Boxes", "BoxesPart", "By", "CaptureError", "Checkpoint", "Companion", "Deal", "DeviceError", "Error", "History", "IdsPart", "Keep", "Level", "LoadError",
    "NotCommittedError", "OnResize", "OnRestart", "OpenError", "Pending", "Pin", "RegionError", "Report", "Restart", "RestartError", "Restored", "RowsPart", "Session",
    "WriteSet", "log", "version",
]
