#!/usr/bin/env python3
"""Compares the Python package's quantize_per_channel and PowerSGD with torch's own hooks, on torch's DDP: two ranks on one GPU over NCCL.

Shows, in a line for each hook, the best backward pass of a model with 64 MB of gradients, on the slower rank.
"""
import os
import sys
import time

from beside import start_two_ranks

STEPS = 5


def rank_main(rank):
    import torch
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook, quantization_hooks
    from torch.nn.parallel import DistributedDataParallel

    import brigade

    dist.init_process_group("nccl", rank=rank, world_size=2)
    torch.cuda.set_device(0)

    def torchs_power_sgd(model):
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    def backward_ms(attach):
        module = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(16)]).cuda()
        model = DistributedDataParallel(module, bucket_cap_mb=100)
        attach(model)
        data = torch.randn(8, 1024, device="cuda")
        times = []
        for _ in range(STEPS):
            loss = model(data).square().mean()
            torch.cuda.synchronize()
            dist.barrier()
            begin = time.perf_counter()
            loss.backward()
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - begin))
        best = torch.tensor(min(times[2:]), device="cuda")
        dist.all_reduce(best, dist.ReduceOp.MAX)
        return best.item()

    rows = {
        "quantize_per_channel": ("quantize_per_channel", lambda model: model.register_comm_hook(None, quantization_hooks.quantization_perchannel_hook)),
        "powersgd rank 1": ("powersgd:rank=1,start=2", torchs_power_sgd),
    }
    for name, (hook, attach_torchs) in rows.items():
        ours = backward_ms(lambda model, hook=hook: brigade.set_hook(model, hook))
        torchs = backward_ms(attach_torchs)
        if rank == 0:
            print(f"{name:22} {ours:7.1f} ms  torch's {torchs:7.1f} ms  {ours / torchs:.4f} x", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(rank_main(int(os.environ["RANK"])) if "RANK" in os.environ else start_two_ranks())
