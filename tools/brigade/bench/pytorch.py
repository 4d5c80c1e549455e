"""Times PyTorch's own DDP and hooks as measurement.cpp times ours: with gradients that are complete at once."""

import importlib
import json
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

PERIOD = 1_000_003
# In seconds. A hook with slower steps is warm after its first steps, and one step is timed.
SLOW = 1.0
WARM_UP = 2
# PyTorch's PowerSGD cannot start before its buckets are rebuilt, and is plain all-reduce until then.
POWERSGD_START = 2


class GivenGradients(torch.nn.Module):
    """The gradients that backward() starts with become the parameters'."""

    def __init__(self, shapes, device):
        super().__init__()
        self.all = torch.nn.ParameterList(torch.zeros(shape, device=device) for shape in shapes)

    def forward(self):
        return [parameter.view_as(parameter) for parameter in self.all]


def gradients_of(pattern, shapes, device):
    gradients, offset = [], 0
    for shape in shapes:
        count = math.prod(shape)
        index = torch.arange(offset, offset + count) % PERIOD
        gradients.append(pattern[index].view(shape).to(device))
        offset += count
    return gradients


def pattern(rank):
    return torch.randn(PERIOD, generator=torch.Generator().manual_seed(rank + 1))


def register(ddp, name, spec):
    """`name`: PyTorch's hook, with its module; empty: none. `spec`: our text, for its options."""
    if not name:
        return
    module, _, function = name.partition(".")
    hook = getattr(importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks." + module), function)
    state = None
    if module == "powerSGD_hook":
        given = dict(pair.split("=") for pair in spec.partition(":")[2].split(",") if pair)
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=int(given.get("rank", 1)),
                                            start_powerSGD_iter=POWERSGD_START)
    ddp.register_comm_hook(state, hook)


class Measurement:
    def __init__(self, work, device):
        self.device = device
        self.shapes = work["shapes"]
        self.model = GivenGradients(self.shapes, device)
        self.ddp = DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        register(self.ddp, work["torch_hook"], work["hook"])
        self.given = gradients_of(pattern(dist.get_rank()), self.shapes, device)
        compresses_at = POWERSGD_START + 1 if work["hook"].startswith("powersgd") else 0
        for _ in range(max(WARM_UP, compresses_at)):
            self.last = self.step()
        self.slow = self.of_rank_0(self.last > SLOW)
        for _ in range(0 if self.slow else 3):
            self.last = self.step()

    def step(self):
        self.ddp.zero_grad(set_to_none=False)
        results = self.ddp()
        self.synchronize()
        begin = time.perf_counter()
        torch.autograd.backward(results, self.given)
        self.synchronize()
        return time.perf_counter() - begin

    def synchronize(self):
        if self.device != "cpu":
            torch.cuda.synchronize()

    def error(self):
        ranks = dist.get_world_size()
        mean = sum(pattern(rank).double() for rank in range(ranks)) / ranks
        exact = gradients_of(mean, self.shapes, self.device)
        off = sum(((p.grad.double() - e) ** 2).sum().item() for p, e in zip(self.model.all, exact))
        return math.sqrt(off / sum((one.double() ** 2).sum().item() for one in self.given))

    def of_rank_0(self, number):
        """Ranks must agree: each rank's own clock would give it a different number."""
        number = torch.tensor([int(number)], device=self.device)
        dist.broadcast(number, 0)
        return int(number.item())

    def steps_in(self, seconds):
        return self.of_rank_0(1 if self.slow else min(1000, max(5, int(seconds / max(self.last, 1e-9)))))


def quantile(values, q):
    values = sorted(values)
    place = q * (len(values) - 1)
    below = int(place)
    above = min(below + 1, len(values) - 1)
    return values[below] * (1 - place + below) + values[above] * (place - below)


def measure(work, device):
    reduction = Measurement(work, device)
    row = {"size_bytes": work["size_bytes"], "hook": work["hook"]}
    name = work["hook"].partition(":")[0]
    if name == "powersgd":  # one step without the residual of earlier ones is not possible any more
        row["verified"] = all(bool(torch.isfinite(p.grad).all()) for p in reduction.model.all)
    elif work["tolerance"] >= 0:  # its result is a mean
        row["error"] = reduction.error()
        row["verified"] = row["error"] <= work["tolerance"]
    steps = work["steps"] or reduction.steps_in(work["seconds"])
    seconds = [reduction.step() for _ in range(steps)]
    return row | {"steps": steps, "p50_ms": 1e3 * quantile(seconds, 0.5), "p99_ms": 1e3 * quantile(seconds, 0.99),
                  "min_ms": 1e3 * min(seconds), "torch": torch.__version__}


def main():
    work, answers, kind = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
    dist.init_process_group("gloo" if kind == "cpu" else "nccl")
    device = "cpu"
    if kind == "cuda":
        device = f"cuda:{dist.get_rank() % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    for one in work:
        row = measure(one, device)
        if dist.get_rank() == 0:
            with open(answers, "a") as file:
                file.write(json.dumps(row) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # Gloo's threads may still be releasing the hooks' callbacks; if Python ended meanwhile, that would abort the process.
    sys.stdout.flush()
    os._exit(0)
