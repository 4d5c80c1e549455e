"""DDP's mixed precision with our hook. torch needs an accelerator's streams for it; on a CPU dummies replace them."""

import contextlib
from unittest import mock

import pytest
import torch
from brigade.mixed_precision_hooks import native_mixed_precision
from models import relative_error, rows, same_on_all_ranks, small_net, wrap
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import _MixedPrecision


class Still(contextlib.nullcontext):
    """A stream and an event for a machine that has none."""

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


class Head(torch.nn.Module):
    """Is what DDP may be told to ignore; it is inside a module, because DDP does not find such names in the outermost one."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.full((32,), 1.5))
        self.register_buffer("offset", torch.full((32,), 0.25))

    def forward(self, x):
        return x * self.scale.to(x.dtype) + self.offset.to(x.dtype)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = small_net()
        self.layers[3].bias.requires_grad_(False)
        self.head = Head()

    def forward(self, x):
        return self.head(self.layers(x))


def gradients(ours, to_none, reduce_dtype, views, ignored):
    """The gradients of the steps after the first, which DDP gets wrong whatever the hook, as those after the second with bucket views."""
    with streams():
        module = Net()
        if ignored:
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["head.scale", "head.offset"])
        precision = _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype, buffer_dtype=torch.bfloat16)
        with native_mixed_precision() if ours else contextlib.nullcontext():
            model = wrap(module, mixed_precision=precision, gradient_as_bucket_view=views)
        assert hasattr(module.head.scale, "_mp_param") != ignored and hasattr(module.layers[0].bias, "_mp_param")
        found = []
        for number in range(4):
            model.zero_grad(set_to_none=to_none)
            model(rows(number)).float().square().mean().backward()
            if number == 0:
                continue
            assert module.head.offset.dtype == (torch.float32 if ignored else torch.bfloat16)
            for name, parameter in module.named_parameters():
                assert parameter.dtype == torch.float32
                if ignored and name == "head.scale":
                    assert torch.equal(parameter.detach(), torch.full((32,), 1.5))
                    continue
                if parameter.requires_grad:
                    assert parameter.grad.dtype == torch.float32
                    found.append(parameter.grad.clone())
        assert same_on_all_ranks(found)
        return found


def as_torchs(*how):
    assert relative_error(gradients(True, *how), gradients(False, *how)) < 1e-2


@pytest.mark.parametrize("reduce_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("ignored", [False, True])
@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("to_none", [False, True])
def test_mixed_precision_does_what_torchs_hook_does(ranks, to_none, views, ignored, reduce_dtype):
    ranks(2, as_torchs, to_none, reduce_dtype, views, ignored)
