#!/usr/bin/env python3
"""Compares our DDP and hooks with torch's own, in one run: prints a table, and writes build/bench/results.json.

Two jobs are started side by side and take turns of some steps each, so that other work on the machine
affects both alike; a ratio is the median over the rounds of (median of our turn / median of the other's).
Every job is verified in the same run: wrong gradients or replicas that differ end it with exit code 1.
A missed target does not. docs/benchmarks.md has the formulas.
"""

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from statistics import median

import package_rows
from link import Link
from teams import BUILD, ROOT, Team, WrongResult

# The largest error allowed in any gradient, as a share of the parameter's largest one.
TOLERANCE = {"none": 1e-5, "allreduce": 1e-5, "noop": math.inf, "fp16": 2e-3, "bf16": 2e-2, "int8": 3e-2, "int4": 0.3,
             "fixed": 1e-5, "topk": math.inf, "randomk": math.inf,  # they send only a share of the values in each step
             "quantize_per_channel": 3e-2, "quantize_per_tensor": 3e-2, "powersgd": 1e-3,
             "batched_powersgd": math.inf}  # it takes the whole bucket as one matrix; replicas are still compared
# The same for the changes of a step; Adam magnifies the rounding of small gradients.
STEP_TOLERANCE = 2e-2
SMALL = ["layers=3", "width=64", "batch=8"]
MB16 = ["layers=4", "width=1024", "batch=8"]
MB64 = ["layers=16", "width=1024", "batch=8"]
MB100 = ["layers=25", "width=1024", "batch=8"]
ONE_BUCKET = ["bucket_mb=1000"]
HOOKS_WITH_MEMORY = ["allreduce", "fp16", "bf16", "quantize_per_tensor", "quantize_per_channel", "int8",
                     "powersgd:rank=1,start=0", "powersgd:rank=2,start=0", "batched_powersgd:rank=1,start=0"]


def tolerance(hook):
    return TOLERANCE[hook.partition(":")[0]]


