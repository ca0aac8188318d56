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

from ._built_for import TORCH as _built_for

# Asked first: against another version the C++ part does not load, and says so in riddles.
if _built_for.split(".")[:2] != _torch.__version__.split(".")[:2]:
    raise ImportError(
        f"tessera was built for torch {_built_for}, this is {_torch.__version__}: build it anew for "
        "this one with `pip install .` in its sources"
    )

from . import _C, _compile, _functions, _methods, _random_state
from ._C import (
    CommEvent,
    DeviceMesh,
    Error,
    ExpertLoad,
    ExpertRows,
    InternalError,
    InvalidArgument,
    Link,
    Machine,
    NotSupported,
    PeerError,
    PendingTensor,
    Placement,
    Plan,
    RuleCall,
    SequenceOrder,
    Sharding,
    UnshardHandle,
    World,
    cache_stats,
    clear_caches,
    default_machine,
    make_plan,
    reorder_sequence,
    restore_sequence,
    set_default_machine,
)
from .context import context_parallel, context_parallel_attention, context_parallel_unshard
from .convert import from_torch_dtensor, to_torch_dtensor
from .comm import Recorder, expect_comm, write_trace
from .experts import expert_parallel
from .factories import arange, empty, eye, full, ones, rand, randn, zeros
from .fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    clip_grad_norm_,
    fully_shard,
    replicate,
    to_empty,
)
from .fsdp_compute_dtype import compute_dtype
from .fsdp_control import (
    reshard,
    set_collectives,
    set_gradient_divide_factor,
    set_modules_to_backward_prefetch,
    set_modules_to_forward_prefetch,
    set_reduce_unused_parameters,
    set_requires_all_reduce,
    set_requires_gradient_sync,
    set_reshard_after_backward,
    set_reshard_after_forward,
    unshard,
    unshard_async,
)
from .fsdp_report import (
    StepTrace,
    communication_time,
    gathered_memory,
    reset_peak_gathered_memory,
    sharded_groups,
)
from .checkpoint import (
    AsyncSaver,
    LoadReport,
    chunk_list,
    latest_step,
    load,
    save,
    save_safetensors,
    save_step,
    step_path,
    tensor_shard,
    write_items,
)
from .mesh import init_device_mesh, mesh_from_group, mesh_from_torch, mesh_to_torch
from .parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from .partition import shard_program, tensor_parallel_transformation
from .placement import Partial, RaggedShard, Replicate, Shard, StridedShard
from .policy import implicit_comm, implicit_replication, strict_rules
from .program import Program, ShardedProgram, load_program, load_sharded_program
from .ranks import current_world, fake_world, manual_seed, report_failure, run_ranks
from .module import distribute_module, local_map, reduce_gradients
from .rules import explain, register_rule, rule_of, ruled_ops
from .state import full_state_dict, load_full_state_dict, load_sharded_state_dict, sharded_state_dict
from .tensor import (
    device_mesh,
    distribute_,
    distribute_tensor,
    from_local,
    full_tensor,
    is_dtensor,
    placements,
    redistribute,
    redistribute_async,
    sharding,
    to_local,
)

__version__ = "0.1.0"
__all__ = [
    "AsyncSaver",
    "CommEvent",
    "CPUOffloadPolicy",
    "DeviceMesh",
    "Error",
    "ExpertLoad",
    "ExpertRows",
    "InternalError",
    "InvalidArgument",
    "Link",
    "LoadReport",
    "Machine",
    "MixedPrecisionPolicy",
    "NotSupported",
    "Partial",
    "PeerError",
    "PendingTensor",
    "Placement",
    "Plan",
    "Program",
    "RaggedShard",
    "Recorder",
    "Replicate",
    "RuleCall",
    "SequenceOrder",
    "Shard",
    "ShardedProgram",
    "Sharding",
    "StepTrace",
    "StridedShard",
    "UnshardHandle",
    "World",
    "arange",
    "cache_stats",
    "chunk_list",
    "clear_caches",
    "clip_grad_norm_",
    "communication_time",
    "compute_dtype",
    "context_parallel",
    "context_parallel_attention",
    "context_parallel_unshard",
    "current_world",
    "default_machine",
    "device_mesh",
    "distribute_",
    "distribute_module",
    "distribute_tensor",
    "empty",
    "expect_comm",
    "expert_parallel",
    "explain",
    "eye",
    "fake_world",
    "from_local",
    "from_torch_dtensor",
    "full",
    "full_state_dict",
    "full_tensor",
    "fully_shard",
    "gathered_memory",
    "implicit_comm",
    "implicit_replication",
    "init_device_mesh",
    "is_dtensor",
    "latest_step",
    "load",
    "load_full_state_dict",
    "load_program",
    "load_sharded_program",
    "load_sharded_state_dict",
    "local_map",
    "make_plan",
    "manual_seed",
    "mesh_from_group",
    "mesh_from_torch",
    "mesh_to_torch",
    "ones",
    "placements",
    "rand",
    "randn",
    "redistribute",
    "redistribute_async",
    "reduce_gradients",
    "register_rule",
    "reorder_sequence",
    "replicate",
    "report_failure",
    "reset_peak_gathered_memory",
    "reshard",
    "restore_sequence",
    "rule_of",
    "ruled_ops",
    "run_ranks",
    "save",
    "save_safetensors",
    "save_step",
    "set_collectives",
    "set_default_machine",
    "set_gradient_divide_factor",
    "set_modules_to_backward_prefetch",
    "set_modules_to_forward_prefetch",
    "set_reduce_unused_parameters",
    "set_requires_all_reduce",
    "set_requires_gradient_sync",
    "set_reshard_after_backward",
    "set_reshard_after_forward",
    "shard_program",
    "sharded_groups",
    "sharded_state_dict",
    "sharding",
    "step_path",
    "strict_rules",
    "tensor_parallel_transformation",
    "tensor_shard",
    "to_empty",
    "to_local",
    "to_torch_dtensor",
    "unshard",
    "unshard_async",
    "write_items",
    "write_trace",
    "zeros",
    "ColwiseParallel",
    "ParallelStyle",
    "PrepareModuleInput",
    "PrepareModuleInputOutput",
    "PrepareModuleOutput",
    "RowwiseParallel",
    "SequenceParallel",
    "loss_parallel",
    "parallelize_module",
]

_methods.install()
_functions.install()
_compile.install()
_random_state.install()
# Links are closed while the interpreter still lives: ranks wait for each other without its lock.
_atexit.register(_C.end_process_world)
