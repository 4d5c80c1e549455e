"""Reaches native hooks from Python: through the Reducer of a DDP model, or called as a comm hook."""

from __future__ import annotations

import functools
import gc
import hashlib
import inspect
import numbers
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from . import _native
from ._names import for_model, parameters_of

# DDP looks at the annotations of a comm hook, so modules that define one cannot use "from __future__ import annotations".
CommHook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]


class NativeHook:
    """Makes the native hook that belongs to a comm hook of this package and a state.

    ``make(state, device)`` gives a :class:`brigade.Hook` for gradients on a kind of device; ``group_of(state)`` the process
    group it reduces over, or None for the default one; ``keeper_of(state)`` the object that lives as long as the hook's state
    must, or None where the hook has no state, so that all models of a group may share it.
    """

    def __init__(self, make: Callable[[Any, str], _native.Hook], group_of: Callable[[Any], dist.ProcessGroup | None],
                 keeper_of: Callable[[Any], Any] = lambda state: None) -> None:
        self.make = make
        self.group_of = group_of
        self.keeper_of = keeper_of


# Hooks without state: by group, then by name and kind of device.
_shared: weakref.WeakKeyDictionary[dist.ProcessGroup, dict[tuple[str, str], _native.NativeHook]] = (
    weakref.WeakKeyDictionary())
