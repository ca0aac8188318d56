"""The names of torch.distributed.tensor.experimental._attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal

import torch
from torch import nn
from torch.utils import _pytree as pytree

from .. import context as _context
from .._C import ContextScope, SequenceOrder, reorder_sequence, restore_sequence
from ..mesh import mesh_from_torch
from ..parallel_style import ParallelStyle
from ..placement import Partial, Replicate, Shard
from ..tensor import (
    distribute_tensor,
    from_local,
    full_tensor,
    is_dtensor,
    redistribute,
    to_local,
)


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


class _CausalBehavior(Enum):
    """What of a block of keys a block of queries sees."""

    SKIP = None
    NOT_IS_CAUSAL = False
    IS_CAUSAL = True


def _is_causal_behavior(
    rank: int, world_size: int, i: int, is_causal: bool
) -> _CausalBehavior:
    """For the keys that a rank of the ring has after i rotations. In head-tail order it needs a part of
    every block."""
    if not is_causal:
        return _CausalBehavior.NOT_IS_CAUSAL
    owner = (rank - i) % world_size
    if owner == rank:
        return _CausalBehavior.IS_CAUSAL
    if owner < rank or _cp_options.enable_load_balance:
        return _CausalBehavior.NOT_IS_CAUSAL
    return _CausalBehavior.SKIP


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


class _PTRRLoadBalancer(_LoadBalancer):
    """For flex_attention: every rank gets equally many rows of blocks, chosen so that their numbers of
    blocks that the mask keeps are about equal. One order for all rows of the batch and all heads."""

    def __init__(self, block_mask: Any, world_size: int) -> None:
        self.block_mask = block_mask
        self.world_size = world_size
        work = block_mask.kv_num_blocks
        if block_mask.full_kv_num_blocks is not None:
            work = work + block_mask.full_kv_num_blocks
        work = work.flatten(0, 1)
        if (work != work[:1]).any():
            raise NotImplementedError(
                "rows of a batch, or heads, with different masks cannot be laid out in one order"
            )
        size, key_size = block_mask.BLOCK_SIZE
        length, blocks = block_mask.seq_lengths[0], work.size(1)
        if size != key_size or length != size * blocks:
            raise NotImplementedError(
                f"the sequence of {length} must be {blocks} whole square blocks, of {size} x {key_size}"
            )
        first = self.ptrr_scheduling(work[0], world_size).flatten() * size
        positions = first.unsqueeze(1) + torch.arange(size, device=first.device)
        order = SequenceOrder.of_positions(positions.flatten().tolist())
        super().__init__(order, length, work.device)

    @staticmethod
    def ptrr_scheduling(process_time: torch.Tensor, group_size: int) -> torch.Tensor:
        """The tasks of each group, (groups, tasks of one): dealt from the longest on, in rounds that
        start by turns at the first and at the last group."""
        tasks = process_time.numel()
        if tasks % group_size:
            raise NotImplementedError(f"{tasks} tasks are not divisible among {group_size} groups")
        longest_first = process_time.argsort(descending=True, stable=True)
        rounds = longest_first.view(-1, group_size)
        rounds[1::2] = rounds[1::2].flip(1)
        return rounds.t().sort(dim=1).values


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


@dataclass
class _ShardOptions:
    """How the last _context_parallel_shard laid the sequence out."""

    order: SequenceOrder = field(default_factory=SequenceOrder)


_shard_options = _ShardOptions()


def _enable_context_parallel_dispatcher() -> None:
    """Does nothing: sharded tensors have rules for attention at any time."""


def _disable_context_parallel_dispatcher() -> None:
    """Does nothing, as _enable_context_parallel_dispatcher."""


def _block_mask_of_rank(mask: Any, mesh: Any, order: SequenceOrder) -> Any:
    from torch.nn.attention.flex_attention import create_block_mask  # imports the compiler

    queries, keys = mask.seq_lengths
    rows = -(-queries // mesh.size())
    begin = min(rows * mesh.get_local_rank(), queries)
    device = mask.kv_num_blocks.device
    of_query = order.indices(queries)[begin : begin + rows].to(device)
    of_key = order.indices(keys).to(device)

    def by_position(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return mask.mask_mod(batch, head, of_query[query], of_key[key])

    batch, heads = mask.kv_num_blocks.shape[:2]
    return create_block_mask(
        by_position,
        batch if batch > 1 else None,
        heads if heads > 1 else None,
        len(of_query),
        keys,
        device=device,
        BLOCK_SIZE=mask.BLOCK_SIZE,
    )


class _ContextParallel(ParallelStyle):
    """For a module that calls attention with its arguments (query, key, value, ...), which are this
    rank's part of the sequence. SDPA: scaled_dot_product_attention works over all ranks of the mesh,
    by the rotation of _cp_options. FLEX: keys and values are gathered, and the module's flex_attention
    needs the block mask that _context_parallel_shard makes."""

    class AttentionType(Enum):
        FLEX = "flex_attention"
        SDPA = "scaled_dot_product_attention"

    def __init__(self, seq_dim: int, attention_type: AttentionType) -> None:
        self.seq_dim = seq_dim
        self.attention_type = attention_type

    def _parameters(self, module: nn.Module) -> list[nn.Parameter]:
        return []

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        mesh = mesh_from_torch(device_mesh)
        if self.attention_type == self.AttentionType.FLEX:
            module.register_forward_pre_hook(self._gather_keys(mesh), with_kwargs=True)
        elif self.attention_type == self.AttentionType.SDPA:
            self._rotate(module, mesh)
        else:
            raise ValueError(f"Unknown attention type: {self.attention_type}")
        return module

    def _gather_keys(self, mesh: Any) -> Callable[..., Any]:
        def gathered(part: torch.Tensor) -> torch.Tensor:
            whole = redistribute(from_local(part, mesh, [Shard(self.seq_dim)]), [Replicate()])
            return to_local(whole, grad_placements=[Partial()])

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            values = dict(zip(("query", "key", "value"), args)) | kwargs
            values |= {name: gathered(values[name]) for name in ("key", "value")}
            names = ("query", "key", "value")[: len(args)]
            return (*(values.pop(name) for name in names), *args[3:]), values

        return hook

    def _rotate(self, module: nn.Module, mesh: Any) -> None:
        entered: list[Any] = []

        def sharded(value: Any) -> Any:
            is_plain = isinstance(value, torch.Tensor) and not is_dtensor(value)
            return from_local(value, mesh, [Shard(self.seq_dim)]) if is_plain else value

        def enter(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            gathers = _cp_options.rotate_method is _RotateMethod.ALL_GATHER
            scope = ContextScope(
                mesh.mesh_dim_names[0],
                "all_gather" if gathers else "ring",
                _shard_options.order,
                [],
                "automatic",
            )
            scope.__enter__()
            entered.append(scope)
            return tuple(map(sharded, args)), {name: sharded(v) for name, v in kwargs.items()}

        def leave(_: nn.Module, __: Any, outputs: Any) -> Any:
            entered.pop().__exit__(None, None, None)
            return pytree.tree_map_only(
                torch.Tensor, lambda out: to_local(out) if is_dtensor(out) else out, outputs
            )

        module.register_forward_pre_hook(enter, with_kwargs=True)
        module.register_forward_hook(leave, always_call=True)


def _context_parallel_shard(
    mesh: Any,
    buffers: Sequence[Any],
    seq_dims: Sequence[int],
    load_balancer: _LoadBalancer | None = None,
) -> list[Any]:
    """This rank's part of each buffer, in the order of the balancer. A BlockMask becomes that of this
    rank's queries and all keys; its dim is not used. As in PyTorch, it says whether _ContextParallel
    takes the sequence as balanced."""
    if len(buffers) != len(seq_dims):
        raise ValueError("`seq_dims` must have the same number of elements as `buffers`.")
    cp = mesh_from_torch(mesh)
    order = load_balancer.order if load_balancer else SequenceOrder()
    _shard_options.order = order
    out = []
    for buffer, dim in zip(buffers, seq_dims, strict=True):
        if not isinstance(buffer, torch.Tensor):
            out.append(_block_mask_of_rank(buffer, cp, order))
            continue
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
