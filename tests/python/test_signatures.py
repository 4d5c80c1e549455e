"""Changing the import is all: names and signatures are torch's."""

import importlib
import inspect

import brigade
import pytest
import torch.distributed.algorithms.ddp_comm_hooks as torchs_package
import torch.distributed.algorithms.model_averaging.averagers as torchs_averagers
import torch.distributed.algorithms.model_averaging.hierarchical_model_averager as torchs_hierarchical
from brigade import averagers, zero
from torch.distributed.optim import ZeroRedundancyOptimizer

# Includes the names that begin with an underscore where torch has no others.
MODULES = {
    "default_hooks": 5,
    "quantization_hooks": 2,
    "powerSGD_hook": 3,
    "post_localSGD_hook": 2,
    "debugging_hooks": 1,
    "optimizer_overlap_hooks": 3,
    "mixed_precision_hooks": 2,
    "ddp_zero_hook": 2,
}
# Training scripts do not use these internals of torch's hooks.
INNER = {
    "default_hooks": {"_allreduce_fut", "_compress_hook"},
    "optimizer_overlap_hooks": {"_OptimInBackwardHookState"},
    "quantization_hooks": {"_dequantize_per_tensor_backend", "_dequantize_per_channel_backend", "_get_allgather_out_list",
                           "_quantize_per_tensor_backend", "_quantize_per_channel_backend"},
    "powerSGD_hook": {"_orthogonalize", "_orthogonalize_gram_schmidt", "_report_compression_stats", "_should_compress"},
    "ddp_zero_hook": {"_perform_local_step", "_broadcast_bucket", "_save_ddp_bucket_info", "_hook_with_zero_step_setup"},
}


def shape(function):
    """Names, kinds and defaults, without annotations."""
    return [(each.name, each.kind, each.default) for each in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", MODULES)
def test_every_function_and_class_has_torchs_signature(name):
    theirs = importlib.import_module(f"torch.distributed.algorithms.ddp_comm_hooks.{name}")
    ours = importlib.import_module(f"brigade.{name}")
    compared = 0
    for member, value in vars(theirs).items():
        if getattr(value, "__module__", "") != theirs.__name__ or not callable(value) or member in INNER.get(name, set()):
            continue
        assert shape(getattr(ours, member)) == shape(value), member
        compared += 1
    assert compared == MODULES[name]


def test_the_packages_own_names_have_torchs_signatures():
    assert shape(brigade.register_ddp_comm_hook) == shape(torchs_package.register_ddp_comm_hook)
    assert list(brigade.DDPCommHookType.__members__) == list(torchs_package.DDPCommHookType.__members__)
    for member in torchs_package.DDPCommHookType:
        value = brigade.DDPCommHookType[member.name].value
        assert {"model", "state"} <= {each.name for each in inspect.signature(value).parameters.values()}


def methods(kind):
    return {name: value for name, value in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize("ours, theirs, fewer", [
    (averagers.PeriodicModelAverager, torchs_averagers.PeriodicModelAverager, set()),
    (averagers.HierarchicalModelAverager, torchs_hierarchical.HierarchicalModelAverager, set()),
    (brigade.powerSGD_hook.PowerSGDState, importlib.import_module(
        "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook").PowerSGDState, set()),
    (brigade.post_localSGD_hook.PostLocalSGDState, importlib.import_module(
        "torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook").PostLocalSGDState, set()),
])
def test_classes_have_torchs_constructors_and_methods(ours, theirs, fewer):
    assert shape(ours) == shape(theirs)
    assert set(methods(theirs)) - set(methods(ours)) == fewer
    for name in set(methods(theirs)) - fewer:
        assert list(inspect.signature(methods(ours)[name]).parameters) == list(
            inspect.signature(methods(theirs)[name]).parameters), name


def test_zero_is_made_as_torchs_is():
    theirs, ours = shape(ZeroRedundancyOptimizer), shape(zero.ZeroRedundancyOptimizer)
    assert [each[:2] for each in ours] == [each[:2] for each in theirs]
    for name in ("add_param_group", "consolidate_state_dict", "load_state_dict", "state_dict", "step", "zero_grad"):
        assert hasattr(ZeroRedundancyOptimizer, name) and hasattr(zero.ZeroRedundancyOptimizer, name)


def test_states_have_torchs_attributes():
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState

    arguments = {"process_group": None, "subgroup": None, "start_localSGD_iter": 3}
    for ours, theirs in ((brigade.post_localSGD_hook.PostLocalSGDState(**arguments), PostLocalSGDState(**arguments)),
                         (brigade.powerSGD_hook.PowerSGDState(None), PowerSGDState(None))):
        # These are internals of torch's; ours keeps one factor of each matrix only.
        names = {name for name in type(theirs).__slots__} - {"rng", "eta", "next_stats_report", "p_memory_dict"}
        for name in names:
            value = getattr(theirs, name)
            assert getattr(ours, name) == (value if not isinstance(value, dict) else {}), name


def test_modules_have_torchs_short_names():
    package = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks")
    for name in ("debugging", "default", "optimizer_overlap", "powerSGD", "quantization"):
        ours, theirs = getattr(brigade, name), getattr(package, name)
        assert ours.__name__.rpartition(".")[2] == theirs.__name__.rpartition(".")[2]


def types_of_hooks():
    import torch
    from models import rows, step, wrap

    theirs = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks").DDPCommHookType
    model = wrap(torch.nn.Linear(32, 32))
    for kind in theirs:
        brigade.register_ddp_comm_hook(kind, model)
        step(model, rows())
    brigade.DDPCommHookType.POWER_SGD.value(model=model, state=None, start_powerSGD_iter=2)
    for number in range(4):
        step(model, rows(number))
    assert brigade.state_dict(model)["tensors"]


def test_torchs_types_of_hooks_are_taken(ranks):
    ranks(2, types_of_hooks)


def test_options_of_power_sgd_may_be_set_until_it_is_used():
    state = brigade.powerSGD_hook.PowerSGDState(None)
    state.start_powerSGD_iter, state.matrix_approximation_rank = 5, 3
    assert (state.start_powerSGD_iter, state.matrix_approximation_rank) == (5, 3)
    with pytest.raises(ValueError):
        state.matrix_approximation_rank = 0
    assert state.matrix_approximation_rank == 3 and state.p_memory_dict == {} and state.next_stats_report == 0
    theirs = importlib.import_module("torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook").PowerSGDState(None)
    assert [state.rng.randint(1000) for _ in range(3)] == [theirs.rng.randint(1000) for _ in range(3)]
    state.native(batched=False)
    with pytest.raises(AttributeError, match="is fixed once the hook has been used"):
        state.warm_start = False
    assert brigade.powerSGD_hook.logger.name.startswith("torch.distributed.")


def lines_of_power_sgd(way):
    import logging

    import torch
    from models import rows, step, wrap

    class Lines(logging.Handler):
        def __init__(self):
            super().__init__()
            self.told = []

        def emit(self, record):
            self.told.append(record.getMessage())

    lines, logger = Lines(), logging.getLogger("torch.distributed")
    before = logger.level
    logger.setLevel(logging.INFO)
    logger.addHandler(lines)
    try:
        model = wrap(torch.nn.Linear(32, 32))
        state = brigade.powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=1, compression_stats_logging_frequency=2)
        if way == "set":
            brigade.set_hook(model, brigade.powerSGD_hook.powerSGD_hook, state)
        else:
            model.register_comm_hook(state, brigade.powerSGD_hook.powerSGD_hook)
        for number in range(5):
            step(model, rows(number))
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before)
    return [line for line in lines.told if "Compression" in line]


