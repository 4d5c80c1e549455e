#!/usr/bin/env python3
"""Measures the hook `auto` while the link changes under it, and other hooks at each rate: prints a table of ms a step.

One job trains with `auto` from beginning to end; at each rate it trains until it has had time to look again, and then takes turns with
a second job, which has one of the other hooks after the other. Every turn compares the replicas bit by bit. Root only.
docs/benchmarks.md has results.
"""

import argparse
from statistics import median

from link import Link
from teams import Team

MODEL = ["layers=4", "width=512", "batch=8"]  # 4.2 MB of gradients
TO_LOOK_AGAIN = 88  # in steps: 3 windows of 8 to notice, 5 to try two hooks and compare the better one, 3 to spare
TURN = 10


def last_choice(team):
    """The last choice that `auto` wrote to stderr."""
    team.errors[0].seek(0)
    lines = [line.strip() for line in team.errors[0] if line.startswith("brigade: auto")]
    return lines[-1].partition(", ")[2] if lines else "nothing yet"


def measure(auto, rivals, hooks, rounds):
    """The median ms of a step for each hook; "auto" is the first job's."""
    times = {name: [] for name in ["auto", *hooks]}
    for _ in range(rounds):
        times["auto"] += auto.turn(TURN)["step"]
        for hook in hooks:
            rivals.ask(f"hook {hook}")
            rivals.turn(3)
            times[hook] += rivals.turn(TURN)["step"]
    return {name: 1e3 * median(found) for name, found in times.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", default="1gbit,100mbit,10gbit", help="one after the other")
    parser.add_argument("--hook", default="auto")
    parser.add_argument("--against", default="allreduce,fp16,bf16,quantize_per_tensor,quantize_per_channel,int8")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each hook at each rate")
    options = parser.parse_args()
    why = Link.missing()
    if why:
        parser.exit(1, f"no link: {why}\n")
    rates, hooks = options.rates.split(","), options.against.split(",")
    print(f"| link | {options.hook} | {' | '.join(hooks)} | auto / best | it said last |")
    print("| --- " * (len(hooks) + 4) + "|")
    with Link(rates[0]) as link:
        place = {"hosts": link.hosts, "address": link.address, "interface": link.interface}
        with Team("brigade", 2, MODEL + [f"hook={options.hook}"], **place) as auto, Team("brigade", 2, MODEL, **place) as rivals:
            for rate in rates:
                link.change(rate)
                auto.turn(TO_LOOK_AGAIN)
                found = measure(auto, rivals, hooks, options.rounds)
                ratio = found["auto"] / min(found[hook] for hook in hooks)
                cells = " | ".join(f"{value:.1f}" for value in found.values())
                print(f"| {rate} | {cells} | {ratio:.2f} | {last_choice(auto)} |", flush=True)


if __name__ == "__main__":
    main()
