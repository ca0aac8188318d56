"""Context parallelism: attention whose sequence is sharded over the ranks of a mesh axis.

See docs/context_and_experts.md.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode

from . import _C
from ._C import DeviceMesh, SequenceOrder, reorder_sequence, restore_sequence
from .mesh import mesh_from_torch
from .placement import RaggedShard, Shard
from .tensor import distribute_tensor, from_local, full_tensor, to_local

Method = Literal["ring", "all_gather", "all_to_all"]
_ROWS = 2  # the dim of attention tensors that is sharded


def context_parallel_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    mask: torch.Tensor | None = None,
    mask_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    method: Method = "ring",
    order: SequenceOrder | None = None,
    documents: Sequence[Sequence[int]] = (),
    kernel: str = "automatic",
) -> torch.Tensor:
    """Attention on tensors B x H x S x D that are sharded over S, equal to that on whole ones.

    `order` says how the sequence is laid out (SequenceOrder.head_tail balances causal masks),
    `documents` are offsets [0, 5, 12] of documents that attend within themselves, one list for all
    rows of the batch or one for each. `mask_function(query_positions, key_positions)` computes a mask
    tile by tile, from positions of queries x 1 and 1 x keys: `lambda q, k: (q - k).abs() < 4`.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("cp=2")
        ...     x = torch.arange(32.0).sin().view(1, 2, 8, 2)
        ...     part = tessera.distribute_tensor(x, mesh, "S2")
        ...     out = context_parallel_attention(part, part, part, is_causal=True)
        ...     full = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
        ...     return torch.allclose(tessera.full_tensor(out), full, atol=1e-5)
        >>> tessera.run_ranks(2, show)
        [True, True]
    """
    return _C.context_parallel_attention(
        query,
        key,
        value,
        is_causal,
        scale,
        mask,
        mask_function,
        method,
        order or SequenceOrder(),
        [list(offsets) for offsets in documents],
        kernel,
    )


@dataclass(frozen=True)
class _Buffer:
    """A buffer of context_parallel, which is this rank's part inside."""

    tensor: torch.Tensor
    dim: int  # of the sequence
    length: int  # of all ranks together


