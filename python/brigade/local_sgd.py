"""Local SGD and DiLoCo: ranks train locally and average now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._calling import CommHook, attachment_of, check_model, check_whole, group_or_default, install, native_of
from ._names import for_model, plain_names
from ._setting import hook_stats
from ._state import came_to, load_state_dict, state_dict

__all__ = ["DiLoCo", "LocalSGD"]


def _step(optimizer: Any, parameters: Iterable[torch.Tensor], closure: Callable[[], Any] | None) -> Any:
    """Steps an optimizer with step() or step_param(parameter, gradient); None means that it steps elsewhere."""
    if optimizer is not None and hasattr(optimizer, "step"):
        return optimizer.step() if closure is None else optimizer.step(closure)
    loss = None
    if closure is not None:
        with torch.enable_grad():
            loss = closure()
    if optimizer is not None:
        with torch.no_grad():
            for parameter in parameters:
                if parameter.grad is not None:
                    optimizer.step_param(parameter, parameter.grad)
    return loss


def _check_optimizer(who: str, optimizer: Any) -> None:
    if optimizer is not None and not hasattr(optimizer, "step") and not hasattr(optimizer, "step_param"):
        raise _native.ConfigError(f"{who}: {type(optimizer).__qualname__} is no optimizer: it has neither step() nor "
                                  "step_param(parameter, gradient)")


def _cloned(parts: tuple[dict[str, torch.Tensor], dict[str, str]]) -> dict[str, Any]:
    tensors, values = parts
    return {"tensors": {name: tensor.clone() for name, tensor in tensors.items()}, "values": values}


class LocalSGD:
    """Local SGD: averages gradients over all ranks for `warmup_steps`, then only among the ranks of `subgroup`, and parameters
    over all ranks every `period` steps. One object owns the hook, the averager and their common warm-up.

    Args:
        model: torch's DistributedDataParallel; this object sets its hook.
        optimizer: anything with ``step()`` or ``step_param(parameter, gradient)``; None if it steps in the backward pass.
        warmup_steps: the number of first steps in which gradients are averaged over all ranks.
        period: steps from one mean of the parameters to the next; either this or `levels`.
        levels: ``{period: number of ranks}``, as for :class:`brigade.averagers.HierarchicalModelAverager`.
        subgroup: the ranks that go on averaging gradients among themselves; None means those of one host.
        post_local_gradient_allreduce: if False, gradients are not averaged after the warm-up.
        hook, state: how gradients are averaged, as for :func:`brigade.set_hook`; native hooks only.

    Call :meth:`step` in place of the optimizer's, and :meth:`finish` before parameters are saved or evaluated; keep the object
    while the model trains. A training loop that forgets ``step()`` gets an error. Collective.

    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> local = LocalSGD(model, torch.optim.SGD(model.parameters(), 0.1), warmup_steps=1, period=2)
    >>> for _ in range(3):
    ...     model.zero_grad()
    ...     model(torch.ones(1, 4)).sum().backward()
    ...     local.step()
    >>> local.finish()
    >>> local.steps, local.is_local
    (3, True)
    """

    def __init__(self, model: DistributedDataParallel, optimizer: Any, *, warmup_steps: int = 0, period: int | None = None,
                 levels: Mapping[int, int] | None = None, subgroup: dist.ProcessGroup | None = None,
                 post_local_gradient_allreduce: bool = True, hook: str | _native.Hook | CommHook = "allreduce",
                 state: Any = None) -> None:
        check_model(model)
        _check_optimizer("LocalSGD", optimizer)
        check_whole("LocalSGD", warmup_steps=warmup_steps, period=period or 0)
        for each, size in (levels or {}).items():
            check_whole("LocalSGD", **{"a period of levels": each, f"levels[{each}]": size})
        device = str(model.device.type)
        inner, title = native_of(hook, state, model)
        self.model, self.optimizer = model, optimizer
        self._native = _native.LocalSGDCore(
            group_or_default(model.process_group), device, subgroup, warmup_steps, period or 0,
            list((levels or {}).items()), post_local_gradient_allreduce, inner)
        self._attachment = install(model, self._native.hook, None, None, None, f"post_local_sgd+{title}")
        self._installed = self._attachment.hook
        came_to(model, inner)

    def _parameters(self) -> list[torch.Tensor]:
        return [parameter for parameter in self.model.module.parameters()
                if parameter.requires_grad and not getattr(parameter, "_ddp_ignored", False)]

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Collective, after each backward pass that synchronises: steps the optimizer, then averages the parameters if it is time."""
        if self._attachment.hook is not self._installed or attachment_of(self.model) is not self._attachment:
            raise _native.Error("LocalSGD.step: the model has another hook now; give LocalSGD the hook, which it goes on using")
        loss = _step(self.optimizer, self._parameters(), closure)
        self._native.after_step(self._parameters())
        return loss

    def finish(self) -> None:
        """Collective: gives all ranks the mean of the parameters now."""
        self._native.finish(self._parameters())

    @property
    def steps(self) -> int:
        return self._native.steps

    @property
    def is_local(self) -> bool:
        """Whether the next step is local."""
        return self._native.is_local

    @property
    def bytes_sent(self) -> int:
        """The bytes that this rank has sent, for gradients and for parameters."""
        return hook_stats(self.model).total.bytes_sent + self._native.bytes_sent

    def state_dict(self) -> dict[str, Any]:
        """Steps, and what the hook keeps. Between two means the ranks' parameters differ: every rank saves its own."""
        return {"steps": self.steps, **state_dict(self.model)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Into one of the same options, on all ranks: what :meth:`state_dict` gave on this one."""
        load_state_dict(self.model, state)
        self._native.set_steps(int(state["steps"]))


class DiLoCo:
    """DiLoCo: ranks train locally for `period` steps, with any optimizer; then the mean of their changes is one step of an outer
    optimizer, Nesterov's (Douillard et al., 2023; with `fragments` and `delay`: Streaming DiLoCo, 2025). It sends a small part
    of what averaging gradients sends, which suits slow links.

    Args:
        model: a plain module, because gradients are not averaged, not DistributedDataParallel; or (name, parameter) pairs.
        optimizer: the inner optimizer: anything with ``step()`` or ``step_param(parameter, gradient)``.
        process_group: the ranks that average; None means the default group.
        period: inner steps between two exchanges of a parameter, usually 100 to 500.
        outer_lr, outer_momentum: options of the outer step.
        fragments: parts of the model that are exchanged at different times: the same bytes in smaller portions.
        delay: inner steps from the start of an exchange to its use, during which it is sent.
        mixing: how much of its own parameters a rank keeps, 0 to less than 1.
        hook: how differences are averaged: a name ("int8") or a :class:`brigade.Hook` of its own.
        init_sync: whether rank 0's parameters replace those of the others now.
        bucket_cap_mb: the size of a message.

    >>> net = torch.nn.Linear(4, 4)
    >>> diloco = DiLoCo(net, torch.optim.SGD(net.parameters(), 0.1), period=2)
    >>> for _ in range(4):
    ...     net.zero_grad()
    ...     net(torch.ones(1, 4)).sum().backward()
    ...     diloco.step()
    >>> diloco.finish()
    >>> diloco.steps, diloco.rejected
    (4, 0)
    """

    def __init__(self, model: torch.nn.Module | Iterable[tuple[str, torch.Tensor]], optimizer: Any,
                 process_group: dist.ProcessGroup | None = None, *, period: int = 100, outer_lr: float = 0.7,
                 outer_momentum: float = 0.9, fragments: int = 1, delay: int = 0, mixing: float = 0,
                 hook: str | _native.Hook = "allreduce", init_sync: bool = True, bucket_cap_mb: float = 25) -> None:
        if isinstance(model, DistributedDataParallel):
            raise _native.ConfigError("DiLoCo: the model averages gradients already, as a DistributedDataParallel; give the "
                                      "module inside, or one rank of each of its groups and that group")
        _check_optimizer("DiLoCo", optimizer)
        check_whole("DiLoCo", period=period, fragments=fragments, delay=delay)
        named = list(model.named_parameters()) if isinstance(model, torch.nn.Module) else list(model)
        self._named = [(name, parameter) for name, parameter in plain_names(named) if parameter.requires_grad]
        self.optimizer = optimizer
        device = self._named[0][1].device.type if self._named else "cpu"
        if isinstance(hook, str):
            hook = _native.make_hook(for_model(hook, model) if isinstance(model, torch.nn.Module) else hook)
        self._native = _native.DiLoCo(
            group_or_default(process_group), device, self._named, hook, period=period, outer_lr=outer_lr,
            outer_momentum=outer_momentum, fragments=fragments, delay=delay, mixing=mixing, init_sync=init_sync,
            bucket_cap_mb=bucket_cap_mb)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Collective: takes the inner step, then starts or finishes exchanges that are due."""
        loss = _step(self.optimizer, [parameter for _, parameter in self._named], closure)
        self._native.after_step()
        return loss

    def finish(self) -> None:
        """Collective: exchanges everything now, so that all ranks have the same parameters, to be saved or evaluated."""
        self._native.finish()

    @property
    def steps(self) -> int:
        """The number of inner steps so far."""
        return self._native.steps

    @property
    def rejected(self) -> int:
        """The number of exchanges with a mean that was not finite. After one, all ranks return to the last good parameters."""
        return self._native.rejected

    def stats(self) -> _native.HookStats:
        """Statistics of the exchanges; a step there is one exchange of one fragment."""
        return self._native.stats()

    def state_dict(self) -> dict[str, Any]:
        """Copies: ``shared`` is equal on all ranks; ``rank`` is this rank's, with its parameters and the hook's state. The inner
        optimizer has its own state_dict."""
        return {"shared": _cloned(self._native.state()), "rank": _cloned(self._native.rank_state())}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads what :meth:`state_dict` gave on this rank, parameters too. If ``rank`` is a list, with the states of all ranks of a
        job of another size, loads their mean."""
        ranks = state["rank"] if isinstance(state["rank"], (list, tuple)) else [state["rank"]]
        shared = state["shared"]
        self._native.load_state((dict(shared["tensors"]), dict(shared["values"])),
                                [(dict(each["tensors"]), dict(each["values"])) for each in ranks])
