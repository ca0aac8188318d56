"""DTensorSpec: what PyTorch keeps of a sharded tensor beside its local part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._dtype_abbrs import dtype_abbrs

from .. import _C
from ..mesh import mesh_as_given


class TensorMeta(NamedTuple):
    """Shape, stride and element type of the global tensor."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


class ShardOrderEntry(NamedTuple):
    """The axes that shard one dim of the tensor, outermost first."""

    tensor_dim: int
    mesh_dims: tuple[int, ...]


def _shard_order(
    placements: Sequence[_C.Placement], sizes: Sequence[int]
) -> tuple[ShardOrderEntry, ...] | None:
    """An entry for each dim that is sharded. A strided shard with split factor f is one of an axis
    inside later axes of f ranks together; None where no axes have that many, or sizes are ragged.

        >>> from tessera.compat import Shard, _StridedShard
        >>> _shard_order([_StridedShard(0, split_factor=2), Shard(0)], [4, 2])
        (ShardOrderEntry(tensor_dim=0, mesh_dims=(1, 0)),)
    """
    order: dict[int, list[int]] = {}
    for axis in reversed(range(len(placements))):
        placement = placements[axis]
        if not placement.is_shard():
            continue
        if placement.kind == "ragged":
            return None
        axes = order.setdefault(placement.dim, [])
        outside = placement.split_factor if placement.kind == "strided" else 1
        ranks = (math.prod(sizes[a] for a in axes[:count]) for count in range(len(axes) + 1))
        place = next((i for i, product in enumerate(ranks) if product == outside), None)
        if place is None:
            return None
        axes.insert(place, axis)
    return tuple(ShardOrderEntry(dim, tuple(axes)) for dim, axes in sorted(order.items()))


@dataclasses.dataclass(frozen=True)
class DTensorSpec:
    """Mesh, placements and global metadata. A value; see tessera.Sharding, which knows more."""

    mesh: Any
    placements: tuple[_C.Placement, ...]
    tensor_meta: TensorMeta | None = None

    @property
    def device_mesh(self) -> Any:
        return self.mesh

    @property
    def shape(self) -> torch.Size:
        return self._meta.shape

    @property
    def stride(self) -> tuple[int, ...]:
        return self._meta.stride

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def shard_order(self) -> tuple[ShardOrderEntry, ...] | None:
        """For each sharded dim the axes that shard it, outermost first; None where no order of the
        axes gives these shards."""
        return _shard_order(self.placements, [self.mesh.size(a) for a in range(self.mesh.ndim)])

    @property
    def num_shards(self) -> int:
        """Over how many shards the tensor is distributed."""
        counts = [self.mesh.size(a) for a, p in enumerate(self.placements) if p.is_shard()]
        return int(torch.Size(counts).numel())

    @property
    def dim_map(self) -> list[int]:
        """For each dim of the tensor the axis that shards it, the first of several; -1: none."""
        return [next(iter(self._axes_of(dim)), -1) for dim in range(self.ndim)]

    @property
    def num_shards_map(self) -> list[int]:
        """For each dim of the tensor into how many parts it is sharded."""
        sizes = ([self.mesh.size(axis) for axis in self._axes_of(dim)] for dim in range(self.ndim))
        return [int(torch.Size(of_dim).numel()) for of_dim in sizes]

    @property
    def sums(self) -> list[int]:
        """The axes over which ranks hold addends."""
        return [axis for axis, p in enumerate(self.placements) if p.is_partial()]

    @classmethod
    def from_dim_map(
        cls, mesh: Any, dim_map: list[int], sums: list[int], tensor_meta: TensorMeta | None = None
    ) -> DTensorSpec:
        """The spec with these."""
        placements = [_C.partial() if a in sums else _C.replicate() for a in range(mesh.ndim)]
        for dim, axis in enumerate(dim_map):
            if axis < 0:
                continue
            if not placements[axis].is_replicate():
                raise _C.InvalidArgument(
                    f"axis {axis} cannot shard dim {dim} in {dim_map}: it is {placements[axis]} already"
                )
            placements[axis] = _C.shard(dim)
        return cls(mesh, tuple(placements), tensor_meta)

    def shallow_copy_with_tensor_meta(self, tensor_meta: TensorMeta | None) -> DTensorSpec:
        """The same mesh and placements for a tensor of another shape, stride or element type."""
        return dataclasses.replace(self, tensor_meta=tensor_meta)

    def _axes_of(self, dim: int) -> list[int]:
        return [axis for axis, p in enumerate(self.placements) if p.is_shard(dim)]

    def is_replicated(self) -> bool:
        """Whether every rank has all of it."""
        return all(placement.is_replicate() for placement in self.placements)

    def is_sharded(self) -> bool:
        """Whether some axis shards it."""
        return any(placement.is_shard() for placement in self.placements)

    def __str__(self) -> str:
        """In PyTorch's letters, with the place among the axes of a dim: Spec(f32[8, 4](S(0)[1]S(0)[0]))."""
        order = {entry.tensor_dim: entry.mesh_dims for entry in self.shard_order or ()}
        text = ""
        for axis, placement in enumerate(self.placements):
            text += str(placement)
            axes = order.get(placement.dim, ()) if placement.is_shard() else ()
            text += f"[{axes.index(axis)}]" if len(axes) > 1 else ""
        meta = self.tensor_meta
        of = "unknown shape" if meta is None else f"{dtype_abbrs[meta.dtype]}{list(meta.shape)}"
        return f"Spec({of}({text}))"

    @property
    def _meta(self) -> TensorMeta:
        if self.tensor_meta is None:
            raise _C.InvalidArgument("tensor_meta is not set: a DTensorSpec without it has no shape")
        return self.tensor_meta


def spec_of(tensor: torch.Tensor) -> DTensorSpec:
    """The spec of a sharded tensor."""
    return spec_of_sharding(_C.sharding(tensor))


def spec_of_sharding(sharding: _C.Sharding) -> DTensorSpec:
    """The same value under PyTorch's names."""
    meta = TensorMeta(torch.Size(sharding.shape), tuple(sharding.stride), sharding.dtype)
    return DTensorSpec(mesh_as_given(sharding.mesh), sharding.placements, meta)


# torch.load(weights_only=True) reads them, as PyTorch's.
torch.serialization.add_safe_globals([DTensorSpec, ShardOrderEntry, TensorMeta])

__all__ = ["DTensorSpec", "ShardOrderEntry", "TensorMeta"]
