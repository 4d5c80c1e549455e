"""What hooks keep, saved and loaded: under which names, by whom, and bit for bit."""

import contextlib
import copy
import pickle
import warnings

import brigade
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from brigade.powerSGD_hook import PowerSGDState, powerSGD_hook
from models import rows, same_on_all_ranks, small_net, step, wrap
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook as torchs_local_sgd
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torchs_power_sgd
from torch.nn.parallel import DistributedDataParallel

KEEPING = ["int8", "int4", "topk:ratio=0.1", "randomk:ratio=0.1", "powersgd:start=0", "powersgd:start=0,rounds=1",
           "batched_powersgd:start=0"]


class Block(torch.nn.Module):
    """With norms as people call them."""

    def __init__(self):
        super().__init__()
        self.ln_1 = torch.nn.LayerNorm(32)
        self.fc = torch.nn.Linear(32, 32)
        self.bn1 = torch.nn.BatchNorm1d(32)
        self.LayerNorm = torch.nn.LayerNorm(32)

    def forward(self, data):
        return self.LayerNorm(self.bn1(self.fc(self.ln_1(data))))


def train(model, numbers):
    for number in numbers:
        found = step(model, rows(number))
    return found


# ---- names

def keeps_plain_names():
    for hook in KEEPING:
        states = {}
        for name, module in (("plain", small_net()), ("compiled", torch.compile(small_net(), backend="eager")),
                             ("layer", torch.nn.Sequential(*[torch.compile(each, backend="eager") for each in small_net()]))):
            model = wrap(module, "one")
            brigade.set_hook(model, hook)
            train(model, range(3))
            states[name] = brigade.state_dict(model)
            states[name, "next"] = train(model, range(3, 4)) if name == "plain" else None
        assert set(states["plain"]["tensors"]) == set(states["compiled"]["tensors"]) == set(states["layer"]["tensors"])
        # A state with the names of a wrapped model, as others may have written it.
        wrapped = {**states["plain"], "tensors": {key.replace("0.", "module._orig_mod.0.", 1) if ".0." in key else key: tensor
                                                  for key, tensor in states["plain"]["tensors"].items()}}
        assert set(wrapped["tensors"]) != set(states["plain"]["tensors"])
        for source in (states["plain"], wrapped):
            resumed = wrap(torch.compile(small_net(), backend="eager"), "one")
            brigade.set_hook(resumed, hook)
            brigade.load_state_dict(resumed, source)
            assert set(brigade.state_dict(resumed)["tensors"]) == set(states["plain"]["tensors"])
            assert all(torch.equal(one, two) for one, two in zip(train(resumed, range(3, 4)), states["plain", "next"])), hook


def test_a_parameter_has_one_name_whatever_wraps_it(ranks):
    ranks(2, keeps_plain_names)


def layers_called_module():
    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = torch.nn.Linear(32, 32)
            self.weight = torch.nn.Parameter(torch.ones(32, 32))

        def forward(self, data):
            return self.module(data) @ self.weight

    model = wrap(Own())
    brigade.set_hook(model, "int8")
    train(model, range(2))
    return sorted(brigade.state_dict(model)["tensors"])


def test_a_layer_of_the_models_own_may_be_called_module(ranks):
    assert ranks(2, layers_called_module)[0] == ["error.module.bias", "error.module.weight", "error.weight"]


def ruled():
    parts = []
    for hook in ("rules:0.*=fp16;*=int8", "rules:_orig_mod.0.*=fp16;*=int8"):
        for module in (small_net(), torch.compile(small_net(), backend="eager")):
            model = wrap(module, "one")
            brigade.set_hook(model, hook)
            train(model, range(1))
            moved = brigade.hook_stats(model).parts
            parts.append({name: part.bytes_before for name, part in moved.items()})
    return parts


def test_rules_know_parameters_by_their_plain_names(ranks):
    for parts in ranks(2, ruled):
        assert parts == [{"0.*=fp16": 4 * 33 * 32, "*=int8": 3 * 4 * 33 * 32}] * 4


