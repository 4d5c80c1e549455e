"""The hook of torch.distributed.algorithms.ddp_comm_hooks.mixed_precision_hooks, with a native all-reduce for which backward does not wait.

DDP with ``mixed_precision=`` registers torch's hook itself; one that is made inside :func:`native_mixed_precision` takes this one.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import mixed_precision_hooks as _torchs
from torch.distributed.utils import _free_storage

from . import default_hooks

__all__ = ["native_mixed_precision"]


@dataclass
class _AllreduceUpcastHookState:
    """The DDP model, and DDP's stream for casting (this hook casts on the future's streams)."""

    ddp_weakref: Any
    upcast_stream: torch.Stream
    wait_for_stream_enqueued: bool = False


def _reducer_allreduce_and_upcast_hook(hook_state: _AllreduceUpcastHookState,
                                       bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages in `reduce_dtype`, then brings the bucket's parameters and gradients back to full precision."""
    model = hook_state.ddp_weakref()
    wanted = model.mixed_precision
    if wanted.param_dtype != wanted.reduce_dtype:
        bucket.set_buffer(bucket.buffer().to(wanted.reduce_dtype))

    def upcast(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        parameters: list[Any] = list(bucket.parameters())  # with DDP's attributes
        for parameter in parameters:
            parameter.data = parameter._fp_param
            _free_storage(parameter._mp_param)
            parameter.grad.data = parameter.grad.to(parameter.data.dtype)
        return future.value()

    def finish() -> None:
        hook_state.wait_for_stream_enqueued = False
        for parameter in model.module.parameters():
            if hasattr(parameter, "_ddp_mp_hook_state"):
                parameter._ddp_mp_hook_state[1].remove()
                del parameter._ddp_mp_hook_state
            # Parameters that need no gradient were cast for forward too.
            if not parameter.requires_grad and not hasattr(parameter, "_ddp_ignored"):
                parameter.data = parameter._fp_param

    if not hook_state.wait_for_stream_enqueued:
        hook_state.wait_for_stream_enqueued = True
        torch.autograd.Variable._execution_engine.queue_callback(finish)
    return default_hooks.allreduce_hook(model.process_group, bucket).then(upcast)


@contextlib.contextmanager
def native_mixed_precision() -> Iterator[None]:
    """Gives DDP models with ``mixed_precision=`` that are made inside it this module's hook in place of torch's."""
    names = ("_AllreduceUpcastHookState", "_reducer_allreduce_and_upcast_hook")
    before = {name: getattr(_torchs, name) for name in names}
    try:
        for name in names:
            setattr(_torchs, name, globals()[name])
        yield
    finally:
        for name, value in before.items():
            setattr(_torchs, name, value)
