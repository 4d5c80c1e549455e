"""Compressed gradients for FSDP2: torch's ``fully_shard``, with a reduce-scatter that sends fewer bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from . import _native

__all__ = ["CompressedReduceScatter", "set_reduce_scatter"]


class _Half:
    """Two bytes a value."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.to(self.dtype).view(torch.uint8)

    def decode(self, message: torch.Tensor, length: int) -> torch.Tensor:
        return message.view(self.dtype).float()


class _Blocks:
    """A byte a value, and a range for each block of values: a scale, or the lowest value and a scale."""

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


# By name: how values travel, and whether what one step lost is added in the next.
_CODECS: dict[str, tuple[Any, bool]] = {
    "fp16": (_Half(torch.float16), False),
    "bf16": (_Half(torch.bfloat16), False),
    "int8": (_Blocks(256, affine=False), True),
    "quantize_per_channel": (_Blocks(512, affine=True), False),
    "quantize_per_tensor": (_Blocks(None, affine=True), False),
}


class CompressedReduceScatter:
    """What FSDP2 calls in place of its own reduce-scatter, for one of its modules: every rank gets all ranks' encodings of its
    shard, and adds them in float32. With error feedback each rank keeps what its encodings lost, and adds it in the next step.
    """

    def __init__(self, name: str) -> None:
        if name not in _CODECS:
            raise _native.ConfigError(f"set_reduce_scatter: no codec named '{name}'; known: {', '.join(_CODECS)}")
        self.name = name
        self._codec, self._feedback = _CODECS[name]
        self._error: torch.Tensor | None = None
        self._agreed = False
        #: Of the gradients, as the exact reduce-scatter would send them in float32, and as they were sent.
        self.bytes_before = 0
        self.bytes_sent = 0

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, op: Any,
                 async_op: bool = False) -> None:
        ranks = group.size()
        self._agree(group)
        rows = input_tensor.view(ranks, -1).float()
        if self._feedback and self._error is not None and self._error.shape == rows.shape:
            rows = rows + self._error
        message = self._codec.encode(rows)
        if self._feedback:
            lost = rows - self._codec.decode(message, rows.size(1))
            # What is not finite has no error that could be made up for.
            self._error = torch.where(lost.isfinite(), lost, 0.0)
        received = torch.empty_like(message)
        dist.all_to_all_single(received, message, group=group)
        total = self._codec.decode(received, rows.size(1)).sum(0)
        output_tensor.copy_(total.div_(ranks) if self._divides(op) else total)
        others = (ranks - 1) / ranks
        self.bytes_before += int(4 * input_tensor.numel() * others)
        self.bytes_sent += int(message.numel() * others)

    @staticmethod
    def _divides(op: Any) -> bool:
        if op == dist.ReduceOp.AVG:
            return True
        if op == dist.ReduceOp.SUM:
            return False
        raise _native.ConfigError(f"set_reduce_scatter: FSDP asks for {op}, but sums and means are all that is there; "
                                  "leave set_gradient_divide_factor out")

    def _agree(self, group: dist.ProcessGroup) -> None:
        if self._agreed:
            return
        names: list[str | None] = [None] * group.size()
        dist.all_gather_object(names, self.name, group=group)
        if any(name != self.name for name in names):
            ranks = "; ".join(f"'{name}' on rank {rank}" for rank, name in enumerate(names))
            raise _native.MismatchError(f"the ranks have different reduce-scatters: {ranks}. Set the same on every rank")
        self._agreed = True


def set_reduce_scatter(model: torch.nn.Module, name: str) -> list[CompressedReduceScatter]:
    """From the next backward pass on, the gradients of `model` are reduced and scattered in a smaller form.

    Args:
        model: on which ``torch.distributed.fsdp.fully_shard`` was called; all of its modules that have been sharded by
            themselves are set.
        name: "fp16", "bf16", "int8" (with error feedback), "quantize_per_channel" or "quantize_per_tensor".

    Sums are in float32 whatever travels. With HSDP, a mesh of two dimensions, the all-reduce between replicas stays torch's
    own and exact. Parameters are gathered as before. Collective: every rank sets the same, which is compared in the first
    backward pass. Gives what was set, module by module, with ``bytes_before`` and ``bytes_sent``.

    >>> from torch.distributed.fsdp import fully_shard
    >>> net = torch.nn.Linear(8, 8)
    >>> set_reduce_scatter(net, "int8")
    Traceback (most recent call last):
    ...
    brigade.ConfigError: set_reduce_scatter: no module of this model is sharded: ...
    """
    made = []
    CompressedReduceScatter(name)  # refuses unknown names, whatever the model
    for module in model.modules():
        if isinstance(module, FSDPModule):
            made.append(CompressedReduceScatter(name))
            module.set_custom_reduce_scatter(made[-1])  # type: ignore[arg-type]
    if not made:
        raise _native.ConfigError("set_reduce_scatter: no module of this model is sharded: call "
                                  "torch.distributed.fsdp.fully_shard(model) first")
    return made
