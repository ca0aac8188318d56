"""What torch.distributed.checkpoint asks a sharded tensor: which part of it a rank writes and reads.

    torch.distributed.checkpoint.save({"model": model.state_dict()}, checkpoint_id="step_100")
    torch.distributed.checkpoint.load({"model": model.state_dict()}, checkpoint_id="step_100")

A checkpoint may be loaded on other meshes and placements, also by PyTorch's own DTensors.
StateDictOptions(full_state_dict=True) gathers these tensors too.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.distributed import _state_dict_utils
from torch.utils import _pytree as pytree

from .. import _C


def chunk_list(tensor: torch.Tensor) -> list[Any]:
    """ChunkStorageMetadata of every box that this rank has: one, none, or several of a strided shard."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return [
        ChunkStorageMetadata(torch.Size(begin), torch.Size(e - b for b, e in zip(begin, end)))
        for begin, end in _C.chunk_list(tensor)
    ]


def write_items(tensor: torch.Tensor, fqn: str, value: Any) -> list[Any]:
    """WriteItems of every box that this rank has. PyTorch's planner picks one of those who have the
    same: which ranks take part in the save, it alone knows (no_dist, process_group)."""
    from torch.distributed.checkpoint.metadata import MetadataIndex, TensorProperties
    from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

    properties = TensorProperties.create_from_tensor(_C.to_local(tensor.detach(), None))
    return [
        WriteItem(
            index=MetadataIndex(fqn, chunk.offsets),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=tensor.size()),
        )
        for chunk in chunk_list(tensor)
    ]


def tensor_shard(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """The memory of the box that starts at `index`."""
    return _C.tensor_shard(tensor, index.offset)


_plain_gather = _state_dict_utils._gather_state_dict


@functools.wraps(_plain_gather)
def _gather(state_dict: dict[str, Any], *args: Any, **kwargs: Any) -> dict[str, Any]:
    def whole(value: Any) -> Any:
        if not _C.is_dtensor(value):
            return value
        full = _C.full_tensor(value.detach(), None)
        return full.cpu() if kwargs.get("cpu_offload") else full

    gathered: dict[str, Any] = pytree.tree_map(whole, state_dict)
    return dict(_plain_gather(gathered, *args, **kwargs))


def install_gather() -> None:
    """PyTorch's gathers its own DTensors alone, and its users have it by name."""
    _state_dict_utils._gather_state_dict = _gather
    users = sys.modules.get("torch.distributed.checkpoint.state_dict")
    if users is not None:
        users._gather_state_dict = _gather  # type: ignore[attr-defined]
