"""The names of torch.distributed.tensor._random. Random numbers here depend on the seed and on an element's
place in the global tensor, so there is nothing that tracks the ranks' generators."""

from __future__ import annotations

from typing import Any

from .. import _C
from ..mesh import mesh_from_torch
from ..ranks import manual_seed as _manual_seed

# Programs that switch the tracker off test whether there is one, as there is none on CPUs in PyTorch.
_rng_tracker = None


def manual_seed(seed: int, device_mesh: Any) -> None:
    """Seeds this rank's generator; the same seed on every rank of the mesh."""
    if not mesh_from_torch(device_mesh).contains_me():
        raise _C.InvalidArgument(
            "manual_seed requires the current rank to be a part of the device mesh, "
            f"{device_mesh}"
        )
    _manual_seed(seed)


def is_rng_supported_mesh(device_mesh: Any) -> bool:
    """True: random ops work on all devices."""
    return True


__all__ = ["is_rng_supported_mesh", "manual_seed"]
