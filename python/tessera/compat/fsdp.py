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

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .. import _C, fsdp
from ..mesh import init_device_mesh
from ..placement import Shard
from ..ranks import current_world


@dataclass(frozen=True)
class MixedPrecisionPolicy(fsdp.MixedPrecision):
    """As in torch.distributed.fsdp."""


@dataclass
class OffloadPolicy:
    """Parameters, gradients and optimizer state stay on the mesh's device."""


@dataclass
class CPUOffloadPolicy(OffloadPolicy):
    """They rest on the CPU, where the optimizer computes."""

    pin_memory: bool = True


class UnshardHandle:
    """What unshard(async_op=True) returns; the group is gathered already."""

    def wait(self) -> None:
        """Returns at once."""


class FSDPModule:
    """What a module is after fully_shard, beside what it was. Its methods are about the group that
    fully_shard made of this module; those with `recurse` also about the groups inside."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # nn.Sequential and nn.ModuleList make modules of their own class when they are sliced.
        plain = cls.__mro__[2]
        made = plain.__new__(plain, *args, **kwargs)
        made.__init__(*args, **kwargs)
        return made

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gathers the group; it is let go as ever, or by reshard()."""
        fsdp.unshard(_module(self), recurse=False)
        return UnshardHandle() if async_op else None

    def reshard(self) -> None:
        """Lets go of the group."""
        fsdp.reshard(_module(self), recurse=False)

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """False: backwards keep each rank's gradients and reduce nothing until one with True."""
        fsdp.set_requires_gradient_sync(_module(self), requires_gradient_sync, recurse=recurse)

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """Nothing to do: what a backward reduces is there when it ends."""

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Nothing to do: backward gathers what it touches and nothing else."""

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        """In forward these are gathered when this one is used, not what was learned to follow it."""
        fsdp.set_modules_to_forward_prefetch(_module(self), [_module(other) for other in modules])

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """The same in backward."""
        fsdp.set_modules_to_backward_prefetch(_module(self), [_module(other) for other in modules])

    def set_custom_all_gather(self, comm: Callable[..., Any]) -> None:
        """`comm(output_tensor, input_tensor, group, async_op)` gathers, instead of the library."""
        _change_collectives(_module(self), all_gather=_pairwise(comm))

    def set_custom_reduce_scatter(self, comm: Callable[..., Any]) -> None:
        """`comm(output_tensor, input_tensor, group, op, async_op)` reduces, likewise; op is a sum."""
        op = torch.distributed.ReduceOp.SUM
        _change_collectives(_module(self), reduce_scatter=_pairwise(comm, op=op))

    def set_all_reduce_hook(self, hook: Callable[[torch.Tensor], None]) -> None:
        """`hook(reduced)` sees, and may change, what was reduced over all axes of the mesh."""

        def reduce(tensors: list[torch.Tensor], replicas: Any) -> None:
            if replicas is not None:
                for work in [replicas.allreduce([tensor]) for tensor in tensors]:
                    work.wait()
            for tensor in tensors:
                hook(tensor)

        _change_collectives(_module(self), all_reduce=reduce)

    def reset_iter_state(self) -> None:
        """Nothing to do: a step that failed leaves nothing behind."""


def _module(module: Any) -> nn.Module:
    return module


class _AllOf:
    """Several calls under way, as one."""

    def __init__(self, works: list[Any]):
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def _pairwise(comm: Callable[..., Any], **also: Any) -> fsdp.Exchange:
    def exchange(
        outputs: list[torch.Tensor], inputs: list[torch.Tensor], group: Any, async_op: bool
    ) -> Any:
        works = [
            comm(output_tensor=output, input_tensor=given, group=group, async_op=async_op, **also)
            for output, given in zip(outputs, inputs, strict=True)
        ]
        works = [work for work in works if work is not None]
        return _AllOf(works) if works else None

    return exchange


_collectives: weakref.WeakKeyDictionary[nn.Module, dict[str, Any]] = weakref.WeakKeyDictionary()


def _change_collectives(module: nn.Module, **changed: Any) -> None:
    own = _collectives.setdefault(module, {})
    own.update(changed)
    fsdp.set_collectives(module, recurse=False, **own)


_classes: dict[type, type] = {}


def _become_fsdp_module(module: nn.Module) -> None:
    plain = type(module)
    if plain not in _classes:
        _classes[plain] = type(f"FSDP{plain.__name__}", (FSDPModule, plain), {})
    module.__class__ = _classes[plain]


def _default_mesh(modules: list[nn.Module]) -> Any:
    """All ranks of the world, on the device of the parameters."""
    device = next((p.device.type for m in modules for p in m.parameters()), "cpu")
    return init_device_mesh(device, (current_world().size,), mesh_dim_names=("dp",))


def _dim_by(shard_placement_fn: Callable[[nn.Parameter], Any]) -> fsdp.ShardDim:
    def dim(name: str, parameter: nn.Parameter) -> int | None:
        placement = shard_placement_fn(parameter)
        if placement is None:
            return None
        if not isinstance(placement, Shard) and not getattr(placement, "is_shard", bool)():
            raise _C.NotSupported(
                f"shard_placement_fn gave {placement!r} for {name}; Shard(dim) or None are possible"
            )
        return int(placement.dim)

    return dim


def fully_shard(
    module: Any,
    *,
    mesh: Any | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[nn.Parameter], Any] | None = None,
    mp_policy: MixedPrecisionPolicy = MixedPrecisionPolicy(),
    offload_policy: OffloadPolicy = OffloadPolicy(),
    ignored_params: Iterable[nn.Parameter] | None = None,
) -> Any:
    """As torch.distributed.fsdp.fully_shard; returns the module, which is now an FSDPModule.

        >>> def show(rank):
        ...     layer = fully_shard(torch.nn.Linear(3, 4))
        ...     return isinstance(layer, FSDPModule), isinstance(layer, torch.nn.Linear)
        >>> tessera.run_ranks(2, show)[0]
        (True, True)
    """
    modules = [module] if isinstance(module, nn.Module) else list(module)
    mesh = _default_mesh(modules) if mesh is None else mesh
    offload = None
    if isinstance(offload_policy, CPUOffloadPolicy):
        offload = fsdp.CpuOffload(pin_memory=offload_policy.pin_memory)
    fsdp.fully_shard(
        module,
        mesh,
        reshard_after_forward=reshard_after_forward,
        shard_dim=None if shard_placement_fn is None else _dim_by(shard_placement_fn),
        ignored=ignored_params or (),
        mixed_precision=mp_policy,
        cpu_offload=offload,
    )
    for part in modules:
        _become_fsdp_module(part)
    return module


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Nothing to do: whatever touches a parameter gathers it, also outside forward."""


def share_comm_ctx(modules: list[FSDPModule]) -> None:
    """Nothing to do: all groups of a rank share one order and its buffers."""
