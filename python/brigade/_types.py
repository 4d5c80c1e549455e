"""Sets hooks by type, as torch does."""

from __future__ import annotations

import enum
import sys
from enum import Enum
from functools import partial
from typing import Any

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import DDPCommHookType as _TorchType
from torch.nn.parallel import DistributedDataParallel

from . import _native, debugging_hooks, default_hooks, powerSGD_hook, quantization_hooks
from ._calling import CommHook
from ._setting import set_hook



def _member(value: Any) -> Any:
    """From Python 3.11 on, a partial must be declared to be a member, or it would be a method."""
    return enum.member(value) if sys.version_info >= (3, 11) else value


def _plain(hook: CommHook, model: DistributedDataParallel, state: dist.ProcessGroup | None) -> None:
    set_hook(model, hook, state)


def _power_sgd(hook: CommHook, rank: int, model: DistributedDataParallel, state: dist.ProcessGroup | None,
               start_powerSGD_iter: int = 1_000) -> None:
    made = powerSGD_hook.PowerSGDState(state, matrix_approximation_rank=rank, start_powerSGD_iter=start_powerSGD_iter)
    set_hook(model, hook, made)


class DDPCommHookType(Enum):
    """The hooks of torch's enumeration of this name; each member's value sets it: ``value(model=..., state=...)``."""

    ALLREDUCE = _member(partial(_plain, default_hooks.allreduce_hook))
    FP16_COMPRESS = _member(partial(_plain, default_hooks.fp16_compress_hook))
    BF16_COMPRESS = _member(partial(_plain, default_hooks.bf16_compress_hook))
    QUANTIZE_PER_TENSOR = _member(partial(_plain, quantization_hooks.quantization_pertensor_hook))
    QUANTIZE_PER_CHANNEL = _member(partial(_plain, quantization_hooks.quantization_perchannel_hook))
    POWER_SGD = _member(partial(_power_sgd, powerSGD_hook.powerSGD_hook, 1))
    POWER_SGD_RANK2 = _member(partial(_power_sgd, powerSGD_hook.powerSGD_hook, 2))
    BATCHED_POWER_SGD = _member(partial(_power_sgd, powerSGD_hook.batched_powerSGD_hook, 1))
    BATCHED_POWER_SGD_RANK2 = _member(partial(_power_sgd, powerSGD_hook.batched_powerSGD_hook, 2))
    NOOP = _member(partial(_plain, debugging_hooks.noop_hook))


def register_ddp_comm_hook(comm_hook_type: DDPCommHookType | _TorchType, model: DistributedDataParallel,
                           state: dist.ProcessGroup | None = None) -> None:
    """Sets a hook by its type. Unlike torch's, it runs in native code, and may be called again to replace the hook.

    `comm_hook_type`: may be of torch's own enumeration, too; the member's name counts.
    `state`: the process group to reduce over; None means the model's own.

    >>> import torch
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> register_ddp_comm_hook(DDPCommHookType.FP16_COMPRESS, model)
    """
    if isinstance(comm_hook_type, _TorchType):
        comm_hook_type = DDPCommHookType[comm_hook_type.name]
    if not isinstance(comm_hook_type, DDPCommHookType):
        raise _native.ConfigError(f"expected a brigade.DDPCommHookType, got {comm_hook_type!r}: "
                                  f"one of {', '.join(DDPCommHookType.__members__)}")
    comm_hook_type.value(model=model, state=state)
