"""Distributed tensors under ordinary PyTorch code.

A sharded tensor is an ordinary torch.Tensor that reports the global shape and holds this rank's
part; every torch function, module and optimizer takes it.

    import tessera
    from tessera import Shard, Replicate

    mesh = tessera.init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp", "tp"))
    x = tessera.distribute_tensor(full, mesh, [Shard(0), Replicate()])
    y = torch.nn.functional.linear(x, w)               # runs on the local parts
    y = tessera.redistribute(y, [Replicate(), Shard(1)])
    part = tessera.to_local(y)

The C++ rooms behind it are described in docs/architecture.md, the move from
torch.distributed.tensor in docs/python.md.
"""

import atexit as _atexit

import torch as _torch  # noqa: F401 - its libraries must be there before ours

from . import _C, _functions, _methods
from ._C import (
    CommEvent,
    DeviceMesh,
    Error,
    InternalError,
    InvalidArgument,
    NotSupported,
    PeerError,
    Placement,
    Plan,
    RuleCall,
    Sharding,
    World,
    clear_decisions,
    decision_stats,
    make_plan,
)
from .convert import from_torch_dtensor, to_torch_dtensor
from .comm import Recorder, expect_comm, write_trace
from .factories import arange, empty, eye, full, ones, rand, randn, zeros
from .fsdp import (
    MixedPrecision,
    full_state,
    fully_shard,
    gathered_memory,
    load_full_state,
    replicate,
    reset_peak_gathered_memory,
    reshard,
    set_requires_gradient_sync,
    sharded_groups,
    unshard,
)
from .mesh import init_device_mesh, mesh_from_group, mesh_from_torch, mesh_to_torch
from .placement import Partial, RaggedShard, Replicate, Shard, StridedShard
from .policy import implicit_comm, implicit_replication, strict_rules
from .ranks import current_world, fake_world, manual_seed, report_failure, run_ranks
from .module import distribute_module, local_map, reduce_gradients
from .rules import explain, register_rule, rule_of, ruled_ops
from .tensor import (
    device_mesh,
    distribute_,
    distribute_tensor,
    from_local,
    full_tensor,
    is_dtensor,
    placements,
    redistribute,
    sharding,
    to_local,
)

if _C.torch_version.split(".")[:2] != _torch.__version__.split(".")[:2]:
    raise ImportError(
        f"tessera was built for torch {_C.torch_version}, found {_torch.__version__}; build it anew "
        "with the torch that is installed"
    )

__version__ = "0.1.0"
__all__ = [name for name in dir() if not name.startswith("_")]

_methods.install()
_functions.install()
# Links are closed while the interpreter still lives: ranks wait for each other without its lock.
_atexit.register(_C.close_process_world)
