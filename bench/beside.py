#!/usr/bin/env python3
"""Measures how much matrix products slow down beside a reduction: two ranks on one GPU over NCCL, best under MPS. Prints a line for each hook.

beside.py [--hooks "none allreduce int8"] [--megabytes 64] [--rounds 7]

Each rank multiplies matrices on a separate stream while backward passes reduce so many megabytes of gradients beside it. Shows how much longer the
products take than without any reduction (`none`), as the median of rounds in which all hooks take turns, and how many passes ran.
"""
import argparse
import os
import socket
import statistics
import subprocess
import sys

SIZE, PRODUCTS = 4096, 150


def rank_main(options, rank):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    import brigade

    dist.init_process_group("nccl", rank=rank, world_size=2)
    torch.cuda.set_device(0)
    square = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(square)
    side = torch.cuda.Stream()

    class Bag(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.values = torch.nn.ParameterList(torch.zeros(1 << 20, device="cuda") for _ in range(options.megabytes // 4))

        def forward(self, factor):
            return sum((value * factor).sum() for value in self.values)

    models = {}
    for hook in options.hooks.split():
        models[hook] = DistributedDataParallel(Bag(), gradient_as_bucket_view=True) if hook != "none" else None
        if models[hook]:
            brigade.set_hook(models[hook], hook)

    def products_ms(model):
        """The time of all products together, and how many passes ran meanwhile."""
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        dist.barrier()
        with torch.cuda.stream(side):
            begin.record()
            for _ in range(PRODUCTS):
                torch.mm(square, square, out=out)
            end.record()
        passes = 0
        busy = torch.ones(1, device="cuda")
        while model:
            model(1.0).backward()
            busy.fill_(0 if end.query() else 1)
            dist.all_reduce(busy)
            passes += 1
            if busy.item() < 2:  # a rank is done
                break
        torch.cuda.synchronize()
        return begin.elapsed_time(end), passes

    found = {hook: [] for hook in models}
    for round_ in range(-2, options.rounds):
        for hook, model in models.items():
            one = products_ms(model)
            if round_ >= 0:
                found[hook].append(one)
    plain = statistics.median(ms for ms, _ in found["none"])
    for hook, all_ in found.items():
        ms, passes = statistics.median(one[0] for one in all_), statistics.median(one[1] for one in all_)
        if rank == 0:
            print(f"{hook:22} products {ms:7.1f} ms  {100 * (ms / plain - 1):+6.1f} %  passes beside them {passes:.0f}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def start_two_ranks():
    """Starts this command twice more, as two ranks of one job on one GPU; returns the worse exit code."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # NCCL takes the ranks for ranks of two hosts that are joined by loopback.
    off = {name: "1" for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE")}
    ranks = [subprocess.Popen([sys.executable, *sys.argv], env=os.environ | off | {
        "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo",
        "CUDA_DEVICE_MAX_CONNECTIONS": os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS", "32")}) for rank in range(2)]
    try:
        codes = [rank.wait(timeout=300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return max(abs(code) for code in codes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hooks", default="none allreduce fp16 int8 quantize_per_channel powersgd:rank=2,start=0", help="by space; none must be there")
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    if "RANK" in os.environ:
        return rank_main(options, int(os.environ["RANK"]))
    return start_two_ranks()


if __name__ == "__main__":
    sys.exit(main())
