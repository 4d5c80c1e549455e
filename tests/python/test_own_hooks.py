"""The user's own hooks, in Python, by name among the native ones."""

import brigade
import pytest
import torch
from models import exact_mean, relative_error, rows, same_on_all_ranks, small_net, step, wrap


async def mean(bucket, comm):
    gradients = bucket.buffer().div_(comm.size())
    await comm.all_reduce(gradients)
    return gradients


async def by_gathering(bucket, comm):
    """Runs two collectives, one after the other."""
    assert len(bucket.names()) == len(bucket.gradients()) == len(bucket.parameters())
    all_of_them = torch.empty(comm.size() * bucket.buffer().numel())
    await comm.all_gather(bucket.buffer(), all_of_them)
    result = all_of_them.view(comm.size(), -1).mean(0)
    await comm.broadcast(result, 0)
    return result


class Counting:
    """Has state."""

    def __init__(self, options):
        self.times = int(options.get("times", "1"))
        self.buckets = 0

    async def __call__(self, bucket, comm):
        if bucket.index() == 0:
            self.buckets += 1
        for _ in range(self.times):  # the mean of means is the mean
            await comm.all_reduce(bucket.buffer().div_(comm.size()))
        return bucket.buffer()

    def state(self):
        return {}, {"buckets": str(self.buckets)}

    def load_state(self, tensors, values):
        self.buckets = int(values["buckets"])


def registered():
    for name, factory in {"py_mean": lambda options: mean, "py_gathering": lambda options: by_gathering,
                          "py_counting": Counting, "py_native": lambda options: brigade.make_hook("fp16")}.items():
        try:
            brigade.register_hook(name, factory)
        except brigade.ConfigError as error:  # an earlier case in this process did so
            assert "registered already" in str(error)


def averaged():
    registered()
    module = small_net()
    model = wrap(module)
    for number, spec in enumerate(["py_mean", "py_gathering", "py_counting:times=3", "py_native", "bf16+py_mean",
                                   "rules:*bias=py_mean;0*=py_gathering;*=int8"]):
        brigade.set_hook(model, spec)
        for again in range(2):
            data = rows(10 * number + again)
            exact = exact_mean(module, data)
            found = step(model, data)
            assert same_on_all_ranks(found)
            assert relative_error(found, exact) < (1e-6 if spec.startswith(("py_m", "py_g", "py_c")) else 2e-2), spec
    assert brigade.make_hook("py_counting:times=3").fingerprint == "py_counting:times=3"
    return sorted(brigade.hook_stats(model).parts)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_hook_in_python_works_by_name_behind_wrappers_and_in_rules(ranks, size):
    for parts in ranks(size, averaged):
        assert parts == ["*=int8", "*bias=py_mean", "0*=py_gathering"]


def kept():
    registered()
    model = wrap(small_net())
    brigade.set_hook(model, "py_counting")
    for number in range(3):
        step(model, rows(number))
    state = brigade.state_dict(model)
    other = brigade.make_hook("py_counting")
    brigade.load_state_dict(other, state)
    return state["values"], brigade.state_dict(other)["values"]


def test_its_state_is_part_of_a_checkpoint(ranks):
    assert ranks(2, kept) == [({"buckets": "3"}, {"buckets": "3"})] * 2


def wrong_use():
    kept_comm = []

    async def keeps(bucket, comm):
        kept_comm.append(comm)
        return bucket.buffer()

    def not_async(bucket, comm):
        return bucket.buffer()

    async def no_tensor(bucket, comm):
        return 3

    async def raising(bucket, comm):
        raise KeyError("mine")

    def factory_fails(options):
        raise brigade.ConfigError(f"wrong_factory: unknown {sorted(options)}")

    for function in (not_async, no_tensor, raising, keeps):
        brigade.register_hook(function.__name__, lambda options, function=function: function)
    brigade.register_hook("no_function", lambda options: 3)
    brigade.register_hook("factory_fails", factory_fails)
    for name, message in {"int8": "the library's own", "a b": "letters, digits", "keeps": "registered already"}.items():
        with pytest.raises(brigade.ConfigError, match=message):
            brigade.register_hook(name, lambda options: mean)
    with pytest.raises(brigade.ConfigError, match="can't be called"):
        brigade.register_hook("text", "mean")
    with pytest.raises(brigade.ConfigError, match="async function"):
        brigade.make_hook("no_function")
    with pytest.raises(brigade.ConfigError, match=r"unknown \['k'\]"):
        brigade.make_hook("factory_fails:k=1")
    for name, message in {"not_async": "not an 'async def'", "no_tensor": "returned a int",
                          "raising": "KeyError: 'mine'"}.items():
        model = wrap(small_net())
        brigade.set_hook(model, name)
        with pytest.raises(brigade.HookError, match=message):
            step(model, rows())
    model = wrap(small_net())
    brigade.set_hook(model, "keeps")
    step(model, rows())
    with pytest.raises(brigade.ConfigError, match="has been reduced"):
        kept_comm[0].size()
    return True


def test_wrong_use_is_told_and_exceptions_come_out_of_backward(ranks):
    assert all(ranks(2, wrong_use))
