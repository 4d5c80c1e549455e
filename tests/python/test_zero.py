"""ZeRO trains as with the optimizer on every rank, with the state spread over the ranks."""

import brigade
import pytest
import torch
import torch.distributed as dist
from brigade import default_hooks
from brigade.ddp_zero_hook import ZeroRedundancyOptimizer, hook_with_zero_step, hook_with_zero_step_interleaved
from models import rows, same_on_all_ranks, small_net, step, wrap

OPTIONS = {"lr": 0.01, "weight_decay": 0.1}


def expected(steps, layers=4):
    model = wrap(small_net(layers=layers))
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIONS)
    for number in range(steps):
        step(model, rows(number))
        optimizer.step()
    return list(model.parameters())


def compare(model, reference):
    for one, other in zip(model.parameters(), reference):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    assert same_on_all_ranks(model.parameters())


def stepped(views):
    reference = expected(5)
    model = wrap(small_net())
    optimizer = ZeroRedundancyOptimizer(model.module.named_parameters(), torch.optim.AdamW,
                                        parameters_as_bucket_view=views, **OPTIONS)
    for number in range(5):
        step(model, rows(number))
        optimizer.step()
    compare(model, reference)
    return optimizer.state_bytes


def test_zero_trains_as_the_optimizer_on_every_rank(ranks):
    whole = 2 * 4 * sum(parameter.numel() for parameter in small_net().parameters())
    for views in (False, True):
        parts = ranks(3, stepped, views)
        assert sum(parts) == whole and max(parts) < whole / 2


def packed(sizes):
    """Small parameters are sent together, large ones and single ones alone: the values are torch's either way."""
    torch.manual_seed(dist.get_rank())
    params = [torch.randn(size, size) for size in sizes] + [torch.randn(4, 6).t()]
    theirs = [each.clone() for each in params]
    for each, other in zip(params, theirs):
        dist.broadcast(other, 0)
        each.copy_(other)
        each.grad = other.grad = torch.ones_like(each) * (1 + each)
    optimizer = ZeroRedundancyOptimizer(params, torch.optim.SGD, lr=0.5)
    plain = torch.optim.SGD(theirs, lr=0.5)
    for _ in range(2):
        optimizer.step()
        plain.step()
    for each, other in zip(params, theirs):
        torch.testing.assert_close(each, other)
    assert same_on_all_ranks(params)


def test_zero_hands_out_parameters_of_all_sizes(ranks):
    for sizes in ([3, 300, 5, 7, 260, 1, 2, 9], [300], [2], [0, 4, 4]):
        ranks(3, packed, sizes)


def in_backward(make, way, hook):
    reference = expected(6)
    model = wrap(small_net())
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, overlap_with_ddp=True, **OPTIONS)
    both = make(hook, model, zero)
    if way == "native":
        brigade.set_hook(model, both)
    else:
        model.register_comm_hook(None, both)
    for number in range(6):
        step(model, rows(number))
        zero.step()  # torch's callers do so, but nothing is left to do
    compare(model, reference)


@pytest.mark.parametrize("way", ["native", "called"])
@pytest.mark.parametrize("make", [hook_with_zero_step, hook_with_zero_step_interleaved])
def test_zero_steps_in_the_backward_pass_from_the_first_iteration(ranks, make, way):
    ranks(2, in_backward, make, way, default_hooks.allreduce_hook)


def owners_by_bucket(make, shard_buckets, way):
    """Returns the owners of the parameters of each bucket, after the Reducer's final ones exist; the training is the same."""
    reference = expected(7, layers=3)
    model = wrap(small_net(layers=3))
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, overlap_with_ddp=True, **OPTIONS)
    before = [zero.native.owner(parameter) for parameter in model.parameters()]
    both = make(default_hooks.allreduce_hook, model, zero, shard_buckets=shard_buckets)
    buckets = []

    def looking(state, bucket):
        if bucket.index() == 0:
            buckets.clear()
        buckets.append(bucket.parameters())
        return both(state, bucket)

    if way == "native":
        brigade.set_hook(model, both)
    else:
        model.register_comm_hook(None, looking)
    for number in range(7):
        step(model, rows(number))
    compare(model, reference)
    if way == "called":
        owners = [{zero.native.owner(parameter) for parameter in bucket} for bucket in buckets]
        assert len(buckets) > 2
        return owners
    return before, [zero.native.owner(parameter) for parameter in model.parameters()]


