#!/usr/bin/env python3
"""Time that a real job loses to checkpoints and failures: heat2d under `bivouac run`, killed by a seed.

    benches/predicted.py --bin DIR [--seconds S] [--mtbf S] [--reboots SHARE] [--ranks N] [--grid NXxNY]
                         [--interval S] [--every N] [--seed N] [--out FILE]

Three runs in a folder of their own: without checkpoints (what a step takes), with checkpoints and nobody killed (what they cost), and for
about S seconds with a failure each MTBF seconds on average: of a process (one rank is killed, node memory stays), or, in SHARE of the cases, of a node
that comes back (all ranks are killed and node memory is taken away). Nothing else should run on the machine. Prints a line of JSON for each run: what
`bivouac plan` is to be compared with.

DIR holds `bivouac` and `heat2d`; mpirun is the one in PATH.
"""

import argparse
import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--mtbf", type=float, default=60)
    parser.add_argument("--reboots", type=float, default=0.25)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--grid", default="4096x4096")
    parser.add_argument("--interval", default="auto")
    parser.add_argument("--every", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", help="on a disk; default: the temporary directory")
    parser.add_argument("--out", help="appended to; default: standard output")
    return parser.parse_args()


class Bed:
    """A folder of checkpoints, one of node memory, and the commands that use them."""

    def __init__(self, asked):
        self.asked = asked
        self.disk = tempfile.mkdtemp(prefix="bivouac-predicted-", dir=asked.folder)
        self.memory = tempfile.mkdtemp(prefix="bivouac-predicted-", dir="/dev/shm")

    def environment(self, name, **more):
        clean = {key: value for key, value in os.environ.items() if not key.startswith("BIVOUAC_")}
        return clean | {
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "BIVOUAC_JOB_NAME": name,
            "BIVOUAC_MEMORY_DIRECTORY": self.memory,
            "BIVOUAC_LOCAL_DIRECTORY": f"{self.disk}/{name}/local",
            "BIVOUAC_GLOBAL_ENABLED": "false",
            "BIVOUAC_INTERVAL_LEAST": "0.2s",
        } | more

    def heat(self, name, steps, *more):
        mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(self.asked.ranks)]
        heat = [f"{self.asked.bin}/heat2d", "--grid", self.asked.grid, "--steps", str(steps), "--dir", f"{self.disk}/{name}"]
        return mpirun + heat + list(more)

    def supervised(self, name, command):
        run = [f"{self.asked.bin}/bivouac", "run", "--restarts", "1000000", "--fruitless", "1000000", "--backoff", "0"]
        return run + ["--run-directory", f"{self.disk}/{name}/run", "--quiet", "--"] + command

    def status(self, name):
        with open(f"{self.disk}/{name}/run/status-world.json", encoding="utf-8") as file:
            return json.load(file)

    def attempts(self, name):
        with open(f"{self.disk}/{name}/run/attempts.jsonl", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def close(self):
        shutil.rmtree(self.disk)
        shutil.rmtree(self.memory)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def ranks_of(word):
    """Processes of heat2d whose command line has this word in it."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/heat2d") and word.encode() in words:
            found.append(int(path.split("/")[2]))
    return sorted(found)


def kill(processes):
    for process in processes:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def timed(command, environment, killer=None):
    """Seconds that it takes, and what it printed."""
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        failures = killer(process) if killer else None
        status = process.wait()
        took = time.monotonic() - begun
        log.seek(0)
        text = log.read()
    if status != 0:
        sys.exit(f"{command} ended with {status}:\n{text[-3000:]}")
    return took, text, failures


def killer_of(bed, name, asked):
    """Kills until the job is done: a failure after each time that the seed draws, of the kind that it draws."""
    draws = random.Random(asked.seed)
    store = f"{bed.disk}/{name}"

    def killer(process):
        failures = {"process": 0, "reboot": 0, "missed": 0}
        due = time.monotonic() + draws.expovariate(1 / asked.mtbf)
        while process.poll() is None:
            if time.monotonic() < due:
                time.sleep(0.01)
                continue
            due += draws.expovariate(1 / asked.mtbf)
            kind = "reboot" if draws.random() < asked.reboots else "process"
            victim = draws.randrange(asked.ranks)
            ranks = ranks_of(store)
            if not ranks:
                # Nothing has been started again yet that could fail.
                failures["missed"] += 1
                continue
            if kind == "reboot":
                kill(ranks)
                for path in glob.glob(f"{bed.memory}/*"):
                    os.unlink(path) if not os.path.isdir(path) else shutil.rmtree(path, ignore_errors=True)
            else:
                kill([ranks[victim % len(ranks)]])
            failures[kind] += 1
        return failures

    return killer


def main():
    asked = options()
    bed = Bed(asked)
    rows = []

    def tell(**row):
        rows.append(row)
        print(json.dumps(row), flush=True)

    try:
        # The launch itself is no step: the difference of two lengths.
        alone = [timed(bed.heat("alone", steps, "--every", "1000000000"), bed.environment("alone"))[0] for steps in (100, 400)]
        step = (alone[1] - alone[0]) / 300
        tell(figure="alone", step_s=step, launch_s=alone[0] - 100 * step, ranks=asked.ranks, grid=asked.grid)

        pattern = {"BIVOUAC_INTERVAL_SECONDS": str(asked.interval), "BIVOUAC_LOCAL_EVERY": str(asked.every), "BIVOUAC_INTERVAL_MTBF": f"{asked.mtbf}s"}
        profile = f"{bed.disk}/profile.toml"
        steps = int(min(asked.seconds / 6, 120) / step)
        begun = bed.environment("costs", **pattern, BIVOUAC_PLAN_PROFILE=profile)
        took, text, _ = timed(bed.supervised("costs", bed.heat("costs", steps)), begun)
        status = bed.status("costs")
        measured = read(profile)
        tell(figure="costs", steps=steps, seconds=took, lost=took - alone[0] + 100 * step - steps * step, tuned=status["tuned"], levels=status["levels"], blocked_s=status["root_blocked_seconds"], profile=measured)

        steps = int(asked.seconds * 0.8 / step)
        # The last attempt adds what a restart takes.
        killed = bed.environment("killed", **pattern, BIVOUAC_PLAN_PROFILE=profile)
        took, text, failures = timed(bed.supervised("killed", bed.heat("killed", steps)), killed, killer_of(bed, "killed", asked))
        attempts = bed.attempts("killed")
        between = [after["began"] - before["ended"] for before, after in zip(attempts, attempts[1:])]
        restored = [float(seconds) for seconds in re.findall(r"^restored .* seconds=(\S+)", text, re.M)]
        tell(figure="killed", steps=steps, seconds=took, work_s=steps * step, efficiency=steps * step / took, failures=failures, attempts=len(attempts), between_s=sum(between) / max(1, len(between)), restored_s=sum(restored) / max(1, len(restored)), tuned=bed.status("killed")["tuned"], mtbf_s=asked.mtbf, reboots=asked.reboots, seed=asked.seed, profile=read(profile))
    finally:
        bed.close()
    if asked.out:
        with open(asked.out, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
