"""torch's ZeroRedundancyOptimizer, with native steps in the backward pass."""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer as _TorchZero

from . import _native
from ._calling import group_or_default
from .optim import spec_of

__all__ = ["ZeroRedundancyOptimizer", "native_zero"]

# These options of torch's say how to compute, not what.
_WAYS = ("foreach", "fused", "capturable", "differentiable")
_CLASSES = {each.__name__.lower(): each for each in (
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adadelta,
    torch.optim.Adamax, torch.optim.Rprop)}
# Steps in the backward pass use these, which are fixed except for the learning rate.
_FIXED = {name for each in _CLASSES.values() for name in inspect.signature(each).parameters} - {"params", "lr", *_WAYS}


def _torchs(thing: Any) -> Any:
    """Hides a thing of torch's that its stubs lack from the type checker."""
    return thing


def _torch_class(kind: Any) -> Any:
    """The class of torch.optim that a name or a function of :mod:`brigade.optim` stands for; a class stands for itself."""
    if isinstance(kind, type):
        if issubclass(kind, torch.optim.LBFGS):
            raise _native.ConfigError("ZeroRedundancyOptimizer: lbfgs looks at all parameters at once; use one that steps each by "
                                      "itself, such as Adam")
        return kind
    name = kind if isinstance(kind, str) else str(getattr(kind, "__name__", kind))
    if name.lower() not in _CLASSES:
        raise _native.ConfigError(f"ZeroRedundancyOptimizer: no optimizer named '{name}'; known: {', '.join(_CLASSES)}")
    return _CLASSES[name.lower()]


def _without_names(params: Any) -> Any:
    """Turns (name, tensor) pairs into tensors, in groups too; leaves anything else as it is."""
    if isinstance(params, (torch.Tensor, str)) or not isinstance(params, Iterable):
        return params

    def plain(each: Any) -> Any:
        if isinstance(each, tuple) and len(each) == 2 and isinstance(each[1], torch.Tensor):
            return each[1]
        if isinstance(each, Mapping) and "params" in each:
            return {**each, "params": _without_names(each["params"])}
        return each

    return [plain(each) for each in params]


class _RatedGroup(dict[str, Any]):
    """A parameter group: a learning rate that is set here reaches the native optimizer at once, other options do not."""

    native: _native.ZeroRedundancyOptimizer
    place: int

    def __setitem__(self, key: str, value: Any) -> None:
        if key in _FIXED and value != self.get(key):
            raise _native.ConfigError(f"ZeroRedundancyOptimizer: {key} can't be changed with overlap_with_ddp, where lr alone can: a "
                                      "scheduler that cycles the momentum takes cycle_momentum=False")
        super().__setitem__(key, value)
        if key == "lr":
            self.native.set_lr(self.place, float(value))


# A parameter with this many elements is worth its own message.
_LARGE = 1 << 16


