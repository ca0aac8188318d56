"""The names of torch.distributed.device_mesh: meshes by PyTorch's arguments, and as contexts."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.distributed.device_mesh import _mesh_resources as _torch_meshes
from torch.distributed.device_mesh import init_device_mesh as _torch_init_device_mesh

from .. import _C
from ..mesh import init_device_mesh as _init_device_mesh
from ..mesh import mesh_from_group, mesh_from_torch, mesh_without_world, same_mesh
from ..ranks import current_world, has_world

_MEETING = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_entered = threading.local()  # .meshes: those of the `with` blocks that this thread is in


class _IsMesh(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (_C.DeviceMesh, TorchMesh))

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, (_C.DeviceMesh, TorchMesh)) or super().__subclasscheck__(kind)


def _torch_has_these_ranks() -> bool:
    """Whether the calling rank is one of torch.distributed's too, and not a thread of run_ranks. A
    program's first mesh initialises torch.distributed, as in PyTorch, under torchrun and whatever
    else sets the variables by which ranks meet."""
    distributed = torch.distributed
    initialised = bool(distributed.is_available() and distributed.is_initialized())
    if _C.entered_world() is not None:
        return initialised and bool(distributed.get_backend() == "threaded")
    if initialised or has_world() or not distributed.is_available():
        return initialised
    return bool(distributed.is_torchelastic_launched()) or all(map(os.environ.get, _MEETING))


def _with_groups_of_our_own(theirs: Any) -> Any:
    """A new mesh of PyTorch's, over which sharded tensors communicate in groups of this library."""
    with torch.device("cpu"):  # theirs.mesh is made when it is asked for
        paper = mesh_without_world(theirs.mesh, theirs.device_type, theirs.mesh_dim_names)
    same_mesh(_C.parse_device_mesh(str(paper), current_world()), theirs)
    return theirs


def _refuse_backends(backend_override: Any) -> None:
    if backend_override:
        raise _C.NotSupported(
            f"init_device_mesh: backend_override {backend_override} chooses among the backends of "
            "torch.distributed, which is not initialised here (ranks of run_ranks, or a mesh "
            "given as text); call init_process_group first and give mesh_shape, or leave "
            "backend_override out"
        )


