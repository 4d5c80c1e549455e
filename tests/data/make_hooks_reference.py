#!/usr/bin/env python3
"""Writes hooks_reference.txt: the results of PyTorch's own communication hooks, over Gloo with
two ranks and one bucket, for the gradients of tests/hooks/parity_test.cpp.

PowerSGD draws its first Q from NumPy's generator, which nothing else reproduces. So the file
has its memory (Q and each rank's errors) after the first compressed steps, from which another
implementation can go on, and the results of the steps after that.

Run with the Python that has torch 2.11:  python make_hooks_reference.py
"""
import os
import pathlib
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

HERE = pathlib.Path(__file__).parent
RANKS = 2
SHAPES = [(12, 10), (8, 20), (7,)]
START = 2
HANDED_OVER = 4  # the first step after the memory was written
STEPS = 7


class Bag(nn.Module):
    """The gradient of parameter i is coefficient i."""

    def __init__(self):
        super().__init__()
        self.p = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in SHAPES])

    def forward(self, coefficients):
        return sum((p * c).sum() for p, c in zip(self.p, coefficients))


def coefficient(index, rank, step):
    shape = SHAPES[index]
    count = torch.Size(shape).numel()
    place = torch.arange(count, dtype=torch.double)
    wave = torch.sin(place * (0.37 + 0.11 * index) + 1.7 * rank + 0.9 * step + index)
    return (wave * torch.cos(place * place * 0.013 + step)).view(shape).float()


def train(ddp, step, rank):
    ddp.zero_grad()
    ddp([coefficient(index, rank, step) for index in range(len(SHAPES))]).backward()
    return torch.cat([p.grad.flatten() for p in ddp.module.p])


def work(rank, folder, lines):
    dist.init_process_group("gloo", store=dist.FileStore(folder + "/store", RANKS), rank=rank, world_size=RANKS)

    def put(name, values):
        lines.append((name, rank, values.flatten().tolist()))

    plain = {
        "allreduce": default_hooks.allreduce_hook,
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
    }
    for name, hook in plain.items():
        ddp = nn.parallel.DistributedDataParallel(Bag())
        ddp.register_comm_hook(None, hook)
        for step in range(2):
            result = train(ddp, step, rank)
        put(name, result)

    for approximation in (1, 2):
        ddp = nn.parallel.DistributedDataParallel(Bag())
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=approximation, start_powerSGD_iter=START)
        order = []

        def hook(state, bucket, order=order):
            order[:] = [tuple(gradient.shape) for gradient in bucket.gradients()]
            assert bucket.index() == 0 and bucket.is_last()
            return powerSGD_hook.powerSGD_hook(state, bucket)

        ddp.register_comm_hook(state, hook)
        name = f"powersgd{approximation}"
        for step in range(STEPS):
            if step == HANDED_OVER:
                write_memory(put, name, state, order, approximation)
            result = train(ddp, step, rank)
            if step < START or step >= HANDED_OVER:
                put(f"{name}.step{step}", result)
    dist.destroy_process_group()


def write_memory(put, name, state, order, approximation):
    """Writes Q and error of each matrix, divided in the order of the bucket."""
    (qs,), (errors,) = state.q_memory_dict.values(), state.error_dict.values()
    q_begin = error_begin = 0
    for shape in order:
        index = SHAPES.index(shape)
        count = torch.Size(shape).numel()
        if len(shape) == 2:
            columns = shape[1]
            put(f"{name}.q.p{index}", qs[q_begin:q_begin + columns * approximation])
            q_begin += columns * approximation
            put(f"{name}.error.p{index}", errors[error_begin:error_begin + count])
        error_begin += count
    assert q_begin == qs.numel() and error_begin == errors.numel()


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder, mp.Manager() as manager:
        lines = manager.list()
        mp.spawn(work, (folder, lines), nprocs=RANKS)
        with open(HERE / "hooks_reference.txt", "w") as file:
            for name, rank, values in sorted(lines, key=lambda line: (line[0], line[1])):
                if rank == 1 and ".error." not in name:
                    continue  # equal on both
                label = f"{name}.rank{rank}" if ".error." in name else name
                print(label, len(values), *(f"{value:.9g}" for value in values), file=file)


if __name__ == "__main__":
    main()
