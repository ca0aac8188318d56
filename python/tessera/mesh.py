"""Meshes that communicate, and their relation to PyTorch's."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from . import _C
from ._C import DeviceMesh, World
from .ranks import current_world


def init_device_mesh(
    device_type: str,
    mesh_shape: Sequence[int] | None = None,
    *,
    mesh_dim_names: Sequence[str] | None = None,
    world: World | None = None,
) -> DeviceMesh:
    """A mesh over ranks 0..n-1 of the world; every rank of the world calls it.

        >>> def show(rank):
        ...     mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        ...     return str(mesh), mesh.get_coordinate()
        >>> tessera.run_ranks(4, show)[2]
        ('dp=2,tp=2', [1, 0])

    The same as one text: init_device_mesh("dp=2,tp=2"), init_device_mesh("cuda:dp=8").
    """
    world = world or current_world()
    if mesh_shape is None:
        return _C.parse_device_mesh(device_type, world)
    names = [f"axis{i}" for i in range(len(mesh_shape))]
    return _C.init_device_mesh(
        device_type, list(mesh_shape), list(mesh_dim_names or names), world
    )


def mesh_from_group(
    groups: Any,
    device_type: str = "cpu",
    mesh: torch.Tensor | Sequence[Any] | None = None,
    *,
    mesh_dim_names: Sequence[str] | None = None,
) -> DeviceMesh:
    """A mesh over process groups of torch.distributed, one for each axis.

    For several groups `mesh` lists all ranks, one dimension an axis. Every rank of the mesh calls
    this: groups over several axes at once are made too, as plans need them.
    """
    distributed = torch.distributed
    if isinstance(groups, distributed.ProcessGroup):
        groups = [groups]
    if mesh is None:
        if len(groups) != 1:
            raise _C.InvalidArgument(
                f"a mesh over {len(groups)} groups needs `mesh`, the ranks on each axis"
            )
        mesh = distributed.get_process_group_ranks(groups[0])
    paper = mesh_without_world(mesh, device_type, mesh_dim_names)
    if distributed.get_backend() in ("threaded", "fake"):  # its groups are not ours; these do the same
        return _C.parse_device_mesh(str(paper), current_world())
    names_of_groups = [group.group_name for group in groups]
    size = distributed.get_world_size()
    # All ranks of the program can meet for groups of their own; a part of them has what is given.
    if paper.size() == size:
        return _C.adopt_mesh(paper, current_world(), names_of_groups)
    made = _C.mesh_over_groups(paper, distributed.get_rank(), size, names_of_groups)
    _add_merged_groups(made)
    return made


def _as_ranks(mesh: Any) -> torch.Tensor:
    """Rank numbers as a tensor that has values, also where modules are made on meta."""
    return torch.as_tensor(mesh, device="cpu")


def mesh_without_world(mesh: Any, device_type: str, names: Sequence[str] | None) -> DeviceMesh:
    """A mesh of these ranks, one dimension an axis, that does not communicate."""
    ranks = _as_ranks(mesh)
    names = names or [f"axis{i}" for i in range(ranks.dim())]
    return DeviceMesh(
        list(zip(names, ranks.shape, strict=True)), ranks.flatten().tolist(), device_type
    )


def _add_merged_groups(mesh: DeviceMesh) -> None:
    """Groups over several axes at once, where plans merge the steps of these axes into one."""
    wide = [axis for axis in range(mesh.ndim) if mesh.size(axis) > 1]
    for count in range(2, len(wide) + 1):
        for axes in itertools.combinations(wide, count):
            names = tuple(mesh.axis_names[axis] for axis in axes)
            ranks = mesh[names].ranks
            if ranks == sorted(ranks):  # new_group sorts them
                group = torch.distributed.new_group(ranks, use_local_synchronization=True)
                _C.adopt_group(mesh, axes, group.group_name)


# PyTorch's meshes and ours that stand for the same, each way; an entry goes with its key. Ours is good
# for as long as torch.distributed is not initialised anew, which its default group shows.
_of_torch: weakref.WeakKeyDictionary[Any, tuple[Any, DeviceMesh]] = weakref.WeakKeyDictionary()
_to_torch: dict[DeviceMesh, Any] = {}


def mesh_from_torch(mesh: Any) -> DeviceMesh:
    """The mesh of a PyTorch DeviceMesh, over its process groups; one for one."""
    if isinstance(mesh, DeviceMesh):
        return mesh
    default = torch.distributed.distributed_c10d._get_default_group()
    since, known = _of_torch.get(mesh, (None, None))
    if known is None or since is not default:
        with torch.device("cpu"):  # mesh.mesh is made when it is asked for
            known = _part_of_root(mesh) or mesh_from_group(
                [mesh.get_group(axis) for axis in range(mesh.ndim)],
                mesh.device_type,
                mesh.mesh,
                mesh_dim_names=mesh.mesh_dim_names,
            )
        same_mesh(known, mesh)
    return known


def same_mesh(ours: DeviceMesh, theirs: Any) -> None:
    """Records that the two are the same mesh: each is converted to the other from now on."""
    default = torch.distributed.distributed_c10d._get_default_group()
    # Meshes compare by value, and a dictionary keeps the key that it has: the entry would go with an
    # equal mesh that was made before.
    _of_torch.pop(theirs, None)
    _of_torch[theirs] = (default, ours)
    _to_torch[ours] = theirs


def _part_of_root(mesh: Any) -> DeviceMesh | None:
    """A mesh that PyTorch made from another one, of some of its axes, flattened or unflattened, is
    made from ours alike, so that tensors on one and on another (tensor parallelism and fully_shard)
    meet. None for a mesh of its own."""
    root = mesh._get_root_mesh()
    names = mesh.mesh_dim_names
    if root is mesh or not names:
        return None
    ours = mesh_from_torch(root)
    if set(names) <= set(root.mesh_dim_names or ()):
        part = ours[tuple(names)]
    else:
        axes = _axes_in(ours.ranks, mesh.mesh, names)
        if axes is None:
            return None
        flat = ours if ours.ndim == 1 else ours.flatten("_root")
        part = flat.unflatten(flat.axis_names[0], axes)[tuple(names)]
    return part if part.ranks == mesh.mesh.flatten().tolist() else None


def _axes_in(
    ranks: Sequence[int], mesh: torch.Tensor, names: Sequence[str]
) -> list[tuple[str, int]] | None:
    """The list of ranks as axes among which are those of a mesh of some of them, outermost first;
    None if the mesh does not go through the list in equal strides.

        >>> _axes_in(range(8), torch.tensor([1, 3]), ["ep"])
        [('_outer0', 2), ('ep', 2), ('_inner', 2)]
    """
    place = {rank: i for i, rank in enumerate(ranks)}
    at = mesh.clone().apply_(lambda rank: place.get(rank, -1))
    strides: list[tuple[int, str, int]] = []
    for axis, name in enumerate(names):
        size = at.size(axis)
        steps = at.diff(dim=axis).unique().tolist()
        if len(steps) > 1 or (steps and steps[0] <= 0):
            return None
        strides.append((steps[0] if steps else 0, name, size))
    axes: list[tuple[str, int]] = []
    left = len(ranks)  # of the list, inside the axes so far
    for i, (stride, name, size) in enumerate(sorted(strides, reverse=True)):
        if size > 1:
            if left % (stride * size):
                return None
            axes.append((f"_outer{i}", left // (stride * size)))
            left = stride
        axes.append((name, size))
    return [*axes, ("_inner", left)]


def mesh_as_given(mesh: DeviceMesh) -> Any:
    """The PyTorch mesh that this one was recorded with, else the mesh itself."""
    return _to_torch.get(mesh, mesh)


def mesh_to_torch(mesh: DeviceMesh) -> Any:
    """The PyTorch DeviceMesh of the same ranks. Needs torch.distributed; the first call for a mesh
    that did not come from PyTorch makes process groups, so every rank calls it."""
    known = _to_torch.get(mesh)
    if known is None:
        from torch.distributed.device_mesh import DeviceMesh as TorchMesh

        if not torch.distributed.is_initialized():
            raise _C.NotSupported(
                "a PyTorch DeviceMesh needs torch.distributed: call init_process_group first"
            )
        ranks = _as_ranks(mesh.ranks).view(mesh.shape)
        known = TorchMesh(mesh.device_type, ranks, mesh_dim_names=mesh.axis_names)
        same_mesh(mesh, known)
    return known


def _get_group(self: DeviceMesh, mesh_dim: int | str | None = None) -> Any:
    """My process group along an axis, as torch.distributed's functions take it."""
    from torch.distributed.distributed_c10d import _resolve_process_group

    if mesh_dim is None:
        if self.ndim != 1:
            raise _C.InvalidArgument(f"get_group of mesh {self} needs an axis")
        mesh_dim = 0
    axis = mesh_dim if isinstance(mesh_dim, str) else self.axis_names[mesh_dim]
    return _resolve_process_group(_C.group_name(self, axis))


def _get_all_groups(self: DeviceMesh) -> list[Any]:
    return [self.get_group(axis) for axis in range(self.ndim)]


DeviceMesh.get_all_groups = _get_all_groups  # type: ignore[method-assign]
DeviceMesh.get_group = _get_group  # type: ignore[method-assign]
DeviceMesh.mesh_dim_names = property(lambda self: self.axis_names)  # type: ignore[assignment]
DeviceMesh.mesh = property(  # type: ignore[assignment]
    lambda self: torch.tensor(self.ranks, dtype=torch.int, device="cpu").view(self.shape)
)
DeviceMesh.__deepcopy__ = lambda self, memo: self  # type: ignore[method-assign]
DeviceMesh.world = property(_C.world_of)  # type: ignore[assignment]
DeviceMesh.from_group = staticmethod(mesh_from_group)  # type: ignore[method-assign]
DeviceMesh.from_torch = staticmethod(mesh_from_torch)  # type: ignore[method-assign]
DeviceMesh.to_torch = lambda self: mesh_to_torch(self)  # type: ignore[method-assign]
