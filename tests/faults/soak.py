#!/usr/bin/env python3
"""Kills jobs at random, with restarts: soak.py --bin build/bin [--python PYTHON] [--minutes M | --kills N] [--seed S] [--jobs N].

A round is a job under the next hook, which restarts and resumes by itself; a process of it, chosen by the seed, is killed again and again. It
must end with the parameters of a run without kills, and leave no process and no temporary file. Exit code 0: every round did.

It needs nothing but the brigade program: on a machine to which only that was copied, LD_LIBRARY_PATH must name
LibTorch's folder, python3 -c 'import torch; print(torch.__path__[0] + "/lib")'.
"""
import argparse
import concurrent.futures
import functools
import itertools
import multiprocessing
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import processes  # noqa: E402
from case import Setting, undisturbed_hash  # noqa: E402
from jobs import Failure, Job, wait_until  # noqa: E402
from table import HOOKS  # noqa: E402

STEPS = 600
KILLS = 8  # kills in a round
# Each row is a victim, its signals, and how often of 100.
VICTIMS = (("rank", ("KILL", "KILL", "SEGV", "ABRT", "TERM"), 70), ("all", ("KILL",), 8), ("launcher", ("KILL", "ABRT", "SEGV"), 12),
           ("watch", ("KILL", "SEGV"), 7), ("stopped rank", ("STOP",), 3))


class Round:
    def __init__(self, number, seed, setting):
        self.random = random.Random(f"{seed}.{number}")
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="round_", dir=setting.work))
        hooks = [("run", hook) for hook in HOOKS] + ([("py-run", hook) for hook in HOOKS] if setting.python else [])
        self.way, self.hook = hooks[number % len(hooks)]
        self.job = Job(self.way, self.hook, self.folder, setting, STEPS)
        self.job.run_options = ["--max-restarts", "1000"]
        self.setting = setting
        self.kills = []
        self.watch_is_gone = self.unwatched = False

    def start(self):
        self.job.start()

    def strike(self):
        """Kills once; False if the victim had just ended by itself."""
        who, signals, _ = self.random.choices(VICTIMS, [weight for *_, weight in VICTIMS])[0]
        name = self.random.choice(signals)
        rank = self.random.randrange(2)
        time.sleep(self.random.random() * 0.02)
        try:
            victims = {"launcher": lambda: [self.job.process("launcher")], "watch": lambda: [self.job.process("watch")],
                       "all": lambda: [self.job.rank(0), self.job.rank(1)]}.get(who, lambda: [self.job.rank(rank)])()
            for pid in victims:
                os.kill(pid, getattr(signal, f"SIG{name}"))
        except (IndexError, ProcessLookupError):
            return False
        self.kills.append(f"{name} {who}{f' {rank}' if 'rank' in who else ''} after step {self.job.step()}")
        self.watch_is_gone |= who == "watch"
        if who == "launcher":
            self.unwatched |= self.watch_is_gone
            self.watch_is_gone = False
            self.job.wait(20 * self.setting.slack)
            wait_until(lambda: processes.reap() or not processes.descendants(os.getpid()), 10 * self.setting.slack,
                       "the workers' end after the launcher's")
        return True

    def run(self):
        self.start()
        for number in range(KILLS):
            # Later kills come later, so that the job makes progress.
            target = (number + self.random.random()) * STEPS / (KILLS + 1)
            self.await_step(target)
            if self.job.step() >= STEPS:
                break
            self.strike()
        self.finish()

    def await_step(self, target):
        def there():
            if not self.job.running():
                self.go_on()
            return self.job.step() >= target
        wait_until(there, 120 * self.setting.slack, f"step {target:.0f}")

    def go_on(self):
        """Handles the end of the launcher: after a kill starts it again, after success does nothing, raises on its own failure."""
        code = self.job.members[0].code
        if code == 0:
            return
        if code > 0:
            raise Failure(f"the launcher ended with {code}")
        processes.reap()
        self.start()

    def finish(self):
        def over():
            if self.job.running():
                return False
            self.go_on()
            return not self.job.running()
        wait_until(over, 120 * self.setting.slack, "the end")
        if self.job.hash() != reference(self.way, self.hook, self.setting):
            raise Failure("the parameters are not those of an undisturbed run")
        processes.reap()
        if left := processes.descendants(os.getpid()):
            raise Failure(f"processes are left: {[processes.name_of(pid) for pid in left]}")
        # If the launcher is killed after its guardian, no process cleans up.
        if self.unwatched:
            return
        if left := [path.name for path in self.job.temporary.iterdir() if not path.name.startswith("torch")]:
            raise Failure(f"files are left: {left}")


@functools.cache
def reference(way, hook, setting):
    return undisturbed_hash(way, hook, setting, STEPS)


def run_round(number, seed, setting):
    processes.adopt_orphans()
    one = Round(number, seed, setting)
    begin = time.monotonic()
    why = ""
    try:
        one.run()
    except Failure as failure:
        why = f"{failure}\n{one.job.said()[-6000:]}"
    finally:
        processes.kill_descendants(os.getpid())
    shutil.rmtree(one.folder, ignore_errors=True)
    return {"number": number, "hook": one.hook, "way": one.way, "kills": one.kills, "why": why, "seconds": time.monotonic() - begin}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True, help="the folder of the brigade program")
    parser.add_argument("--python", default="", help="an interpreter that has torch and the brigade package: its jobs too")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kills", type=int, help="so many, instead of --minutes")
    parser.add_argument("--seed", type=int, default=None, help="of who is killed when; a random one is shown")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="rounds at a time")
    parser.add_argument("--slack", type=float, default=2)
    parser.add_argument("--round", type=int, help="only this one")
    return parser.parse_args()


def main():
    options = arguments()
    seed = random.randrange(10**6) if options.seed is None else options.seed
    work = tempfile.mkdtemp(prefix="soak_")
    setting = Setting(options.bin, options.python, options.slack, work)
    print(f"seed {seed}, {options.jobs} rounds at a time", flush=True)
    end = time.monotonic() + options.minutes * 60
    kills, rounds, bad = 0, 0, []

    def more():
        if options.round is not None:
            return False
        return kills < options.kills if options.kills else time.monotonic() < end

    # Each round has a process, which adopts what its job leaves, and nothing of another one.
    with concurrent.futures.ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
        numbers = itertools.count(options.round or 0)
        under_way = {pool.submit(run_round, next(numbers), seed, setting) for _ in range(options.jobs if options.round is None else 1)}
        while under_way:
            done, under_way = concurrent.futures.wait(under_way, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in done:
                result = future.result()
                kills, rounds = kills + len(result["kills"]), rounds + 1
                print(f"round {result['number']:4} {'BAD ' if result['why'] else 'good'} {result['seconds']:5.1f} s  "
                      f"{len(result['kills'])} kills, {kills} in all  {result['way']} {result['hook']}", flush=True)
                if result["why"]:
                    bad.append(result)
                    print("    " + "\n".join([*result["kills"], result["why"]]).replace("\n", "\n    "), flush=True)
                if more():
                    under_way.add(pool.submit(run_round, next(numbers), seed, setting))
    shutil.rmtree(work, ignore_errors=True)
    print(f"seed {seed}: {kills} kills in {rounds} rounds; {rounds - len(bad)} ended with the undisturbed run's parameters, "
          f"{len(bad)} did not")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
