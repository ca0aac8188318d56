"""PyTorch's DTensors and ours, each way, without copying the local tensor."""

from __future__ import annotations

from typing import Any

import torch

from . import _C
from ._C import Placement
from .mesh import mesh_from_torch, mesh_to_torch


def placement_to_torch(placement: Placement) -> Any:
    """PyTorch's object for a placement; a RaggedShard has none."""
    from torch.distributed import tensor as theirs

    if placement.kind == "shard":
        return theirs.Shard(placement.dim)
    if placement.kind == "replicate":
        return theirs.Replicate()
    if placement.kind == "partial":
        return theirs.Partial(placement.reduce_op)
    if placement.kind == "strided":
        from torch.distributed.tensor.placement_types import _StridedShard

        return _StridedShard(placement.dim, split_factor=placement.split_factor)
    raise _C.NotSupported(
        f"PyTorch's DTensor has no placement {placement!r}; redistribute to Shard({placement.dim})"
    )


def from_torch_dtensor(tensor: Any) -> torch.Tensor:
    """Our sharded tensor over the local part of a PyTorch DTensor. Differentiable."""
    return _C.from_local(
        tensor.to_local(),
        mesh_from_torch(tensor.device_mesh),
        tensor.placements,
        list(tensor.shape),
        list(tensor.stride()),
        False,
        False,
        None,
    )


def to_torch_dtensor(tensor: torch.Tensor, device_mesh: Any | None = None) -> Any:
    """The PyTorch DTensor over the local part of ours. Differentiable. Its mesh is the PyTorch mesh
    that ours came from, or `device_mesh`, or one that is made (see mesh_to_torch)."""
    from torch.distributed.tensor import DTensor

    sharding = _C.sharding(tensor)
    return DTensor.from_local(
        _C.to_local(tensor, None),
        device_mesh if device_mesh is not None else mesh_to_torch(sharding.mesh),
        [placement_to_torch(p) for p in sharding.placements],
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )
