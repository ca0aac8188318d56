"""The names of torch.distributed.tensor._collective_utils that programs use."""

from __future__ import annotations

from typing import Any

import torch


def mesh_broadcast(
    tensor: torch.Tensor,
    mesh: Any,
    mesh_dim: int = 0,
    async_op: bool = False,
    *,
    group_src: int = 0,
) -> Any:
    """Plain tensors become that of the axis's rank number `group_src`."""
    group = mesh.get_group(mesh_dim)
    return torch.distributed.broadcast(
        tensor, group=group, async_op=async_op, group_src=group_src
    )


def mesh_scatter(
    output: torch.Tensor,
    scatter_list: list[torch.Tensor],
    mesh: Any,
    mesh_dim: int = 0,
    async_op: bool = False,
    *,
    group_src: int = 0,
) -> Any:
    """`output` becomes this rank's of the list that the axis's rank number `group_src` has."""
    mine = mesh.get_local_rank(mesh_dim) == group_src
    parts = [part.contiguous() for part in scatter_list] if mine else None
    group = mesh.get_group(mesh_dim)
    return torch.distributed.scatter(
        output, parts, group=group, async_op=async_op, group_src=group_src
    )


def pad_tensor(tensor: torch.Tensor, pad_dim: int, pad_size: int) -> torch.Tensor:
    """The tensor with `pad_size` zeros after its end along a dim."""
    if pad_size == 0:
        return tensor
    shape = list(tensor.shape)
    shape[pad_dim] = pad_size
    return torch.cat([tensor, tensor.new_zeros(shape)], pad_dim)


def unpad_tensor(tensor: torch.Tensor, pad_dim: int, pad_size: int) -> torch.Tensor:
    """The tensor without its last `pad_size` elements along a dim."""
    return tensor.narrow(pad_dim, 0, tensor.size(pad_dim) - pad_size)


__all__ = ["mesh_broadcast", "mesh_scatter", "pad_tensor", "unpad_tensor"]
