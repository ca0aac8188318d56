"""Settings of the groups of a module after fully_shard.

All of it is the same on all ranks and holds from now on. `recurse` includes the groups of modules
inside; without it only the group that fully_shard made of this module is meant. Settings cannot
change while a backward runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import _C
from ._C import UnshardHandle
from .fsdp import Modules, groups_of, mirror_of
from .fsdp_compute_dtype import rest_before_steps


def unshard(module: Modules, *, recurse: bool = True) -> None:
    """Gathers the module's groups now; they are resharded as usual, or by reshard(). Until then
    parameters have the dtype that they compute in."""
    _C.unshard(groups_of(module, recurse))
    rest_before_steps()


def unshard_async(module: Modules, *, recurse: bool = True) -> UnshardHandle:
    """Starts to gather them. wait() of what is returned waits until they are there, unless they were
    resharded since; whatever touches a parameter does so too.

        >>> def show(rank):
        ...     layer = tessera.fully_shard(torch.nn.Linear(3, 4), tessera.init_device_mesh("dp=2"))
        ...     handle = unshard_async(layer)
        ...     handle.wait()
        ...     return tessera.sharded_groups(layer)[0].gathered
        >>> tessera.run_ranks(2, show)
        [True, True]
    """
    rest_before_steps()
    return _C.unshard_async(groups_of(module, recurse))


def reshard(module: Modules, *, recurse: bool = True) -> None:
    """Reshards the module's groups: frees their gathered parameters."""
    _C.reshard(groups_of(module, recurse))


def set_reshard_after_forward(
    module: Modules, reshard_after_forward: bool | int, *, recurse: bool = True
) -> None:
    """As fully_shard's `reshard_after_forward`."""
    _C.set_reshard_after_forward(groups_of(module, recurse), reshard_after_forward)


def set_reshard_after_backward(
    module: Modules, reshard_after_backward: bool, *, recurse: bool = True
) -> None:
    """False: what backward gathered stays until it is used again or parameters change. Saves the
    gathers of the next forward where several backwards come before the optimizer's step."""
    _C.set_reshard_after_backward(groups_of(module, recurse), reshard_after_backward)


def set_requires_gradient_sync(module: Modules, sync: bool, *, recurse: bool = True) -> None:
    """While false, backwards keep each rank's whole gradients and reduce nothing; the first backward
    with true reduces their sum. For accumulation over several small batches."""
    _C.set_requires_gradient_sync(groups_of(module, recurse), sync)


def set_requires_all_reduce(module: Modules, all_reduce: bool, *, recurse: bool = True) -> None:
    """The same between replicas alone, on a mesh of two axes: while false, gradients are reduced over
    the shard axis, each replica keeps its sum of them, and `grad` does not change."""
    _C.set_requires_all_reduce(groups_of(module, recurse), all_reduce)


def set_gradient_divide_factor(module: Modules, factor: float, *, recurse: bool = True) -> None:
    """As fully_shard's `gradient_divide_factor`."""
    _C.set_gradient_divide_factor(groups_of(module, recurse), factor)


def set_reduce_unused_parameters(module: Modules, reduce: bool, *, recurse: bool = True) -> None:
    """True: what a rank skips, parameters or whole groups, counts as zeros, for programs whose ranks
    use different layers (experts without tokens). The ranks then agree on each gather by a small
    message; gradients are reduced at the end of backward. Each rank uses at least one parameter in
    each backward; after an evaluation that skips whole groups, call reshard()."""
    _C.set_reduce_unused_parameters(groups_of(module, recurse), reduce)


def set_modules_to_forward_prefetch(module: Modules, modules: Sequence[Modules]) -> None:
    """When the module's groups are used in forward, those of `modules` are gathered, in place of the
    next of the order that was learned; none of them: nothing is."""
    _C.set_forward_prefetch(mirror_of(module), [mirror_of(other) for other in modules])


def set_modules_to_backward_prefetch(module: Modules, modules: Sequence[Modules]) -> None:
    """The same in backward."""
    _C.set_backward_prefetch(mirror_of(module), [mirror_of(other) for other in modules])


Exchange = Callable[[list[torch.Tensor], list[torch.Tensor], Any, bool], Any]


def set_collectives(
    module: Modules,
    *,
    all_gather: Exchange | None = None,
    reduce_scatter: Exchange | None = None,
    all_reduce: Callable[[list[torch.Tensor], Any], None] | None = None,
    allocate: Callable[[int, torch.device], torch.Tensor] | None = None,
    recurse: bool = True,
) -> None:
    """From now on the module's groups send with these functions; None is the library's own.

    `all_gather(outputs, inputs, group, async_op)` and `reduce_scatter`, the same, get flat tensors in
    pairs, and return something with wait(), or None when all is done. `all_reduce(tensors, group)`
    sums over the replicas of a mesh of two axes; with one axis the group is None. `allocate(bytes,
    device)` gives the memory that is gathered into. Every rank replaces the same ones.
    """
    from torch.distributed.distributed_c10d import _resolve_process_group

    def exchange(function: Exchange | None) -> Any:
        if function is None:
            return None
        return lambda outputs, inputs, name, async_op: function(
            outputs, inputs, _resolve_process_group(name), async_op
        )

    def reduce(tensors: list[torch.Tensor], name: str | None) -> None:
        assert all_reduce is not None
        all_reduce(tensors, None if name is None else _resolve_process_group(name))

    _C.set_collectives(
        groups_of(module, recurse),
        exchange(all_gather),
        exchange(reduce_scatter),
        None if all_reduce is None else reduce,
        allocate,
    )
