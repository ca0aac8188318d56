"""Tensor and sequence parallelism on torch.nn modules as they are: a plan names the modules that are
split over a mesh axis, and how. In Python, styles are forward hooks, as in PyTorch: what goes in and
out of a module may be plain tensors.

    parallelize_module(model, mesh["tp"], {
        "layers.*.attention.wq": ColwiseParallel(),
        "layers.*.attention.wo": RowwiseParallel(),
    })
"""

from __future__ import annotations

import contextlib
import difflib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from . import _C
from .mesh import mesh_from_torch
from .parallel_prepare import PrepareModuleInput, PrepareModuleInputOutput, PrepareModuleOutput
from .parallel_split import ColwiseParallel, RowwiseParallel, SequenceParallel
from .parallel_style import ParallelStyle, remove_hooks, shared_reduction
from .parallel_tied import has_own_style, tied_modules
from .parallel_words import OF_PARAMETER, as_style, check_heads
from .policy import implicit_replication

Plan = Mapping[str, "ParallelStyle | str"]


def matching_modules(module: nn.Module, path: str) -> Iterator[nn.Module]:
    """The submodules on a path that may have *, **, ? and [...]; an empty one is the module itself."""
    if path == "":
        yield module
        return
    seen: set[int] = set()
    for name, part in module.named_modules(remove_duplicate=False):
        if name and id(part) not in seen and _C.matches_path(path, name):
            seen.add(id(part))
            yield part


def _matching_parameters(module: nn.Module, path: str) -> list[tuple[nn.Module, str]]:
    parent, _, name = path.rpartition(".")
    return [
        (part, own)
        for part in matching_modules(module, parent)
        for own, _ in part.named_parameters(recurse=False)
        if _C.matches_path(name, own)
    ]


@dataclass
class _Step:
    """One style for one module, or for one of its parameters."""

    module: nn.Module
    parameters: list[nn.Parameter]
    apply: Callable[[], Any]
    path: str = ""
    style: ParallelStyle | None = None

    @property
    def splits(self) -> bool:
        return isinstance(self.style, (ColwiseParallel, RowwiseParallel, SequenceParallel))

    @property
    def by_pattern(self) -> bool:
        return any(letter in self.path for letter in "*?[")


def _add(steps: list[_Step], step: _Step) -> None:
    """Of two styles that split one module, that of its full path counts. Without one it is an error."""
    others = [one for one in steps if one.module is step.module and one.splits and step.splits]
    for other in others:
        if other.by_pattern == step.by_pattern and repr(other.style) != repr(step.style):
            raise _C.InvalidArgument(
                f"parallelize_module: '{other.path}' and '{step.path}' are paths of one module, with "
                f"{other.style} and {step.style}"
            )
        if step.by_pattern or not other.by_pattern:
            return
        steps.remove(other)
    steps.append(step)


def _check_is_called(module: nn.Module, part: nn.Module, path: str) -> None:
    """A style acts when its module is called."""
    for parent in module.modules():
        if isinstance(parent, nn.MultiheadAttention) and parent.out_proj is part:
            raise _C.NotSupported(
                f"parallelize_module: '{path}' is the out_proj of an nn.MultiheadAttention, which uses its "
                "weight without calling it; distribute_ the parameters instead: in_proj_weight by "
                "StridedShard(0, 3), out_proj.weight by Shard(1)"
            )


def _resolve(
    module: nn.Module, device_mesh: Any, ranks: int, plan: Plan, src_data_rank: int | None
) -> list[_Step]:
    """What a plan does, in the order of the modules. Finds all that is wrong with it."""
    steps: list[_Step] = []
    unmatched: list[str] = []
    parents = {id(child): one for one in module.modules() for child in one.children()}
    for path, value in plan.items():
        matched = list(matching_modules(module, path))
        parameters = [] if matched else _matching_parameters(module, path)
        if not matched and not parameters and isinstance(value, str):
            unmatched.append(path)
            continue
        if parameters and value in OF_PARAMETER:
            for part, name in parameters:
                slices = OF_PARAMETER[value]()
                slices.src_data_rank = src_data_rank
                apply = _bound(slices.apply_to, part, name, device_mesh)
                steps.append(_Step(part, [getattr(part, name)], apply))
            continue
        style = as_style(path, value, module)
        style.src_data_rank = src_data_rank
        if not matched:
            raise _C.InvalidArgument(_no_match(module, path))
        for part in matched:
            style._check(part, ranks)
            _check_is_called(module, part, path)
            if isinstance(value, str):
                check_heads(path, value, module, part, parents.get(id(part)), ranks)
            apply = _bound(style._apply, part, device_mesh)
            _add(steps, _Step(part, style._parameters(part), apply, path, style))
    if unmatched and not steps:
        raise _C.InvalidArgument(_no_match(module, unmatched[0]))
    if unmatched:
        # A plan of words is that of all variants of a model, of which this is one.
        warnings.warn(_no_match(module, ", ".join(unmatched)), stacklevel=3)
    steps += _tied_steps(module, device_mesh, steps, src_data_rank)
    order = {id(part): i for i, part in enumerate(module.modules())}
    return sorted(steps, key=lambda step: order[id(step.module)])


