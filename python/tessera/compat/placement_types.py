"""The names of torch.distributed.tensor.placement_types."""

from __future__ import annotations

import torch

from .._C import Placement
from ..placement import Partial, Replicate, Shard, StridedShard

_StridedShard = StridedShard


def _split_tensor(
    self: Placement,
    tensor: torch.Tensor,
    num_chunks: int,
    *,
    with_padding: bool = True,
    contiguous: bool = True,
) -> tuple[list[torch.Tensor], list[int]]:
    """The parts of a plain tensor as Shard(dim) cuts it over `num_chunks` ranks, and by how much each
    is padded to the size of the first."""
    dim = self.dim
    parts = []
    for rank in range(num_chunks):
        size, begin = _local_shard_size_and_offset(tensor.size(dim), num_chunks, rank)
        parts.append(tensor.narrow(dim, begin, size))
    pads = [parts[0].size(dim) - part.size(dim) for part in parts] if with_padding else []
    for i, pad in enumerate(pads):
        if pad > 0:
            shape = list(tensor.shape)
            shape[dim] = pad
            parts[i] = torch.cat([parts[i], parts[i].new_zeros(shape)], dim)
    return [part.contiguous() for part in parts] if contiguous else parts, pads


def _local_shard_size_and_offset(
    curr_local_size: int, num_chunks: int, rank: int
) -> tuple[int, int]:
    """What the rank holds of a dim that is cut over so many, and where it starts (at the end, if it
    holds nothing)."""
    full = -(-curr_local_size // num_chunks)
    begin = min(rank * full, curr_local_size)
    return min(begin + full, curr_local_size) - begin, begin


setattr(Placement, "local_shard_size_and_offset", staticmethod(_local_shard_size_and_offset))  # noqa: B010
setattr(Placement, "_split_tensor", _split_tensor)  # noqa: B010 - PyTorch's name, not ours

__all__ = ["Partial", "Placement", "Replicate", "Shard"]
