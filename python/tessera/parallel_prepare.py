"""Styles that change the layout of what goes in and out of a module, and nothing else."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .mesh import mesh_from_torch
from .parallel_style import Layout, ParallelStyle, as_tuple, placed, sharded
from .tensor import to_local


class _LayoutStyle(ParallelStyle):
    """A style that leaves the parameters alone."""

    def _parameters(self, module: nn.Module) -> list[nn.Parameter]:
        return []


class PrepareModuleInput(_LayoutStyle):
    """Brings a module's arguments from `input_layouts` (of plain ones) to `desired_input_layouts`,
    one for each argument; None leaves an argument alone. Keyword arguments by name."""

    def __init__(
        self,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: dict[str, Layout] | None = None,
        desired_input_kwarg_layouts: dict[str, Layout] | None = None,
        use_local_output: bool = False,
    ) -> None:
        self.input_layouts = None if input_layouts is None else as_tuple(input_layouts)
        self.desired_input_layouts = (
            None if desired_input_layouts is None else as_tuple(desired_input_layouts)
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

    def _prepare(self, value: Any, mesh: Any, given: Layout, desired: Layout) -> Any:
        if given is None or not isinstance(value, torch.Tensor):
            return value
        tensor = sharded(value, mesh, given)
        if desired is not None:
            tensor = placed(tensor, desired)
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


class PrepareModuleOutput(_LayoutStyle):
    """Brings a module's results from `output_layouts` (of plain ones) to `desired_output_layouts`."""

    def __init__(
        self, *, output_layouts: Any, desired_output_layouts: Any, use_local_output: bool = True
    ) -> None:
        self.output_layouts = as_tuple(output_layouts)
        self.desired_output_layouts = as_tuple(desired_output_layouts)
        self.use_local_output = use_local_output
        if len(self.output_layouts) != len(self.desired_output_layouts):
            raise AssertionError(
                "output_layouts and desired_output_layouts should have same length!"
            )

    def _apply(self, module: nn.Module, device_mesh: Any) -> nn.Module:
        mesh = mesh_from_torch(device_mesh)

        def place(value: Any, given: Layout, desired: Layout) -> Any:
            if given is None or not isinstance(value, torch.Tensor):
                return value
            tensor = placed(sharded(value, mesh, given), desired)
            return to_local(tensor) if self.use_local_output else tensor

        def hook(_: nn.Module, __: Any, outputs: Any) -> Any:
            several = as_tuple(outputs)
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


class PrepareModuleInputOutput(_LayoutStyle):
    """PrepareModuleInput and PrepareModuleOutput of one module."""

    def __init__(
        self,
        *,
        input_layouts: Any = None,
        desired_input_layouts: Any = None,
        input_kwarg_layouts: dict[str, Layout] | None = None,
        desired_input_kwarg_layouts: dict[str, Layout] | None = None,
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
