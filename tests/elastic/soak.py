#!/usr/bin/env python3
"""Kills workers of elastic jobs at random moments, hook after hook, and says what it found.

soak.py --bin build/bin [--kills 1000] [--minutes 60] [--hooks "none fp16 ..."] [--slack 1] [--json FILE]

A job is wrong when it hung or failed, its replicas differ, a sample was not trained exactly once an epoch (counted in the ranks' records of their
passes; with an exact hook in the parameters too), or a survivor of a death lost more than one pass. Times are promises as well: survivors have done
a step without the dead worker after 2 s, a replacement takes part in one 5 s after it was started. Longer times are counted, and are a failure when
they are more than 1 % of all, because a machine may delay a process that long. On a busy machine --slack 3 makes these limits three times as long.
Ends with 1 when a job was wrong, or too many times were longer.
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

# Separated by spaces: options have commas.
HOOKS = (
    "none allreduce fp16 bf16 int8 int4 topk:ratio=0.1 randomk:ratio=0.1 quantize_per_tensor quantize_per_channel fixed"
    " powersgd:rank=2,min_rate=0.1,start=10 powersgd:rank=1,rounds=1,min_rate=0.1,start=10"
    " batched_powersgd:rank=1,start=10 fp16+int8 node+int8 rules:seen=allreduce;first*=powersgd(rank=1,min_rate=0.1,start=10);*=int8 auto"
)
# Every sample also counts one in the parameters, to the bit. PowerSGD leaves vectors as they are.
EXACT = ("none", "allreduce", "fp16", "bf16", "fixed", "powersgd", "rules:seen=allreduce")
AGAIN_MS, JOINED_MS = 2000, 5000
ALLOWED = 0.01  # this share of the times may exceed its limit
END = re.compile(r"end rank \d+ of \d+ steps (\d+) kept (\d+) hash (\d+) at \S* ?seen (\w+) generations \d+ counted (\w+) lost (\d+)")


def run_job(bin_folder, hook, kills, mean_ms, folder):
    words = [bin_folder / "brigade", "run", "--elastic", "--replace", "--max-restarts", 10 * kills, "-n", 4]
    words += [bin_folder / "elastic_trainer", folder, f"hook={hook}", f"kills={kills}", f"mean_ms={mean_ms}"]
    words += ["samples=64", f"epochs={70 * kills * mean_ms // 3000}", "pause_ms=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "BRIGADE_TIMEOUT": "20"}
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60 + 20 * kills, env=environment)


def faults_of(done, hook, workers=4):
    """The faults of a job that has ended, a line each."""
    if done.returncode:
        yield f"exit code {done.returncode}: {done.stderr[-2000:]}"
        return
    ends = END.findall(done.stdout)
    if len(ends) != workers:
        yield f"{len(ends)} of {workers} workers came to the end"
    if len({end[2] for end in ends}) > 1:
        yield "the replicas differ"
    if any(end[0] != end[1] for end in ends):
        yield "what was kept is of another step"
    if any(end[4] != "once" for end in ends):
        yield "a sample was not trained exactly once an epoch"
    if hook.startswith(EXACT) and "+" not in hook and any(end[3] != "once" for end in ends):
        yield "a sample does not count once an epoch in the parameters"
    if any(int(end[5]) > 1 for end in ends):
        yield f"a survivor lost {max(int(end[5]) for end in ends)} passes in one failure"


def lines_of(path):
    """The words of each line that is complete."""
    return [line.split() for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def times_of(folder):
    """The deaths, and milliseconds: from each until a step was done in a later generation, from a replacement's start until it had
    done one, from each death until there were four members again."""
    deaths = [(int(line[0]), int(line[3])) for line in lines_of(folder / "deaths")]
    done, joined = [], []
    for path in folder.glob("ledger.*"):
        lines = lines_of(path)
        started = int(lines[0][1])
        mine = [(int(line[3]), int(line[1])) for line in lines if line[0] == "done"]
        done += mine
        if mine and deaths and started > deaths[0][0]:
            joined.append(mine[0][0] - started)
    full = sorted(int(line[0]) for line in lines_of(folder / "events") if line[3] == "4")
    # A worker that died before it took part belongs to no generation.
    again = [min(later) - when for when, generation in deaths if (later := [ms for ms, of in done if of > generation and ms >= when])]
    replaced = [next(ms for ms in full if ms >= when) - when for when, _ in deaths if full and full[-1] >= when]
    return len(deaths), {"again_ms": again, "joined_ms": joined, "replaced_ms": replaced}


def summary_of(times, limit):
    times = sorted(times) or [0]
    return {
        "measured": len(times), "median_ms": statistics.median(times), "p95_ms": times[int(0.95 * (len(times) - 1))], "most_ms": times[-1],
        "limit_ms": limit, "beyond": sum(limit is not None and ms > limit for ms in times),
    }


def line_of(name, summary):
    text = f"{name}: median {summary['median_ms']:.0f} ms, 95 % {summary['p95_ms']} ms, most {summary['most_ms']} ms ({summary['measured']} measured"
    return text + (f", {summary['beyond']} beyond {summary['limit_ms']:.0f} ms)" if summary["limit_ms"] else ")")


def add_line(path, line):
    if path:
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def soak(arguments):
    until = time.monotonic() + 60 * arguments.minutes
    hooks = arguments.hooks.split()
    killed, wrong, jobs = 0, 0, 0
    times = {"again_ms": [], "joined_ms": [], "replaced_ms": []}
    while killed < arguments.kills and time.monotonic() < until:
        hook = hooks[jobs % len(hooks)]
        jobs += 1
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            try:
                kills = min(arguments.a_job, arguments.kills)
                faults = list(faults_of(run_job(arguments.bin, hook, kills, arguments.mean_ms, folder), hook))
            except subprocess.TimeoutExpired:
                faults = ["it hung"]
            count, some = times_of(folder)
        killed += count
        wrong += bool(faults)
        for key, all_times in times.items():
            all_times += some[key]
        add_line(arguments.json, {"hook": hook, "kills": count, "faults": faults, **some})
        print(f"{hook}: {count} kills, {killed} in all; {'; '.join(faults) or 'good'}", flush=True)
    return killed, jobs, wrong, times


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--hooks", default=HOOKS)
    parser.add_argument("--a-job", type=int, default=20, help="kills in one job")
    parser.add_argument("--mean-ms", type=int, default=3000, help="how long a worker lives, in the mean")
    parser.add_argument("--slack", type=float, default=1, help="a factor of the limits of time")
    parser.add_argument("--json", type=pathlib.Path, help="a line for each job is added to this file, and one with the summary")
    arguments = parser.parse_args()
    killed, jobs, wrong, times = soak(arguments)
    summary = {
        "survivors train again": summary_of(times["again_ms"], arguments.slack * AGAIN_MS),
        "a replacement takes part": summary_of(times["joined_ms"], arguments.slack * JOINED_MS),
        "four members again": summary_of(times["replaced_ms"], None),
    }
    late = [name for name, of in summary.items() if of["beyond"] > ALLOWED * of["measured"]]
    print(f"{killed} kills in {jobs} jobs of 4 workers, {wrong} jobs went wrong")
    for name, of in summary.items():
        print(line_of(name, of) + (": TOO MANY" if name in late else ""))
    add_line(arguments.json, {"kills": killed, "jobs": jobs, "wrong": wrong, "late": late, "summary": summary})
    return 1 if wrong or late else 0


if __name__ == "__main__":
    sys.exit(main())
