"""The tensor-parallel transformation of exported programs."""

import json
import os
import pathlib
import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from . import _C

_SECTIONS = {"axis", "modules", "weights", "values", "inputs", "outputs", "rest"}
_STYLES = {
    "ColwiseParallel": "colwise",
    "RowwiseParallel": "rowwise",
    "SequenceParallel": "sequence",
}


def _style(style: Any) -> Any:
    """A style as plans name it; PyTorch's classes and their instances are understood."""
    if isinstance(style, str):
        return style
    kind = style if isinstance(style, type) else type(style)
    if kind.__name__ not in _STYLES:
        raise _C.InvalidArgument(
            f"a plan has {style!r}; styles are {', '.join(sorted(set(_STYLES.values())))}, "
            f"vocabulary, replicate, or PyTorch's {', '.join(_STYLES)}"
        )
    return _STYLES[kind.__name__]


def _plan_text(plan: str | Mapping[str, Any] | os.PathLike[str]) -> str:
    """A plan as JSON: "auto", a file of it, the whole of it, or only its modules."""
    if isinstance(plan, str) and plan == "auto":
        return json.dumps({"rest": "auto"})
    if not isinstance(plan, Mapping):
        return pathlib.Path(plan).read_text()
    whole = dict(plan) if plan and set(plan) <= _SECTIONS else {"modules": dict(plan)}
    if isinstance(whole.get("modules"), Mapping):
        whole["modules"] = {name: _style(style) for name, style in whole["modules"].items()}
    return json.dumps(whole)


def _mesh_text(mesh: Any) -> str:
    if isinstance(mesh, str):
        return mesh
    if isinstance(mesh, torch.distributed.device_mesh.DeviceMesh):
        from .mesh import mesh_from_torch

        mesh = mesh_from_torch(mesh)
    return str(mesh)


def _rank_of(mesh: Any, rank: int | None) -> int:
    if rank is not None:
        return rank
    mine = mesh.get_rank() if isinstance(mesh, _C.DeviceMesh) else None
    if mine is not None:
        return mine
    if torch.distributed.is_initialized():
        return int(torch.distributed.get_rank())
    raise _C.InvalidArgument("which rank's program? Give rank=, or initialize the process group")


def tensor_parallel_transformation(
    exported_program: ExportedProgram,
    mesh: Any,
    plan: str | Mapping[str, Any] | os.PathLike[str] = "auto",
    *,
    rank: int | None = None,
) -> ExportedProgram:
    """The program of this rank: local weights, and functional collectives where ranks must talk.

        mesh = tessera.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        local = tessera.tensor_parallel_transformation(
            torch.export.export(model, (x,)), mesh, {"up": "colwise", "down": "rowwise"})
        local.module()(x)                    # on every rank; the result is whole

    `mesh` is a mesh of the ranks 0 to n-1, or its text ("tp=2"); `plan` names modules and styles, or
    is a whole plan ({"modules": ..., "weights": ..., "outputs": ...}), a file of one, or "auto".
    Collectives run on the default process group; on a mesh of several axes, on groups that all ranks
    make with new_group in the order of the manifest that `shard_program` writes.

    The program goes through files in the directory for temporary ones, twice its size.
    """
    number = _rank_of(mesh, rank)
    with tempfile.TemporaryDirectory(prefix="tessera_") as directory:
        whole, local = os.path.join(directory, "whole.pt2"), os.path.join(directory, "rank.pt2")
        torch.export.save(exported_program, whole)
        _C.partition_for_rank(whole, _mesh_text(mesh), _plan_text(plan), number, local)
        return torch.export.load(local)


def shard_program(
    path: str | os.PathLike[str],
    mesh: Any,
    plan: str | Mapping[str, Any] | os.PathLike[str] = "auto",
    *,
    directory: str | os.PathLike[str],
    overwrite: bool = False,
    single_file: bool = False,
) -> None:
    """Writes the programs of all ranks for a `.pt2`, as `tessera shard` does: rank_0.pt2, ... and
    manifest.json; with `single_file`, one file of that name. It appears when it is complete."""
    _C.shard_program(
        os.fspath(path),
        _mesh_text(mesh),
        _plan_text(plan),
        os.fspath(directory),
        overwrite,
        single_file,
    )
