"""Plays jobs step by step: the reference for `bivouac plan --simulate`.

Reads one JSON document from standard input, {"runs": N, "seed": S, "settings": [...]}, and prints one for each setting: the
efficiency (mean and standard error), failures and time without protection. Each setting has a machine in numbers and a pattern of
checkpoints; src/core/planner/play/reference.rs writes them.

It shares only the meaning of words with the planner: it goes through every segment of work, every capture and every arriving
copy one by one, takes the next failure of every node from one heap, and computes costs from bytes and rates.
"""

import heapq
import json
import math
import random
import sys
import time

ORDER = ["process", "node-reboot", "node-loss", "system"]


class Interrupted(Exception):
    """Something happens before the end of the current activity."""


class Level:
    def __init__(self, name, every, blocks, arrives, recovery):
        self.name, self.every = name, every
        self.blocks, self.arrives, self.recovery = blocks, arrives, recovery


def levels_of(s):
    """The levels of the pattern, with their times in seconds."""
    capture = s["state"] / s["capture_rate"]
    how = s["capture"]["how"]
    behind, slower, relaunch = s["behind"], s["slowdown"], s["relaunch"]
    if how == "blocking":
        standing, landing = capture, 0.0
    elif how == "cached":
        standing, landing = s["state"] / s["capture"]["rate"] + slower * capture, capture
    else:
        standing, landing = s["capture"]["fixed"] + s["capture"]["stalls"] * capture, capture
    scheme = s["scheme"]
    sent = {"none": 0, "partner": scheme.get("copies"), "xor": 1}.get(scheme["kind"])
    read = {"none": 0, "partner": 1, "xor": scheme.get("members", 1) - 1}.get(scheme["kind"])
    if scheme["kind"] == "rs":
        sent, read = 1 + (scheme["parity"] - 1) / scheme["data"], scheme["data"]
    local_write = s["state"] / s["local"]["write"] if s["local"] else 0.0
    share = 1.0 - s["others"]
    moves = {
        "node-reboot": (local_write, 0.0, s["local"] and s["state"] / s["local"]["read"]),
        "node-loss": (s["state"] * sent / s["network"], 0.0, s["state"] * read / s["network"]),
        "system": (
            s["global"] and s["state"] * s["nodes"] / (s["global"]["write"] * share),
            local_write,
            s["global"] and s["state"] * s["nodes"] / (s["global"]["read"] * share),
        ),
    }
    levels = []
    for name, every in s["levels"]:
        if name == "process":
            levels.append(Level(name, every, standing, landing, relaunch + capture))
            continue
        takes, first, back = moves[name]
        if behind:
            levels.append(Level(name, every, slower * takes, landing + first + takes, relaunch + back))
        else:
            levels.append(Level(name, every, takes, 0.0, relaunch + back))
    return levels