@pytest.mark.parametrize("make", [hook_with_zero_step, hook_with_zero_step_interleaved])
def test_without_shard_buckets_each_bucket_has_one_owner(ranks, make):
    whole = ranks(2, owners_by_bucket, make, False, "called")[0]
    assert all(len(owners) == 1 for owners in whole), whole
    assert set.union(*whole) == {0, 1}, "one rank has all"
    parts = ranks(2, owners_by_bucket, make, True, "called")[0]
    assert any(len(owners) == 2 for owners in parts), parts
    for before, after in ranks(2, owners_by_bucket, make, True, "native"):
        assert before == after
    for before, after in ranks(2, owners_by_bucket, make, False, "native"):
        assert before != after


def zero_in_backward(views, unused):
    reference = expected(6)
    model = wrap(small_net(), gradient_as_bucket_view=views, find_unused_parameters=unused)
    zero = brigade.apply_zero_in_backward(model, torch.optim.AdamW, **OPTIONS)
    for number in range(6):
        model(rows(number)).square().mean().backward()
        assert all(parameter.grad is None for parameter in model.parameters())
    compare(model, reference)
    assert model._get_ddp_logging_data()["comm_hook"] == "zero"
    return zero.state_bytes


def test_zero_in_backward_trains_as_the_optimizer_on_every_rank(ranks):
    whole = 2 * 4 * sum(parameter.numel() for parameter in small_net().parameters())
    for size in (2, 4):
        for views, unused in ((False, False), (True, False), (False, True)):
            parts = ranks(size, zero_in_backward, views, unused)
            assert sum(parts) == whole and max(parts) - min(parts) <= 4 * 2 * 8, parts


def zero_in_backward_resumed():
    def start():
        model = wrap(small_net())
        return model, brigade.apply_zero_in_backward(model, "adamw", **OPTIONS)

    def go(model, numbers):
        for number in numbers:
            with model.no_sync():
                model(rows(2 * number)).square().mean().backward()
            model(rows(2 * number + 1)).square().mean().backward()

    model, zero = start()
    go(model, range(3))
    zero.consolidate_state_dict(to=1)
    shared = [zero.state_dict() if dist.get_rank() == 1 else None]
    dist.broadcast_object_list(shared, 1)
    other, loaded = start()
    other.module.load_state_dict(model.module.state_dict())
    loaded.load_state_dict(shared[0])
    go(model, range(3, 5))
    go(other, range(3, 5))
    compare(other, list(model.parameters()))
    loaded.set_lr(0.0)
    before = [parameter.detach().clone() for parameter in other.parameters()]
    go(other, [5])
    # Weight decay goes with the rate too.
    assert all(torch.equal(one, two) for one, two in zip(before, other.parameters()))


def test_zero_in_backward_accumulates_and_resumes(ranks):
    ranks(2, zero_in_backward_resumed)


def saved_and_loaded():
    models = [wrap(small_net()), wrap(small_net())]
    zeros = [ZeroRedundancyOptimizer(model.module.named_parameters(), "adamw", **OPTIONS) for model in models]

    def go(which, numbers):
        for number in numbers:
            step(models[which], rows(number))
            zeros[which].step()

    go(0, range(3))
    zeros[0].consolidate_state_dict(to=0)
    if dist.get_rank() != 0:
        with pytest.raises(brigade.Error, match="consolidate_state_dict"):
            zeros[0].state_dict()
    shared = [zeros[0].state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared, 0)
    models[1].module.load_state_dict(models[0].module.state_dict())
    zeros[1].load_state_dict(shared[0])
    go(0, range(3, 5))
    go(1, range(3, 5))
    compare(models[0], list(models[1].parameters()))


OVERLAPPED = {"adam": (torch.optim.Adam, {"lr": 0.01, "betas": (0.8, 0.99), "amsgrad": True}),
              "adamw": (torch.optim.AdamW, OPTIONS), "sgd": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
              "adagrad": (torch.optim.Adagrad, {}), "rmsprop": (torch.optim.RMSprop, {"lr": 0.001, "momentum": 0.5, "centered": True}),
              "adadelta": (torch.optim.Adadelta, {}), "adamax": (torch.optim.Adamax, {}), "rprop": (torch.optim.Rprop, {})}