@pytest.mark.parametrize("way", ["set", "registered"])
def test_compression_is_told_to_torchs_logger_in_its_words(ranks, way):
    for told in ranks(2, lines_of_power_sgd, way):
        assert told == [f"Compression stats: iter {number}, total before compression {1056 * (number - 1)}, total after "
                        f"compression {96 * (number - 1)}, rate 11.0" for number in (2, 4)]


def groups_by_period():
    import torch
    import torch.distributed as dist

    averager = averagers.HierarchicalModelAverager({2: 1, 4: 2})
    groups = averager.period_process_group_dict
    assert [dist.get_world_size(group) for group in groups.values()] == [1, 2] and list(groups) == [2, 4]
    with_gradient = torch.nn.Parameter(torch.full((2,), float(dist.get_rank())))
    without = torch.nn.Parameter(torch.full((2,), float(dist.get_rank())))
    with_gradient.grad = torch.zeros(2)
    averagers.average_parameters_or_parameter_groups([{"params": [with_gradient, without]}])
    assert with_gradient.tolist() == [0.5, 0.5] and without[0].item() == dist.get_rank()


def test_helpers_have_torchs_names(ranks):
    ranks(2, groups_by_period)
    overlap = brigade.optimizer_overlap_hooks
    assert overlap._OptimInBackwardHookState is importlib.import_module(
        "torch.distributed.algorithms.ddp_comm_hooks.optimizer_overlap_hooks")._OptimInBackwardHookState
    state = overlap._OptimizerHookState(brigade.optim.SGD(lr=0.1))
    state._check_valid_functional_optim()
    state._set_params_to_optimize([])
    assert state.params_to_optimize == set()
    theirs = importlib.import_module("torch.distributed.optim")
    for name in ("PostLocalSGDOptimizer", "_apply_optimizer_in_backward", "_get_in_backward_optimizers"):
        assert getattr(brigade.optim, name) is getattr(theirs, name)
