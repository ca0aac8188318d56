"""Fully sharded data parallelism on unmodified torch.nn modules (docs/fsdp.md says how it works).

    for block in model.blocks:
        tessera.fully_shard(block, mesh)          # a group each
    tessera.fully_shard(model, mesh)              # a group of the rest
    optimizer = torch.optim.AdamW(model.parameters())
    loss(model(my_part_of_the_batch)).backward()  # gradients arrive averaged, as shards

Parameters become sharded in place. An op that touches one gathers its group, and after the last use
the group is resharded; the module, its forward and the optimizer stay as they are.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeVar, Union

import torch
from torch import nn
from torch.nn.utils import stateless

from . import _C
from ._C import DeviceMesh
from .fsdp_additions import watch_additions
from .fsdp_compute_dtype import add_dtype_hooks
from .fsdp_module import add_state_hooks, placed_as, take
from .fsdp_pipelining import install_if_imported
from .fsdp_precision import MixedPrecisionPolicy as MixedPrecisionPolicy
from .fsdp_precision import add_casts
from .mesh import mesh_from_torch

#: A module, several that are to be one group, or just tensors.
Modules = Union[nn.Module, Sequence[nn.Module], Sequence[torch.Tensor]]
ModulesT = TypeVar("ModulesT", bound=Modules)
ShardDim = Callable[[str, nn.Parameter], Union[int, None]]
ShardMesh = Callable[[str, nn.Parameter], Any]
#: Modules, and by which name each has which parameter.
Places = list[tuple[nn.Module, str, nn.Parameter]]


@dataclass(frozen=True)
class CPUOffloadPolicy:
    """Keeps shards, their gradients and hence the optimizer's state on the host; parameters are copied to
    the mesh's device when they are gathered."""

    pin_memory: bool = True


# The parameters that a call of fully_shard claimed, while its module lives. This identifies modules: a
# mirror is made anew for each call, and is another module to the C++ part.
_claimed: weakref.WeakKeyDictionary[nn.Module, list[nn.Parameter]]
_claimed = weakref.WeakKeyDictionary()


def fully_shard(
    module: ModulesT,
    mesh: DeviceMesh | Any,
    *,
    reshard_after_forward: bool | int | None = None,
    shard_dim: ShardDim | None = None,
    shard_mesh: ShardMesh | None = None,
    ignored_params: Iterable[torch.Tensor] = (),
    gradient_divide_factor: float | None = None,
    gradient_predivide_factor: float | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: CPUOffloadPolicy | None = None,
    merge_bytes: int | None = None,
    src_data_rank: int | None = None,
) -> ModulesT:
    """Makes one group of a module's parameters that are in no group yet; or of those of several modules,
    or of a list of tensors.

    On a mesh of one axis they are sharded; on one of two axes they are replicated over the first and
    sharded over the second. Parameters that are already sharded over other axes (tensor parallelism)
    keep those placements in addition.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("dp=2")
        ...     layer = fully_shard(torch.nn.Linear(3, 4), mesh)
        ...     layer(torch.ones(2, 3)).sum().backward()
        ...     return layer.weight.shape, tessera.to_local(layer.weight.grad).tolist()
        >>> tessera.run_ranks(2, show)[0]
        (torch.Size([4, 3]), [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0]])

    `reshard_after_forward` reshards after forward and gathers again in backward; by default true, but
    false for a module that has groups inside. A number of ranks, which divides that of the axis:
    each keeps the part that it would have of that many. `shard_dim(name, parameter)` says which dim to
    shard, by default 0; `shard_mesh(name, parameter)` over which mesh, where it is another (experts).
    `ignored_params` parameters stay as they are. The sum of the ranks' gradients is divided by
    `gradient_divide_factor`, by default the number of ranks, of which `gradient_predivide_factor`
    before they are summed. Groups that follow each other share collectives up to `merge_bytes`, by
    default what the cost model says; 0 is never. With `src_data_rank` the values of that
    rank of the mesh count, without every rank's own.
    """
    options = _options(module, shard_dim, ignored_params, mp_policy)
    if shard_mesh is not None:
        for name, parameter in _named_parameters(module):
            own = shard_mesh(name, parameter)
            if own is not None:
                options["shard_meshes"][name] = mesh_from_torch(own)
    if offload_policy is not None:
        options["offload_pinned"] = offload_policy.pin_memory
    options |= {
        "reshard_after_forward": reshard_after_forward,
        "gradient_divide_factor": gradient_divide_factor,
        "gradient_predivide_factor": gradient_predivide_factor,
        "merge_bytes": merge_bytes,
        "src_data_rank": src_data_rank,
    }
    return _claim(_C.fully_shard, module, mesh, options, mp_policy)


def replicate(
    module: ModulesT,
    mesh: DeviceMesh | Any,
    *,
    ignored_params: Iterable[torch.Tensor] = (),
    gradient_divide_factor: float | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    merge_bytes: int | None = None,
    src_data_rank: int | None = None,
) -> ModulesT:
    """As DDP: every rank of a one-axis mesh holds full parameters, and gradients are reduced group by
    group during backward."""
    options = _options(module, None, ignored_params, mp_policy)
    options |= {
        "gradient_divide_factor": gradient_divide_factor,
        "merge_bytes": merge_bytes,
        "src_data_rank": src_data_rank,
    }
    return _claim(_C.replicate_module, module, mesh, options, mp_policy)


