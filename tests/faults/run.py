#!/usr/bin/env python3
"""Runs the table of faults: run.py --bin build/bin [--python PYTHON] [--quick] [--only REGEX] [--jobs N] [--page FILE].

Each case is a separate process (case.py). Exit code 0: every case is as the table says.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import page  # noqa: E402
import processes  # noqa: E402
import table  # noqa: E402

CASE_LIMIT = 240  # seconds, even if the driver itself fails


def missing(options):
    """The needs, in the words of Fault.needs, that this machine lacks."""
    lacks = set()
    if os.geteuid() != 0 or subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        lacks.add("root")
    if not list(pathlib.Path(options.bin).resolve().parent.glob("**/libfault_shim.so")):
        lacks.add("shim")
    if not shutil.which("nft"):
        lacks.add("nft")
    return lacks


def choose(options):
    """Returns the cases to run, and those that cannot run here, with what they lack."""
    lacks = missing(options)
    chosen, skipped = [], []
    for name, way, hook in table.cases(options.everything, options.quick):
        if options.only and not re.search(options.only, f"{name}/{way}/{hook}"):
            continue
        fault, _ = table.find(name)
        lacking = lacks & set(fault.needs)
        if way.startswith("py-") and not options.python:
            lacking.add("Python with torch")
        if way.endswith("hosts") and "root" in lacks:
            lacking.add("root")
        if lacking:
            skipped.append((name, way, hook, " and ".join(sorted(lacking))))
        else:
            chosen.append((name, way, hook))
    return chosen, skipped


def run_case(case, options, work):
    command = [sys.executable, str(pathlib.Path(__file__).with_name("case.py")), "--bin", options.bin, "--python", options.python,
               "--slack", str(options.slack), "--work", work, *case]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = process.communicate(timeout=CASE_LIMIT * options.slack)
        return json.loads(out.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        processes.kill_descendants(process.pid)
        process.kill()
        process.communicate()
        return {"good": False, "seconds": None, "why": "the case did not end"}
    except (ValueError, IndexError):
        return {"good": False, "seconds": None, "why": f"the driver failed: {out}{err}"}


def load(file):
    """The results of an earlier run, by case."""
    if not file or not os.path.exists(file):
        return {}
    return {tuple(case): result for case, result in json.loads(pathlib.Path(file).read_text())}


SAVING = threading.Lock()


def save(file, results):
    if file:
        with SAVING:
            pathlib.Path(file).write_text(json.dumps(list(results.items())))


class Progress:
    def __init__(self, count):
        self.count, self.done, self.lock = count, 0, threading.Lock()

    def show(self, case, result):
        with self.lock:
            self.done += 1
            seconds = f"{result['seconds']:5.1f} s" if result["seconds"] is not None else "      -"
            print(f"{self.done:4}/{self.count} {'good' if result['good'] else 'BAD '} {seconds}  {' / '.join(case)}", flush=True)
            if not result["good"]:
                print("    " + result["why"].strip().replace("\n", "\n    "), flush=True)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="the folder of the brigade program")
    parser.add_argument("--python", default="", help="an interpreter that has torch; without it Python's cases are left out")
    parser.add_argument("--quick", action="store_true", help="the part that `make test` runs")
    parser.add_argument("--everything", action="store_true", help="every fault in every way under every hook, instead of in turn")
    parser.add_argument("--only", metavar="REGEX", help="of NAME/WAY/HOOK")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="cases at a time")
    parser.add_argument("--slack", type=float, default=3, help="how many times the promised time is allowed (a busy machine)")
    parser.add_argument("--results", help="a file that keeps results: cases that are good in it are not run again")
    parser.add_argument("--page", help="writes the results as this page")
    parser.add_argument("--list", action="store_true", help="names the cases and runs none")
    options = parser.parse_args()
    has_torch = shutil.which(options.python) and not subprocess.run([options.python, "-c", "import torch"], capture_output=True).returncode
    options.python = options.python if has_torch else ""
    return options


def main():
    options = arguments()
    chosen, skipped = choose(options)
    if options.list:
        print("\n".join(" / ".join(case) for case in chosen))
        return 0
    begin = time.monotonic()
    results = load(options.results)
    to_run = [case for case in chosen if not results.get(case, {}).get("good")]
    progress = Progress(len(to_run))
    work = tempfile.mkdtemp(prefix="faults_")

    def one(case):
        result = run_case(case, options, work)
        progress.show(case, result)
        results[case] = result
        save(options.results, results)

    try:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            list(pool.map(one, to_run))
    finally:
        shutil.rmtree(work, ignore_errors=True)
    bad = [case for case in chosen if not results[case]["good"]]
    for *case, lacking in skipped:
        print(f"     skipped, needs {lacking}: {' / '.join(case)}")
    print(f"{len(chosen) - len(bad)} of {len(chosen)} cases good, {len(skipped)} skipped, in {time.monotonic() - begin:.0f} s")
    for case in bad:
        print("BAD  " + " / ".join(case))
    if options.page:
        page.write(pathlib.Path(options.page), results, skipped, options)
    return 1 if bad or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
