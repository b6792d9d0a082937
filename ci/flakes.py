"""What ci/flakes.sh stores and sums up.

flakes.py store RESULTS KEPT LINE   adds what the junit files in the folder KEPT say to LINE, and LINE to RESULTS
flakes.py many RESULTS LINE SECONDS COPIES NAME=PROGRAM...
                                    runs test programs over and over, COPIES at once, and adds LINE with the outcome
flakes.py sum RESULTS PURE COMMIT   repeats of each class of test programs since COMMIT; PURE matches those that start no process
"""

import collections
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree


def store(results, kept, line):
    with open(f"{kept}/tests.json") as file:
        programs = json.load(file)["rust-suites"]
    ran, failures, runs = collections.Counter(), [], 0
    for path in glob.glob(f"{kept}/run-*.xml") + glob.glob(f"{kept}/part.xml"):
        is_whole = not path.endswith("/part.xml")
        runs += is_whole
        for suite in xml.etree.ElementTree.parse(path).getroot().iter("testsuite"):
            for case in suite.iter("testcase"):
                has_failed = case.find("failure") is not None or case.find("error") is not None
                # A test that ended with an interruption is not a failure.
                if case.find("skipped") is not None or (has_failed and not is_whole):
                    continue
                ran[suite.get("name")] += 1
                if has_failed:
                    failures.append(f"{suite.get('name')} {case.get('name')}")
        os.remove(path)
    for rest in ["cargo.json", "binaries.json", "tests.json"]:
        os.remove(f"{kept}/{rest}")
    if not os.listdir(kept):
        os.rmdir(kept)
    if not ran:
        return print("nothing was run, nothing is stored")
    # How many tests of each program were run, over all repeats, and how many the program has.
    ran = {name: [count, len(programs[name]["testcases"])] for name, count in sorted(ran.items())}
    write(results, json.loads(line) | {"ran": ran, "runs": runs, "failures": failures})


def write(results, entry):
    with open(results, "a") as file:
        file.write(json.dumps(entry) + "\n")
    count = sum(count for count, _ in entry["ran"].values())
    print(f"{count} tests in {entry['seconds']} s, {len(entry['failures'])} failed; stored in {results}")
    for failure in entry["failures"]:
        print(f"  failed: {failure}")


def tests_of(program):
    listed = subprocess.run([program, "--list", "--format", "terse"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^(\S+): test$", listed, re.MULTILINE)


def run_once(path, limit):
    """Runs a program in a session of its own; ends all of that session after `limit` s. Returns what it printed and its status."""
    with tempfile.TemporaryFile() as out:
        started = subprocess.Popen([path], stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = started.wait(limit)
        except subprocess.TimeoutExpired:
            status = None
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        out.seek(0)
        return out.read().decode(errors="replace"), status


def many(results, line, seconds, copies, *programs):
    programs = [program.partition("=")[::2] for program in programs]
    tests = {name: tests_of(path) for name, path in programs}
    lock, began = threading.Lock(), time.monotonic()
    ran, runs, failures = collections.Counter(), collections.Counter(), []

    def judge(name, text, status):
        """How many of the tests of a run ended, and which of them failed."""
        ended = dict(re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (ok|FAILED)", text, re.MULTILINE))
        failed = [f"{name} {test}" for test, how in ended.items() if how == "FAILED"]
        if status is None:
            failed += [f"{name} {test} (no end)" for test in tests[name] if test not in ended]
        elif status != 0 and not failed:
            failed = [f"{name} (status {status})"]
        return len(ended), failed

    def entry():
        so_far = {name: [count, len(tests[name])] for name, count in sorted(ran.items())}
        about = {"seconds": round(time.monotonic() - began), "copies": int(copies)}
        return json.loads(line) | about | {"ran": so_far, "runs": min(runs.values(), default=0), "failures": failures}

    def keep(so_far):
        # The results so far are not lost if this is killed.
        with open("target/flakes/many.part", "w") as file:
            json.dump(so_far, file)

    def repeat(turn):
        while time.monotonic() - began < float(seconds):
            name, path = programs[turn % len(programs)]
            turn += 1
            text, status = run_once(path, 300)
            with lock:
                count, failed = judge(name, text, status)
                ran[name] += count
                runs[name] += status is not None
                failures.extend(failed)
                if failed:
                    print(f"after {time.monotonic() - began:.0f} s: {', '.join(failed)}", flush=True)
                    with open(f"target/flakes/many-{os.getpid()}-{len(failures)}.log", "w") as file:
                        file.write(text)
                keep(entry())

    os.makedirs("target/flakes", exist_ok=True)
    workers = [threading.Thread(target=repeat, args=[turn]) for turn in range(int(copies))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    write(results, entry())
    os.remove("target/flakes/many.part")


def is_since(commit, since):
    answer = subprocess.run(["git", "merge-base", "--is-ancestor", since, commit], stderr=subprocess.DEVNULL)
    return answer.returncode == 0


def total(results, pure, since):
    with open(results) as file:
        entries = [json.loads(line) for line in file if line.strip()]
    known = {commit: is_since(commit, since) for commit in {entry["commit"] for entry in entries}}
    entries = [entry for entry in entries if known[entry["commit"]]]
    ran, tests, failures = collections.Counter(), {}, collections.Counter()
    for entry in entries:
        for name, (count, of) in entry["ran"].items():
            ran[name] += count
            tests[name] = of
        failures.update(entry["failures"])
    print(f"since {since[:12]}: {len(entries)} lines of {results}")
    for label, is_of in [("tests that start no process", True), ("tests that start processes", False)]:
        names = [name for name in ran if bool(re.search(pure, name)) == is_of]
        if not names:
            print(f"{label}: none was repeated")
            continue
        repeats = {name: ran[name] / tests[name] for name in names}
        average = sum(ran[name] for name in names) / sum(tests[name] for name in names)
        print(f"{label}: {average:.1f} repeats of each on average, of those of each program:")
        for name in sorted(names, key=repeats.get):
            print(f"  {repeats[name]:8.1f}  {name} ({tests[name]})")
    print(f"failures: {sum(failures.values())}")
    for name, count in failures.most_common():
        print(f"  {count} x {name}")


if __name__ == "__main__":
    {"store": store, "many": many, "sum": total}[sys.argv[1]](*sys.argv[2:])
