"""Styles that split a module's weight, or the sequence that it acts on, over a mesh axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from . import _C
from .mesh import mesh_from_torch
from .parallel_style import (
    Layout,
    ParallelStyle,
    hook_input,
    hook_output,
    placed_once,
    reduce_together,
    sharded,
)
from .placement import Replicate, Shard, StridedShard
from .tensor import distribute_, placements


def _is_convolution(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.conv._ConvNd)


def _is_look_up(module: nn.Module) -> bool:
    """Weights of [vocabulary, features], and indexes as input."""
    return isinstance(module, (nn.Embedding, nn.EmbeddingBag))


def _has_inputs_first(module: nn.Module) -> bool:
    """Weights of [in, out]: GPT-2's Conv1D, transposed convolutions."""
    return type(module).__name__ == "Conv1D" or bool(getattr(module, "transposed", False))


def check_splittable(style: ParallelStyle, module: nn.Module) -> None:
    kind = f"{type(style).__name__} for {type(module).__name__}"
    if getattr(module, "sparse", False):
        raise _C.NotSupported(f"{kind}: sparse gradients of a sharded weight; set sparse=False")
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor) and "weight" not in module._parameters:
        held = [name for name, _ in module.named_parameters()]
        raise NotImplementedError(
            f"{kind}: its weight is not a parameter of its own, but made of {', '.join(held)}; "
            "name the submodule that holds it"
        )
    if isinstance(weight, torch.Tensor) and (weight.dim() == 2 or _is_convolution(module)):
        if getattr(module, "groups", 1) == 1:
            return
    raise NotImplementedError(
        f"{type(style).__name__} currently only support nn.Linear and nn.Embedding, convolutions "
        f"without groups, and other modules with a weight of two dims, not {type(module).__name__}"
    )


def _replicated_if_plain(module: nn.Module, mesh: Any) -> Callable[[Any], Any] | None:
    """For offsets and weights of an EmbeddingBag; other modules have one tensor that meets the weight."""
    if not isinstance(module, nn.EmbeddingBag):
        return None
    return lambda value: sharded(value, mesh, Replicate()) if torch.is_tensor(value) else value


def _check_overlap(style: ParallelStyle, module: nn.Module, pieces: int) -> None:
    if pieces < 1 or (pieces > 1 and not isinstance(module, nn.Linear)):
        raise _C.InvalidArgument(
            f"{type(style).__name__}(overlap={pieces}) for {type(module).__name__}: a number of pieces, "
            "and for nn.Linear"
        )