# Hooks with state: by what keeps the state, then by the function that was called.
_kept: weakref.WeakKeyDictionary[Any, dict[tuple[str, str], _native.NativeHook]] = weakref.WeakKeyDictionary()
# The same by model, of those that torch's own register_comm_hook has put on one.
_models_called: weakref.WeakKeyDictionary[DistributedDataParallel, _native.NativeHook] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def group_or_default(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    if group is None:
        group = dist.group.WORLD
    if group is None:
        raise _native.ConfigError("no process group: call torch.distributed.init_process_group() first, or give one")
    checked: dist.ProcessGroup = check_group(group)
    return checked


def check_group(group: Any) -> Any:
    """Returns the group, which may be None, and refuses anything else."""
    if group is not None and not isinstance(group, dist.ProcessGroup):
        raise _native.ConfigError(f"expected a process group of torch.distributed, or None, got {group!r}")
    return group


def check_whole(who: str, **options: Any) -> None:
    """Refuses fractions: native code would do so too, but in pybind's words. Native code checks the ranges."""
    for name, value in options.items():
        if not isinstance(value, numbers.Integral):
            raise _native.ConfigError(f"{who}: {name} is {value!r}, but must be a whole number")


def call(function: CommHook, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Runs a native hook on a bucket that Python was handed."""
    native: NativeHook = function.native  # type: ignore[attr-defined]
    group = group_or_default(native.group_of(state))
    keeper = native.keeper_of(state)
    kind = bucket.buffer().device.type
    with _lock:
        home = _shared.setdefault(group, {}) if keeper is None else _kept.setdefault(keeper, {})
        reduction = home.get((function.__qualname__, kind))
    if reduction is None:
        reduction = _native.NativeHook(group, kind, native.make(state, kind))
        model = None if keeper is None else _model_with(function, state)
        if model is not None:  # its state has the parameters' names
            reduction.set_names([(parameter, name) for name, parameter in parameters_of(model.module)])
            _models_called[model] = reduction
        with _lock:
            home[function.__qualname__, kind] = reduction
    return reduction.run(bucket)


def _registrations(function: CommHook) -> Iterator[tuple[DistributedDataParallel, Any]]:
    """The models, with states, on which torch's own register_comm_hook put `function`: a bucket does not say which."""
    for each in gc.get_objects():
        if issubclass(type(each), DistributedDataParallel):
            for hook, state in each.__dict__.get("_comm_hooks", ()):
                if inspect.unwrap(hook) is inspect.unwrap(function):
                    yield each, state


def _model_with(function: CommHook, state: Any) -> DistributedDataParallel | None:
    """The model that `function` was registered on with `state`."""
    return next((model for model, given in _registrations(function) if given is state), None)


def _tell_left_behind(what: str, title: str) -> None:
    warnings.warn(f"{what} of a model with the hook '{title}' has no hook: set one on it with brigade.set_hook", stacklevel=5)


class NativeCommHook:
    """A comm hook of this package: a function, except that it warns when a model with it is copied or pickled.

    torch's register_comm_hook lists it in the model. The list is copied with the model, the Reducer with its hook is not.
    """

    native: NativeHook
    __qualname__: str

    def __init__(self, function: CommHook) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return self._function(state, bucket)

    def __repr__(self) -> str:
        return f"<comm hook {self.__module__}.{self.__qualname__}>"

    def __deepcopy__(self, memo: dict[int, Any]) -> NativeCommHook:
        if any(id(model) in memo and hook_in_reducer(model) for model, _ in _registrations(self)):
            _tell_left_behind("the copy", self.__qualname__)
        return self

    def __reduce__(self) -> str:
        # Whether a model is pickled cannot be known here.
        if any(hook_in_reducer(model) for model, _ in _registrations(self)):
            _tell_left_behind("the pickle", self.__qualname__)
        return self.__qualname__  # as functions are: by name


def native_hook(native: NativeHook) -> Callable[[CommHook], CommHook]:
    """Makes a comm hook that :func:`brigade.set_hook` runs in native code, without Python."""

    def mark(function: CommHook) -> CommHook:
        function.native = native  # type: ignore[attr-defined]
        return NativeCommHook(function)

    return mark


def native_of(hook: str | _native.Hook | CommHook, state: Any, model: DistributedDataParallel) -> tuple[_native.Hook, str]:
    """The native hook that a name, a Hook, or a comm hook of this package stands for, and what to call it."""
    if isinstance(hook, str):
        return _native.make_hook(for_model(hook, model.module)), hook
    if isinstance(hook, _native.Hook):
        return hook, hook.name
    native = getattr(hook, "native", None)
    title = getattr(hook, "__qualname__", type(hook).__qualname__)
    if native is None:
        raise _native.ConfigError(f"'{title}' is no hook of brigade's: a name, a Hook or a comm hook of its modules is")
    return native.make(state, str(model.device.type)), title


def group_of_hook(hook: str | _native.Hook | CommHook, state: Any) -> dist.ProcessGroup | None:
    """The group that a comm hook of this package takes from its state."""
    native = getattr(hook, "native", None)
    return None if native is None else native.group_of(state)


def stateless(spec: str) -> NativeHook:
    """A hook whose Python state is the process group, as in torch."""
    return NativeHook(lambda group, device: _native.make_hook(spec), check_group)


# ---- models

class Attachment:
    """The hook that is set on one DDP model."""

    def __init__(self) -> None:
        self.slot = _native.HookSlot()
        self.hook: _native.Hook | CommHook | None = None
        self.group: weakref.ref[dist.ProcessGroup] | None = None
        #: The hook uses the model's own group, which may be replaced.
        self.follows = False
        #: The Reducer was told that an optimizer in the backward pass needs no gradients, which cannot be undone.
        self.without_gradients = False

    @property
    def reduction(self) -> _native.NativeHook | None:
        """The current one; the Reducer may have moved it to another group."""
        return self.slot.reduction


class HookMark:
    """Is put into a model's dictionary, and warns when the model is copied or pickled that the hook is not.

    The copy has its own Reducer, on which no hook is set.
    """

    def __init__(self, title: str) -> None:
        self.title = title

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        _tell_left_behind("the copy", self.title)

    def __reduce__(self) -> Any:
        _tell_left_behind("the pickle", self.title)
        return (type(None), ())


_attachments: weakref.WeakKeyDictionary[DistributedDataParallel, Attachment] = weakref.WeakKeyDictionary()


def attachment_of(model: DistributedDataParallel) -> Attachment | None:
    return _attachments.get(model)


def attachments() -> list[tuple[DistributedDataParallel, Attachment]]:
    """All models that have a hook of brigade's, and what is set on them."""
    return list(_attachments.items())


def hooks_at_work() -> Iterator[tuple[DistributedDataParallel, _native.Hook]]:
    """All models that have a native hook with a state, however it came there."""
    for model, found in attachments():
        if isinstance(found.hook, _native.Hook):
            yield model, found.hook
    for model, reduction in list(_models_called.items()):
        yield model, reduction.hook


def hooked(model: DistributedDataParallel) -> Attachment:
    """The same of one model. Raises ConfigError where nothing is."""
    check_model(model)
    found = attachment_of(model)
    if found is None:
        raise _native.ConfigError("this model has no hook of brigade's: brigade.set_hook(model, ...) sets one")
    return found


def check_model(model: Any) -> None:
    if isinstance(model, DistributedDataParallel):
        return
    inner = getattr(model, "_orig_mod", None)  # the model inside torch.compile's
    hint = ("; give the DistributedDataParallel model inside of torch.compile's"
            if isinstance(inner, DistributedDataParallel) else "")
    raise _native.ConfigError(
        f"expected a torch.nn.parallel.DistributedDataParallel, got {type(model).__qualname__}{hint}")


def hook_in_reducer(model: DistributedDataParallel) -> str | None:
    """The name of the hook that the model's Reducer has. A copy of a model with one has none, whatever hooks it lists."""
    told: dict[str, Any] = model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    return told.get("comm_hook")


def _attach(model: DistributedDataParallel) -> Attachment:
    found = _attachments.get(model)
    if found is not None:
        return found
    if getattr(model, "_use_python_reducer", False):
        raise _native.ConfigError(
            "torch._dynamo.config.optimize_ddp is 'python_reducer': such a model has no Reducer to give a hook to")
    name = hook_in_reducer(model)
    if name is not None:
        raise _native.ConfigError(
            f"this model has the comm hook '{name}' already, and a Reducer keeps its first one: "
            "set the first one with brigade.set_hook too, or wrap the module anew")
    model._comm_hooks.clear()  # they belong to the model that this one was copied from
    return Attachment()


def _refuse_in_hook(model: torch.nn.Module, inputs: Any) -> None:
    """The Reducer holds a lock while a Python hook runs, so a training pass inside the hook would wait for ever."""
    assert isinstance(model, DistributedDataParallel)
    found = attachment_of(model)
    if found is not None and torch.is_grad_enabled() and found.slot.runs_here():
        raise _native.Error("the model was called by its own hook, in its backward pass; a hook computes with its bucket, and may "
                            "use the model under torch.no_grad() only")


def install(model: DistributedDataParallel, hook: _native.Hook | None, function: CommHook | None, state: Any,
            group: dist.ProcessGroup | None, title: str, *, writes_gradients: bool = False) -> Attachment:
    """Sets a native hook, or a Python one with its state. `group`: None means the model's own.

    `writes_gradients`: the hook writes gradients itself, because the Reducer does not.
    """
    check_model(model)
    if torch._C._current_graph_task_id() != -1:
        raise _native.Error("set_hook: a backward pass is under way; set the hook between iterations")
    found = _attach(model)
    if hook is None:
        assert function is not None
        if found.without_gradients:
            raise _native.ConfigError(f"'{title}' is a Python hook, and this model had an optimizer in the backward pass: its "
                                      "Reducer gives no gradients to Python any more. Wrap the module anew")
        found.slot.put_python(state, function, title)
        found.group, found.hook = None, function
        word = f"the Python function {title}"
    else:
        if found.without_gradients and not writes_gradients:
            hook = _native.writing_gradients(hook)
        _install_native(model, found, hook, group)
        word = hook.fingerprint
    if model not in _attachments:
        found.slot.attach(model.reducer)
        model.register_forward_pre_hook(_refuse_in_hook)
        _attachments[model] = found
    if model.logger is not None:
        model.logger._set_comm_hook_name(title)
    found.slot.drop_gradients_of([])
    found.slot.announce(model.process_group, _identity_of(model), word)
    model.__dict__["_brigade_hook"] = HookMark(title)
    return found


def reduced_of(model: DistributedDataParallel) -> list[tuple[str, torch.Tensor]]:
    """The parameters that the model's hook may see, in plain names. Those that DDP ignores may differ from rank to rank."""
    # DDP knows a parameter of the outermost module as ".NAME", so that nobody who writes "NAME" has it ignored.
    ignored = {id(parameter) for name, parameter in model.module.named_parameters()
               if (name if "." in name else f".{name}") in model.parameters_to_ignore}
    return [(name, parameter) for name, parameter in parameters_of(model.module) if id(parameter) not in ignored]


def trained_of(model: DistributedDataParallel) -> list[tuple[str, torch.Tensor]]:
    """The parameters that the model's hook reduces, in plain names."""
    return [(name, parameter) for name, parameter in reduced_of(model) if parameter.requires_grad]


def _identity_of(model: DistributedDataParallel) -> str:
    """Equal on all ranks, and different for models of different parameters."""
    text = "".join(f"{name} {tuple(parameter.shape)};" for name, parameter in reduced_of(model))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def drop_gradients(model: DistributedDataParallel, found: Attachment, parameters: list[torch.Tensor]) -> None:
    """The hook steps these parameters, so their gradients are dropped; without bucket views the Reducer writes none."""
    found.slot.drop_gradients_of(parameters)
    if not model.gradient_as_bucket_view:
        model.reducer._set_optimizer_in_backward()  # type: ignore[attr-defined]
        found.without_gradients = True


def _install_native(model: DistributedDataParallel, found: Attachment, hook: _native.Hook,
                    given: dist.ProcessGroup | None) -> None:
    group = given if given is not None else model.process_group
    trained = trained_of(model)
    for _, parameter in trained:
        hook.check(parameter)
    hook.set_parameters([name for name, _ in trained])
    reduction = found.reduction
    before = found.group() if found.group is not None else None
    moved = found.follows and before is not model.process_group  # by DDP._update_process_group
    if reduction is not None and before is group and not moved:
        reduction.set_hook(hook)
    else:
        reduction = _native.NativeHook(group, model.device.type, hook)
        reduction.set_names([(parameter, name) for name, parameter in reduced_of(model)])
        reduction.set_may_be_unused(bool(model.find_unused_parameters or model.static_graph))
        found.group = weakref.ref(group)
    found.follows = given is None
    found.slot.put_reduction(reduction, group if given is None else None)
    found.hook = hook
