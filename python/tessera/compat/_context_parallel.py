"""The names of torch.distributed.tensor.experimental._attention."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Literal

import torch

from .. import context as _context
from .._C import SequenceOrder, reorder_sequence, restore_sequence
from ..mesh import mesh_from_torch
from ..placement import Shard
from ..tensor import distribute_tensor, from_local, full_tensor, to_local


class _RotateMethod(Enum):
    ALL_TO_ALL = auto()
    ALL_GATHER = auto()


@dataclass
class _ContextParallelOptions:
    enable_load_balance: bool = True
    rotate_method: _RotateMethod = _RotateMethod.ALL_GATHER


_cp_options = _ContextParallelOptions()


def set_rotate_method(rotate_method: str) -> None:
    """How keys and values travel: "allgather", PyTorch's default, or "alltoall", the ring."""
    methods = {"allgather": _RotateMethod.ALL_GATHER, "alltoall": _RotateMethod.ALL_TO_ALL}
    if rotate_method not in methods:
        raise NotImplementedError(
            f"Context Parallel does not support using {rotate_method} for kv shards rotation; "
            "there are allgather and alltoall"
        )
    _cp_options.rotate_method = methods[rotate_method]


class _LoadBalancer:
    """An order of the sequence, as indices of shape (1, length)."""

    def __init__(self, order: SequenceOrder, length: int, device: Any) -> None:
        self.order = order
        self.length = length
        self.device = device

    def _generate_indices(self, restore: bool = False) -> torch.Tensor:
        indices = self.order.inverse_indices if restore else self.order.indices
        return indices(self.length).to(self.device).unsqueeze(0)


class _HeadTailLoadBalancer(_LoadBalancer):
    def __init__(self, seq_length: int, world_size: int, device: Any) -> None:
        super().__init__(SequenceOrder.head_tail(seq_length, world_size), seq_length, device)


class _PerDocumentHeadTailLoadBalancer(_LoadBalancer):
    """One packing for all rows of the batch: [[4, 8]] are documents of 4 and 8."""

    def __init__(
        self, seq_length_per_doc: Sequence[Sequence[int]], world_size: int, device: Any
    ) -> None:
        lengths = list(seq_length_per_doc[0])
        if any(list(other) != lengths for other in seq_length_per_doc):
            raise NotImplementedError(
                "rows of a batch with different documents cannot be laid out in one order"
            )
        order = SequenceOrder.head_tail_of_documents(lengths, world_size)
        super().__init__(order, sum(lengths), device)


def context_parallel(
    mesh: Any,
    *,
    buffers: list[torch.Tensor] | None = None,
    buffer_seq_dims: list[int] | None = None,
    no_restore_buffers: set[torch.Tensor] | None = None,
) -> AbstractContextManager[None]:
    """tessera.context_parallel with the rotation and balance of _cp_options."""
    gathers = _cp_options.rotate_method is _RotateMethod.ALL_GATHER
    method: Literal["all_gather", "ring"] = "all_gather" if gathers else "ring"
    return _context.context_parallel(
        mesh,
        buffers=buffers,
        buffer_seq_dims=buffer_seq_dims,
        no_restore_buffers=no_restore_buffers,
        method=method,
        load_balance=_cp_options.enable_load_balance,
    )


def _context_parallel_shard(
    mesh: Any,
    buffers: Sequence[torch.Tensor],
    seq_dims: Sequence[int],
    load_balancer: _LoadBalancer | None = None,
) -> list[torch.Tensor]:
    """This rank's part of each buffer, in the order of the balancer."""
    if len(buffers) != len(seq_dims):
        raise ValueError("`seq_dims` must have the same number of elements as `buffers`.")
    cp = mesh_from_torch(mesh)
    order = load_balancer.order if load_balancer else SequenceOrder()
    out = []
    for buffer, dim in zip(buffers, seq_dims, strict=True):
        laid_out = reorder_sequence(buffer, dim, order)
        part = distribute_tensor(laid_out, cp, [Shard(dim % buffer.dim())], src_data_rank=None)
        out.append(to_local(part))
    return out


def context_parallel_unshard(
    mesh: Any,
    buffers: Sequence[torch.Tensor],
    seq_dims: Sequence[int],
    load_balancer: _LoadBalancer | None = None,
) -> list[torch.Tensor]:
    """The whole tensors in natural order; without a balancer as _cp_options laid them out."""
    if load_balancer is None:
        return _context.context_parallel_unshard(
            mesh, buffers, seq_dims, load_balance=_cp_options.enable_load_balance
        )
    cp = mesh_from_torch(mesh)
    out = []
    for buffer, dim in zip(buffers, seq_dims, strict=True):
        part = buffer.detach().contiguous()
        whole = full_tensor(from_local(part, cp, [Shard(dim % buffer.dim())]))
        out.append(restore_sequence(whole, dim, load_balancer.order))
    return out