class DeviceMesh(metaclass=_IsMesh):
    """DeviceMesh("cpu", [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp")): a mesh of these ranks, made
    by every rank of the world. What it makes is PyTorch's own mesh where torch.distributed is
    initialised, which its functions take; else a tessera.DeviceMesh.

        >>> def show(rank):
        ...     mesh = DeviceMesh("cpu", torch.tensor([[0, 2], [1, 3]]), mesh_dim_names=("dp", "tp"))
        ...     return isinstance(mesh, DeviceMesh), mesh.get_coordinate()
        >>> tessera.run_ranks(4, show)[1]
        (True, [1, 0])

    Inside `with DeviceMesh(...):` functions that are given no mesh take this one.
    """

    def __new__(
        cls,
        device_type: str,
        mesh: Any = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
        backend_override: Any = None,
        **private: Any,
    ) -> Any:
        names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        if private:  # PyTorch's own, as _init_backend=False: a mesh without groups of its own
            return TorchMesh(
                device_type, mesh, mesh_dim_names=names, backend_override=backend_override, **private
            )
        if mesh is None:
            raise TypeError("DeviceMesh is given no mesh: the ranks, one dimension an axis")
        if _torch_has_these_ranks():
            if backend_override is None:
                return _with_groups_of_our_own(TorchMesh(device_type, mesh, mesh_dim_names=names))
            theirs = TorchMesh(
                device_type, mesh, mesh_dim_names=names, backend_override=backend_override
            )
            mesh_from_torch(theirs)  # adopts its groups, which every rank does here
            return theirs
        _refuse_backends(backend_override)
        paper = mesh_without_world(mesh, device_type, mesh_dim_names)
        return _C.parse_device_mesh(str(paper), current_world())

    @staticmethod
    def from_group(
        group: Any,
        device_type: str = "cpu",
        mesh: Any = None,
        *,
        mesh_dim_names: Sequence[str] | None = None,
    ) -> Any:
        """A mesh over process groups that exist, one for each axis."""
        make = TorchMesh.from_group if _torch_has_these_ranks() else mesh_from_group
        names = None if mesh_dim_names is None else tuple(mesh_dim_names)
        return make(group, device_type, mesh, mesh_dim_names=names)

    @staticmethod
    def _concatenate(meshes: Sequence[Any]) -> Any:
        if all(isinstance(mesh, _C.DeviceMesh) for mesh in meshes):
            return _C.DeviceMesh.concatenate(meshes)
        return TorchMesh._concatenate(list(meshes))


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int] | None = None,
    *,
    mesh_dim_names: Sequence[str] | None = None,
    backend_override: dict[int | str, Any] | None = None,
) -> Any:
    """A mesh over all ranks of the world: PyTorch's own where torch.distributed is initialised, else
    as tessera.init_device_mesh, also from text.

    `backend_override` names the backend, its options or both by axis, as in PyTorch; sharded tensors
    on that mesh communicate in the groups that PyTorch makes with it. It needs torch.distributed.
    """
    if ":" in device_type and mesh_shape is not None:  # before the world is asked for, as in PyTorch
        raise _C.InvalidArgument(
            f"Device type with index is not supported but got {device_type}; a mesh is of a kind of "
            "device, such as 'device.type' of a torch.device"
        )
    if mesh_shape is None or not _torch_has_these_ranks():
        _refuse_backends(backend_override)
        return _init_device_mesh(device_type, mesh_shape, mesh_dim_names=mesh_dim_names)
    names = None if mesh_dim_names is None else tuple(mesh_dim_names)
    if backend_override:
        theirs = _torch_init_device_mesh(
            device_type,
            tuple(mesh_shape),
            mesh_dim_names=names,
            backend_override=dict(backend_override),
        )
        mesh_from_torch(theirs)  # adopts its groups, which every rank does here
        return theirs
    return _with_groups_of_our_own(
        _torch_init_device_mesh(device_type, tuple(mesh_shape), mesh_dim_names=names)
    )


def mesh_or_entered(mesh: Any) -> _C.DeviceMesh:
    """The mesh that is given, PyTorch's or ours; without one that of the innermost `with`."""
    if mesh is not None:
        return mesh_from_torch(mesh)
    meshes: list[_C.DeviceMesh] = getattr(_entered, "meshes", [])
    if meshes:
        return meshes[-1]
    try:
        return mesh_from_torch(_torch_meshes.get_current_mesh())
    except RuntimeError:
        raise _C.InvalidArgument(
            "no device_mesh is given, and no `with DeviceMesh(...)` is open"
        ) from None


def _enter(self: _C.DeviceMesh) -> _C.DeviceMesh:
    if not hasattr(_entered, "meshes"):
        _entered.meshes = []
    _entered.meshes.append(self)
    return self


def _exit(self: _C.DeviceMesh, *exc: Any) -> None:
    _entered.meshes.pop()


def _flatten(self: _C.DeviceMesh, mesh_dim_name: str | None = None) -> _C.DeviceMesh:
    return self.flatten(mesh_dim_name or "_".join(self.axis_names))


def _unflatten(
    self: _C.DeviceMesh, dim: int | str, mesh_sizes: Sequence[int], mesh_dim_names: Sequence[str]
) -> _C.DeviceMesh:
    axis = dim if isinstance(dim, str) else self.axis_names[dim]
    return self.unflatten(axis, list(zip(mesh_dim_names, mesh_sizes, strict=True)))


setattr(_C.DeviceMesh, "_unflatten", _unflatten)  # noqa: B010
setattr(_C.DeviceMesh, "_is_current_rank_part_of_mesh", _C.DeviceMesh.contains_me)  # noqa: B010
setattr(_C.DeviceMesh, "__enter__", _enter)  # noqa: B010 - not part of the class's own interface
setattr(_C.DeviceMesh, "__exit__", _exit)  # noqa: B010
setattr(_C.DeviceMesh, "_flatten", _flatten)  # noqa: B010

__all__ = ["DeviceMesh", "init_device_mesh"]
