"""The names of torch.distributed.tensor.placement_types."""

from __future__ import annotations

import torch

from .. import _C
from .._C import Placement
from ..placement import Partial, Replicate, Shard, StridedShard
from ._collective_utils import pad_tensor

# The addends that PyTorch calls _MaskPartial have zeros where the mask is: ordinary ones.
_MaskPartial = Partial
_Partial = Partial


class _StridedShard(StridedShard):
    def __new__(cls, dim: int, *, split_factor: int) -> _StridedShard:
        return _C.strided_shard(dim, split_factor)  # type: ignore[return-value]


def _part(placement: Placement, tensor: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    """What a rank holds of a plain tensor that the placement shards over that many ranks."""
    mesh = _C.DeviceMesh([("ranks", ranks)])
    boxes = _C.Sharding(mesh, [placement], list(tensor.shape)).boxes(rank)
    pieces = [tensor[tuple(map(slice, begin, end))] for begin, end in boxes]
    if not pieces:
        return tensor.narrow(placement.dim, tensor.size(placement.dim), 0)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, placement.dim)


def _split_tensor(
    self: Placement,
    tensor: torch.Tensor,
    num_chunks: int,
    *,
    with_padding: bool = True,
    contiguous: bool = True,
) -> tuple[list[torch.Tensor], list[int]]:
    """The parts of a plain tensor as the placement shards it over `num_chunks` ranks, and by how much
    each is padded to the size of the first."""
    dim = self.dim
    parts = [_part(self, tensor, num_chunks, rank) for rank in range(num_chunks)]
    pads = [parts[0].size(dim) - part.size(dim) for part in parts] if with_padding else []
    for i, pad in enumerate(pads):
        parts[i] = pad_tensor(parts[i], dim, pad)
    return [part.contiguous() for part in parts] if contiguous else parts, pads


def _select_split_tensor(
    self: Placement,
    tensor: torch.Tensor,
    num_chunks: int,
    index: int,
    *,
    with_padding: bool = True,
    contiguous: bool = True,
    clone: bool = True,
) -> torch.Tensor:
    """One of these parts."""
    part = _part(self, tensor, num_chunks, index)
    if with_padding:
        first = _part(self, tensor, num_chunks, 0)
        part = pad_tensor(part, self.dim, first.size(self.dim) - part.size(self.dim))
    part = part.contiguous() if contiguous else part
    return part.clone() if clone else part


def _local_shard_size_and_offset(
    curr_local_size: int, num_chunks: int, rank: int
) -> tuple[int, int]:
    """What the rank holds of a dim that is sharded over that many ranks, and where it starts (at the end, if it
    holds nothing)."""
    full = -(-curr_local_size // num_chunks)
    begin = min(rank * full, curr_local_size)
    return min(begin + full, curr_local_size) - begin, begin


for _name, _method in (
    ("_split_tensor", _split_tensor),
    ("_select_split_tensor", _select_split_tensor),
    ("local_shard_size_and_offset", staticmethod(_local_shard_size_and_offset)),
    ("_local_shard_size_and_offset", staticmethod(_local_shard_size_and_offset)),
):
    setattr(Placement, _name, _method)
setattr(Partial, "LINEAR_REDUCE_OPS", ("sum", "avg"))  # noqa: B010 - PyTorch's name, not ours

__all__ = ["Partial", "Placement", "Replicate", "Shard"]
