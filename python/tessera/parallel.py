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
import fnmatch
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from . import _C
from .mesh import mesh_from_torch
from .module import reduce_gradients
from .placement import Partial, Replicate, Shard, StridedShard
from .tensor import distribute_, from_local, is_dtensor, placements, redistribute, to_local

_Layout = Any  # a Placement, or None for what is left alone


def _sharded(
    tensor: torch.Tensor, mesh: Any, layout: _Layout, size: int | None = None
) -> torch.Tensor:
    """A plain tensor as the part of a sharded one. Once for all modules that get the same tensor, so
    that their gradients are added up before they are reduced. `size` is that of the sharded dim, all
    ranks together; without it the ranks tell each other theirs, which takes a message."""
    if is_dtensor(tensor):
        return tensor
    grad = tensor.requires_grad and torch.is_grad_enabled()
    # A leaf's node would refer to the leaf, and neither would be freed.
    keeps = grad and not tensor.is_leaf
    key = (mesh, repr(layout), tensor._version) if keeps else None
    if keeps:
        kept = getattr(tensor, "_tessera_sharded", None)
        if kept is not None and kept[0] == key:
            return kept[1]
    shape = None
    if size is not None and isinstance(layout, Shard):
        shape = list(tensor.shape)
        shape[layout.dim] = size
    out = from_local(tensor, mesh, [layout], shape=shape)
    if keeps:
        tensor._tessera_sharded = (key, out)
    return out


def _placed(tensor: torch.Tensor, layout: _Layout) -> torch.Tensor:
    if placements(tensor)[0] == _on_dims(layout, tensor):
        return tensor
    return redistribute(tensor, [layout])


def _on_dims(layout: _Layout, tensor: torch.Tensor) -> _Layout:
    if isinstance(layout, Shard) and layout.dim < 0:
        return Shard(layout.dim + tensor.dim())
    return layout


class ParallelStyle(ABC):
    """What parallelize_module does with one module. A subclass has _apply(module, device_mesh)."""

    src_data_rank: int | None = 0

    @abstractmethod
    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module: ...

    def _distribute(self, module: nn.Module, mesh: Any, layouts: Mapping[str, _Layout]) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            layout = layouts.get(name, Replicate())
            distribute_(parameter, mesh, [layout], src_data_rank=self.src_data_rank)


