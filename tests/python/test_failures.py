"""There must be no hang, no silent difference, and no hook that holds the interpreter up."""

import datetime
import os
import pathlib
import pickle
import subprocess
import sys
import textwrap
import threading
import time

import brigade
import pytest
import torch
import torch.distributed as dist
from models import exact_mean, relative_error, rows, small_net, step, wrap
from torch.nn.parallel import DistributedDataParallel


def different_hooks():
    model = wrap(small_net())
    brigade.set_hook(model, "fp16" if dist.get_rank() == 0 else "bf16")
    with pytest.raises(RuntimeError, match="the ranks have different hooks"):
        step(model, rows())
    with pytest.raises(RuntimeError, match=r"'bf16' on ranks 1\n  'fp16' on ranks 0"):
        other = wrap(small_net())
        brigade.set_hook(other, "fp16" if dist.get_rank() == 0 else "bf16")
        step(other, rows())


def test_different_hooks_are_told_before_a_gradient_moves(ranks):
    ranks(2, different_hooks)


def hooked(module, way, **options):
    """Gives the model a native hook, set on the Reducer or called by torch."""
    model = DistributedDataParallel(module, init_sync=False, **options)
    if way == "called":
        model.register_comm_hook(None, brigade.default_hooks.fp16_compress_hook)
    else:
        brigade.set_hook(model, way)
    return model


def different_models(way):
    rank = dist.get_rank()
    net = small_net(layers=1)
    model = hooked(net.double() if rank else net, way)
    data = rows().to(next(net.parameters()).dtype)
    with pytest.raises(RuntimeError, match=r"the ranks have different buckets:(.|\n)*Double \[32, 32\] on cpu.*' on ranks 1"):
        step(model, data)
    # Parameters are equal, in separate buckets, from the first pass on.
    model = hooked(small_net(layers=2), way, find_unused_parameters=True, bucket_cap_mb=1 if rank else 0.002)
    with pytest.raises(RuntimeError, match="the ranks have different buckets"):
        step(model, rows())
    # Parameters change before the buckets are rebuilt.
    net = small_net(layers=2)
    model = hooked(net, way)
    step(model, rows())
    if rank:
        net[0].weight.data = net[0].weight.data.t().contiguous().t()
    with pytest.raises(RuntimeError, match=r"the ranks have different buckets:(.|\n)*strides \[1, 32\].*' on ranks 1"):
        step(model, rows())


@pytest.mark.parametrize("way", ["int8", "fp16", "called"])
def test_different_models_are_told_before_a_gradient_moves(ranks, way):
    ranks(2, different_models, way)


def drifting(hook):
    model = wrap(small_net())
    brigade.set_hook(model, hook)
    brigade.check_replicas(model, every=3)
    for number in range(7):  # compared twice
        step(model, rows(number))
    if dist.get_rank() == 1:
        with torch.no_grad():
            model.module[2].bias[3] += 0.001
    step(model, rows(7))
    with torch.no_grad():
        model.module(rows())  # counts for no rank
        model(rows())
    with model.no_sync():
        model(rows()).sum().backward()
    step(model, rows(8))
    with pytest.raises(brigade.MismatchError, match="rank 1 differs from ranks 0, 2, first in the parameter '2.bias'"):
        step(model, rows(9))
    brigade.check_replicas(model, 0)
    for number in range(5):
        step(model, rows(number))
    with pytest.raises(brigade.ConfigError, match="every is -1"):
        brigade.check_replicas(model, -1)


def test_replicas_that_drift_apart_are_told_on_all_ranks(ranks):
    ranks(3, drifting, "int8")


def never(state, bucket):
    if state == "completes":
        return torch.futures.collect_all([dist.all_reduce(bucket.buffer(), async_op=True).get_future()]).then(
            lambda done: done.value()[0].value()[0] / dist.get_world_size())
    return torch.futures.Future()


def hook_never_completes():
    group = dist.new_group(list(range(dist.get_world_size())), timeout=datetime.timedelta(seconds=1))
    model = wrap(small_net(), process_group=group)
    brigade.set_hook(model, never, "completes")
    assert relative_error(step(model, rows()), exact_mean(model.module, rows())) < 1e-6
    brigade.set_hook(model, never)
    with pytest.raises(RuntimeError, match=r"rank \d: hook 'never', bucket 0: its future is not complete within the time limit of 1000 ms"):
        step(model, rows())
    dist.destroy_process_group(group)


