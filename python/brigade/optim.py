"""Functional optimizers in native code: they step one parameter at a time, so they can work while gradients still arrive.

Options have torch.optim's names and defaults. ``step_param(parameter, gradient)`` steps;
:func:`apply_optimizer_in_backward` calls it for you.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._calling import CommHook, check_model, drop_gradients, group_of_hook, install, native_of
from ._names import parameters_of
from ._state import came_to
from ._native import Optimizer

__all__ = ["SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Optimizer", "PostLocalSGDOptimizer", "RMSprop", "Rprop",
           "apply_optimizer_in_backward", "load_state_dict", "make_optimizer", "state_dict"]

if TYPE_CHECKING:
    from torch.distributed.optim import PostLocalSGDOptimizer


def __getattr__(name: str) -> Any:
    # torch's own modules, under the names that its users know, take seconds to import.
    if name in ("PostLocalSGDOptimizer", "_apply_optimizer_in_backward", "_get_in_backward_optimizers"):
        import torch.distributed.optim as torchs

        return getattr(torchs, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


# In torch these options are pairs.
_PAIRS = {"betas": ("beta1", "beta2"), "etas": ("eta_minus", "eta_plus"), "step_sizes": ("step_min", "step_max")}


def make_optimizer(spec: str) -> Optimizer:
    """Makes an optimizer by name, with options after a colon.

    >>> make_optimizer("sgd:lr=0.1,momentum=0.9").name
    'sgd'
    """
    return _native.make_optimizer(spec)


def spec_of(kind: Any, options: Mapping[str, Any]) -> str:
    """The text that make_optimizer takes. `kind`: a name, an optimizer class of torch.optim, or a function of this module.

    >>> spec_of(torch.optim.SGD, {"lr": 0.5, "nesterov": True})
    'sgd:lr=0.5,nesterov=1'
    """
    name = kind if isinstance(kind, str) else str(getattr(kind, "__name__", kind)).lower()
    flat: dict[str, Any] = {}
    for key, value in options.items():
        if key in _PAIRS:
            flat.update(zip(_PAIRS[key], value))
        else:
            flat[key] = value
    words = [f"{key}={int(value) if isinstance(value, bool) else repr(float(value))}" for key, value in flat.items()]
    return name + (":" + ",".join(words) if words else "")


def _make(name: str, options: Mapping[str, Any]) -> Optimizer:
    return _native.make_optimizer(spec_of(name, options))


def SGD(**options: Any) -> Optimizer:
    """lr, momentum, dampening, weight_decay, nesterov, maximize.

    >>> weight = torch.ones(3)
    >>> SGD(lr=0.5).step_param(weight, torch.ones(3))
    >>> weight
    tensor([0.5000, 0.5000, 0.5000])
    """
    return _make("sgd", options)


def Adam(**options: Any) -> Optimizer:
    """lr, betas, eps, weight_decay, amsgrad, maximize.

    >>> Adam(lr=1e-3, betas=(0.9, 0.99)).name
    'adam'
    """
    return _make("adam", options)


def AdamW(**options: Any) -> Optimizer:
    """lr, betas, eps, weight_decay, amsgrad, maximize.

    >>> AdamW(lr=1e-3, weight_decay=0.1).name
    'adamw'
    """
    return _make("adamw", options)


def Adagrad(**options: Any) -> Optimizer:
    """Has the options of torch.optim's class of this name."""
    return _make("adagrad", options)


def RMSprop(**options: Any) -> Optimizer:
    """Has the options of torch.optim's class of this name."""
    return _make("rmsprop", options)


def Adadelta(**options: Any) -> Optimizer:
    """Has the options of torch.optim's class of this name."""
    return _make("adadelta", options)


def Adamax(**options: Any) -> Optimizer:
    """Has the options of torch.optim's class of this name."""
    return _make("adamax", options)


def Rprop(**options: Any) -> Optimizer:
    """Has the options of torch.optim's class of this name."""
    return _make("rprop", options)


def _named(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    return parameters_of(inner)


def state_dict(optimizer: Optimizer, module: torch.nn.Module) -> dict[str, Any]:
    """The optimizer's state for the module's parameters, by their names. Tensors are shared, not copied.

    >>> net, adam = torch.nn.Linear(2, 2), Adam()
    >>> adam.step_param(net.bias, torch.ones(2))
    >>> sorted(state_dict(adam, net)["tensors"])
    ['bias.exp_avg', 'bias.exp_avg_sq']
    """
    tensors, values = optimizer.state(_named(module))
    return {"tensors": tensors, "values": values}


def load_state_dict(optimizer: Optimizer, module: torch.nn.Module, state: Mapping[str, Any]) -> None:
    """Loads what :func:`state_dict` gave into an optimizer of the same kind."""
    optimizer.load_state(dict(state["tensors"]), dict(state["values"]), _named(module))


def apply_optimizer_in_backward(model: DistributedDataParallel, optimizer: Any,
                                params: Iterable[torch.Tensor] | None = None, *,
                                hook: str | _native.Hook | CommHook = "allreduce", state: Any = None,
                                clip_grad_value: float | None = None) -> None:
    """Steps each parameter as soon as its bucket is reduced, and drops its gradient at the end of backward().

    Args:
        model: torch's DistributedDataParallel.
        optimizer: one of this module's, or any object with ``step_param(parameter, gradient)``.
        params: the parameters to step; None means all. The others keep their gradients.
        hook, state: how gradients are reduced, as for :func:`brigade.set_hook`; native hooks only.
        clip_grad_value: holds every element of a reduced gradient between -value and value.

    Inside ``no_sync`` gradients only accumulate. Works on CPUs and Gloo, where torch's function of this name does not.

    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> apply_optimizer_in_backward(model, SGD(lr=0.1))
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> model.module.weight.grad is None
    True
    """
    check_model(model)
    chosen = list(model.module.parameters()) if params is None else list(params)
    chosen = [parameter for parameter in chosen if parameter.requires_grad and not getattr(parameter, "_ddp_ignored", False)]
    if not chosen:
        raise _native.ConfigError("apply_optimizer_in_backward: none of the parameters is one that the model trains")
    inner, title = native_of(hook, state, model)
    views = bool(model.gradient_as_bucket_view)
    stepping = _native.stepping(inner, optimizer, chosen, all=False, owns_gradients=not views,
                                clip_grad_value=clip_grad_value)
    attachment = install(model, stepping, None, None, group_of_hook(hook, state), f"{title} then optimizer",
                         writes_gradients=not views)
    drop_gradients(model, attachment, chosen)
    came_to(model, inner)