class ColwiseParallel(ParallelStyle):
    """The module's output features over the ranks: rows of a Linear's weight and bias, columns of an
    Embedding's, output channels of a convolution.

    `parts` is the number of matrices that the weight holds one below the other, of which each rank
    has its rows of each: 3 for fused queries, keys and values, 2 for gate and up. The module's own
    chunk(3, -1) of the local output is then right. `heads` is the number of heads of each part: a
    multiple of the ranks, so that each has whole ones. Fewer are replicated, which needs
    use_local_output=False: a rank's local queries do not know which of the heads are theirs.

    `overlap` is async tensor parallelism, for inputs [batch, sequence, features] that are sharded over
    the sequence: they are gathered in so many pieces of the batch, each multiplied while the next is in
    flight."""

    def __init__(
        self,
        *,
        input_layouts: Layout = None,
        output_layouts: Layout = None,
        use_local_output: bool = True,
        parts: int = 1,
        heads: int = 0,
        overlap: int = 1,
    ) -> None:
        self.input_layouts = (input_layouts or Replicate(),)
        self.output_layouts = (output_layouts or Shard(-1),)
        self._own_output = output_layouts is None
        self.desired_input_layouts = (Replicate(),)
        self.use_local_output = use_local_output
        self.parts = parts
        self.heads = heads
        self.overlap = overlap

    def _weight_layout(self, module: nn.Module, ranks: int) -> Layout:
        dim = 1 if _is_look_up(module) or _has_inputs_first(module) else 0
        size = module.weight.shape[dim]
        what = f"{type(self).__name__} for {type(module).__name__}: "
        if self.parts < 1 or size % self.parts != 0:
            raise _C.InvalidArgument(f"{what}{size} outputs are not {self.parts} equal parts")
        if self.heads and (size // self.parts) % self.heads != 0:
            raise _C.InvalidArgument(
                f"{what}{size // self.parts} outputs are not {self.heads} equal heads"
            )
        if self.heads and self.heads % ranks != 0:
            if ranks % self.heads == 0 and self.parts == 1 and not self.use_local_output:
                return Replicate()
            raise _C.InvalidArgument(
                f"{what}{self.heads} heads cannot be divided over {ranks} ranks"
                + ("; use_local_output=False replicates them" if ranks % self.heads == 0 else "")
            )
        return Shard(dim) if self.parts == 1 else StridedShard(dim, self.parts)

    def _check(self, module: nn.Module, ranks: int) -> None:
        check_splittable(self, module)
        _check_overlap(self, module, self.overlap)
        self._weight_layout(module, ranks)

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        check_splittable(self, module)
        mesh = mesh_from_torch(device_mesh)
        weight = self._weight_layout(module, mesh.size())
        bias = weight
        if not isinstance(weight, Replicate):
            bias = Shard(0) if self.parts == 1 else StridedShard(0, self.parts)
        self._distribute(module, mesh, {"weight": weight, "bias": bias})
        given = self.input_layouts[0]
        if self.overlap > 1:
            _C.overlap_weight(module.weight, mesh, self.overlap)
            hook_input(module, lambda x: sharded(x, mesh, given))
        else:
            others = _replicated_if_plain(module, mesh)
            hook_input(module, lambda x: placed_once(sharded(x, mesh, given), Replicate()), others)
        self._hook_output(module, weight)
        return module

    def _hook_output(self, module: nn.Module, weight: Layout) -> None:
        if not self._own_output:
            hook_output(module, lambda _, __: self.output_layouts[0], self.use_local_output)
            return
        outputs = module.weight.shape[weight.dim] if isinstance(weight, Shard) else 0
        is_convolution = _is_convolution(module)
        features = 1 - module.weight.dim() if is_convolution else -1

        def own_layout(_: torch.Tensor, output: torch.Tensor) -> Layout:
            if isinstance(weight, Replicate):
                return Replicate()
            if self.parts == 1:
                return Shard(features)
            # A module may combine its parts (gate and up) and move the features; a convolution does not.
            if not is_convolution and isinstance(placements(output)[0], Shard):
                return None
            in_parts = output.dim() > 0 and output.size(features) == outputs
            return StridedShard(features, self.parts) if in_parts else Shard(features)

        hook_output(module, own_layout, self.use_local_output)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(input_layouts={self.input_layouts}, "
            f"output_layouts={self.output_layouts}, use_local_output={self.use_local_output})"
        )


class RowwiseParallel(ParallelStyle):
    """The module's input features over the ranks: columns of a Linear's weight, input channels of a
    convolution, the vocabulary of an Embedding. The results are added up; the bias is added once. With `overlap`, results that are to be
    sharded over the sequence are reduced in so many pieces, each while the next is multiplied."""

    def __init__(
        self,
        *,
        input_layouts: Layout = None,
        output_layouts: Layout = None,
        use_local_output: bool = True,
        overlap: int = 1,
    ) -> None:
        self.input_layouts = (input_layouts or Shard(-1),)
        self._own_input = input_layouts is None
        self.output_layouts = (output_layouts or Replicate(),)
        self.use_local_output = use_local_output
        self.overlap = overlap

    def _check(self, module: nn.Module, ranks: int) -> None:
        check_splittable(self, module)
        _check_overlap(self, module, self.overlap)

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        check_splittable(self, module)
        mesh = mesh_from_torch(device_mesh)
        desired: Layout = Replicate()
        dim = 0
        if not _is_look_up(module):
            dim = 0 if _has_inputs_first(module) else 1
            desired = Shard(1 - module.weight.dim() if _is_convolution(module) else -1)
        self.desired_input_layouts = (desired,)
        self._distribute(module, mesh, {"weight": Shard(dim)})
        given = desired if self._own_input else self.input_layouts[0]
        if _is_look_up(module) and given == Shard(-1):
            given = Replicate()  # PyTorch's users say so; indexes have no features
        # The features of all ranks together are the weight's.
        size = None if given != desired else module.weight.shape[dim]
        if self.overlap > 1:
            _C.overlap_weight(module.weight, mesh, self.overlap, self.output_layouts[0])

        def enter(x: torch.Tensor) -> torch.Tensor:
            try:
                return placed_once(sharded(x, mesh, given, size), desired)
            except _C.InvalidArgument as error:
                raise _C.InvalidArgument(
                    f"{self} for {type(module).__name__}: {error}; a plain input is a part as input_layouts "
                    "says, input_layouts=Replicate() takes whole ones"
                ) from error

        hook_input(module, enter, _replicated_if_plain(module, mesh))
        hook_output(module, lambda _, __: self.output_layouts[0], self.use_local_output)
        return module

    __repr__ = ColwiseParallel.__repr__


class SequenceParallel(ParallelStyle):
    """The sequence over the ranks, for modules that act on each position alone: LayerNorm, RMSNorm,
    Dropout. A plain input is a part of the sequence."""

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.sequence_sharding = (Shard(sequence_dim),)
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        mesh = mesh_from_torch(device_mesh)
        layout = self.sequence_sharding[0]
        for parameter in module.parameters():
            distribute_(parameter, mesh, [Replicate()], src_data_rank=self.src_data_rank)
        reduce_together(list(module.parameters()))
        hook_input(module, lambda x: placed_once(sharded(x, mesh, layout), layout))
        dim = layout.dim

        def over_positions(x: torch.Tensor, output: torch.Tensor) -> Layout:
            dims = min(x.dim(), output.dim())
            # A result without these positions, such as a mean over them, keeps its layout.
            keeps = -dims <= dim < dims and output.size(dim) == x.size(dim)
            return layout if keeps else None

        hook_output(module, over_positions, self.use_local_output)
        return module

    def __repr__(self) -> str:
        dim = self.sequence_sharding[0].dim
        return (
            f"{type(self).__name__}(sequence_dim={dim}, use_local_output={self.use_local_output})"
        )
