"""Post-local SGD: our hook with torch's averagers and optimizer."""

from collections import OrderedDict

import brigade
import pytest
import torch
import torch.distributed as dist
from brigade.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from models import exact_mean, relative_error, rows, same_on_all_ranks, small_net, step, wrap
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.algorithms.model_averaging.hierarchical_model_averager import HierarchicalModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer


def stages(way, local_allreduce):
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    state = PostLocalSGDState(None, groups[rank // 2], 2, post_local_gradient_allreduce=local_allreduce)
    module = small_net()
    model = wrap(module)
    if way == "set":
        brigade.set_hook(model, post_localSGD_hook, state)
    else:
        model.register_comm_hook(state, post_localSGD_hook)
    for number in range(2):
        exact = exact_mean(module, rows(number))
        assert relative_error(step(model, rows(number)), exact) < 1e-5
    assert state.iter == 2
    found = step(model, rows(5))
    alone = small_net()
    alone(rows(5)).square().mean().backward()
    local = [parameter.grad for parameter in alone.parameters()]
    if local_allreduce:
        for each in local:
            dist.all_reduce(each, group=groups[rank // 2])
            each /= 2
    assert relative_error(found, local) < 1e-5


@pytest.mark.parametrize("way", ["set", "called"])
@pytest.mark.parametrize("local_allreduce", [False, True])
def test_gradients_are_averaged_globally_then_locally(ranks, way, local_allreduce):
    ranks(4, stages, way, local_allreduce)


def as_without_a_hook(way):
    """Over a subgroup of all ranks local SGD is plain DDP."""
    plain, model = wrap(small_net()), wrap(small_net())
    state = PostLocalSGDState(None, dist.group.WORLD, 3)
    if way == "set":
        brigade.set_hook(model, post_localSGD_hook, state)
        assert brigade.hook_stats(model).total.steps == 0  # native: no Python in the backward pass
    else:
        model.register_comm_hook(state, post_localSGD_hook)
    optimizers = [torch.optim.SGD(each.parameters(), 0.05) for each in (plain, model)]
    for number in range(7):
        for each, optimizer in zip((plain, model), optimizers):
            step(each, rows(number))
            optimizer.step()
    assert state.iter == 7
    for one, other in zip(plain.parameters(), model.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    state.iter = 2
    exact = exact_mean(model.module, rows(9))
    assert relative_error(step(model, rows(9)), exact) < 1e-5 and state.iter == 3
    with pytest.raises(ValueError, match="must be 0 or more"):
        state.iter = -1


@pytest.mark.parametrize("way", ["set", "called"])
def test_post_local_sgd_over_all_ranks_is_plain_ddp(ranks, way):
    ranks(2, as_without_a_hook, way)


def averaged(kind):
    model = wrap(small_net())
    model.register_comm_hook(PostLocalSGDState(None, None, 2, post_local_gradient_allreduce=False), post_localSGD_hook)
    if kind == "periodic":
        averager = PeriodicModelAverager(period=3, warmup_steps=2)
    elif kind == "groups":
        averager = PeriodicModelAverager(period=3, warmup_steps=2, process_group=dist.group.WORLD)
    else:
        levels = {"one level": [(3, 4)], "two levels": [(2, 2), (3, 4)]}[kind]
        averager = HierarchicalModelAverager(OrderedDict(levels), warmup_steps=2)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), 0.05), averager)
    equal = []
    for number in range(6):
        step(model, rows(number))
        optimizer.step()
        equal.append(same_on_all_ranks(model.parameters()))
    return equal


def averaged_by_gradient(case):
    """Returns which of three parameters become the mean of all ranks."""
    rank = dist.get_rank()
    parameters = [torch.nn.Parameter(torch.full((3,), float(rank))) for _ in range(3)]
    if case == "some":
        parameters[1].grad = torch.ones(3)
        parameters[2].grad = torch.ones(3)
        parameters[2].requires_grad_(False)
    group = dist.new_group([0, 1]) if case == "outside" else None
    if case == "outside":
        brigade.averagers.average_parameters(parameters, group)
    else:
        assert brigade.averagers.PeriodicModelAverager(period=1).average_parameters(parameters)
    mean = sum(range(2 if group is not None else dist.get_world_size())) / (2 if group is not None else dist.get_world_size())
    return [bool((each == mean).all()) for each in parameters]


def test_averagers_pass_over_parameters_without_a_gradient_as_torchs_do(ranks):
    assert ranks(3, averaged_by_gradient, "some")[2] == [False, True, False]
    # An optimizer in the backward pass leaves no gradient.
    assert ranks(3, averaged_by_gradient, "none")[2] == [True, True, True]
    assert ranks(3, averaged_by_gradient, "outside") == [[True] * 3, [True] * 3, [False] * 3]


@pytest.mark.parametrize("kind", ["periodic", "groups", "one level", "two levels"])
def test_averagers_bring_replicas_together_again(ranks, kind):
    # The averager counts from 0: steps 2 and 5 average, after gradients became local at step 2.
    for equal in ranks(4, averaged, kind)[1:]:  # each compares itself with rank 0
        assert equal[:2] == [True, True]
        assert not all(equal[2:]), "replicas never differed: nothing was local"
        assert any(equal[2:]), "replicas never met again"


def reloaded():
    def start():
        model = wrap(small_net(), "one")
        model.register_comm_hook(PostLocalSGDState(None, None, 0, post_local_gradient_allreduce=False),
                                 post_localSGD_hook)
        averager = PeriodicModelAverager(period=4, warmup_steps=0)
        return model, PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), 0.05), averager)

    def go(model, optimizer, numbers):
        for number in numbers:
            step(model, rows(number))
            optimizer.step()

    whole, optimizer = start()
    go(whole, optimizer, range(3))
    saved = {"model": {name: each.clone() for name, each in whole.module.state_dict().items()},
             "optimizer": optimizer.state_dict()}
    go(whole, optimizer, range(3, 6))
    again, optimizer = start()
    again.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    assert optimizer.averager.step == 3
    go(again, optimizer, range(3, 6))
    for one, other in zip(whole.parameters(), again.parameters()):
        assert torch.equal(one, other)


def test_a_post_local_sgd_optimizer_goes_on_after_a_reload(ranks):
    ranks(2, reloaded)
