"""ZeRO: an optimizer whose state is spread over the ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._calling import check_model, drop_gradients, group_or_default, install
from .optim import spec_of

__all__ = ["ZeroInBackward", "ZeroRedundancyOptimizer", "apply_zero_in_backward"]


_Native = TypeVar("_Native", _native.ZeroRedundancyOptimizer, _native.ZeroHook)


class _Consolidating(Generic[_Native]):
    """State that is spread over the ranks, brought together and given out again."""

    native: _Native
    process_group: dist.ProcessGroup
    _consolidated: dict[str, Any] | None = None

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collective. Everybody's state comes to rank `to`, whose :meth:`state_dict` then gives it."""
        tensors, values = self.native.consolidate(to)
        mine = dist.get_rank(self.process_group) == to
        self._consolidated = {"tensors": tensors, "values": values} if mine else None

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`consolidate_state_dict` brought to this rank."""
        if self._consolidated is None:
            raise _native.Error("no state is here: all ranks call consolidate_state_dict(to=RANK) first, "
                                "and that rank state_dict()")
        return self._consolidated

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """A consolidated state, of any number of ranks, the same on all ranks."""
        self.native.load_whole(dict(state["tensors"]), dict(state["values"]))

    def set_lr(self, lr: float) -> None:
        self.native.set_lr(lr)

    @property
    def state_bytes(self) -> int:
        """Of the state that this rank keeps."""
        return self.native.state_bytes


class ZeroRedundancyOptimizer(_Consolidating[_native.ZeroRedundancyOptimizer]):
    """As torch.distributed.optim.ZeroRedundancyOptimizer, in native code: each rank keeps the optimizer's state of its share
    of the parameters, steps that share, and hands the new values to the others.

    Args:
        params: tensors, (name, tensor) pairs as ``named_parameters()`` gives them, or dictionaries of "params" and options.
        optimizer_class: an optimizer of torch.optim or of :mod:`brigade.optim`, or its name ("adam").
        process_group: the group; none: the default one.
        parameters_as_bucket_view: parameters become views into what is sent, which saves copies.
        overlap_with_ddp: step in the backward pass: give this object to :mod:`brigade.ddp_zero_hook`. Then ``step()`` does nothing.
        defaults: the optimizer's options, as torch names them.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> optimizer.step()
    """

    def __init__(self, params: Iterable[Any], optimizer_class: Any, process_group: dist.ProcessGroup | None = None,
                 parameters_as_bucket_view: bool = False, overlap_with_ddp: bool = False, **defaults: Any) -> None:
        self._class, self._defaults = optimizer_class, defaults
        self._counter = 0
        self.parameters: list[torch.Tensor] = []
        self.overlap_with_ddp = overlap_with_ddp
        groups = [self._group(each) for each in self._groups(params)]
        if not self.parameters:
            raise _native.ConfigError("ZeroRedundancyOptimizer: no parameters")
        self.process_group = group_or_default(process_group)
        self.native = _native.ZeroRedundancyOptimizer(self.process_group, str(self.parameters[0].device), groups,
                                                      parameters_as_bucket_view)

    @staticmethod
    def _groups(params: Iterable[Any]) -> list[Mapping[str, Any]]:
        every = list(params)
        if every and isinstance(every[0], Mapping):
            return every
        return [{"params": every}]

    def _group(self, group: Mapping[str, Any]) -> tuple[list[tuple[str, torch.Tensor]], str]:
        options = {**self._defaults, **{key: value for key, value in group.items() if key != "params"}}
        named = []
        for each in group["params"]:
            name, tensor = each if isinstance(each, tuple) else (str(self._counter), each)
            self._counter += 1
            named.append((name, tensor))
            self.parameters.append(tensor)
        return named, spec_of(self._class, options)

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Collective. What there is stays with its owners."""
        self.native.add_group(*self._group(param_group))

    def step(self, closure: Any = None) -> Any:
        """Collective: this rank's share steps, then every rank has everyone's. With `overlap_with_ddp` it is done already."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self.overlap_with_ddp:
            self.native.step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self.parameters:
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()


class ZeroInBackward(_Consolidating[_native.ZeroHook]):
    """What :func:`apply_zero_in_backward` gives."""

    def __init__(self, native: _native.ZeroHook, process_group: dist.ProcessGroup) -> None:
        self.native = native
        self.process_group = process_group


def apply_zero_in_backward(model: DistributedDataParallel, optimizer_class: Any, **defaults: Any) -> ZeroInBackward:
    """ZeRO that sends no more than an all-reduce: reduce-scatter of each bucket, a step of this rank's part of every parameter,
    all-gather of the parameters. When ``backward()`` returns, parameters have stepped and have no gradients.

    Args:
        model: torch's DistributedDataParallel. The hook is this one; what was set before goes.
        optimizer_class: an optimizer of torch.optim or of :mod:`brigade.optim`, or its name ("adam"); one of those that step
            each element by itself, as all of them here do.
        defaults: the optimizer's options, as torch names them.

    Gives the optimizer, for its state and learning rate. Inside of ``no_sync`` gradients accumulate. Collective.

    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> zero = apply_zero_in_backward(model, torch.optim.Adam, lr=0.01)
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> model.module.weight.grad is None, zero.state_bytes
    (True, 160)
    """
    check_model(model)
    trained = [(name, parameter) for name, parameter in model.module.named_parameters()
               if parameter.requires_grad and not getattr(parameter, "_ddp_ignored", False)]
    group = group_or_default(model.process_group)
    views = bool(model.gradient_as_bucket_view)
    hook = _native.ZeroHook(group, str(model.device.type), [(trained, spec_of(optimizer_class, defaults))], not views)
    attachment = install(model, hook, None, None, None, "zero", writes_gradients=not views)
    drop_gradients(model, attachment, [parameter for _, parameter in trained])
    return ZeroInBackward(hook, group)
