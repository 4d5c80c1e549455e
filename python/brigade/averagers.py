"""The averagers of torch.distributed.algorithms.model_averaging, in native code: they average the parameters of ranks that train locally.

These classes derive from torch's ``ModelAverager``, so torch's ``PostLocalSGDOptimizer`` takes them. As in torch, an averager skips
parameters without a gradient. Unlike torch's it averages all of them if none has a gradient, which is so after an optimizer
in the backward pass.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.model_averaging import averagers as _torchs
from torch.distributed.algorithms.model_averaging.utils import get_params_to_average

from . import _native
from ._calling import check_whole, group_or_default

__all__ = ["HierarchicalModelAverager", "ModelAverager", "PeriodicModelAverager", "average_parameters",
           "average_parameters_or_parameter_groups", "get_params_to_average"]


def _tensors(params: Iterable[Any]) -> list[torch.Tensor]:
    """The tensors among parameters, or among an optimizer's groups of them."""
    tensors: list[torch.Tensor] = []
    for each in params:
        tensors += each["params"] if isinstance(each, Mapping) else [each]
    return [tensor for tensor in tensors if tensor.requires_grad]


def average_parameters(params: Iterable[Any], process_group: dist.ProcessGroup | None = None) -> int:
    """Replaces every parameter by its mean over the group, with the same bits on all ranks. Returns the bytes that this rank sent.

    >>> layer = torch.nn.Linear(2, 2)
    >>> average_parameters(layer.parameters())  # a single rank sends nothing
    0
    """
    tensors = _tensors(params)
    outside: Any = dist.GroupMember.NON_GROUP_MEMBER  # its type says it is a number
    if not tensors or process_group is outside:
        return 0  # as in torch, a rank outside of the group keeps its own
    return _native.average_parameters(tensors, group_or_default(process_group), tensors[0].device.type)


def average_parameters_or_parameter_groups(params: Iterable[Any], process_group: dist.ProcessGroup | None = None) -> None:
    """Does what torch's function of this name does: averages those parameters, of a model or of an optimizer's groups, that have a gradient.

    >>> layer = torch.nn.Linear(2, 2)
    >>> average_parameters_or_parameter_groups(torch.optim.SGD(layer.parameters()).param_groups)
    """
    average_parameters(get_params_to_average(params), process_group)


def _with_gradients(params: Iterable[Any]) -> list[torch.Tensor]:
    """Those that have a gradient, or all if none has one."""
    tensors = _tensors(params)
    return [tensor for tensor in tensors if tensor.grad is not None] or tensors


class ModelAverager(_torchs.ModelAverager):
    """Counts steps, and averages at some of them."""

    def __init__(self, process_group: dist.ProcessGroup | None = None, warmup_steps: int = 0) -> None:
        self._native: _native.ModelAverager | None = None
        self._first = 0
        super().__init__(group_or_default(process_group))
        check_whole(type(self).__name__, warmup_steps=warmup_steps)
        if warmup_steps < 0:
            raise _native.ConfigError(f"warmup_steps is {warmup_steps}, but must be 0 or more")
        self.warmup_steps = warmup_steps

    def _make(self, device: str) -> _native.ModelAverager:
        raise NotImplementedError

    def average_parameters(self, params: Iterable[Any]) -> bool:
        """Collective, after each step of the optimizer: counts the step, averages if it is time, and returns whether it did.

        Parameters without a gradient, which must be the same on all ranks, are skipped; if none has one, all are averaged.
        """
        tensors = _with_gradients(params)
        if self._native is None:
            if not tensors:
                raise _native.ConfigError("average_parameters: none of the parameters needs gradients")
            self._native = self._make(tensors[0].device.type)
            self._native.step = self._first
        return self._native.average_parameters(tensors)

    @property
    def step(self) -> int:
        """The number of steps so far."""
        return self._first if self._native is None else self._native.step

    @step.setter
    def step(self, value: int) -> None:
        if self._native is None:
            self._first = value
        else:
            self._native.step = value

    @property
    def bytes_sent(self) -> int:
        """The bytes that this rank has sent."""
        return 0 if self._native is None else self._native.bytes_sent


class PeriodicModelAverager(ModelAverager):
    """Averages over all ranks at step `warmup_steps` (steps count from 0), and then at every `period`-th.

    >>> layer = torch.nn.Linear(2, 2)
    >>> averager = PeriodicModelAverager(period=2, warmup_steps=1)
    >>> [averager.average_parameters(layer.parameters()) for _ in range(4)]
    [False, True, False, True]
    """

    def __init__(self, period: int, warmup_steps: int = 0, process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(process_group, warmup_steps)
        check_whole("PeriodicModelAverager", period=period)
        if period < 1:
            raise _native.ConfigError(f"PeriodicModelAverager: period is {period}, but must be 1 or more: "
                                      "the number of steps from one mean to the next")
        self.period = period

    def _make(self, device: str) -> _native.ModelAverager:
        return _native.periodic_averager(self.process_group, device, self.period, self.warmup_steps)


class HierarchicalModelAverager(ModelAverager):
    """Has several periods, each with the number of consecutive ranks that average; the last is the number of all ranks. A step
    has at most one mean: that of the largest period that divides it.

    >>> averager = HierarchicalModelAverager({4: dist.get_world_size()}, warmup_steps=2)
    >>> layer = torch.nn.Linear(2, 2)
    >>> [averager.average_parameters(layer.parameters()) for _ in range(5)]
    [False, False, False, False, True]
    """

    def __init__(self, period_group_size_dict: Mapping[int, int] | None = None, warmup_steps: int = 0,
                 process_group: dist.ProcessGroup | None = None) -> None:
        super().__init__(process_group, warmup_steps)
        if not period_group_size_dict:
            raise _native.ConfigError("HierarchicalModelAverager: period_group_size_dict is empty, but must have at least one "
                                      f"period: {{16: {dist.get_world_size(self.process_group)}}}")
        for period, size in period_group_size_dict.items():
            check_whole("HierarchicalModelAverager", **{"a period": period, f"period_group_size_dict[{period}]": size})
        self.period_group_size_dict = dict(period_group_size_dict)
        self._groups: OrderedDict[int, dist.ProcessGroup] | None = None

    @property
    def period_process_group_dict(self) -> OrderedDict[int, dist.ProcessGroup]:
        """For each period the group of torch.distributed that averages then. Collective when it is read for the first time."""
        if self._groups is None:
            self._groups = OrderedDict()
            for period, size in self.period_group_size_dict.items():
                whole = size == dist.get_world_size(self.process_group)
                divide: Any = dist.new_subgroups
                self._groups[period] = self.process_group if whole else divide(size, group=self.process_group)[0]
        return self._groups

    def _make(self, device: str) -> _native.ModelAverager:
        return _native.hierarchical_averager(self.process_group, device, list(self.period_group_size_dict.items()),
                                             self.warmup_steps)
