"""What ci/flakes.sh stores and sums up.

flakes.py store RESULTS KEPT LINE   adds what the junit files in the folder KEPT say to LINE, and LINE to RESULTS
flakes.py sum RESULTS PURE COMMIT   repeats of each class of test programs since COMMIT; PURE matches those that start no process
"""

import collections
import glob
import json
import os
import re
import subprocess
import sys
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
    entry = json.loads(line)
    # How many tests of each program were run, over all repeats, and how many it has.
    entry["ran"] = {name: [count, len(programs[name]["testcases"])] for name, count in sorted(ran.items())}
    entry["runs"] = runs
    entry["failures"] = failures
    with open(results, "a") as file:
        file.write(json.dumps(entry) + "\n")
    print(f"{sum(ran.values())} tests in {entry['seconds']} s, {len(failures)} failed; stored in {results}")
    for failure in failures:
        print(f"  failed: {failure}")


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
    {"store": store, "sum": total}[sys.argv[1]](*sys.argv[2:])
