"""What torch.distributed.checkpoint asks a sharded tensor: which part of it a rank writes and reads.

    torch.distributed.checkpoint.save({"model": model.state_dict()}, checkpoint_id="step_100")
    torch.distributed.checkpoint.load({"model": model.state_dict()}, checkpoint_id="step_100")

A checkpoint may be loaded on other meshes and placements, also by PyTorch's own DTensors.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _C


def _chunk(tensor: torch.Tensor) -> tuple[torch.Size, torch.Size] | None:
    """Where this rank's part starts, and its sizes; None if it has none."""
    sharding = _C.sharding(tensor)
    if not sharding.mesh.contains_me() or 0 in sharding.local_shape:
        return None
    boxes = sharding.boxes()
    if len(boxes) > 1 or any(placement.is_partial() for placement in sharding.placements):
        raise _C.NotSupported(
            f"a checkpoint of {sharding}, of which a rank has addends or more than one stretch; "
            "redistribute it to Shard or Replicate first"
        )
    return torch.Size(sharding.local_offset), torch.Size(sharding.local_shape)


def chunk_list(tensor: torch.Tensor) -> list[Any]:
    """ChunkStorageMetadata of what this rank has."""
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    chunk = _chunk(tensor)
    return [] if chunk is None else [ChunkStorageMetadata(*chunk)]


def write_items(tensor: torch.Tensor, fqn: str, value: Any) -> list[Any]:
    """WriteItems of what this rank has."""
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
    """The memory of the part that starts at `index`."""
    chunk = _chunk(tensor)
    if chunk is None or index.offset != chunk[0]:
        raise _C.InvalidArgument(f"this rank has no part of {_C.sharding(tensor)} at {index.offset}")
    return _C.to_local(tensor.detach(), None)