def test_a_python_hook_that_never_completes_fails_at_the_time_limit(ranks):
    ranks(2, hook_never_completes)


def hook_calls_its_model():
    model = wrap(small_net())
    seen = []

    def trains(state, bucket):
        with torch.enable_grad():
            model(rows()).sum().backward()

    def looks(state, bucket):
        seen.append(model(rows()).requires_grad)
        return never("completes", bucket)

    brigade.set_hook(model, looks)
    step(model, rows())
    assert seen and not any(seen)
    brigade.set_hook(model, trains)
    with pytest.raises(RuntimeError, match="the model was called by its own hook"):
        step(model, rows())

    async def trains_too(bucket, comm):
        with torch.enable_grad():
            model(rows()).sum().backward()

    brigade.register_hook("trains_too", lambda options: trains_too)
    model = wrap(small_net())
    brigade.set_hook(model, "trains_too")
    with pytest.raises(brigade.HookError, match="the model was called by its own hook"):
        step(model, rows())


def test_a_python_hook_that_trains_its_own_model_is_told_so(ranks):
    ranks(2, hook_calls_its_model)


def hook_calls_backward():
    """Calls it without the model's forward: through the module itself, and through a graph that was kept."""
    told = []

    def through_the_module(state, bucket):
        with torch.enable_grad():
            model.module(rows()).sum().backward()

    def through_a_kept_graph(state, bucket):
        try:
            kept.backward()
        except brigade.Error as error:
            told.append(str(error))
        return never("completes", bucket)

    async def in_a_coroutine(bucket, comm):
        through_the_module(None, bucket)

    def somebody_elses(state, bucket):
        with torch.enable_grad():
            weight = torch.ones(3, requires_grad=True)
            (2 * weight).sum().backward()
        told.append(weight.grad.tolist())
        return never("completes", bucket)

    brigade.register_hook("in_a_coroutine", lambda options: in_a_coroutine)
    for hook, error in {through_the_module: RuntimeError, "in_a_coroutine": brigade.HookError}.items():
        model = wrap(small_net())
        brigade.set_hook(model, hook)
        with pytest.raises(error, match="backward: called by the hook of this very model"):
            step(model, rows())
    model = wrap(small_net())
    kept = model.module(rows()).sum()
    brigade.set_hook(model, through_a_kept_graph)
    step(model, rows())
    assert told and "called by the hook of this very model" in told[0]
    told.clear()
    brigade.set_hook(model, somebody_elses)
    step(model, rows())
    assert told[0] == [2, 2, 2]


def test_a_python_hook_that_calls_backward_for_its_model_is_told_so(ranks):
    ranks(2, hook_calls_backward)


def hook_gives_back():
    def done(value):
        future = torch.futures.Future()
        future.set_result(value)
        return future

    wrong = {lambda state, bucket: done(bucket.buffer().double()): "gave back .* of double on cpu, but the bucket has .* of float",
             lambda state, bucket: done(bucket.buffer()[:-1].clone()): "gave back .* elements",
             lambda state, bucket: done(torch.cat([bucket.buffer(), bucket.buffer()])): "gave back .* elements",
             lambda state, bucket: done(3): "hook .*, bucket 0: "}
    for hook, message in wrong.items():
        model = wrap(small_net())
        brigade.set_hook(model, hook)
        with pytest.raises(brigade.HookError, match=message):
            step(model, rows())


def test_what_a_python_hook_gives_back_must_fit_its_bucket(ranks):
    ranks(2, hook_gives_back)


def kinds():
    """A Python hook's mistakes, and a time limit, get to every rank with kind and culprit, in both kinds of futures."""
    async def fails(bucket, comm):
        if comm.rank() == 1:
            raise ValueError("ouch")
        await comm.all_reduce(bucket.buffer())
        return bucket.buffer()

    brigade.register_hook("fails", lambda options: fails)
    model = wrap(small_net())
    brigade.set_hook(model, "fails")
    with pytest.raises(brigade.HookError, match="ouch") as caught:
        step(model, rows())
    assert (caught.value.kind, caught.value.rank) == ("other", 1)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.kind, again.rank, str(again)) == ("other", 1, str(caught.value))
    dist.barrier()
    group = dist.new_group(list(range(dist.get_world_size())), timeout=datetime.timedelta(seconds=1))
    model = wrap(small_net(), process_group=group)
    brigade.set_hook(model, never)
    with pytest.raises(brigade.HookError) as caught:
        step(model, rows())
    assert (caught.value.kind, caught.value.rank) == ("timeout", None)
    dist.destroy_process_group(group)
    # An error that user code makes knows neither kind nor rank.
    assert (brigade.HookError("ouch").kind, brigade.HookError("ouch").rank) == ("other", None)