class Failures:
    """One heap with the next failure of everything."""

    def __init__(self, s, rng):
        self.s, self.rng = s, rng
        self.heap = []
        self.count = 0
        self.rate = s["process"] + s["reboot"] + s["loss"]
        self.chance = s["burst"]["chance"] if s["burst"] else 0.0
        own = self.rate * (1.0 - self.chance)
        self.shape = s["shape"]
        if own > 0:
            self.scale = 1.0 / own / math.gamma(1.0 + 1.0 / self.shape)
            for node in range(s["nodes"]):
                # The node has already run for a long time.
                at = rng.expovariate(own) if self.shape == 1.0 else -20.0 / own
                while at < 0.0:
                    at += self.lasts()
                self.push(at, "node", node)
        for number, domain in enumerate(s["domains"]):
            for which in range(s["nodes"] // domain["nodes"]):
                if domain["rate"] > 0:
                    self.push(rng.expovariate(domain["rate"]), "domain", (number, which))
        if s["system"] > 0:
            self.push(rng.expovariate(s["system"]), "system", None)
        self.push(math.inf, "never", None)

    def lasts(self):
        return self.scale * (-math.log(1.0 - self.rng.random())) ** (1.0 / self.shape)

    def push(self, at, what, which):
        self.count += 1
        heapq.heappush(self.heap, (at, self.count, what, which))

    def next(self):
        return self.heap[0][0]

    def pop(self):
        """The time of the next failure, what is lost (nothing, "memory", "node" or "all"), and on which nodes."""
        at, _, what, which = heapq.heappop(self.heap)
        rng, s = self.rng, self.s
        if what == "system":
            self.push(at + rng.expovariate(s["system"]), what, which)
            return at, "all", []
        if what == "domain":
            domain = s["domains"][which[0]]
            self.push(at + rng.expovariate(domain["rate"]), what, which)
            nodes = list(range(which[1] * domain["nodes"], (which[1] + 1) * domain["nodes"]))
            return at, "memory" if rng.random() < domain["returns"] else "node", nodes
        if what == "node":
            self.push(at + self.lasts(), what, which)
        if rng.random() < self.chance:
            size = s["domains"][0]["nodes"] if s["domains"] else s["nodes"]
            first = which // size * size
            other = rng.randrange(first, min(first + size, s["nodes"]))
            self.push(at + rng.expovariate(1.0 / s["burst"]["delay"]), "following", other)
        kind = rng.random() * self.rate
        if kind < s["process"]:
            return at, "nothing", []
        return at, "memory" if kind < s["process"] + s["reboot"] else "node", [which]


class Peers:
    """The data that nodes keep for each other: ranks are dealt out to sets in order, or have copies at equal steps."""

    def __init__(self, s):
        self.ranks = s["gpus"]
        count = s["nodes"] * self.ranks
        scheme = s["scheme"]
        self.copies = scheme.get("copies", 0)
        self.parity = scheme.get("parity", 1)
        self.step = count // (self.copies + 1)
        self.sets = count // scheme.get("members", scheme.get("data", 1) + self.parity)
        self.count = count
        self.gone, self.missing = set(), set()

    def lose(self, nodes):
        """Loses these nodes, and returns whether all data still exists."""
        self.gone.update(nodes)
        self.missing.update(nodes)
        lost = [rank for node in self.gone for rank in range(node * self.ranks, (node + 1) * self.ranks)]
        if self.copies:
            for node in self.missing:
                for rank in range(node * self.ranks, (node + 1) * self.ranks):
                    holders = [(rank + copy * self.step) % self.count // self.ranks for copy in range(1, self.copies + 1)]
                    if all(holder in self.gone for holder in holders):
                        return False
            return True
        members = {}
        for rank in lost:
            members[rank % self.sets] = members.get(rank % self.sets, 0) + 1
        return max(members.values(), default=0) <= self.parity


class Run:
    def __init__(self, s, rng):
        self.s = s
        self.levels = levels_of(s)
        self.names = [level.name for level in self.levels]
        self.failures = Failures(s, rng)
        self.peers = Peers(s) if "node-loss" in self.names else None
        kept = {"none": 0, "partner": s["scheme"].get("copies"), "xor": 1 / (s["scheme"].get("members", 2) - 1)}
        kept["rs"] = s["scheme"].get("parity", 0) / s["scheme"].get("data", 1)
        self.versions = 10**9
        if s["memory"] is not None:
            self.versions = int(s["memory"] / (s["state"] * (1 + kept[s["scheme"]["kind"]])))
        self.now, self.position = 0.0, 0.0
        self.saved = {name: 0.0 for name in self.names}
        self.exposed, self.exposed_since = 0.0, 0.0
        self.repairs = []
        self.job_began = 0.0
        self.count = 0
        self.end = s["seconds"]

    # ------------------------------------------------------------------ what a failure leaves

    def surviving(self, what, nodes):
        """The names of the levels whose checkpoints can still be used."""
        self.count += 1
        if what == "nothing":
            return set(self.names)
        if self.exposed_since is None:
            self.exposed_since = self.now
        least = {"memory": 1, "node": 2, "all": 3}[what]
        left = {name for name in self.names if ORDER.index(name) >= least}
        if what != "all" and self.peers and not self.peers.lose(nodes):
            left.discard("node-loss")
        if what == "node" and self.s["spares"]:
            self.repairs = [back for back in self.repairs if back > self.now]
            self.repairs += [self.now + self.s["spares"]["repair"]] * len(nodes)
        left.add(self.names[-1])
        return left

    def protected(self, at):
        if self.exposed_since is not None:
            self.exposed += at - self.exposed_since
            self.exposed_since = None
        self.peers.gone.clear()
        self.peers.missing.clear()

    # ------------------------------------------------------------------ a machine that writes in the background

    def until(self, seconds, is_work):
        """Lets this many seconds pass."""
        stop = min(self.failures.next(), self.limit, self.end)
        end = self.now + seconds
        passed = min(end, stop) - self.now
        self.position += passed if is_work else 0.0
        self.now += passed
        if end > stop:
            raise Interrupted

    def session(self):
        """Runs from a start to whatever ends the session; `flights`: the level, the position and the arrival time."""
        self.flights, free = [], {level.name: 0.0 for level in self.levels}
        written = []
        index = 0
        while True:
            self.until(self.s["segment"], True)
            # There must be room for the newest version, and for older ones that are not yet written.
            older = sorted(end for end in written[:-1] if end > self.now)
            room = self.versions - 2
            if len(older) > room:
                self.until(older[len(older) - 1 - room] - self.now, False)
            going = [level for level in self.levels if index % level.every == 0]
            self.until(sum(level.blocks for level in going), False)
            last = self.now
            for level in going:
                free[level.name] = max(free[level.name], self.now) + level.arrives
                self.flights.append((level.name, self.position, free[level.name]))
                last = max(last, free[level.name])
            written = [end for end in written[:-1] if end > self.now] + written[-1:] + [last]
            self.flights = self.arrived()
            index += 1

    def arrived(self):
        """Notes which flights have arrived, and keeps the others."""
        for name, position, end in self.flights:
            if end <= self.now:
                self.saved[name] = max(self.saved[name], position)
                if name == "node-loss":
                    self.protected(end)
        return [flight for flight in self.flights if flight[2] > self.now]

    def recover(self, left):
        while True:
            best = max(self.saved[name] for name in left)
            level = next(level for level in self.levels if level.name in left and self.saved[level.name] == best)
            lower = self.names.index(level.name)
            for at, name in enumerate(self.names):
                if name in left:
                    if at < lower and name != "node-loss":
                        self.saved[name] = best
                    self.saved[name] = min(self.saved[name], best)
                else:
                    self.saved[name] = best if at < lower and name != "node-loss" else 0.0
            begin = self.now
            if self.s["spares"] and len(self.repairs) > self.s["spares"]["count"]:
                begin = max(begin, self.repairs[len(self.repairs) - 1 - self.s["spares"]["count"]])
            end = begin + level.recovery
            if self.failures.next() >= end:
                self.now = end
                self.position = best
                if self.peers:
                    self.peers.missing.clear()
                return
            self.now, what, nodes = self.failures.pop()
            left = left & self.surviving(what, nodes)

    def end_of_job(self):
        """The last checkpoint reaches all levels, and the next job begins with it."""
        self.now += sum(level.blocks for level in self.levels) + self.levels[-1].arrives
        self.now += self.s["limit"]["queue"]
        self.job_began = self.now
        self.now += self.levels[-1].recovery
        if self.exposed_since is None:
            self.exposed_since = self.now
        while self.failures.next() < self.now:
            self.failures.pop()
        self.saved = {name: self.position for name in self.names}

    def behind(self):
        while self.now < self.end:
            self.limit = math.inf
            if self.s["limit"]:
                last = sum(level.blocks for level in self.levels) + self.levels[-1].arrives
                self.limit = max(self.job_began + self.s["limit"]["time"] - last, self.now)
            try:
                self.session()
            except Interrupted:
                self.arrived()
            if self.now >= self.end:
                break
            if self.now >= self.limit:
                self.end_of_job()
                continue
            _, what, nodes = self.failures.pop()
            self.recover(self.surviving(what, nodes))
        if self.exposed_since is not None:
            self.exposed += max(self.end - self.exposed_since, 0.0)
        return self.position / self.end

    # ------------------------------------------------------------------ a machine that stops for each
    # capture, write and recovery

    def needed(self, what, nodes):
        """The number of the lowest level that survives."""
        left = self.surviving(what, nodes)
        return min(self.names.index(name) for name in left)

    def restore(self, own):
        """Failures of a lower level delay the restore, those of the same level begin it again, and one of a higher level ends it."""
        end = self.now + self.levels[own].recovery
        while self.failures.next() < end:
            at, what, nodes = self.failures.pop()
            self.now = at
            other = self.needed(what, nodes)
            if other > own:
                return other
            if other == own:
                end = at + self.levels[own].recovery
                continue
            worse = self.restore(other)
            if worse is None:
                end += self.now - at
            elif worse > own:
                return worse
            else:
                end = self.now + self.levels[own].recovery
        self.now = end
        return None

    def restored(self):
        if self.peers:
            self.peers.missing.clear()

    def blocking(self):
        index, indexes = 0, [0] * len(self.levels)
        while True:
            first = min(self.failures.next(), self.end)
            segment, capture = self.s["segment"], self.levels[0].blocks
            failed = None
            if first <= self.now + segment + capture:
                self.position = (index + min((first - self.now) / segment, 1.0)) * segment
                if first >= self.end:
                    return self.position / self.end
                self.now, what, nodes = self.failures.pop()
                failed = self.needed(what, nodes)
            else:
                self.now += segment + capture
                self.position = (index + 1) * segment
                for number, level in enumerate(self.levels):
                    if number == 0 or (index + 1) % level.every != 0:
                        continue
                    left = level.blocks
                    while left > 0 and failed is None:
                        first = self.failures.next()
                        if min(first, self.end) > self.now + left:
                            self.now += left
                            break
                        if first >= self.end:
                            return self.position / self.end
                        left -= first - self.now
                        self.now, what, nodes = self.failures.pop()
                        failed = self.needed(what, nodes)
                        while failed is not None and failed < number:
                            failed = self.restore(failed)
                    if failed is not None:
                        break
                if failed is None:
                    index += 1
                    for number, level in enumerate(self.levels):
                        if index % level.every == 0:
                            indexes[number] = index
                            if level.name == "node-loss":
                                self.protected(self.now)
            while failed is not None:
                index = max(indexes[failed:])
                indexes[: failed + 1] = [index] * (failed + 1)
                failed = self.restore(failed)
                if failed is None:
                    self.restored()
            if self.now >= self.end:
                return index * segment / self.end

    def play(self):
        return self.behind() if self.s["behind"] else self.blocking()


def main():
    asked = json.load(sys.stdin)
    for number, setting in enumerate(asked["settings"]):
        rng = random.Random(asked["seed"] * 1000 + number)
        began = time.process_time()
        shares, failures, exposed = [], 0, 0.0
        for _ in range(asked["runs"]):
            run = Run(setting, rng)
            shares.append(run.play())
            failures += run.count
            exposed += run.exposed / run.end
        seconds = time.process_time() - began
        mean = sum(shares) / len(shares)
        squares = sum((share - mean) ** 2 for share in shares)
        error = math.sqrt(squares / (len(shares) - 1) / len(shares))
        print(
            json.dumps(
                {
                    "efficiency": mean,
                    "error": error,
                    "failures": failures / asked["runs"],
                    "exposed": exposed / asked["runs"],
                    "seconds": seconds,
                }
            ),
            flush=True,
        )


main()
