"""DTensor and distribute_tensor with PyTorch's arguments and refusals."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor as TorchDTensor
from torch.optim.optimizer import _foreach_supported_types as _optimizer_types
from torch.utils._foreach_utils import _foreach_supported_types as _clipping_types

from .. import _C
from .. import factories as _factories
from .. import tensor as _tensor
from ..module import PartitionFn
from ..module import distribute_module as _distribute_module
from ..placement import Placements
from . import _methods
from ._dtensor_spec import DTensorSpec
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

    # PyTorch's C++ code asks the class in torch.distributed.tensor for it, after enable() this one.
    _op_dispatcher = TorchDTensor._op_dispatcher

    redistribute = staticmethod(_methods.redistribute)
    to_local = staticmethod(_methods.to_local)
    full_tensor = staticmethod(_methods.full_tensor)

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
        if not isinstance(local_tensor, torch.Tensor) or _C.is_dtensor(local_tensor):
            found = DTensor if isinstance(local_tensor, torch.Tensor) else type(local_tensor)
            raise RuntimeError(
                f"the local_tensor argument only accepts torch.Tensor but got {found} value."
            )
        mesh = mesh_or_entered(device_mesh)
        placed = ["R"] * mesh.ndim if placements is None else placements
        if (shape is None) != (stride is None):
            raise _C.InvalidArgument(
                "from_local: a shape without a stride, or the reverse. Please pass both shape and "
                "stride at the same time."
            )
        if shape is None and not mesh.contains_me():
            shape = _even_shape(local_tensor.shape, mesh, placed)

        def made(even: bool) -> torch.Tensor:
            return _tensor.from_local(
                local_tensor,
                mesh,
                placed,
                run_check=run_check,
                shape=shape,
                stride=stride,
                even=even,
                grad_placements=grad_placements,
            )

        try:
            return made(even=False)
        except _C.InvalidArgument as error:
            # All ranks see the same sizes, so all of them come here or none.
            if run_check or shape is not None:
                raise
            warnings.warn(f"{error}. Every rank takes the others' to be as its own", stacklevel=2)
            return made(even=True)


def _even_shape(local: Sequence[int], mesh: _C.DeviceMesh, placements: Placements) -> list[int]:
    """The global shape if every rank's part has this one."""
    shape = list(local)
    # A sharding of any size knows which dims the placements shard, however they are written.
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
    if not (tensor.is_leaf or _C.is_dtensor(tensor)):
        raise RuntimeError(
            "`distribute_tensor` should be used to distribute leaf tensors! but found non-leaf tensor! "
            "DTensor.from_local keeps the history of one that autograd computed"
        )
    mesh = mesh_or_entered(device_mesh)
    placed = ["R"] * mesh.ndim if placements is None else placements
    if isinstance(placed, Sequence) and not isinstance(placed, str) and len(placed) != mesh.ndim:
        raise _C.InvalidArgument(
            f"distribute_tensor on mesh {mesh}: the placements must have the same length as the mesh "
            f"has axes, {mesh.ndim}; they are {placed}"
        )
    if _C.is_dtensor(tensor):
        return _unchanged(tensor, mesh, placed)
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


def distribute_module(
    module: torch.nn.Module,
    device_mesh: Any | None = None,
    partition_fn: PartitionFn | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> torch.nn.Module:
    """As tessera.distribute_module. Functions of two arguments, without the module, are deprecated
    as in PyTorch."""
    mesh = mesh_or_entered(device_mesh) if device_mesh is None else device_mesh
    return _distribute_module(
        module,
        mesh,
        partition_fn,
        _with_module(input_fn, "input_fn"),
        _with_module(output_fn, "output_fn"),
    )


def _with_module(function: Callable[..., Any] | None, name: str) -> Callable[..., Any] | None:
    if function is None:
        return None
    count = len(inspect.signature(function).parameters)
    if count == 3:
        return function
    if count != 2:
        raise ValueError(f"{name} should take in 3 arguments, but got {count} arguments!")
    warnings.warn(
        f"Deprecating {name} of two arguments: it takes the module, its {name[:-3]}s and the mesh",
        FutureWarning,
        stacklevel=3,
    )
    return lambda module, tensors, mesh: function(tensors, mesh)


def _shard_tensor(
    full_tensor: torch.Tensor,
    placements: Placements,
    device_mesh: Any | None = None,
    *,
    src_data_rank: int | None = 0,
) -> torch.Tensor:
    return distribute_tensor(full_tensor, device_mesh, placements, src_data_rank=src_data_rank)


def _on_entered_mesh(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(factory)
    def made(*args: Any, device_mesh: Any | None = None, **kwargs: Any) -> torch.Tensor:
        return factory(*args, device_mesh=mesh_or_entered(device_mesh), **kwargs)

    return made


empty, full = _on_entered_mesh(_factories.empty), _on_entered_mesh(_factories.full)
ones, zeros = _on_entered_mesh(_factories.ones), _on_entered_mesh(_factories.zeros)
rand, randn = _on_entered_mesh(_factories.rand), _on_entered_mesh(_factories.randn)


def _join_foreach_types() -> None:
    # Our tensors are torch.Tensors, which both lists have; programs look for DTensor in them.
    for types in (_optimizer_types, _clipping_types):
        if DTensor not in types:
            types.append(DTensor)


_methods.install()
_join_foreach_types()

__all__ = [
    "DTensor",
    "distribute_module",
    "distribute_tensor",
    "empty",
    "full",
    "ones",
    "rand",
    "randn",
    "zeros",
]
