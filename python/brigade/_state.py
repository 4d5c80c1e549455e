"""What a model's hook keeps from step to step, for checkpoints: whose it is, of which model, and in which buckets it came about."""

from __future__ import annotations

import io
import re
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._calling import Attachment, attachment_of, attachments, hooked, reduced_of
from ._names import plain

_Tensors = dict[str, torch.Tensor]
_Parts = tuple[_Tensors, dict[str, str]]

_FIELDS = ("tensors", "values", "rank", "ranks")
# Of one rank, by the contract of brigade::HookState.
_OWN = ("error.", "own.")
_SAVE_ALL = ("every rank saves its own, as per_rank= of brigade.save_checkpoint does, or brigade.HookPerRank for "
             "torch.distributed.checkpoint")


class Place(NamedTuple):
    """Which rank of how many."""

    rank: int
    ranks: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.ranks}"


def place_in(group: dist.ProcessGroup | None) -> Place:
    if group is None:
        group = dist.group.WORLD if dist.is_initialized() else None
    return Place(0, 1) if group is None else Place(group.rank(), group.size())


# ---- whose state it is

def _checked(state: Any) -> Mapping[str, Any]:
    if not isinstance(state, Mapping):
        raise _native.ConfigError(f"not a hook's state: expected what brigade.state_dict gave, or a list of what it gave on all "
                                  f"ranks, got {type(state).__qualname__}")
    missing = [field for field in _FIELDS if field not in state]
    if missing:
        raise _native.ConfigError(f"not a hook's state: it lacks {', '.join(missing)}")
    return state


def _keeps_own(state: Mapping[str, Any]) -> bool:
    return any(key.startswith(_OWN) for part in (state["tensors"], state["values"]) for key in part)


def foreign(state: Mapping[str, Any], here: Place) -> str:
    """Why this rank can't go on from one rank's state; empty: it can."""
    saved = Place(int(state["rank"]), int(state["ranks"]))
    if saved == here or not _keeps_own(state):
        return ""
    told = f"this is the hook's state of {saved}, loaded on {here}, and what error feedback keeps differs from rank to rank: "
    if saved.ranks == here.ranks:
        return told + _SAVE_ALL
    return told + f"for another number of ranks give a list of all {saved.ranks} states, as brigade.load_checkpoint does"