def overlap_in_torchs_form(name):
    """Two groups with different rates: overlap's state goes to an optimizer of torch's on every rank, and back."""
    kind, options = OVERLAPPED[name]

    def groups(model):
        first, *others = model.module.parameters()
        return [{"params": [first], "lr": 0.002}, {"params": others}]

    def overlapped():
        model = wrap(small_net())
        zero = ZeroRedundancyOptimizer(groups(model), kind, overlap_with_ddp=True, **options)
        brigade.set_hook(model, hook_with_zero_step(default_hooks.allreduce_hook, model, zero))
        return model, zero

    def whole(zero):
        zero.consolidate_state_dict(to=1)
        shared = [zero.state_dict() if dist.get_rank() == 1 else None]
        dist.broadcast_object_list(shared, 1)
        return shared[0]

    model, zero = overlapped()
    for number in range(3):
        step(model, rows(number))
    plain = wrap(small_net())
    plain.module.load_state_dict(model.module.state_dict())
    optimizer = kind(groups(plain), **options)
    optimizer.load_state_dict(whole(zero))
    assert optimizer.param_groups[0]["lr"] == 0.002
    for number in range(3, 5):
        step(model, rows(number))
        step(plain, rows(number))
        optimizer.step()
    compare(plain, list(model.parameters()))
    theirs, ours = optimizer.state_dict(), whole(zero)
    for number, kept in theirs["state"].items():
        assert set(kept) == set(ours["state"][number])
        for slot, value in kept.items():
            torch.testing.assert_close(ours["state"][number][slot], value, rtol=1e-3, atol=1e-5)
    for one, other in zip(ours["param_groups"], theirs["param_groups"]):
        assert one["params"] == other["params"] and one["lr"] == other["lr"]
    # The other direction, with a changed rate.
    theirs["param_groups"][1]["lr"] = 0.003
    again, loaded = overlapped()
    again.module.load_state_dict(plain.module.state_dict())
    loaded.load_state_dict(theirs)
    assert loaded.param_groups[1]["lr"] == 0.003 == loaded.native.lr(1)
    optimizer.load_state_dict(theirs)
    step(plain, rows(5))
    optimizer.step()
    step(again, rows(5))
    compare(plain, list(again.parameters()))
    with pytest.raises(brigade.ConfigError, match="the state has 1 groups of parameters, but there are 2 here"):
        loaded.load_state_dict({**theirs, "param_groups": theirs["param_groups"][:1]})


@pytest.mark.parametrize("name", OVERLAPPED)
def test_with_overlap_the_state_has_torchs_form(ranks, name):
    ranks(2, overlap_in_torchs_form, name)


def refused():
    model = wrap(small_net())
    other = torch.nn.Linear(2, 2)
    zero = ZeroRedundancyOptimizer(other.parameters(), torch.optim.SGD, overlap_with_ddp=True)
    with pytest.raises(brigade.ConfigError, match="a parameter that the model does not train"):
        hook_with_zero_step(default_hooks.allreduce_hook, model, zero)
    with pytest.raises(brigade.ConfigError, match="it has the same arguments"):
        hook_with_zero_step(default_hooks.allreduce_hook, model, torch.optim.SGD(model.parameters()))
    with pytest.raises(brigade.ConfigError, match="lbfgs"):
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.LBFGS)


def test_zero_is_saved_loaded_and_refused_where_it_must_be(ranks):
    ranks(2, saved_and_loaded)
    ranks(2, refused)


class Counting(torch.optim.SGD):
    """A user's own optimizer."""

    def step(self, closure=None, calls=None):
        super().step()
        self.param_groups[0]["counted"] = 7
        if calls is not None:
            calls.append(1)


