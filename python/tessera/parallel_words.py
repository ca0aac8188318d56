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
    """A parameter that its module uses as this rank's slice: a stack of experts' matrices, a number for
    each head. `dim` counts from the end; a vector is sliced in its only dim by "colwise", and is whole
    on every rank by "rowwise", as a bias is. None: whole."""

    def __init__(self, dim: int | None, parts: int = 1) -> None:
        self.dim = dim
        self.parts = parts

    def _layout(self, parameter: torch.Tensor) -> Layout:
        if self.dim is None or (parameter.dim() == 1 and self.dim == -1):
            return None
        dim = max(parameter.dim() + self.dim, 0)
        return Shard(dim) if self.parts == 1 else StridedShard(dim, self.parts)

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        raise _C.InvalidArgument("the plan names a module where this style needs a parameter")

    def apply_to(self, module: nn.Module, name: str, device_mesh: Any) -> None:
        parameter = module._parameters[name]
        assert parameter is not None
        layout = self._layout(parameter)
        if layout is None:
            return
        mesh = mesh_from_torch(device_mesh)
        distribute_(parameter, mesh, [layout], src_data_rank=self.src_data_rank)
        where = [placements(parameter)[0]]

        def use_slice(module: nn.Module, _: Any) -> None:
            module._parameters[name] = to_local(parameter, grad_placements=where)

        def restore(module: nn.Module, _: Any, __: Any) -> None:
            module._parameters[name] = parameter

        module.register_forward_pre_hook(use_slice)
        module.register_forward_hook(restore, always_call=True)


def _grad_added_up(value: Any, mesh: Any) -> Any:
    """The same plain tensor, whose gradients on the ranks are added up."""
    if not (isinstance(value, torch.Tensor) and value.is_floating_point()):
        return value
    return to_local(from_local(value, mesh, [Replicate()]), grad_placements=[Partial()])


class _SummedOutput(ParallelStyle):
    """A module whose result is a rank's addend."""

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        mesh = mesh_from_torch(device_mesh)

        def leave(_: nn.Module, __: Any, output: Any) -> Any:
            if not isinstance(output, torch.Tensor):
                return output
            return to_local(redistribute(from_local(output, mesh, [Partial()]), [Replicate()]))

        module.register_forward_hook(leave)
        return module


class _SlicedModule(_SummedOutput):
    """A module that computes with slices of its parameters: its result is a part of a sum, and so
    are the gradients of its inputs."""

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        mesh = mesh_from_torch(device_mesh)

        def enter(_: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
            return (
                tuple(_grad_added_up(x, mesh) for x in inputs),
                {name: _grad_added_up(x, mesh) for name, x in named.items()},
            )

        module.register_forward_pre_hook(enter, with_kwargs=True)
        return super()._apply(module, device_mesh)


class _KeysOfAllHeads(ParallelStyle):
    """The projection to a latent and to the rotary part of the keys (multi-head latent attention). The
    latent goes into a colwise projection, which adds up its gradient; the rotary part, its last features,
    goes to the rank's heads at once."""

    def __init__(self, features: int) -> None:
        self.features = features

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        mesh = mesh_from_torch(device_mesh)

        def leave(_: nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
            latent, rotary = output.split([output.shape[-1] - self.features, self.features], -1)
            return torch.cat([latent, _grad_added_up(rotary, mesh)], -1)

        module.register_forward_hook(leave)
        return module


class _IdentityExpert(ParallelStyle):
    """An expert without weights among experts whose results are summed over the ranks."""

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        ranks = mesh_from_torch(device_mesh).size()

        def enter(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            return (inputs[0] / ranks, *inputs[1:])

        module.register_forward_pre_hook(enter)
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
    "moe_identity_expert": _IdentityExpert,
    "packed_colwise": lambda: ColwiseParallel(parts=2),
    "all_reduce": _SummedOutput,
    "local_params": _Replicated,  # parameters that the plan slices are local in forward anyway
}
_ROTARY_KEYS = "mla_kv_a_proj"
# The same for a path that names a parameter: [expert, out, in].
OF_PARAMETER: dict[str, Callable[[], SlicedParameter]] = {
    "colwise": lambda: SlicedParameter(-2),
    "rowwise": lambda: SlicedParameter(-1),
    "packed_colwise": lambda: SlicedParameter(-2, 2),
    "packed_rowwise": lambda: SlicedParameter(-1, 2),
    "replicate": lambda: SlicedParameter(None),
}


def as_style(path: str, style: Any, model: nn.Module) -> ParallelStyle:
    """The style, or the one that a word stands for. `model`'s config may have sizes that it needs."""
    if isinstance(style, ParallelStyle):
        return style
    if isinstance(style, str) and style in _BY_WORD:
        return _BY_WORD[style]()
    if style == _ROTARY_KEYS:
        features = getattr(getattr(model, "config", None), "qk_rope_head_dim", None)
        if features is None:
            raise _C.InvalidArgument(
                f"parallelize_module: '{style}' of {path} needs the model's config.qk_rope_head_dim"
            )
        return _KeysOfAllHeads(features)
    if isinstance(style, str):
        raise _C.NotSupported(
            f"parallelize_module: the style '{style}' of {path} is not known; known are "
            + ", ".join(sorted([*_BY_WORD, _ROTARY_KEYS]))
        )
    raise TypeError(
        f"parallelize_module: {path} has {style!r}, which is neither a ParallelStyle nor its name"
    )


def check_heads(
    path: str, word: str, model: nn.Module, part: nn.Module, parent: nn.Module | None, ranks: int
) -> None:
    """Raises where a projection to heads, whose number the model's config has, would not give each rank
    whole ones: the model's own view of its local heads would fail."""
    config = getattr(model, "config", None)
    width = getattr(parent, "head_dim", None)
    if word != "colwise" or config is None or not isinstance(width, int) or width < 1:
        return
    heads, left = divmod(part.weight.shape[0], width)
    known = [getattr(config, f"num_{kind}_heads", None) for kind in ("attention", "key_value")]
    if left == 0 and heads in known and heads % ranks != 0:
        raise _C.InvalidArgument(
            f"parallelize_module: '{path}' has {heads} heads, which cannot be divided over {ranks} ranks; "
            "use as many ranks as divide them, or 'colwise_gather_output' for the projections to heads "
            "and 'rowwise_split_input' for the one behind them"
        )