def test_a_hook_error_has_kind_and_rank(ranks):
    ranks(2, kinds)


LOST = textwrap.dedent("""
    import os, pickle, signal, sys, torch, torch.distributed as dist, brigade
    from torch.nn.parallel import DistributedDataParallel
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net = torch.nn.Linear(8, 8)
    model = DistributedDataParallel(net)
    way, victim = sys.argv[1], dist.get_rank() == 1
    if way == "hook" or not victim:
        brigade.set_hook(model, "int8")
    if way == "hook":
        for _ in range(2):  # the second pass rebuilds the buckets, which torch's own group waits for
            model(torch.ones(2, 8)).sum().backward()
    dist.barrier()
    if victim:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            model(torch.ones(2, 8)).sum().backward()
    except brigade.HookError as error:
        again = pickle.loads(pickle.dumps(error))
        print("told:", type(error).__name__, error.kind, error.rank, again.kind, again.rank, flush=True)
    except ConnectionError as error:
        again = pickle.loads(pickle.dumps(error))
        print("told:", type(error).__name__, isinstance(error, brigade.Error), error.rank, again.rank, str(again) == str(error), flush=True)
    """)


# It stops in a hook's bucket, and where a rank looks for one without a hook, over torch's own connections.
@pytest.mark.parametrize("way, told", [("hook", "HookError peer_lost 1 peer_lost 1"), ("no hook there", "PeerLostError True None None True")])
def test_a_rank_that_is_killed_is_a_lost_peer(tmp_path, way, told):
    script = tmp_path / "train.py"
    script.write_text(LOST)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2",
                   "TORCHELASTIC_USE_AGENT_STORE": "True"}
    both = [subprocess.Popen([sys.executable, str(script), way], env={**environment, "RANK": str(rank)}, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE) for rank in range(2)]
    out, err = both[0].communicate(timeout=120)
    both[1].communicate()
    assert f"told: {told}" in out, out + err


def in_backward():
    model = wrap(small_net())
    brigade.set_hook(model, "fp16")
    told = []

    def replace(gradient):
        try:
            brigade.set_hook(model, "bf16")
        except brigade.Error as error:
            told.append(str(error))

    data = rows().requires_grad_()
    data.register_hook(replace)
    step(model, data)
    assert told and "between iterations" in told[0]


def test_a_hook_is_not_replaced_in_the_middle_of_backward(ranks):
    ranks(2, in_backward)


def waits_in_backward(way):
    from brigade import default_hooks, powerSGD_hook

    model = wrap(small_net())
    if way == "set":
        brigade.set_hook(model, "int8")
    elif way == "zero":
        brigade.apply_zero_in_backward(model, "adam")
    elif way == "called":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    else:
        model.register_comm_hook(powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=0), powerSGD_hook.powerSGD_hook)
    model(rows()).square().mean().backward()
    loss = model(rows(1)).square().mean()
    return lambda model=model: loss.backward()  # without the model there would be no hook


def waits_in_a_step(way):
    net = small_net()
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    if way == "ZeRO's step":
        return brigade.ZeroRedundancyOptimizer(net.parameters(), "sgd").step
    if way == "averager":
        averager = brigade.averagers.PeriodicModelAverager(2)
        averager.average_parameters(net.parameters())
        averager.step = 2
        return lambda: averager.average_parameters(net.parameters())
    return brigade.DiLoCo(net, torch.optim.SGD(net.parameters(), 0.1), period=1).step


WAITS = {"set": waits_in_backward, "zero": waits_in_backward, "called": waits_in_backward, "called powersgd": waits_in_backward,
         "ZeRO's step": waits_in_a_step, "averager": waits_in_a_step, "DiLoCo": waits_in_a_step}


def interpreter_is_free(way):
    """While this rank waits for the other, other Python threads run."""
    wait = WAITS[way](way)
    ticks, stop = [], threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.001)

    dist.barrier()
    thread = threading.Thread(target=tick)
    thread.start()
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait([f"the other waits: {way}"])
        time.sleep(0.5)
    began = time.monotonic()
    store.set(f"the other waits: {way}", "1")
    wait()
    ended = time.monotonic()
    stop.set()
    thread.join()
    during = [began] + [when for when in ticks if began < when < ended] + [ended]
    return ended - began, len(during)


