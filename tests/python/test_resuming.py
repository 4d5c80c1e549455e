"""What hooks keep, saved and loaded: under which names, by whom, and bit for bit."""

import brigade
import torch
import torch.distributed as dist
from models import rows, same_on_all_ranks, small_net, wrap
from torch.nn.parallel import DistributedDataParallel


# ---- ignored parameters

def ignoring():
    module = small_net()
    module[0].register_parameter("own", torch.nn.Parameter(torch.ones(1 + dist.get_rank())))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["0.own"])
    model = wrap(module)
    for hook in ("fp16", "int8"):
        brigade.set_hook(model, hook)
        model.zero_grad()
        model(rows()).square().mean().backward()
    return same_on_all_ranks([parameter.grad for parameter in module.parameters() if parameter.grad is not None])


def test_ignored_parameters_may_differ_between_ranks(ranks):
    assert all(ranks(2, ignoring))
