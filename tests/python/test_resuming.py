"""What hooks keep, saved and loaded: under which names, by whom, and bit for bit."""

import brigade
import torch
import torch.distributed as dist
from models import rows, same_on_all_ranks, small_net, step, wrap
from torch.nn.parallel import DistributedDataParallel


class Block(torch.nn.Module):
    """With norms as people call them."""

    def __init__(self):
        super().__init__()
        self.ln_1 = torch.nn.LayerNorm(32)
        self.fc = torch.nn.Linear(32, 32)
        self.bn1 = torch.nn.BatchNorm1d(32)
        self.LayerNorm = torch.nn.LayerNorm(32)

    def forward(self, data):
        return self.LayerNorm(self.bn1(self.fc(self.ln_1(data))))


def train(model, numbers):
    for number in numbers:
        found = step(model, rows(number))
    return found


# ---- names

def layers_called_module():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = torch.nn.Linear(32, 32)
            self.weight = torch.nn.Parameter(torch.ones(32, 32))

        def forward(self, data):
            return self.module(data) @ self.weight

    model = wrap(Own())
    brigade.set_hook(model, "int8")
    train(model, range(2))
    return sorted(brigade.state_dict(model)["tensors"])


def test_a_layer_of_the_models_own_may_be_called_module(ranks):
    assert ranks(2, layers_called_module)[0] == ["error.module.bias", "error.module.weight", "error.weight"]


def ruled():
    parts = []
    for hook in ("rules:0.*=fp16;*=int8", "rules:_orig_mod.0.*=fp16;*=int8"):
        for module in (small_net(), torch.compile(small_net(), backend="eager")):
            model = wrap(module, "one")
            brigade.set_hook(model, hook)
            train(model, range(1))
            moved = brigade.hook_stats(model).parts
            parts.append({name: part.bytes_before for name, part in moved.items()})
    return parts


def test_rules_know_parameters_by_their_plain_names(ranks):
    for parts in ranks(2, ruled):
        assert parts == [{"0.*=fp16": 4 * 33 * 32, "*=int8": 3 * 4 * 33 * 32}] * 4


def usual():
    found = []
    for spec, module in (("rules", torch.nn.Sequential(Block(), Block())), ("small+rules", torch.nn.Sequential(Block(), Block())),
                         ("rules", torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 32)))):
        model = wrap(module, broadcast_buffers=False)
        brigade.set_hook(model, spec)
        train(model, range(2))
        found.append((sorted(brigade.state_dict(model)["tensors"]), same_on_all_ranks([p.grad for p in model.parameters()])))
    return found


def test_default_rules_know_norms_by_the_kind_of_their_layer(ranks):
    blocks = (["error.part1/0.fc.weight", "error.part1/1.fc.weight"], True)
    for found in ranks(2, usual):
        assert found == [blocks, blocks, (["error.part1/0.weight", "error.part1/2.weight"], True)]


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
