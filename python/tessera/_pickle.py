"""torch.save and pickle of sharded tensors: a rank writes its own part and the sharding, and reads
them back.

A file of one rank is not a checkpoint: the part of another rank is refused, and so is a world that the
mesh does not fit. tessera.save writes what any mesh can load.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import _C
from .placement import placement_text
from .ranks import current_world


def reduce(tensor: torch.Tensor) -> Any:
    """What pickle writes for a sharded tensor."""
    sharding = _C.sharding(tensor)
    with torch.no_grad():
        local = _C.to_local(tensor.detach(), None)
    if local.untyped_storage().nbytes() > local.numel() * local.element_size():
        local = local.clone(memory_format=torch.preserve_format)  # torch.save writes whole storages
    # Text and numbers: torch.load(weights_only=True) builds these without being asked.
    return rebuild_dtensor, (
        local,
        str(sharding.mesh),
        tuple(map(placement_text, sharding.placements)),
        tuple(sharding.shape),
        tuple(tensor.stride()),
        tensor.requires_grad,
        sharding.mesh.get_rank(),
    )


def rebuild_dtensor(
    local: torch.Tensor,
    mesh_text: str,
    placements: Sequence[str],
    shape: Sequence[int],
    stride: Sequence[int],
    requires_grad: bool,
    saved_by: int | None,
) -> torch.Tensor:
    """The sharded tensor of this rank's part, on the same mesh of the calling rank's world."""
    mesh = _C.parse_device_mesh(mesh_text, current_world())
    placed = list(map(_C.Placement.parse, placements))
    sharding = _C.Sharding(mesh, placed, list(shape))
    rank = mesh.get_rank()
    if rank != saved_by and not _holds_the_same(sharding, rank, saved_by):
        raise _C.InvalidArgument(
            f"the part of rank {saved_by} of a sharded tensor {sharding} cannot be loaded on rank "
            f"{rank}: each rank loads the file that it saved. tessera.save writes checkpoints that "
            "any rank and mesh can load"
        )
    made = _C.from_local(local, mesh, placed, list(shape), list(stride), False, False, None)
    return made.requires_grad_(requires_grad)


def _holds_the_same(sharding: _C.Sharding, rank: int | None, other: int | None) -> bool:
    if rank is None or other is None or any(p.is_partial() for p in sharding.placements):
        return False
    return sharding.boxes(rank) == sharding.boxes(other)


torch.serialization.add_safe_globals([rebuild_dtensor])

__all__ = ["rebuild_dtensor", "reduce"]