def _by_size(params: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The parameters that are packed together, on one device, and those that are sent as they are."""
    small = [each for each in params if each.numel() < _LARGE and each.device == params[0].device and each.is_contiguous()]
    if len(small) < 2:
        small = []
    chosen = set(map(id, small))
    return small, [each for each in params if id(each) not in chosen]


def _described(zero: _TorchZero, place: int, kind: Any) -> tuple[list[tuple[str, torch.Tensor]], str]:
    """A group in native code's form: parameters by their number among all, and the optimizer with its options."""
    before = sum(len(group["params"]) for group in zero.param_groups[:place])
    group = zero.param_groups[place]
    # Only options that were given: native code has torch's defaults, and not all of torch's names.
    usual = inspect.signature(kind).parameters
    options = {key: value for key, value in group.items()
               if key in zero.defaults or (key in usual and key != "params" and value != usual[key].default)}
    for way in _WAYS:
        options.pop(way, None)
    return [(str(before + number), each) for number, each in enumerate(group["params"])], spec_of(kind, options)


def _rate_by(zero: _TorchZero, place: int, native: _native.ZeroRedundancyOptimizer) -> None:
    rated = _RatedGroup(zero.param_groups[place])
    rated.native, rated.place = native, place
    zero.param_groups[place] = rated


def native_zero(zero: _TorchZero, kind: Any, views: bool = False) -> _native.ZeroRedundancyOptimizer:
    """Collective: makes a native optimizer for the groups of one of torch's, which then sets its learning rates."""
    places = range(len(zero.param_groups))
    device = str(zero.param_groups[0]["params"][0].device)
    native = _native.ZeroRedundancyOptimizer(zero.process_group, device, [_described(zero, each, kind) for each in places], views)
    for place in places:
        _rate_by(zero, place, native)
    return native


# Native state is (tensors, values). A tensor has the key "group.0/3.exp_avg", where 3 is the parameter's number among all.

def _torch_form(zero: _TorchZero, kind: Any, tensors: dict[str, torch.Tensor], values: dict[str, str]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {}
    for key, tensor in tensors.items():
        number, _, slot = key.partition("/")[2].partition(".")
        state.setdefault(int(number), {})[slot] = tensor
    for key, value in values.items():
        number, _, slot = key.partition("/")[2].partition(".")
        if slot == "step" and kind is not torch.optim.SGD:  # torch's SGD counts no steps
            state.setdefault(int(number), {})[slot] = torch.tensor(float(value))
    numbers = itertools.count()
    groups = [{**copy.deepcopy({key: value for key, value in group.items() if key != "params"}),
               "params": [next(numbers) for _ in group["params"]]} for group in zero.param_groups]
    return {"state": state, "param_groups": groups}


def _native_form(kind: Any, state_dict: Mapping[str, Any]) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    tensors: dict[str, torch.Tensor] = {}
    values: dict[str, str] = {}
    numbers = itertools.count()
    for place, group in enumerate(state_dict["param_groups"]):
        prefix = f"group.{place}/"
        known = {key: value for key, value in group.items() if key in _FIXED or key == "lr"}
        name, _, options = spec_of(kind, known).partition(":")
        values[prefix + "optimizer"] = name
        for option in options.split(","):
            key, _, value = option.partition("=")
            values[f"{prefix}options.{key}"] = value
        here = [(next(numbers), state_dict["state"].get(each)) for each in group["params"]]
        values[prefix + "parameters"] = "\n".join(str(number) for number, _ in here)
        for number, kept in here:
            if not kept:
                continue  # it has never stepped
            values[f"{prefix}{number}.step"] = str(int(kept.get("step", 1)))
            for slot, value in kept.items():
                if slot != "step" and value is not None:
                    tensors[f"{prefix}{number}.{slot}"] = value
    return tensors, values


class ZeroRedundancyOptimizer(_TorchZero):
    """A complete torch.distributed.optim.ZeroRedundancyOptimizer: each rank keeps the optimizer's state of its share of the
    parameters, steps that share, and sends the new values to the others.

    With ``overlap_with_ddp`` the hooks of :mod:`brigade.ddp_zero_hook` take native steps in the backward pass: on Gloo too, from
    the first iteration on, and with any number of parameter groups.

    Args:
        params: tensors, (name, tensor) pairs as ``named_parameters()`` gives them, or dictionaries of "params" and options.
        optimizer_class: an optimizer class, or the name of one of torch.optim ("adam").
        process_group: the group; None means the default one.
        parameters_as_bucket_view: makes parameters views into the memory that is sent, which saves copies.
        overlap_with_ddp: steps in the backward pass. Give this object to :mod:`brigade.ddp_zero_hook`; ``step()`` then does nothing.
        defaults: the optimizer's options, as torch names them. Adam and AdamW are ``fused`` unless you say how they compute.

    >>> from torch.nn.parallel import DistributedDataParallel
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    >>> schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    >>> model(torch.ones(1, 4)).sum().backward()
    >>> optimizer.step()
    """

    def __init__(self, params: Any, optimizer_class: Any, process_group: dist.ProcessGroup | None = None,
                 parameters_as_bucket_view: bool = False, overlap_with_ddp: bool = False, **defaults: Any) -> None:
        chosen = _torch_class(optimizer_class)
        if chosen in (torch.optim.Adam, torch.optim.AdamW) and not any(way in defaults for way in _WAYS):
            defaults["fused"] = True  # torch's own kernel, which makes one pass over memory
        self.overlap_with_ddp = overlap_with_ddp
        self._kind = chosen
        self._whole: dict[str, Any] | None = None
        super().__init__(_without_names(params), chosen, group_or_default(process_group),
                         parameters_as_bucket_view and not overlap_with_ddp, False, **defaults)
        self.native: _native.ZeroRedundancyOptimizer | None = None
        if overlap_with_ddp:
            self.native = native_zero(self, chosen, parameters_as_bucket_view)

    def _verify_same_dense_param_type(self) -> None:
        if not self.overlap_with_ddp:  # native code takes pairs as they are
            _torchs(super())._verify_same_dense_param_type()

    @property
    def parameters(self) -> list[torch.Tensor]:
        return [each for group in self.param_groups for each in group["params"]]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Collective with `overlap_with_ddp`. Earlier parameters stay with their owners."""
        super().add_param_group(_without_names([param_group])[0])
        native = getattr(self, "native", None)
        if native is not None:
            place = len(self.param_groups) - 1
            native.add_group(*_described(self, place, self._kind))
            _rate_by(self, place, native)

    def step(self, closure: Any = None, **kwargs: Any) -> Any:
        """Collective: steps this rank's share, then gives it to all ranks. With `overlap_with_ddp` it does nothing."""
        if self.native is None:
            return super().step(closure, **kwargs)
        if closure is None:
            return None
        with torch.enable_grad():
            return closure()

    def _sync_params(self) -> None:
        """Does what torch's does, but sends the small parameters of a rank in one message."""
        if self.parameters_as_bucket_view:
            _torchs(super())._sync_params()
            return
        messages, packed = [], []
        for rank, groups in enumerate(_torchs(self)._partition_parameters()):
            small, whole = _by_size([each.data for group in groups for each in group["params"]])
            if small:
                flat = torch.cat([each.flatten() for each in small])
                packed.append((flat, small))
                whole.append(flat)
            source = dist.get_global_rank(self.process_group, rank)
            messages += [dist.broadcast(each, source, group=self.process_group, async_op=True) for each in whole]
        for message in messages:
            message.wait()
        for flat, small in packed:
            parts = _torchs(flat).split([each.numel() for each in small])
            torch._foreach_copy_(small, [part.view_as(each) for part, each in zip(parts, small)])

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collective: brings all ranks' state to rank `to`, where :meth:`state_dict` then returns it."""
        if self.native is None:
            return super().consolidate_state_dict(to)
        tensors, values = self.native.consolidate(to)
        self._whole = _torch_form(self, self._kind, tensors, values) if self.rank == to else None

    def state_dict(self) -> dict[str, Any]:
        """The state that :meth:`consolidate_state_dict` brought to this rank, in torch's form: optimizers without ZeRO load it too."""
        if self.native is not None and self._whole is not None:
            return self._whole
        if self.native is not None or not _torchs(self)._all_state_dicts:
            raise _native.Error("Optimizer state has not been consolidated on this rank: all ranks call "
                                f"consolidate_state_dict(to={self.rank}) first")
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a consolidated state, of any number of ranks, or one of an optimizer without ZeRO; pass the same on all ranks."""
        if self.native is None:
            super().load_state_dict(copy.deepcopy(state_dict))  # torch's method shares its tensors, and empties the dictionary
            return
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise _native.ConfigError(f"ZeroRedundancyOptimizer: the state has {len(groups)} groups of parameters, but there are "
                                      f"{len(self.param_groups)} here")
        self.native.load_whole(*_native_form(self._kind, state_dict))
        for mine, saved in zip(self.param_groups, groups):  # native code has loaded them already
            dict.update(mine, {key: copy.deepcopy(value) for key, value in saved.items() if key != "params"})

    def set_lr(self, lr: float) -> None:
        for group in self.param_groups:
            group["lr"] = lr

    @property
    def state_bytes(self) -> int:
        """The size of the state that this rank keeps, without counters."""
        if self.native is not None:
            return self.native.state_bytes
        return sum(each.nbytes for state in self.optim.state.values() for each in state.values()
                   if isinstance(each, torch.Tensor) and each.dim() > 0)