def torchs_interface():
    value = torch.tensor([1.0], requires_grad=True)
    zero = ZeroRedundancyOptimizer([value], torch.optim.SGD, lr=0.1, momentum=0.9, foreach=True)
    assert isinstance(zero, torch.optim.Optimizer) and isinstance(zero, torch.distributed.optim.ZeroRedundancyOptimizer)
    schedule = torch.optim.lr_scheduler.StepLR(zero, 1, gamma=0.1)
    owns = bool(zero.optim.param_groups[0]["params"])
    for _ in range(2):
        zero.zero_grad()
        value.backward()
        zero.step()
        schedule.step()
    torch.testing.assert_close(value.detach(), torch.tensor([1 - 0.1 - 0.01 * 1.9]))
    assert zero.param_groups[0]["lr"] == pytest.approx(0.001)
    if owns:
        torch.testing.assert_close(zero.optim.state[value]["momentum_buffer"], torch.tensor([1.9]))
    zero.consolidate_state_dict(to=0)
    shared = [zero.state_dict() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared, 0)
    assert set(shared[0]) == {"state", "param_groups"}
    theirs = torch.distributed.optim.ZeroRedundancyOptimizer([value], torch.optim.SGD, lr=0.5)
    theirs.load_state_dict(shared[0])
    assert theirs.param_groups[0]["lr"] == pytest.approx(0.001)

    calls = []
    own = ZeroRedundancyOptimizer([value], Counting, lr=0.1)
    own.step(calls=calls)
    assert calls == [1] and own.param_groups[0]["counted"] == 7
    own.add_param_group({"params": [torch.ones(3, requires_grad=True)], "lr": 0.2})
    assert len(own.param_groups) == len(own.optim.param_groups) == 2
    for wrong, error in (([], ValueError), (value, TypeError), (1.2, TypeError), ([value, 42], TypeError),
                         ([torch.ones(1), torch.ones(1, dtype=torch.double)], ValueError)):
        with pytest.raises(error):
            ZeroRedundancyOptimizer(wrong, torch.optim.SGD, lr=0.1)


def joined(steps):
    """Ranks have different numbers of batches: a rank that ends early still takes part in the others' steps."""
    from torch.distributed.algorithms.join import Join

    model = wrap(small_net())
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **OPTIONS)
    with Join([model, zero]):
        for number in range(steps - dist.get_rank()):
            step(model, rows(number))
            zero.step()
    assert same_on_all_ranks(model.parameters())


def test_zero_is_a_torch_optimizer(ranks):
    ranks(2, torchs_interface)
    ranks(2, joined, 4)


def torchs_object_in_backward(make):
    reference = expected(6)
    model = wrap(small_net())
    zero = torch.distributed.optim.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, overlap_with_ddp=True, **OPTIONS)
    brigade.set_hook(model, make(default_hooks.allreduce_hook, model, zero))
    for number in range(6):
        step(model, rows(number))
    compare(model, reference)
    zero.param_groups[0]["lr"] = 0.0  # as schedulers do
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step(model, rows(6))
    assert all(torch.equal(one, two) for one, two in zip(before, model.parameters()))


def schedule_in_backward():
    model = wrap(small_net())
    zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, overlap_with_ddp=True, betas=(0.9, 0.99), **OPTIONS)
    brigade.set_hook(model, hook_with_zero_step(default_hooks.allreduce_hook, model, zero))
    with pytest.raises(brigade.ConfigError, match="betas can't be changed with overlap_with_ddp"):
        torch.optim.lr_scheduler.OneCycleLR(zero, 0.1, total_steps=9)
    with pytest.raises(brigade.ConfigError, match="eps can't be changed"):
        zero.param_groups[0]["eps"] = 0.5
    reference = wrap(small_net())
    plain = torch.optim.AdamW(reference.parameters(), betas=(0.9, 0.99), **OPTIONS)
    schedules = [torch.optim.lr_scheduler.OneCycleLR(each, 0.01, total_steps=9, cycle_momentum=False) for each in (zero, plain)]
    for number in range(6):
        step(model, rows(number))
        step(reference, rows(number))
        plain.step()
        for schedule in schedules:
            schedule.step()
    compare(model, list(reference.parameters()))


def test_overlap_follows_schedules_of_the_learning_rate_and_refuses_others(ranks):
    ranks(2, schedule_in_backward)


def test_overlap_takes_torchs_object(ranks):
    for make in (hook_with_zero_step, hook_with_zero_step_interleaved):
        ranks(2, torchs_object_in_backward, make)
