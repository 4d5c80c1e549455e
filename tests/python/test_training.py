"""Hooks in usual kinds of training: accumulation, loss scaling, uneven inputs, compiled models, other groups."""

import contextlib
import copy
import os
import shutil
import sysconfig

import brigade
import pytest
import torch
import torch.distributed as dist
from brigade import default_hooks
from models import exact_mean, relative_error, rows, same_on_all_ranks, small_net, step, wrap
from torch.nn.parallel import DistributedDataParallel

ALL = [entry.name for entry in brigade.hook_table() if entry.tolerance >= 0 and "powersgd" not in entry.name]
ALL += ["powersgd:start=0,rank=32,min_rate=0.1", "fp16+allreduce", "bf16+allreduce"]


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
    """Every rank's loss scaler sees an overflow on one rank, skips that step, and goes on."""
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


CALLED = {
    "allreduce": lambda: (None, default_hooks.allreduce_hook),
    "fp16": lambda: (None, default_hooks.fp16_compress_hook),
    "bf16": lambda: (None, default_hooks.bf16_compress_hook),
    "fp16 wrapper": lambda: (None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook)),
    "bf16 wrapper": lambda: (None, default_hooks.bf16_compress_wrapper(default_hooks.allreduce_hook)),
    "per tensor": lambda: (None, brigade.quantization_hooks.quantization_pertensor_hook),
    "per channel": lambda: (None, brigade.quantization_hooks.quantization_perchannel_hook),
    "powersgd": lambda: (brigade.powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=0),
                         brigade.powerSGD_hook.powerSGD_hook),
    "batched powersgd": lambda: (brigade.powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=0),
                                 brigade.powerSGD_hook.batched_powerSGD_hook),
    "post-local sgd": lambda: (brigade.post_localSGD_hook.PostLocalSGDState(None, None, 100),
                               brigade.post_localSGD_hook.post_localSGD_hook),
}


def joined_called(name, way):
    state, hook = CALLED[name]()
    model = wrap(small_net())
    if way == "called":
        model.register_comm_hook(state, hook)
    else:
        brigade.set_hook(model, hook, state)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with model.join():
        for number in range(2 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            model(rows(number)).square().mean().backward()
            optimizer.step()
    assert same_on_all_ranks(model.parameters())


@pytest.mark.parametrize("way", ["called", "set"])
@pytest.mark.parametrize("name", CALLED)
def test_uneven_inputs_are_joined_under_every_comm_hook(ranks, name, way):
    ranks(2, joined_called, name, way)


def joined_and_stepped(how):
    """Optimizers in the backward pass: a rank without data steps with the others, so all stay equal."""
    from brigade.ddp_zero_hook import hook_with_zero_step, hook_with_zero_step_interleaved
    from brigade.optimizer_overlap_hooks import OptimizerHookState, hook_then_optimizer

    def uneven(model, after=lambda: None):
        with model.join():
            for number in range(2 + 3 * dist.get_rank()):
                model.zero_grad()
                model(rows(number)).square().mean().backward()
                after()

    reference = wrap(small_net())
    optimizer = torch.optim.SGD(reference.parameters(), 0.05)
    uneven(reference, optimizer.step)
    model = wrap(small_net())
    if how == "then optimizer":
        brigade.set_hook(model, hook_then_optimizer(default_hooks.allreduce_hook,
                                                    OptimizerHookState(brigade.optim.SGD(lr=0.05))))
    elif how == "in backward":
        brigade.optim.apply_optimizer_in_backward(model, brigade.optim.SGD(lr=0.05))
    elif how == "zero in backward":
        brigade.apply_zero_in_backward(model, "sgd", lr=0.05)
    else:
        zero = brigade.ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.05)
        make = {"zero": hook_with_zero_step, "zero interleaved": hook_with_zero_step_interleaved}[how]
        brigade.set_hook(model, make(default_hooks.allreduce_hook, model, zero))
    uneven(model)
    assert same_on_all_ranks(model.parameters())
    # The last rank made all steps, so join() gives its parameters to the others.
    assert relative_error(list(model.parameters()), list(reference.parameters())) < 1e-5


