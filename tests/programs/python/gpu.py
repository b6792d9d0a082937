"""Tensors in GPU memory through the Python package; rank 0 prints "all right".

ci/gpu/run.sh runs it on a machine with a GPU and PyTorch.
"""

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
    # The tensor and PyTorch's own state can be used as before.
    assert torch.cuda.current_device() == gpu
    with bivouac.Session(world) as session:
        session.set_stream(stream.cuda_stream)
        session.protect("field", field)
        session.protect("step", step)
        fill(77)
        assert session.restore("torch").version == 3 and holds(3)
        for attempt in session.begin_restore("torch", 2):
            with attempt:
                fresh = torch.empty_like(field)
                attempt.load("field", fresh)
                attempt.load("step", step)
        stream.synchronize()
        assert bool((fresh == 20 + world.rank).all()) and int(step) == 2
        # These are every second column, which are not in C order.
        try:
            session.protect("columns", field[:, ::2])
            raise AssertionError("columns were taken")
        except ValueError as error:
            assert "in C order" in str(error)

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
    boxes(stream)
    marks(field, step, fill, holds, stream, gpu)
    torch.cuda.synchronize()
    if world.rank == 0:
        print("all right")


def boxes(stream):
    """An array in GPU memory is saved in rows, and loaded in rows and in columns. Ghost cells are left alone, and NumPy reads the same."""
    rows, columns = 60, 1000
    whole = numpy.arange(rows * columns, dtype=numpy.int32).reshape(rows, columns)

    def part(of):
        return of * world.rank // world.size, of * (world.rank + 1) // world.size

    (y, end), (x, edge) = part(rows), part(columns)
    with bivouac.Session(world) as session:
        session.set_stream(stream.cuda_stream)
        slab = session.boxes((rows, columns), own=((y, 0), (end - y, columns)), halo=1)
        memory = torch.full((end - y + 2, columns + 2), -1, dtype=torch.int32, device="cuda")
        memory[1:-1, 1:-1] = torch.from_numpy(whole[y:end].copy()).cuda()
        saved = memory.clone()
        torch.cuda.synchronize()
        session.protect_on("array", slab, memory)
        session.checkpoint("boxes", 1).wait(Level.SYSTEM)
        memory[1:-1, 1:-1] = 0
        torch.cuda.synchronize()
        session.restore("boxes")
        stream.synchronize()
        assert torch.equal(memory, saved)

        turned = session.boxes((rows, columns), own=((0, x), (rows, edge - x)))
        on_gpu = torch.full((rows, edge - x), -1, dtype=torch.int32, device="cuda")
        on_host = numpy.full((rows, edge - x), -1, dtype=numpy.int32)
        torch.cuda.synchronize()

        def load(attempt):
            attempt.load_on("array", turned, on_gpu)
            attempt.load_on("array", turned, on_host)

        session.begin_restore("boxes").run(load)
        stream.synchronize()
        assert (on_gpu.cpu().numpy() == whole[:, x:edge]).all() and (on_host == whole[:, x:edge]).all()
        try:
            session.protect_on("short", turned, on_gpu[:-1])
            raise AssertionError("too short a tensor was taken")
        except (bivouac.Error, ValueError) as error:
            assert "short" in str(error), error


def marks(field, step, fill, holds, stream, gpu):
    """Checkpoints are sent from live memory while the program declares the memory that it overwrites at once; one write is not declared."""
    size = field.numel() * field.element_size() + step.nbytes
    side = torch.cuda.Stream()

    def committed(pending, version):
        assert pending.wait(Level.SYSTEM) == Level.SYSTEM
        assert session.restore("marks").version == version and holds(version), version

    with bivouac.Session(world, settings={"offload.mode": "always"}) as session:
        session.set_stream(stream.cuda_stream)
        session.protect("field", field)
        session.protect("step", step)
        try:
            session.before_write(field)
            raise AssertionError("nothing is marked yet")
        except bivouac.Error as error:
            assert "call bvk_offload first" in str(error)
        session.offload(size, gpu=gpu)
        writes = session.write_set("field", field, step)
        for version in range(1, 6):
            session.before_write(field)
            fill(version)
            pending = session.checkpoint("marks", version)
            if version == 1:
                with session.writing(field, step):
                    fill(100)
            elif version == 2:
                with session.writing(writes):
                    fill(100)
            elif version == 3:
                # Views in any order count as the memory that they cover.
                with session.writing(field[:, ::2], field[::1, 1::2]), torch.cuda.stream(stream):
                    field[:, ::2] = 1
                    field[:, 1::2] = 2
            else:
                # Only the declaration orders this stream after the mark.
                with session.writing(writes if version == 4 else field, stream=side.cuda_stream), torch.cuda.stream(side):
                    field.fill_(1)
                side.synchronize()
            committed(pending, version)
        stats = session.stats()
        assert (stats["marks"], stats["marks_refused"], stats["marked_bytes"]) == (5, 0, 5 * field.numel() * 4), stats
        assert stats["doubled_bytes"] + stats["urgent_bytes"] > 0, stats
        writes.close()

        # Only the session keeps this array while it is sent.
        session.offload(size, gpu=gpu)
        with torch.cuda.stream(stream):
            with session.begin_checkpoint("kept", 1) as checkpoint:
                checkpoint.save("array", torch.full((WORDS,), 3, dtype=torch.int32, device="cuda"))
            others = [torch.full((WORDS,), 4, dtype=torch.int32, device="cuda") for _ in range(4)]
        checkpoint.pending.wait(Level.SYSTEM)
        session.settle()
        assert session.stats()["marks"] == 6, session.stats()
        del others
        back = torch.empty(WORDS, dtype=torch.int32, device="cuda")
        session.begin_restore("kept").run(lambda attempt: attempt.load("array", back))
        stream.synchronize()
        assert bool((back == 3).all())

        # All ranks hear of a write that rank 0 does not declare.
        session.offload(size, gpu=gpu)
        session.before_write(field)
        fill(6)
        pending = session.checkpoint("marks", 6)
        if world.rank > 0:
            session.before_write(field)
        with torch.cuda.stream(stream):
            field.fill_(1)
        try:
            pending.wait(Level.SYSTEM)
            raise AssertionError("a write that was not declared was not noticed")
        except bivouac.NotCommittedError as error:
            assert "rank 0" in str(error) and '"field" has changed' in str(error), error
        session.allow_marks()
        session.before_write(field)
        fill(7)
        committed(session.checkpoint("marks", 7), 7)
        assert session.stats()["marks_refused"] == (1 if world.rank == 0 else 0)


main()
