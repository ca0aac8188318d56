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
from typing import Any, NamedTuple

import torch
from torch import nn

from .. import _C, fsdp
from .. import fsdp_control as control
from .._C import UnshardHandle as UnshardHandle
from ..mesh import init_device_mesh
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
        """Gathers the group; it is let go as ever, or by reshard(). With `async_op` only starts to:
        wait() of what is returned waits for it, as whatever touches a parameter does."""
        if async_op:
            return control.unshard_async(_module(self), recurse=False)
        control.unshard(_module(self), recurse=False)
        return None

    def reshard(self) -> None:
        """Lets go of the group."""
        control.reshard(_module(self), recurse=False)

    def set_requires_gradient_sync(self, requires_gradient_sync: bool, *, recurse: bool = True) -> None:
        """False: backwards keep each rank's gradients and reduce nothing until one with True."""
        control.set_requires_gradient_sync(_module(self), requires_gradient_sync, recurse=recurse)

    def set_requires_all_reduce(self, requires_all_reduce: bool, *, recurse: bool = True) -> None:
        """The same between the replicas of a mesh of two axes alone."""
        control.set_requires_all_reduce(_module(self), requires_all_reduce, recurse=recurse)

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """As fully_shard's `reshard_after_forward`, from now on."""
        if not isinstance(reshard_after_forward, bool):
            raise _C.InvalidArgument(
                f"set_reshard_after_forward takes a bool, not {reshard_after_forward!r}; "
                "tessera.set_reshard_after_forward takes a number of ranks too"
            )
        control.set_reshard_after_forward(_module(self), reshard_after_forward, recurse=recurse)

    def set_reshard_after_backward(self, reshard_after_backward: bool, *, recurse: bool = True) -> None:
        """False: what backward gathered stays until it is used again or parameters change."""
        control.set_reshard_after_backward(_module(self), reshard_after_backward, recurse=recurse)

    def set_gradient_divide_factor(self, factor: float) -> None:
        """The sum of the ranks' gradients is divided by it."""
        control.set_gradient_divide_factor(_module(self), factor, recurse=False)

    set_reduce_scatter_divide_factor = set_gradient_divide_factor

    def set_reduce_scatter_unused_params(
        self, reduce_scatter_unused_params: bool, *, recurse: bool = True
    ) -> None:
        """True: parameters without a gradient count as zeros, so that ranks may use different ones."""
        control.set_reduce_unused_parameters(
            _module(self), reduce_scatter_unused_params, recurse=recurse
        )

    def set_modules_to_forward_prefetch(self, modules: list[FSDPModule]) -> None:
        """In forward these are gathered when this one is used, not what was learned to follow it."""
        control.set_modules_to_forward_prefetch(_module(self), _modules(modules))

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """The same in backward."""
        control.set_modules_to_backward_prefetch(_module(self), _modules(modules))

    def set_custom_all_gather(self, comm: Callable[..., Any]) -> None:
        """`comm(output_tensor, input_tensor, group, async_op)` gathers, instead of the library."""
        _change_collectives(_module(self), all_gather=_pairwise(comm), **_allocate_of(comm))

    def set_custom_reduce_scatter(self, comm: Callable[..., Any]) -> None:
        """`comm(output_tensor, input_tensor, group, op, async_op)` reduces, likewise; op is a sum."""
        op = torch.distributed.ReduceOp.SUM
        both = {"reduce_scatter": _pairwise(comm, op=op), **_allocate_of(comm)}
        _change_collectives(_module(self), **both)

    def set_all_reduce_hook(
        self, hook: Callable[[torch.Tensor], None], *, stream: Any | None = None
    ) -> None:
        """`hook(reduced)` sees, and may change, what was reduced over all axes of the mesh. It runs in
        the current stream, also where `stream` names another."""

        def reduce(tensors: list[torch.Tensor], replicas: Any) -> None:
            if replicas is not None:
                for work in [replicas.allreduce([tensor]) for tensor in tensors]:
                    work.wait()
            for tensor in tensors:
                hook(tensor)

        _change_collectives(_module(self), all_reduce=reduce)

    def set_post_optim_event(self, event: torch.Event) -> None:
        """The current stream waits for the event, and gathers follow the current stream."""
        event.wait()

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Not there."""
        if enable:
            raise _C.NotSupported(
                "memory of the process group for messages: give a function that allocates it, "
                "tessera.set_collectives(module, allocate=...)"
            )

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """Not there."""
        raise _C.NotSupported(
            "symmetric memory for messages: give functions that allocate it and send with it, "
            "tessera.set_collectives(module, allocate=..., all_gather=...)"
        )

    # Nothing to do, because it is so already.

    def reset_iter_state(self) -> None:
        """A step that failed leaves nothing behind."""

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """What a backward reduces is there when it ends."""

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Backward gathers what it touches and nothing else."""

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Messages sum; what divides runs before and after them."""

    def set_reduce_scatter_max_input_buffers(
        self, max_input_buffers: int, *, recurse: bool = True
    ) -> None:
        """Gradients go into memory of their own; a group waits for the reduce_scatter before its own."""
        if isinstance(max_input_buffers, bool) or max_input_buffers < 1:
            raise _C.InvalidArgument(f"max_input_buffers is {max_input_buffers!r}, not 1 or more")

    def set_separate_reduce_scatter_group(
        self, enable: bool = True, *, recurse: bool = True
    ) -> None:
        """Gathers and reductions over Gloo and threads run side by side in one group. Over NCCL they
        take turns."""

    def _set_unshard_async_op(self, async_op: bool) -> None:
        """Memory is allocated in the current stream."""


def _module(module: Any) -> nn.Module:
    return module


def _modules(modules: Iterable[Any]) -> list[nn.Module]:
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise _C.InvalidArgument(f"{type(module).__name__} is no FSDPModule; fully_shard makes it one")
    return [_module(module) for module in modules]


class _AllOf:
    """Several calls under way, as one."""

    def __init__(self, works: list[Any]):
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()


def _pairwise(comm: Callable[..., Any], **also: Any) -> control.Exchange:
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


def _allocate_of(comm: Any) -> dict[str, Any]:
    if not hasattr(comm, "allocate"):
        return {}
    return {
        "allocate": lambda count, device: comm.allocate((count,), dtype=torch.uint8, device=device)
    }


_collectives: weakref.WeakKeyDictionary[nn.Module, dict[str, Any]] = weakref.WeakKeyDictionary()


def _change_collectives(module: nn.Module, **changed: Any) -> None:
    own = _collectives.setdefault(module, {})
    own.update(changed)
    control.set_collectives(module, recurse=False, **own)


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


@dataclass(frozen=True)
class FSDPMeshInfo:
    """The mesh of a parameter that lies on another than its module's: a mesh of one axis, or of
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


