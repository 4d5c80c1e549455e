#!/usr/bin/env python3
"""Kills workers of elastic jobs at random moments, hook after hook, and says what it found.

soak.py --bin build/bin [--kills 1000] [--minutes 60] [--hooks "none fp16 ..."] [--json FILE]: ends with 1 when a job hung or failed, replicas
differed, or a sample was not trained exactly once an epoch.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

EXACT = {"none", "allreduce", "fp16", "bf16"}
# Separated by spaces: options have commas.
HOOKS = (
    "none allreduce fp16 bf16 int8 int4 topk:ratio=0.1 randomk:ratio=0.1 quantize_per_tensor quantize_per_channel"
    " powersgd:rank=2,min_rate=0.1,start=10 powersgd:rank=1,rounds=1,min_rate=0.1,start=10"
    " batched_powersgd:rank=1,start=10 fp16+int8"
)
END = re.compile(r"end rank (\d+) of (\d+) steps (\d+) kept (\d+) hash (\d+) at \S* ?seen (\w+)")


def run_job(bin_folder, hook, kills, mean_ms, folder):
    words = [bin_folder / "brigade", "run", "--elastic", "--replace", "--max-restarts", 10 * kills, "-n", 4]
    words += [bin_folder / "elastic_trainer", folder, f"hook={hook}", f"kills={kills}", f"mean_ms={mean_ms}"]
    words += ["samples=64", f"epochs={70 * kills}", "pause_ms=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BRIGADE_TIMEOUT": "20"}
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60 + 20 * kills, env=environment)


def faults_of(done, hook, workers=4):
    """What is wrong with a job that has ended, a line each."""
    if done.returncode:
        yield f"exit code {done.returncode}: {done.stderr[-2000:]}"
        return
    ends = END.findall(done.stdout)
    if len(ends) != workers:
        yield f"{len(ends)} of {workers} workers came to the end"
    if len({end[4] for end in ends}) > 1:
        yield "the replicas differ"
    if any(end[2] != end[3] for end in ends):
        yield "what was kept is of another step"
    if hook in EXACT and any(end[5] != "once" for end in ends):
        yield "a sample was not trained exactly once an epoch"


def times_of(folder):
    """Milliseconds from each death until a survivor trains again, and until there were four members again."""
    deaths = [int(line.split()[0]) for line in (folder / "deaths").read_text().splitlines()]
    events = sorted(tuple(map(int, line.split()[:5])) for line in (folder / "events").read_text().splitlines())
    again, replaced = [], []
    for death in deaths:
        again += [event[0] - death for event in events if event[0] >= death][:1]
        replaced += [event[0] - death for event in events if event[0] >= death and event[3] == 4][:1]
    return len(deaths), again, replaced


def line_of(name, times):
    times = sorted(times) or [0]
    return (
        f"{name}: median {statistics.median(times):.0f} ms, 95 % {times[int(0.95 * (len(times) - 1))]} ms, most {times[-1]} ms"
        f" ({len(times)} measured)"
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--hooks", default=HOOKS)
    parser.add_argument("--a-job", type=int, default=20, help="kills in one job")
    parser.add_argument("--mean-ms", type=int, default=3000, help="how long a worker lives, in the mean")
    parser.add_argument("--json", type=pathlib.Path, help="a line for each job is added to this file")
    arguments = parser.parse_args()
    until = time.monotonic() + 60 * arguments.minutes
    killed, wrong, again, replaced, jobs = 0, 0, [], [], 0
    hooks = arguments.hooks.split()
    while killed < arguments.kills and time.monotonic() < until:
        hook = hooks[jobs % len(hooks)]
        jobs += 1
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            try:
                faults = list(faults_of(run_job(arguments.bin, hook, arguments.a_job, arguments.mean_ms, folder), hook))
            except subprocess.TimeoutExpired:
                faults = ["it hung"]
            count, some_again, some_replaced = times_of(folder)
        killed, again, replaced = killed + count, again + some_again, replaced + some_replaced
        wrong += bool(faults)
        if arguments.json:
            line = {"hook": hook, "kills": count, "faults": faults, "again_ms": some_again, "replaced_ms": some_replaced}
            with arguments.json.open("a") as file:
                file.write(json.dumps(line) + "\n")
        print(f"{hook}: {count} kills, {killed} in all; {'; '.join(faults) or 'good'}", flush=True)
    print(f"{killed} kills in {jobs} jobs of 4 workers, {wrong} jobs went wrong")
    print(line_of("survivors train again", again))
    print(line_of("four members again", replaced))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
