"""Ranks that train locally: DiLoCo, LocalSGD and the averagers, compared with references in float64 and with torch's own."""

import copy
import warnings
from collections import OrderedDict

import brigade
import pytest
import torch
import torch.distributed as dist
from brigade import averagers
from models import relative_error, rows, same_on_all_ranks, small_net, step, wrap
from torch.distributed.algorithms.model_averaging import averagers as torchs
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import (
    HierarchicalModelAverager as TorchsHierarchical,
)
from torch.distributed.optim import PostLocalSGDOptimizer


def flat(module):
    return torch.cat([parameter.detach().double().flatten() for parameter in module.parameters()])


def local_step(module, data, lr=0.05):
    """One step of plain SGD on this rank alone."""
    module.zero_grad()
    module(data).square().mean().backward()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter -= lr * parameter.grad


def mean(values):
    values = values.clone()
    dist.all_reduce(values)
    return values / dist.get_world_size()


def put(module, values):
    begin = 0
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(values[begin:begin + parameter.numel()].view_as(parameter))
            begin += parameter.numel()


def exact_diloco(net, steps, period, lr, momentum):
    """Computes the paper's steps in float64."""
    net = copy.deepcopy(net).double()
    whole, velocity = flat(net), torch.zeros_like(flat(net))
    for number in range(steps):
        local_step(net, rows(number).double())
        if (number + 1) % period == 0:
            difference = mean(whole - flat(net))
            velocity = momentum * velocity + difference
            whole = whole - lr * (difference + momentum * velocity)
            put(net, whole)
    return net


def train(net, diloco, numbers):
    for number in numbers:
        net.zero_grad()
        net(rows(number)).square().mean().backward()
        diloco.step()


def diloco_as_the_paper(momentum):
    net = small_net()
    expected = exact_diloco(net, 9, 3, 0.7, momentum)
    diloco = brigade.DiLoCo(net, torch.optim.SGD(net.parameters(), 0.05), period=3, outer_momentum=momentum)
    train(net, diloco, range(9))
    assert relative_error(list(net.parameters()), list(expected.parameters())) < 1e-5
    assert same_on_all_ranks(net.parameters())
    assert diloco.steps == 9 and diloco.stats().total.steps == 3
    # A functional optimizer does the same.
    again = small_net()
    diloco = brigade.DiLoCo(again, brigade.optim.SGD(lr=0.05), period=3, outer_momentum=momentum)
    train(again, diloco, range(9))
    assert relative_error(list(again.parameters()), list(expected.parameters())) < 1e-5


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_diloco_does_the_papers_steps(ranks, size, momentum):
    ranks(size, diloco_as_the_paper, momentum)


def streamed():
    """Uses fragments, a delay, mixing and its own hook; finish() brings all ranks together."""
    net = small_net()
    if dist.get_rank() == 1:
        with torch.no_grad():
            net[0].weight.zero_()
    diloco = brigade.DiLoCo(net, torch.optim.AdamW(net.parameters(), 0.01), dist.group.WORLD, period=4, fragments=2, delay=1,
                            mixing=0.5, hook="int8", bucket_cap_mb=0.002)
    assert same_on_all_ranks(net.parameters())  # rank 0's came first
    train(net, diloco, range(10))
    assert not same_on_all_ranks(net.parameters()) or dist.get_rank() == 0
    diloco.finish()
    assert same_on_all_ranks(net.parameters())
    total = diloco.stats().total
    assert 0 < total.bytes_sent < total.bytes_before


def resumed(hook):
    """Saved in the middle of an exchange and loaded into new objects, it goes on bit for bit."""
    options = {"period": 4, "fragments": 2, "delay": 2, "mixing": 0.25, "hook": hook}

    def start(net):
        optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
        return optimizer, brigade.DiLoCo(net, optimizer, **options)

    net = small_net()
    optimizer, diloco = start(net)
    train(net, diloco, range(7))
    saved = copy.deepcopy({"diloco": diloco.state_dict(), "optimizer": optimizer.state_dict()})
    train(net, diloco, range(7, 13))
    again = small_net()
    optimizer, diloco = start(again)
    diloco.load_state_dict(saved["diloco"])
    optimizer.load_state_dict(saved["optimizer"])
    assert diloco.steps == 7
    train(again, diloco, range(7, 13))
    assert all(torch.equal(one, other) for one, other in zip(net.parameters(), again.parameters()))
    with pytest.raises(brigade.ConfigError, match="lacks 'global.0.weight'"):
        broken = copy.deepcopy(saved["diloco"])
        del broken["shared"]["tensors"]["global.0.weight"]
        diloco.load_state_dict(broken)


