"""What a parallel style is, and the layouts of what goes in and out of a module."""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from . import _C
from .module import reduce_gradients
from .placement import RaggedShard, Replicate, Shard, StridedShard
from .tensor import distribute_, from_local, is_dtensor, placements, redistribute, to_local

Layout = Any  # a Placement, or None for what is left alone


def sharded(
    tensor: torch.Tensor, mesh: Any, layout: Layout, size: int | None = None
) -> torch.Tensor:
    """A plain tensor as the part of a sharded one. Once for all modules that get the same tensor, so
    that their gradients are added up before they are reduced. `size` is that of the sharded dim, all
    ranks together; without it the ranks exchange theirs, which takes a message."""
    if is_dtensor(tensor):
        return tensor
    grad = tensor.requires_grad and torch.is_grad_enabled()
    # A leaf's node would refer to the leaf, and neither would be freed.
    keeps = grad and not tensor.is_leaf
    key = (mesh, repr(layout), tensor._version) if keeps else None
    if keeps:
        kept = getattr(tensor, "_tessera_sharded", None)
        if kept is not None and kept[0] == key:
            return kept[1]
    shape = None
    if size is not None and isinstance(layout, Shard):
        shape = list(tensor.shape)
        shape[layout.dim] = size
    out = from_local(tensor, mesh, [layout], shape=shape)
    if keeps:
        tensor._tessera_sharded = (key, out)
    return out


def placed(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    if placements(tensor)[0] == _on_dims(layout, tensor):
        return tensor
    return redistribute(tensor, [layout])


def placed_once(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The same, in one message for all modules that get the tensor: queries, keys and values."""
    layout = _on_dims(layout, tensor)
    return tensor if placements(tensor)[0] == layout else _C.redistribute_once(tensor, layout)


def _on_dims(layout: Layout, tensor: torch.Tensor) -> Layout:
    if not isinstance(layout, Shard) or layout.dim >= 0:
        return layout
    dim = layout.dim + tensor.dim()
    if isinstance(layout, StridedShard):
        return StridedShard(dim, layout.split_factor)
    if isinstance(layout, RaggedShard):
        return RaggedShard(dim, layout.sizes)
    return Shard(dim)


_collected = threading.local()  # ranks may be threads


@contextlib.contextmanager
def shared_reduction() -> Iterator[None]:
    """The parameters that styles give to reduce_together inside share the messages of a backward."""
    outer = getattr(_collected, "parameters", None)
    parameters: list[torch.Tensor] = []
    _collected.parameters = parameters
    try:
        yield
    finally:
        _collected.parameters = outer
    reduce_gradients(parameters)


def reduce_together(parameters: list[torch.Tensor]) -> None:
    """reduce_gradients, at the end of the enclosing shared_reduction if there is one."""
    collected = getattr(_collected, "parameters", None)
    if collected is None:
        reduce_gradients(parameters)
    else:
        collected.extend(parameters)


class ParallelStyle(ABC):
    """What parallelize_module does with one module. A subclass has _apply(module, device_mesh)."""

    src_data_rank: int | None = 0

    @abstractmethod
    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module: ...

    def _check(self, module: nn.Module, ranks: int) -> None:
        """Raises if the style cannot be applied to the module. Before any module changes."""

    def _parameters(self, module: nn.Module) -> list[nn.Parameter]:
        """Those that _apply may distribute."""
        return list(module.parameters())

    def _distribute(self, module: nn.Module, mesh: Any, layouts: Mapping[str, Layout]) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            layout = layouts.get(name, Replicate())
            distribute_(parameter, mesh, [layout], src_data_rank=self.src_data_rank)


def as_tuple(layouts: Any) -> tuple[Layout, ...]:
    if isinstance(layouts, (tuple, list)):
        return tuple(layouts)
    return (layouts,)


_HOOKS = "_tessera_style_hooks"


def _keep(module: nn.Module, handle: Any) -> None:
    module.__dict__.setdefault(_HOOKS, []).append(handle)


def remove_hooks(module: nn.Module) -> None:
    """Those of hook_input and hook_output: another style replaces the one that made them."""
    for handle in module.__dict__.pop(_HOOKS, ()):
        handle.remove()


def hook_input(
    module: nn.Module,
    change: Callable[[torch.Tensor], torch.Tensor],
    change_others: Callable[[Any], Any] | None = None,
) -> None:
    """Changes the module's first argument, by position or by name; and the others, if asked."""

    def hook(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        rest = inputs[1:]
        if change_others is not None:
            rest = tuple(change_others(value) for value in rest)
            named = {name: change_others(value) for name, value in named.items()}
        if inputs:
            return (change(inputs[0]), *rest), named
        name = next(iter(named), None)
        if name is None:
            raise _C.InvalidArgument(f"{type(module).__name__} was called without arguments")
        return (), {**named, name: change(named[name])}

    _keep(module, module.register_forward_pre_hook(hook, with_kwargs=True))


def hook_output(
    module: nn.Module,
    layout_of: Callable[[torch.Tensor, torch.Tensor], Layout],
    use_local_output: bool,
) -> None:
    """Brings the module's result to the layout that `layout_of(input, result)` returns; None leaves it as
    the op made it. An op's own layout is no promise: where a rank would hold nothing, or in parts, an op
    may compute a replicated result, which is not the rank's part."""

    def hook(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        if not (isinstance(output, torch.Tensor) and is_dtensor(output)):
            return output
        layout = layout_of(inputs[0] if inputs else next(iter(named.values())), output)
        if layout is not None:
            output = placed(output, layout)
        return to_local(output) if use_local_output else output

    _keep(module, module.register_forward_hook(hook, with_kwargs=True))
