"""Hooks in the ways people train: accumulation, loss scaling, uneven inputs, compiled models, other groups."""

import contextlib

import brigade
import pytest
import torch
import torch.distributed as dist
from brigade import default_hooks
from models import exact_mean, relative_error, rows, same_on_all_ranks, small_net, step, wrap
from torch.nn.parallel import DistributedDataParallel

ALL = ["allreduce", "fp16", "bf16", "quantize_per_tensor", "quantize_per_channel", "int8",
       "powersgd:start=0,rank=32,min_rate=0.1", "fp16+allreduce"]


def put(model, hook, way):
    if way == "native":
        brigade.set_hook(model, hook)
    else:
        model.register_comm_hook(None, {"allreduce": default_hooks.allreduce_hook,
                                        "fp16": default_hooks.fp16_compress_hook}[hook])


def accumulated(hook, way, views):
    module = small_net()
    model = wrap(module, gradient_as_bucket_view=views)
    put(model, hook, way)
    for number in range(3):
        parts = [rows(10 * number + part) for part in range(4)]
        model.zero_grad()
        exact = [sum(each) for each in zip(*[exact_mean(module, part) for part in parts])]
        for part in parts:
            last = part is parts[-1]
            with contextlib.nullcontext() if last else model.no_sync():
                model(part).square().mean().backward()
        found = [parameter.grad for parameter in model.parameters()]
        assert relative_error(found, exact) < 2e-3
        assert same_on_all_ranks(found)


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("way", ["native", "called"])
def test_gradients_accumulate_under_no_sync(ranks, way, views):
    for hook in ("allreduce", "fp16"):
        ranks(2, accumulated, hook, way, views)


def scaled(hook):
    """A loss scaler sees an overflow on one rank on every rank, skips that step, and goes on."""
    module = small_net()
    model = wrap(module)
    brigade.set_hook(model, hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    scales, moved = [], []
    for number in range(4):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        optimizer.zero_grad()
        data = rows(number)
        if number == 1 and dist.get_rank() == 1:
            data[0, 0] = float("inf")
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(data).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        moved.append(any(not torch.equal(one, other) for one, other in zip(before, model.parameters())))
    assert scales == [1024, 512, 512, 512], scales
    assert moved == [True, False, True, True], moved
    assert same_on_all_ranks(model.parameters())
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


@pytest.mark.parametrize("hook", ALL)
def test_a_loss_scaler_sees_an_overflow_through_every_hook(ranks, hook):
    ranks(2, scaled, hook)


def joined(hook):
    """Rank r has 3 + 2r batches."""
    model = wrap(small_net())
    brigade.set_hook(model, hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    steps = 0
    with model.join():
        for number in range(3 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            model(rows(number)).square().mean().backward()
            optimizer.step()
            steps += 1
    assert same_on_all_ranks(model.parameters())
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    return steps


@pytest.mark.parametrize("hook", ALL + ["batched_powersgd:start=1,rank=2", "powersgd:start=1,rank=2"])
def test_uneven_inputs_are_joined_under_every_hook(ranks, hook):
    assert ranks(3, joined, hook) == [3, 5, 7]


def joined_called():
    from brigade.powerSGD_hook import PowerSGDState, powerSGD_hook

    for state, hook in ((None, default_hooks.fp16_compress_hook),
                        (PowerSGDState(None, start_powerSGD_iter=0), powerSGD_hook)):
        model = wrap(small_net())
        model.register_comm_hook(state, hook)
        with model.join():
            for number in range(2 + dist.get_rank()):
                model.zero_grad()
                model(rows(number)).square().mean().backward()
        dist.barrier()


def test_uneven_inputs_are_joined_under_hooks_that_python_calls(ranks):
    ranks(2, joined_called)


def compiled(hook):
    """Dynamo's DDP optimizer cuts the graph where the buckets end; the Reducer sees gradients as ever."""
    import torch._dynamo

    torch._dynamo.reset()
    module = small_net(width=512)  # Dynamo wants buckets of 1 MB or more, the first one's size
    model = DistributedDataParallel(module, bucket_cap_mb=1)
    brigade.set_hook(model, hook)
    fast = torch.compile(model, backend="aot_eager")
    for number in range(3):
        data = rows(number, width=512)
        exact = exact_mean(module, data)
        model.zero_grad()
        fast(data).square().mean().backward()
        found = [parameter.grad for parameter in model.parameters()]
        assert relative_error(found, exact) < 2e-2
    assert brigade.hook_stats(model).total.steps == 3
    with pytest.raises(brigade.ConfigError, match="inside of torch.compile"):
        brigade.set_hook(fast, hook)


@pytest.mark.parametrize("hook", ["fp16", "int8"])
def test_a_compiled_model_reduces_by_its_hook(ranks, hook):
    ranks(2, compiled, hook)


def python_reducer():
    import torch._dynamo

    torch._dynamo.reset()
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        model = DistributedDataParallel(small_net())
        with pytest.raises(brigade.ConfigError, match="has no Reducer to give a hook to"):
            brigade.set_hook(model, "fp16")
    torch._dynamo.reset()


def test_a_model_without_a_reducer_is_refused(ranks):
    ranks(1, python_reducer)


def over_groups():
    """A subgroup as the model's own, as the hook's, and one of a device mesh."""
    from torch.distributed.device_mesh import init_device_mesh

    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = pairs[rank // 2]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))

    def mean_over(group, data, module):
        module.zero_grad()
        module(data).square().mean().backward()
        found = [parameter.grad.clone() for parameter in module.parameters()]
        for each in found:
            dist.all_reduce(each, group=group)
            each /= dist.get_world_size(group)
        return found

    for group in (mine, mesh["b"].get_group(), mesh["a"].get_group()):
        module = small_net()
        expected = mean_over(group, rows(), module)
        model = DistributedDataParallel(module, process_group=group)
        brigade.set_hook(model, "allreduce")
        assert relative_error(step(model, rows()), expected) < 1e-5
        whole = DistributedDataParallel(small_net())
        brigade.set_hook(whole, "allreduce", process_group=group)
        assert relative_error(step(whole, rows()), expected) < 1e-5
        called = DistributedDataParallel(small_net())
        called.register_comm_hook(group, default_hooks.allreduce_hook)
        assert relative_error(step(called, rows()), expected) < 1e-5


def test_any_group_is_used_as_it_is(ranks):
    ranks(4, over_groups)


def static_graph(views):
    module = small_net()
    model = wrap(module, static_graph=True, gradient_as_bucket_view=views)
    brigade.set_hook(model, "fp16")
    for number in range(4):
        data = rows(number)
        exact = exact_mean(module, data)
        assert relative_error(step(model, data), exact) < 2e-3


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.one, self.other = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)

    def forward(self, x, which):
        return (self.one if which else self.other)(x)


def unused_parameters():
    model = wrap(Branches(), find_unused_parameters=True)
    brigade.set_hook(model, "int8")
    for number in range(6):
        model.zero_grad()
        which = (number + dist.get_rank()) % 2 == 0
        model(rows(number), which).square().mean().backward()
        found = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert len(found) == 4 and same_on_all_ranks(found)


def test_static_graphs_and_unused_parameters(ranks):
    ranks(2, static_graph, True)
    ranks(2, static_graph, False)
    ranks(2, unused_parameters)
