"""The hooks of torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks, in native code, and with any hook of this package.

torch's names begin with an underscore; here they exist without it too.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks import _OptimInBackwardHookState as _OptimInBackwardHookState

from . import _native, default_hooks
from ._calling import CommHook, NativeHook, call, group_or_default, native_hook

__all__ = ["OptimizerHookState", "apply_optim_in_backward_hook", "hook_then_optimizer"]


class OptimizerHookState:
    """An optimizer with ``step_param(parameter, gradient)`` (native, of :mod:`brigade.optim`, or any object that has it),
    and the parameters that it steps; None means all of them.

    >>> OptimizerHookState(object())
    Traceback (most recent call last):
    ...
    ValueError: <class 'object'> has no step_param(parameter, gradient): ...
    """

    def __init__(self, functional_optim: Any, params: Iterable[torch.Tensor] | None = None) -> None:
        self.functional_optimizer = functional_optim
        self.params_to_optimize: set[torch.Tensor] | None = None
        self._check_valid_functional_optim()
        self._set_params_to_optimize(params)

    def _check_valid_functional_optim(self) -> None:
        if not hasattr(self.functional_optimizer, "step_param"):
            raise ValueError(f"{type(self.functional_optimizer)} has no step_param(parameter, gradient): "
                             "brigade.optim has optimizers that do")

    def _set_params_to_optimize(self, params: Iterable[torch.Tensor] | None) -> None:
        if params is not None:
            self.params_to_optimize = set(params)


def hook_then_optimizer(hook: CommHook, optimizer_state: OptimizerHookState) -> CommHook:
    """A hook that reduces a bucket as `hook` does, then steps the optimizer for the bucket's parameters.

    >>> from brigade import default_hooks, optim
    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> both = hook_then_optimizer(default_hooks.fp16_compress_hook, OptimizerHookState(optim.SGD(lr=0.1)))
    >>> model.register_comm_hook(None, both)
    >>> model(torch.ones(1, 4)).sum().backward()
    """
    native: NativeHook | None = getattr(hook, "native", None)
    chosen = optimizer_state.params_to_optimize
    optimizer = optimizer_state.functional_optimizer

    def stepped(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if native is not None:
            return call(stepped, state, bucket)

        def step(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            reduced = future.value()
            with torch.no_grad():
                bucket.set_buffer(reduced)
                for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                    if chosen is None or parameter in chosen:
                        optimizer.step_param(parameter, gradient)
            return reduced

        return hook(state, bucket).then(step)

    stepped.__name__ = stepped.__qualname__ = "hook_then_optimizer_wrapper"
    if native is None:
        return stepped

    def make(state: Any, device: str) -> _native.Hook:
        return _native.stepping(native.make(state, device), optimizer, list(chosen or []), all=chosen is None)

    return native_hook(NativeHook(make, native.group_of, lambda state: optimizer_state))(stepped)


def apply_optim_in_backward_hook(gradient_is_bucket_view: bool) -> CommHook:
    """The hook that DDP registers when torch.distributed.optim._apply_optimizer_in_backward has given parameters optimizers.

    The hook's state is a weak reference to the DDP model. The optimizers are torch's, and step in Python; for native ones
    see :func:`brigade.optim.apply_optimizer_in_backward`.
    """
    queued = False

    def apply_optim_in_backward(ddp: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal queued
        model = ddp()

        def step(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            reduced = future.value()
            bucket.set_buffer(reduced)
            with torch.no_grad():
                for parameter, gradient in zip(bucket.parameters(), bucket.gradients()):
                    if not hasattr(parameter, "_in_backward_optimizers"):
                        continue
                    if not gradient_is_bucket_view:
                        parameter.grad = gradient
                    for optimizer in parameter._in_backward_optimizers:
                        optimizer.step()
            return reduced

        def drop() -> None:
            nonlocal queued
            queued = False
            for parameter in model._get_data_parallel_params(model.module):
                if hasattr(parameter, "_in_backward_optimizers"):
                    parameter.grad = None

        if not queued:
            queued = True
            engine = torch.autograd.Variable._execution_engine
            engine.queue_callback(lambda: engine.queue_callback(drop))
        return default_hooks.allreduce_hook(group_or_default(model.process_group), bucket).then(step)

    return apply_optim_in_backward


_OptimizerHookState = OptimizerHookState
_hook_then_optimizer: Callable[[CommHook, OptimizerHookState], CommHook] = hook_then_optimizer
_apply_optim_in_backward_hook: Callable[[bool], CommHook] = apply_optim_in_backward_hook
