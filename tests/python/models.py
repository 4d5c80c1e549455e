"""Models and steps that the cases share."""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def small_net(width=32, layers=4, bias=True):
    torch.manual_seed(3)
    return nn.Sequential(*[nn.Linear(width, width, bias=bias) for _ in range(layers)])


def wrap(module, buckets="many", **options):
    """`buckets`: "one", or "many": one for each layer of small_net."""
    cap = {"one": 100, "many": 0.002}[buckets]
    return DistributedDataParallel(module, bucket_cap_mb=cap, **options)


def rows(step=0, width=32, count=4):
    """Rows that differ on every rank and in every step."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(count, width, generator=generator)


def step(model, data):
    model.zero_grad()
    model(data).square().mean().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def exact_mean(module, data):
    """The mean gradient, computed independently: each rank's in float64, all-reduced."""
    return mean_in_double(copy.deepcopy(module).double(), data)


def mean_in_double(exact, data):
    """The same for a copy that is already in float64, or its complex counterpart."""
    exact.zero_grad()
    exact(data.double()).square().mean().backward()
    gradients = [parameter.grad for parameter in exact.parameters()]
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
    return gradients


def relative_error(found, exact):
    found = torch.cat([each.double().flatten() for each in found])
    exact = torch.cat([each.double().flatten() for each in exact])
    return ((found - exact).norm() / exact.norm()).item()


def same_on_all_ranks(tensors):
    """Whether this rank has what rank 0 has."""
    flat = torch.cat([each.detach().flatten() for each in tensors])
    first = flat.clone()
    dist.broadcast(first, 0)
    return torch.equal(flat, first)
