"""The hook of torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks, in native code."""

from typing import Any

import torch
import torch.distributed as dist

from . import _native
from ._calling import NativeHook, native_hook

__all__ = ["noop_hook"]


@native_hook(NativeHook(lambda _, device: _native.make_hook("noop"), lambda _: None))
def noop_hook(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Returns the bucket as it is, without communication. Use it only to see what communication costs.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> model.register_comm_hook(None, noop_hook)
    >>> model(torch.ones(1, 4)).sum().backward()
    """
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
