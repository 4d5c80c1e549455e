"""The hooks of torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook, in native code, and with any number of buckets on Gloo."""

import logging
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState as _TorchState

from . import _native
from ._calling import NativeHook, call, check_group, native_hook
from ._state import foreign, place_in

__all__ = ["PowerSGDState", "batched_powerSGD_hook", "powerSGD_hook"]

logger = logging.getLogger("torch.distributed." + __name__)  # where torch's logger is
# Torch's own sentences, unchanged, so that a search for them finds these.
_SAVED = "NOTE: Process group is not serializable and excluded from a saved state."
_LOADED = ("NOTE: Process group will be set to a default group (i.e. the world size)." + 16 * " "
           + "If a different group is desired, please set `self.process_group` after PowerSGD state is loaded.")

_OPTIONS = ("matrix_approximation_rank", "start_powerSGD_iter", "min_compression_rate", "use_error_feedback",
            "warm_start", "orthogonalization_epsilon", "random_seed", "compression_stats_logging_frequency",
            "batch_tensors_with_same_shape")
_WHOLE = ("matrix_approximation_rank", "start_powerSGD_iter", "random_seed")


def _check_whole(name: str, value: Any) -> None:
    if name in _WHOLE and (not isinstance(value, int) or value < 0):
        raise _native.ConfigError(f"{name} is {value!r}, but must be a whole number from 0 on")


