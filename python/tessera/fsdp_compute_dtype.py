"""The dtype that parameters of fully_shard report while their module computes.

compat's `to_local` of a parameter is the part that ops compute with there, and its shard at rest. Under
a mixed precision policy the dtype changes, too. At rest, for the optimizer and in state dicts, a
parameter has the dtype of its shards. While a module computes, its parameters and those of the modules
inside have `param_dtype`: code that compares, or casts to, the dtype of a weight sees what ops compute
with. The same holds during a backward, because activation checkpointing recomputes there, and after
unshard() until the parameters are resharded or an optimizer steps.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from . import _C


class _Calls(threading.local):
    """The calls of modules that this thread is in the middle of, the outermost first: the switch, and
    the frame that called an outermost module."""

    def __init__(self) -> None:
        self.stack: list[tuple[_Switch, FrameType | None]] = []


class _Switch:
    """The hooks of one module."""

    __slots__ = ("scope",)

    def __init__(self) -> None:
        # Made when the module is first called: until then groups may be added inside.
        self.scope: _C.ComputeDtypeScope | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> _Switch:
        return _Switch()  # a copy of a module has parameters of its own

    def __reduce__(self) -> tuple[type[_Switch], tuple[()]]:
        return _Switch, ()

    def scope_of(self, module: nn.Module) -> _C.ComputeDtypeScope:
        if self.scope is None:
            self.scope = _C.ComputeDtypeScope(list(module.parameters()))
        return self.scope

    def enter(self, module: nn.Module, _: Any) -> None:
        stack = _calls.stack
        if stack and stack[0][0] is self and not _is_running(stack[0][1]):
            _leave_down_to(stack, 0)
        outermost = not stack and not torch.compiler.is_compiling()
        stack.append((self, sys._getframe(1) if outermost else None))
        (self.scope or self.scope_of(module)).enter()

    def leave(self, module: nn.Module, _: Any, output: Any) -> None:
        """Also called where forward, or a hook before ours, raised."""
        stack = _calls.stack
        at = len(stack) - 1
        while at >= 0 and stack[at][0] is not self:
            at -= 1
        if at < 0:
            return
        if output is None:
            _name_policy(sys.exc_info()[1], module)
        _leave_down_to(stack, at)
        if not stack and output is not None:
            self.scope_of(module).watch(list(_tensors_in(output)))


_calls = _Calls()
_steps_hook: RemovableHandle | None = None
_switches: weakref.WeakKeyDictionary[nn.Module, _Switch] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def compute_dtype(module: nn.Module) -> Iterator[None]:
    """Inside, the parameters of a module report the dtype that they compute in, as they do while the
    module's forward runs. For methods beside forward.

        >>> def show(rank):
        ...     layer = torch.nn.Linear(3, 4)
        ...     policy = tessera.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        ...     tessera.fully_shard(layer, tessera.init_device_mesh("dp=2"), mp_policy=policy)
        ...     with compute_dtype(layer):
        ...         inside = layer.weight.dtype
        ...     return inside, layer.weight.dtype
        >>> tessera.run_ranks(2, show)[0]
        (torch.bfloat16, torch.float32)
    """
    scope = _scope_of(module)
    scope.enter()
    try:
        yield
    finally:
        scope.leave()


def watch_outputs(module: nn.Module, outputs: Any) -> None:
    """A backward that begins with these tensors then finds all parameters in the dtype that they
    compute in, whatever it does first."""
    _scope_of(module).watch(list(_tensors_in(outputs)))


def add_dtype_hooks(modules: Iterable[nn.Module]) -> None:
    """The modules enter and leave. Where dtypes change, every module inside that has parameters does:
    any of them may be called alone."""
    for module in modules:
        scope = _C.ComputeDtypeScope(list(module.parameters()))
        if scope.empty():
            continue
        for part in module.modules():
            switch = _switches.get(part)
            if switch is not None:
                switch.scope = None  # its groups may be others now
            elif part is module or scope.switches_dtype() and next(part.parameters(), None) is not None:
                switch = _switches[part] = _Switch()
                part.register_forward_pre_hook(switch.enter, prepend=True)
                part.register_forward_hook(switch.leave, always_call=True)


def rest_before_steps() -> None:
    """Called by unshard(): an optimizer then finds parameters at rest, as their gradients are."""
    global _steps_hook
    if _steps_hook is None:
        _steps_hook = register_optimizer_step_pre_hook(_rest_optimizer)


def _rest_optimizer(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    _C.ComputeDtypeScope([p for group in optimizer.param_groups for p in group["params"]]).rest()


def _scope_of(module: nn.Module) -> _C.ComputeDtypeScope:
    switch = _switches.get(module)
    return _C.ComputeDtypeScope(list(module.parameters())) if switch is None else switch.scope_of(module)


def _leave_down_to(stack: list[tuple[_Switch, FrameType | None]], at: int) -> None:
    """Those above were left without a word: torch calls no hooks for a KeyboardInterrupt."""
    while len(stack) > at:
        scope = stack.pop()[0].scope
        if scope is not None:
            scope.leave()


def _is_running(frame: FrameType | None) -> bool:
    if frame is None:
        return True
    running: FrameType | None = sys._getframe(1)
    while running is not None and running is not frame:
        running = running.f_back
    return running is not None


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors_in(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors_in(getattr(value, field.name))


def _name_policy(error: BaseException | None, module: nn.Module) -> None:
    """An error about dtypes says where they come from."""
    words = ("dtype", "scalar type", "BFloat16", "Half", "same type")
    if error is None or not hasattr(error, "add_note") or getattr(error, "__notes__", None):
        return
    if any(word in str(error) for word in words):
        dtypes = sorted({str(parameter.dtype) for parameter in module.parameters()})
        error.add_note(
            f"Parameters of {type(module).__name__} compute in {', '.join(dtypes)}, as the mixed "
            "precision policy of fully_shard says (param_dtype). Cast what meets them to that dtype, or "
            "let the policy cast the inputs and outputs of modules (cast_forward_inputs, output_dtype)."
        )
