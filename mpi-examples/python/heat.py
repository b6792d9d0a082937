"""Heat spreads over a plate, and the run survives being killed: mpi-examples/heat2d.rs with mpi4py and NumPy.

    mpirun -n 4 python3 -m mpi4py heat.py --dir /scratch/me/heat --grid 512x512 --steps 2000 --every 100

The plate is cut into bands of rows, one for each rank. Every cell is computed by the same operations in the same order as in
the Rust example. Both programs therefore print the same digest for every number of ranks, however often the run was killed. The
program may be started again on a different number of ranks.
"""

import argparse
import os
import signal

import bivouac
import numpy
from mpi4py import MPI

RATE, HOTTEST = 0.2, 100.0
NAME = "heat"


def main():
    options = command_line()
    world = MPI.COMM_WORLD
    plate = Plate(world, *options.grid)
    # Bivouac knows where these arrays are, so they are changed in place, never replaced.
    step = numpy.array(0)
    settings = options.dir and {"global.directory": f"{options.dir}/global", "local.directory": f"{options.dir}/local"}
    with bivouac.Session(world, settings=settings) as session:
        boxes = session.boxes(plate.shape, own=plate.own, halo=1)
        session.protect_on("temperature", boxes, plate.now)
        session.protect_shared("step", step)
        restored = session.restore(NAME)
        if restored and world.rank == 0:
            print(f"restored version={restored.version} generation={restored.generation} level={restored.level.name}", flush=True)
        stopped = False
        while step < options.steps and not stopped:
            plate.advance()
            step += 1
            stopped = session.should_exit()
            if stopped or (step % options.every == 0 if options.every else session.should_checkpoint()):
                take(session, int(step), options.wait, world.rank)
            if options.die_at and int(step) == options.die_at[0] and world.rank == options.die_at[1] % world.size:
                os.kill(os.getpid(), signal.SIGKILL)
        if step < options.steps:
            if world.rank == 0:
                print(f"stopped step={step} of={options.steps}")
        else:
            rows = world.gather(plate.now[1:-1, 1:-1].tobytes())
            if world.rank == 0:
                print(f"digest {digest(b''.join(rows))}")


def take(session, step, level, rank):
    """Takes a checkpoint. If that fails, the only cost is that a restart goes further back."""
    try:
        pending = session.checkpoint(NAME, step)
        if level is not None:
            reached = pending.wait(level)
            if rank == 0:
                print(f"committed version={step} level={reached.name}", flush=True)
    except (bivouac.CaptureError, bivouac.DeviceError, bivouac.NotCommittedError, bivouac.RegionError) as error:
        print(f"rank {rank}: checkpoint {step}: {error}", flush=True)


class Plate:
    """The band of rows of one rank, with a ring of one cell around it."""

    def __init__(self, world, nx, ny):
        self.world = world
        first, last = ny * world.rank // world.size, ny * (world.rank + 1) // world.size
        if ny < world.size:
            raise SystemExit(f"{world.size} ranks cannot share {ny} rows")
        # Rows before columns, as in memory.
        self.shape, self.own = (ny, nx), ((first, 0), (last - first, nx))
        u = ((numpy.arange(nx) + 0.5) / nx)[numpy.newaxis, :]
        v = ((numpy.arange(first, last) + 0.5) / ny)[:, numpy.newaxis]

        def spot(cx, cy, heat):
            return heat / (1.0 + 60.0 * ((u - cx) * (u - cx) + (v - cy) * (v - cy)))

        self.now = numpy.zeros((last - first + 2, nx + 2))
        self.conductivity = numpy.zeros_like(self.now)
        self.now[1:-1, 1:-1] = numpy.minimum(spot(0.25, 0.3, 1.0) + spot(0.7, 0.2, 0.6) + spot(0.6, 0.75, 0.8), 1.0) * HOTTEST
        along = (u + 0.5 * v) * 6.0
        self.conductivity[1:-1, 1:-1] = numpy.where(along - numpy.trunc(along) < 0.15, 0.05, 0.4 + 0.6 * v)
        self.exchange(self.conductivity)

    def exchange(self, plane):
        """Fills the ring: from the neighbours, and at the border of the plate, which no heat crosses, from the band itself."""
        plane[0, :], plane[-1, :] = plane[1, :], plane[-2, :]
        plane[:, 0], plane[:, -1] = plane[:, 1], plane[:, -2]
        rank, size = self.world.rank, self.world.size
        north = rank - 1 if rank > 0 else MPI.PROC_NULL
        south = rank + 1 if rank + 1 < size else MPI.PROC_NULL
        self.world.Sendrecv(plane[1, :], north, 1, plane[-1, :], south, 1)
        self.world.Sendrecv(plane[-2, :], south, 2, plane[0, :], north, 2)

    def advance(self):
        """One explicit step."""
        self.exchange(self.now)
        t, k = self.now, self.conductivity
        here, conducts = t[1:-1, 1:-1], k[1:-1, 1:-1]
        flow = (conducts + k[1:-1, :-2]) * (t[1:-1, :-2] - here)
        flow += (conducts + k[1:-1, 2:]) * (t[1:-1, 2:] - here)
        flow += (conducts + k[:-2, 1:-1]) * (t[:-2, 1:-1] - here)
        flow += (conducts + k[2:, 1:-1]) * (t[2:, 1:-1] - here)
        here += 0.5 * RATE * flow


def digest(data):
    """64-bit FNV-1a."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def command_line():
    parser = argparse.ArgumentParser(description="Heat spreads over a plate; the run survives being killed.")
    numbers = {"x": "NXxNY", ":": "STEP[:RANK]"}

    def pair(mark, default):
        def parse(text):
            first, _, second = text.partition(mark)
            return int(first), int(second or default)

        parse.__name__ = numbers[mark]
        return parse

    parser.add_argument("--grid", type=pair("x", ""), default=(256, 256), metavar="NXxNY", help="cells of the plate")
    parser.add_argument("--steps", type=int, default=1000, help="steps to compute")
    parser.add_argument("--every", type=int, help="steps between checkpoints; without it the configuration's interval decides")
    parser.add_argument("--dir", help="keep checkpoints below this folder (global/ and local/)")
    parser.add_argument("--die-at", type=pair(":", "-1"), metavar="STEP[:RANK]",
                        help="a rank (default: the last) kills itself after this step")
    levels = {level.name.lower().replace("_", "-"): level for level in bivouac.Level}
    parser.add_argument("--wait", choices=levels, help="wait after each checkpoint until it has reached this level")
    options = parser.parse_args()
    options.wait = levels.get(options.wait)
    return options


if __name__ == "__main__":
    main()
