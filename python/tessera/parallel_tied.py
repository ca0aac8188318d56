"""Modules that share a weight with one that a plan splits, and that the plan does not name: an output head
whose weight is the embedding's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from .mesh import mesh_from_torch
from .parallel_style import ParallelStyle, placed, sharded
from .placement import Replicate
from .tensor import distribute_, is_dtensor, to_local

_FOLLOWS = "_tessera_follows_tied_weight"
_IS_PLAIN_CALL = "_tessera_is_plain_call"


class TiedModule(ParallelStyle):
    """Plain tensors go in and come out, equal on all ranks, though the weight is sharded. Sharded ones are
    left alone. Ends when the module gets a style of its own."""

    def __init__(self, shared: list[nn.Parameter]) -> None:
        self.shared = shared

    def _parameters(self, module: nn.Module) -> list[nn.Parameter]:
        return list(module.parameters(recurse=False))

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        mesh = mesh_from_torch(device_mesh)
        for parameter in module.parameters(recurse=False):
            if not any(parameter is one for one in self.shared):
                distribute_(parameter, mesh, [Replicate()], src_data_rank=self.src_data_rank)
        if _FOLLOWS in module.__dict__:
            return module
        module.__dict__[_FOLLOWS] = True

        def replicated(value: Any) -> Any:
            return sharded(value, mesh, Replicate()) if isinstance(value, torch.Tensor) else value

        # The module that is called may be a copy of this one.
        def enter(called: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
            given = [*inputs, *named.values()]
            has_sharded = any(isinstance(x, torch.Tensor) and is_dtensor(x) for x in given)
            called.__dict__[_IS_PLAIN_CALL] = called.__dict__[_FOLLOWS] and not has_sharded
            if not called.__dict__[_IS_PLAIN_CALL]:
                return None
            return tuple(map(replicated, inputs)), {n: replicated(x) for n, x in named.items()}

        def leave(called: nn.Module, _: Any, output: Any) -> Any:
            if not called.__dict__[_IS_PLAIN_CALL]:
                return None
            if not (isinstance(output, torch.Tensor) and is_dtensor(output)):
                return None
            return to_local(placed(output, Replicate()))

        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave)
        return module


def has_own_style(module: nn.Module) -> None:
    """A module gets a style: what TiedModule did for it ends."""
    if _FOLLOWS in module.__dict__:
        module.__dict__[_FOLLOWS] = False


def tied_modules(
    root: nn.Module, styled: Iterable[nn.Module]
) -> Iterator[tuple[str, nn.Module, TiedModule]]:
    """The modules of `root` that are not `styled`, but have a parameter of one that is."""
    own = list(styled)
    named = {id(module) for module in own}
    split = {id(p): p for module in own for p in module.parameters(recurse=False)}
    for path, module in root.named_modules():
        shared = [p for p in module.parameters(recurse=False) if id(p) in split]
        if shared and id(module) not in named:
            yield path, module, TiedModule(shared)
