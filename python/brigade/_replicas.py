"""Checks that the ranks' copies of a model still have the same bits."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist
from torch._compile import _disable_dynamo
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from . import _native
from ._calling import check_model

_checks: weakref.WeakKeyDictionary[DistributedDataParallel, RemovableHandle] = weakref.WeakKeyDictionary()


class _Check:
    """Is called before each forward pass of a model."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.unchecked = 0

    @_disable_dynamo  # its counter must not be compiled
    def __call__(self, model: Any, arguments: Any) -> None:
        # Here DDP itself talks to the other ranks; a rank that has ended its loop in join() does not come here.
        if not torch.is_grad_enabled() or not model.require_backward_grad_sync or model._join_config.enable:
            return
        self.unchecked += 1
        if self.unchecked <= self.every:
            return
        self.unchecked = 1  # counts the pass that begins now
        if dist.get_world_size(model.process_group) > 1:
            self._compare(model)

    def _compare(self, model: Any) -> None:
        named = [(name, parameter) for name, parameter in model.module.named_parameters()
                 if name not in model.parameters_to_ignore]
        hashes = _native.hash_tensors([parameter for _, parameter in named])
        wholes = _gather(model, [_native.hash_of(hashes)])
        if all(whole == wholes[0] for whole in wholes):
            return
        drift = _native.describe_drift([name for name, _ in named], _gather(model, hashes))
        raise _native.MismatchError(
            f"the replicas have drifted apart within the last {self.every} passes: {drift}. Something on these ranks changes "
            "parameters that the others do not change, or computes differently; check_replicas(model, 0) where they are "
            "meant to differ")


def _gather(model: Any, numbers: list[int]) -> list[list[int]]:
    mine = torch.tensor(numbers, dtype=torch.int64, device=model.device)
    all_ = [torch.empty_like(mine) for _ in range(dist.get_world_size(model.process_group))]
    dist.all_gather(all_, mine, group=model.process_group)
    return [each.tolist() for each in all_]


def check_replicas(model: DistributedDataParallel, every: int = 100) -> None:
    """Makes the ranks compare a hash of all parameters after every `every` forward passes that synchronise.

    If they differ, all ranks raise :class:`MismatchError`, which names the ranks and the first parameter that differs.

    Args:
        model: torch's DistributedDataParallel, with any hook or none.
        every: a number of passes; 0 (as before the first call) means never. 100 costs less than a hundredth of the time.

    Collective: every rank passes the same number. Replicas must be meant to be equal, which they are not with
    :class:`LocalSGD`. Passes inside ``model.join()`` are left out.

    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> check_replicas(model, every=50)
    """
    check_model(model)
    if every < 0:
        raise _native.ConfigError(f"every is {every}, but must be a number of passes, or 0 for never")
    before = _checks.pop(model, None)
    if before is not None:
        before.remove()
    if every > 0:
        _checks[model] = model.register_forward_pre_hook(_Check(every))
