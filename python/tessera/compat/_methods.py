"""The methods and properties of PyTorch's DTensor, which importing tessera.compat gives to sharded
tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import _C
from .. import tensor as _tensor
from ..mesh import mesh_as_given
from ..placement import Placements
from . import _checkpoint
from ._dtensor_spec import spec_of


def redistribute(
    tensor: torch.Tensor,
    device_mesh: Any | None = None,
    placements: Placements | None = None,
    *,
    async_op: bool = False,
    forward_dtype: torch.dtype | None = None,
    backward_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """As DTensor.redistribute. `async_op` is accepted; the result is complete when it returns."""
    if placements is None:
        raise _C.InvalidArgument("redistribute needs placements")
    moved = _tensor.redistribute(
        tensor,
        placements,
        mesh=device_mesh,
        forward_dtype=forward_dtype,
        backward_dtype=backward_dtype,
    )
    if moved is not tensor or not (tensor.requires_grad and torch.is_grad_enabled()):
        return moved
    # Nothing moves, but PyTorch's gradient comes back placed as the tensor is.
    placed: torch.Tensor = _GradientPlaced.apply(tensor)
    return placed


class _GradientPlaced(torch.autograd.Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.sharding = _C.sharding(tensor)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> torch.Tensor | None:
        placed = ctx.sharding.placements
        if grad is None or any(placement.is_partial() for placement in placed):
            return grad
        return _tensor.redistribute(grad, placed, mesh=ctx.sharding.mesh)


def device_mesh(tensor: torch.Tensor) -> Any:
    """The mesh as the program gave it: PyTorch's own where it was that."""
    return mesh_as_given(_C.device_mesh(tensor))


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return to_local(tensor)


def to_local(
    tensor: torch.Tensor, *, grad_placements: Placements | None = None
) -> torch.Tensor:
    """This rank's part, shared with the tensor; outside the mesh an empty one, 0 for a scalar."""
    local = _tensor.to_local(tensor, grad_placements=grad_placements)
    if _C.device_mesh(tensor).contains_me():
        return local
    return local.new_zeros(() if local.dim() == 0 else (0,))


class _OfSharded:
    """An attribute that only sharded tensors have: for others it is an AttributeError, so that
    hasattr(x, "placements") tells them apart."""

    def __init__(self, name: str, function: Callable[..., Any], is_property: bool):
        self.name, self.function, self.is_property = name, function, is_property

    def __get__(self, tensor: Any, owner: type | None = None) -> Any:
        if tensor is None:
            return self
        if not _C.is_dtensor(tensor):
            raise AttributeError(f"'{type(tensor).__name__}' object has no attribute '{self.name}'")
        if self.is_property:
            return self.function(tensor)
        return self.function.__get__(tensor, owner)


def install() -> None:
    for name, function, is_property in (
        ("placements", _tensor.placements, True),
        ("device_mesh", device_mesh, True),
        ("to_local", to_local, False),
        ("full_tensor", _tensor.full_tensor, False),
        ("redistribute", redistribute, False),
        ("_spec", spec_of, True),
        ("_local_tensor", local_tensor, True),
        ("__create_chunk_list__", _checkpoint.chunk_list, False),
        ("__create_write_items__", _checkpoint.write_items, False),
        ("__get_tensor_shard__", _checkpoint.tensor_shard, False),
    ):
        setattr(torch.Tensor, name, _OfSharded(name, function, is_property))
    _checkpoint.install_gather()
