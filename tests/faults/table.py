"""All faults, and the cases that they make: a fault in each way to start a job, under a hook."""
import itertools

from rows import files, hooks, killed, network, rendezvous, resources, stopped

FAULTS = [*killed.ROWS, *stopped.ROWS, *resources.ROWS, *files.ROWS, *rendezvous.ROWS, *network.ROWS, *hooks.ROWS]
SECTIONS = {"Killed": killed.ROWS, "Stopped": stopped.ROWS, "Resources": resources.ROWS, "Files": files.ROWS,
            "Rendezvous and strangers": rendezvous.ROWS, "Network between hosts": network.ROWS,
            "Hooks, and ranks that differ": hooks.ROWS}
HOOKS = ("allreduce", "fp16", "bf16", "quantize_per_tensor", "quantize_per_channel", "powersgd:rank=2,start=2",
         "batched_powersgd:rank=2,start=2", "int8")


def find(name):
    """The fault and the value of each that this name stands for."""
    for fault in FAULTS:
        for each, value in fault.variants():
            if each == name:
                return fault, value
    raise SystemExit(f"no fault is named '{name}'")


def _ways(fault, value, quick):
    """Of the values of a row the quick part takes the first; so does Python, which takes seconds to start, beside C++."""
    first = not fault.each or value == fault.each[0]
    if quick:
        return fault.quick if first else ()
    python_only = all(way.startswith("py-") for way in fault.jobs)
    return [way for way in fault.jobs if first or python_only or not way.startswith("py-")]


def cases(all_hooks=False, quick=False):
    """(name, way, hook) of each. Without `all_hooks` the hooks take turns, so that each meets faults of every kind."""
    turn = itertools.cycle(HOOKS)
    for fault in FAULTS:
        for name, value in fault.variants():
            for way in _ways(fault, value, quick):
                for hook in HOOKS if all_hooks else [next(turn)]:
                    yield name, way, hook
