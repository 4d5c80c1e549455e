"""The scenarios of PyTorch's own test_ddp_hooks.py, over Gloo on CPUs, with our hooks registered in both ways: by type,
which goes straight to the Reducer, and as comm hooks that Python calls."""

import pytest
import torch
import torch.distributed as dist
from brigade import DDPCommHookType, debugging_hooks, default_hooks, quantization_hooks
from brigade import register_ddp_comm_hook
from torch import nn
from torch.nn.parallel import DistributedDataParallel

FUNCTIONS = {
    "ALLREDUCE": default_hooks.allreduce_hook,
    "FP16_COMPRESS": default_hooks.fp16_compress_hook,
    "BF16_COMPRESS": default_hooks.bf16_compress_hook,
    "QUANTIZE_PER_TENSOR": quantization_hooks.quantization_pertensor_hook,
    "QUANTIZE_PER_CHANNEL": quantization_hooks.quantization_perchannel_hook,
    "NOOP": debugging_hooks.noop_hook,
}


class Scaled(nn.Module):
    """Computes p times x to the power of one more than the rank, so that the ranks' gradients differ."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.p = nn.Parameter(torch.randn(40, 20))

    def forward(self, x, rank):
        return self.p * x ** (1 + rank)


def gradient(name=None, way="type", group=None):
    model = DistributedDataParallel(Scaled(), process_group=group)
    if name is not None and way == "type":
        register_ddp_comm_hook(comm_hook_type=DDPCommHookType[name], model=model, state=group)
    elif name is not None:
        model.register_comm_hook(group, FUNCTIONS[name])
    torch.manual_seed(2020)
    model(torch.randn(40, 20), dist.get_rank()).mean().backward()
    return next(model.parameters()).grad


def compared(name, way, with_group, rtol, atol):
    group = dist.group.WORLD if with_group else None
    reference = gradient(group=group)
    found = gradient(name, way, group)
    if name == "NOOP":
        found.div_(dist.get_world_size())
        dist.all_reduce(found)
    torch.testing.assert_close(found, reference, rtol=rtol, atol=atol)


@pytest.mark.parametrize("way", ["type", "called"])
@pytest.mark.parametrize("name, rtol, atol", [
    ("ALLREDUCE", 1e-5, 0), ("FP16_COMPRESS", 1e-5, 1e-4), ("BF16_COMPRESS", 1e-5, 1e-4),
    ("QUANTIZE_PER_TENSOR", 1e-5, 1e-4), ("QUANTIZE_PER_CHANNEL", 1e-5, 1e-4), ("NOOP", 1e-5, 0)])
def test_a_hook_gives_what_ddp_without_one_gives(ranks, name, rtol, atol, way):
    for with_group in (True, False):
        ranks(2, compared, name, way, with_group, rtol, atol)


def remember_last(flags, bucket):
    flags.append(bucket.is_last())
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def last_flags(way):
    # This is the original with layers of 400, not 4000: it needs several buckets, not memory.
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(2, 400, bias=False), *[nn.Linear(400, 400, bias=False) for _ in range(10)]),
        bucket_cap_mb=1)
    flags = []
    if way == "type":
        import brigade

        brigade.set_hook(model, remember_last, flags)
    else:
        model.register_comm_hook(flags, remember_last)
    model(torch.randn(10, 2)).sum().backward()
    assert flags == [True]  # one bucket, until the Reducer has seen in which order gradients come
    flags.clear()
    model(torch.randn(10, 2)).sum().backward()
    return flags


@pytest.mark.parametrize("way", ["type", "called"])
def test_only_the_last_bucket_is_the_last(ranks, way):
    for flags in ranks(2, last_flags, way):
        assert len(flags) > 1
        assert flags[-1] and not any(flags[:-1])


def by_value():
    model = DistributedDataParallel(Scaled())
    DDPCommHookType.ALLREDUCE.value(model=model, state=None)
    assert model._get_ddp_logging_data()["comm_hook"] == "allreduce_hook"
    register_ddp_comm_hook(DDPCommHookType.BATCHED_POWER_SGD_RANK2, model)  # torch refuses a second one
    assert model._get_ddp_logging_data()["comm_hook"] == "batched_powerSGD_hook"
    model(torch.randn(40, 20), dist.get_rank()).mean().backward()
    with pytest.raises(ValueError, match="expected a brigade.DDPCommHookType, got 'fp16'"):
        register_ddp_comm_hook("fp16", model)


def test_a_type_knows_how_to_set_itself_and_ddp_logs_its_name(ranks):
    ranks(2, by_value)
    import torch.distributed.algorithms.ddp_comm_hooks as torchs

    assert list(DDPCommHookType.__members__) == list(torchs.DDPCommHookType.__members__)
