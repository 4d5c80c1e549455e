"""One rank of the job of step_bench.cpp, with torch's own DDP and hooks, or with package=brigade the Python package's on
torch's DDP; same commands, same answers."""

import ctypes
import json
import math
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import debugging_hooks, default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def memory_kb(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field + ":"))


def make_model(layers, width):
    torch.manual_seed(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])
    for linear in model:
        torch.nn.init.normal_(linear.weight, 0, 1 / math.sqrt(width))
    return model


def register(ddp, spec, package):
    """`spec` is brigade's name of the hook; of PowerSGD's options, those that the comparison uses are applied."""
    name, _, options = spec.partition(":")
    if package == "brigade" and name != "none":
        import brigade

        brigade.set_hook(ddp, spec)
        return
    plain = {
        "allreduce": default_hooks.allreduce_hook,
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
        "noop": debugging_hooks.noop_hook,
    }
    if name in plain:
        ddp.register_comm_hook(None, plain[name])
    elif name == "powersgd":
        given = dict(pair.split("=") for pair in options.split(","))
        state = powerSGD_hook.PowerSGDState(
            None,
            matrix_approximation_rank=int(given["rank"]),
            start_powerSGD_iter=int(given["start"]),
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif name != "none":
        sys.exit(f"torch_step: unknown hook '{spec}'")


class Trainer:
    def __init__(self, layers=3, width=64, batch=8, bucket_mb=0, views=1, hook="none", package="torch"):
        dist.init_process_group("gloo")
        self.spec = hook
        self.model = make_model(layers, width)
        torch.manual_seed(100 + dist.get_rank())
        self.inputs = torch.randn(batch, width)
        torch.manual_seed(99)
        self.shared_row = torch.randn(1, width)
        self.bring_runtime_in()
        ctypes.CDLL(None).malloc_trim(0)
        self.base_kb = memory_kb("VmRSS")
        caps = {"bucket_cap_mb": bucket_mb} if bucket_mb else {}
        self.ddp = DistributedDataParallel(self.model, gradient_as_bucket_view=bool(views), **caps)
        register(self.ddp, hook, package)
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), 1e-4)

    def bring_runtime_in(self):
        """Loads code and fills pools first, because training does not pay for them again."""
        small = DistributedDataParallel(torch.nn.Linear(8, 8))
        optimizer = torch.optim.SGD(small.parameters(), 0)
        for _ in range(3):
            optimizer.zero_grad()
            self.loss(small(torch.ones(8, 8))).backward()
            optimizer.step()
        self.loss(self.model(self.inputs)).backward()
        self.model.zero_grad()

    @staticmethod
    def loss(output):
        return output.square().mean()

    def turn(self, steps):
        dist.barrier()
        with open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")
        step_times, backward_times = [], []
        for _ in range(steps):
            begin = time.perf_counter()
            self.optimizer.zero_grad()
            error = self.loss(self.ddp(self.inputs))
            forward_end = time.perf_counter()
            error.backward()
            backward_times.append(time.perf_counter() - forward_end)
            self.optimizer.step()
            step_times.append(time.perf_counter() - begin)
        return {
            "step": step_times,
            "backward": backward_times,
            "peak_kb": memory_kb("VmHWM"),
            "replica": str(self.fingerprint()),
        }

    def gradients_of(self, rows):
        self.ddp.zero_grad()
        self.loss(self.ddp(rows)).backward()

    def verify(self):
        row = self.shared_row if self.spec.startswith("powersgd:rank=1") else self.inputs[:1]
        for _ in range(2):
            self.gradients_of(row)
        exact = []
        with self.ddp.no_sync():
            self.gradients_of(row)
            for parameter in self.ddp.parameters():
                exact.append(parameter.grad.double())
                dist.all_reduce(exact[-1])
                exact[-1] /= dist.get_world_size()
        self.gradients_of(row)
        worst = 0.0
        for parameter, mean in zip(self.ddp.parameters(), exact):
            share = ((parameter.grad.double() - mean).abs().max() / mean.abs().max()).item()
            worst = 1e9 if math.isnan(share) else max(worst, share)
        self.ddp.zero_grad()
        return {"error": worst}

    def fingerprint(self):
        value = 0
        for parameter in self.ddp.parameters():
            value = value * 31 + parameter.detach().view(torch.int32).sum().item()
        return value & 0x7FFFFFFFFFFFFFFF


def main():
    given = dict(word.split("=", 1) for word in sys.argv[1:])
    words = {key: given.pop(key) for key in ("hook", "package") if key in given}
    caps = {"bucket_mb": float(given.pop("bucket_mb", 0))}
    trainer = Trainer(**words, **caps, **{key: int(value) for key, value in given.items()})

    def answer(value):
        print(json.dumps(value), flush=True)

    answer({"base_kb": trainer.base_kb})
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "turn":
            answer(trainer.turn(int(arguments[0])))
        elif command == "verify":
            answer(trainer.verify())
        else:
            sys.exit(f"torch_step: unknown command '{line}'")
    dist.destroy_process_group()


main()
