"""The names of torch.distributed.tensor.parallel.ddp."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import nn

from ._data_parallel_utils import _flatten_tensor, _unflatten_tensor


class _Localized(NamedTuple):
    """A plain parameter in the place of a sharded one."""

    owner: nn.Module
    name: str
    parameter: nn.Parameter
    spec: Any


def _pre_dp_module_transform(module: nn.Module) -> None:
    """Prepares a tensor-parallel module for DistributedDataParallel over another axis, which knows plain
    parameters alone: the module has local parts as parameters, in forward as the sharded tensors that they
    are parts of. (fully_shard needs none of this.)"""
    localized: list[_Localized] = []
    plain: dict[int, nn.Parameter] = {}  # by the sharded one: tied parameters stay tied
    for owner in module.modules():
        for name, parameter in owner.named_parameters(recurse=False):
            local, spec = _flatten_tensor(parameter)
            if spec is None:
                continue
            made = plain.setdefault(
                id(parameter), nn.Parameter(local, requires_grad=parameter.requires_grad)
            )
            localized.append(_Localized(owner, name, made, spec))

    def use_sharded(_: nn.Module, __: Any) -> None:
        made: dict[int, Any] = {}
        for owner, name, parameter, spec in localized:
            if id(parameter) not in made:
                made[id(parameter)] = _unflatten_tensor(parameter, spec)
            owner._parameters[name] = made[id(parameter)]

    def use_plain(*_: Any) -> None:
        for owner, name, parameter, _spec in localized:
            owner._parameters[name] = parameter

    use_plain()
    module.register_forward_pre_hook(use_sharded)
    module.register_forward_hook(use_plain, always_call=True)


__all__: list[str] = []
