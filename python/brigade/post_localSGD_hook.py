"""As torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook, over native hooks."""

import logging

import torch
import torch.distributed as dist

from . import default_hooks
from ._calling import group_or_default

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]

logger = logging.getLogger(__name__)


class PostLocalSGDState:
    """Gradients are averaged over `process_group` for `start_localSGD_iter` iterations; from then on over `subgroup` (none:
    the ranks of one host), or with ``post_local_gradient_allreduce=False`` not at all.

    >>> state = PostLocalSGDState(process_group=None, subgroup=None, start_localSGD_iter=10)
    >>> state.iter
    0
    """

    def __init__(self, process_group: dist.ProcessGroup | None, subgroup: dist.ProcessGroup | None,
                 start_localSGD_iter: int, post_local_gradient_allreduce: bool = True) -> None:
        logger.info("local SGD starts after %s iterations", start_localSGD_iter)
        self.process_group = process_group
        self.subgroup = subgroup
        self.start_localSGD_iter = start_localSGD_iter
        self.post_local_gradient_allreduce = post_local_gradient_allreduce
        self.iter = 0

    def maybe_increase_iter(self, bucket: dist.GradBucket) -> None:
        """Counts an iteration at its last bucket."""
        if bucket.is_last():
            self.iter += 1
        if self.iter == self.start_localSGD_iter:
            logger.info("local SGD starts now, after %s iterations", self.iter)


def post_localSGD_hook(state: PostLocalSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The gradients' part of post-local SGD; the parameters are averaged by one of
    ``torch.distributed.algorithms.model_averaging.averagers`` after the optimizer's step, or replicas drift apart.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> model.register_comm_hook(PostLocalSGDState(None, dist.group.WORLD, start_localSGD_iter=1), post_localSGD_hook)
    >>> model(torch.ones(1, 4)).sum().backward()
    """
    if state.iter < state.start_localSGD_iter:
        state.maybe_increase_iter(bucket)
        return default_hooks.allreduce_hook(group_or_default(state.process_group), bucket)
    if not state.post_local_gradient_allreduce:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future
    if state.subgroup is None:
        state.subgroup, _ = dist.new_subgroups()
    return default_hooks.allreduce_hook(state.subgroup, bucket)