def p10(times):
    return sorted(times)[len(times) // 10]


def ratios(turns, rounds, key):
    """`turns`: two functions that each train for a turn. Returns their times, and the ratio of the first to the second."""
    times = [[], []]
    for number in range(rounds + 1):
        order = (0, 1) if number % 2 else (1, 0)
        for which in order:
            found = turns[which]()[key]
            if number > 0:  # the first round is warm-up
                times[which].append(found)
    per_round = [median(ours) / median(other) for ours, other in zip(*times)]
    ours, other = ([time for turn in side for time in turn] for side in times)
    return {"ours_ms": 1e3 * median(ours), "other_ms": 1e3 * median(other),
            "ours_p10_ms": 1e3 * p10(ours), "other_p10_ms": 1e3 * p10(other),
            "value": median(per_round), "p10_ratio": p10(ours) / p10(other),
            "per_round": per_round, "lowest": min(per_round), "highest": max(per_round)}


class Report:
    def __init__(self):
        self.rows = []

    def add(self, what, target, result, above=False, unit="x"):
        """`above`: the target is a lower bound."""
        reached = result["value"] >= target if above else result["value"] <= target
        row = {"what": what, "target": target, "at_least": above,
               "verdict": "reached" if reached else "MISSED", "unit": unit, **result}
        self.rows.append(row)
        self.show(row)

    def skip(self, what, why):
        self.rows.append({"what": what, "verdict": "skipped", "why": why})
        self.show(self.rows[-1])

    @staticmethod
    def show(row):
        if row["verdict"] == "skipped":
            print(f"{row['what']:<60} skipped: {row['why']}", flush=True)
            return
        bound = f"{'≥' if row['at_least'] else '≤'} {row['target']:g}"
        times = f"{row['ours_ms']:9.2f} {row['other_ms']:9.2f} ms" if "ours_ms" in row else " " * 22
        spread = f"{row['lowest']:.2f} … {row['highest']:.2f}, p10 {row['p10_ratio']:.2f}" if "lowest" in row else row.get("note", "")
        print(f"{row['what']:<60}{times}  {row['value']:6.3f}  {bound:<7} {row['verdict']:<8} {spread}",
              flush=True)


def against_torch(report, what, target, ranks, arguments, hook, steps, rounds, key):
    arguments = arguments + [f"hook={hook}"]
    with Team("brigade", ranks, arguments) as ours, Team("torch", ranks, arguments) as torch:
        for team in (ours, torch):
            team.verify(tolerance(hook))
        report.add(what, target,
                   ratios([lambda: ours.turn(steps), lambda: torch.turn(steps)], rounds, key))


def ddp_rows(report, rounds):
    against_torch(report, "DDP, three Linear(64,64), 1 rank: step / torch's", 0.6, 1, SMALL, "none", 300, rounds, "step")
    against_torch(report, "DDP, three Linear(64,64), 2 ranks: step / torch's", 0.9, 2, SMALL, "none", 200, rounds, "step")
    against_torch(report, "DDP, 100 MB of gradients, 2 ranks: step / torch's", 1.02, 2, MB100, "none", 5, rounds, "step")


def memory_of(kind, arguments, hook="none", ranks=2, bound=None):
    """The peak memory of steady training beyond the model's own, in bytes; then verifies the result."""
    with Team(kind, ranks, arguments + [f"hook={hook}"]) as team:
        team.turn(4)
        peak = team.turn(6)["peak_kb"]
        if kind == "brigade":
            team.ask(f"hook {hook}")  # starts without an error fed back from other data
        team.verify(tolerance(hook) if bound is None else bound)
        return 1024 * (peak - team.started[0]["base_kb"])


def memory_row(report):
    gradients = 25 * 4 * (1024 * 1024 + 1024)
    ours, torch = (memory_of(kind, MB100) / gradients for kind in ("brigade", "torch"))
    report.add("DDP, bucket views: peak memory beyond the model / torch's", 1.05,
               {"value": ours / torch, "note": f"{ours:.2f} and {torch:.2f} x the gradients"})


def hook_rows(report, rounds):
    with Team("brigade", 2, MB16) as bare, Team("brigade", 2, MB16 + ["hook=allreduce"]) as hooked:
        bare.verify(tolerance("none"))
        hooked.verify(tolerance("allreduce"))
        report.add("allreduce hook, 16 MB: backward / without a hook", 1.05,
                   ratios([lambda: hooked.turn(10), lambda: bare.turn(10)], rounds, "backward"))
    for hook, target in (("fp16", 0.75), ("bf16", 0.9)):
        against_torch(report, f"{hook}, 16 MB: backward / torch's hook", target, 2, MB16, hook, 10, rounds, "backward")
    for rank in (1, 2):
        against_torch(report, f"powersgd rank {rank}, 16 MB, 1 bucket: backward / torch's hook", 0.6, 2,
                      MB16 + ONE_BUCKET, f"powersgd:rank={rank},start=2", 10, rounds, "backward")


def link_rows(report, rounds):
    rows = [("int8", 0.36), ("quantize_per_channel", 0.40)]
    text = "{}, 64 MB, 1 Gbit/s: backward / fp32's"
    why = Link.missing()
    if why:
        for hook, _ in rows:
            report.skip(text.format(hook), why)
        return
    with Link("1gbit") as link:
        def team(hook):
            return Team("brigade", 2, MB64 + [f"hook={hook}"], link.hosts, link.address, link.interface)
        with team("none") as plain:
            plain.verify(tolerance("none"))
            for hook, target in rows:
                with team(hook) as hooked:
                    hooked.verify(tolerance(hook))
                    result = ratios([lambda: hooked.turn(3), lambda: plain.turn(2)], max(3, rounds // 2), "backward")
                    report.add(text.format(hook), target, result)


def optimizer_rows(report, rounds):
    """Compares the optimizer in the backward pass with torch's after it."""
    text = "Adam in backward, 64 MB, {}: step / torch::optim's after"

    def compare(where, target, steps, hook="none", **place):
        def team(optimizer):
            return Team("brigade", 2, MB64 + [f"hook={hook}", f"optimizer={optimizer}"], **place)
        with team("adam_in_backward") as ours, team("adam") as after:
            ours.verify(STEP_TOLERANCE)
            after.verify(tolerance(hook))
            report.add(text.format(where), target,
                       ratios([lambda: ours.turn(steps), lambda: after.turn(steps)], rounds, "step"))

    compare("loopback", 1.0, 5)
    why = Link.missing()
    if why:
        for where in ("1 Gbit/s", "1 Gbit/s, fp16"):
            report.skip(text.format(where), why)
        return
    with Link("1gbit") as link:
        place = {"hosts": link.hosts, "address": link.address, "interface": link.interface}
        compare("1 Gbit/s", 0.9, 2, **place)
        # With fewer bytes the work that is left to hide beside the wire's time becomes visible.
        compare("1 Gbit/s, fp16", 0.9, 3, hook="fp16", **place)


def zero_rows(report, rounds):
    """Compares ZeRO with plain DDP and brigade's Adam on every rank, after the backward pass."""
    forms = {'the hook "zero"': "adam_zero", "interleaved": "adam_zero_interleaved",
             "after the last bucket": "adam_zero_last", "step() after": "adam_zero_step"}
    with Team("brigade", 2, MB64 + ["optimizer=adam_after"]) as plain:
        plain.verify(tolerance("none"))
        for name, optimizer in forms.items():
            with Team("brigade", 2, MB64 + [f"optimizer={optimizer}"]) as zero:
                zero.verify(tolerance("none") if optimizer == "adam_zero_step" else STEP_TOLERANCE)
                report.add(f"ZeRO, {name}, Adam, 64 MB: step / plain DDP's", 1.1,
                           ratios([lambda: zero.turn(5), lambda: plain.turn(5)], rounds, "step"))


def optimizer_memory():
    """The peak memory of steps after and in the backward pass, beyond the model's, in multiples of the gradients (100 MB)."""
    gradients = 25 * 4 * (1024 * 1024 + 1024)
    print("\npeak memory beyond the model, SGD, 100 MB of gradients, 2 ranks:")
    table = {}
    for views in (0, 1):
        for optimizer in ("sgd", "sgd_in_backward"):
            arguments = MB100 + [f"views={views}", f"optimizer={optimizer}"]
            bound = tolerance("none") if optimizer == "sgd" else STEP_TOLERANCE
            what = f"bucket views {'on' if views else 'off'}, {optimizer}"
            table[what] = memory_of("brigade", arguments, bound=bound) / gradients
            print(f"  {what:<40} {table[what]:6.2f} x the gradients", flush=True)
    return table


def zero_memory():
    """The peak memory of Adam on every rank and of ZeRO's forms, beyond the model's, in multiples of the gradients (100 MB)."""
    gradients = 25 * 4 * (1024 * 1024 + 1024)
    print("\npeak memory beyond the model, Adam, bucket views, 100 MB of gradients, 2 ranks:")
    table = {}
    for optimizer in ("adam_after", "adam_zero", "adam_zero_interleaved", "adam_zero_last", "adam_zero_step"):
        bound = tolerance("none") if optimizer in ("adam_after", "adam_zero_step") else STEP_TOLERANCE
        table[optimizer] = memory_of("brigade", MB100 + [f"optimizer={optimizer}"], bound=bound) / gradients
        print(f"  {optimizer:<40} {table[optimizer]:6.2f} x the gradients", flush=True)
    return table


def codec_rows(report):
    program = BUILD / "bin/codec_bench"
    if not program.exists():
        report.skip("codec kernels", "codec_bench was not built: Google Benchmark is missing")
        return
    out = subprocess.run([program, "--benchmark_format=json"], check=True, capture_output=True, text=True)
    found = json.loads(out.stdout)
    best = found["context"]["kernels"]
    targets = {"fp16": 0.6, "bf16": 0.6, "int8": 0.4}
    for case in found["benchmarks"]:
        isa, codec, kernel = case["name"].split("/")[:3]
        if case.get("error_occurred"):
            raise WrongResult(f"codec kernel {case['name']}: {case['error_message']}")
        if isa == best and codec in targets:
            report.add(f"{codec} {kernel} ({isa}, 1 thread): bandwidth / memcpy's", targets[codec],
                       {"value": case["vs_memcpy"], "note": f"{case['GB/s']:.1f} GB/s"}, above=True)


def hook_memory():
    """Each hook's peak memory beyond that of DDP without one, as a share of the only bucket, of 64 MB."""
    gradients = 16 * 4 * (1024 * 1024 + 1024)
    bare = memory_of("brigade", MB64 + ONE_BUCKET)
    print("\npeak memory beyond that of no hook, one bucket of 64 MB, 2 ranks:")
    table = {}
    for hook in HOOKS_WITH_MEMORY:
        table[hook] = (memory_of("brigade", MB64 + ONE_BUCKET, hook) - bare) / gradients
        print(f"  {hook:<34} {table[hook]:6.2f} x the bucket", flush=True)
    return table


def machine():
    with open("/proc/cpuinfo") as info:
        model = next((line.split(":")[1].strip() for line in info if line.startswith("model name")), "?")
    torch = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"],
                           check=True, capture_output=True, text=True).stdout.strip()
    return {"cpu": model, "cores": os.cpu_count(), "kernel": platform.release(), "torch": torch,
            "load": list(os.getloadavg()), "time": time.strftime("%Y-%m-%d %H:%M")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="turns of each job (default 7)")
    parser.add_argument("--only", default="", help="parts to run, by comma: codec,ddp,memory,hooks,link,python,"
                        "optimizer,zero,hook_memory,optimizer_memory,zero_memory")
    options = parser.parse_args()
    report, here, memory, steps, sharded = Report(), machine(), {}, {}, {}
    print(f"{here['cpu']}, {here['cores']} cores, Linux {here['kernel']}, torch {here['torch']}, "
          f"load {here['load'][0]:.1f}\n")
    print(f"{'':<60}{'ours':>9} {'other':>9}      ratio  target  verdict  over the rounds; of the quickest tenth")
    parts = {"codec": lambda: codec_rows(report), "ddp": lambda: ddp_rows(report, options.rounds),
             "memory": lambda: memory_row(report), "hooks": lambda: hook_rows(report, options.rounds),
             "link": lambda: link_rows(report, options.rounds),
             "python": lambda: package_rows.run(report, options.rounds, ratios, tolerance),
             "optimizer": lambda: optimizer_rows(report, options.rounds),
             "zero": lambda: zero_rows(report, options.rounds),
             "hook_memory": lambda: memory.update(hook_memory()),
             "optimizer_memory": lambda: steps.update(optimizer_memory()),
             "zero_memory": lambda: sharded.update(zero_memory())}
    wanted = [part for part in options.only.split(",") if part] or list(parts)
    unknown = set(wanted) - set(parts)
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; known: {', '.join(parts)}")
    wrong = ""
    try:
        for part in wanted:
            parts[part]()
    except WrongResult as error:
        wrong = str(error)
    here["load_after"] = list(os.getloadavg())
    results = ROOT / "build/bench/results.json"
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps({"machine": here, "rows": report.rows, "hook_memory": memory,
                                   "optimizer_memory": steps, "zero_memory": sharded, "wrong": wrong}, indent=1))
    missed = [row["what"] for row in report.rows if row["verdict"] == "MISSED"]
    print(f"\n{len(report.rows)} rows, {len(missed)} missed; load {here['load_after'][0]:.1f}; {results.relative_to(ROOT)}")
    for what in missed:
        print(f"  MISSED: {what}")
    if wrong:
        sys.exit(f"WRONG RESULT: {wrong}")


if __name__ == "__main__":
    main()
