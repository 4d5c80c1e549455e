"""Optimizers that step in the backward pass, compared with torch.optim after it."""

import brigade
import pytest
import torch
from brigade import default_hooks, optim, powerSGD_hook
from brigade.optimizer_overlap_hooks import _hook_then_optimizer, _OptimizerHookState
from models import exact_mean, relative_error, rows, same_on_all_ranks, small_net, step, wrap

PAIRS = {
    "sgd": (torch.optim.SGD, optim.SGD, {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01, "nesterov": True}),
    "adam": (torch.optim.Adam, optim.Adam, {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-6, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    "adagrad": (torch.optim.Adagrad, optim.Adagrad, {"lr": 0.02}),
    "rmsprop": (torch.optim.RMSprop, optim.RMSprop, {"lr": 0.01, "momentum": 0.5}),
    "adadelta": (torch.optim.Adadelta, optim.Adadelta, {"lr": 0.5}),
    "adamax": (torch.optim.Adamax, optim.Adamax, {"lr": 0.01}),
    "rprop": (torch.optim.Rprop, optim.Rprop, {"lr": 0.01, "etas": (0.4, 1.3), "step_sizes": (1e-5, 10)}),
}


def expected(kind, some, steps=8):
    """Uses torch's DDP, and its optimizer after each backward pass."""
    torchs, _, options = PAIRS[kind]
    model = wrap(small_net())
    chosen = list(model.parameters())[2:5] if some else list(model.parameters())
    optimizer = torchs(chosen, **options)
    for number in range(steps):
        step(model, rows(number))
        optimizer.step()
    return list(model.parameters())


def compare(model, reference, atol=1e-6):
    for one, other in zip(model.parameters(), reference):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=atol)
    assert same_on_all_ranks(model.parameters())


def overlapped(kind, some, way, static):
    reference = expected(kind, some)
    model = wrap(small_net(), static_graph=static)
    chosen = list(model.parameters())[2:5] if some else None
    _, native, options = PAIRS[kind]
    state = _OptimizerHookState(native(**options), chosen)
    both = _hook_then_optimizer(default_hooks.allreduce_hook, state)
    if way == "native":
        brigade.set_hook(model, both)
    else:
        model.register_comm_hook(None, both)
    for number in range(8):
        step(model, rows(number))
    # RMSprop's first steps divide small gradients by themselves, so a last bit becomes visible.
    compare(model, reference, atol=1e-4 if kind == "rmsprop" else 1e-6)


@pytest.mark.parametrize("kind", list(PAIRS))
def test_every_native_optimizer_equals_torchs(ranks, kind):
    ranks(2, overlapped, kind, False, "native", False)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_subset_a_static_graph_and_a_called_hook_equal_torchs_optimizer(ranks, kind):
    ranks(2, overlapped, kind, True, "native", False)
    ranks(2, overlapped, kind, False, "native", True)
    ranks(2, overlapped, kind, True, "called", False)
    ranks(2, overlapped, kind, False, "called", True)


class PlainSteps:
    """Any Python object with step_param may be used like this."""

    def __init__(self, lr):
        self.lr, self.steps = lr, 0

    def step_param(self, parameter, gradient):
        self.steps += 1
        parameter.add_(gradient, alpha=-self.lr)


def python_optimizer(way):
    from torch.distributed.optim.functional_sgd import _FunctionalSGD

    model = wrap(small_net())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for number in range(4):
        step(model, rows(number))
        optimizer.step()
    reference = list(model.parameters())
    for steps in (PlainSteps(0.05), _FunctionalSGD([], lr=0.05, _allow_empty_param_list=True)):
        model = wrap(small_net())
        both = _hook_then_optimizer(default_hooks.allreduce_hook, _OptimizerHookState(steps))
        if way == "native":
            brigade.set_hook(model, both)
        else:
            model.register_comm_hook(None, both)
        for number in range(4):
            step(model, rows(number))
        compare(model, reference)
        if isinstance(steps, PlainSteps):
            assert steps.steps == 4 * len(reference)


@pytest.mark.parametrize("way", ["native", "called"])
def test_any_object_with_step_param_is_an_optimizer(ranks, way):
    ranks(2, python_optimizer, way)


class Failing:
    def step_param(self, parameter, gradient):
        raise ArithmeticError("no more")


def failing_optimizer():
    model = wrap(small_net())
    brigade.set_hook(model, _hook_then_optimizer(default_hooks.allreduce_hook, _OptimizerHookState(Failing())))
    with pytest.raises(RuntimeError, match="ArithmeticError: no more"):
        step(model, rows())


def test_an_exception_in_step_param_comes_out_of_backward(ranks):
    ranks(2, failing_optimizer)
    with pytest.raises(ValueError, match="has no step_param"):
        _OptimizerHookState(object())


def in_backward(views, some, hook):
    reference = expected("adamw", some)
    model = wrap(small_net(), gradient_as_bucket_view=views)
    chosen = list(model.parameters())[2:5] if some else None
    optim.apply_optimizer_in_backward(model, optim.AdamW(**PAIRS["adamw"][2]), chosen, hook=hook)
    for number in range(8):
        for parameter in model.parameters():
            parameter.grad = None
        model(rows(number)).square().mean().backward()
        stepped = set(chosen or model.parameters())
        for parameter in model.parameters():
            assert (parameter.grad is None) == (parameter in stepped)
    compare(model, reference)
    kept = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    if kept:
        assert same_on_all_ranks(kept)


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("some", [False, True])
def test_an_optimizer_in_backward_steps_and_drops_the_gradients(ranks, views, some):
    ranks(2, in_backward, views, some, "allreduce")


def ignored(views):
    module = small_net()
    torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["0.weight"])
    model = wrap(module, gradient_as_bucket_view=views)
    optim.apply_optimizer_in_backward(model, optim.SGD(lr=0.05))
    before = module[0].weight.detach().clone()
    for number in range(3):
        module.zero_grad()
        model(rows(number)).square().mean().backward()
    assert torch.equal(before, module[0].weight) and module[0].weight.grad is not None
    assert module[1].weight.grad is None
    assert same_on_all_ranks([parameter for name, parameter in module.named_parameters() if name != "0.weight"])


