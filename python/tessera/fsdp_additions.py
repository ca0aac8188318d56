"""Parameters that a program puts into a module after fully_shard: in no group, so nothing reduces their
gradients, and each rank would train its own. The module's next forward warns of those that are still
there; until then they may be sharded, frozen, or taken into the group."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Union

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils.hooks import RemovableHandle

from . import _C

#: A submodule, or the name of a parameter, and where it was put.
Addition = tuple["weakref.ref[nn.Module]", Union[str, "weakref.ref[nn.Module]"]]

# The innermost module of fully_shard around each module.
_sharded: weakref.WeakKeyDictionary[nn.Module, weakref.ref[nn.Module]]
_sharded = weakref.WeakKeyDictionary()
_handles: list[RemovableHandle] = []


def watch_additions(modules: Iterable[nn.Module]) -> None:
    """Called by fully_shard with the modules that it was given. Costs a look-up for each parameter and
    module that is registered anywhere, and nothing in steps."""
    for module in modules:
        for part in module.modules():
            _sharded.setdefault(part, weakref.ref(module))
    if not _handles:
        _handles.append(register_module_parameter_registration_hook(_parameter_put))
        _handles.append(register_module_module_registration_hook(_module_put))


def _parameter_put(module: nn.Module, name: str, parameter: Any) -> None:
    before = module._parameters.get(name)
    if module in _sharded and (before is None or _C.in_group(before)) and _is_alone(parameter):
        _check_at_next_forward(module, (weakref.ref(module), name))


def _module_put(module: nn.Module, name: str, submodule: Any) -> None:
    if module in _sharded and submodule is not None:
        if any(_is_alone(parameter) for parameter in submodule.parameters()):
            _check_at_next_forward(module, (weakref.ref(module), weakref.ref(submodule)))


def _is_alone(parameter: torch.Tensor | None) -> bool:
    return parameter is not None and parameter.requires_grad and not _C.in_group(parameter)


def _check_at_next_forward(module: nn.Module, added: Addition) -> None:
    root = _sharded[module]()
    if root is None:
        return

    def check(root: nn.Module, _: Any) -> None:
        handle.remove()
        alone = {id(parameter) for parameter in _still_there(added) if _is_alone(parameter)}
        names = [name for name, parameter in root.named_parameters() if id(parameter) in alone]
        if names:
            warnings.warn(
                f"{', '.join(names)} of {type(root).__name__} came after fully_shard and is in no group: "
                "nothing reduces its gradient, and ranks come to differ. Put parameters in their place "
                "before fully_shard, write values into those that are there (copy_, load_state_dict), "
                "or give the new module to fully_shard too",
                stacklevel=2,
            )

    handle = root.register_forward_pre_hook(check)


def _still_there(added: Addition) -> Iterator[torch.Tensor | None]:
    module, what = added[0](), added[1]
    if isinstance(what, str):
        if module is not None:
            yield module._parameters.get(what)
        return
    submodule = what()
    if submodule is not None:
        yield from submodule.parameters()
