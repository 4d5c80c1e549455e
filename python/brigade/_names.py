"""The names of parameters: hooks, their states and their rules know a parameter by the name that it has in the plain model, whatever
wraps the model or a layer of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import torch

# What torch.compile, FSDP, activation checkpointing and DistributedDataParallel put into the names of what they wrap.
_OF_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "module"})
# "module." at a pattern's beginning is left to the rules, which refuse it.
_IN_PATTERN = re.compile(r"(?<![A-Za-z0-9_])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.|(?<=[.*?])module\.")

_Named = Iterable[tuple[str, torch.Tensor]]


def plain(name: str, wrappers: frozenset[str] = _OF_WRAPPERS) -> str:
    """A parameter's name without what wrappers put into it."""
    *layers, own = name.split(".")
    return ".".join([layer for layer in layers if layer not in wrappers] + [own])


def plain_names(named: _Named) -> list[tuple[str, torch.Tensor]]:
    """What ``named_parameters()`` gives, in plain names."""
    listed = list(named)
    for wrappers in (_OF_WRAPPERS, _OF_WRAPPERS - {"module"}):  # a layer of the model itself may be called "module"
        names = [plain(name, wrappers) for name, _ in listed]
        if len(set(names)) == len(names):
            return [(name, tensor) for name, (_, tensor) in zip(names, listed)]
    return listed


def parameters_of(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The parameters of a module, in plain names."""
    return plain_names(module.named_parameters())


def plain_spec(spec: str) -> str:
    """A hook's text with plain names in its rules."""
    return _IN_PATTERN.sub("", spec)


# ---- the default rules

_NORMS: tuple[type[torch.nn.Module], ...] = (
    torch.nn.modules.batchnorm._NormBase, torch.nn.LayerNorm, torch.nn.GroupNorm, torch.nn.RMSNorm)
# What brigade::make_hook("rules") stands for, where no model is there to look at.
_USUAL_EXACT = ("*bias", "*norm*")
_USUAL_REST = "*=int8"


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None


def _is_norm(layer: torch.nn.Module) -> bool:
    return isinstance(layer, _NORMS) or "norm" in type(layer).__name__.lower()


def _pattern_for(name: str, others: list[str]) -> str:
    """The shortest end of a norm's parameter's name that no other kind of parameter has: "*.ln_1.weight"."""
    layers = name.split(".")
    for length in range(2, len(layers)):
        pattern = "*." + ".".join(layers[-length:])
        if not any(_fits(pattern, other) for other in others):
            return pattern
    return name


def usual_rules(module: torch.nn.Module) -> str:
    """The default rules for a model: the parameters of its norms, told by the kinds of its layers, and biases are exact."""
    of_norms = {id(parameter) for layer in module.modules() if _is_norm(layer) for parameter in layer.parameters(recurse=False)}
    names = parameters_of(module)
    others = [name for name, parameter in names if id(parameter) not in of_norms]
    patterns = dict.fromkeys(_USUAL_EXACT)
    for name, parameter in names:
        if id(parameter) in of_norms and not any(_fits(pattern, name) for pattern in patterns):
            patterns[_pattern_for(name, others)] = None
    return ";".join([f"{pattern}=allreduce" for pattern in patterns] + [_USUAL_REST])


def for_model(spec: str, module: torch.nn.Module) -> str:
    """A hook's text where it is known which model the hook is for."""
    *wrappers, last = spec.split("+")
    if last == "rules":
        return "+".join([*wrappers, "rules:" + usual_rules(module)])
    return plain_spec(spec)
