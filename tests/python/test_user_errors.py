"""Things that a user of torch's DDP does: several models, complex parameters, errors that can be caught, copies."""

import copy
import datetime
import gc
import io
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings

import brigade
import pytest
import torch
import torch.distributed as dist
from brigade import default_hooks, post_localSGD_hook, powerSGD_hook, quantization_hooks
from models import exact_mean, mean_in_double, relative_error, rows, same_on_all_ranks, small_net, step, wrap
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def two_models(spec):
    nets = [small_net(), small_net(layers=3)]
    models = [wrap(net) for net in nets]
    for model in models:
        brigade.set_hook(model, spec)
    for number in range(3):
        data = rows(number)
        exact = [gradient for net in nets for gradient in exact_mean(net, data)]
        for model in models:
            model.zero_grad()
        sum(model(data).square().mean() for model in models).backward()
        found = [parameter.grad.clone() for model in models for parameter in model.parameters()]
        assert same_on_all_ranks(found)
        assert relative_error(found, exact) < 3e-2


def test_two_models_share_a_backward_pass(ranks):
    for spec in ("int8", "powersgd:rank=32,start=0,min_rate=0.1"):
        ranks(2, two_models, spec)


class ComplexNet(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first = nn.Parameter(torch.randn(24, 20, dtype=torch.cfloat) / 5)
        self.bias = nn.Parameter(torch.zeros(20, dtype=torch.cfloat))
        self.second = nn.Linear(20, 6)

    def forward(self, data):
        return self.second((data.to(torch.cfloat if data.dtype == torch.float32 else torch.cdouble) @ self.first + self.bias).abs())


def exact_complex(net, data):
    exact = copy.deepcopy(net)
    for parameter in exact.parameters():
        parameter.data = parameter.data.to(torch.cdouble if parameter.is_complex() else torch.double)
    return mean_in_double(exact, data)


def as_reals(tensors):
    return [torch.view_as_real(each) if each.is_complex() else each for each in tensors]


CALLED = {"allreduce": default_hooks.allreduce_hook, "fp16": default_hooks.fp16_compress_hook,
          "quantize_per_channel": quantization_hooks.quantization_perchannel_hook}


def complex_gradients(spec, tolerance, way):
    net = ComplexNet()
    model = wrap(net)
    if way == "set":
        brigade.set_hook(model, spec)
    else:
        model.register_comm_hook(None, CALLED[spec])
    for number in range(3):
        data = rows(number, 24, 8)
        exact = exact_complex(net, data)
        found = step(model, data)
        assert same_on_all_ranks(as_reals(found)), spec
    assert relative_error(as_reals(found), as_reals(exact)) <= tolerance, spec


def test_every_hook_averages_complex_gradients(ranks):
    for entry in brigade.hook_table():
        if entry.tolerance < 0:
            continue
        # With these options it loses nothing that error feedback would bring later.
        whole = {"powersgd": ":start=0,rank=64,min_rate=0.01", "batched_powersgd": ":start=0,rank=64,min_rate=0.01",
                 "topk": ":ratio=1", "randomk": ":ratio=1"}
        spec = entry.name + whole.get(entry.name, "")
        ranks(2, complex_gradients, spec, 3 * entry.tolerance if entry.tolerance < 1 else 2e-3, "set")
    for spec in CALLED:
        ranks(2, complex_gradients, spec, 3e-2, "called")


def complex_is_refused():
    with pytest.raises(brigade.ConfigError, match="can't go with parameters of ComplexFloat"):
        brigade.optim.apply_optimizer_in_backward(wrap(ComplexNet()), brigade.optim.SGD(lr=0.1))
    with pytest.raises(brigade.ConfigError, match="can't go with parameters of ComplexFloat"):
        brigade.apply_zero_in_backward(wrap(ComplexNet()), "adam")


def test_optimizers_in_the_backward_pass_refuse_complex_parameters(ranks):
    ranks(1, complex_is_refused)


def fails(state, bucket):
    raise LookupError("the hook's own")


def types_of_errors():
    rank = dist.get_rank()
    with pytest.raises(brigade.MismatchError, match="the ranks have different hooks:\n  'bf16' on ranks 1\n  'fp16' on ranks 0"):
        model = wrap(small_net())
        brigade.set_hook(model, "fp16" if rank == 0 else "bf16")
        step(model, rows())
    with pytest.raises(brigade.MismatchError, match="the ranks have different hooks:\n  'fp16' on ranks 0\n  'the Python function fails'"):
        model = wrap(small_net())
        brigade.set_hook(model, "fp16" if rank == 0 else fails)
        step(model, rows())
    with pytest.raises(LookupError, match="the hook's own"):
        model = wrap(small_net())
        brigade.set_hook(model, fails)
        step(model, rows())
    # It happens in a bucket's future, and where Python calls the hook.
    for way in ("set", "called"):
        group = dist.new_group([0, 1], timeout=datetime.timedelta(seconds=2))
        model = wrap(small_net(), process_group=group)
        if way == "set":
            brigade.set_hook(model, "fp16")
        else:
            model.register_comm_hook(group, default_hooks.fp16_compress_hook)
        for number in range(2):  # the second pass rebuilds the buckets, for which torch's own group waits
            step(model, rows(number))
        store = dist.distributed_c10d._get_default_store()
        if rank == 0:
            try:
                with pytest.raises(brigade.HookError, match="hook 'fp16', bucket 0, step 2"):
                    step(model, rows())
            finally:
                store.set(f"told {way}", "1")
        else:
            store.wait([f"told {way}"])
        dist.destroy_process_group(group)


def test_errors_out_of_backward_have_brigades_types(ranks):
    ranks(2, types_of_errors)


def set_on_one_rank(first, steps):
    """Only rank 0 sets a hook; within seconds it says which ranks have none, or another."""
    model = wrap(small_net())
    if first:
        brigade.set_hook(model, first)
    for _ in range(steps):
        step(model, rows())
    store = dist.distributed_c10d._get_default_store()
    began = time.monotonic()
    if dist.get_rank() == 0:
        brigade.set_hook(model, "int8")
        missing = "the hook of before" if first else "none of brigade's"
        try:
            with pytest.raises(brigade.MismatchError, match=f"'int8' on ranks 0\n  {missing} on ranks 1\nset the same hook"):
                step(model, rows())
        finally:
            store.set(f"told after {first} {steps}", "1")
    elif first:
        with pytest.raises(brigade.HookError, match="the ranks have different hooks"):
            step(model, rows())
    else:
        # This rank has one bucket in its first pass, which rank 0 has averaged with it.
        exact = exact_mean_of_both(model.module, rows)
        assert relative_error(step(model, rows()), exact) < 1e-6
        store.wait([f"told after {first} {steps}"])
    return time.monotonic() - began


def exact_mean_of_both(module, data):
    means = []
    for rank in (0, 1):
        exact = copy.deepcopy(module).double()
        exact.zero_grad()
        generator = torch.Generator().manual_seed(rank)
        exact(torch.randn(4, 32, generator=generator).double()).square().mean().backward()
        means.append([parameter.grad for parameter in exact.parameters()])
    return [(one + other) / 2 for one, other in zip(*means)]


def test_a_hook_that_one_rank_sets_is_told_within_seconds(ranks):
    for first, steps in ((None, 0), ("fp16", 1), ("fp16", 3)):
        assert max(ranks(2, set_on_one_rank, first, steps)) < 15  # the group's time limit is 30


def late():
    """The others wait quietly for a rank that takes longer."""
    model = wrap(small_net())
    if dist.get_rank() == 1:
        time.sleep(4)
    brigade.set_hook(model, "allreduce")
    data = rows()
    found = step(model, data)
    assert relative_error(found, exact_mean(model.module, data)) < 1e-6


def test_a_late_rank_is_waited_for(ranks):
    ranks(2, late)


def copies():
    model = wrap(small_net())
    brigade.set_hook(model, "fp16")
    step(model, rows())
    with pytest.warns(UserWarning, match="the copy of a model with the hook 'fp16' has no hook"):
        twin = copy.deepcopy(model)
    with pytest.warns(UserWarning, match="the pickle of a model with the hook 'fp16' has no hook"):
        loaded = pickle.loads(pickle.dumps(model))
    for each in (twin, loaded):
        with pytest.raises(brigade.ConfigError, match="no hook of brigade's"):
            brigade.hook_stats(each)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            copy.deepcopy(each)
            brigade.set_hook(each, "bf16")
        step(each, rows())
    saved = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.save(model.state_dict(), saved)


def test_copies_and_pickles_say_that_the_hook_stays_behind(ranks):
    ranks(2, copies)


def copies_of_registered(hook, title):
    """The same for a hook that was set in torch's own way, before the first backward pass and after it."""
    gc.collect()  # no model has it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert copy.deepcopy(hook) is hook and pickle.loads(pickle.dumps(hook)) is hook
    model = DistributedDataParallel(small_net())
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=0) if hook is powerSGD_hook.powerSGD_hook else None
    model.register_comm_hook(state, hook)
    for number in range(2):
        with pytest.warns(UserWarning, match=f"the copy of a model with the hook '{title}' has no hook"):
            twin = copy.deepcopy(model)
        with pytest.warns(UserWarning, match=f"the pickle of a model with the hook '{title}' has no hook"):
            loaded = pickle.loads(pickle.dumps(model))
        for each in (twin, loaded):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                copy.deepcopy(each)
                brigade.set_hook(each, "bf16")
            step(each, rows(number))
            assert brigade.hook_stats(each).total.steps == 1
        with pytest.raises(brigade.ConfigError, match=f"this model has the comm hook '{title}' already"):
            brigade.set_hook(model, "bf16")
        step(model, rows(number))


