"""Native hooks on the Reducer of torch's DDP."""

import brigade
import pytest
import torch
import torch.distributed as dist
from models import exact_mean, relative_error, rows, same_on_all_ranks, small_net, step, wrap


def averages(spec, buckets):
    module = small_net()
    model = wrap(module, buckets)
    brigade.set_hook(model, spec)
    for number in range(3):  # the first step has one bucket, whatever the cap
        data = rows(number)
        exact = exact_mean(module, data)
        found = step(model, data)
        assert same_on_all_ranks(found)
    stats = brigade.hook_stats(model)
    assert stats.total.steps == 3
    assert stats.shape == "flat" and stats.total.bytes_to_other_hosts == 0  # one host
    return relative_error(found, exact)


# The error that one step may have.
EVERY_HOOK = {entry.name: entry.tolerance for entry in brigade.hook_table() if entry.tolerance >= 0 and "powersgd" not in entry.name}
EVERY_HOOK |= {"small+int8": EVERY_HOOK["int8"], "node+int8": EVERY_HOOK["int8"]}
EVERY_HOOK["powersgd:rank=2,start=0,rounds=1"] = 3  # later steps add what a step lacks


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("buckets", ["one", "many"])
def test_every_averaging_hook_gives_the_mean(ranks, size, buckets):
    for spec, tolerance in EVERY_HOOK.items():
        errors = ranks(size, averages, spec, buckets)
        assert max(errors) <= 2 * tolerance, f"{spec}: {errors}"


def two_ranks_a_host(spec):
    """The hook's counts in a step, with ranks numbered as by launchers of two hosts."""
    module = small_net()
    model = wrap(module)
    brigade.set_hook(model, spec)
    with pytest.MonkeyPatch.context() as launcher:
        launcher.setenv("GROUP_RANK", str(dist.get_rank() // 2))
        for number in range(3):
            data = rows(number)
            exact = exact_mean(module, data)
            found = step(model, data)
            assert same_on_all_ranks(found) and relative_error(found, exact) < 3e-2
    stats = brigade.hook_stats(model)
    return stats.shape, stats.last_step.bytes_to_other_hosts, stats.last_step.bytes_sent


def test_ranks_that_share_hosts_send_less_to_other_hosts(ranks):
    found = {spec: ranks(4, two_ranks_a_host, spec) for spec in ("int8", "int8:flat=1", "node+int8")}
    for spec, shape in (("int8", "2 hosts x 2 ranks"), ("int8:flat=1", "flat"), ("node+int8", "2 hosts x 2 ranks")):
        assert [each[0] for each in found[spec]] == [shape] * 4, spec
    away = {spec: [each[1] for each in found[spec]] for spec in found}
    assert all(0 < away < sent for _, away, sent in found["int8"])
    # In a flat exchange a host of two ranks sends twice what one of a single rank sends.
    assert sum(away["int8"]) < 0.6 * sum(away["int8:flat=1"])
    assert [each > 0 for each in away["node+int8"]] == [True, False, True, False], "the first rank of each host sends for it"


def power_sgd_reproduces(spec, buckets):
    return averages(spec, buckets)


@pytest.mark.parametrize("size", [2, 4])
def test_powersgd_at_full_rank_is_exact_with_many_buckets(ranks, size):
    errors = ranks(size, power_sgd_reproduces, "powersgd:rank=32,start=0,min_rate=0.1", "many")
    assert max(errors) < 1e-5


def replaced():
    module = small_net()
    model = wrap(module)
    names = []
    for number, hook in enumerate(["fp16", "int8", None, "powersgd:start=0,rank=32,min_rate=0.1", "bf16"]):
        brigade.set_hook(model, hook)
        for again in range(2):
            data = rows(10 * number + again)
            exact = exact_mean(module, data)
            assert relative_error(step(model, data), exact) < 2e-2, hook
        names.append(model._get_ddp_logging_data()["comm_hook"])
        assert brigade.hook_stats(model).total.steps == 2
    return names


def test_hooks_are_replaced_while_training(ranks):
    assert ranks(2, replaced)[0] == ["fp16", "int8", "allreduce", "powersgd:start=0,rank=32,min_rate=0.1", "bf16"]


def ruled():
    module = small_net()
    model = wrap(module)
    brigade.set_hook(model, "rules:*bias=allreduce;*=int8")
    for number in range(3):
        data = rows(number)
        exact = exact_mean(module, data)
        assert relative_error(step(model, data), exact) < 2e-2
    parts = brigade.hook_stats(model).parts
    assert sorted(parts) == ["*=int8", "*bias=allreduce"]
    assert sum(part.bytes_before for part in parts.values()) == brigade.hook_stats(model).total.bytes_before
    with pytest.raises(brigade.ConfigError, match="no rule fits the parameter '.*weight'"):
        brigade.set_hook(model, "rules:*bias=allreduce")
    return True


def test_rules_by_name_reduce_each_parameter_their_way(ranks):
    assert all(ranks(2, ruled))


def python_hook(state, bucket):
    state.append(bucket.index())
    buffer = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(buffer, async_op=True).get_future().then(lambda future: future.value()[0])


def replaced_by_python():
    module = small_net()
    model = wrap(module)
    seen = []
    for hook, state in ((python_hook, seen), ("fp16", None), (python_hook, seen)):
        brigade.set_hook(model, hook, state)
        data = rows(1)
        exact = exact_mean(module, data)
        assert relative_error(step(model, data), exact) < 1e-3
    return len(seen)


def test_a_python_hook_takes_turns_with_native_ones(ranks):
    assert min(ranks(2, replaced_by_python)) >= 2


def refusals():
    model = wrap(small_net())
    with pytest.raises(brigade.ConfigError, match="did you mean 'powersgd'"):
        brigade.set_hook(model, "powersdg")
    with pytest.raises(brigade.ConfigError, match="state is for comm hooks"):
        brigade.set_hook(model, "fp16", dist.group.WORLD)
    with pytest.raises(brigade.ConfigError, match="no hook of brigade's"):
        brigade.hook_stats(model)
    with pytest.raises(brigade.ConfigError, match="expected a torch.nn.parallel.DistributedDataParallel, got Linear"):
        brigade.set_hook(torch.nn.Linear(2, 2), "fp16")
    hooked = wrap(small_net())
    hooked.register_comm_hook([], python_hook)
    with pytest.raises(brigade.ConfigError, match="has the comm hook 'python_hook' already"):
        brigade.set_hook(hooked, "fp16")
    assert issubclass(brigade.ConfigError, ValueError) and issubclass(brigade.ConfigError, brigade.Error)


def test_wrong_use_is_told(ranks):
    ranks(1, refusals)
