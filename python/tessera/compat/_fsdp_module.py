"""FSDPModule: the methods that fully_shard gives a module."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.distributed._composable.contract import REGISTRY_KEY, RegistryItem

from .. import _C
from .. import fsdp_control as control
from .._C import UnshardHandle
from ..fsdp_module import converted
from ..fsdp_precision import MixedPrecisionPolicy
from ._fsdp_placed import Asserted


@dataclass(eq=False)
class FSDPState:
    """What is kept for a call of fully_shard; `fully_shard.state(module)` gives it."""

    mesh: _C.DeviceMesh
    mp_policy: MixedPrecisionPolicy
    collectives: dict[str, Any] = field(default_factory=dict)


states: weakref.WeakKeyDictionary[nn.Module, FSDPState] = weakref.WeakKeyDictionary()


class FSDPModule:
    """What a module is after fully_shard, beside what it was. Its methods are about the group that
    fully_shard made of this module; those with `recurse` also about the groups inside."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # nn.Sequential and nn.ModuleList make modules of their own class when they are sliced.
        plain = cls.__mro__[cls.__mro__.index(FSDPModule) + 1]
        made = plain.__new__(plain, *args, **kwargs)
        made.__init__(*args, **kwargs)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise Asserted(
            "FSDP does not support deepcopy. Please use state dict for serialization: copy the module "
            "before fully_shard, or load tessera.full_state_dict(module) into another one"
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """to(), to_empty(), half() and the like: on shards, gradients with them."""
        with converted(_module(self), fn):
            return super()._apply(fn, recurse)  # type: ignore[misc]

    def unshard(self, async_op: bool = False) -> UnshardHandle | None:
        """Gathers the group; it is resharded as usual, or by reshard(). With `async_op` only starts to:
        wait() of what is returned waits for it, as whatever touches a parameter does."""
        if async_op:
            return control.unshard_async(_module(self), recurse=False)
        control.unshard(_module(self), recurse=False)
        return None

    def reshard(self) -> None:
        """Reshards the group: frees its gathered parameters."""
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
        control.set_modules_to_forward_prefetch(_module(self), fsdp_modules(modules))

    def set_modules_to_backward_prefetch(self, modules: list[FSDPModule]) -> None:
        """The same in backward."""
        control.set_modules_to_backward_prefetch(_module(self), fsdp_modules(modules))

    def set_custom_all_gather(self, comm: Callable[..., Any]) -> None:
        """`comm(output_tensor, input_tensor, group, async_op)` gathers, instead of the library, into
        memory of `comm.allocate` if it has that."""
        _change_collectives(self, all_gather=_pairwise(comm), **_allocate_of(comm))

    def set_custom_reduce_scatter(self, comm: Callable[..., Any]) -> None:
        """`comm(output_tensor, input_tensor, group, op, async_op)` reduces, likewise; op is a sum. One
        function allocates: that of a gather's own comes first."""
        own = states[_module(self)].collectives
        allocate = {} if "all_gather" in own and "allocate" in own else _allocate_of(comm)
        op = torch.distributed.ReduceOp.SUM
        _change_collectives(self, reduce_scatter=_pairwise(comm, op=op), **allocate)

    def set_all_reduce_hook(
        self, hook: Callable[[torch.Tensor], None], *, stream: Any | None = None
    ) -> None:
        """`hook(reduced)` sees, and may change, what was reduced over all axes of the mesh. It runs in
        the current stream, also where `stream` names another."""
        if stream is not None and states[_module(self)].mesh.ndim == 2:
            raise _C.InvalidArgument(
                "set_all_reduce_hook: stream cannot be set when using native HSDP, whose all_reduce the "
                "hook would follow in another stream; leave the stream out"
            )

        def reduce(tensors: list[torch.Tensor], replicas: Any) -> None:
            if replicas is not None:
                for work in [replicas.allreduce([tensor]) for tensor in tensors]:
                    work.wait()
            for tensor in tensors:
                hook(tensor)

        _change_collectives(self, all_reduce=reduce)

    def set_post_optim_event(self, event: torch.Event | None) -> None:
        """The current stream waits for the event, and gathers follow the current stream. CPUs have
        no streams: what their record_event gives is None, and there is nothing to wait for."""
        if event is not None:
            event.wait()

    def set_allocate_memory_from_process_group_for_comm(self, enable: bool) -> None:
        """Memory for messages comes from the process group, where that has any to give."""
        state = states[_module(self)]
        if "all_gather" in state.collectives or "reduce_scatter" in state.collectives:
            raise Asserted("memory of the process group for messages that the program's functions send")
        group = state.mesh.get_group(state.mesh.ndim - 1)

        def allocate(count: int, device: torch.device) -> torch.Tensor:
            backend = group._get_backend(device)
            if backend.supports_tensor_alloc(device):
                return backend.allocate_tensor(count, dtype=torch.uint8, device=device)
            return torch.empty(count, dtype=torch.uint8, device=device)

        _change_collectives(self, allocate=allocate if enable else None)

    def set_symm_mem_for_comm(self, backend: str = "NCCL") -> None:
        """Not there."""
        raise _C.NotSupported(
            "symmetric memory for messages: give functions that allocate it and send with it, "
            "tessera.set_collectives(module, allocate=..., all_gather=...)"
        )

    def set_reduce_scatter_max_input_buffers(
        self, max_input_buffers: int, *, recurse: bool = True
    ) -> None:
        """Gradients go into memory of their own; a group waits for the reduce_scatter before its own."""
        if isinstance(max_input_buffers, bool) or not isinstance(max_input_buffers, int):
            raise TypeError(f"max_input_buffers is {max_input_buffers!r}, not a number of buffers")
        if max_input_buffers < 1:
            raise _C.InvalidArgument(f"max_input_buffers is {max_input_buffers}, not 1 or more")

    # Nothing to do, because it is so already.

    def reset_iter_state(self) -> None:
        """A step that failed leaves nothing behind."""

    def set_is_last_backward(self, is_last_backward: bool) -> None:
        """What a backward reduces is there when it ends."""

    def set_unshard_in_backward(self, unshard_in_backward: bool) -> None:
        """Backward gathers what it touches and nothing else."""

    def set_force_sum_reduction_for_comms(self, enable: bool) -> None:
        """Messages sum; what divides runs before and after them."""

    def set_separate_reduce_scatter_group(
        self, enable: bool = True, *, recurse: bool = True
    ) -> None:
        """Gathers and reductions over Gloo and threads run side by side in one group. Over NCCL they
        take turns."""

    def _set_unshard_async_op(self, async_op: bool) -> None:
        """Memory is allocated in the current stream."""


def _module(module: Any) -> nn.Module:
    return module


def fsdp_modules(modules: Iterable[Any]) -> list[nn.Module]:
    """The modules, if fully_shard has made them what they should be."""
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


def _change_collectives(module: Any, **changed: Any) -> None:
    own = states[_module(module)].collectives
    own.update(changed)
    control.set_collectives(_module(module), recurse=False, **own)


def replicated_parameters(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Those that PyTorch's replicate() has taken."""
    taken = (m for module in modules for m in module.modules() if "replicate" in _registry_of(m))
    return [parameter for module in taken for parameter in module.parameters()]


def _registry_of(module: nn.Module) -> dict[str, Any]:
    """State that PyTorch's functions on modules share."""
    registry: dict[str, Any] = module.__dict__.setdefault(REGISTRY_KEY, {})
    return registry


_classes: dict[tuple[type, type], type] = {}


def become_fsdp_module(
    module: nn.Module, state: FSDPState, kind: type = FSDPModule, prefix: str = "FSDP"
) -> None:
    """The module gets the methods of `kind`, an FSDPModule, by its class."""
    plain = type(module)
    if (kind, plain) not in _classes:
        _classes[kind, plain] = type(f"{prefix}{plain.__name__}", (kind, plain), {})
    module.__class__ = _classes[kind, plain]
    states[module] = state
    # PyTorch's replicate() around it then leaves its parameters alone.
    _registry_of(module)["fully_shard"] = RegistryItem()
