"""The hooks of torch.distributed.algorithms.ddp_comm_hooks.ddp_zero_hook, in native code, on Gloo too, and from the first iteration on."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer as _TorchZero
from torch.distributed.optim.utils import functional_optim_map
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._calling import CommHook, NativeHook, call, check_model, native_hook
from .zero_optimizer import ZeroRedundancyOptimizer, native_zero

__all__ = ["ZeroRedundancyOptimizer", "hook_with_zero_step", "hook_with_zero_step_interleaved"]


def _native_of(zero: Any) -> _native.ZeroRedundancyOptimizer:
    """Makes the native one for an object of torch's, with the optimizer that its functional one stands for."""
    native = getattr(zero, "native", None)
    if native is None:
        kinds = {functional: kind for kind, functional in functional_optim_map.items()}
        kind = kinds.get(zero._optim_constructor, zero._optim_constructor)
        native = zero.native = native_zero(zero, kind)
    return native


def _with_zero_step(name: str, hook: CommHook, ddp: DistributedDataParallel, zero: _TorchZero,
                    interleaved: bool, shard_buckets: bool) -> CommHook:
    check_model(ddp)
    if not isinstance(zero, _TorchZero):
        raise _native.ConfigError(f"{name}: expected a ZeroRedundancyOptimizer of brigade's or of torch's, "
                                  f"got {type(zero).__module__}.{type(zero).__qualname__}; it has the same arguments")
    if not getattr(zero, "overlap_with_ddp", zero._overlap_with_ddp):
        raise _native.ConfigError(f"{name}: the ZeroRedundancyOptimizer was made without overlap_with_ddp=True")
    native: NativeHook | None = getattr(hook, "native", None)
    if native is None:
        raise _native.ConfigError(f"{name}: '{hook.__qualname__}' is no hook of brigade's modules")
    trained = {id(parameter) for parameter in ddp.module.parameters()
               if parameter.requires_grad and not getattr(parameter, "_ddp_ignored", False)}
    if any(id(parameter) not in trained for group in zero.param_groups for parameter in group["params"]):
        raise _native.ConfigError(f"{name}: the ZeroRedundancyOptimizer has a parameter that the model does not train")
    stepped = _native_of(zero)

    def with_zero_step(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return call(with_zero_step, state, bucket)

    with_zero_step.__name__ = with_zero_step.__qualname__ = name

    def make(state: Any, device: str) -> _native.Hook:
        return _native.zero_step(native.make(state, device), stepped, interleaved, shard_buckets)

    return native_hook(NativeHook(make, native.group_of, lambda state: zero))(with_zero_step)


def hook_with_zero_step(hook: CommHook, ddp: DistributedDataParallel, zero: _TorchZero,
                        shard_buckets: bool = False) -> CommHook:
    """Reduces as `hook` does; after the last bucket every rank steps its share, and all get all parameters.

    `shard_buckets`: False gives whole buckets to ranks, so that each is one message, and shares may be uneven. When True, and
    until the Reducer has made its final buckets some iterations from the start, parameters stay with the ranks that `zero`
    chose. Parameters step from the first iteration on; when owners change, their state moves.

    >>> from brigade import default_hooks
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, overlap_with_ddp=True, lr=0.01)
    >>> model.register_comm_hook(None, hook_with_zero_step(default_hooks.allreduce_hook, model, zero))
    >>> model(torch.ones(1, 4)).sum().backward()
    """
    return _with_zero_step("hook_with_zero_step", hook, ddp, zero, interleaved=False, shard_buckets=shard_buckets)


def hook_with_zero_step_interleaved(hook: CommHook, ddp: DistributedDataParallel, zero: _TorchZero,
                                    shard_buckets: bool = False) -> CommHook:
    """As :func:`hook_with_zero_step`, but steps each bucket as soon as it is reduced.

    >>> from brigade import default_hooks
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> zero = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, overlap_with_ddp=True, lr=0.01)
    >>> model.register_comm_hook(None, hook_with_zero_step_interleaved(default_hooks.allreduce_hook, model, zero))
    >>> model(torch.ones(1, 4)).sum().backward()
    """
    return _with_zero_step("hook_with_zero_step_interleaved", hook, ddp, zero, interleaved=True, shard_buckets=shard_buckets)
