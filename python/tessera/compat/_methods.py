"""The methods and properties of PyTorch's DTensor, which importing tessera.compat gives to sharded
tensors.

PyTorch's fully_shard exchanges the parameters of a module while it computes: for DTensors over the
other axes, or for plain tensors. Here they are the same tensors throughout, so these methods answer,
while a module computes, as those of the exchanged ones would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .. import _C
from .. import tensor as _tensor
from ..mesh import mesh_as_given
from ..placement import Placements
from . import _checkpoint, _staging
from ._dtensor_spec import DTensorSpec, spec_of, spec_of_sharding


def _unsharded_sharding(tensor: torch.Tensor) -> _C.Sharding | None:
    """Over the other axes, of a parameter of fully_shard whose module computes."""
    return _C.unsharded_sharding(tensor) if _C.is_in_compute(tensor) else None


def _value(tensor: torch.Tensor, grad_placements: Placements | None = None) -> torch.Tensor:
    """What a parameter of fully_shard computes as while its module computes; others as they are.
    Placements of a gradient have no meaning for a plain value."""
    if not _C.is_in_compute(tensor) or (grad_placements and _C.unsharded_sharding(tensor) is None):
        return tensor
    return _C.unsharded_parameter(tensor)


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
        raise _C.InvalidArgument("placements is needed for redistribute!")
    if _unsharded_sharding(tensor) is not None:
        tensor = _C.unsharded_parameter(tensor)
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
    unsharded = _unsharded_sharding(tensor)
    return mesh_as_given(_C.device_mesh(tensor) if unsharded is None else unsharded.mesh)


def placements(tensor: torch.Tensor) -> tuple[_C.Placement, ...]:
    """One for each axis of the mesh."""
    unsharded = _unsharded_sharding(tensor)
    if unsharded is None:
        return _tensor.placements(tensor)
    return _C.placements_in_mesh_order(unsharded)


def spec(tensor: torch.Tensor) -> DTensorSpec:
    unsharded = _unsharded_sharding(tensor)
    return spec_of(tensor) if unsharded is None else spec_of_sharding(unsharded)


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return to_local(tensor)


def to_local(
    tensor: torch.Tensor, *, grad_placements: Placements | None = None
) -> torch.Tensor:
    """This rank's part, shared with the tensor; outside the mesh an empty one, 0 for a scalar."""
    tensor = _value(tensor, grad_placements)
    if not _C.is_dtensor(tensor):
        return tensor
    local = _tensor.to_local(tensor, grad_placements=grad_placements)
    if _C.device_mesh(tensor).contains_me():
        return local
    return local.new_zeros(() if local.dim() == 0 else (0,))


def full_tensor(
    tensor: torch.Tensor, *, grad_placements: Placements | None = None
) -> torch.Tensor:
    """The whole tensor on every rank."""
    tensor = _value(tensor, grad_placements)
    if not _C.is_dtensor(tensor):
        return tensor
    return _tensor.full_tensor(tensor, grad_placements=grad_placements)


class _OfSharded:
    """An attribute that only sharded tensors have: for others it is an AttributeError, so that
    hasattr(x, "placements") distinguishes them."""

    def __init__(self, name: str, function: Callable[..., Any], is_property: bool):
        self.name, self.function, self.is_property = name, function, is_property

    def __get__(self, tensor: Any, owner: type | None = None) -> Any:
        if tensor is None:
            return self
        if not _C.is_dtensor(tensor):
            if self.name in vars(tensor):
                return vars(tensor)[self.name]
            raise AttributeError(f"'{type(tensor).__name__}' object has no attribute '{self.name}'")
        if self.is_property:
            return self.function(tensor)
        return self.function.__get__(tensor, owner)

    def __set__(self, tensor: Any, value: Any) -> None:
        # torch.overrides, which torch.compile asks, takes a descriptor of torch.Tensor for a property
        # with a setter. A plain tensor, or a subclass, may have attributes of these names.
        if _C.is_dtensor(tensor):
            raise AttributeError(f"'{self.name}' of a sharded tensor cannot be set")
        vars(tensor)[self.name] = value


def install() -> None:
    for name, function, is_property in (
        ("placements", placements, True),
        ("device_mesh", device_mesh, True),
        ("to_local", to_local, False),
        ("full_tensor", full_tensor, False),
        ("redistribute", redistribute, False),
        ("_spec", spec, True),
        ("_local_tensor", local_tensor, True),
        ("__create_chunk_list__", _checkpoint.chunk_list, False),
        ("__create_write_items__", _checkpoint.write_items, False),
        ("__get_tensor_shard__", _checkpoint.tensor_shard, False),
    ):
        setattr(torch.Tensor, name, _OfSharded(name, function, is_property))
    _checkpoint.install_state_dict_functions()
    _staging.install()
