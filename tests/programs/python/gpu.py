"""Tensors in GPU memory through the Python package; rank 0 prints "all right". Run by ci/gpu/run.sh on a machine with a GPU and PyTorch."""

import bivouac
import numpy
from bivouac import Level
from mpi4py import MPI

try:
    import torch
except ImportError:
    torch = None

world = MPI.COMM_WORLD
WORDS = 4 << 20


def main():
    if torch is None or not torch.cuda.is_available():
        if world.rank == 0:
            print("SKIPPED: no GPU or no PyTorch here; ci/gpu/bundle.sh and out/gpu/run.sh run this on a machine that has them")
        return
    gpu = world.rank % torch.cuda.device_count()
    torch.cuda.set_device(gpu)
    field = torch.zeros(8, WORDS // 8, dtype=torch.int32, device="cuda")
    step = numpy.array(0)
    stream = torch.cuda.Stream()

    def fill(value):
        with torch.cuda.stream(stream):
            other = torch.ones(2048, 2048, device="cuda")
            for _ in range(20):
                other = other @ other / 2048
            field.fill_(10 * value + world.rank)
        step[...] = value

    def holds(value):
        stream.synchronize()
        return bool((field == 10 * value + world.rank).all()) and int(step) == value

    with bivouac.Session(world) as session:
        session.set_stream(stream.cuda_stream)
        session.protect("field", field)
        session.protect("step", step)
        taken = []
        for version in (1, 2, 3):
            fill(version)
            taken.append(session.checkpoint("torch", version))
            fill(100 + version)
        assert all(pending.wait(Level.SYSTEM) == Level.SYSTEM for pending in taken)
    # The tensor and PyTorch's own state are as usable as before.
    assert torch.cuda.current_device() == gpu
    with bivouac.Session(world) as session:
        session.set_stream(stream.cuda_stream)
        session.protect("field", field)
        session.protect("step", step)
        fill(77)
        assert session.restore("torch").version == 3 and holds(3)
        for attempt in session.restart("torch", 2):
            with attempt:
                fresh = torch.empty_like(field)
                attempt.load("field", fresh)
                attempt.load("step", step)
        stream.synchronize()
        assert bool((fresh == 20 + world.rank).all()) and int(step) == 2
        # Every second column: not in the order of C.
        try:
            session.protect("columns", field[:, ::2])
            raise AssertionError("columns were taken")
        except ValueError as error:
            assert "in the order of C" in str(error)

        with session.history("steps", gpu=gpu, keep=bivouac.Keep.ALL) as history:
            history.field("field", field)
            history.field("step", step)
            history.hint(range(7, -1, -1))
            for version in range(8):
                fill(version)
                history.append(version)
            history.start_prefetch()
            for version in range(7, -1, -1):
                fill(99)
                history.restore(version)
                assert holds(version), version
    torch.cuda.synchronize()
    if world.rank == 0:
        print("all right")


main()
