"""Checks the package's types as a user's checker sees them. Needs mypy, so `make check` runs it."""

import os
import pathlib
import subprocess
import sys

import brigade
import pytest

# This is a user's program. torch's own names come through imports that only --implicit-reexport follows.
SAMPLE = '''
from __future__ import annotations

from typing import Any

import brigade
import torch
import torch.distributed as dist
from brigade import averagers, ddp_zero_hook, default_hooks, optim, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel


def train(module: torch.nn.Module) -> float:
    model = DistributedDataParallel(module)
    brigade.set_hook(model, "int8")
    brigade.set_hook(model, default_hooks.fp16_compress_hook, dist.group.WORLD)
    brigade.set_hook(model, brigade.make_hook("powersgd:rank=2"))
    brigade.register_ddp_comm_hook(brigade.DDPCommHookType.FP16_COMPRESS, model)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    rate, before, after = state.compression_stats()
    saved: dict[str, Any] = brigade.state_dict(model)
    brigade.load_state_dict(model, saved)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    optim.apply_optimizer_in_backward(model, optim.AdamW(lr=1e-3), clip_grad_value=1.0)
    zero = ddp_zero_hook.ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, overlap_with_ddp=True, lr=0.1)
    brigade.set_hook(model, ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, model, zero))
    in_backward = brigade.apply_zero_in_backward(model, "adam", lr=0.1)
    number: int = in_backward.state_bytes + zero.state_bytes
    local = brigade.LocalSGD(model, optimizer, period=3)
    local.step()
    diloco = brigade.DiLoCo(module, optimizer, period=10, hook="int8")
    diloco.step()
    averager = averagers.PeriodicModelAverager(4)
    averager.average_parameters(model.parameters())
    averager.average_parameters(optimizer.param_groups)
    found = brigade.load_checkpoint("run", ["model"])
    if found is not None:
        number += found.step
    tensors, metadata = brigade.load_safetensors("file")
    brigade.save_safetensors("file", tensors, metadata)
    return brigade.hook_stats(model).total.overlap + rate + number
'''

WRONG = {
    'brigade.set_hook(model, 8)': "arg-type",
    'brigade.LocalSGD(model, None, perod=3)': "call-arg",
    'brigade.hook_stats(model).totals': "attr-defined",
    'brigade.DDPCommHookType.FP17_COMPRESS': "attr-defined",
}


def said_by_mypy(cache, *paths):
    command = [sys.executable, "-m", "mypy", "--strict", "--implicit-reexport", "--follow-imports=silent", "--cache-dir", cache]
    package = str(pathlib.Path(brigade.__file__).parents[1])
    return subprocess.run([*command, *map(str, paths)], capture_output=True, text=True, timeout=500,
                          env={**os.environ, "MYPYPATH": package})


@pytest.mark.check
def test_the_package_and_a_users_file_pass_mypy(tmp_path):
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(SAMPLE)
    bad.write_text(SAMPLE.split("\n\n\ndef")[0] + "\nmodel = DistributedDataParallel(torch.nn.Linear(1, 1))\n" + "\n".join(WRONG))
    cache = os.environ.get("MYPY_CACHE_DIR", str(tmp_path / "cache"))
    package = pathlib.Path(brigade.__file__).parent
    clean = said_by_mypy(cache, good, *package.glob("*.py"), package / "_native.pyi")
    assert clean.returncode == 0, clean.stdout + clean.stderr
    told = said_by_mypy(cache, bad)
    for line, code in WRONG.items():
        number = bad.read_text().splitlines().index(line) + 1
        assert any(f"bad.py:{number}: error" in each and f"[{code}]" in each for each in told.stdout.splitlines()), (line, told.stdout)
