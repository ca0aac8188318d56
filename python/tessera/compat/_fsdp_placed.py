"""Placements of fully_shard's parameters: shard_placement_fn's results, and the mesh if none is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from .. import _C
from ..mesh import init_device_mesh, mesh_from_torch
from ..ranks import current_world


class Asserted(_C.InvalidArgument, AssertionError):
    """What PyTorch asserts: programs may catch it as either."""


@dataclass(frozen=True)
class FSDPMeshInfo:
    """The mesh of a parameter that is on another than its module's: a mesh of one axis, or of
    replicas and shards."""

    mesh: Any
    shard_mesh_dim: int | None = None
    replicate_mesh_dim: int | None = None

    def __post_init__(self) -> None:
        dims = [dim for dim in (self.replicate_mesh_dim, self.shard_mesh_dim) if dim is not None]
        if self.shard_mesh_dim is None or dims != list(range(self.mesh.ndim)):
            raise _C.NotSupported(
                f"{self}: shards over the last axis of a mesh, with replicas over the one before it "
                "or none; take that part of the mesh"
            )

    @property
    def shard_mesh_size(self) -> int:
        return int(self.mesh.size(self.shard_mesh_dim))

    @property
    def shard_mesh_rank(self) -> int:
        return int(self.mesh.get_local_rank(self.shard_mesh_dim))

    @property
    def shard_process_group(self) -> Any:
        return self.mesh.get_group(self.shard_mesh_dim)

    @property
    def replicate_mesh_size(self) -> int:
        return 1 if self.replicate_mesh_dim is None else int(self.mesh.size(self.replicate_mesh_dim))

    @property
    def replicate_mesh_rank(self) -> int:
        dim = self.replicate_mesh_dim
        return 0 if dim is None else int(self.mesh.get_local_rank(dim))

    @property
    def replicate_process_group(self) -> Any:
        if self.replicate_mesh_dim is None:
            raise AttributeError(f"{self} has no axis of replicas")
        return self.mesh.get_group(self.replicate_mesh_dim)


HSDPMeshInfo = FSDPMeshInfo


class ShardPlacementResult(NamedTuple):
    """What shard_placement_fn may return, beside Shard(dim) and None."""

    placement: Any
    mesh_info: Any


@dataclass
class DataParallelMeshDims:
    """As in torch.distributed.fsdp, where a mesh has axes of tensor parallelism too."""

    shard: str | tuple[str, ...] | None = None
    replicate: str | tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.shard is None and self.replicate is None:
            raise _C.InvalidArgument(
                "At least one of shard or replicate must be set in DataParallelMeshDims"
            )

    @property
    def shard_names(self) -> tuple[str, ...]:
        return _as_names(self.shard)

    @property
    def replicate_names(self) -> tuple[str, ...]:
        return _as_names(self.replicate)


def _as_names(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


@dataclass
class Placed:
    """What shard_placement_fn says, asked once for each parameter."""

    function: Callable[[nn.Parameter], Any]

    def __post_init__(self) -> None:
        self._known: dict[int, tuple[int | None, Any]] = {}

    def _of(self, name: str, parameter: nn.Parameter) -> tuple[int | None, Any]:
        known = self._known.get(id(parameter))
        if known is None:
            given = self.function(parameter)
            mesh = None
            if hasattr(given, "mesh_info"):
                given, mesh = given.placement, given.mesh_info.mesh
            if given is not None and not getattr(given, "is_shard", bool)():
                raise _C.NotSupported(
                    f"shard_placement_fn gave {given!r} for {name}; Shard(dim), "
                    "ShardPlacementResult or None are possible"
                )
            dim = None if given is None else int(given.dim)
            if dim is not None and not -parameter.ndim <= dim < max(parameter.ndim, 1):
                raise Asserted(
                    f"Shard dim {dim} is invalid for {parameter.ndim}D tensor {name}: that is what "
                    "shard_placement_fn gave"
                )
            known = self._known[id(parameter)] = (dim, mesh)
        return known

    def dim(self, name: str, parameter: nn.Parameter) -> int | None:
        return self._of(name, parameter)[0]

    def mesh(self, name: str, parameter: nn.Parameter) -> Any:
        return self._of(name, parameter)[1]


def default_mesh(axis: str | None = None) -> Any:
    """All ranks of the world, on their accelerators where there are any. PyTorch's where it is
    initialised, so that tensors report one that equals the program's."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    device = "cpu" if accelerator is None else accelerator.type
    if not torch.distributed.is_initialized():
        return init_device_mesh(device, (current_world().size,), mesh_dim_names=(axis or "dp",))
    with torch.device("cpu"):  # a mesh has real numbers also where a model is made on meta
        return torch.distributed.device_mesh.init_device_mesh(
            device,
            (torch.distributed.get_world_size(),),
            mesh_dim_names=None if axis is None else (axis,),
        )


def move_to(mesh: Any, modules: Iterable[nn.Module], ignored: Iterable[torch.Tensor]) -> None:
    """Plain parameters and buffers that are elsewhere go to the mesh's device, as they do in PyTorch."""
    device = torch.device(mesh_from_torch(mesh).device_type)
    left = {id(tensor) for tensor in ignored}
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            at_home = tensor.is_meta or tensor.device.type == device.type
            if at_home or id(tensor) in left or _C.is_dtensor(tensor):
                continue
            tensor.data = tensor.to(device)
