"""The names of torch.distributed.tensor on top of this library: a program changes its imports, no
more, or nothing at all after enable() and under `python -m tessera.compat program.py`. The modules are named as PyTorch's are, so that one replacement does a whole file:

    sed -e 's/torch\\.distributed\\.tensor/tessera.compat/' \\
        -e 's/torch\\.distributed\\.\\(fsdp\\|device_mesh\\)/tessera.compat.\\1/' program.py

    from tessera.compat import DTensor, Shard, Replicate, distribute_tensor, init_device_mesh
    from tessera.compat.fsdp import MixedPrecisionPolicy, fully_shard

Importing it also gives sharded tensors the methods of PyTorch's DTensor (x.redistribute(...),
x.to_local(), x.full_tensor(), x.placements, x.device_mesh). Plain tensors do not get them, and
PyTorch's own DTensors keep theirs.
"""

from __future__ import annotations

from . import _random  # as PyTorch's package, whose programs call torch.distributed.tensor._random
from ._api import (
    DTensor,
    distribute_module,
    distribute_tensor,
    empty,
    full,
    ones,
    rand,
    randn,
    zeros,
)
from ._enable import disable, enable
from ._utils import ExplicitRedistributionContext
from .device_mesh import DeviceMesh, init_device_mesh
from .experimental import implicit_replication, local_map, register_sharding
from .fsdp import (
    CPUOffloadPolicy,
    DataParallelMeshDims,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    UnshardHandle,
    fully_shard,
    register_fsdp_forward_method,
    share_comm_ctx,
)
from .placement_types import Partial, Placement, Replicate, Shard, _StridedShard

__all__ = [
    "CPUOffloadPolicy",
    "DTensor",
    "DataParallelMeshDims",
    "DeviceMesh",
    "ExplicitRedistributionContext",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "UnshardHandle",
    "_StridedShard",
    "_random",
    "disable",
    "distribute_module",
    "distribute_tensor",
    "empty",
    "enable",
    "full",
    "fully_shard",
    "implicit_replication",
    "init_device_mesh",
    "local_map",
    "ones",
    "rand",
    "randn",
    "register_fsdp_forward_method",
    "register_sharding",
    "share_comm_ctx",
    "zeros",
]