def usual():
    found = []
    for spec, module in (("rules", torch.nn.Sequential(Block(), Block())), ("small+rules", torch.nn.Sequential(Block(), Block())),
                         ("rules", torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 32)))):
        model = wrap(module, broadcast_buffers=False)
        brigade.set_hook(model, spec)
        train(model, range(2))
        found.append((sorted(brigade.state_dict(model)["tensors"]), same_on_all_ranks([p.grad for p in model.parameters()])))
    return found


def test_default_rules_know_norms_by_the_kind_of_their_layer(ranks):
    blocks = (["error.part1/0.fc.weight", "error.part1/1.fc.weight"], True)
    for found in ranks(2, usual):
        assert found == [blocks, blocks, (["error.part1/0.weight", "error.part1/2.weight"], True)]


def misfits():
    def other(width=32, layers=4, **options):
        return DistributedDataParallel(small_net(width, layers), **options)

    for hook in KEEPING:
        model = wrap(small_net())
        brigade.set_hook(model, hook)
        train(model, range(3))
        state = brigade.state_dict(model)
        without_buckets = {key: value for key, value in state.items() if key != "buckets"}
        before = {key: tensor.clone() for key, tensor in brigade.state_dict(model)["tensors"].items()}
        for wrong, told in ((other(layers=3), "'error.3.(bias|weight)', but the model has no parameter of that name"),
                            (other(width=16), r"which does not fit the parameter '\d.(bias|weight)' of shape \(16")):
            brigade.set_hook(wrong, hook)
            with pytest.raises(brigade.ConfigError, match=told):
                brigade.load_state_dict(wrong, without_buckets)
            assert not brigade.state_dict(wrong)["tensors"], "nothing has been loaded"
            loaded = brigade.make_hook(hook)
            brigade.load_state_dict(loaded, without_buckets)
            with pytest.raises(brigade.ConfigError, match=told):
                brigade.set_hook(wrong, loaded)
        assert all(torch.equal(before[key], tensor) for key, tensor in brigade.state_dict(model)["tensors"].items())
    # Nothing but the buckets can tell here.
    model, wrong = wrap(small_net()), other(layers=5)
    for each in (model, wrong):
        brigade.set_hook(each, "fp16")
    with pytest.raises(brigade.ConfigError, match="the parameter '4.bias' is trained here, but not there"):
        brigade.load_state_dict(wrong, brigade.state_dict(model))
    turned = wrap(torch.nn.Linear(32, 16, bias=False))
    brigade.set_hook(turned, "powersgd:start=0")
    train(turned, range(2))
    other_way = wrap(torch.nn.Linear(16, 32, bias=False))
    brigade.set_hook(other_way, "powersgd:start=0")
    with pytest.raises(brigade.ConfigError, match="does not fit the parameter 'weight'"):
        brigade.load_state_dict(other_way, brigade.state_dict(turned))
    for nothing in (None, 3, "text"):
        with pytest.raises(brigade.ConfigError, match="not a hook's state"):
            brigade.load_state_dict(model, nothing)
    model(rows())
    with pytest.raises(brigade.ConfigError, match="still waits for its backward pass"):
        brigade.load_state_dict(model, brigade.state_dict(model))


def test_what_fits_no_parameter_is_refused_with_its_name(ranks):
    ranks(2, misfits)


# ---- whose it is