def accumulating():
    model = wrap(small_net())
    reference = wrap(small_net())
    optimizer = torch.optim.SGD(reference.parameters(), 0.05)
    optim.apply_optimizer_in_backward(model, optim.SGD(lr=0.05), hook=powerSGD_hook.powerSGD_hook,
                                      state=powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=100))
    for number in range(4):
        reference.zero_grad()
        for each in (model, reference):
            with each.no_sync():
                each(rows(2 * number)).square().mean().backward()
            each(rows(2 * number + 1)).square().mean().backward()
        optimizer.step()
    compare(model, reference.parameters())


def test_ignored_parameters_and_accumulation_with_an_optimizer_in_backward(ranks):
    ranks(2, ignored, False)
    ranks(2, ignored, True)
    ranks(2, accumulating)


def replaced_afterwards(views, zero):
    """Gradients exist again, and are the mean, when a plain hook follows an optimizer in the backward pass."""
    module = small_net()
    model = wrap(module, gradient_as_bucket_view=views)
    if zero:
        brigade.apply_zero_in_backward(model, "sgd", lr=0.05)
    else:
        optim.apply_optimizer_in_backward(model, optim.SGD(lr=0.05))
    for number in range(3):
        model(rows(number)).square().mean().backward()
    brigade.set_hook(model, "fp16")
    for number in range(3):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        exact = exact_mean(module, rows(number))
        found = step(model, rows(number))
        assert relative_error(found, exact) < 2e-3 and same_on_all_ranks(found)
        assert all(torch.equal(one, other) for one, other in zip(before, model.parameters())), "something stepped"
        with model.no_sync():
            model(rows(number)).square().mean().backward()
        model(rows(number)).square().mean().backward()
        assert relative_error([parameter.grad for parameter in model.parameters()], [3 * each for each in exact]) < 4e-3
    if not views:
        with pytest.raises(brigade.ConfigError, match="had an optimizer in the backward pass"):
            brigade.set_hook(model, lambda state, bucket: None)
    optim.apply_optimizer_in_backward(model, optim.SGD(lr=0.05))
    model(rows()).square().mean().backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert same_on_all_ranks(model.parameters())


@pytest.mark.parametrize("views", [False, True])
def test_a_hook_after_an_optimizer_in_backward_gives_gradients_again(ranks, views):
    ranks(2, replaced_afterwards, views, False)
    ranks(2, replaced_afterwards, views, True)


def optimizer_state():
    nets = [small_net(layers=1), small_net(layers=1)]
    adams = [optim.Adam(lr=0.1), optim.Adam(lr=0.5)]

    with torch.no_grad():
        for net, adam in zip(nets, adams):
            for parameter in net.parameters():
                adam.step_param(parameter, torch.ones_like(parameter))
        nets[1].load_state_dict(nets[0].state_dict())
        optim.load_state_dict(adams[1], nets[1], optim.state_dict(adams[0], nets[0]))
        for net, adam in zip(nets, adams):
            for parameter in net.parameters():
                adam.step_param(parameter, torch.ones_like(parameter))
    for one, other in zip(nets[0].parameters(), nets[1].parameters()):
        assert torch.equal(one, other)


def test_an_optimizers_state_is_saved_and_loaded_by_parameter_name(ranks):
    ranks(1, optimizer_state)
