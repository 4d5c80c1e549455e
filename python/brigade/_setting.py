"""Hooks on DDP models: set, replace, look at."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._calling import CommHook, check_group, check_model, group_of_hook, hooked, install, native_of
from ._names import plain_spec
from ._state import came_to, note_registered


class HookEntry(NamedTuple):
    """A row of the table of hooks that :func:`make_hook` knows."""

    name: str
    summary: str
    options: list[str]
    #: Tests hold the relative error of one step's mean below this; negative: the result is not a mean.
    tolerance: float
    #: Whether each step adds what the previous one lost.
    error_feedback: bool


def hook_table() -> list[HookEntry]:
    """All hooks by name.

    >>> [entry.name for entry in hook_table()][:3]
    ['allreduce', 'fp16', 'bf16']
    """
    return [HookEntry(*row) for row in _native.hook_table()]


def make_hook(spec: str) -> _native.Hook:
    """A hook by name, with options after a colon, and wrappers before it: ``fp16+`` and ``bf16+`` cast first, ``node+``
    compresses between hosts only, ``small+`` leaves vectors and small tensors exact. ``rules:`` takes a hook for each
    kind of parameter, by its name in the plain model: the first pattern that fits decides. ``rules`` alone, set on a model by
    this name, keeps biases and what its norms train exact. ``auto`` measures, and chooses a hook itself.

    >>> make_hook("rules:*.bias=allreduce;embed.*=fp16;*=int8").name
    'rules'

    >>> make_hook("powersgd:rank=2,start=10").name
    'powersgd'
    >>> make_hook("powersdg")
    Traceback (most recent call last):
    ...
    brigade.ConfigError: no hook named 'powersdg'; did you mean 'powersgd'? ...
    """
    return _native.make_hook(plain_spec(spec) if isinstance(spec, str) else spec)


#: A hook in Python: an ``async def`` of a bucket and a comm, which returns the bucket's new gradients.
HookBody = Callable[[_native.Bucket, _native.Comm], Awaitable[torch.Tensor]]


def register_hook(name: str, factory: Callable[[dict[str, str]], _native.Hook | HookBody]) -> None:
    """Registers your own hook, so that :func:`make_hook`, :func:`set_hook`, wrappers and ``rules:`` know its name.

    Args:
        name: letters, digits and "_"; none of the library's own names.
        factory: called for each hook that is made, with the options as texts: ``{"k": "3"}`` for ``"mine:k=3"``. It returns a
            :class:`Hook`, or an ``async def`` of a bucket and a comm. An object whose ``__call__`` is such a function may
            also have ``state()``, ``load_state(tensors, values)`` and ``reset()``, as :class:`Hook` has them.

    Call it on every rank, before the first use. The function may await only collectives of its comm, the same ones on every
    rank; between two of them it runs on a thread of the engine, with the GIL. The rest is as for hooks in C++.

    >>> async def mean(bucket, comm):
    ...     gradients = bucket.buffer().div_(comm.size())
    ...     await comm.all_reduce(gradients)
    ...     return gradients
    >>> register_hook("my_mean", lambda options: mean)
    >>> make_hook("rules:*.bias=my_mean;*=int8").name
    'rules'
    """
    _native.register_hook(name, factory)
    note_registered(name)


def set_hook(model: DistributedDataParallel, hook: str | _native.Hook | CommHook | None, state: Any = None, *,
             process_group: dist.ProcessGroup | None = None) -> None:
    """Makes `hook` reduce the gradients of `model` from the next backward pass on.

    Args:
        model: torch's DistributedDataParallel.
        hook: a name as for :func:`make_hook`; a :class:`Hook`; one of this package's comm hooks (it then runs in native
            code, without Python); any other comm hook, a Python function; or None for plain averaging.
        state: the first argument of a comm hook. Not for names and native hooks.
        process_group: the group to reduce over; None means the state's, or the model's own.

    Collective: every rank sets the same hook, which is compared before the first bucket. Call it between iterations; unlike
    ``model.register_comm_hook``, it may be called again.

    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> set_hook(model, "fp16")
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> set_hook(model, "powersgd:rank=2,start=0")
    """
    if state is not None and (hook is None or isinstance(hook, (str, _native.Hook))):
        raise _native.ConfigError("state is for comm hooks, functions of (state, bucket); a name or a Hook has its own")
    check_group(process_group)
    if hook is None:
        hook = "allreduce"
    if not isinstance(hook, (str, _native.Hook)) and not callable(hook):
        raise _native.ConfigError(f"expected a hook's name, a Hook or a function, got {type(hook).__qualname__}")
    if callable(hook) and not hasattr(hook, "native"):
        title = getattr(hook, "__qualname__", type(hook).__qualname__)
        if process_group is not None:
            raise _native.ConfigError(f"process_group is not for '{title}', a Python hook: it uses its state's")
        install(model, None, hook, state, None, title)
        return
    check_model(model)
    made, title = native_of(hook, state, model)
    install(model, made, None, None, process_group if process_group is not None else group_of_hook(hook, state), title)
    came_to(model, made)


def hook_stats(model: DistributedDataParallel) -> _native.HookStats:
    """How much the model's hook has moved, and how long it took, in the last step and since it was set.

    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> set_hook(model, "allreduce")
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> hook_stats(model).last_step.bytes_before
    80

    ``parts`` has the same by rule, for ``rules:``; ``history`` has a line for each decision of the hook so far.
    """
    reduction = hooked(model).reduction
    if reduction is None:
        raise _native.ConfigError("the model's hook is a Python function: brigade counts only its own")
    return reduction.stats()
