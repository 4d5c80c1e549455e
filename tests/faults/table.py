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
    """The fault and the value of `each` that this name stands for."""
    for fault in FAULTS:
        for each, value in fault.variants():
            if each == name:
                return fault, value
    raise SystemExit(f"no fault is named '{name}'")


def _ways(fault, value, quick, everything):
    """Pairs a row's first value with each way to start a job (or the quick ones); other values take one way each, in turn."""
    number = fault.each.index(value) if fault.each else 0
    if quick:
        return fault.quick if number == 0 else ()
    if number == 0 or everything:
        return fault.jobs
    # Python takes seconds to start.
    native = [way for way in fault.jobs if not way.startswith("py-")] or fault.jobs
    return (native[number % len(native)],)


def cases(everything=False, quick=False):
    """Yields (name, way, hook). Hooks take turns, so that each meets faults of every kind; `everything` combines all hooks and ways."""
    turn = itertools.cycle(HOOKS)
    for fault in FAULTS:
        for name, value in fault.variants():
            for way in _ways(fault, value, quick, everything):
                for hook in HOOKS if everything else [next(turn)]:
                    yield name, way, hook
