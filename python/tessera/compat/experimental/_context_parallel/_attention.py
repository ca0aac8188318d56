"""The names of torch.distributed.tensor.experimental._context_parallel._attention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.tensor.experimental._context_parallel import _attention as _theirs
from torch.utils import _pytree as pytree

from .... import _C
from ..._context_parallel import (
    _CausalBehavior,
    _context_parallel_shard,
    _ContextParallel,
    _ContextParallelOptions,
    _cp_options,
    _disable_context_parallel_dispatcher,
    _enable_context_parallel_dispatcher,
    _is_causal_behavior,
    _RotateMethod,
    context_parallel,
    context_parallel_unshard,
    set_rotate_method,
)


@contextmanager
def _options_of_pytorch() -> Iterator[None]:
    """PyTorch's ring reads options of its own: those of _cp_options for the time of a call."""
    theirs = _theirs._cp_options
    before = theirs.enable_load_balance, theirs.rotate_method
    theirs.enable_load_balance = _cp_options.enable_load_balance
    theirs.rotate_method = _theirs._RotateMethod[_cp_options.rotate_method.name]
    try:
        yield
    finally:
        theirs.enable_load_balance, theirs.rotate_method = before


def _refuse_sharded(name: str, arguments: Any) -> None:
    if any(_C.is_dtensor(leaf) for leaf in pytree.tree_leaves(arguments)):
        raise _C.NotSupported(
            f"{name} takes this rank's plain parts and a process group; sharded tensors need no ring of the "
            "program's: call scaled_dot_product_attention on them inside context_parallel"
        )


def _templated_ring_attention(
    group: Any, seq_dim: int, op: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any
) -> Any:
    """PyTorch's ring over plain tensors, by the options of this module."""
    _refuse_sharded("_templated_ring_attention", (query, key, value))
    with _options_of_pytorch():
        return _theirs._templated_ring_attention(
            group, seq_dim, op, query, key, value, *args, **kwargs
        )


def _templated_ring_attention_backward(
    group: Any, seq_dim: int, op: Any, *args: Any, **kwargs: Any
) -> Any:
    """Its backward."""
    _refuse_sharded("_templated_ring_attention_backward", (args, kwargs))
    with _options_of_pytorch():
        return _theirs._templated_ring_attention_backward(group, seq_dim, op, *args, **kwargs)


def _sdpa_handler(op_call: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    raise _C.NotSupported(
        f"_sdpa_handler({op_call}): it is a part of PyTorch's dispatch of DTensors; call the op itself inside "
        "context_parallel"
    )


__all__ = [
    "_CausalBehavior",
    "_ContextParallel",
    "_ContextParallelOptions",
    "_RotateMethod",
    "_context_parallel_shard",
    "_cp_options",
    "_disable_context_parallel_dispatcher",
    "_enable_context_parallel_dispatcher",
    "_is_causal_behavior",
    "_sdpa_handler",
    "_templated_ring_attention",
    "_templated_ring_attention_backward",
    "context_parallel",
    "context_parallel_unshard",
    "set_rotate_method",
]