class PowerSGDState(_TorchState):
    """Options and memory of PowerSGD, for one model. The options are torch's, with its defaults; they may be set until the hook
    is used for the first time.

    Errors and low-rank factors are kept by parameter, not by bucket: so compression may start at any iteration, 0
    included. Pickles all but the process group; what comes back uses the default group, unless ``process_group`` is set
    before the first bucket. What is left out of a step is each rank's own: where all ranks unpickle what one has saved, the others
    begin without, and warn. A state of torch's too, for those who ask for one.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> state = PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=1)
    >>> model.register_comm_hook(state, powerSGD_hook)
    >>> for _ in range(3):
    ...     model(torch.ones(1, 64)).sum().backward()
    >>> state.iter
    3
    >>> rate, before, after = state.compression_stats()
    >>> before > after
    True
    """

    def __init__(self, process_group: dist.ProcessGroup | None, matrix_approximation_rank: int = 1,
                 start_powerSGD_iter: int = 1_000, min_compression_rate: float = 2, use_error_feedback: bool = True,
                 warm_start: bool = True, orthogonalization_epsilon: float = 0, random_seed: int = 0,
                 compression_stats_logging_frequency: int = 10_000,
                 batch_tensors_with_same_shape: bool = False) -> None:
        self.process_group = check_group(process_group)
        for name, value in zip(_WHOLE, (matrix_approximation_rank, start_powerSGD_iter, random_seed)):
            _check_whole(name, value)
        self._options: dict[str, Any] = {
            "matrix_approximation_rank": matrix_approximation_rank,
            "start_powerSGD_iter": start_powerSGD_iter,
            "min_compression_rate": min_compression_rate,
            "use_error_feedback": use_error_feedback,
            "warm_start": warm_start,
            "orthogonalization_epsilon": orthogonalization_epsilon,
            "random_seed": random_seed,
            "compression_stats_logging_frequency": max(1, compression_stats_logging_frequency),
            "batch_tensors_with_same_shape": batch_tensors_with_same_shape,
        }
        self._hook: _native.PowerSGDHook | None = None
        self._batched = False
        self._rng: Any = None
        # What was loaded before it is known which of the two hooks it is for.
        self._loaded: dict[str, Any] | None = None
        _native.make_power_sgd(batched=False, **self._options)  # refuses bad options here, not in backward()

    def __getattr__(self, name: str) -> Any:
        if name in _OPTIONS and "_options" in self.__dict__:
            return self._options[name]
        raise AttributeError(f"'{type(self).__name__}' has no attribute '{name}'")

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _OPTIONS:
            return super().__setattr__(name, value)
        if self._hook is not None:
            raise AttributeError(f"{name} is fixed once the hook has been used; make another PowerSGDState, with its state_dict()")
        _check_whole(name, value)
        changed = {**self._options, name: value}
        _native.make_power_sgd(batched=False, **changed)  # throws if it refuses the change
        self._options[name] = value

    def native(self, batched: bool) -> _native.PowerSGDHook:
        """The native hook with this state's options and memory."""
        if self._hook is None:
            self._hook, self._batched = _native.make_power_sgd(batched=batched, **self._options), batched
            if self._loaded is not None:
                self._hook.load_state(*self._own(self._loaded))
                self._loaded = None
        elif self._batched != batched:
            raise _native.ConfigError("this PowerSGDState serves the other of powerSGD_hook and batched_powerSGD_hook: "
                                      "make one for each")
        return self._hook

    def _parts(self) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        if self._hook is not None:
            return self._hook.state()
        return (self._loaded["tensors"], self._loaded["values"]) if self._loaded is not None else ({}, {})

    def _own(self, loaded: dict[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
        """What was loaded, without the errors of another rank."""
        told = foreign(loaded, place_in(self.process_group))
        if not told:
            return loaded["tensors"], loaded["values"]
        warnings.warn(told + "; this rank begins without", stacklevel=2)
        return {name: tensor for name, tensor in loaded["tensors"].items() if not name.startswith("error.")}, loaded["values"]

    def state_dict(self) -> dict[str, Any]:
        """The state from step to step: "error." tensors are this rank's own, all else is equal on all ranks."""
        tensors, values = self._parts()
        if self._loaded is not None:
            return dict(self._loaded)
        here = place_in(self.process_group)
        return {"rank": here.rank, "ranks": here.ranks, "tensors": tensors, "values": values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """What :meth:`state_dict` gave on this rank."""
        told = foreign(state, place_in(self.process_group))
        if told:
            raise _native.ConfigError(told)
        if self._hook is not None:
            self._hook.load_state(state["tensors"], state["values"])
        else:
            self._loaded = dict(state)

    def _memory(self, kind: str) -> dict[str, torch.Tensor]:
        tensors, _ = self._parts()
        return {name[len(kind):]: tensor for name, tensor in tensors.items() if name.startswith(kind)}

    @property
    def iter(self) -> int:  # type: ignore[override]
        """The number of iterations so far."""
        return int(self._parts()[1].get("iteration", 0))

    @property
    def error_dict(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """Copies of the last step's errors, by parameter."""
        return self._memory("error.")

    @property
    def q_memory_dict(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """Copies of the factors that the next step starts from, by parameter."""
        return self._memory("q.")

    @property
    def p_memory_dict(self) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """Empty, because the other factor lives only during a step."""
        return {}

    @property
    def rng(self) -> Any:  # type: ignore[override]
        """A numpy generator, seeded as torch's. Brigade draws its first factors with its own generator."""
        if self._rng is None:
            import numpy

            self._rng = numpy.random.RandomState(self.random_seed)
        return self._rng

    @property
    def next_stats_report(self) -> int:  # type: ignore[override]
        """The iteration at which compression is logged next."""
        return int(self._parts()[1].get("next_report", 0))

    def maybe_increase_iter(self, bucket: dist.GradBucket) -> None:
        """Does nothing, because the hook counts iterations itself."""

    @property
    def total_numel_before_compression(self) -> int:  # type: ignore[override]
        return int(self._parts()[1].get("elements_before", 0))

    @property
    def total_numel_after_compression(self) -> int:  # type: ignore[override]
        return int(self._parts()[1].get("elements_after", 0))

    def compression_stats(self) -> tuple[float, int, int]:
        """(rate, elements before, elements after) of all that was compressed; the rate is 0 if nothing was yet."""
        before, after = self.total_numel_before_compression, self.total_numel_after_compression
        return (before / after if after > 0 else 0, before, after)

    def __getstate__(self) -> dict[str, Any]:
        logger.warning(_SAVED)
        return {"options": dict(self._options), "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        logger.warning(_LOADED)
        self.__init__(None, **state["options"])  # type: ignore[misc]
        self._loaded = state["state"]  # whose it is can be told when the group is known


def _checked(state: Any) -> PowerSGDState:
    if not isinstance(state, PowerSGDState):
        raise _native.ConfigError(f"PowerSGD's hooks need a brigade.powerSGD_hook.PowerSGDState, got {type(state).__qualname__}: "
                                  "PowerSGDState(None) is one with all defaults")
    return state


def _native_power_sgd(batched: bool) -> NativeHook:
    return NativeHook(lambda state, device: _checked(state).native(batched), lambda state: _checked(state).process_group, _checked)


@native_hook(_native_power_sgd(batched=False))
def powerSGD_hook(state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sends each matrix of a bucket as a product of two thin ones; vectors and small matrices as they are.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=0), powerSGD_hook)
    >>> model(torch.ones(1, 64)).sum().backward()
    """
    return call(powerSGD_hook, state, bucket)


@native_hook(_native_power_sgd(batched=True))
def batched_powerSGD_hook(state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Sends a whole bucket, as one nearly square matrix, as a product of two thin ones: fewest bytes, and coarsest.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> model.register_comm_hook(PowerSGDState(None, start_powerSGD_iter=0), batched_powerSGD_hook)
    >>> model(torch.ones(1, 64)).sum().backward()
    """
    return call(batched_powerSGD_hook, state, bucket)
