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
        """Over how many parts the tensor is cut."""
        counts = [self.mesh.size(a) for a, p in enumerate(self.placements) if p.is_shard()]
        return int(torch.Size(counts).numel())

    def is_replicated(self) -> bool:
        """Whether every rank has all of it."""
        return all(placement.is_replicate() for placement in self.placements)

    def is_sharded(self) -> bool:
        """Whether some axis cuts it."""
        return any(placement.is_shard() for placement in self.placements)

    @property
    def _meta(self) -> TensorMeta:
        if self.tensor_meta is None:
            raise _C.InvalidArgument("a DTensorSpec without tensor_meta has no shape")
        return self.tensor_meta


def spec_of(tensor: torch.Tensor) -> DTensorSpec:
    """The spec of a sharded tensor."""
    meta = TensorMeta(tensor.shape, tensor.stride(), tensor.dtype)
    return DTensorSpec(mesh_as_given(_C.device_mesh(tensor)), _C.placements(tensor), meta)


__all__ = ["DTensorSpec", "TensorMeta"]
