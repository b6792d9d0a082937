#!/usr/bin/env python3
"""Time that a real job loses to checkpoints and failures, and what `bivouac plan` predicted: heat2d under `bivouac run`, killed at times
that a seed draws.

    benches/predicted.py --bin DIR [--seconds S] [--mtbf S] [--ranks N] [--grid NXxNY]
                         [--interval S] [--every N] [--seed N] [--out FILE]

1. Without checkpoints: how long a launch and a step take, from runs of two lengths, the longer one as long as the next run; and how
   long mpirun continues when a rank is killed.
2. With checkpoints, but without kills: what they cost. The plan uses its profile and these two times.
3. The plan: 2,000 jobs of S seconds are simulated with that profile.
4. About S seconds with a failure each MTBF seconds on average: of a process (one rank is killed, node memory stays), or of a node that comes back (all ranks are
   killed and node memory is removed), in the share of cases that the plan assumes. Its work is a number of steps of run 1.

Nothing else should run on the machine. Prints a line of JSON for each. DIR holds `bivouac` and `heat2d`; mpirun is the one in PATH.
"""

import argparse
import glob
import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--mtbf", type=float, default=60)
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


def timed(command, environment, killer=None, fails=False):
    """Seconds that it takes, and what it printed."""
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        failures = killer(process) if killer else None
        status = process.wait()
        took = time.monotonic() - begun
        log.seek(0)
        text = log.read()
    if (status != 0) != fails:
        sys.exit(f"{command} ended with {status}:\n{text[-3000:]}")
    return took, text, failures


def killer_of(bed, name, asked, reboots):
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
            kind = "reboot" if draws.random() < reboots else "process"
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


def ending(bed, asked, launch):
    """Seconds from the end of one rank until mpirun ends."""
    store = f"{bed.disk}/alone"

    def killer(process):
        time.sleep(launch + 1.0)
        kill(ranks_of(store)[:1])
        killed = time.monotonic()
        process.wait()
        return time.monotonic() - killed

    command = bed.heat("alone", 1_000_000_000, "--every", "1000000000")
    return timed(command, bed.environment("alone"), killer, fails=True)[2]


def planned(bed, asked, profile, relaunch):
    """What is to be expected of a job of that length."""
    command = [f"{asked.bin}/bivouac", "plan", "--json", "--profile", profile, "--mtbf", f"{asked.mtbf}s", "--relaunch", f"{relaunch}s"]
    command += ["--simulate", "2000", "--duration", f"{asked.seconds}s"]
    plan = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    rates = [level["failures_per_s"] for level in plan["levels"]]
    played = plan["simulated"]
    told = {key: played[key] for key in ("efficiency", "percentiles", "checkpoints", "levels")}
    return told | {"closed_form": plan["efficiency"], "reboots": sum(rates[1:]) / sum(rates), "pattern": plan["levels"], "relaunch_s": relaunch}


def main():
    asked = options()
    bed = Bed(asked)
    rows = []

    def tell(**row):
        rows.append(row)
        print(json.dumps(row), flush=True)

    def alone(steps):
        return timed(bed.heat("alone", steps, "--every", "1000000000"), bed.environment("alone"))[0]

    try:
        short = alone(200)
        # A guess of a step, for the lengths that tell it.
        guess = (alone(5200) - short) / 5000
        steps = int(min(asked.seconds / 6, 120) / guess)
        long = alone(steps)
        step = (long - short) / (steps - 200)
        launch = short - 200 * step
        ends = [ending(bed, asked, launch) for _ in range(3)]
        relaunch = launch + statistics.median(ends)
        tell(figure="alone", step_s=step, launch_s=launch, ends_s=ends, steps=steps, ranks=asked.ranks, grid=asked.grid, cores=os.cpu_count())

        pattern = {"BIVOUAC_INTERVAL_SECONDS": str(asked.interval), "BIVOUAC_LOCAL_EVERY": str(asked.every), "BIVOUAC_INTERVAL_MTBF": f"{asked.mtbf}s"}
        profile = f"{bed.disk}/profile.toml"
        begun = bed.environment("costs", **pattern, BIVOUAC_PLAN_PROFILE=profile)
        took, _, _ = timed(bed.supervised("costs", bed.heat("costs", steps)), begun)
        status = bed.status("costs")
        tell(figure="costs", seconds=took, lost=(took - long) / took, tuned=status["tuned"], levels=status["levels"], blocked_s=status["root_blocked_seconds"], profile=read(profile))
        expected = planned(bed, asked, profile, relaunch)
        tell(figure="planned", **expected)

        # So many that the job takes about as long as it was asked for.
        steps = int(asked.seconds * expected["efficiency"] / step)
        killed = bed.environment("killed", **pattern, BIVOUAC_PLAN_PROFILE=profile)
        took, text, failures = timed(bed.supervised("killed", bed.heat("killed", steps)), killed, killer_of(bed, "killed", asked, expected["reboots"]))
        # The first launch is no loss to failures or checkpoints.
        efficiency = steps * step / (took - launch)
        attempts = bed.attempts("killed")
        between = [after["began"] - before["ended"] for before, after in zip(attempts, attempts[1:])]
        restored = [float(seconds) for seconds in re.findall(r"^restored .* seconds=(\S+)", text, re.M)]
        low, middle, high = expected["percentiles"]
        tell(figure="killed", steps=steps, seconds=took, work_s=steps * step, efficiency=efficiency, planned=[low, middle, high], inside=low <= efficiency <= high, failures=failures, attempts=len(attempts), between_s=statistics.mean(between or [0]), restored_s=statistics.mean(restored or [0]), tuned=bed.status("killed")["tuned"], mtbf_s=asked.mtbf, seed=asked.seed, profile=read(profile))
        tell(figure="planned behind", **planned(bed, asked, profile, relaunch))
    finally:
        bed.close()
    if asked.out:
        with open(asked.out, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