def _options(
    module: Modules,
    shard_dim: ShardDim | None,
    ignored_params: Iterable[torch.Tensor],
    mp_policy: MixedPrecisionPolicy | None,
) -> dict[str, Any]:
    dims: dict[str, int] = {}
    if shard_dim is not None:
        for name, parameter in _named_parameters(module):
            dim = shard_dim(name, parameter)
            if dim is not None:
                dims[name] = dim
    precision = mp_policy or MixedPrecisionPolicy()
    return {
        "shard_dims": dims,
        "shard_meshes": {},
        "ignored_params": list(ignored_params),
        "param_dtype": precision.param_dtype,
        "reduce_dtype": precision.reduce_dtype,
    }


def _list_of(module: Modules) -> list[Any]:
    if isinstance(module, (nn.Module, torch.Tensor)):
        return [module]
    return list(module)


def _modules_of(module: Modules) -> list[nn.Module]:
    return [part for part in _list_of(module) if isinstance(part, nn.Module)]


def _named_parameters(module: Modules) -> list[tuple[str, nn.Parameter]]:
    if isinstance(module, nn.Module):
        return list(module.named_parameters())
    named: list[tuple[str, nn.Parameter]] = []
    for i, part in enumerate(_list_of(module)):
        if isinstance(part, nn.Module):
            named += [(f"{i}.{name}", parameter) for name, parameter in part.named_parameters()]
        else:
            named.append((str(i), part))
    return named


def mirror_of(module: Modules) -> _C.ModuleMirror:
    """How the C++ part sees a module: the same names, handles to the same tensors."""
    return _C.ModuleMirror(module if isinstance(module, nn.Module) else _list_of(module))


def _claim(
    shard: Callable[..., None],
    module: ModulesT,
    mesh: DeviceMesh | Any,
    options: dict[str, Any],
    mp_policy: MixedPrecisionPolicy | None,
) -> ModulesT:
    for part in _list_of(module):
        is_module = isinstance(part, nn.Module)
        if part in _claimed if is_module else _C.in_group(part):
            raise _C.InvalidArgument(
                f"fully_shard twice on one {type(part).__name__}; "
                + ("its parameters are" if is_module else "it belongs to")
                + " a group already"
            )
    ignored_params = {id(tensor) for tensor in options["ignored_params"]}
    free = [
        parameter
        for _, parameter in _named_parameters(module)
        if id(parameter) not in ignored_params and not _C.in_group(parameter)
    ]
    shard(mirror_of(module), mesh_from_torch(mesh), options)
    for part in _modules_of(module):
        _claimed[part] = free
        if mp_policy is not None:
            add_casts(part, mp_policy)
    add_dtype_hooks(_modules_of(module))
    add_state_hooks(_modules_of(module))
    watch_additions(_modules_of(module))
    install_if_imported()
    return module


def groups_of(module: Modules, recurse: bool) -> _C.ModuleMirror:
    """The groups of a module; without `recurse` only the one that fully_shard made of it."""
    if recurse:
        return mirror_of(module)
    own: list[nn.Parameter] = []
    for part in _modules_of(module):
        if part not in _claimed:
            raise _C.InvalidArgument(f"{type(part).__name__} is not a module of fully_shard")
        own += _claimed[part]
    return _C.ModuleMirror(own)


def adopt_replaced(module: nn.Module, places: Places) -> bool:
    """Where a program has put another parameter into a module since, that one is the group's. False where
    functional_call lends the module values: the parameters come back."""
    lent = _lent_values()
    is_final = True
    for part, name, held in places:
        new = part._parameters.get(name)
        if new is None or new is held or _C.in_group(new):
            continue
        if id(new) in lent or not isinstance(new, nn.Parameter):
            is_final = False
            continue
        take(held, placed_as(held, new.detach()))
        _C.replace_parameter(held, new)
        own = _claimed[module]
        own[:] = [new if parameter is held else parameter for parameter in own]
    return is_final


def _lent_values() -> set[int]:
    """The ids of the values of the calls of torch.func.functional_call that this thread is in."""
    lent: set[int] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is stateless._functional_call.__code__:
            lent |= {id(value) for value in frame.f_locals["parameters_and_buffers"].values()}
        frame = frame.f_back
    return lent


def places_of(module: nn.Module) -> Places:
    """Where the parameters of the group that fully_shard made of a module are."""
    own = {id(parameter) for parameter in _claimed[module]}
    return [
        (part, name, parameter)
        for part in module.modules()
        for name, parameter in part._parameters.items()
        if parameter is not None and id(parameter) in own
    ]


def to_empty(module: nn.Module, device: torch.device | str) -> nn.Module:
    """Allocates, uninitialized, the parameters and buffers that are on the meta device: each rank its part.
    Random initialization afterwards gives the same values on any number of ranks."""
    _C.to_empty(mirror_of(module), torch.device(device))
    return module


def clip_grad_norm_(
    parameters: torch.Tensor | Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """As torch.nn.utils.clip_grad_norm_, with one message for each mesh among the parameters."""
    several = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    return _C.clip_grad_norm_(several, max_norm, norm_type, error_if_nonfinite)
