"""The names of torch.distributed.tensor.parallel.fsdp."""

from __future__ import annotations

from typing import Any

from ... import _C


class DTensorExtensions:
    """What FullyShardedDataParallel, the class before fully_shard, calls for DTensors. It flattens
    parameters into one buffer by their memory, which a sharded tensor here does not have."""

    def __init__(self, *args: Any, **named: Any) -> None:
        raise _C.NotSupported(
            "DTensorExtensions: FullyShardedDataParallel cannot wrap sharded parameters; call "
            "tessera.compat.fsdp.fully_shard on the other axis of the mesh, before or after "
            "parallelize_module"
        )


__all__ = ["DTensorExtensions"]