def foreign(hook):
    model = wrap(small_net())
    brigade.set_hook(model, hook)
    train(model, range(3))
    mine = brigade.state_dict(model)
    assert (mine["rank"], mine["ranks"]) == (dist.get_rank(), 2)
    everyones = [None] * 2
    dist.all_gather_object(everyones, mine)
    again = wrap(small_net())
    brigade.set_hook(again, hook)
    other = everyones[1 - dist.get_rank()]
    with pytest.raises(brigade.ConfigError, match=f"state of rank {other['rank']} of 2, loaded on rank {mine['rank']} of 2.*per_rank="):
        brigade.load_state_dict(again, other)
    alone = [dist.new_group([each]) for each in range(2)][dist.get_rank()]
    single = DistributedDataParallel(small_net(), process_group=alone)
    brigade.set_hook(single, hook)
    with pytest.raises(brigade.ConfigError, match="give a list of all 2 states"):
        brigade.load_state_dict(single, mine)
    for wrong in ([], everyones[:1] * 2, [*everyones, mine]):
        with pytest.raises(brigade.ConfigError, match="expected the states of all ranks, each once"):
            brigade.load_state_dict(again, wrong)
    brigade.load_state_dict(again, everyones)  # of all ranks: its own
    loaded = brigade.state_dict(again)
    assert all(torch.equal(loaded["tensors"][key], tensor) for key, tensor in mine["tensors"].items())
    brigade.load_state_dict(single, everyones)
    merged = brigade.state_dict(single)["tensors"]
    for key, tensor in merged.items():
        mean = (everyones[0]["tensors"][key].double() + everyones[1]["tensors"][key].double()) / 2
        assert torch.equal(tensor, (mean if key.startswith("error.") else everyones[0]["tensors"][key]).to(tensor.dtype)), key
    assert all(torch.equal(one, two) for one, two in zip(train(again, range(3, 4)), train(model, range(3, 4))))


@pytest.mark.parametrize("hook", KEEPING)
def test_another_ranks_state_is_refused_and_that_of_all_is_merged(ranks, hook):
    ranks(2, foreign, hook)


def without_own():
    """What is equal on all ranks may be any rank's."""
    model = wrap(small_net())
    brigade.set_hook(model, "fp16")
    train(model, range(2))
    state = [brigade.state_dict(model)]
    dist.broadcast_object_list(state, 0)
    brigade.load_state_dict(model, state[0])


def test_state_that_all_ranks_share_may_be_any_ranks(ranks):
    ranks(2, without_own)


def save_for_dcp(folder):
    for hook in ("int8", "powersgd:start=0"):
        model = wrap(small_net())
        brigade.set_hook(model, hook)
        train(model, range(3))
        dcp.save({"model": model.module.state_dict(), "hook": brigade.HookPerRank(model)}, checkpoint_id=f"{folder}/{hook}")
        mine = brigade.state_dict(model)["tensors"]
        again = wrap(small_net())
        brigade.set_hook(again, hook)
        dcp.load({"model": again.module.state_dict(), "hook": brigade.HookPerRank(again)}, checkpoint_id=f"{folder}/{hook}")
        assert all(torch.equal(brigade.state_dict(again)["tensors"][key], tensor) for key, tensor in mine.items())
        assert all(torch.equal(one, two) for one, two in zip(train(again, range(3, 4)), train(model, range(3, 4))))
    return mine["error.0.weight"].abs().sum().item()


def load_from_dcp(folder):
    model = wrap(small_net())
    brigade.set_hook(model, "int8")
    dcp.load({"hook": brigade.HookPerRank(model, saved_ranks=2)}, checkpoint_id=f"{folder}/int8")
    assert brigade.state_dict(model)["tensors"]
    with pytest.raises(brigade.ConfigError, match="give a list of all 2 states"):
        brigade.load_state_dict(model, {**brigade.state_dict(model), "ranks": 2})
    return True


def test_torchs_distributed_checkpoint_keeps_every_ranks(ranks, tmp_path):
    kept = ranks(2, save_for_dcp, str(tmp_path))
    assert kept[0] != kept[1]
    assert all(ranks(3, load_from_dcp, str(tmp_path)))


def unpickled():
    model = wrap(small_net())
    state = PowerSGDState(None, start_powerSGD_iter=0)
    brigade.set_hook(model, powerSGD_hook, state)
    train(model, range(3))
    saved = [pickle.dumps(state)]
    dist.broadcast_object_list(saved, 0)  # as scripts do that save on rank 0 only
    loaded = pickle.loads(saved[0])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        again = wrap(small_net())
        brigade.set_hook(again, powerSGD_hook, loaded)
    own = dist.get_rank() == 0
    assert any("state of rank 0 of 2, loaded on rank 1 of 2" in str(each.message) for each in told) != own
    assert bool(loaded.error_dict) == own and loaded.iter == 3 and loaded.q_memory_dict
    if not own:
        with pytest.raises(brigade.ConfigError, match="state of rank 0 of 2"):
            PowerSGDState(None, start_powerSGD_iter=0).load_state_dict({**state.state_dict(), "rank": 0})
    train(again, range(3, 5))
    return same_on_all_ranks([parameter.grad for parameter in again.parameters()])