def _hook_input(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def hook(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (change(inputs[0]), *inputs[1:])

    module.register_forward_pre_hook(hook)


def _hook_output(module: nn.Module, layout: _Layout | None, use_local_output: bool) -> None:
    def place(output: Any) -> Any:
        if not is_dtensor(output):
            return output
        if layout is not None:
            output = _placed(output, layout)
        return to_local(output) if use_local_output else output

    def hook(_: nn.Module, __: Any, output: Any) -> Any:
        return place(output) if isinstance(output, torch.Tensor) else output

    module.register_forward_hook(hook)


def _is_convolution(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.conv._ConvNd)


def _has_inputs_first(module: nn.Module) -> bool:
    """Weights of [in, out]: GPT-2's Conv1D, transposed convolutions."""
    return type(module).__name__ == "Conv1D" or bool(getattr(module, "transposed", False))


def _check_splittable(style: ParallelStyle, module: nn.Module) -> None:
    weight = getattr(module, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.dim() >= 2:
        if getattr(module, "groups", 1) == 1:
            return
    raise NotImplementedError(
        f"{type(style).__name__} currently only support nn.Linear and nn.Embedding, convolutions "
        f"without groups, and other modules with a weight of two dims, not {type(module).__name__}"
    )


class ColwiseParallel(ParallelStyle):
    """The module's output features over the ranks: rows of a Linear's weight and bias, columns of an
    Embedding's, output channels of a convolution."""

    def __init__(
        self,
        *,
        input_layouts: _Layout = None,
        output_layouts: _Layout = None,
        use_local_output: bool = True,
    ) -> None:
        self.input_layouts = (input_layouts or Replicate(),)
        self.output_layouts = (output_layouts or Shard(-1),)
        self._own_output = output_layouts is None
        self.desired_input_layouts = (Replicate(),)
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        _check_splittable(self, module)
        mesh = mesh_from_torch(device_mesh)
        dim = 1 if isinstance(module, nn.Embedding) or _has_inputs_first(module) else 0
        self._distribute(module, mesh, {"weight": Shard(dim), "bias": Shard(0)})
        _hook_input(module, lambda x: _placed(_sharded(x, mesh, self.input_layouts[0]), Replicate()))
        own = self._own_output and _is_convolution(module)
        _hook_output(module, None if own else self.output_layouts[0], self.use_local_output)
        return module

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(input_layouts={self.input_layouts}, "
            f"output_layouts={self.output_layouts}, use_local_output={self.use_local_output})"
        )


class RowwiseParallel(ParallelStyle):
    """The module's input features over the ranks: columns of a Linear's weight, the vocabulary of an
    Embedding. The results are added up; the bias is added once."""

    def __init__(
        self,
        *,
        input_layouts: _Layout = None,
        output_layouts: _Layout = None,
        use_local_output: bool = True,
    ) -> None:
        self.input_layouts = (input_layouts or Shard(-1),)
        self.output_layouts = (output_layouts or Replicate(),)
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        _check_splittable(self, module)
        mesh = mesh_from_torch(device_mesh)
        desired: _Layout = Replicate()
        dim = 0
        if not isinstance(module, nn.Embedding):
            dim = 0 if _has_inputs_first(module) else 1
            desired = Shard(1) if _is_convolution(module) else Shard(-1)
        self.desired_input_layouts = (desired,)
        self._distribute(module, mesh, {"weight": Shard(dim)})
        given = self.input_layouts[0]
        if isinstance(module, nn.Embedding) and given == Shard(-1):
            given = Replicate()  # PyTorch's users say so; indexes have no features
        # The features of all ranks together are the weight's.
        size = None if given != desired else module.weight.shape[dim]
        _hook_input(module, lambda x: _placed(_sharded(x, mesh, given, size), desired))
        _hook_output(module, self.output_layouts[0], self.use_local_output)
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
        reduce_gradients(module)
        _hook_input(module, lambda x: _placed(_sharded(x, mesh, layout), layout))
        _hook_output(module, None, self.use_local_output)
        return module

    def __repr__(self) -> str:
        dim = self.sequence_sharding[0].dim
        return (
            f"{type(self).__name__}(sequence_dim={dim}, use_local_output={self.use_local_output})"
        )


def _as_tuple(layouts: Any) -> tuple[_Layout, ...]:
    if isinstance(layouts, (tuple, list)):
        return tuple(layouts)
    return (layouts,)


class PrepareModuleInput(ParallelStyle):
    """Brings a module's arguments from `input_layouts` (of plain ones) to `desired_input_layouts`,
    one for each argument; None leaves an argument alone. Keyword arguments by name."""

    def __init__(
        self,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: dict[str, _Layout] | None = None,
        desired_input_kwarg_layouts: dict[str, _Layout] | None = None,
        use_local_output: bool = False,
    ) -> None:
        self.input_layouts = None if input_layouts is None else _as_tuple(input_layouts)
        self.desired_input_layouts = (
            None if desired_input_layouts is None else _as_tuple(desired_input_layouts)
        )
        self.use_local_output = use_local_output
        if self.input_layouts is not None:
            if self.desired_input_layouts is None:
                raise AssertionError("desired module inputs should not be None!")
            if len(self.input_layouts) != len(self.desired_input_layouts):
                raise AssertionError(
                    "input_layouts and desired_input_layouts should have same length!"
                )
        self.with_kwargs = input_kwarg_layouts is not None
        self.input_kwarg_layouts = input_kwarg_layouts or {}
        self.desired_input_kwarg_layouts = desired_input_kwarg_layouts or {}
        if self.with_kwargs and set(self.input_kwarg_layouts) != set(
            self.desired_input_kwarg_layouts
        ):
            raise AssertionError(
                "input_kwarg_layouts and desired_input_kwarg_layouts should have same length!"
            )

    def _prepare(self, value: Any, mesh: Any, given: _Layout, desired: _Layout) -> Any:
        if given is None or not isinstance(value, torch.Tensor):
            return value
        tensor = _sharded(value, mesh, given)
        if desired is not None:
            tensor = _placed(tensor, desired)
        return to_local(tensor) if self.use_local_output else tensor

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        mesh = mesh_from_torch(device_mesh)

        def hook(_: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self.input_layouts is not None:
                if len(inputs) != len(self.input_layouts):
                    raise ValueError("module inputs and input_layouts should have same length!")
                inputs = tuple(
                    self._prepare(value, mesh, given, desired)
                    for value, given, desired in zip(
                        inputs, self.input_layouts, self.desired_input_layouts or ()
                    )
                )
            kwargs = {
                name: self._prepare(
                    value,
                    mesh,
                    self.input_kwarg_layouts.get(name),
                    self.desired_input_kwarg_layouts.get(name),
                )
                for name, value in kwargs.items()
            }
            return inputs, kwargs

        module.register_forward_pre_hook(hook, with_kwargs=True)
        return module

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(input_layouts={self.input_layouts}, "
            f"desired_input_layouts={self.desired_input_layouts}, "
            f"input_kwarg_layouts={self.input_kwarg_layouts}, "
            f"desired_input_kwarg_layouts={self.desired_input_kwarg_layouts}, "
            f"use_local_output={self.use_local_output})"
        )


class PrepareModuleOutput(ParallelStyle):
    """Brings a module's results from `output_layouts` (of plain ones) to `desired_output_layouts`."""

    def __init__(
        self, *, output_layouts: Any, desired_output_layouts: Any, use_local_output: bool = True
    ) -> None:
        self.output_layouts = _as_tuple(output_layouts)
        self.desired_output_layouts = _as_tuple(desired_output_layouts)
        self.use_local_output = use_local_output
        if len(self.output_layouts) != len(self.desired_output_layouts):
            raise AssertionError(
                "output_layouts and desired_output_layouts should have same length!"
            )

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        mesh = mesh_from_torch(device_mesh)

        def place(value: Any, given: _Layout, desired: _Layout) -> Any:
            if given is None or not isinstance(value, torch.Tensor):
                return value
            tensor = _placed(_sharded(value, mesh, given), desired)
            return to_local(tensor) if self.use_local_output else tensor

        def hook(_: nn.Module, __: Any, outputs: Any) -> Any:
            several = _as_tuple(outputs)
            if len(several) != len(self.output_layouts):
                raise ValueError("module outputs and output_layouts should have same length!")
            out = tuple(map(place, several, self.output_layouts, self.desired_output_layouts))
            return out if isinstance(outputs, (tuple, list)) else out[0]

        module.register_forward_hook(hook)
        return module

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(output_layouts={self.output_layouts}, "
            f"desired_output_layouts={self.desired_output_layouts}, "
            f"use_local_output={self.use_local_output})"
        )


class PrepareModuleInputOutput(ParallelStyle):
    """PrepareModuleInput and PrepareModuleOutput of one module."""

    def __init__(
        self,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: dict[str, _Layout] | None = None,
        desired_input_kwarg_layouts: dict[str, _Layout] | None = None,
        use_local_input: bool = False,
        output_layouts: Any,
        desired_output_layouts: Any,
        use_local_output: bool = True,
    ) -> None:
        self.prepare_module_input = PrepareModuleInput(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )
        self.prepare_module_output = PrepareModuleOutput(
            output_layouts=output_layouts,
            desired_output_layouts=desired_output_layouts,
            use_local_output=use_local_output,
        )

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        self.prepare_module_input._apply(module, device_mesh)
        self.prepare_module_output._apply(module, device_mesh)
        return module

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.prepare_module_input}, {self.prepare_module_output})"


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


class _SlicedParameter(ParallelStyle):
    """A parameter that its module uses as this rank's slice: a stack of experts' matrices."""

    def __init__(self, layout: _Layout) -> None:
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


# The words of the plans that come with transformers' models (config.base_model_tp_plan).
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
_OF_PARAMETER: dict[str, Callable[[], _SlicedParameter]] = {
    "colwise": lambda: _SlicedParameter(Shard(-2)),
    "rowwise": lambda: _SlicedParameter(Shard(-1)),
    "packed_colwise": lambda: _SlicedParameter(StridedShard(-2, 2)),
    "packed_rowwise": lambda: _SlicedParameter(StridedShard(-1, 2)),
}


def _as_style(path: str, style: Any) -> ParallelStyle:
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


def _matching(module: nn.Module, path: str) -> Iterator[nn.Module]:
    """The submodules on a path whose names may have *, ? and [...]."""
    if path == "":
        yield module
        return
    name, _, rest = path.partition(".")
    for child_name, child in module.named_children():
        if fnmatch.fnmatchcase(child_name, name):
            yield from _matching(child, rest)


def _matching_parameters(module: nn.Module, path: str) -> list[tuple[nn.Module, str]]:
    parent, _, name = path.rpartition(".")
    return [
        (part, own)
        for part in _matching(module, parent)
        for own, _ in part.named_parameters(recurse=False)
        if fnmatch.fnmatchcase(own, name)
    ]


def parallelize_module(
    module: nn.Module,
    device_mesh: Any = None,
    parallelize_plan: ParallelStyle | Mapping[str, ParallelStyle | str] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> nn.Module:
    """Splits a module over a mesh of one axis, in place, by a style or by a plan: paths of
    submodules (with *, ? and [...] between dots) and their styles, or the names of styles as in the
    plans of transformers' models. A path that matches nothing is an error that lists near names;
    it, and a style that is not known, are found before anything changes.

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
    found: list[tuple[nn.Module, ParallelStyle]] = []
    sliced: list[tuple[nn.Module, str, _SlicedParameter]] = []
    for path, value in plan.items():
        matched = list(_matching(module, path))
        parameters = [] if matched else _matching_parameters(module, path)
        if parameters and value in _OF_PARAMETER:
            for part, name in parameters:
                slices = _OF_PARAMETER[value]()
                slices.src_data_rank = src_data_rank
                sliced.append((part, name, slices))
            continue
        style = _as_style(path, value)
        style.src_data_rank = src_data_rank
        if not matched:
            paths = [name for name, _ in module.named_modules() if name]
            near = difflib.get_close_matches(path, paths, n=3, cutoff=0)
            raise _C.InvalidArgument(
                f"parallelize_module: no submodule matches '{path}'; nearest: " + ", ".join(near)
            )
        found.extend((part, style) for part in matched)
    for part, style in found:
        if isinstance(style, (ColwiseParallel, RowwiseParallel)):
            _check_splittable(style, part)
    for part, style in found:
        style._apply(part, device_mesh)
    for part, name, slices in sliced:
        slices.apply_to(part, name, device_mesh)
    return module


@contextlib.contextmanager
def loss_parallel() -> Iterator[None]:
    """For programs written for PyTorch's context. Here cross_entropy, log_softmax, nll_loss and
    logsumexp of logits that are sharded over the classes never gather them, inside or outside."""
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
