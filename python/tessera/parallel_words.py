"""The words of the plans that come with transformers' models (config.base_model_tp_plan)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from . import _C
from .mesh import mesh_from_torch
from .parallel_split import ColwiseParallel, RowwiseParallel, SequenceParallel
from .parallel_style import Layout, ParallelStyle
from .placement import Partial, Replicate, Shard, StridedShard
from .tensor import distribute_, from_local, placements, redistribute, to_local


class _Replicated(ParallelStyle):
    """Plain parameters that all ranks have. `adds_up`: each rank uses them on its part alone (a norm
    of its heads), so that their gradients have to be added up."""

    def __init__(self, *, adds_up: bool = False) -> None:
        self.adds_up = adds_up

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        mesh = mesh_from_torch(device_mesh)

        def added_up(grad: torch.Tensor) -> torch.Tensor:
            return to_local(redistribute(from_local(grad, mesh, [Partial()]), [Replicate()]))

        if self.adds_up:
            for parameter in module.parameters():
                if parameter.requires_grad:
                    parameter.register_hook(added_up)
        return module


class SlicedParameter(ParallelStyle):
    """A parameter that its module uses as this rank's slice: a stack of experts' matrices."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        raise _C.InvalidArgument("the plan names a module where this style needs a parameter")

    def apply_to(self, module: nn.Module, name: str, device_mesh: Any) -> None:
        parameter = module._parameters[name]
        assert parameter is not None
        mesh = mesh_from_torch(device_mesh)
        distribute_(parameter, mesh, [self.layout], src_data_rank=self.src_data_rank)
        where = [placements(parameter)[0]]

        def use_slice(module: nn.Module, _: Any) -> None:
            module._parameters[name] = to_local(parameter, grad_placements=where)

        def restore(module: nn.Module, _: Any, __: Any) -> None:
            module._parameters[name] = parameter

        module.register_forward_pre_hook(use_slice)
        module.register_forward_hook(restore, always_call=True)


class _SlicedModule(ParallelStyle):
    """A module that computes with slices of its parameters: its result is a part of a sum, and so
    are the gradients of its inputs."""

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        mesh = mesh_from_torch(device_mesh)

        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(
                to_local(from_local(x, mesh, [Replicate()]), grad_placements=[Partial()])
                if isinstance(x, torch.Tensor) and x.is_floating_point()
                else x
                for x in inputs
            )

        def leave(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
            return to_local(redistribute(from_local(output, mesh, [Partial()]), [Replicate()]))

        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)
        return module


_BY_WORD: dict[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_rep": lambda: ColwiseParallel(output_layouts=Replicate()),
    "colwise_gather_output": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise_rep": lambda: RowwiseParallel(input_layouts=Replicate()),
    "rowwise_split_input": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_rowwise": lambda: RowwiseParallel(input_layouts=Replicate()),
    "embedding_colwise": lambda: ColwiseParallel(output_layouts=Replicate()),
    "sequence_parallel": SequenceParallel,
    "replicate": _Replicated,
    "replicated_with_grad_allreduce": lambda: _Replicated(adds_up=True),
    "moe_tp_experts": _SlicedModule,
}
# The same for a path that names a parameter: [expert, out, in].
OF_PARAMETER: dict[str, Callable[[], SlicedParameter]] = {
    "colwise": lambda: SlicedParameter(Shard(-2)),
    "rowwise": lambda: SlicedParameter(Shard(-1)),
    "packed_colwise": lambda: SlicedParameter(StridedShard(-2, 2)),
    "packed_rowwise": lambda: SlicedParameter(StridedShard(-1, 2)),
}


def as_style(path: str, style: Any) -> ParallelStyle:
    if isinstance(style, ParallelStyle):
        return style
    if isinstance(style, str) and style in _BY_WORD:
        return _BY_WORD[style]()
    if isinstance(style, str):
        raise _C.NotSupported(
            f"parallelize_module: the style '{style}' of {path} is not known; known are "
            + ", ".join(sorted(_BY_WORD))
        )
    raise TypeError(
        f"parallelize_module: {path} has {style!r}, which is neither a ParallelStyle nor its name"
    )
