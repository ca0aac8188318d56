"""The names of torch.distributed.tensor.parallel.api."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch import nn

from ...parallel import ParallelStyle, matching_modules
from ...parallel import parallelize_module as _parallelize_module
from ..device_mesh import mesh_or_entered


def parallelize_module(
    module: nn.Module,
    device_mesh: Any = None,
    parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> nn.Module:
    """As tessera.parallelize_module, on the mesh that was entered if none is given. A path that
    matches nothing is a warning, as in PyTorch."""
    mesh = mesh_or_entered(device_mesh) if device_mesh is None else device_mesh
    if parallelize_plan is not None and not isinstance(parallelize_plan, ParallelStyle | Mapping | str):
        raise TypeError(
            "Expect Union[ParallelStyle, Dict[str, ParallelStyle]] for parallelize_plan, "
            f"{type(parallelize_plan)} found!"
        )
    if isinstance(parallelize_plan, Mapping):
        matched = {}
        for path, style in parallelize_plan.items():
            if any(True for _ in matching_modules(module, path)):
                matched[path] = style
            else:
                warnings.warn(f"Parallelize plan key '{path}' could not be resolved", stacklevel=2)
        parallelize_plan = matched
    return _parallelize_module(module, mesh, parallelize_plan, src_data_rank=src_data_rank)


__all__ = ["parallelize_module"]
