"""Loss scalers. What a hook has kept of scaled gradients is in units of the scale: when torch's GradScaler changes that, it changes too."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from . import _native
from ._calling import hooks_at_work

# Those that a scaler has stepped or unscaled.
_optimizers: weakref.WeakKeyDictionary[torch.amp.GradScaler, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()
# Hooks that keep nothing; others may.
_EXACT = frozenset({entry[0] for entry in _native.hook_table() if not entry[4]})


def _may_keep(hook: _native.Hook) -> bool:
    return hook.name not in _EXACT


def _hooks_of(scaler: torch.amp.GradScaler) -> Iterator[_native.Hook]:
    """Those that reduce the gradients of the scaler's optimizers."""
    stepped = {id(parameter) for optimizer in _optimizers.get(scaler, ()) for group in optimizer.param_groups
               for parameter in group["params"]}
    for model, hook in hooks_at_work():
        if any(id(parameter) in stepped for parameter in model.parameters()):
            yield hook


def _rescale(hook: _native.Hook, factor: float) -> None:
    tensors, values = hook.state()
    errors = [name for name in tensors if name.startswith("error.")]
    if errors:
        hook.load_state({**tensors, **{name: tensors[name].mul_(factor) for name in errors}}, values)


def _noting(method: Any) -> Any:
    @functools.wraps(method)
    def call(self: torch.amp.GradScaler, optimizer: Any, *arguments: Any, **options: Any) -> Any:
        _optimizers.setdefault(self, weakref.WeakSet()).add(optimizer)
        return method(self, optimizer, *arguments, **options)

    return call


def _following(method: Any) -> Any:
    @functools.wraps(method)
    def update(self: torch.amp.GradScaler, *arguments: Any, **options: Any) -> Any:
        scale: torch.Tensor | None = getattr(self, "_scale", None)
        if scale is None or not any(_may_keep(hook) for _, hook in hooks_at_work()):
            return method(self, *arguments, **options)
        before = scale.item()
        result = method(self, *arguments, **options)
        after = self.get_scale()
        if after != before:
            for hook in _hooks_of(self):
                _rescale(hook, after / before)
        return result

    return update


def follow_scalers() -> None:
    """From now on every GradScaler of torch's tells hooks when its scale has changed: it knows nothing of hooks, and has no place to
    put one, so its methods are wrapped."""
    scaler = torch.amp.GradScaler
    for name, wrap in (("step", _noting), ("unscale_", _noting), ("update", _following)):
        setattr(scaler, name, wrap(getattr(scaler, name)))
