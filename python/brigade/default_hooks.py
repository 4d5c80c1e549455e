"""The hooks of torch.distributed.algorithms.ddp_comm_hooks.default_hooks, in native code."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from . import _native
from ._calling import CommHook, NativeHook, call, native_hook, stateless

__all__ = [
    "allreduce_hook",
    "bf16_compress_hook",
    "bf16_compress_wrapper",
    "fp16_compress_hook",
    "fp16_compress_wrapper",
]


@native_hook(stateless("allreduce"))
def allreduce_hook(process_group: dist.ProcessGroup | None,
                   bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of the ranks' gradients, in their own dtype.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> model.register_comm_hook(None, allreduce_hook)
    >>> model(torch.ones(1, 4)).sum().backward()
    """
    return call(allreduce_hook, process_group, bucket)


@native_hook(stateless("fp16"))
def fp16_compress_hook(process_group: dist.ProcessGroup | None,
                       bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of the ranks' gradients, sent as float16 and summed in float32.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> model.register_comm_hook(None, fp16_compress_hook)
    >>> model(torch.ones(1, 4)).sum().backward()
    """
    return call(fp16_compress_hook, process_group, bucket)


@native_hook(stateless("bf16"))
def bf16_compress_hook(process_group: dist.ProcessGroup | None,
                       bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of the ranks' gradients, sent as bfloat16 and summed in float32.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> model.register_comm_hook(None, bf16_compress_hook)
    >>> model(torch.ones(1, 4)).sum().backward()
    """
    return call(bf16_compress_hook, process_group, bucket)


def _compress_wrapper(hook: CommHook, name: str, dtype: torch.dtype,
                      wrap: Callable[[_native.Hook], _native.Hook]) -> CommHook:
    native: NativeHook | None = getattr(hook, "native", None)

    def compressed(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if native is not None:
            return call(compressed, state, bucket)
        whole = bucket.buffer()
        bucket.set_buffer(whole.to(dtype))
        return hook(state, bucket).then(lambda future: whole.copy_(future.value()))

    compressed.__name__ = compressed.__qualname__ = f"{name}({hook.__qualname__})"
    if native is None:
        return compressed
    return native_hook(NativeHook(lambda state, device: wrap(native.make(state, device)), native.group_of,
                                  native.keeper_of))(compressed)


def fp16_compress_wrapper(hook: CommHook) -> CommHook:
    """A hook that casts a bucket to float16, runs `hook` on it, and casts the result back.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> model.register_comm_hook(None, fp16_compress_wrapper(allreduce_hook))
    >>> model(torch.ones(1, 4)).sum().backward()
    """
    return _compress_wrapper(hook, "fp16_compress_wrapper", torch.float16, _native.fp16_compress_wrapper)


def bf16_compress_wrapper(hook: CommHook) -> CommHook:
    """As :func:`fp16_compress_wrapper`, with bfloat16.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> model.register_comm_hook(None, bf16_compress_wrapper(allreduce_hook))
    >>> model(torch.ones(1, 4)).sum().backward()
    """
    return _compress_wrapper(hook, "bf16_compress_wrapper", torch.bfloat16, _native.bf16_compress_wrapper)
