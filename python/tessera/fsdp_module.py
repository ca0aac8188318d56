"""torch.nn.Module's own methods where fully_shard holds the parameters: what state_dict() gives and
load_state_dict() takes, and what is to become of them when a module is converted.

A parameter that fully_shard holds is part of a group's memory and stays what it is: values are
written into it, and another type or device is the group's matter.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from . import _C

_hooked: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def add_state_hooks(modules: Iterable[nn.Module]) -> None:
    """state_dict() then gives ordinary sharded tensors that share the shards' memory; load_state_dict()
    takes whole tensors too, and with assign=True fills parameters that are on meta."""
    for module in modules:
        for part in module.modules():
            if part not in _hooked and any(True for _ in _held(part)):
                _hooked.add(part)
                part.register_state_dict_post_hook(_give_shards)
                part.register_load_state_dict_pre_hook(_take_state)


def _held(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The module's own parameters that a group holds."""
    for name, parameter in module._parameters.items():
        if parameter is not None and _C.in_group(parameter):
            yield name, parameter


def _give_shards(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, parameter in _held(module):
        given = state.get(prefix + name)
        if given is not None and given is not parameter:  # keep_vars wants the parameters themselves
            state[prefix + name] = _C.sharded_state_dict(_C.ModuleMirror([parameter]))["0"]


def _take_state(
    module: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any], *_: Any
) -> None:
    for name, parameter in _held(module):
        given = state.get(prefix + name)
        if not isinstance(given, torch.Tensor) or given.shape != parameter.shape:
            continue  # load_state_dict says what is wrong
        given = placed_as(parameter, given)
        if metadata.get("assign_to_params_buffers", False) and not given.is_meta:
            take(parameter, given)
            given = parameter
        state[prefix + name] = given


def placed_as(parameter: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    """This rank's part of a whole tensor; a sharded one as it is."""
    if _C.is_dtensor(given):
        return given
    mesh, shape = _C.device_mesh(parameter), list(given.shape)
    target = _C.sharding(parameter).for_tensor(shape, given.dtype)
    everywhere = ",".join("R" for _ in range(mesh.ndim))
    whole = _C.from_local(given.detach(), mesh, everywhere, shape, None, False, True, None)
    return _C.redistribute_to(whole, target, None, None)


def take(parameter: nn.Parameter, given: torch.Tensor) -> None:
    """The parameter gets the values and the type of a sharded tensor, and memory where it has none."""
    if parameter.is_meta:
        _C.to_empty(_C.ModuleMirror([parameter]), given.device)
    if parameter.dtype != given.dtype:
        _C.convert_shards([parameter], lambda shard: shard.to(given.dtype))
    with torch.no_grad():
        parameter.copy_(given.detach())


@contextlib.contextmanager
def converted(module: nn.Module, convert: Callable[[torch.Tensor], torch.Tensor]) -> Iterator[None]:
    """Puts convert(shard) in the place of the shards of all parameters in the module that a group
    holds. Inside, the module lacks these parameters, so that what converts others leaves them."""
    places = [(part, *item) for part in module.modules() for item in _held(part)]
    with torch.no_grad():
        _C.convert_shards([parameter for _, _, parameter in places], convert)
    try:
        for part, name, _ in places:
            part._parameters[name] = None
        yield
    finally:
        for part, name, parameter in places:
            part._parameters[name] = parameter
