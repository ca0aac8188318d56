"""Settings of the groups of a module after fully_shard.

Call each with the same arguments on all ranks; a setting applies from then on. `recurse` includes the
groups of submodules; without it only the group that fully_shard made of this module is changed.
Settings cannot change while a backward runs.
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
    """Starts to gather the module's groups. wait() of the returned handle blocks until they are
    gathered, unless they were resharded since; so does the first op that uses a parameter.

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
    """False: parameters stay gathered after backward, until they are used again or change. Saves the
    gathers of the next forward if several backwards precede the optimizer's step."""
    _C.set_reshard_after_backward(groups_of(module, recurse), reshard_after_backward)


def set_requires_gradient_sync(module: Modules, sync: bool, *, recurse: bool = True) -> None:
    """False: backward accumulates each rank's unsharded gradients without communication; the first
    backward with True reduces their sum. For gradient accumulation over micro-batches."""
    _C.set_requires_gradient_sync(groups_of(module, recurse), sync)


def set_requires_all_reduce(module: Modules, all_reduce: bool, *, recurse: bool = True) -> None:
    """As set_requires_gradient_sync, for the all_reduce between replicas only, on a mesh of two axes.
    False: gradients are reduced over the shard axis, each replica accumulates them, and `grad` does
    not change."""
    _C.set_requires_all_reduce(groups_of(module, recurse), all_reduce)


def set_gradient_divide_factor(module: Modules, factor: float, *, recurse: bool = True) -> None:
    """As fully_shard's `gradient_divide_factor`."""
    _C.set_gradient_divide_factor(groups_of(module, recurse), factor)


def set_reduce_unused_parameters(module: Modules, reduce: bool, *, recurse: bool = True) -> None:
    """True: parameters or whole groups that a rank does not use have zero gradients there, for programs
    whose ranks use different layers (experts without tokens). The ranks then agree on each gather by
    a small message, and gradients are reduced at the end of backward. All ranks must take part in each
    backward: where a rank's loss neither uses a parameter nor comes from the output of a module given to
    fully_shard, or is left out, add `0 * p.sum()` of any parameter and call backward. A rank that skips
    a backward is an error. Forwards that are not for training belong under no_grad; after an evaluation
    that skips whole groups, call reshard()."""
    _C.set_reduce_unused_parameters(groups_of(module, recurse), reduce)


def set_modules_to_forward_prefetch(module: Modules, modules: Sequence[Modules]) -> None:
    """When forward first uses the module's groups, starts to gather those of `modules` instead of the
    next groups of the learned order. An empty list: no prefetch."""
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
    """Replaces the collectives of the module's groups; None is the library's own.

    `all_gather(outputs, inputs, group, async_op)` and `reduce_scatter`, with the same arguments, get
    lists of flat tensors and return an object with wait(), or None if they have completed. `all_reduce(tensors, group)`
    sums over the replicas of a mesh of two axes; with one axis the group is None. `allocate(bytes,
    device)` returns the memory to gather into. Replace the same functions on every rank.
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
