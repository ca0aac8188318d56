"""The names of torch.distributed._composable.replicate_with_fsdp: data parallelism with whole parameters on every
rank, and with the methods of FSDPModule.

    from tessera.compat.replicate_with_fsdp import replicate

    for block in model.blocks:
        replicate(block, mesh=mesh["dp"])
    replicate(model, mesh=mesh["dp"])
    model.set_requires_gradient_sync(False)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from .. import _C, fsdp
from ..mesh import mesh_from_torch
from ._fsdp_module import FSDPModule, FSDPState, become_fsdp_module, states
from ._fsdp_placed import DataParallelMeshDims, default_mesh, move_to
from .fsdp import (
    MixedPrecisionPolicy,
    OffloadPolicy,
    adopt_at_first_forward,
    check_modules,
    own_policy,
)


class ReplicateModule(FSDPModule):
    """What a module is after replicate, beside what it was: an FSDPModule whose parameters are whole."""


def replicate(
    module: Any,
    *,
    mesh: Any | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    offload_policy: OffloadPolicy = OffloadPolicy(),
    ignored_params: Iterable[nn.Parameter] | None = None,
    dp_mesh_dims: DataParallelMeshDims | None = None,
) -> Any:
    """As torch.distributed._composable.replicate_with_fsdp.replicate; returns the module, which is now a
    ReplicateModule. Each rank keeps the values that it has, as there.

        >>> def show(rank):
        ...     layer = replicate(torch.nn.Linear(3, 4), mesh=tessera.init_device_mesh("dp=2"))
        ...     layer(torch.ones(2, 3)).sum().backward()
        ...     return isinstance(layer, ReplicateModule), layer.weight.placements, layer.weight.grad.placements
        >>> tessera.run_ranks(2, show)[0]
        (True, (Replicate(),), (Replicate(),))
    """
    modules = [module] if isinstance(module, nn.Module) else list(module)
    if dp_mesh_dims is not None:
        raise _C.NotSupported(
            f"replicate with {dp_mesh_dims}: distribute parameters over the tensor-parallel axes alone, "
            "mesh['tp'], and give replicate the other, mesh['dp']"
        )
    if hasattr(offload_policy, "pin_memory"):  # PyTorch's own too
        raise _C.NotSupported(
            f"replicate with {offload_policy}: whole parameters are not offloaded; fully_shard's shards are"
        )
    check_modules("replicate", modules)
    mesh = default_mesh("replicate") if mesh is None else mesh
    ignored = list(ignored_params or ())
    move_to(mesh, modules, ignored)
    mp_policy = own_policy(mp_policy)
    fsdp.replicate(module, mesh, ignored_params=ignored, mp_policy=mp_policy)
    state = FSDPState(mesh_from_torch(mesh), mp_policy)
    for part in modules:
        become_fsdp_module(part, state, ReplicateModule, "Replicate")
        adopt_at_first_forward(part)
    return module


replicate.state = states.get  # type: ignore[attr-defined]

__all__ = ["ReplicateModule", "replicate"]
