"""Mixed precision of fully_shard: its types, and the casts around a module's forward."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree


@dataclasses.dataclass(frozen=True)
class MixedPrecisionPolicy:
    """Types of parameters and gradients while they travel and compute; at rest they keep their own.

    Inputs of the module that are floating-point tensors are cast to `param_dtype` unless
    `cast_forward_inputs` is false, its outputs to `output_dtype` where that is given.
    """

    param_dtype: torch.dtype | None = None
    reduce_dtype: torch.dtype | None = None
    output_dtype: torch.dtype | None = None
    cast_forward_inputs: bool = True

    def cast_input(self, tree: Any) -> Any:
        """Arguments of forward as the parameters need them."""
        return _cast(tree, self.param_dtype if self.cast_forward_inputs else None)

    def cast_output(self, tree: Any) -> Any:
        """What forward gives."""
        return _cast(tree, self.output_dtype)


def add_casts(module: nn.Module, precision: MixedPrecisionPolicy) -> None:
    """Before and after the module's forward."""
    if precision.param_dtype is not None and precision.cast_forward_inputs:
        module.register_forward_pre_hook(
            lambda _, args, kwargs: (precision.cast_input(args), precision.cast_input(kwargs)),
            prepend=True,
            with_kwargs=True,
        )
    if precision.output_dtype is not None:
        module.register_forward_hook(lambda _, args, output: precision.cast_output(output))


def _cast(tree: Any, dtype: torch.dtype | None) -> Any:
    """The floating-point tensors in it in this type; dataclasses are looked into as well."""

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf.to(dtype) if leaf.is_floating_point() else leaf
        if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
            return leaf
        copied = copy.copy(leaf)
        for field in dataclasses.fields(leaf):
            # As a frozen one is made, too.
            object.__setattr__(copied, field.name, _cast(getattr(leaf, field.name), dtype))
        return copied

    return tree if dtype is None else pytree.tree_map(cast, tree)
