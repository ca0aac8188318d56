"""New sharded tensors from their global shape: each rank makes its part, nothing is sent.

    >>> def show(rank):
    ...     mesh = tessera.init_device_mesh("tp=2")
    ...     return zeros(4, 6, device_mesh=mesh, placements="S1").shape
    >>> tessera.run_ranks(2, show)[0]
    torch.Size([4, 6])

Random values depend on the seed and the element's global index, not on the placements or the number
of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _C
from ._C import DeviceMesh
from .mesh import mesh_from_torch
from .placement import Placements


def _where(mesh: Any, placements: Placements | None) -> tuple[DeviceMesh, Placements]:
    if mesh is None:
        raise _C.InvalidArgument("a factory needs device_mesh=, the mesh of the new tensor")
    ours = mesh_from_torch(mesh)
    return ours, ["R"] * ours.ndim if placements is None else placements


def _factory(
    name: str, what: str, arguments: Callable[..., tuple[Any, ...]]
) -> Callable[..., torch.Tensor]:
    """`arguments` makes what the C++ factory takes of what the caller writes before the keywords that
    all factories share."""
    make = getattr(_C, name)

    def factory(
        *args: Any,
        device_mesh: Any = None,
        placements: Placements | None = None,
        dtype: torch.dtype | None = None,
        requires_grad: bool = False,
        layout: torch.layout = torch.strided,
        **kwargs: Any,
    ) -> torch.Tensor:
        if layout != torch.strided:
            raise _C.NotSupported(f"{name} with {layout}: sharded tensors are strided")
        mesh, placed = _where(device_mesh, placements)
        return make(*arguments(*args, **kwargs), mesh, placed, dtype, requires_grad)

    factory.__name__ = factory.__qualname__ = name
    factory.__doc__ = f"{what}, sharded; without placements replicated."
    return factory


def _shape(*size: Any) -> tuple[Any, ...]:
    """zeros(2, 3) and zeros((2, 3)) are the same."""
    if len(size) == 1 and isinstance(size[0], Sequence):
        return (list(size[0]),)
    return (list(size),)


def _bounds(*bounds: Any) -> tuple[Any, ...]:
    if len(bounds) == 1:
        return 0, bounds[0], 1
    if len(bounds) == 2:
        return *bounds, 1
    if len(bounds) != 3:
        raise _C.InvalidArgument(f"arange takes end, or start, end and step; got {bounds}")
    return bounds


def _shape_and_value(size: Sequence[int], fill_value: Any) -> tuple[Any, ...]:
    return list(size), fill_value


def _rows_and_columns(n: int, m: int | None = None) -> tuple[Any, ...]:
    return n, n if m is None else m


empty = _factory("empty", "Memory as it is", _shape)
zeros = _factory("zeros", "Zeros", _shape)
ones = _factory("ones", "Ones", _shape)
rand = _factory("rand", "Uniform numbers from [0, 1)", _shape)
randn = _factory("randn", "Standard normal numbers", _shape)
full = _factory("full", "One value everywhere, of its dtype unless another is given", _shape_and_value)
arange = _factory("arange", "Numbers from start (0) to end by step (1)", _bounds)
eye = _factory("eye", "Ones on the diagonal of n rows and m (n) columns", _rows_and_columns)