@pytest.mark.parametrize("hook", [default_hooks.fp16_compress_hook, powerSGD_hook.powerSGD_hook], ids=lambda hook: hook.__name__)
def test_copies_of_a_model_with_a_registered_hook_say_so_too(ranks, hook):
    ranks(2, copies_of_registered, hook, hook.__name__)


def clear_errors():
    model = wrap(nn.Linear(64, 64))
    for hook in (powerSGD_hook.powerSGD_hook, powerSGD_hook.batched_powerSGD_hook):
        with pytest.raises(brigade.ConfigError, match="need a brigade.powerSGD_hook.PowerSGDState, got NoneType"):
            brigade.set_hook(model, hook, None)
    with pytest.raises(brigade.ConfigError, match="expected a process group of torch.distributed, or None, got 'world'"):
        brigade.set_hook(model, "fp16", process_group="world")
    with pytest.raises(brigade.ConfigError, match="expected a process group of torch.distributed, or None, got 'world'"):
        brigade.set_hook(model, default_hooks.fp16_compress_hook, "world")
    with pytest.raises(brigade.ConfigError, match="expected a process group of torch.distributed"):
        powerSGD_hook.PowerSGDState("world")
    with pytest.raises(brigade.ConfigError, match="random_seed is -1, but must be a whole number from 0 on"):
        powerSGD_hook.PowerSGDState(None, random_seed=-1)
    with pytest.raises(brigade.ConfigError, match="start_powerSGD_iter is 1.5, but must be a whole number"):
        powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=1.5)
    state = powerSGD_hook.PowerSGDState(None)
    for option, value in (("random_seed", -1), ("start_powerSGD_iter", 1.5)):
        with pytest.raises(brigade.ConfigError, match=f"{option} is {value}, but must be a whole number"):
            setattr(state, option, value)
    with pytest.raises(brigade.ConfigError, match="expected a process group of torch.distributed, or None, got 'world'"):
        post_localSGD_hook.PostLocalSGDState("world", None, 1)
    with pytest.raises(brigade.ConfigError, match="start_localSGD_iter is 1.5, but must be a whole number"):
        post_localSGD_hook.PostLocalSGDState(None, None, 1.5)
    with pytest.raises(brigade.ConfigError, match="needs a brigade.post_localSGD_hook.PostLocalSGDState, got NoneType"):
        brigade.set_hook(model, post_localSGD_hook.post_localSGD_hook, None)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    for make, told in ((lambda: brigade.LocalSGD(model, sgd, period=1.5), "LocalSGD: period is 1.5"),
                       (lambda: brigade.LocalSGD(model, sgd, period=2, warmup_steps="3"), "LocalSGD: warmup_steps is '3'"),
                       (lambda: brigade.LocalSGD(model, sgd, levels={2: 1.5}), r"LocalSGD: levels\[2\] is 1.5"),
                       (lambda: brigade.LocalSGD(model, sgd, levels={2.5: 1}), "LocalSGD: a period of levels is 2.5"),
                       (lambda: brigade.DiLoCo(model.module, sgd, period=1.5), "DiLoCo: period is 1.5"),
                       (lambda: brigade.DiLoCo(model.module, sgd, delay=None), "DiLoCo: delay is None"),
                       (lambda: brigade.averagers.PeriodicModelAverager(1.5), "PeriodicModelAverager: period is 1.5"),
                       (lambda: brigade.averagers.HierarchicalModelAverager({2.5: 1}), "HierarchicalModelAverager: a period is 2.5")):
        with pytest.raises(brigade.ConfigError, match=f"{told}, but must be a whole number"):
            make()
    brigade.set_hook(model, "powersgd:start=0")
    step(model, rows(width=64))
    saved = brigade.state_dict(model)
    brigade.set_hook(model, "int8")
    with pytest.raises(brigade.ConfigError, match="the state of a hook 'powersgd', but the hook here is 'int8'"):
        brigade.load_state_dict(model, saved)
    for named in (brigade.Hook, brigade.HookStats, brigade.HookTraffic, brigade.Error, brigade.ConfigError, brigade.HookError,
                  brigade.MismatchError, brigade.PeerLostError, brigade.TimeoutError, brigade.RendezvousError, brigade.CheckpointError):
        assert named.__doc__, named
    for kind in (brigade.Hook, brigade.HookStats, brigade.HookTraffic):
        for name, member in vars(kind).items():
            # pybind begins a method's with its signature.
            words = (member.__doc__ or "").replace("\n", " ").partition("->")[2 if callable(member) else 0]
            assert name.startswith("_") or " " in words.strip(), (kind, name)


