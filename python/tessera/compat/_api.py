"""DTensor and distribute_tensor with PyTorch's arguments and refusals."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .. import _C
from .. import tensor as _tensor
from ..mesh import mesh_as_given
from ..placement import Placements
from . import _checkpoint
from ._dtensor_spec import DTensorSpec, spec_of
from .device_mesh import mesh_or_entered


class _IsSharded(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return _C.is_dtensor(instance)


class DTensor(metaclass=_IsSharded):
    """isinstance(x, DTensor) is true for sharded tensors; they are ordinary torch.Tensors.

        >>> isinstance(torch.ones(2), DTensor)
        False

    DTensor(local, spec, requires_grad=...) makes a leaf of a local part and a spec; from_local is
    differentiable and checks more.
    """

    def __new__(
        cls, local_tensor: torch.Tensor, spec: DTensorSpec, *, requires_grad: bool
    ) -> Any:
        if local_tensor.requires_grad and not requires_grad:
            warnings.warn(
                "To construct a sharded tensor that keeps the history of its local part, call "
                "DTensor.from_local",
                stacklevel=2,
            )
        made = _tensor.from_local(
            local_tensor.detach(), spec.mesh, spec.placements, shape=spec.shape, stride=spec.stride
        )
        return made.requires_grad_(requires_grad)

    @staticmethod
    def from_local(
        local_tensor: torch.Tensor,
        device_mesh: Any | None = None,
        placements: Placements | None = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        grad_placements: Placements | None = None,
    ) -> torch.Tensor:
        """The sharded tensor whose part on this rank is `local_tensor`. A rank outside the mesh takes
        the others' parts to be as large as the tensor that it gives."""
        mesh = mesh_or_entered(device_mesh)
        placed = ["R"] * mesh.ndim if placements is None else placements
        if (shape is None) != (stride is None):
            raise _C.InvalidArgument(
                "from_local: a shape without a stride, or the reverse. Please pass both shape and "
                "stride at the same time."
            )
        if shape is None and not mesh.contains_me():
            shape = _even_shape(local_tensor.shape, mesh, placed)
        return _tensor.from_local(
            local_tensor,
            mesh,
            placed,
            run_check=run_check,
            shape=shape,
            stride=stride,
            grad_placements=grad_placements,
        )


def _even_shape(local: Sequence[int], mesh: _C.DeviceMesh, placements: Placements) -> list[int]:
    """The global shape if every rank's part has this one."""
    shape = list(local)
    # A sharding of any size knows which dims the placements cut, however they are written.
    for axis, placement in enumerate(_C.Sharding(mesh, placements, shape).placements):
        if placement.is_shard():
            shape[placement.dim] *= mesh.size(axis)
    return shape


def distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: Any | None = None,
    placements: Placements | None = None,
    *,
    src_data_rank: int | None = 0,
) -> torch.Tensor:
    """As in torch.distributed.tensor. Placements may be Partial(sum, avg, min or max) too: each rank
    then holds what gives the value when it is reduced."""
    mesh = mesh_or_entered(device_mesh)
    placed = ["R"] * mesh.ndim if placements is None else placements
    if isinstance(placed, Sequence) and not isinstance(placed, str) and len(placed) != mesh.ndim:
        raise _C.InvalidArgument(
            f"distribute_tensor on mesh {mesh}: the placements must have the same length as the mesh "
            f"has axes, {mesh.ndim}; they are {placed}"
        )
    if _C.is_dtensor(tensor):
        return _unchanged(tensor, mesh, placed)
    if not tensor.is_leaf:
        raise RuntimeError(
            "distribute_tensor can only distribute leaf tensors; DTensor.from_local keeps the history "
            "of one that autograd computed"
        )
    targets = _C.Sharding(mesh, placed, list(tensor.shape)).placements
    if not any(placement.is_partial() for placement in targets):
        return _tensor.distribute_tensor(tensor, mesh, placed, src_data_rank=src_data_rank)
    whole = ["R" if placement.is_partial() else placement for placement in targets]
    made = _tensor.distribute_tensor(tensor, mesh, whole, src_data_rank=src_data_rank)
    local = _tensor.to_local(made.detach())
    for axis, placement in enumerate(targets):
        if placement.is_partial():
            local = _addend(local, placement, mesh.size(axis))
    out = _tensor.from_local(local, mesh, targets, shape=tensor.shape, stride=made.stride())
    return out.requires_grad_(tensor.requires_grad)


def _addend(whole: torch.Tensor, placement: _C.Placement, ranks: int) -> torch.Tensor:
    if placement.reduce_op == "sum":
        return whole / ranks
    if placement.reduce_op in ("avg", "min", "max"):
        return whole
    raise _C.InvalidArgument(f"distribute_tensor to {placement}: a value cannot be un-reduced so")


def _unchanged(tensor: torch.Tensor, mesh: _C.DeviceMesh, placed: Placements) -> torch.Tensor:
    has = _C.sharding(tensor)
    if has.mesh != mesh:
        raise _C.InvalidArgument(
            f"distribute_tensor of {has}, which is sharded already, to a different device mesh {mesh}"
        )
    if has.placements != has.with_placements(placed).placements:
        raise _C.InvalidArgument(
            f"distribute_tensor of {has}, which is sharded already, to a different placements "
            f"list, {placed}; use redistribute"
        )
    return tensor


def _shard_tensor(
    full_tensor: torch.Tensor,
    placements: Placements,
    device_mesh: Any | None = None,
    *,
    src_data_rank: int | None = 0,
) -> torch.Tensor:
    return distribute_tensor(full_tensor, device_mesh, placements, src_data_rank=src_data_rank)


def _redistribute(
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
    return _tensor.redistribute(
        tensor,
        placements,
        mesh=device_mesh,
        forward_dtype=forward_dtype,
        backward_dtype=backward_dtype,
    )


def _device_mesh(tensor: torch.Tensor) -> Any:
    """The mesh as the program gave it: PyTorch's own where it was that."""
    return mesh_as_given(_C.device_mesh(tensor))


def _local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return _C.to_local(tensor, None)


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


def _install_methods() -> None:
    for name, function, is_property in (
        ("placements", _tensor.placements, True),
        ("device_mesh", _device_mesh, True),
        ("to_local", _tensor.to_local, False),
        ("full_tensor", _tensor.full_tensor, False),
        ("redistribute", _redistribute, False),
        ("_spec", spec_of, True),
        ("_local_tensor", _local_tensor, True),
        ("__create_chunk_list__", _checkpoint.chunk_list, False),
        ("__create_write_items__", _checkpoint.write_items, False),
        ("__get_tensor_shard__", _checkpoint.tensor_shard, False),
    ):
        setattr(torch.Tensor, name, _OfSharded(name, function, is_property))


_install_methods()
_checkpoint.install_gather()

__all__ = ["DTensor", "distribute_tensor"]