class _RotatingAttention(TorchFunctionMode):  # type: ignore[misc]
    """scaled_dot_product_attention of plain tensors that are this rank's rows."""

    def __init__(
        self, mesh: DeviceMesh, buffers: Sequence[_Buffer], balanced: bool, method: Method
    ) -> None:
        super().__init__()
        self.mesh = mesh
        self.buffers = buffers
        self.balanced = balanced
        self.method = method

    def order(self, length: int) -> SequenceOrder:
        return SequenceOrder.head_tail(length, self.mesh.size()) if self.balanced else SequenceOrder()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        return self.attend(func, *args, **kwargs)

    def attend(
        self,
        func: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if _C.is_dtensor(query) or query.dim() != 4:
            return func(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if attn_mask is not None and is_causal:
            raise RuntimeError("context_parallel: give attn_mask or is_causal, not both")
        if dropout_p != 0.0:
            raise _C.NotSupported(
                "context_parallel: no kernel draws dropout by global position; set dropout_p to 0"
            )
        if query.size(1) != key.size(1) and not enable_gqa:
            raise RuntimeError(
                f"context_parallel: {query.size(1)} heads of queries, {key.size(1)} of keys; "
                "set enable_gqa"
            )
        parts = (query, key, value)
        queries, keys, values = map(self.globalise, parts, self.sizes(parts))
        rows, columns = queries.size(_ROWS), keys.size(_ROWS)
        order = self.order(rows)
        mask_function = None
        if rows != columns:
            # One order cannot fit both. The order of keys matters to a causal mask alone.
            if is_causal and self.balanced:
                is_causal = False
                mask_function = causal_mask(order.indices(rows), self.order(columns).indices(columns))
            order = SequenceOrder()
        out = context_parallel_attention(
            queries,
            keys,
            values,
            is_causal=is_causal,
            scale=scale,
            mask=attn_mask,
            mask_function=mask_function,
            method=self.method,
            order=order,
        )
        return to_local(out)

    def sizes(self, parts: Sequence[torch.Tensor]) -> list[list[int]]:
        """The rows that each rank has of each tensor. Those of a buffer are known, and so are those of others
        while the buffers divide evenly, since then all ranks have as many. Otherwise the ranks exchange them,
        in one message: what was computed from a buffer may be as uneven as it is."""
        ranks = self.mesh.size()
        known = [self.length_of_buffer(part) for part in parts]
        uneven = any(buffer.length % ranks for buffer in self.buffers)
        if uneven and None in known:
            own = torch.tensor([[part.size(_ROWS) for part in parts]], device=parts[0].device)
            every = full_tensor(from_local(own, self.mesh, [Shard(0)], even=True))
            return [[int(size) for size in column] for column in every.t()]
        return [
            [part.size(_ROWS)] * ranks if length is None else chunk_sizes(length, ranks)
            for part, length in zip(parts, known, strict=True)
        ]

    def length_of_buffer(self, part: torch.Tensor) -> int | None:
        for buffer in self.buffers:
            if part is buffer.tensor and buffer.dim % part.dim() == _ROWS:
                return buffer.length
        return None

    def globalise(self, local: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        length = sum(sizes)
        is_chunked = list(sizes) == chunk_sizes(length, len(sizes))
        placement = Shard(_ROWS) if is_chunked else RaggedShard(_ROWS, sizes)
        shape = (local.size(0), local.size(1), length, local.size(3))
        return from_local(local, self.mesh, [placement], shape=shape)


def chunk_sizes(length: int, ranks: int) -> list[int]:
    """Of the parts of Shard: 10 over 4 is 3,3,3,1."""
    part = -(-length // ranks)
    return [max(0, min(part, length - part * rank)) for rank in range(ranks)]


def causal_mask(
    query_positions: torch.Tensor, key_positions: torch.Tensor
) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A mask function of rows, whose positions are given."""

    def attends(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        rows = query_positions.to(queries.device)[queries]
        return key_positions.to(keys.device)[keys] <= rows

    return attends


def shard_buffers(
    mesh: DeviceMesh, buffers: Sequence[torch.Tensor], dims: Sequence[int], *, load_balance: bool
) -> list[torch.Tensor]:
    """This rank's part of each buffer; every rank has the whole ones."""
    parts = []
    for buffer, dim in zip(buffers, dims, strict=True):
        length = buffer.size(dim)
        order = SequenceOrder.head_tail(length, mesh.size()) if load_balance else SequenceOrder()
        laid_out = reorder_sequence(buffer.detach(), dim, order)
        part = distribute_tensor(laid_out, mesh, [Shard(dim % buffer.dim())], src_data_rank=None)
        parts.append(to_local(part).clone())
    return parts


@contextlib.contextmanager
def context_parallel(
    mesh: Any,
    *,
    buffers: Sequence[torch.Tensor] | None = None,
    buffer_seq_dims: Sequence[int] | None = None,
    no_restore_buffers: set[torch.Tensor] | None = None,
    method: Method = "ring",
    load_balance: bool = True,
) -> Iterator[None]:
    """Inside, scaled_dot_product_attention is attention over all ranks of a one-axis mesh.

    Semantics of torch.distributed.tensor.experimental.context_parallel: each rank enters with the
    whole `buffers`, which become this rank's part of their sequence dim, in place, and are restored
    at the end (but for `no_restore_buffers`). Plain tensors inside are this rank's rows; sharded ones
    work too. Keys and values may be of another length than the queries (cross attention). A sequence
    divides evenly over the ranks unless it is a buffer, or other buffers do not either: then the ranks
    exchange the sizes of what is no buffer. With `load_balance`, parts are in head-tail order.
    """
    cp = mesh_from_torch(mesh)
    if cp.ndim != 1:
        raise _C.InvalidArgument(
            f"context_parallel over mesh {cp}: give a mesh of one axis, such as mesh['cp']"
        )
    held = list(buffers or [])
    dims = list(buffer_seq_dims or [])
    if len(held) != len(dims):
        raise ValueError("`buffer_seq_dims` must have the same number of elements as `buffers`.")
    loose = list(no_restore_buffers or ())
    if not all(any(b is one for b in held) for one in loose):
        raise ValueError("`no_restore_buffers` must be a subset of `buffers`.")
    with torch.no_grad():
        originals = [None if any(b is x for x in loose) else b.clone() for b in held]
        known = [_Buffer(b, dim, b.size(dim)) for b, dim in zip(held, dims, strict=True)]
        for buffer, part in zip(
            held, shard_buffers(cp, held, dims, load_balance=load_balance), strict=True
        ):
            buffer.resize_(part.shape)
            buffer.copy_(part)
    length = known[0].length if known else None
    order = (
        SequenceOrder.head_tail(length, cp.size()) if load_balance and length else SequenceOrder()
    )
    axis = cp.mesh_dim_names[0]
    try:
        with _C.ContextScope(axis, method, order, [], "automatic"):
            with _RotatingAttention(cp, known, load_balance, method):
                yield
    finally:
        with torch.no_grad():
            for buffer, original in zip(held, originals, strict=True):
                if original is not None:
                    buffer.resize_(original.shape)
                    buffer.copy_(original)


def context_parallel_unshard(
    mesh: Any, buffers: Sequence[torch.Tensor], seq_dims: Sequence[int], *, load_balance: bool = True
) -> list[torch.Tensor]:
    """The whole tensors, in natural order, of which each rank has a part under context_parallel."""
    cp = mesh_from_torch(mesh)
    out = []
    for buffer, dim in zip(buffers, seq_dims, strict=True):
        part = buffer.detach().contiguous()
        whole = full_tensor(from_local(part, cp, [Shard(dim % buffer.dim())]))
        order = (
            SequenceOrder.head_tail(whole.size(dim), cp.size()) if load_balance else SequenceOrder()
        )
        out.append(restore_sequence(whole, dim, order))
    return out
