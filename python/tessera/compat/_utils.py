"""The names of torch.distributed.tensor._utils that programs use."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from .. import _C
from ..mesh import mesh_from_torch
from ..placement import Placements
from ..tensor import from_local


class ExplicitRedistributionContext:
    """As in torch.distributed.tensor: inside it, communication that the caller did not request is an error
    (mode="warn": a warning)."""

    def __init__(self, enable: bool = True, strict: bool = False, mode: str = "raise"):
        policies = {"raise": "forbid", "warn": "warn"}
        if mode not in policies:
            raise _C.InvalidArgument(f"Invalid mode {mode}: ExplicitRedistributionContext takes 'raise' and 'warn'")
        policy = policies[mode] if enable else "allow"
        self._scope: AbstractContextManager[Any] = _C.CommPolicy(getattr(_C.ImplicitComm, policy))

    def __enter__(self) -> ExplicitRedistributionContext:
        self._scope.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._scope.__exit__(*exc)


def compute_local_shape_and_global_offset(
    global_shape: Sequence[int], mesh: Any, placements: Placements
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What this rank has of a tensor of that shape, and where it starts."""
    sharding = _C.Sharding(mesh_from_torch(mesh), placements, list(global_shape))
    return tuple(sharding.local_shape), tuple(sharding.local_offset)


def _compute_local_shape_and_global_offset(
    global_shape: Sequence[int],
    mesh_shape: Sequence[int],
    my_coordinate: Sequence[int],
    placements: Placements,
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The same for the rank at a coordinate of a mesh that need not exist."""
    mesh = _C.DeviceMesh([(f"axis{axis}", size) for axis, size in enumerate(mesh_shape)])
    rank = 0
    for size, index in zip(mesh_shape, my_coordinate, strict=True):
        rank = rank * size + index
    sharding = _C.Sharding(mesh.with_own_rank(rank), placements, list(global_shape))
    return tuple(sharding.local_shape), tuple(sharding.local_offset)


def compute_global_tensor_shape(
    shape: Sequence[int], mesh: Any, placements: Sequence[Any]
) -> torch.Size:
    """The shape of the tensor whose part on this rank has that one; the ranks exchange sizes."""
    if len(placements) != mesh.ndim:
        raise _C.InvalidArgument(
            f"Expected one placement per mesh dim, {mesh.ndim} of them, got {placements}"
        )
    try:
        return from_local(torch.empty(()).expand(list(shape)), mesh, placements).shape
    except _C.InvalidArgument as error:
        raise _C.InvalidArgument(
            f"Non-sharded dimensions should have identical size across ranks. {error}"
        ) from error


def compute_global_tensor_info(
    tensor: torch.Tensor, mesh: Any, placements: Sequence[Any]
) -> tuple[list[int], list[int]]:
    """Shape and strides of the tensor of which every rank has a part like this one."""
    shape, stride = list(tensor.shape), list(tensor.stride())
    for axis, placement in enumerate(placements):
        if not placement.is_shard():
            continue
        dim, ranks = placement.dim, mesh.size(axis)
        shape[dim] *= ranks
        outside = [d for d in range(len(shape)) if d != dim and stride[d] >= stride[dim]]
        for outer in outside:
            stride[outer] *= ranks
    return shape, stride


def compute_local_tensor_info(
    global_tensor: torch.Tensor, mesh: Any, placements: Placements
) -> tuple[list[int], list[int]]:
    """Shape and strides of this rank's part of a tensor without gaps in memory."""
    ours, shape = mesh_from_torch(mesh), list(global_tensor.shape)
    local = list(_C.Sharding(ours, placements, shape).local_shape)
    outermost_first = sorted(range(len(shape)), key=global_tensor.stride, reverse=True)
    stride, step = [0] * len(shape), 1
    for dim in reversed(outermost_first):
        stride[dim], step = step, step * local[dim]
    return local, stride


__all__ = [
    "ExplicitRedistributionContext",
    "compute_global_tensor_info",
    "compute_global_tensor_shape",
    "compute_local_shape_and_global_offset",
    "compute_local_tensor_info",
]