def diloco_refuses():
    net = small_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for options, text in (({"period": 0}, "period is 0"), ({"mixing": 1.0}, "mixing is 1"), ({"delay": 100}, "delay is 100"),
                          ({"hook": "powersdg"}, "did you mean 'powersgd'")):
        with pytest.raises(brigade.ConfigError, match=text):
            brigade.DiLoCo(net, optimizer, **options)
    with pytest.raises(brigade.ConfigError, match="averages gradients already"):
        brigade.DiLoCo(wrap(small_net()), optimizer)
    with pytest.raises(brigade.ConfigError, match="neither step"):
        brigade.DiLoCo(net, object())
    with pytest.raises(brigade.MismatchError, match="different DiLoCo options"):
        brigade.DiLoCo(net, optimizer, period=5 + dist.get_rank())
    # One rank's invalid values cost one exchange.
    diloco = brigade.DiLoCo(net, optimizer, period=2)
    before = flat(net)
    if dist.get_rank() == 1:
        with torch.no_grad():
            net[0].weight.fill_(float("nan"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        diloco.finish()
    assert diloco.rejected == 1 and torch.equal(flat(net), before)


def test_diloco_streams_resumes_and_refuses(ranks):
    ranks(2, streamed)
    for hook in ("allreduce", "int8"):
        ranks(2, resumed, hook)
    ranks(2, diloco_refuses)


# ---- averagers

def exact_averaging(levels, warmup, steps):
    """{period: number of ranks} in float64; the largest period that divides the step wins."""
    net = small_net().double()
    groups = {}
    for period, size in levels.items():
        for first in range(0, dist.get_world_size(), size):
            members = list(range(first, first + size))
            group = dist.new_group(members)
            if dist.get_rank() in members:
                groups[period] = (group, size)
    for number in range(steps):
        local_step(net, rows(number).double(), lr=1.0)
        due = [period for period in levels if number % period == 0]
        if number >= warmup and due:
            group, size = groups[max(due)]
            values = flat(net)
            dist.all_reduce(values, group=group)
            put(net, values / size)
    return net


def averaged(levels, warmup):
    world = dist.get_world_size()
    expected = exact_averaging(levels, warmup, 11)
    made = [averagers.HierarchicalModelAverager(levels, warmup), TorchsHierarchical(OrderedDict(levels), warmup)]
    if list(levels.values()) == [world] and warmup % next(iter(levels)) == 0:
        period = next(iter(levels))
        made += [averagers.PeriodicModelAverager(period, warmup), torchs.PeriodicModelAverager(period, warmup),
                 averagers.PeriodicModelAverager(period, warmup, dist.group.WORLD)]
    for averager in made:
        net = small_net()
        # Steps are large, so that a mean at the wrong step shows.
        optimizer = PostLocalSGDOptimizer(torch.optim.SGD(net.parameters(), 1.0), averager)
        for number in range(11):
            net.zero_grad()
            net(rows(number)).square().mean().backward()
            optimizer.step()
        assert averager.step == 11 and isinstance(averager, torchs.ModelAverager)
        assert relative_error(list(net.parameters()), list(expected.parameters())) < 1e-5, type(averager)


@pytest.mark.parametrize("size, levels, warmup", [
    (2, {3: 2}, 3), (4, {3: 4}, 0), (4, {2: 2, 4: 4}, 2), (8, {2: 2, 3: 4, 5: 8}, 1)])
def test_averagers_equal_a_reference_and_torchs(ranks, size, levels, warmup):
    ranks(size, averaged, levels, warmup)


def averagers_alone():
    net = torch.nn.Linear(8, 8)
    with torch.no_grad():
        net.weight.fill_(float(dist.get_rank()))
    net.bias.requires_grad_(False)
    net.bias.fill_(float(dist.get_rank()))
    # No parameter has a gradient: torch's would average nothing.
    sent = averagers.average_parameters(net.parameters())
    assert sent == 64 * 4 and torch.equal(net.weight, torch.full((8, 8), 0.5))
    assert torch.equal(net.bias, torch.full((8,), float(dist.get_rank())))
    with pytest.raises(ValueError, match="period is 0"):
        averagers.PeriodicModelAverager(0)
    with pytest.raises(ValueError, match="warmup_steps is -1"):
        averagers.PeriodicModelAverager(2, -1)
    with pytest.raises(ValueError, match="is empty"):
        averagers.HierarchicalModelAverager()
    with pytest.raises(ValueError, match="must be the number of ranks, 2"):
        averagers.HierarchicalModelAverager({4: 1}).average_parameters(net.parameters())
    averager = averagers.PeriodicModelAverager(2)
    averager.step = 5
    assert not averager.average_parameters(net.parameters()) and averager.step == 6
    assert averager.average_parameters([{"params": list(net.parameters())}]) and averager.bytes_sent == 64 * 4


def test_averagers_take_groups_of_parameters_and_refuse_bad_options(ranks):
    ranks(2, averagers_alone)


# ---- local SGD

def local_sgd(optimizer_kind, hook):
    """A warm-up of 2, then pairs of ranks average gradients, and all ranks average parameters at steps 2, 5, 8."""
    rank, world = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, world, 2)]
    exact = small_net().double()
    for number in range(9):
        exact.zero_grad()
        exact(rows(number).double()).square().mean().backward()
        group = None if number < 2 else pairs[rank // 2]
        with torch.no_grad():
            for parameter in exact.parameters():
                dist.all_reduce(parameter.grad, group=group)
                parameter -= 0.05 * parameter.grad / dist.get_world_size(group)
        if number >= 2 and (number - 2) % 3 == 0:
            put(exact, mean(flat(exact)))
    model = wrap(small_net())
    optimizer = (torch.optim.SGD(model.parameters(), 0.05) if optimizer_kind == "torch" else brigade.optim.SGD(lr=0.05))
    local = brigade.LocalSGD(model, optimizer, warmup_steps=2, period=3, subgroup=pairs[rank // 2], hook=hook)
    assert model._get_ddp_logging_data()["comm_hook"] == f"post_local_sgd+{hook}"
    seen = []
    for number in range(9):
        seen.append(local.is_local)
        step(model, rows(number))
        local.step()
    assert seen == [False, False] + [True] * 7 and local.steps == 9
    tolerance = 1e-5 if hook == "allreduce" else 1e-3
    assert relative_error(list(model.parameters()), list(exact.parameters())) < tolerance
    assert same_on_all_ranks(model.parameters())  # step 8 was a mean
    step(model, rows(9))
    local.step()
    local.finish()
    assert same_on_all_ranks(model.parameters()) and local.bytes_sent > 0


@pytest.mark.parametrize("size", [2, 4])
def test_local_sgd_equals_a_reference(ranks, size):
    ranks(size, local_sgd, "torch", "allreduce")
    ranks(size, local_sgd, "native", "fp16")


def local_sgd_resumed():
    def start():
        model = wrap(small_net(), "one")
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        local = brigade.LocalSGD(model, optimizer, warmup_steps=1, levels={2: 2, 4: 4}, post_local_gradient_allreduce=False)
        return model, optimizer, local

    def go(model, local, numbers):
        for number in numbers:
            step(model, rows(number))
            local.step()

    model, optimizer, local = start()
    go(model, local, range(5))
    saved = copy.deepcopy([model.module.state_dict(), optimizer.state_dict(), local.state_dict()])
    go(model, local, range(5, 9))
    other, optimizer, local = start()
    other.module.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    local.load_state_dict(saved[2])
    assert local.steps == 5 and local.is_local
    go(other, local, range(5, 9))
    assert all(torch.equal(one, two) for one, two in zip(model.parameters(), other.parameters()))


def local_sgd_found_out():
    model = wrap(small_net())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for options, text in (({}, "exactly one of them must be given"), ({"period": 2, "levels": {2: 2}}, "exactly one"),
                          ({"period": 2, "warmup_steps": -1}, "warmup_steps is -1")):
        with pytest.raises(brigade.ConfigError, match=text):
            brigade.LocalSGD(model, optimizer, **options)
    local = brigade.LocalSGD(model, optimizer, period=2)
    step(model, rows())
    local.step()
    brigade.set_hook(model, "fp16")
    with pytest.raises(brigade.Error, match="the model has another hook now"):
        local.step()
    # If nobody calls step(), replicas would drift for ever.
    forgotten = wrap(small_net())
    keep = brigade.LocalSGD(forgotten, torch.optim.SGD(forgotten.parameters(), 0.05), period=2)
    with pytest.raises(RuntimeError, match="64 backward passes since LocalSGD::step"):
        for _ in range(70):
            step(forgotten, rows())
    assert keep.steps == 0
    gone = wrap(small_net())
    brigade.LocalSGD(gone, torch.optim.SGD(gone.parameters(), 0.05), period=2)
    with pytest.raises(RuntimeError, match="LocalSGD is gone"):
        step(gone, rows())


def local_sgd_in_backward():
    """The hook that steps goes inside; step() only averages."""
    from brigade.optimizer_overlap_hooks import OptimizerHookState, hook_then_optimizer

    model = wrap(small_net())
    both = hook_then_optimizer(brigade.default_hooks.allreduce_hook, OptimizerHookState(brigade.optim.SGD(lr=0.05)))
    local = brigade.LocalSGD(model, None, period=3, post_local_gradient_allreduce=True, hook=both)
    reference = wrap(small_net())
    optimizer = torch.optim.SGD(reference.parameters(), 0.05)
    plain = brigade.LocalSGD(reference, optimizer, period=3, post_local_gradient_allreduce=True)
    for number in range(7):
        step(model, rows(number))
        local.step()
        step(reference, rows(number))
        plain.step()
    assert relative_error(list(model.parameters()), list(reference.parameters())) < 1e-6


def test_local_sgd_resumes_steps_in_backward_and_is_found_out(ranks):
    ranks(4, local_sgd_resumed)
    ranks(2, local_sgd_in_backward)
    ranks(2, local_sgd_found_out)
