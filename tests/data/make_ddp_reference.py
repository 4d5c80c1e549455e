#!/usr/bin/env python3
"""Writes ddp_reference.txt and sampler_reference.txt: the results of PyTorch's own
DistributedDataParallel (over Gloo) and DistributedSampler for the models and data of tests/ddp.

Run with the Python that has torch 2.11:  python make_ddp_reference.py
"""
import os
import pathlib
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DistributedSampler

HERE = pathlib.Path(__file__).parent
RANKS = 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.middle = nn.Linear(16, 16)
        self.last = nn.Linear(16, 3)
        self.double()

    def forward(self, x):
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


def batch(step, rows):
    row = torch.arange(rows, dtype=torch.double).unsqueeze(1)
    column = torch.arange(6, dtype=torch.double)
    return torch.sin(row * 0.7 + column * 1.3 + step * 2.1)


def target(step, rows):
    return torch.cos(batch(step, rows)[:, :3] * 2)


def wrapped(**options):
    torch.manual_seed(1)
    net = Net()
    ddp = nn.parallel.DistributedDataParallel(net, **options)
    sgd = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    return net, ddp, sgd


def step(ddp, sgd, number, rank):
    sgd.zero_grad()
    x, y = (f(number, 12).chunk(RANKS)[rank] for f in (batch, target))
    nn.functional.mse_loss(ddp(x), y).backward()
    sgd.step()


def flat(net, what=lambda p: p.detach()):
    return torch.cat([what(p).flatten() for p in net.parameters()]).tolist()


def train(rank):
    net, ddp, sgd = wrapped(bucket_cap_mb=0.0003, gradient_as_bucket_view=True)
    yield "initial", flat(net)
    for number in range(6):
        step(ddp, sgd, number, rank)
    yield "trained", flat(net)
    yield "gradients", flat(net, lambda p: p.grad)


def train_unevenly(rank, divide_by_initial_world_size):
    net, ddp, sgd = wrapped()
    with ddp.join(divide_by_initial_world_size=divide_by_initial_world_size):
        for number in range(3 if rank == 0 else 5):
            step(ddp, sgd, number, rank)
    yield f"uneven_{int(divide_by_initial_world_size)}", flat(net)


def worker(rank, folder):
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    results = [*train(rank), *train_unevenly(rank, True), *train_unevenly(rank, False)]
    if rank == 0:
        with open(HERE / "ddp_reference.txt", "w") as out:
            for name, values in results:
                print(name, len(values), *map(repr, values), file=out)
    dist.destroy_process_group()


def samplers():
    for size in (0, 1, 3, 10, 11, 25):
        for ranks in (1, 2, 3, 4):
            for shuffle, seed, epoch in ((False, 0, 0), (True, 0, 0), (True, 0, 3), (True, 42, 1)):
                for drop_last in (False, True):
                    if size == 0:
                        continue  # Python divides by zero there
                    for rank in range(ranks):
                        sampler = DistributedSampler(
                            range(size), ranks, rank, shuffle, seed, drop_last)
                        sampler.set_epoch(epoch)
                        indices = list(sampler)
                        yield (size, ranks, rank, int(shuffle), seed, epoch, int(drop_last),
                               len(indices), *indices)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (folder,), RANKS)
    with open(HERE / "sampler_reference.txt", "w") as out:
        print("# size ranks rank shuffle seed epoch drop_last count indices", file=out)
        for row in samplers():
            print(*row, file=out)