def test_wrong_arguments_are_told_in_words(ranks):
    ranks(1, clear_errors)


def keys_of_errors(way):
    model = wrap(small_net())
    state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=0)
    if way == "called":
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        brigade.set_hook(model, powerSGD_hook.powerSGD_hook, state)
    for number in range(2):
        step(model, rows(number))
    return sorted(state.error_dict), sorted(state.q_memory_dict)


def test_errors_have_the_same_keys_on_both_ways(ranks):
    set_, called = [ranks(2, keys_of_errors, way)[0] for way in ("set", "called")]
    assert set_ == called
    assert set_[0] == [f"{layer}.weight" for layer in range(4)]


def join_by_active_ranks():
    """Rank 0 has two batches, rank 1 one: the second mean is rank 0's alone."""
    model = wrap(small_net())
    brigade.set_hook(model, "int8")
    brigade.set_hook(model, None)
    rank = dist.get_rank()
    with model.join(divide_by_initial_world_size=False):
        for number in range(2 - rank):
            found = step(model, rows(number))
    if rank == 0:
        alone = copy.deepcopy(model.module)
        exact = step(alone, rows(1))
        return relative_error(found, exact)
    return 0.0


def test_join_divides_by_the_ranks_that_still_have_input(ranks):
    assert max(ranks(2, join_by_active_ranks)) < 1e-6


