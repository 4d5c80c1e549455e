"""ZeRO: spreads an optimizer's state over the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._calling import check_model, drop_gradients, group_or_default, install
from ._names import parameters_of
from .optim import spec_of

if TYPE_CHECKING:
    from .zero_optimizer import ZeroRedundancyOptimizer

__all__ = ["ZeroInBackward", "ZeroRedundancyOptimizer", "apply_zero_in_backward"]


def __getattr__(name: str) -> Any:
    if name == "ZeroRedundancyOptimizer":  # its base, torch's, takes seconds to import
        from .zero_optimizer import ZeroRedundancyOptimizer

        return ZeroRedundancyOptimizer
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


class _Consolidating:
    """Collects state that is spread over the ranks, and distributes it again."""

    native: _native.ZeroHook
    process_group: dist.ProcessGroup
    _consolidated: dict[str, Any] | None = None

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collective: brings all ranks' state to rank `to`, where :meth:`state_dict` then returns it."""
        tensors, values = self.native.consolidate(to)
        mine = dist.get_rank(self.process_group) == to
        self._consolidated = {"tensors": tensors, "values": values} if mine else None

    def state_dict(self) -> dict[str, Any]:
        """The state that :meth:`consolidate_state_dict` brought to this rank."""
        if self._consolidated is None:
            raise _native.Error("no state is here: all ranks call consolidate_state_dict(to=RANK) first, "
                                "and that rank state_dict()")
        return self._consolidated

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Loads a consolidated state, of any number of ranks; pass the same on all ranks."""
        self.native.load_whole(dict(state["tensors"]), dict(state["values"]))

    def set_lr(self, lr: float) -> None:
        self.native.set_lr(lr)

    @property
    def state_bytes(self) -> int:
        """The size of the state that this rank keeps."""
        return self.native.state_bytes


class ZeroInBackward(_Consolidating):
    """The result of :func:`apply_zero_in_backward`."""

    def __init__(self, native: _native.ZeroHook, process_group: dist.ProcessGroup) -> None:
        self.native = native
        self.process_group = process_group


def apply_zero_in_backward(model: DistributedDataParallel, optimizer_class: Any, **defaults: Any) -> ZeroInBackward:
    """ZeRO that sends no more than an all-reduce: it reduce-scatters each bucket, steps this rank's part of every parameter, and
    all-gathers the parameters. When ``backward()`` returns, parameters have stepped and have no gradients.

    Args:
        model: torch's DistributedDataParallel. This replaces its hook.
        optimizer_class: an optimizer of torch.optim or of :mod:`brigade.optim`, or its name ("adam"); it must
            step each element by itself, as all of these do.
        defaults: the optimizer's options, as torch names them.

    Returns the optimizer, for its state and learning rate. Inside ``no_sync`` gradients accumulate. Collective.

    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> zero = apply_zero_in_backward(model, torch.optim.Adam, lr=0.01)
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> model.module.weight.grad is None, zero.state_bytes
    (True, 160)
    """
    check_model(model)
    trained = [(name, parameter) for name, parameter in parameters_of(model.module)
               if parameter.requires_grad and not getattr(parameter, "_ddp_ignored", False)]
    group = group_or_default(model.process_group)
    views = bool(model.gradient_as_bucket_view)
    hook = _native.ZeroHook(group, str(model.device.type), [(trained, spec_of(optimizer_class, defaults))], not views)
    attachment = install(model, hook, None, None, None, "zero", writes_gradients=not views)
    drop_gradients(model, attachment, [parameter for _, parameter in trained])
    return ZeroInBackward(hook, group)
