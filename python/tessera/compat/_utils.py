"""The names of torch.distributed.tensor._utils that programs use."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from .. import _C
from ..mesh import mesh_from_torch
from ..placement import Placements


class ExplicitRedistributionContext:
    """As in torch.distributed.tensor: inside it, communication that nobody wrote is an error
    (mode="warn": a warning)."""

    def __init__(self, enable: bool = True, strict: bool = False, mode: str = "raise"):
        policy = {"raise": "forbid", "warn": "warn"}[mode] if enable else "allow"
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


__all__ = ["ExplicitRedistributionContext", "compute_local_shape_and_global_offset"]
