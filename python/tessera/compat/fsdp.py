"""The names of torch.distributed.fsdp (FSDP2) on top of this library; `tessera.compat` has them too.

    from tessera.compat.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.set_requires_gradient_sync(False)

A module gets FSDPModule's methods by its class, as there. What has no meaning here, or is not there,
raises NotSupported and says why.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from .. import _C, fsdp
from .._C import UnshardHandle as UnshardHandle
from ..fsdp_compute_dtype import compute_dtype, watch_outputs
from ..fsdp_pipelining import install_if_imported
from ..mesh import mesh_from_torch
from ._fsdp_module import FSDPModule as FSDPModule
from ._fsdp_module import (
    FSDPState,
    become_fsdp_module,
    fsdp_modules,
    replicated_parameters,
    states,
)
from ._fsdp_placed import Asserted, Placed, default_mesh, move_to
from ._fsdp_placed import DataParallelMeshDims as DataParallelMeshDims
from ._fsdp_placed import FSDPMeshInfo as FSDPMeshInfo
from ._fsdp_placed import HSDPMeshInfo as HSDPMeshInfo
from ._fsdp_placed import ShardPlacementResult as ShardPlacementResult


@dataclasses.dataclass(frozen=True)
class MixedPrecisionPolicy(fsdp.MixedPrecisionPolicy):
    """As in torch.distributed.fsdp."""


@dataclasses.dataclass
class OffloadPolicy:
    """Parameters, gradients and optimizer state stay on the mesh's device."""


@dataclasses.dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """They rest on the CPU, where the optimizer computes."""

    pin_memory: bool = True


def fully_shard(
    module: Any,
    *,
    mesh: Any | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[nn.Parameter], Any] | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    offload_policy: OffloadPolicy = OffloadPolicy(),
    ignored_params: Iterable[nn.Parameter] | None = None,
    dp_mesh_dims: DataParallelMeshDims | None = None,
) -> Any:
    """As torch.distributed.fsdp.fully_shard; returns the module, which is now an FSDPModule.

        >>> def show(rank):
        ...     layer = fully_shard(torch.nn.Linear(3, 4))
        ...     return isinstance(layer, FSDPModule), isinstance(layer, torch.nn.Linear)
        >>> tessera.run_ranks(2, show)[0]
        (True, True)
    """
    modules = [module] if isinstance(module, nn.Module) else list(module)
    ignored = [*(ignored_params or ()), *replicated_parameters(modules)]
    if dp_mesh_dims is not None:
        raise _C.NotSupported(
            f"fully_shard with {dp_mesh_dims}: distribute parameters over the tensor-parallel axes "
            "alone, mesh['tp'], and give fully_shard the others, mesh['dp']"
        )
    check_modules("fully_shard", modules)
    mesh = default_mesh() if mesh is None else mesh
    if mesh.ndim > 2:
        raise _C.InvalidArgument(
            f"fully_shard expects a 1D or 2D DeviceMesh but got DeviceMesh {mesh}: one axis to shard "
            "over, or one of replicas before it; take that part, mesh['dp', 'fs']"
        )
    move_to(mesh, modules, ignored)
    placed = None if shard_placement_fn is None else Placed(shard_placement_fn)
    offload = None
    if hasattr(offload_policy, "pin_memory"):  # PyTorch's own too
        offload = fsdp.CPUOffloadPolicy(pin_memory=offload_policy.pin_memory)
    mp_policy = own_policy(mp_policy)
    fsdp.fully_shard(
        module,
        mesh,
        reshard_after_forward=reshard_after_forward,
        shard_dim=None if placed is None else placed.dim,
        shard_mesh=None if placed is None else placed.mesh,
        ignored_params=ignored,
        mp_policy=mp_policy,
        offload_policy=offload,
    )
    state = FSDPState(mesh_from_torch(mesh), mp_policy)
    for part in modules:
        become_fsdp_module(part, state)
        adopt_at_first_forward(part)
    return module


fully_shard.state = states.get  # type: ignore[attr-defined]


def own_policy(policy: Any) -> MixedPrecisionPolicy:
    """The policy, which may be PyTorch's own."""
    if isinstance(policy, MixedPrecisionPolicy):
        return policy
    return MixedPrecisionPolicy(**dataclasses.asdict(policy))


def check_modules(function: str, modules: Iterable[nn.Module]) -> None:
    """Refuses what `function` cannot make an FSDPModule."""
    for module in modules:
        if module in states:
            raise Asserted(
                "Each distinct composable distributed API can only be applied to a module once. "
                f"{function} found a {type(module).__name__}, which is an FSDPModule"
            )
        is_container = isinstance(module, (nn.ModuleList, nn.ModuleDict))
        if is_container and type(module).forward is nn.Module.forward:
            raise _C.InvalidArgument(
                f"{function} does not support containers that do not implement forward, such as this "
                f"{type(module).__name__}; give the modules in it, one by one or as a list"
            )


def adopt_at_first_forward(module: nn.Module) -> None:
    """Until then a program may still put other parameters in the place of those that were sharded."""
    places = fsdp.places_of(module)

    def adopt(*_: Any) -> None:
        empty = [n for n, p in module.named_parameters() if p.is_meta and _C.in_group(p)]
        if empty:
            raise _C.InvalidArgument(
                "FSDP parameters should be materialized from meta device before training, but the "
                f"following were still on meta device: {empty}; to_empty(device=...) gives them "
                "memory, then write their values"
            )
        if fsdp.adopt_replaced(module, places):
            hook.remove()
        install_if_imported()

    hook = module.register_forward_pre_hook(adopt, prepend=True)


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Arguments and results of the method are cast as forward's are, and parameters report the dtype
    that they compute in. To gather, nothing is to be done:
    whatever touches a parameter does, also outside forward."""
    if not isinstance(module, FSDPModule):
        return
    if not hasattr(module, method_name):
        raise _C.InvalidArgument(f"{type(module).__name__} has no method {method_name}")
    policy = states[module].mp_policy
    method = getattr(module, method_name)

    @functools.wraps(method)
    def with_casts(*args: Any, **kwargs: Any) -> Any:
        with compute_dtype(module):
            result = method(*policy.cast_input(args), **policy.cast_input(kwargs))
        watch_outputs(module, result)
        return policy.cast_output(result)

    setattr(module, method_name, with_casts)


def share_comm_ctx(modules: list[FSDPModule]) -> None:
    """Nothing to do: all groups of a rank share one order and its buffers."""
    fsdp_modules(modules)