HSDPMeshInfo = FSDPMeshInfo


class ShardPlacementResult(NamedTuple):
    """What shard_placement_fn may return, beside Shard(dim) and None."""

    placement: Any
    mesh_info: Any


@dataclass
class _Placed:
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
            known = self._known[id(parameter)] = (None if given is None else int(given.dim), mesh)
        return known

    def dim(self, name: str, parameter: nn.Parameter) -> int | None:
        return self._of(name, parameter)[0]

    def mesh(self, name: str, parameter: nn.Parameter) -> Any:
        return self._of(name, parameter)[1]


@dataclass
class DataParallelMeshDims:
    """As in torch.distributed.fsdp, where a mesh has axes of tensor parallelism too."""

    shard: str | tuple[str, ...] | None = None
    replicate: str | tuple[str, ...] | None = None


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
    if dp_mesh_dims is not None:
        raise _C.NotSupported(
            f"fully_shard with {dp_mesh_dims}: distribute parameters over the tensor-parallel axes "
            "alone, mesh['tp'], and give fully_shard the others, mesh['dp']"
        )
    mesh = _default_mesh(modules) if mesh is None else mesh
    placed = None if shard_placement_fn is None else _Placed(shard_placement_fn)
    offload = None
    if isinstance(offload_policy, CPUOffloadPolicy):
        offload = fsdp.CpuOffload(pin_memory=offload_policy.pin_memory)
    fsdp.fully_shard(
        module,
        mesh,
        reshard_after_forward=reshard_after_forward,
        shard_dim=None if placed is None else placed.dim,
        shard_mesh=None if placed is None else placed.mesh,
        ignored=ignored_params or (),
        mixed_precision=mp_policy,
        cpu_offload=offload,
    )
    for part in modules:
        _become_fsdp_module(part)
    return module


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Nothing to do: whatever touches a parameter gathers it, also outside forward."""
    if isinstance(module, FSDPModule) and not hasattr(module, method_name):
        raise _C.InvalidArgument(f"{type(module).__name__} has no method {method_name}")


def share_comm_ctx(modules: list[FSDPModule]) -> None:
    """Nothing to do: all groups of a rank share one order and its buffers."""
    _modules(modules)
