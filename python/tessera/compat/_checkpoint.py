"""What torch.distributed.checkpoint asks a sharded tensor: which part of it a rank writes and reads.

    torch.distributed.checkpoint.save({"model": model.state_dict()}, checkpoint_id="step_100")
    torch.distributed.checkpoint.load({"model": model.state_dict()}, checkpoint_id="step_100")

A checkpoint may be loaded on other meshes and placements, also by PyTorch's own DTensors.
StateDictOptions(full_state_dict=True) gathers these tensors too, and what it sets goes to their shards,
one whole tensor at a time.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
from torch.distributed import _state_dict_utils
from torch.utils import _pytree as pytree

from .. import _C
from ..fsdp_module import placed_as


def chunk_list(tensor: torch.Tensor) -> list[Any]:
    """ChunkStorageMetadata of every box that this rank has: one, none, or several of a strided shard."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    return [
        ChunkStorageMetadata(torch.Size(begin), torch.Size(e - b for b, e in zip(begin, end)))
        for begin, end in _C.chunk_list(tensor)
    ]


def properties_of(tensor: torch.Tensor) -> Any:
    """What PyTorch's metadata says of a tensor beside its size."""
    from torch.distributed.checkpoint.metadata import TensorProperties

    return TensorProperties.create_from_tensor(_C.to_local(tensor.detach(), None))


def items_of(fqn: str, chunks: list[Any], properties: Any, size: torch.Size) -> list[Any]:
    """A WriteItem for each chunk."""
    from torch.distributed.checkpoint.metadata import MetadataIndex
    from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

    return [
        WriteItem(
            index=MetadataIndex(fqn, chunk.offsets),
            type=WriteItemType.SHARD,
            tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=size),
        )
        for chunk in chunks
    ]


def write_items(tensor: torch.Tensor, fqn: str, value: Any) -> list[Any]:
    """WriteItems of every box that this rank has. PyTorch's planner picks one of those who have the
    same: which ranks take part in the save, it alone knows (no_dist, process_group)."""
    return items_of(fqn, chunk_list(tensor), properties_of(tensor), tensor.size())


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


def _filled(sharded: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """The sharded tensor with these values; one on meta has no memory for them, so another."""
    part = placed_as(sharded, whole)
    if sharded.is_meta:
        return part
    with torch.no_grad():
        sharded.copy_(part)
    return sharded


def _is_sharded(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and _C.is_dtensor(value)


_plain_broadcast = _state_dict_utils._broadcast_tensors
_plain_distribute = _state_dict_utils._distribute_state_dict


@functools.wraps(_plain_broadcast)
def _broadcast(
    full: dict[str, Any], local: dict[str, Any], keys: list[str], *args: Any, **kwargs: Any
) -> None:
    sharded = {key: local[key] for key in keys if _is_sharded(local.get(key))}
    _plain_broadcast(full, local, keys, *args, **kwargs)
    for key, tensor in sharded.items():
        local[key] = _filled(tensor, local[key])


@functools.wraps(_plain_distribute)
def _distribute(full: dict[str, Any], local: dict[str, Any], *args: Any, **kwargs: Any) -> None:
    others = dict(full)
    for key, tensor in local.items():
        if _is_sharded(tensor) and isinstance(full.get(key), torch.Tensor):
            local[key] = _filled(tensor, others.pop(key))
    _plain_distribute(others, local, *args, **kwargs)


_REPLACED = {
    "_gather_state_dict": _gather,
    "_broadcast_tensors": _broadcast,
    "_distribute_state_dict": _distribute,
}


def install_state_dict_functions() -> None:
    """PyTorch's know its own DTensors alone, and users of some have them by name."""
    users = sys.modules.get("torch.distributed.checkpoint.state_dict")
    for name, function in _REPLACED.items():
        setattr(_state_dict_utils, name, function)
        if users is not None and hasattr(users, name):
            setattr(users, name, function)
