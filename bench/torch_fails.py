#!/usr/bin/env python3
"""Tries PyTorch's own DDP hooks over Gloo: two ranks train a few steps under each, in separate processes, and a table says what happened.

torch_fails.py    with a Python that has torch, as build/CMakeCache.txt names it (BRIGADE_PYTHON). Takes one to three minutes; loopback only.
"""
import os
import re
import signal
import subprocess
import sys
import tempfile

LIMIT = 20  # seconds for a rank to take its steps
START_LIMIT = 120  # seconds to import torch and connect, on a busy machine
STEPS = 20
WIDTH = 512  # a layer's weights are 1 MB, which is a bucket


def train(hook, state=None, layers=1, scale=1.0):
    """Runs the steps; prints what is in the gradients. `layers`: the number of buckets. `scale`: the factor of the inputs."""
    import torch

    model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH) for _ in range(layers)])
    ddp = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)
    ddp.register_comm_hook(state, hook)
    for _ in range(STEPS):
        ddp.zero_grad()
        ddp(scale * torch.randn(4, WIDTH)).sum().backward()
    finite = all(parameter.grad.isfinite().all() for parameter in model.parameters())
    print("works" if finite else "NaN in the gradients")


def quantize(per):
    from torch.distributed.algorithms.ddp_comm_hooks import quantization_hooks

    train(getattr(quantization_hooks, f"quantization_{per}_hook"))


def power_sgd(batched=False, **more):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    train(powerSGD_hook.batched_powerSGD_hook if batched else powerSGD_hook.powerSGD_hook, state, **more)


def zero_step():
    import torch
    from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH))
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.01)
    ddp.register_comm_hook(None, ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, ddp, optimizer))
    print("works")


def all_reduce():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    train(default_hooks.allreduce_hook)


CONTROL = "all-reduce, to compare"
ROWS = {
    CONTROL: all_reduce,
    "`QUANTIZE_PER_TENSOR`": lambda: quantize("pertensor"),
    "`QUANTIZE_PER_CHANNEL`": lambda: quantize("perchannel"),
    "`POWER_SGD`, one bucket": power_sgd,
    "`POWER_SGD`, two buckets": lambda: power_sgd(layers=2),
    "`BATCHED_POWER_SGD`": lambda: power_sgd(batched=True),
    "`POWER_SGD`, a column that is all zeros": lambda: power_sgd(scale=0.0),
    "`hook_with_zero_step`": zero_step,
}


def rank_main(row, rank, folder):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    dist.barrier()
    signal.alarm(LIMIT)  # ends this process wherever it hangs
    ROWS[row]()
    dist.barrier()  # no connection closes while the other rank still needs it
    dist.destroy_process_group()


def outcome(rank):
    """The outcome of a rank's process."""
    try:
        out, err = rank.communicate(timeout=START_LIMIT)
    except subprocess.TimeoutExpired:
        return f"not known: not begun within {START_LIMIT - LIMIT} s"
    if rank.returncode == -signal.SIGALRM:
        return f"hangs: not done after {LIMIT} s"
    if rank.returncode < 0:
        return f"ends by {signal.Signals(-rank.returncode).name}"
    if rank.returncode == 0:
        return out.strip()
    # An error in a callback comes after "… when running the callback: ".
    errors = re.findall(r"^(?:\[rank\d\]: )?(?:.*callback: )?(\w*Error\b.*)", err, re.MULTILINE)
    return errors[-1].replace("`", "'")[:120] if errors else f"exit code {rank.returncode}"


def run(row):
    """The outcome of both ranks, said once where they agree."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        ranks = [subprocess.Popen([sys.executable, __file__, row, str(rank), folder], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, env=environment) for rank in range(2)]
        try:
            return "; ".join(dict.fromkeys(outcome(rank) for rank in ranks))
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


def main():
    print("| two ranks over Gloo | PyTorch |\n| --- | --- |")
    for row in ROWS:
        came_to = run(row)
        print(f"| {row} | {came_to} |", flush=True)
        if row == CONTROL and came_to != "works":
            sys.exit("torch_fails: not even all-reduce does its steps in time; this machine is too busy to tell what hangs")


if __name__ == "__main__":
    if len(sys.argv) == 4:
        rank_main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:] in (["--help"], ["-h"]):
        print(__doc__.strip())
    elif len(sys.argv) > 1:
        print(f"torch_fails: unknown argument '{sys.argv[1]}': it takes none (see --help)", file=sys.stderr)
        sys.exit(2)
    else:
        main()
