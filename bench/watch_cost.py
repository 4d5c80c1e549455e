#!/usr/bin/env python3
"""What it costs a job to be watched: watch_cost.py [TURNS [STEPS]].

Two jobs of bench/step_bench stand side by side. The ranks of one write the pages of a real launcher, of which `brigade top --every 0.1` draws ten looks a
second and a client scrapes --metrics-port once a second; the other has no pages. The first takes turns of some steps with the other, and with itself while
nobody looks: two processes with the same work may differ by more than what is looked for here. Printed is the ratio of the watched job's step to that of the other turns, median over the rounds, with its quartiles; the same of the quickest tenth of
all steps, which other work on the machine disturbs least; and the processor time that launcher and `brigade top` took in these turns, as a share of all cores.
"""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from statistics import median, quantiles

from compare import ratios
from teams import BUILD, Team

MODELS = {"allreduce, 8 buckets of 1 MB": ["layers=8", "width=512", "batch=64", "bucket_mb=1", "hook=allreduce"],
          "int8, 2 buckets of 8 MB": ["layers=4", "width=1024", "batch=32", "bucket_mb=8", "hook=int8"]}
RANKS = 2


class Watchers:
    """A launcher with pages that nobody has written to yet, and who looks at them: only between go() and halt()."""

    def __init__(self):
        self.launcher = subprocess.Popen([BUILD / "bin/brigade", "run", "-n", str(RANKS), "--metrics-port", "0", "sleep", "3600"],
                                         stderr=subprocess.PIPE, text=True)
        self.address = next(found[0] for line in self.launcher.stderr if (found := re.search(r"http://\S+", line)))
        self.looked, self.drawn = threading.Event(), threading.Event()
        self.top = None
        self.cpu_seconds = self.seconds = 0.0

    def pages(self):
        """The file of each rank's page: in the launcher's status folder."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            for file in pathlib.Path("/dev/shm").glob("brigade_live_*/job.json"):
                pages = [file.parent / f"rank_{rank}" for rank in range(RANKS)]
                if json.loads(file.read_text())["pid"] == self.launcher.pid and all(page.exists() for page in pages):
                    return [str(page) for page in pages]
            time.sleep(0.1)
        raise RuntimeError("the launcher has no workers")

    def begin(self):
        master, slave = pty.openpty()
        self.top = subprocess.Popen([BUILD / "bin/brigade", "top", str(self.launcher.pid), "--every", "0.1"], stdin=slave, stdout=slave,
                                    env={**os.environ, "TERM": "xterm"})
        os.close(slave)
        threading.Thread(target=self.drain, args=(master,), daemon=True).start()
        threading.Thread(target=self.scrape, daemon=True).start()
        if not self.drawn.wait(60):
            raise RuntimeError("brigade top shows nothing")
        self.top.send_signal(signal.SIGSTOP)

    def drain(self, master):
        try:
            while os.read(master, 65536):
                self.drawn.set()
        except OSError:
            os.close(master)

    def scrape(self):
        while True:
            self.looked.wait()
            urllib.request.urlopen(self.address, timeout=30).read()
            time.sleep(1)

    def cpu_until_now(self):
        """Of both processes, in seconds: utime and stime, fields 14 and 15 of proc(5)."""
        def ticks(pid):
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])
        return sum(ticks(process.pid) for process in (self.launcher, self.top)) / os.sysconf("SC_CLK_TCK")

    def go(self):
        self.seconds -= time.monotonic()
        self.cpu_seconds -= self.cpu_until_now()
        self.top.send_signal(signal.SIGCONT)
        self.looked.set()

    def halt(self):
        self.top.send_signal(signal.SIGSTOP)
        self.looked.clear()
        self.cpu_seconds += self.cpu_until_now()
        self.seconds += time.monotonic()

    def end(self):
        for process in (self.top, self.launcher):
            if process:
                process.send_signal(signal.SIGCONT)
                process.terminate()
                process.wait(30)


def watched_turn(team, watchers, steps):
    watchers.go()
    try:
        return team.turn(steps)
    finally:
        watchers.halt()


def measure(model, rounds, steps):
    watchers = Watchers()
    try:
        pages = watchers.pages()
        with Team("brigade", RANKS, model, variables=[{"BRIGADE_STATUS_FILE": page} for page in pages]) as seen, Team("brigade", RANKS, model) as unseen:
            watchers.begin()
            for against, turn in (("another job, without pages", unseen.turn), ("itself, nobody looking", seen.turn)):
                found = ratios([lambda: watched_turn(seen, watchers, steps), lambda turn=turn: turn(steps)], rounds, "step")
                yield against, found, watchers.cpu_seconds / watchers.seconds / os.cpu_count()
    finally:
        watchers.end()


def show(what, found, cpu):
    first, _, third = quantiles(found["per_round"], n=4)
    print(f"| {what} | {found['ours_ms']:.2f} | {found['other_ms']:.2f} | {median(found['per_round']):.4f} | {first:.4f} to {third:.4f} | "
          f"{found['p10_ratio']:.4f} | {100 * cpu:.2f} % |", flush=True)


def main():
    rounds, steps = ([int(word) for word in sys.argv[1:]] + [40, 100][len(sys.argv) - 1:])
    print("| model | against | step ms, watched | not watched | ratio | quartiles over the rounds | of the quickest tenth | watchers' CPU |\n" + "| --- " * 8 + "|")
    for name, model in MODELS.items():
        for against, found, cpu in measure(model, rounds, steps):
            show(f"{name} | {against}", found, cpu)


if __name__ == "__main__":
    main()
