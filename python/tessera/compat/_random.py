"""The names of torch.distributed.tensor._random. Random numbers here hang on the seed and on an element's
place in the global tensor, so there is nothing that tracks the ranks' generators."""

from __future__ import annotations

from typing import Any

from ..ranks import manual_seed as _manual_seed


def manual_seed(seed: int, device_mesh: Any) -> None:
    """Seeds this rank's generator; the same seed on every rank."""
    _manual_seed(seed)


def is_rng_supported_mesh(device_mesh: Any) -> bool:
    """True: random ops work on all devices."""
    return True


__all__ = ["is_rng_supported_mesh", "manual_seed"]