def _combined(states: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """One state for another number of ranks, of all ranks' states in their order."""
    for state in states[1:]:
        if state.get("hook") != states[0].get("hook"):
            raise _native.ConfigError(f"these are states of different hooks: '{states[0].get('hook')}' and '{state.get('hook')}'")
    tensors, values = _native.combine_states([(dict(state["tensors"]), dict(state["values"])) for state in states])
    return {**states[0], "tensors": tensors, "values": values}


def _of(given: Any, here: Place) -> Mapping[str, Any]:
    """The state that the rank goes on from: its own, or for another number of ranks that which all saved ones make together."""
    if isinstance(given, (list, tuple)) and len(given) != 1:
        states = sorted((_checked(state) for state in given), key=lambda state: int(state["rank"]))
        saved = [Place(int(state["rank"]), int(state["ranks"])) for state in states]
        if not saved or saved != [Place(rank, saved[0].ranks) for rank in range(saved[0].ranks)]:
            raise _native.ConfigError(f"expected the states of all ranks, each once, got {', '.join(map(str, saved)) or 'none'}")
        return states[here.rank] if len(states) == here.ranks else _combined(states)
    state = _checked(given[0] if isinstance(given, (list, tuple)) else given)
    told = foreign(state, here)
    if told:
        raise _native.ConfigError(told)
    return state


# ---- of which model it is

# "error.part1/part0/NAME", "part1/q.NAME".
_ERROR = re.compile(r"(error\.(?:part\d+/)*)(.+)")
_FACTOR = re.compile(r"((?:part\d+/)*)(q\.|spare\.|p\.|spare_p\.)(.+)")

# The names of hooks of the caller's own, which may keep what they like.
_registered: set[str] = set()


def note_registered(name: str) -> None:
    _registered.add(name)


def _rows_and_columns(parameter: torch.Tensor) -> tuple[int, int]:
    rows = parameter.shape[0] if parameter.dim() > 1 else 1
    return rows, parameter.numel() // max(rows, 1)


def _expected(kind: str, kept: torch.Tensor, parameter: torch.Tensor) -> bool:
    """Whether a tensor of that kind may be kept of the parameter."""
    rows, columns = _rows_and_columns(parameter)
    if kind == "error.":
        values = parameter.numel() * (2 if parameter.is_complex() else 1)
        return kept.numel() == values and (kept.dim() != 2 or tuple(kept.shape) == (rows, columns))
    # A bucket's, in batched_powersgd, is of three dimensions.
    return kept.dim() != 2 or kept.shape[0] == (rows if kind in ("p.", "spare_p.") else columns)


def _fitted(tensors: Mapping[str, torch.Tensor], parameters: Mapping[str, torch.Tensor]) -> _Tensors:
    """The tensors under the parameters' names here. Raises ConfigError for those that fit none."""
    fitted = {}
    for key, kept in tensors.items():
        found = _ERROR.fullmatch(key)
        before, kind, name = (found[1], "error.", found[2]) if found else ("", "", "")
        if not found and (found := _FACTOR.fullmatch(key)):
            before, kind, name = found[1] + found[2], found[2], found[3]
        if not found:
            fitted[key] = kept
            continue
        name = name if name in parameters else plain(name)
        if name not in parameters:
            raise _native.ConfigError(f"the state has '{key}', but the model has no parameter of that name: it was saved of "
                                      "another model; leave the hook's state out, and the hook begins anew")
        parameter = parameters[name]
        if not _expected(kind, kept, parameter):
            raise _native.ConfigError(f"the state's '{key}' has the shape {tuple(kept.shape)}, which does not fit the parameter "
                                      f"'{name}' of shape {tuple(parameter.shape)}: it was saved of another model; leave the "
                                      "hook's state out, and the hook begins anew")
        fitted[before + name] = kept
    return fitted


def _fit(model: DistributedDataParallel, hook: _native.Hook, tensors: Mapping[str, torch.Tensor]) -> _Tensors:
    if _registered & set(re.findall(r"\w+", hook.fingerprint)):
        return dict(tensors)
    return _fitted(tensors, dict(reduced_of(model)))


# ---- in which buckets it came about

def buckets_of(model: DistributedDataParallel) -> dict[str, Any]:
    """How the model's gradients lie in buckets. What most hooks compute depends on it, so a resumed run must begin with the same."""
    names = {id(parameter): name for name, parameter in reduced_of(model)}
    layout, final, arrived = _native.bucket_layout(model.reducer)
    return {"layout": [[names[id(parameter)] for parameter in bucket] for bucket in layout], "final": final,
            "arrived": [names[id(parameter)] for parameter in arrived]}


def _put_buckets(model: DistributedDataParallel, found: Attachment, buckets: Mapping[str, Any]) -> None:
    if model.static_graph:
        return  # its first pass must have one bucket: the Reducer takes each for the first then
    parameters = dict(reduced_of(model))

    def here(names: Iterable[str]) -> list[str]:
        return [name if name in parameters else plain(name) for name in names]

    def tensors(names: Iterable[str]) -> list[torch.Tensor]:
        return [parameters[name] for name in here(names)]

    saved = {name for bucket in buckets["layout"] for name in here(bucket)}
    reduced = {name for bucket in buckets_of(model)["layout"] for name in bucket}
    for name in sorted(saved ^ reduced):
        raise _native.ConfigError(f"the state was saved of another model: the parameter '{name}' is trained "
                                  f"{'there, but not here' if name in saved else 'here, but not there'}; leave the hook's state "
                                  "out, and the hook begins anew")
    if _native.awaits_backward(model.reducer):
        raise _native.ConfigError("load_state_dict: a forward pass of this model still waits for its backward pass; load before it, "
                                  "or run what has none under torch.no_grad()")
    _native.set_bucket_layout(model.reducer, [tensors(bucket) for bucket in buckets["layout"]], buckets["final"],
                              tensors(buckets["arrived"]))
    found.slot.forget_buckets()


# ---- what users call

# Loaded into hooks that no model had yet: tensors, of which the values do not matter, and buckets.
_waiting: weakref.WeakKeyDictionary[_native.Hook, tuple[_Tensors, Mapping[str, Any] | None]] = weakref.WeakKeyDictionary()


def hook_of(owner: DistributedDataParallel | _native.Hook) -> _native.Hook:
    if isinstance(owner, _native.Hook):
        return owner
    hook = hooked(owner).hook
    if not isinstance(hook, _native.Hook):
        raise _native.ConfigError("the model's hook is a Python function: its state is its own")
    return hook


def _model_of(owner: DistributedDataParallel | _native.Hook) -> DistributedDataParallel | None:
    if isinstance(owner, DistributedDataParallel):
        return owner
    return next((model for model, found in attachments() if found.hook is owner), None)


def _place_of(model: DistributedDataParallel | None) -> Place:
    found = None if model is None else attachment_of(model)
    if model is None or found is None:
        return place_in(None)
    return place_in((found.group() if found.group is not None else None) or model.process_group)


def state_dict(owner: DistributedDataParallel | _native.Hook) -> dict[str, Any]:
    """What a hook keeps from step to step, for a checkpoint; of a model, its hook's. Copies; between iterations only.

    ``tensors`` whose name begins with "error." differ from rank to rank: every rank saves its own. ``rank`` and ``ranks`` say
    whose they are, and ``buckets`` how the model's gradients lie in them.

    >>> import brigade
    >>> model = DistributedDataParallel(torch.nn.Linear(64, 64))
    >>> brigade.set_hook(model, "powersgd:start=0")
    >>> model(torch.ones(1, 64)).sum().backward()
    >>> sorted(state_dict(model)["tensors"])
    ['error.weight', 'q.weight', 'spare.weight']
    """
    hook = hook_of(owner)
    model = _model_of(owner)
    here = _place_of(model)
    tensors, values = hook.state()
    state: dict[str, Any] = {"hook": hook.name, "rank": here.rank, "ranks": here.ranks, "tensors": tensors, "values": values}
    if model is not None and not model.static_graph:
        state["buckets"] = buckets_of(model)
    return state


def load_state_dict(owner: DistributedDataParallel | _native.Hook,
                    state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """What :func:`state_dict` gave on this rank, into a hook of the same kind and options; training goes on bit for bit, in the
    buckets of then (with ``static_graph=True`` in those of a new model, where most hooks' last bits differ). Or a list of what it gave on all ranks: at another number of ranks the errors' mean is loaded, which is what
    error feedback needs.

    Raises ConfigError for the state of another rank, and for tensors that fit no parameter of the model.

    >>> import brigade
    >>> hook = brigade.make_hook("powersgd:rank=2")
    >>> load_state_dict(hook, state_dict(hook))
    """
    hook = hook_of(owner)
    model = _model_of(owner)
    own = _of(state, _place_of(model))
    kind = own.get("hook", hook.name)
    if kind != hook.name:
        raise _native.ConfigError(f"this is the state of a hook '{kind}', but the hook here is '{hook.name}': set a hook of "
                                  "that kind first")
    tensors, buckets = dict(own["tensors"]), own.get("buckets")
    if model is None:
        _waiting[hook] = ({key: tensor.to("meta") for key, tensor in tensors.items()}, buckets)
    else:
        tensors = _fit(model, hook, tensors)
        found = attachment_of(model)
        if buckets is not None and found is not None:
            _put_buckets(model, found, buckets)
    hook.load_state(tensors, dict(own["values"]))


def came_to(model: DistributedDataParallel, hook: _native.Hook) -> None:
    """The model has this hook now, which may have been given a state before."""
    waiting = _waiting.get(hook)
    found = attachment_of(model)
    if waiting is None or found is None:
        return
    tensors, buckets = waiting
    renamed = _fit(model, hook, tensors)
    if list(renamed) != list(tensors):
        kept, values = hook.state()
        hook.load_state(_fit(model, hook, kept), values)
    if buckets is not None:
        _put_buckets(model, found, buckets)
    del _waiting[hook]


class HookPerRank:
    """A model's hook in a checkpoint of ``torch.distributed.checkpoint``, which keeps one rank's entry of every name: this has a
    name for each rank.

    Args:
        model: one that has a hook of brigade's, or a :class:`brigade.Hook`.
        saved_ranks: to load what another number of ranks has saved: that number.

    >>> import brigade, tempfile
    >>> import torch.distributed.checkpoint as dcp
    >>> model = DistributedDataParallel(torch.nn.Linear(4, 4))
    >>> brigade.set_hook(model, "int8")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = dcp.save({"hook": HookPerRank(model)}, checkpoint_id=folder)
    ...     dcp.load({"hook": HookPerRank(model)}, checkpoint_id=folder)
    """

    def __init__(self, model: DistributedDataParallel | _native.Hook, *, saved_ranks: int | None = None) -> None:
        self.model = model
        self.saved_ranks = saved_ranks

    def state_dict(self) -> dict[str, Any]:
        here = _place_of(_model_of(self.model))
        if self.saved_ranks is not None and self.saved_ranks != here.ranks:
            return {f"rank{rank}": b"" for rank in range(self.saved_ranks)}  # to be filled
        packed = io.BytesIO()
        torch.save(state_dict(self.model), packed)
        return {f"rank{here.rank}": packed.getvalue()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_state_dict(self.model, [torch.load(io.BytesIO(packed), map_location=self._location, weights_only=True)
                                     for packed in state.values()])

    def _location(self, storage: Any, saved: str) -> Any:
        """What was on one of the devices there belongs on the model's here."""
        model = _model_of(self.model)
        device = model.device if model is not None else torch.device(saved)
        return storage if saved == "cpu" or device.type == "cpu" else storage.cuda(device.index)
