"""Brigade: gradient communication hooks in native code for torch's DistributedDataParallel.

Wrap a model with torch's own ``DistributedDataParallel``, then set a hook:

>>> import brigade, torch
>>> from torch.nn.parallel import DistributedDataParallel
>>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
>>> brigade.set_hook(model, "int8")
>>> model(torch.ones(2, 4)).sum().backward()
>>> brigade.hook_stats(model).total.steps
1

Or change an import: ``brigade.default_hooks``, ``brigade.powerSGD_hook`` and the others have the names and signatures of
``torch.distributed.algorithms.ddp_comm_hooks``. There is no second DDP class: Brigade's hooks work on torch's.
"""

from __future__ import annotations

from ._check_torch import check_torch as _check_torch
from ._version import __version__

_check_torch()

import atexit as _atexit  # noqa: E402
import importlib as _importlib  # noqa: E402
from typing import TYPE_CHECKING as _TYPE_CHECKING, Any as _Any  # noqa: E402

from ._native import (  # noqa: E402
    Bucket,
    CheckpointError,
    Comm,
    ConfigError,
    Error,
    Hook,
    HookError,
    HookStats,
    HookTraffic,
    MismatchError,
    PeerLostError,
    RendezvousError,
    TimeoutError,
    close_all as _close_all,
)
from . import (  # noqa: E402
    averagers,
    debugging_hooks,
    default_hooks,
    mixed_precision_hooks,
    optim,
    optimizer_overlap_hooks,
    post_localSGD_hook,
    powerSGD_hook,
    quantization_hooks,
)
from ._replicas import check_replicas  # noqa: E402
from ._scaling import follow_scalers as _follow_scalers  # noqa: E402
from ._setting import (  # noqa: E402
    HookEntry,
    hook_stats,
    hook_table,
    make_hook,
    register_hook,
    set_hook,
)
from ._state import HookPerRank, load_state_dict, state_dict  # noqa: E402
from ._types import DDPCommHookType, register_ddp_comm_hook  # noqa: E402
from .checkpoint import load_checkpoint, load_safetensors, save_checkpoint, save_safetensors  # noqa: E402
from .local_sgd import DiLoCo, LocalSGD  # noqa: E402
from .zero import ZeroInBackward, apply_zero_in_backward  # noqa: E402

# These modules have the names of torch's own.
debugging, default, optimizer_overlap = debugging_hooks, default_hooks, optimizer_overlap_hooks
powerSGD, quantization = powerSGD_hook, quantization_hooks

_atexit.register(_close_all)
_follow_scalers()


if _TYPE_CHECKING:
    from . import ddp_zero_hook, fsdp
    from .zero_optimizer import ZeroRedundancyOptimizer


def __getattr__(name: str) -> _Any:
    # They need parts of torch that take seconds to import.
    if name in ("ddp_zero_hook", "fsdp"):
        return _importlib.import_module("." + name, __name__)
    if name == "ZeroRedundancyOptimizer":
        return _importlib.import_module(".zero_optimizer", __name__).ZeroRedundancyOptimizer
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


__all__ = [
    "Bucket",
    "CheckpointError",
    "Comm",
    "ConfigError",
    "DDPCommHookType",
    "DiLoCo",
    "Error",
    "Hook",
    "HookEntry",
    "HookError",
    "HookPerRank",
    "HookStats",
    "HookTraffic",
    "LocalSGD",
    "MismatchError",
    "PeerLostError",
    "RendezvousError",
    "TimeoutError",
    "ZeroInBackward",
    "ZeroRedundancyOptimizer",
    "__version__",
    "apply_zero_in_backward",
    "averagers",
    "check_replicas",
    "ddp_zero_hook",
    "debugging",
    "debugging_hooks",
    "default",
    "default_hooks",
    "fsdp",
    "hook_stats",
    "hook_table",
    "load_checkpoint",
    "load_safetensors",
    "load_state_dict",
    "make_hook",
    "mixed_precision_hooks",
    "optim",
    "optimizer_overlap",
    "optimizer_overlap_hooks",
    "post_localSGD_hook",
    "powerSGD",
    "powerSGD_hook",
    "quantization",
    "quantization_hooks",
    "register_ddp_comm_hook",
    "register_hook",
    "save_checkpoint",
    "save_safetensors",
    "set_hook",
    "state_dict",
]