@pytest.mark.parametrize("how", ["then optimizer", "in backward", "zero", "zero interleaved", "zero in backward"])
def test_uneven_inputs_are_joined_under_optimizers_in_backward(ranks, how):
    ranks(2, joined_and_stepped, how)


class Layers(torch.nn.Module):
    """Dynamo skips a module of torch.nn itself. It needs buckets of 1 MB or more, the first one's size."""

    def __init__(self):
        super().__init__()
        self.layers = small_net(width=512, layers=2)

    def forward(self, x):
        return self.layers(x).tanh()


def compiled(hook, backend, folder):
    """Dynamo's DDP optimizer cuts the graph where the buckets end; the Reducer sees the usual gradients. Returns the number of parts."""
    import torch._dynamo

    torch._dynamo.reset()
    with quick_inductor(folder) if backend == "inductor" else contextlib.nullcontext():
        return compiled_pieces(hook, backend)


def quick_inductor(folder):
    """Inductor without its slowest parts: processes that compile, trials of instruction sets, precompiled headers."""
    import torch._inductor.config

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
    return torch._inductor.config.patch({"compile_threads": 1, "cpp.vec_isa_ok": False, "cpp_cache_precompile_headers": False})


def compiled_pieces(hook, backend):
    module = Layers()
    model = DistributedDataParallel(module, bucket_cap_mb=1)
    brigade.set_hook(model, hook)
    pieces = []

    def counting(graph, inputs):
        pieces.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    fast = torch.compile(model, backend=counting)
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
    return len(pieces)


@pytest.mark.parametrize("hook", ["fp16", "int8"])
def test_a_compiled_model_reduces_by_its_hook(ranks, hook):
    assert ranks(2, compiled, hook, "aot_eager", None) == [2, 2]


@pytest.mark.skipif(shutil.which("g++") is None or not os.path.exists(sysconfig.get_path("include") + "/Python.h"),
                    reason="inductor needs g++ and Python.h")
def test_a_model_compiled_by_inductor_reduces_by_its_hook(ranks, tmp_path):
    assert ranks(2, compiled, "int8", "inductor", str(tmp_path)) == [2, 2]
    assert list(tmp_path.rglob("*.so")), "no code was made"


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
    """Uses a subgroup as the model's own and as the hook's, and one of a device mesh."""
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


def moved(spec):
    """DDP._update_process_group: the hook goes on over the model's new group."""
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    other = [dist.new_group([0, 1]), dist.new_group([2, 3])]

    def mean_over(group, module, data):
        module = copy.deepcopy(module).double()
        module.zero_grad()
        module(data.double()).square().mean().backward()
        found = [parameter.grad for parameter in module.parameters()]
        for each in found:
            dist.all_reduce(each, group=group)
            each /= dist.get_world_size(group)
        return found

    module = small_net()
    model = wrap(module)
    brigade.set_hook(model, spec)
    steps = 0
    for group in (None, pairs[rank // 2], dist.group.WORLD, pairs[rank // 2], other[rank // 2]):
        if group is not None:
            model._update_process_group(group)
        for again in range(3):
            data = rows(steps)
            expected = mean_over(group, module, data)
            assert relative_error(step(model, data), expected) < 2e-3, (steps, group)
            steps += 1
    if "powersgd" in spec:
        assert brigade.state_dict(model)["values"]["iteration"] == "15"  # it is still the same hook
    assert brigade.hook_stats(model).total.steps == 3  # over this group
    # A hook with its own group stays there.
    brigade.set_hook(model, "allreduce", process_group=dist.group.WORLD)
    expected = mean_over(None, module, rows())
    model._update_process_group(pairs[rank // 2])
    assert relative_error(step(model, rows()), expected) < 1e-5
    # A hook that is set afterwards has the model's.
    brigade.set_hook(model, "fp16")
    expected = mean_over(pairs[rank // 2], module, rows())
    assert relative_error(step(model, rows()), expected) < 1e-3


@pytest.mark.parametrize("spec", ["fp16", "powersgd:start=0,rank=32,min_rate=0.1,ef=0"])
def test_a_hook_follows_the_model_to_another_group(ranks, spec):
    ranks(4, moved, spec)


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
