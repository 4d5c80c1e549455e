"""The functions as comm hooks that Python calls: native code inside, a torch Future as the result."""

import copy
import pickle

import brigade
import pytest
import torch
import torch.distributed as dist
from brigade import default_hooks, powerSGD_hook, quantization_hooks
from brigade.powerSGD_hook import PowerSGDState
from models import exact_mean, relative_error, rows, same_on_all_ranks, small_net, step, wrap

CALLED = {
    "allreduce": (default_hooks.allreduce_hook, 1e-5),
    "fp16": (default_hooks.fp16_compress_hook, 2e-3),
    "bf16": (default_hooks.bf16_compress_hook, 2e-2),
    "per tensor": (quantization_hooks.quantization_pertensor_hook, 1e-1),
    "per channel": (quantization_hooks.quantization_perchannel_hook, 2e-2),
    "fp16 of allreduce": (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), 2e-3),
    "bf16 of allreduce": (default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook), 2e-2),
}


def called(name):
    hook, tolerance = CALLED[name]
    module = small_net()
    model = wrap(module)
    model.register_comm_hook(None, hook)
    for number in range(4):
        data = rows(number)
        exact = exact_mean(module, data)
        found = step(model, data)
        assert same_on_all_ranks(found)
        assert relative_error(found, exact) < tolerance
    return model._get_ddp_logging_data()["comm_hook"]


@pytest.mark.parametrize("size", [2, 4])
def test_a_called_hook_averages_over_many_buckets(ranks, size):
    for name in CALLED:
        assert ranks(size, called, name)[0] == CALLED[name][0].__qualname__


def mean_in_python(state, bucket):
    assert bucket.buffer().dtype == state
    buffer = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda future: future.value()[0])


def wrapped_python():
    for wrapper, dtype, tolerance in ((default_hooks.fp16_compress_wrapper, torch.float16, 2e-3),
                                      (default_hooks.bf16_compress_wrapper, torch.bfloat16, 3e-2)):
        module = small_net()
        model = wrap(module)
        model.register_comm_hook(dtype, wrapper(mean_in_python))
        data = rows()
        exact = exact_mean(module, data)
        assert relative_error(step(model, data), exact) < tolerance


def test_a_wrapper_takes_a_hook_written_in_python_too(ranks):
    ranks(2, wrapped_python)


def future_of_a_bucket():
    seen = []

    def hook(state, bucket):
        future = default_hooks.fp16_compress_hook(state, bucket)
        seen.append(future)
        return future.then(lambda done: done.value().mul_(2))

    module = small_net()
    model = wrap(module)
    model.register_comm_hook(None, hook)
    data = rows()
    exact = exact_mean(module, data)
    doubled = step(model, data)
    assert relative_error([each / 2 for each in doubled], exact) < 2e-3
    assert all(isinstance(each, torch._C.Future) and each.done() for each in seen)


def test_what_comes_back_is_a_torch_future_that_can_be_chained(ranks):
    ranks(2, future_of_a_bucket)


def trained(hook, state, native, steps=6):
    """The parameters after some steps of SGD."""
    model = wrap(small_net())
    if native:
        brigade.set_hook(model, hook, state)
    else:
        model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(steps):
        step(model, rows(number))
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def same_both_ways(batched):
    hook = powerSGD_hook.batched_powerSGD_hook if batched else powerSGD_hook.powerSGD_hook
    states = [PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2) for _ in range(2)]
    direct, through_python = (trained(hook, state, native) for state, native in zip(states, (True, False)))
    for state in states:
        assert state.iter == 6
        rate, before, after = state.compression_stats()
        assert rate > 1 and before > after > 0
    for one, other in zip(direct, through_python):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    assert same_on_all_ranks(direct)


@pytest.mark.parametrize("batched", [False, True])
def test_powersgd_is_the_same_called_and_on_the_reducer(ranks, batched):
    ranks(2, same_both_ways, batched)


def resumed(batched, native):
    """Compares six steps with three, a pickle, and three more of a new model and a new state."""
    hook = powerSGD_hook.batched_powerSGD_hook if batched else powerSGD_hook.powerSGD_hook

    def start(module, state):
        model = wrap(module, "one")
        if native:
            brigade.set_hook(model, hook, state)
        else:
            model.register_comm_hook(state, hook)
        return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def go(model, optimizer, numbers):
        for number in numbers:
            step(model, rows(number, width=64))
            optimizer.step()

    def net():
        # There is one parameter, because a bucket of several is reordered after a model's first step.
        return small_net(64, layers=1, bias=False)

    state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=1)
    whole, optimizer = start(net(), state)
    go(whole, optimizer, range(3))
    saved = pickle.dumps({"model": whole.module.state_dict(), "optimizer": optimizer.state_dict(),
                          "hook": hook, "state": state})
    go(whole, optimizer, range(3, 6))

    loaded = pickle.loads(saved)
    assert loaded["hook"].__qualname__ == hook.__qualname__
    assert loaded["state"].iter == 3 and loaded["state"].matrix_approximation_rank == 2
    state = loaded["state"]
    module = net()
    module.load_state_dict(loaded["model"])
    resumed_model, optimizer = start(module, state)
    optimizer.load_state_dict(loaded["optimizer"])
    go(resumed_model, optimizer, range(3, 6))
    assert state.iter == 6
    for one, other in zip(whole.parameters(), resumed_model.parameters()):
        assert torch.equal(one, other)


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("native", [False, True])
def test_powersgd_pickled_goes_on_bit_for_bit(ranks, batched, native):
    ranks(2, resumed, batched, native)


def test_options_of_powersgd_are_checked_and_fixed():
    with pytest.raises(ValueError, match="rank is 0, expected 1 or more"):
        PowerSGDState(None, matrix_approximation_rank=0)
    state = PowerSGDState(None, min_compression_rate=3, random_seed=7)
    assert (state.min_compression_rate, state.random_seed) == (3, 7)
    assert state.compression_stats() == (0, 0, 0)
    state.native(batched=False)
    with pytest.raises(AttributeError, match="is fixed once"):
        state.warm_start = False
    copied = copy.deepcopy(state)
    assert copied.min_compression_rate == 3


def saved_and_loaded():
    def train(model, numbers):
        for number in numbers:
            found = step(model, rows(number, width=64))
        return found

    for spec in ("int8", "powersgd:start=0,rank=2", "batched_powersgd:start=0", "fp16"):
        # There is one parameter, because a bucket of several is reordered after the first step, and a quantizer's blocks with it.
        whole = wrap(small_net(64, layers=1, bias=False), "one")
        brigade.set_hook(whole, spec)
        train(whole, range(3))
        saved = brigade.state_dict(whole)
        expected = train(whole, range(3, 5))
        again = wrap(small_net(64, layers=1, bias=False), "one")
        brigade.set_hook(again, spec)
        brigade.load_state_dict(again, saved)
        found = train(again, range(3, 5))
        assert all(torch.equal(one, other) for one, other in zip(found, expected)), spec
    with pytest.raises(brigade.ConfigError, match="it lacks tensors, values"):
        brigade.load_state_dict(again, {})


def test_a_hooks_state_is_saved_and_loaded(ranks):
    ranks(2, saved_and_loaded)
