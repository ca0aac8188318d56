"""torch.distributed.checkpoint.async_save of sharded tensors: it copies the state before it returns.

PyTorch's stagers copy the storage of a tensor, which no sharded tensor has. Here a sharded tensor becomes
StagedShards: copies of this rank's boxes, which answer what the checkpoint asks a tensor. They hold CPU
tensors alone, so that a background process gets them too.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .. import _C
from . import _checkpoint


class StagedShards(torch.Tensor):  # type: ignore[misc]
    """What one rank holds of a sharded tensor, copied. A tensor without elements, since PyTorch asks nothing
    else for parts; what it has is in its attributes."""

    whole_size: torch.Size
    properties: Any  # of PyTorch's metadata: dtype and layout
    chunks: list[Any]
    copies: list[torch.Tensor]

    @staticmethod
    def of(tensor: torch.Tensor, chunks: list[Any], copies: list[torch.Tensor]) -> StagedShards:
        out: StagedShards = torch.empty(0, dtype=tensor.dtype).as_subclass(StagedShards)
        out.whole_size = tensor.size()
        out.properties = _checkpoint.properties_of(tensor)
        out.chunks = chunks
        out.copies = copies
        return out

    def __create_chunk_list__(self) -> list[Any]:
        return self.chunks

    def __create_write_items__(self, fqn: str, value: Any) -> list[Any]:
        return _checkpoint.items_of(fqn, self.chunks, self.properties, self.whole_size)

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        for chunk, copy in zip(self.chunks, self.copies):
            if tuple(chunk.offsets) == tuple(index.offset):
                return copy
        raise _C.InvalidArgument(f"this rank has no part of {index.fqn} that begins at {tuple(index.offset)}")


def _is_sharded(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and _C.is_dtensor(value)


def install() -> None:
    from torch.distributed.checkpoint import _state_dict_stager, staging

    stager = _state_dict_stager.StateDictStager
    plain_offload = stager._offload_tensor

    @functools.wraps(plain_offload)
    def offload(self: Any, tensor: torch.Tensor, memo: Any, non_blocking: bool = False) -> Any:
        if not _C.is_dtensor(tensor):
            return plain_offload(self, tensor, memo, non_blocking=non_blocking)
        tensor = tensor.detach()
        chunks = _checkpoint.chunk_list(tensor)
        held = [_C.tensor_shard(tensor, tuple(chunk.offsets)) for chunk in chunks]
        copies = [plain_offload(self, box, memo, non_blocking=non_blocking) for box in held]
        self._keep_alive(held, memo)  # the memo knows them by id
        return StagedShards.of(tensor, chunks, copies)

    plain_stage = staging.BlockingAsyncStager.stage

    @functools.wraps(plain_stage)
    def stage(self: Any, state_dict: Any) -> Any:
        if not any(map(_is_sharded, pytree.tree_leaves(state_dict))):
            return plain_stage(self, state_dict)
        with_copies = stager(pin_memory=False, share_memory=False)
        return with_copies.stage(state_dict)

    stager._offload_tensor = offload
    staging.BlockingAsyncStager.stage = stage