def averages_for_a_while(state, bucket):
    """After so many passes its futures do not complete any more."""
    if state["passes"] == 0:
        return torch.futures.Future()
    state["passes"] -= bucket.is_last()
    work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def press_ctrl_c_after(event):
    def press():
        event.wait()
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press, daemon=True).start()


def interrupted(hook, passes):
    """Rank 1 takes part in so many backward passes, but not in the next, so Ctrl-C must end rank 0's wait."""
    model = wrap(small_net(), process_group=dist.new_group([0, 1], timeout=datetime.timedelta(seconds=60)))
    store = dist.distributed_c10d._get_default_store()
    if passes or dist.get_rank() == 0:
        brigade.set_hook(model, hook, {"passes": passes} if callable(hook) else None)
    for number in range(passes):
        step(model, rows(number))
    done = f"interrupted {getattr(hook, '__name__', hook)} {passes}"
    if dist.get_rank() == 1:
        store.wait([done])
        return 0.0
    begun = threading.Event()
    output = model(rows())
    output.register_hook(lambda gradient: begun.set())
    press_ctrl_c_after(begun)
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            output.square().mean().backward()
    finally:
        store.set(done, "1")
    return time.monotonic() - began


@pytest.mark.parametrize("hook, passes", [("fp16", 0), ("int8", 3), (None, 3), ("powersgd:start=0", 3), (averages_for_a_while, 3)])
def test_ctrl_c_interrupts_the_wait_for_a_missing_rank(ranks, hook, passes):
    assert max(ranks(2, interrupted, hook, passes)) < 10


STOPPED = """
import os, signal, sys, torch, torch.distributed as dist, brigade
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64))
brigade.set_hook(model, "int8")
for step in range(4):
    output = model(torch.ones(2, 64))
    if step == 3 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    if step == 3:
        output.register_hook(lambda gradient: print("waits", flush=True))
    output.sum().backward()
"""


def test_a_program_that_waits_for_a_stopped_rank_ends_at_ctrl_c(tmp_path):
    """The time limit is torch's half an hour."""
    script = tmp_path / "train.py"
    script.write_text(STOPPED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    first, second = [subprocess.Popen([sys.executable, str(script)], env={**environment, "RANK": str(rank)}, text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    try:
        assert first.stdout.readline() == "waits\n"
        time.sleep(1)
        first.send_signal(signal.SIGINT)
        _, told = first.communicate(timeout=30)
    finally:
        for process in (first, second):
            process.kill()
            process.communicate()
    assert first.returncode == -signal.SIGINT and "KeyboardInterrupt" in told, told
