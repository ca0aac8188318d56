"""Sharded tensors: functions on ordinary torch.Tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import _C
from ._C import DeviceMesh, PendingTensor, Placement, Sharding
from .mesh import mesh_from_torch
from .placement import Placements


def is_dtensor(obj: object) -> bool:
    """True for a sharded tensor of this library."""
    return _C.is_dtensor(obj)


def sharding(tensor: torch.Tensor) -> Sharding:
    """Mesh, placements and global metadata of a sharded tensor, as one value."""
    return _C.sharding(tensor)


def placements(tensor: torch.Tensor) -> tuple[Placement, ...]:
    """One placement for each axis of the tensor's mesh, to be read in mesh order: from_local of
    to_local with these is the tensor again.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("dp=2,tp=2")
        ...     x = distribute_tensor(torch.arange(8.), mesh, "R,R")
        ...     x = redistribute(x, Sharding(mesh, "S0,S0", [8], order=[1, 0]))
        ...     return placements(x), from_local(to_local(x), mesh, placements(x)).tolist()
        >>> tessera.run_ranks(4, show)[0]
        ((StridedShard(0, 2), Shard(0)), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])
    """
    return _C.placements(tensor)


def device_mesh(tensor: torch.Tensor) -> DeviceMesh:
    """The mesh over which the tensor is sharded."""
    return _C.device_mesh(tensor)


def distribute_tensor(
    tensor: torch.Tensor,
    mesh: DeviceMesh | Any,
    placements: Placements,
    *,
    src_data_rank: int | None = 0,
) -> torch.Tensor:
    """A sharded leaf tensor from a full one; every rank of the mesh calls it.

    The data of the mesh's rank number `src_data_rank` is used and sent to the others; with None each
    rank takes its shard of its own copy and nothing is sent. A Parameter stays a Parameter.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("tp=2")
        ...     x = distribute_tensor(torch.arange(6.), mesh, [Shard(0)])
        ...     return x.shape, to_local(x).tolist()
        >>> tessera.run_ranks(2, show)[1]
        (torch.Size([6]), [3.0, 4.0, 5.0])
    """
    out = _C.distribute_tensor(tensor, mesh_from_torch(mesh), placements, src_data_rank)
    if isinstance(tensor, torch.nn.Parameter) and out is not tensor:
        return torch.nn.Parameter(out.detach(), requires_grad=tensor.requires_grad)
    return out


def distribute_(
    tensor: torch.Tensor,
    mesh: DeviceMesh | Any,
    placements: Placements,
    *,
    src_data_rank: int | None = 0,
) -> torch.Tensor:
    """The same in place: the tensor itself becomes sharded, for everything that references it (a module,
    an optimizer, a tied weight), and so does its gradient. A sharded tensor is redistributed."""
    _C.distribute_(tensor, mesh_from_torch(mesh), placements, src_data_rank)
    return tensor


def from_local(
    local: torch.Tensor,
    mesh: DeviceMesh | Any,
    placements: Placements,
    *,
    shape: Sequence[int] | None = None,
    stride: Sequence[int] | None = None,
    run_check: bool = False,
    even: bool = False,
    grad_placements: Placements | None = None,
) -> torch.Tensor:
    """The sharded tensor whose part on this rank is `local`, which it shares. Differentiable.

    Without `shape` the ranks exchange their sizes (one small message), and parts that are not
    as torch.chunk splits are described exactly. `even=True` says that all have one size and saves the
    message. `run_check` compares what should be equal between ranks.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("tp=3")
        ...     x = from_local(torch.ones(rank + 1), mesh, "S0")
        ...     return x.shape, placements(x)
        >>> tessera.run_ranks(3, show)[0]
        (torch.Size([6]), (RaggedShard(0, [1,2,3]),))
    """
    return _C.from_local(
        local, mesh_from_torch(mesh), placements, shape, stride, run_check, even, grad_placements
    )


def to_local(tensor: torch.Tensor, *, grad_placements: Placements | None = None) -> torch.Tensor:
    """This rank's part, shared with the tensor. Differentiable."""
    return _C.to_local(tensor, grad_placements)


def redistribute(
    tensor: torch.Tensor,
    placements: Placements | Sharding,
    *,
    mesh: DeviceMesh | Any | None = None,
    forward_dtype: torch.dtype | None = None,
    backward_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The same values with other placements, on its mesh or another one. Differentiable.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("tp=2")
        ...     x = tessera.distribute_tensor(torch.arange(4.).view(2, 2), mesh, "S0")
        ...     return to_local(redistribute(x, "S1")).tolist()
        >>> tessera.run_ranks(2, show)
        [[[0.0], [2.0]], [[1.0], [3.0]]]
    """
    if isinstance(placements, Sharding):
        return _C.redistribute_to(tensor, placements, forward_dtype, backward_dtype)
    if mesh is None:
        if not _C.is_dtensor(tensor):
            raise _C.InvalidArgument(
                f"redistribute of a plain tensor of shape {tuple(tensor.shape)}, which is on no mesh "
                "yet; make it a sharded one by distribute_tensor or from_local"
            )
        target = _C.device_mesh(tensor)
    else:
        target = mesh_from_torch(mesh)
    return _C.redistribute(tensor, target, placements, forward_dtype, backward_dtype)


def redistribute_async(
    tensor: torch.Tensor,
    placements: Placements | Sharding,
    *,
    forward_dtype: torch.dtype | None = None,
    backward_dtype: torch.dtype | None = None,
) -> PendingTensor:
    """Starts a redistribution on the tensor's mesh and returns; compute, then wait() for the result.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("tp=2")
        ...     x = tessera.distribute_tensor(torch.arange(4.).view(2, 2), mesh, "S0")
        ...     columns = redistribute_async(x, "S1")
        ...     return to_local(columns.wait()).tolist()
        >>> tessera.run_ranks(2, show)
        [[[0.0], [2.0]], [[1.0], [3.0]]]
    """
    if not isinstance(placements, Sharding):
        placements = _C.sharding(tensor).with_placements(placements)
    return _C.redistribute_async(tensor, placements, forward_dtype, backward_dtype)


def full_tensor(
    tensor: torch.Tensor, *, grad_placements: Placements | None = None
) -> torch.Tensor:
    """The full tensor as a plain one, on every rank. Differentiable."""
    return _C.full_tensor(tensor, grad_placements)
