"""The names of torch.distributed.tensor.parallel.input_reshard."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...mesh import mesh_from_torch
from ...placement import Replicate, Shard
from ...tensor import from_local, is_dtensor, placements, redistribute, to_local


class _Part:
    """This rank's part of a tensor that was saved for backward."""

    def __init__(self, sharded: torch.Tensor, was_plain: bool) -> None:
        self.sharded = sharded
        self.was_plain = was_plain

    def whole(self) -> torch.Tensor:
        tensor = redistribute(self.sharded, [Replicate()])
        return to_local(tensor) if self.was_plain else tensor


def input_reshard(
    module: nn.Module, tp_device_mesh: Any, input_reshard_dim: int | None = None
) -> nn.Module:
    """What the module saves for backward, and all ranks of the mesh have alike, is kept as this
    rank's part of `input_reshard_dim` and gathered when backward needs it. Less memory, more
    messages. None changes nothing."""
    if input_reshard_dim is None:
        return module
    mesh = mesh_from_torch(tp_device_mesh)
    layout = [Shard(input_reshard_dim)]
    entered: list[Any] = []

    def pack(tensor: torch.Tensor) -> Any:
        if is_dtensor(tensor):
            is_whole = all(isinstance(placed, Replicate) for placed in placements(tensor))
            return _Part(redistribute(tensor.detach(), layout), False) if is_whole else tensor
        if tensor.numel() < mesh.size() or tensor.dim() <= input_reshard_dim:
            return tensor
        whole = from_local(tensor.detach(), mesh, [Replicate()])
        return _Part(redistribute(whole, layout), True)

    def unpack(saved: Any) -> torch.Tensor:
        return saved.whole() if isinstance(saved, _Part) else saved

    def enter(_: nn.Module, __: Any) -> None:
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, unpack)
        hooks.__enter__()
        entered.append(hooks)

    def leave(_: nn.Module, __: Any, ___: Any) -> None:
        entered.pop().__exit__()

    module.register_forward_pre_hook(enter)
    module.register_forward_hook(leave, always_call=True)
    return module


__all__ = ["input_reshard"]