@pytest.mark.parametrize("way", WAITS)
def test_the_interpreter_runs_while_this_rank_waits(ranks, way):
    waited, ticks = ranks(2, interpreter_is_free, way)[0]
    assert waited >= 0.5
    assert ticks > 10, f"{ticks} ticks of another thread in {waited:.2f} s"


def many_lives(count):
    """Makes and drops models, hooks and groups in every order."""
    import gc
    import itertools
    import random

    from brigade import default_hooks, powerSGD_hook

    order = random.Random(1)  # the same on all ranks
    for number, what in zip(range(count), itertools.cycle(("native", "called", "powersgd", "unused", "diloco", "local", "zero"))):
        group = dist.new_group(list(range(dist.get_world_size())))
        state = powerSGD_hook.PowerSGDState(group, start_powerSGD_iter=0)
        model = DistributedDataParallel(small_net(layers=2), process_group=group, bucket_cap_mb=0.002)
        if what == "powersgd":
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif what == "called":
            model.register_comm_hook(group, default_hooks.fp16_compress_hook)
        elif what == "diloco":
            state = brigade.DiLoCo(model.module, torch.optim.SGD(model.parameters(), 0.1), group, period=2, delay=1, hook="int8")
        elif what == "local":
            state = brigade.LocalSGD(model, torch.optim.SGD(model.parameters(), 0.1), levels={2: 1, 3: dist.get_world_size()})
        elif what == "zero":
            state = brigade.apply_zero_in_backward(model, "adam")
        else:
            brigade.set_hook(model, "int8")
        if what in ("diloco", "local"):
            for again in range(3):  # an exchange of DiLoCo's is under way when it ends
                model.module(rows(again)).sum().backward()
                state.step()
        elif what == "zero":
            model(rows()).sum().backward()
        elif what != "unused":
            for again in range(2):
                step(model, rows(again))
        things = {"group": group, "model": model, "state": state}
        del group, model, state
        names = list(things)
        order.shuffle(names)
        for name in names:
            if name == "group":
                dist.destroy_process_group(things[name])
            del things[name]
            if order.random() < 0.05:  # it takes a while, with torch's many objects
                gc.collect()
    gc.collect()  # objects in cycles are not threads that were forgotten
    return threading.active_count(), len(__import__("os").listdir("/proc/self/task"))


def test_a_hundred_lives_end_in_any_order(ranks):
    ranks(2, many_lives, 7)
    before = ranks(2, many_lives, 7)
    after = ranks(2, many_lives, 100)
    for (_, few), (_, many) in zip(before, after):
        assert many <= few + 4, f"threads grew from {few} to {many}"


SCRIPT = textwrap.dedent("""
    import os, torch, torch.distributed as dist, brigade
    from torch.nn.parallel import DistributedDataParallel
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, wait_for_workers=False)
    for end in ("destroy first", "drop first", "neither"):
        # Under names of its own: a rank that is ahead must not find the addresses of the life before.
        dist.init_process_group("gloo", store=dist.PrefixStore(end, store), rank=rank, world_size=2)
        model = DistributedDataParallel(torch.nn.Linear(8, 8))
        brigade.set_hook(model, "int8")
        diloco = brigade.DiLoCo(model.module, brigade.optim.SGD(), period=2, delay=1)
        for _ in range(3):
            model(torch.ones(2, 8)).sum().backward()
            diloco.step()
        if end == "destroy first":
            dist.destroy_process_group()
            del model
        elif end == "drop first":
            del model
            dist.destroy_process_group()
    print("done", rank, flush=True)
    """)


def test_a_script_under_torchrun_ends_with_0_whatever_it_destroys(tmp_path):
    # This is the page's own example.
    page = (pathlib.Path(__file__).parents[2] / "docs/python.md").read_text()
    example = page.split("```python\n")[1].split("```")[0]
    script = tmp_path / "train.py"
    script.write_text(example + SCRIPT)
    run = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)],
        capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("done") == 2 and run.stdout.count("bytes sent for") == 1


def spawned(rank, port):
    store = dist.TCPStore("127.0.0.1", port, 2, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    brigade.set_hook(model, "int8")
    for _ in range(2):
        model(torch.ones(2, 8)).sum().backward()


def test_workers_of_mp_spawn_end_without_destroying_anything():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(spawned, args=(store.port,), nprocs=2)
