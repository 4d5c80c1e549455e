"""The hooks of torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks, in native code, and on Gloo too."""

import torch
import torch.distributed as dist

from ._calling import call, native_hook, stateless

__all__ = ["quantization_perchannel_hook", "quantization_pertensor_hook"]


@native_hook(stateless("quantize_per_tensor"))
def quantization_pertensor_hook(process_group: dist.ProcessGroup | None,
                                bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of the ranks' gradients, sent as affine uint8 with one range for each rank's part of the bucket.

    Sends about two bytes an element whatever the number of ranks.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> model.register_comm_hook(None, quantization_pertensor_hook)
    >>> model(torch.ones(1, 4)).sum().backward()
    """
    return call(quantization_pertensor_hook, process_group, bucket)


@native_hook(stateless("quantize_per_channel"))
def quantization_perchannel_hook(process_group: dist.ProcessGroup | None, bucket: dist.GradBucket,
                                 bucket_size: int = 512) -> torch.futures.Future[torch.Tensor]:
    """As :func:`quantization_pertensor_hook`, with a range for each 512 elements.

    `bucket_size` exists for torch's callers; other values than 512 are refused.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> model.register_comm_hook(None, quantization_perchannel_hook)
    >>> model(torch.ones(1, 4)).sum().backward()
    """
    if bucket_size != 512:
        raise ValueError(f"bucket_size is {bucket_size}, but only 512 is there")
    return call(quantization_perchannel_hook, process_group, bucket)
