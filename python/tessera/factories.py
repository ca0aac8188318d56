"""New sharded tensors from their global shape: each rank makes its part, nothing is sent.

    >>> def show(rank):
    ...     mesh = tessera.init_device_mesh("tp=2")
    ...     return zeros(4, 6, device_mesh=mesh, placements="S1").shape
    >>> tessera.run_ranks(2, show)[0]
    torch.Size([4, 6])

Random values hang on the seed and the element's place in the global tensor, not on the placements or
the number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _C
from ._C import DeviceMesh
from .mesh import mesh_from_torch
from .placement import Placements


def _shape(size: tuple[Any, ...]) -> list[int]:
    """zeros(2, 3) and zeros((2, 3)) are the same."""
    if len(size) == 1 and isinstance(size[0], Sequence):
        return list(size[0])
    return list(size)


def _where(mesh: Any, placements: Placements | None) -> tuple[DeviceMesh, Placements]:
    if mesh is None:
        raise _C.InvalidArgument("a factory needs device_mesh=, the mesh of the new tensor")
    ours = mesh_from_torch(mesh)
    return ours, ["R"] * ours.ndim if placements is None else placements


def _of_shape(name: str, what: str) -> Callable[..., torch.Tensor]:
    make = getattr(_C, name)

    def factory(
        *size: Any,
        device_mesh: Any = None,
        placements: Placements | None = None,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
    ) -> torch.Tensor:
        return make(_shape(size), *_where(device_mesh, placements), dtype, requires_grad)

    factory.__name__ = factory.__qualname__ = name
    factory.__doc__ = f"{what}, sharded; without placements replicated."
    return factory


empty = _of_shape("empty", "Memory as it is")
zeros = _of_shape("zeros", "Zeros")
ones = _of_shape("ones", "Ones")
rand = _of_shape("rand", "Uniform numbers from [0, 1)")
randn = _of_shape("randn", "Standard normal numbers")


def full(
    size: Sequence[int],
    fill_value: Any,
    *,
    device_mesh: Any = None,
    placements: Placements | None = None,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """One value everywhere, sharded; the dtype is the value's unless given."""
    mesh, placed = _where(device_mesh, placements)
    return _C.full(list(size), fill_value, mesh, placed, dtype, requires_grad)


def arange(
    *bounds: Any,
    device_mesh: Any = None,
    placements: Placements | None = None,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """arange(end), arange(start, end), arange(start, end, step), sharded."""
    mesh, placed = _where(device_mesh, placements)
    start, end, step = {
        1: lambda: (0, bounds[0], 1),
        2: lambda: (*bounds, 1),
        3: lambda: bounds,
    }[len(bounds)]()
    return _C.arange(start, end, step, mesh, placed, dtype, requires_grad)


def eye(
    rows: int,
    columns: int | None = None,
    *,
    device_mesh: Any = None,
    placements: Placements | None = None,
    dtype: torch.dtype | None = None,
    requires_grad: bool = False,
) -> torch.Tensor:
    """Ones on the diagonal, sharded."""
    mesh, placed = _where(device_mesh, placements)
    width = rows if columns is None else columns
    return _C.eye(rows, width, mesh, placed, dtype, requires_grad)
