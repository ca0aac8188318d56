"""The names of torch.distributed.tensor, and of FSDP2 in torch.distributed.fsdp (compat_fsdp.py), on
top of this library: a program changes one import.

    from tessera.compat import DTensor, Shard, Replicate, distribute_tensor, init_device_mesh
    from tessera.compat import MixedPrecisionPolicy, fully_shard

Importing it also gives sharded tensors the methods of PyTorch's DTensor (x.redistribute(...),
x.to_local(), x.full_tensor(), x.placements, x.device_mesh). Plain tensors do not get them, and
PyTorch's own DTensors keep theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from . import _C, factories
from . import tensor as _tensor
from ._C import Placement
from .compat_fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    UnshardHandle,
    fully_shard,
    register_fsdp_forward_method,
    share_comm_ctx,
)
from .mesh import init_device_mesh, mesh_from_group
from .module import distribute_module, local_map
from .placement import Partial, Placements, Replicate, Shard, StridedShard
from .policy import implicit_replication
from .ranks import current_world
from .rules import register_rule
from .tensor import distribute_tensor

empty, full, ones = factories.empty, factories.full, factories.ones
rand, randn, zeros = factories.rand, factories.randn, factories.zeros
_StridedShard = StridedShard


class _IsMesh(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _C.DeviceMesh)


class DeviceMesh(metaclass=_IsMesh):
    """DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp")): a mesh of these ranks, made
    by every rank of the world. What it makes is a tessera.DeviceMesh.

        >>> def show(rank):
        ...     mesh = DeviceMesh("cpu", torch.tensor([[0, 2], [1, 3]]), mesh_dim_names=("dp", "tp"))
        ...     return isinstance(mesh, DeviceMesh), mesh.get_coordinate()
        >>> tessera.run_ranks(4, show)[1]
        (True, [1, 0])
    """

    from_group = staticmethod(mesh_from_group)

    def __new__(
        cls, device_type: str, mesh: Any, *, mesh_dim_names: Sequence[str] | None = None
    ) -> Any:
        ranks = torch.as_tensor(mesh)
        names = mesh_dim_names or [f"axis{i}" for i in range(ranks.dim())]
        axes = list(zip(names, ranks.shape, strict=True))
        paper = _C.DeviceMesh(axes, ranks.flatten().tolist(), device_type)
        return _C.parse_device_mesh(str(paper), current_world())


class _IsSharded(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return _C.is_dtensor(instance)


class DTensor(metaclass=_IsSharded):
    """isinstance(x, DTensor) is true for sharded tensors; they are ordinary torch.Tensors.

        >>> isinstance(torch.ones(2), DTensor)
        False
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        raise _C.NotSupported("a DTensor is made by DTensor.from_local or distribute_tensor")

    @staticmethod
    def from_local(
        local_tensor: torch.Tensor,
        device_mesh: Any,
        placements: Placements | None = None,
        *,
        run_check: bool = False,
        shape: Sequence[int] | None = None,
        stride: Sequence[int] | None = None,
        grad_placements: Placements | None = None,
    ) -> torch.Tensor:
        """The sharded tensor whose part on this rank is `local_tensor`."""
        return _tensor.from_local(
            local_tensor,
            device_mesh,
            ["R"] * device_mesh.ndim if placements is None else placements,
            run_check=run_check,
            shape=shape,
            stride=stride,
            grad_placements=grad_placements,
        )


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
        ("device_mesh", _tensor.device_mesh, True),
        ("to_local", _tensor.to_local, False),
        ("full_tensor", _tensor.full_tensor, False),
        ("redistribute", _redistribute, False),
    ):
        setattr(torch.Tensor, name, _OfSharded(name, function, is_property))


_install_methods()


def register_sharding(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As torch.distributed.tensor.experimental.register_sharding: the decorated function gets the
    op's arguments, with a Sharding for each tensor, and lists ([results], [operands]) placements.
    Entries that are no tensor are None among the operands."""
    overloads = op if isinstance(op, (list, tuple)) else [op]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for overload in overloads:
            schema = overload._schema
            name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
            register_rule(name, _as_rows(function), results=len(schema.returns))
        return function

    return decorate


def _as_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    def rows(call: _C.RuleCall, axis: int) -> Any:
        for results, operands in function(*call.args.values()):
            yield [p for p in operands if p is not None], results

    return rows


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


__all__ = [
    "CPUOffloadPolicy",
    "DTensor",
    "DeviceMesh",
    "ExplicitRedistributionContext",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "UnshardHandle",
    "distribute_module",
    "distribute_tensor",
    "empty",
    "full",
    "fully_shard",
    "implicit_replication",
    "init_device_mesh",
    "local_map",
    "ones",
    "rand",
    "randn",
    "register_fsdp_forward_method",
    "register_sharding",
    "share_comm_ctx",
    "zeros",
]