def _tied_steps(
    module: nn.Module, device_mesh: Any, steps: Sequence[_Step], src_data_rank: int | None
) -> list[_Step]:
    out = []
    for path, part, style in tied_modules(module, [step.module for step in steps if step.splits]):
        style.src_data_rank = src_data_rank
        apply = _bound(style._apply, part, device_mesh)
        out.append(_Step(part, style._parameters(part), apply, path, style))
    return out


def _no_match(module: nn.Module, path: str) -> str:
    paths = [name for name, _ in module.named_modules() if name]
    near = difflib.get_close_matches(path, paths, n=3, cutoff=0)
    return f"parallelize_module: no submodule matches '{path}'; nearest: " + ", ".join(near)


def _bound(function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    return lambda: function(*args)


def _check_sharded(parameter: torch.Tensor, mesh: Any) -> None:
    """A parameter of fully_shard must be able to get the mesh's axes in addition to its own."""
    if not _C.in_group(parameter):
        return
    if parameter.grad is not None:
        raise _C.InvalidArgument(
            "parallelize_module: a parameter of fully_shard has a gradient; reset it before"
        )
    data = _C.device_mesh(parameter)
    taken = set(data.mesh_dim_names) & set(mesh.mesh_dim_names)
    if taken and not _C.is_parallel_on(parameter, mesh):
        raise _C.InvalidArgument(
            f"parallelize_module on mesh {mesh}: fully_shard has a parameter on mesh {data}; "
            "give the tensor-parallel axis alone"
        )


def _apply(steps: Sequence[_Step]) -> None:
    """Applies the styles. Groups of fully_shard whose parameters a style distributes are unsharded
    from the first of these styles to the last: a few at a time, since the steps are in the order of
    the modules."""
    groups = [_C.parameter_groups(step.parameters) for step in steps]
    last = {group: i for i, several in enumerate(groups) for group in several}
    suspended: list[_C.ParamGroup] = []
    try:
        for i, step in enumerate(steps):
            for group in groups[i]:
                if group not in suspended:
                    group.suspend()
                    suspended.append(group)
            if step.splits:
                remove_hooks(step.module)
                has_own_style(step.module)
            step.apply()
            for group in [one for one in suspended if last[one] == i]:
                suspended.remove(group)
                group.resume()
    finally:
        for group in suspended:
            group.resume()


def parallelize_module(
    module: nn.Module,
    device_mesh: Any = None,
    parallelize_plan: ParallelStyle | Plan | None = None,
    *,
    src_data_rank: int | None = 0,
) -> nn.Module:
    """Splits a module over a mesh of one axis, in place, by a style or by a plan: paths of
    submodules (with *, ? and [...] between dots, ** also for dots) and their styles, or the names of styles as in the
    plans of transformers' models. A path that matches nothing is an error that lists near names;
    it, a style that is not known, and sizes that cannot be divided as asked are found before anything
    changes. May be called before or after fully_shard on another axis of the same mesh, and again:
    another style for a module replaces the first.

    Parameters are distributed from `src_data_rank`; None: each rank uses its own, equal data."""
    if device_mesh is None:
        raise _C.InvalidArgument("parallelize_module needs a device_mesh")
    mesh = mesh_from_torch(device_mesh)
    if mesh.ndim != 1:
        raise _C.InvalidArgument(
            f"parallelize_module needs a mesh of one axis, not {mesh}: give mesh['tp']"
        )
    if parallelize_plan is None:
        warnings.warn("No parallelize_plan: the module is not changed", stacklevel=2)
        return module
    plan = parallelize_plan if isinstance(parallelize_plan, Mapping) else {"": parallelize_plan}
    steps = _resolve(module, device_mesh, mesh.size(), plan, src_data_rank)
    for step in steps:
        for parameter in step.parameters:
            _check_sharded(parameter, mesh)
    with shared_reduction():
        _apply(steps)
    return module


@contextlib.contextmanager
def loss_parallel() -> Iterator[None]:
    """Inside, plain targets and class weights are taken as equal on all ranks, as in PyTorch.

    cross_entropy, log_softmax, nll_loss and logsumexp of logits that are sharded over the classes never
    gather them, inside or outside."""
    with implicit_replication():
        yield


__all__: Sequence[str] = [
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
