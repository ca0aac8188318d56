"""Modules with sharded parameters, and functions on local parts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import _C
from ._C import DeviceMesh
from .mesh import mesh_from_torch

PartitionFn = Callable[[str, torch.nn.Module, Any], None]
BorderFn = Callable[[torch.nn.Module, Any, Any], Any]


def distribute_module(
    module: torch.nn.Module,
    device_mesh: DeviceMesh | Any,
    partition_fn: PartitionFn | None = None,
    input_fn: BorderFn | None = None,
    output_fn: BorderFn | None = None,
    *,
    src_data_rank: int | None = 0,
) -> torch.nn.Module:
    """Makes a module's parameters and buffers sharded, in place: an optimizer that holds them, and
    other modules that share them, see the change.

    `partition_fn(name, module, mesh)` is called for each submodule and distributes the tensors that
    it chooses (distribute_(module.weight, mesh, [Shard(0)])); what it leaves plain becomes replicated,
    in few messages whatever the number of tensors.
    `input_fn(module, inputs, mesh)` and `output_fn(module, outputs, mesh)` change what goes in and
    out of the module itself.
    """
    if getattr(module, "_tessera_distributed", False):
        raise _C.InvalidArgument(
            "distribute_module should only be called once on a module, but it has already been called on "
            "this module!"
        )
    mesh = mesh_from_torch(device_mesh)
    for name, part in module.named_modules():
        if partition_fn is not None:
            partition_fn(name, part, device_mesh)
    tensors = (*module.parameters(), *module.buffers())
    plain = [tensor for tensor in tensors if not _C.is_dtensor(tensor)]
    _C.distribute_all_(plain, mesh, ["R"] * mesh.ndim, src_data_rank)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda m, inputs: input_fn(m, inputs, device_mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda m, inputs, outputs: output_fn(m, outputs, device_mesh))
    module._tessera_distributed = True
    return module


def reduce_gradients(parameters: torch.nn.Module | Iterable[torch.Tensor]) -> None:
    """From now on the gradient of each sharded parameter has the parameter's placements.

    Without it a gradient keeps the placements that backward gave it, often Partial over the axis that
    shards the batch, and is reduced at each use: three times by Adam. Do not use it if gradients are
    accumulated over several backwards.
    """
    if isinstance(parameters, torch.nn.Module):
        parameters = parameters.parameters()
    _C.reduce_gradients(list(parameters))


def _per_tensor(placements: Any, count: int, what: str) -> list[Any]:
    """One entry (placements, or None) for each tensor; one for all where only one is given."""
    if placements is None:
        return [None] * count
    if isinstance(placements, str) or not isinstance(placements, Sequence):
        return [placements] * count
    entries = list(placements)
    if entries and all(_is_placement(entry) for entry in entries):
        return [entries] * count
    if len(entries) != count:
        raise _C.InvalidArgument(f"local_map: {what} for {len(entries)} tensors, there are {count}")
    return entries


def _is_placement(entry: Any) -> bool:
    return isinstance(entry, _C.Placement) or hasattr(entry, "is_replicate")


def local_map(
    func: Callable[..., Any] | None = None,
    out_placements: Any = None,
    in_placements: Any = None,
    in_grad_placements: Any = None,
    device_mesh: DeviceMesh | Any | None = None,
    *,
    redistribute_inputs: bool = False,
    even_outputs: bool = False,
) -> Callable[..., Any]:
    """Runs a function of plain tensors on the local parts of sharded ones. Differentiable.

    `out_placements` says how the local results make up the global one, for each tensor among them
    (None leaves one plain); `in_placements` the placements that each input must have.

        >>> def double_rows(x):                       # knows nothing of shards
        ...     return torch.cat([x, x], dim=1)
        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("tp=2")
        ...     x = tessera.distribute_tensor(torch.arange(4.).view(2, 2), mesh, "S0")
        ...     return local_map(double_rows, out_placements="S0")(x).tolist()
        >>> tessera.run_ranks(2, show)[0]
        [[0.0, 1.0, 0.0, 1.0], [2.0, 3.0, 2.0, 3.0]]
    """
    if func is None:
        return functools.partial(
            local_map,
            out_placements=out_placements,
            in_placements=in_placements,
            in_grad_placements=in_grad_placements,
            device_mesh=device_mesh,
            redistribute_inputs=redistribute_inputs,
            even_outputs=even_outputs,
        )

    def to_local(tensor: torch.Tensor, wanted: Any, grad: Any) -> torch.Tensor:
        if wanted is not None:
            target = _C.sharding(tensor).with_placements(wanted)
            if target != _C.sharding(tensor):
                if not redistribute_inputs:
                    raise _C.InvalidArgument(
                        f"local_map: an input is {_C.sharding(tensor)}, in_placements say {target}; "
                        "redistribute it, or set redistribute_inputs=True"
                    )
                tensor = _C.redistribute_to(tensor, target, None, None)
        return _C.to_local(tensor, grad)

    @functools.wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, spec = pytree.tree_flatten((args, kwargs))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        wanted = _per_tensor(in_placements, len(places), "in_placements")
        grads = _per_tensor(in_grad_placements, len(places), "in_grad_placements")
        mesh = None if device_mesh is None else mesh_from_torch(device_mesh)
        for place, want, grad in zip(places, wanted, grads, strict=True):
            if _C.is_dtensor(leaves[place]):
                mesh = mesh or _C.device_mesh(leaves[place])
                leaves[place] = to_local(leaves[place], want, grad)
        local_args, local_kwargs = pytree.tree_unflatten(leaves, spec)
        results, result_spec = pytree.tree_flatten(func(*local_args, **local_kwargs))
        places = [i for i, leaf in enumerate(results) if isinstance(leaf, torch.Tensor)]
        placed = _per_tensor(out_placements, len(places), "out_placements")
        for place, placements in zip(places, placed, strict=True):
            if placements is None:
                continue
            if mesh is None:
                raise _C.InvalidArgument("local_map: no sharded input and no device_mesh")
            results[place] = _C.from_local(
                results[place], mesh, placements, None, None, False, even_outputs, None
            )
        return pytree.tree_unflatten(results, result_spec)

    return mapped