def test_a_pickled_powersgd_state_does_not_bring_another_ranks_errors(ranks):
    assert all(ranks(2, unpickled))


def test_torchs_states_are_what_frameworks_ask_for():
    assert isinstance(brigade.post_localSGD_hook.PostLocalSGDState(None, None, 1), torchs_local_sgd.PostLocalSGDState)
    assert isinstance(PowerSGDState(None), torchs_power_sgd.PowerSGDState)


# ---- bit for bit

EXACT = [entry.name for entry in brigade.hook_table() if entry.name not in ("noop", "auto", "powersgd", "batched_powersgd")]
EXACT += ["powersgd:start=2", "powersgd:start=2,rank=2,rounds=1", "batched_powersgd:start=2", "fp16+int8", "small+int4",
          "rules:*bias=fp16;*=topk"]


def begin(hook, **options):
    torch.manual_seed(3)
    layers = [each for _ in range(6) for each in (torch.nn.Linear(160, 160), torch.nn.GELU())]
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(160, 320), torch.nn.Linear(320, 160), *layers),
                                    bucket_cap_mb=0.25, **options)
    brigade.set_hook(model, hook)
    return model, torch.optim.AdamW(model.parameters(), 1e-3)


def go(model, optimizer, numbers):
    parts = 1 if model.static_graph else 2  # torch's static graphs can't begin with an accumulating pass
    for number in numbers:
        optimizer.zero_grad()
        for part in range(parts):
            with model.no_sync() if part < parts - 1 else contextlib.nullcontext(), torch.autocast("cpu", torch.bfloat16):
                loss = model(rows(10 * number + part, width=160)).float().square().mean()
                loss.backward()
        optimizer.step()


def interrupted(hook, at, options):
    model, optimizer = begin(hook, **options)
    go(model, optimizer, range(at))
    saved = copy.deepcopy((model.module.state_dict(), optimizer.state_dict(), brigade.state_dict(model)))
    go(model, optimizer, range(at, at + 4))
    again, optimizer = begin(hook, **options)
    again.module.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    brigade.load_state_dict(again, saved[2])
    go(again, optimizer, range(at, at + 4))
    assert len(saved[2]["buckets"]["layout"]) > 2 or at < 2, "the buckets are many, or order would not matter"
    return all(torch.equal(one, two) for one, two in zip(model.parameters(), again.parameters()))


@pytest.mark.parametrize("hook", EXACT)
def test_every_hook_goes_on_bit_for_bit_with_many_buckets(ranks, hook):
    for at in (5, 1):  # at 1 the final buckets have not been built
        assert all(ranks(2, interrupted, hook, at, {})), at


@pytest.mark.parametrize("options", [{"gradient_as_bucket_view": True}, {"find_unused_parameters": True}])
def test_so_it_does_with_the_options_of_the_model(ranks, options):
    assert all(ranks(2, interrupted, "int8", 5, options))


def static():
    """A static graph's first pass has one bucket, so that nothing is promised to the bit; but it goes on."""
    model, optimizer = begin("int8", static_graph=True)
    go(model, optimizer, range(4))
    saved = brigade.state_dict(model)
    again, optimizer = begin("int8", static_graph=True)
    brigade.load_state_dict(again, saved)
    go(again, optimizer, range(4, 7))
    return same_on_all_ranks(again.parameters())


def test_a_static_graph_goes_on(ranks):
    assert all(ranks(2, static))


