#!/usr/bin/env python3
"""Measures PowerSGD in one round and in two where latency counts: a table of ms, on loopback and over a cable with latency.

In each row one job takes turns with the hooks, so that other work on the machine affects all of them; times are the lower
quartile over all turns of the backward pass. Every turn compares the replicas bit by bit. Root only. docs/benchmarks.md has results.
"""

import argparse
import contextlib

from link import DelayedLink
from teams import Team

HOOKS = {"two rounds": "powersgd:start=0", "one round": "powersgd:start=0,rounds=1"}
ROWS = {
    "4 of 256 x 256, 1 bucket": ["layers=4", "width=256", "bucket_mb=1000"],
    "10 of 64 x 64, a bucket each": ["layers=10", "width=64", "bucket_mb=0.01"],
    "100 of 64 x 64, a bucket each": ["layers=100", "width=64", "bucket_mb=0.01"],
}
STEPS = 49
SKIPPED = 6  # steps after a hook was set, in which it learns its buckets


def lower_quartile(times):
    return sorted(times)[len(times) // 4]


def measure(arguments, rounds, place):
    """The milliseconds of the backward pass for each hook."""
    times = {name: [] for name in HOOKS} | {"noop": []}
    # noop gets a separate job, because its replicas drift apart.
    with Team("brigade", 2, arguments, **place) as team, Team("brigade", 2, arguments + ["hook=noop"], **place) as alone:
        for _ in range(rounds):
            for name, hook in HOOKS.items():
                team.ask(f"hook {hook}")
                times[name] += team.turn(SKIPPED + STEPS)["backward"][SKIPPED:]
            times["noop"] += alone.ask(f"turn {SKIPPED + STEPS}")[0]["backward"][SKIPPED:]
    return {name: 1e3 * lower_quartile(found) for name, found in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency", type=int, default=200, help="microseconds each way; 0: loopback")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each hook")
    parser.add_argument("--rows", type=int, default=len(ROWS), help="only the first so many")
    options = parser.parse_args()
    why = DelayedLink.missing() if options.latency else ""
    if why:
        parser.exit(1, f"no link with latency: {why}\n")
    print(f"| layers, buckets, {options.latency} µs | two rounds | one round | noop | one / two | reduction alone |")
    print("| --- " * 6 + "|")
    with DelayedLink(options.latency) if options.latency else contextlib.nullcontext() as link:
        place = {"hosts": link.hosts, "address": link.address, "interface": link.interface} if link else {}
        for what, arguments in list(ROWS.items())[:options.rows]:
            found = measure(arguments, options.rounds, place)
            two, one, noop = found.values()
            cells = " | ".join(f"{value:.2f}" for value in found.values())
            print(f"| {what} | {cells} | {one / two:.2f} | {(one - noop) / (two - noop):.2f} |", flush=True)


if __name__ == "__main__":
    main()
