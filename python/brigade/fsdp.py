"""Compresses gradients for FSDP2: gives torch's ``fully_shard`` a reduce-scatter, and HSDP an all-reduce, that send fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_common import DDPMeshInfo

from . import _native
from ._setting import hook_table

__all__ = ["CompressedReduceScatter", "set_reduce_scatter"]


class _Half:
    """Sends two bytes for each value."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.to(self.dtype).view(torch.uint8)

    def decode(self, message: torch.Tensor, length: int) -> torch.Tensor:
        return message.view(self.dtype).float()


class _Blocks:
    """Sends a byte for each value, and a range for each block of values: a scale, or the lowest value and a scale."""

    def __init__(self, block: int | None, affine: bool) -> None:
        self.block, self.affine = block, affine

    def _blocks(self, rows: torch.Tensor) -> torch.Tensor:
        block = self.block or max(rows.size(1), 1)
        rows = torch.nn.functional.pad(rows, (0, -rows.size(1) % block))
        return rows.view(rows.size(0), -1, block)

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        blocks = self._blocks(rows)
        if self.affine:
            low, high = blocks.amin(2, keepdim=True), blocks.amax(2, keepdim=True)
            scale = ((high - low) / 255).clamp_min(torch.finfo(torch.float32).tiny)
            codes = ((blocks - low) / scale).round_().clamp_(0, 255).to(torch.uint8)
            header = torch.cat([low, scale], 2)
        else:
            scale = (blocks.abs().amax(2, keepdim=True) / 127).clamp_min(torch.finfo(torch.float32).tiny)
            codes = (blocks / scale).round_().clamp_(-127, 127).to(torch.int8).view(torch.uint8)
            header = scale
        header = header.reshape(rows.size(0), -1).contiguous().view(torch.uint8)
        return torch.cat([header, codes.flatten(1)], 1)

    def decode(self, message: torch.Tensor, length: int) -> torch.Tensor:
        block = self.block or max(length, 1)
        count = -(-length // block)
        fields = 2 if self.affine else 1
        header = message[:, :4 * fields * count].contiguous().view(torch.float32).view(-1, count, fields)
        codes = message[:, 4 * fields * count:].contiguous()
        if self.affine:
            values = codes.float().view(-1, count, block) * header[:, :, 1:] + header[:, :, :1]
        else:
            values = codes.view(torch.int8).float().view(-1, count, block) * header
        return values.flatten(1)[:, :length]


# The codecs by the names of hooks.
_CODECS: dict[str, _Half | _Blocks] = {
    "fp16": _Half(torch.float16),
    "bf16": _Half(torch.bfloat16),
    "int8": _Blocks(256, affine=False),
    "quantize_per_channel": _Blocks(512, affine=True),
    "quantize_per_tensor": _Blocks(None, affine=True),
}


def _has_error_feedback(name: str) -> bool:
    """Whether the hook of that name adds in each step what the previous one lost."""
    return next(entry.error_feedback for entry in hook_table() if entry.name == name)


class _Encoder:
    """A codec, and the error of its encodings in the last step."""

    def __init__(self, name: str) -> None:
        if name not in _CODECS:
            raise _native.ConfigError(f"set_reduce_scatter: no codec named '{name}'; known: {', '.join(_CODECS)}")
        self._codec, self._feedback = _CODECS[name], _has_error_feedback(name)
        self._error: torch.Tensor | None = None

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        if self._error is not None and self._error.shape == rows.shape:
            rows = rows + self._error
        message = self._codec.encode(rows)
        if self._feedback:
            lost = rows - self.decode(message, rows.size(1))
            # The error of a value that is not finite cannot be corrected.
            self._error = torch.where(lost.isfinite(), lost, 0.0)
        return message

    def decode(self, message: torch.Tensor, length: int) -> torch.Tensor:
        return self._codec.decode(message, length)

    def sum_of_own_row(self, rows: torch.Tensor, group: dist.ProcessGroup) -> tuple[torch.Tensor, int]:
        """The float32 sum over all ranks of the row with this rank's number, and the bytes that were encoded for it."""
        message = self.encode(rows)
        received = torch.empty_like(message)
        dist.all_to_all_single(received, message, group=group)
        return self.decode(received, rows.size(1)).sum(0), message.numel()


def _divides(op: Any) -> bool:
    if op == dist.ReduceOp.AVG:
        return True
    if op == dist.ReduceOp.SUM:
        return False
    raise _native.ConfigError(f"set_reduce_scatter: FSDP asks for {op}, but sums and means are all that is there; "
                              "leave set_gradient_divide_factor out")


class CompressedReduceScatter:
    """Replaces FSDP2's own reduce-scatter in one of its modules: every rank gets all ranks' encodings of its shard, and adds
    them in float32. With error feedback each rank keeps what its encodings lost, and adds it in the next step.
    """

    def __init__(self, name: str, all_reduce: str) -> None:
        self._encoder = _Encoder(name)
        self.name, self.all_reduce = name, all_reduce
        #: The group of HSDP's replicas.
        self.replicas: dist.ProcessGroup | None = None
        self._agreed = False
        #: The bytes that an exact reduce-scatter would send in float32, and those that were sent. With HSDP they include a
        #: compressed all-reduce between the replicas.
        self.bytes_before = 0
        self.bytes_sent = 0

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, op: Any,
                 async_op: bool = False) -> None:
        ranks = group.size()
        self.check_same(group)
        total, encoded = self._encoder.sum_of_own_row(input_tensor.view(ranks, -1).float(), group)
        output_tensor.copy_(total.div_(ranks) if _divides(op) else total)
        self.count(4 * input_tensor.numel(), encoded, ranks)

    def check_same(self, shards: dist.ProcessGroup | None = None) -> None:
        """Refuses ranks that have set something else. Collective the first time."""
        if self._agreed:
            return
        word = self.name if self.all_reduce == self.name else f"{self.name}, all-reduce {self.all_reduce}"
        for group in (shards, self.replicas):
            if group is not None:
                _native.check_same(group, "reduce-scatters", word, "set the same on every rank")
        self._agreed = True

    def count(self, before: int, after: int, ranks: int) -> None:
        """Counts a message for all ranks, of which this rank sends all except its own part."""
        self.bytes_before += before * (ranks - 1) // ranks
        self.bytes_sent += after * (ranks - 1) // ranks