def rolled_back():
    """A model that has trained on goes back to what was saved, in place; its buckets have been built long ago."""
    model, optimizer = begin("int8")
    go(model, optimizer, range(3))
    saved = copy.deepcopy((model.module.state_dict(), optimizer.state_dict(), brigade.state_dict(model)))
    # As a model would have saved it whose gradients came in another order.
    turned = saved[2]["buckets"]
    turned["layout"] = turned["layout"][::-1]
    results = []
    for _ in range(2):
        model.module.load_state_dict(saved[0])
        optimizer.load_state_dict(copy.deepcopy(saved[1]))  # which goes on in the tensors that it is given
        brigade.load_state_dict(model, saved[2])
        assert brigade.state_dict(model)["buckets"]["layout"] == turned["layout"]
        go(model, optimizer, range(3, 6))
        results.append([parameter.detach().clone() for parameter in model.parameters()])
    assert same_on_all_ranks(results[0])
    return all(torch.equal(one, two) for one, two in zip(*results))


def test_a_model_goes_back_in_place(ranks):
    assert all(ranks(2, rolled_back))


def one_alone():
    model, optimizer = begin("int8")
    saved = brigade.state_dict(model)
    saved["buckets"] = {**saved["buckets"], "layout": [[name] for bucket in saved["buckets"]["layout"] for name in bucket]}
    if dist.get_rank() == 0:
        brigade.load_state_dict(model, saved)
    with pytest.raises(brigade.MismatchError, match="buckets"):
        go(model, optimizer, range(1))


def test_buckets_that_one_rank_alone_has_loaded_are_found(ranks):
    ranks(2, one_alone)


# ---- ignored parameters

def ignoring():
    module = small_net()
    module[0].register_parameter("own", torch.nn.Parameter(torch.ones(1 + dist.get_rank())))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["0.own"])
    model = wrap(module)
    for hook in ("fp16", "int8"):
        brigade.set_hook(model, hook)
        model.zero_grad()
        model(rows()).square().mean().backward()
    return same_on_all_ranks([parameter.grad for parameter in module.parameters() if parameter.grad is not None])


def test_ignored_parameters_may_differ_between_ranks(ranks):
    assert all(ranks(2, ignoring))


# ---- loss scalers

def scaled(hook, changes):
    """The movement of each step, with a scale that changes as told."""
    model = wrap(small_net())
    brigade.set_hook(model, hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
    for number in range(12):
        optimizer.zero_grad()
        scaler.scale(model(rows(number)).square().mean()).backward()
        if number % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update(changes.get(number))
    return [parameter.detach().clone() for parameter in model.parameters()], brigade.state_dict(model)["tensors"]


def follows(hook):
    (steady, kept), (changing, changed) = (scaled(hook, changes) for changes in ({}, {3: 512.0, 5: 16.0, 8: 4096.0, 11: 8192.0}))
    assert all(torch.equal(one, two) for one, two in zip(steady, changing)), "the scale shows"
    errors = [key for key in kept if key.startswith("error.")]
    assert errors and all(torch.equal(kept[key] * 8, changed[key]) for key in errors)
    return same_on_all_ranks(changing)


@pytest.mark.parametrize("hook", [*KEEPING, "bf16+topk:ratio=0.1", "rules:*bias=int8;*=randomk:ratio=0.1"])
def test_what_hooks_keep_follows_the_scale_of_a_loss_scaler(ranks, hook):
    assert all(ranks(2, follows, hook))


def called(changes):
    model = wrap(small_net())
    model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=0), powerSGD_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=10**6)
    untouched = wrap(small_net())
    brigade.set_hook(untouched, "int8")
    train(untouched, range(2))
    before = brigade.state_dict(untouched)["tensors"]
    for number in range(8):
        optimizer.zero_grad()
        scaler.scale(model(rows(number)).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update(changes.get(number))
    assert all(torch.equal(before[key], tensor) for key, tensor in brigade.state_dict(untouched)["tensors"].items())
    return [parameter.detach().clone() for parameter in model.parameters()]


def called_alike():
    return all(torch.equal(one, two) for one, two in zip(called({}), called({2: 64.0, 4: 2048.0})))


def test_so_does_what_torchs_own_registration_has_set_and_other_models_are_left_alone(ranks):
    assert all(ranks(2, called_alike))
