"""Data that libraries write is part of a checkpoint: HDF5 to a path, HDF5 in memory as a stream, and PyTorch tensors."""

import importlib.util
import os
import sys

import bivouac
import numpy
from mpi4py import MPI

world = MPI.COMM_WORLD
settings = {"job.name": "libraries", "global.directory": "global", "local.directory": "local", "local.allow_tmpfs": True, "memory.budget": "256 MiB"}


def opened():
    return bivouac.Session(world, settings=settings)


def fields():
    return {name: numpy.arange(200_000.0).reshape(400, -1) * (world.rank + at) for at, name in enumerate(["pressure", "velocity"])}


def hdf5_to_a_path():
    """A library that needs a path, and uses partial writes, attributes and compressed chunks."""
    import h5py

    with opened() as session:
        with session.begin_checkpoint("hdf5", 1) as checkpoint:
            with h5py.File(checkpoint.route("dump.h5"), "w") as file:
                for name, field in fields().items():
                    dataset = file.create_dataset(name, field.shape, chunks=(100, 100), compression="gzip")
                    for row in range(0, 400, 50):
                        dataset[row : row + 50] = field[row : row + 50]
                file.attrs["rank"] = world.rank
        checkpoint.pending.wait(bivouac.Level.SYSTEM)
    with opened() as session:

        def load(attempt):
            with h5py.File(attempt.route("dump.h5"), "r") as file:
                assert file.attrs["rank"] == world.rank
                for name, field in fields().items():
                    assert (file[name][...] == field).all(), name

        assert session.begin_restore("hdf5").run(load).version == 1


def hdf5_in_memory():
    """A file that HDF5's core driver keeps in memory is written to a stream as an image."""
    import h5py

    with opened() as session:
        with session.begin_checkpoint("image", 1) as checkpoint:
            with h5py.File(f"image-{world.rank}.h5", "w", driver="core", backing_store=False) as file:
                for name, field in fields().items():
                    file[name] = field
                file.flush()
                with checkpoint.open("image") as stream:
                    stream.write(file.id.get_file_image())
        checkpoint.pending.wait(bivouac.Level.SYSTEM)

        def load(attempt):
            # HDF5 reads from the file at offsets of its own choice.
            with attempt.open("image") as stream, h5py.File(stream, "r") as file:
                for name, field in fields().items():
                    assert (file[name][...] == field).all(), name

        assert session.begin_restore("image").run(load).version == 1
        assert not os.path.exists(f"image-{world.rank}.h5")


def tensors():
    import torch

    state = {"weights": torch.arange(300_000.0).reshape(3, -1) + world.rank, "step": 7}
    with opened() as session:
        with session.begin_checkpoint("torch", 1) as checkpoint, checkpoint.open("model") as stream:
            torch.save(state, stream)
        checkpoint.pending.wait(bivouac.Level.SYSTEM)
        found = {}

        def load(attempt):
            with attempt.open("model") as stream:
                found.update(torch.load(stream))

        assert session.begin_restore("torch").run(load).version == 1
        assert torch.equal(found["weights"], state["weights"]) and found["step"] == 7


asked = sys.argv[1:]
for library, test in (("h5py", hdf5_to_a_path), ("h5py", hdf5_in_memory), ("torch", tensors)):
    if library not in asked:
        continue
    if importlib.util.find_spec(library) is None:
        if world.rank == 0:
            print(f"SKIPPED: {library} is not there")
        continue
    test()
world.barrier()
if world.rank == 0:
    print("all right")
