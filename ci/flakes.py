"""What ci/flakes.sh stores and sums up.

flakes.py store RESULTS KEPT LINE   adds what the junit files in the folder KEPT say to LINE, and LINE to RESULTS
flakes.py many RESULTS LINE SECONDS COPIES NAME=PROGRAM...
                                    runs test programs over and over, COPIES at once, and adds LINE with what came of it
flakes.py sum RESULTS PURE COMMIT   repeats of each class of test programs since COMMIT; PURE matches those that start no process
"""

import collections
import glob
import json
import os
import re
import subprocess
import sys
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
                # What ended with an interruption is no failure.
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
    # How many tests of each program were run, over all repeats, and how many it has.
    ran = {name: [count, len(programs[name]["testcases"])] for name, count in sorted(ran.items())}
    write(results, json.loads(line) | {"ran": ran, "runs": runs, "failures": failures})


def write(results, entry):
    with open(results, "a") as file:
        file.write(json.dumps(entry) + "\n")
    count = sum(count for count, _ in entry["ran"].values())
    print(f"{count} tests in {entry['seconds']} s, {len(entry['failures'])} failed; stored in {results}")
    for failure in entry["failures"]:
        print(f"  failed: {failure}")


def many(results, line, seconds, copies, *programs):
    programs = [program.partition("=")[::2] for program in programs]
    lock, began = threading.Lock(), time.monotonic()
    ran, tests, runs, failures = collections.Counter(), {}, collections.Counter(), []

    def repeat(turn):
        while time.monotonic() - began < float(seconds):
            name, path = programs[turn % len(programs)]
            turn += 1
            try:
                done = subprocess.run([path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                      timeout=300, text=True, errors="replace")
                text, status = done.stdout, done.returncode
            except subprocess.TimeoutExpired as expired:
                text, status = (expired.stdout or b"").decode(errors="replace"), None
            counts = re.search(r"test result: \w+\. (\d+) passed; (\d+) failed", text)
            failed = [f"{name} {test}" for test in re.findall(r"^test (\S+) \.\.\. FAILED", text, re.MULTILINE)]
            if status != 0 and not failed:
                failed = [f"{name} ({'time-out' if status is None else f'status {status}'})"]
            with lock:
                failures.extend(failed)
                if counts:
                    tests[name] = sum(map(int, counts.groups()))
                    ran[name] += tests[name]
                    runs[name] += 1
                if failed:
                    print(f"after {time.monotonic() - began:.0f} s: {', '.join(failed)}", flush=True)
                    os.makedirs("target/flakes", exist_ok=True)
                    with open(f"target/flakes/many-{os.getpid()}-{len(failures)}.log", "w") as file:
                        file.write(text)

    workers = [threading.Thread(target=repeat, args=[turn]) for turn in range(int(copies))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    ran = {name: [count, tests[name]] for name, count in sorted(ran.items())}
    entry = json.loads(line) | {"seconds": round(time.monotonic() - began), "copies": int(copies)}
    write(results, entry | {"ran": ran, "runs": min(runs.values(), default=0), "failures": failures})


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
