"""The hook of torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook, in native code."""

import logging
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState as _TorchState

from . import _native
from ._calling import NativeHook, call, check_group, native_hook

__all__ = ["PostLocalSGDState", "post_localSGD_hook"]

logger = logging.getLogger(__name__)


class PostLocalSGDState(_TorchState):
    """Gradients are averaged over `process_group` for `start_localSGD_iter` iterations; from then on over `subgroup` (none:
    the ranks of one host), or with ``post_local_gradient_allreduce=False`` not at all. The options are fixed once the hook
    has run; ``iter`` may be set, on all ranks, between iterations. A state of torch's too, for those who ask for one.

    >>> state = PostLocalSGDState(process_group=None, subgroup=None, start_localSGD_iter=10)
    >>> state.iter
    0
    """

    def __init__(self, process_group: dist.ProcessGroup | None, subgroup: dist.ProcessGroup | None,
                 start_localSGD_iter: int, post_local_gradient_allreduce: bool = True) -> None:
        logger.info("local SGD starts after %s iterations", start_localSGD_iter)
        if not isinstance(start_localSGD_iter, int) or start_localSGD_iter < 0:
            raise _native.ConfigError(f"start_localSGD_iter is {start_localSGD_iter!r}, but must be a whole number from 0 on")
        self.process_group = check_group(process_group)
        self.subgroup = check_group(subgroup)
        self.start_localSGD_iter = start_localSGD_iter
        self.post_local_gradient_allreduce = post_local_gradient_allreduce
        self._hook: _native.PostLocalSGDHook | None = None
        self._first = 0

    def native(self, device: str) -> _native.PostLocalSGDHook:
        """The native hook with this state's options and count. Collective over the subgroup, the first time."""
        if self._hook is None:
            self._hook = _native.make_post_local_sgd(self.subgroup, device, self.start_localSGD_iter,
                                                     self.post_local_gradient_allreduce, None)
            self._hook.iteration = self._first
        return self._hook

    @property
    def iter(self) -> int:
        """The number of iterations so far."""
        return self._first if self._hook is None else self._hook.iteration

    @iter.setter
    def iter(self, value: int) -> None:
        if self._hook is None:
            self._first = value
        else:
            self._hook.iteration = value

    def maybe_increase_iter(self, bucket: dist.GradBucket) -> None:
        """Counts an iteration at its last bucket, for hooks written in Python; :func:`post_localSGD_hook` counts by itself."""
        if bucket.is_last():
            self.iter += 1
        if self.iter == self.start_localSGD_iter:
            logger.info("local SGD starts now, after %s iterations", self.iter)


def _checked(state: Any) -> PostLocalSGDState:
    if not isinstance(state, PostLocalSGDState):
        raise _native.ConfigError("post_localSGD_hook needs a brigade.post_localSGD_hook.PostLocalSGDState, "
                                  f"got {type(state).__qualname__}")
    return state


@native_hook(NativeHook(lambda state, device: _checked(state).native(device), lambda state: _checked(state).process_group, _checked))
def post_localSGD_hook(state: PostLocalSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages the gradients in post-local SGD. One of :mod:`brigade.averagers`, or of torch's, must average the parameters after
    the optimizer's step, or replicas drift apart. :class:`brigade.LocalSGD` does both.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> model.register_comm_hook(PostLocalSGDState(None, dist.group.WORLD, start_localSGD_iter=1), post_localSGD_hook)
    >>> model(torch.ones(1, 4)).sum().backward()
    """
    return call(post_localSGD_hook, state, bucket)
