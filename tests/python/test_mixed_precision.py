"""DDP's mixed precision with our hook. torch wants an accelerator's streams for it; on a CPU things that do nothing stand in."""

import contextlib
from unittest import mock

import pytest
import torch
from brigade.mixed_precision_hooks import native_mixed_precision
from models import relative_error, rows, same_on_all_ranks, small_net, wrap
from torch.nn.parallel.distributed import _MixedPrecision


class Still(contextlib.nullcontext):
    """A stream and an event on a machine that has none."""

    def __init__(self, *_, **__):
        super().__init__()

    def record(self, *_, **__):
        pass

    wait = wait_stream = record


@contextlib.contextmanager
def streams():
    with (mock.patch("torch.Stream", Still), mock.patch("torch.Event", Still),
          mock.patch("torch.accelerator.current_stream", Still)):
        yield


def gradients(ours, to_none, reduce_dtype):
    """Of the steps after the first: with nothing but stand-ins torch's own hook gives nonsense there, and with bucket views."""
    with streams():
        module = small_net()
        module[3].bias.requires_grad_(False)
        precision = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype, buffer_dtype=torch.bfloat16)
        with native_mixed_precision() if ours else contextlib.nullcontext():
            model = wrap(module, mixed_precision=precision)
        found = []
        for number in range(4):
            model.zero_grad(set_to_none=to_none)
            model(rows(number)).float().square().mean().backward()
            if number == 0:
                continue
            for parameter in module.parameters():
                assert parameter.dtype == torch.float32
                if parameter.requires_grad:
                    assert parameter.grad.dtype == torch.float32
                    found.append(parameter.grad.clone())
        assert same_on_all_ranks(found)
        return found


def as_torchs(to_none, reduce_dtype):
    assert relative_error(gradients(True, to_none, reduce_dtype), gradients(False, to_none, reduce_dtype)) < 1e-2


@pytest.mark.parametrize("reduce_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("to_none", [False, True])
def test_mixed_precision_does_what_torchs_hook_does(ranks, to_none, reduce_dtype):
    ranks(2, as_torchs, to_none, reduce_dtype)
