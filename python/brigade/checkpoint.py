"""Checkpoints that stay whole if a process is killed at any moment. The files, safetensors with checksums, contain no code.

A state is what torch's ``state_dict()`` gives: tensors, numbers, texts and None in dictionaries, lists and tuples, however deep.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from . import _native
from ._calling import group_or_default

__all__ = ["Checkpoint", "load_checkpoint", "load_safetensors", "save_checkpoint", "save_safetensors"]

# The name of the value that says how a part's tensors are nested.
_STRUCTURE = "structure"

_Parts = tuple[dict[str, torch.Tensor], dict[str, str]]


class Checkpoint(NamedTuple):
    """The result of :func:`load_checkpoint`."""

    step: int
    #: The states by name; for a part with a state for each rank, this rank's own, or, if the number of ranks has changed, a list.
    states: dict[str, Any]


def _flatten(state: Any, path: str, tensors: dict[str, torch.Tensor]) -> Any:
    """Gives a form of `state` that JSON can hold, with paths for tensors."""
    if isinstance(state, torch.Tensor):
        while not path or path in tensors:  # {"a.b": …, "a": {"b": …}}
            path += "'"
        tensors[path] = state
        return {"tensor": path}
    if isinstance(state, Mapping):
        pairs = []
        for key, value in state.items():
            if not isinstance(key, (str, int)):
                raise _native.ConfigError(f"'{path}': {key!r} is no key that a checkpoint can hold: texts and numbers are")
            pairs.append([key, _flatten(value, f"{path}.{key}" if path else str(key), tensors)])
        return {"dict": pairs}
    if isinstance(state, (list, tuple)):
        kind = "list" if isinstance(state, list) else "tuple"
        return {kind: [_flatten(value, f"{path}.{index}", tensors) for index, value in enumerate(state)]}
    if state is None or isinstance(state, (bool, int, float, str)):
        return state
    raise _native.ConfigError(f"'{path}' is a {type(state).__qualname__}, which a checkpoint can't hold: tensors, numbers, texts, "
                              "dictionaries, lists and tuples are what it can")


def _restore(shape: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(shape, dict):
        return shape
    (kind, content), = shape.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: _restore(value, tensors) for key, value in content}
    items = [_restore(value, tensors) for value in content]
    return items if kind == "list" else tuple(items)


def _to_parts(state: Any) -> _Parts:
    tensors: dict[str, torch.Tensor] = {}
    structure = json.dumps(_flatten(state, "", tensors))
    return tensors, {_STRUCTURE: structure}


def _from_parts(parts: _Parts) -> Any:
    tensors, values = parts
    if _STRUCTURE not in values:  # a C++ program saved it
        return {"tensors": tensors, "values": values}
    return _restore(json.loads(values[_STRUCTURE]), tensors)


def save_checkpoint(folder: str | os.PathLike[str], step: int, shared: Mapping[str, Any],
                    per_rank: Mapping[str, Any] | None = None, process_group: dist.ProcessGroup | None = None) -> None:
    """Replaces the checkpoint in `folder`, which all ranks must see. Collective.

    Args:
        folder: is made if it is missing.
        step: a number that :func:`load_checkpoint` gives back.
        shared: states by name that are equal on all ranks; rank 0's are stored.
        per_rank: states by name, of which each rank stores its own, such as ``brigade.state_dict(model)``.
        process_group: the ranks that save; None means the default group.

    After a kill at any moment, a full disk or an error the previous checkpoint is still whole. An error is raised on all ranks.

    >>> import tempfile
    >>> layer = torch.nn.Linear(2, 2)
    >>> adam = torch.optim.Adam(layer.parameters())
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_checkpoint(folder, 7, {"model": layer.state_dict(), "optimizer": adam.state_dict()})
    ...     found = load_checkpoint(folder, ["model", "optimizer"])
    >>> found.step, sorted(found.states["model"])
    (7, ['bias', 'weight'])
    >>> adam.load_state_dict(found.states["optimizer"])
    """
    parts = [(name, own, _to_parts(state)) for own, states in ((False, shared), (True, per_rank or {}))
             for name, state in states.items()]
    _native.save_checkpoint(os.fspath(folder), step, group_or_default(process_group), parts)


def load_checkpoint(folder: str | os.PathLike[str], shared: Iterable[str], per_rank: Iterable[str] = (),
                    process_group: dist.ProcessGroup | None = None) -> Checkpoint | None:
    """Returns the states of these names from the checkpoint in `folder`, or None when there is none. Collective.

    Raises CheckpointError on all ranks where anything is missing, truncated or corrupt on any.

    >>> load_checkpoint("/nonexistent", ["model"]) is None
    True
    """
    own = set(per_rank)
    wanted = [(name, False) for name in shared] + [(name, True) for name in sorted(own)]
    found = _native.load_checkpoint(os.fspath(folder), group_or_default(process_group), wanted)
    if found is None:
        return None
    step, loaded = found
    states: dict[str, Any] = {}
    for name, parts in loaded.items():
        every = [_from_parts(each) for each in parts]
        states[name] = every[0] if len(every) == 1 else every
    return Checkpoint(step, states)


def save_safetensors(path: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor],
                     metadata: Mapping[str, str] | None = None) -> None:
    """Writes a file of tensors, with checksums; at any time `path` is the whole old file or the whole new one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_safetensors(folder + "/one.safetensors", {"weight": torch.ones(2)}, {"epoch": "3"})
    ...     load_safetensors(folder + "/one.safetensors")
    ({'weight': tensor([1., 1.])}, {'epoch': '3'})
    """
    _native.save_safetensors(os.fspath(path), dict(tensors), dict(metadata or {}))


def load_safetensors(path: str | os.PathLike[str], *,
                     checksums_required: bool = False) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Returns the tensors and metadata of a file, written by any program; compares checksums if it has them."""
    return _native.load_safetensors(os.fspath(path), checksums_required)
