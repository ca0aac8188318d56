"""The names of torch.distributed.tensor.experimental."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ... import _C
from ... import module as _module
from ...partition import tensor_parallel_transformation as _transformation
from ...policy import implicit_replication
from ...rules import register_rule
from .._context_parallel import (
    _context_parallel_shard,
    _ContextParallel,
    _cp_options,
    _HeadTailLoadBalancer,
    _PerDocumentHeadTailLoadBalancer,
    _RotateMethod,
    context_parallel,
    context_parallel_unshard,
    set_rotate_method,
)
from .._dtensor_spec import spec_of_sharding


def local_map(
    func: Callable[..., Any] | None = None,
    out_placements: Any = None,
    in_placements: Any = None,
    in_grad_placements: Any = None,
    device_mesh: Any | None = None,
    *,
    redistribute_inputs: bool = False,
) -> Callable[..., Any]:
    """tessera.local_map with PyTorch's counting: placements are given for every positional argument
    and every result, None for those that are no tensors. Without a sharded argument it is `func`."""
    options: dict[str, Any] = {
        "out_placements": out_placements,
        "in_placements": in_placements,
        "in_grad_placements": in_grad_placements,
        "device_mesh": device_mesh,
        "redistribute_inputs": redistribute_inputs,
    }
    if func is None:
        return functools.partial(local_map, **options)

    @functools.wraps(func)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves = pytree.tree_leaves(args)
        if not any(_C.is_dtensor(leaf) for leaf in leaves):
            return func(*args, **kwargs)
        others = sum(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(kwargs))
        of_tensors = {
            "out_placements": _of_results(out_placements),
            "in_placements": _of_tensors("in_placements", in_placements, leaves, others),
            "in_grad_placements": _of_tensors(
                "in_grad_placements", in_grad_placements, leaves, others
            ),
        }
        counted = _with_counted_results(func, out_placements)
        return _module.local_map(counted, **options | of_tensors)(*args, **kwargs)

    return mapped


def _is_one_each(placements: Any) -> bool:
    """Whether these are the placements of several results, and not of all or the only one."""
    return isinstance(placements, tuple) and not any(isinstance(p, _C.Placement) for p in placements)


def _with_counted_results(func: Callable[..., Any], placements: Any) -> Callable[..., Any]:
    if not _is_one_each(placements):
        return func

    @functools.wraps(func)
    def counted(*args: Any, **kwargs: Any) -> Any:
        results = func(*args, **kwargs)
        count = len(pytree.tree_leaves(results))
        if count != len(placements):
            raise AssertionError(f"local_map: out_placements for {len(placements)} results, there are {count}")
        return results

    return counted


def _of_results(placements: Any) -> Any:
    if not _is_one_each(placements):
        return placements
    return tuple(placed for placed in placements if placed is not None)


def _of_tensors(what: str, given: Any, leaves: Sequence[Any], others: int) -> Any:
    """Of one entry for each positional argument those of tensors, then None for each other tensor."""
    if given is None:
        return None
    if len(given) != len(leaves):
        raise AssertionError(f"local_map: {what} for {len(given)} arguments, there are {len(leaves)}")
    out = []
    for leaf, placements in zip(leaves, given, strict=True):
        if _C.is_dtensor(leaf) and placements is None:
            raise AssertionError(
                f"local_map: an argument that is {_C.sharding(leaf)} expects placements in {what}"
            )
        if isinstance(leaf, torch.Tensor):
            out.append(placements)
        elif placements is not None:
            raise AssertionError(f"local_map: {what} has {placements} for {leaf!r}, which is not a tensor")
    return (*out, *[None] * others)


def register_sharding(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As torch.distributed.tensor.experimental.register_sharding: the decorated function gets the
    op's arguments, with a DTensorSpec for each tensor, and lists ([results], [operands]) placements.
    Entries that are no tensor are None among the operands."""
    overloads = op if isinstance(op, (list, tuple)) else [op]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for overload in overloads:
            schema = overload._schema
            name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
            register_rule(name, _as_rows(function), results=len(schema.returns))
        return function

    return decorate


def _as_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    def rows(call: _C.RuleCall, axis: int) -> Any:
        args = pytree.tree_map_only(_C.Sharding, spec_of_sharding, list(call.args.values()))
        for results, operands in function(*args):
            yield [p for p in operands if p is not None], results

    return rows


def tensor_parallel_transformation(
    exported_program: Any,
    rank: int,
    world_size: int,
    device_type: str,
    parallel_strategies: dict[str, Any],
) -> Any:
    """As torch.distributed.tensor.experimental's: the tensor-parallel program of `rank`.

    Styles are classes or instances; keys may be patterns ("layers.*.up"). Needs no process group to
    transform, only to run.
    """
    return _transformation(
        exported_program, f"{device_type}:tp={world_size}", dict(parallel_strategies), rank=rank
    )


__all__ = [
    "_ContextParallel",
    "_HeadTailLoadBalancer",
    "_PerDocumentHeadTailLoadBalancer",
    "_RotateMethod",
    "_context_parallel_shard",
    "_cp_options",
    "context_parallel",
    "context_parallel_unshard",
    "implicit_replication",
    "local_map",
    "register_sharding",
    "set_rotate_method",
    "tensor_parallel_transformation",
]