class _Replicas(dist.ProcessGroup):
    """The group over which HSDP averages between its replicas, with an all-reduce that sends fewer bytes: every rank adds up one
    part, as in the reduce-scatter, and all decode the same encoded sums, so replicas stay equal to the bit.

    FSDP2 cannot be given another all-reduce, but it passes this group to torch.distributed.all_reduce, which finds it in
    torch's tables in place of the original.
    """

    def __init__(self, group: dist.ProcessGroup, comm: CompressedReduceScatter) -> None:
        start: Any = super().__init__  # torch's stub knows another form only
        start(group.rank(), group.size())
        self.group, self._comm = group, comm
        self._parts, self._sums = _Encoder(comm.all_reduce), _Encoder(comm.all_reduce)

    def __hash__(self) -> int:
        return hash(self.group)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.group

    def allreduce(self, tensors: list[torch.Tensor], options: Any) -> None:  # type: ignore[override]
        tensor, = tensors
        ranks = self.group.size()
        if ranks == 1:
            return
        self._comm.check_same()
        length = -(-tensor.numel() // ranks)
        rows = torch.nn.functional.pad(tensor.float(), (0, ranks * length - tensor.numel())).view(ranks, length)
        total, encoded = self._parts.sum_of_own_row(rows, self.group)
        mine = self._sums.encode((total.div_(ranks) if _divides(options.reduceOp) else total).unsqueeze(0))
        everyones = mine.new_empty(ranks, mine.size(1))
        dist.all_gather_into_tensor(everyones, mine, group=self.group)
        tensor.copy_(self._sums.decode(everyones, length).flatten()[:tensor.numel()])
        self._comm.count(2 * 4 * tensor.numel(), encoded + everyones.numel(), ranks)


def _set(module: FSDPModule, comm: CompressedReduceScatter) -> None:
    module.set_custom_reduce_scatter(comm)  # type: ignore[arg-type]
    params = module._get_fsdp_state()._fsdp_param_group
    if params is None or not isinstance(params.mesh_info, DDPMeshInfo):
        return  # without HSDP there is no all-reduce
    group = params.mesh_info.replicate_process_group
    comm.replicas = group.group if isinstance(group, _Replicas) else group
    params.mesh_info.replicate_process_group = comm.replicas if comm.all_reduce == "exact" else _Replicas(comm.replicas, comm)


def set_reduce_scatter(model: torch.nn.Module, name: str, *, all_reduce: str | None = None) -> list[CompressedReduceScatter]:
    """Makes FSDP2 reduce and scatter the gradients of `model` in a smaller form from the next backward pass on.

    Args:
        model: one on which ``torch.distributed.fsdp.fully_shard`` was called. This applies to all of its modules that were
            sharded by themselves.
        name: "fp16", "bf16", "int8" (with error feedback), "quantize_per_channel" or "quantize_per_tensor".
        all_reduce: with HSDP, a mesh of two dimensions, how gradients are sent between the replicas: one of these names, or
            "exact" for torch's own all-reduce; None means as `name` says.

    Sums are in float32 whatever is sent. Parameters are gathered as before. Collective: every rank sets the same, which is
    compared in the first backward pass. Returns an object for each module, with ``bytes_before`` and ``bytes_sent``.

    >>> from torch.distributed.fsdp import fully_shard
    >>> net = torch.nn.Linear(8, 8)
    >>> set_reduce_scatter(net, "int8")
    Traceback (most recent call last):
    ...
    brigade.ConfigError: set_reduce_scatter: no module of this model is sharded: ...
    """
    made = []
    between = name if all_reduce is None else all_reduce
    for each in [name] if between == "exact" else [name, between]:
        _Encoder(each)  # refuses unknown names, whatever the model
    for module in model.modules():
        if isinstance(module, FSDPModule):
            made.append(CompressedReduceScatter(name, between))
            _set(module, made[-1])
    if not made:
        raise _native.ConfigError("set_reduce_scatter: no module of this model is sharded: call "
                                  "torch.distributed.fsdp.fully_shard(model) first")
    return made
