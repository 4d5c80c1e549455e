"""Two NCCL ranks on one GPU, and CUDA gradients over Gloo. Skipped without a GPU."""

import brigade
import pytest
import torch
from brigade import DDPCommHookType, register_ddp_comm_hook
from models import exact_mean, relative_error, rows, same_on_all_ranks, small_net, step, wrap
from workers import Teams

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(scope="module", params=["nccl", "gloo"])
def gpu_ranks(request):
    teams = Teams(request.param)
    yield lambda function, *arguments: teams.run(2, function, *arguments)
    teams.close()


def averages(how, buckets, views, of_registry=False):
    module = small_net(width=64).cuda()
    model = wrap(module, buckets, gradient_as_bucket_view=views)
    if of_registry:
        register_ddp_comm_hook(DDPCommHookType[how], model)
    else:
        brigade.set_hook(model, how)
    for number in range(3):
        data = rows(number, width=64).cuda()
        exact = exact_mean(module, data)
        found = step(model, data)
        assert same_on_all_ranks(found)
    return relative_error(found, exact)


@pytest.mark.parametrize("buckets", ["one", "many"])
def test_every_averaging_hook_gives_the_mean_on_a_gpu(gpu_ranks, buckets):
    for entry in brigade.hook_table():
        if entry.tolerance < 0 or "powersgd" in entry.name:
            continue
        for views in (False, True):
            errors = gpu_ranks(averages, entry.name, buckets, views)
            assert max(errors) <= 2 * entry.tolerance, f"{entry.name}: {errors}"
    assert max(gpu_ranks(averages, "powersgd:rank=64,start=0,min_rate=0.1", buckets, True)) < 1e-4


def test_every_type_of_the_registry_registers_and_runs_on_a_gpu(gpu_ranks):
    for kind in DDPCommHookType:
        if kind != DDPCommHookType.NOOP:
            assert max(gpu_ranks(averages, kind.name, "many", False, True)) < 2e-2, kind


def called_from_python():
    module = small_net(width=64).cuda()
    model = wrap(module)
    state = brigade.powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=64, start_powerSGD_iter=2,
                                                min_compression_rate=0.1)
    model.register_comm_hook(state, brigade.powerSGD_hook.powerSGD_hook)
    for number in range(5):
        data = rows(number, width=64).cuda()
        exact = exact_mean(module, data)
        found = step(model, data)
        assert same_on_all_ranks(found)
    return relative_error(found, exact)


def test_a_hook_called_from_python_works_on_a_gpu(gpu_ranks):
    assert max(gpu_ranks(called_from_python)) < 1e-4
