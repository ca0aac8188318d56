"""DTensorSpec: what PyTorch keeps of a sharded tensor beside its local part."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch

from .. import _C
from ..mesh import mesh_as_given


class TensorMeta(NamedTuple):
    """Shape, stride and element type of the global tensor."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype


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

    def _axes_of(self, dim: int) -> list[int]:
        return [axis for axis, p in enumerate(self.placements) if p.is_shard(dim)]

    def is_replicated(self) -> bool:
        """Whether every rank has all of it."""
        return all(placement.is_replicate() for placement in self.placements)

    def is_sharded(self) -> bool:
        """Whether some axis shards it."""
        return any(placement.is_shard() for placement in self.placements)

    @property
    def _meta(self) -> TensorMeta:
        if self.tensor_meta is None:
            raise _C.InvalidArgument("a DTensorSpec without tensor_meta has no shape")
        return self.tensor_meta


def spec_of(tensor: torch.Tensor) -> DTensorSpec:
    """The spec of a sharded tensor."""
    return spec_of_sharding(_C.sharding(tensor))


def spec_of_sharding(sharding: _C.Sharding) -> DTensorSpec:
    """The same value under PyTorch's names."""
    meta = TensorMeta(torch.Size(sharding.shape), tuple(sharding.stride), sharding.dtype)
    return DTensorSpec(mesh_as_given(sharding.mesh), sharding.placements, meta)


__all__ = ["DTensorSpec", "TensorMeta"]
