"""State dicts of a module with sharded tensors, by fully_shard or otherwise: full values, or the sharded
tensors themselves."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from . import _C


def full_state_dict(module: nn.Module, *, rank0_only: bool = False) -> dict[str, torch.Tensor]:
    """Full copies on the CPU of what state_dict() lists, by name, however it is sharded. Every rank must
    call it; with `rank0_only` only the first rank of each mesh gets them.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("dp=2")
        ...     layer = tessera.fully_shard(torch.nn.Linear(3, 4), mesh)
        ...     return {name: tuple(t.shape) for name, t in full_state_dict(layer).items()}
        >>> tessera.run_ranks(2, show)[1]
        {'bias': (4,), 'weight': (4, 3)}
    """
    return _C.full_state_dict(_C.ModuleMirror(module), rank0_only)


def load_full_state_dict(
    module: nn.Module, state: Mapping[str, torch.Tensor], *, rank0_only: bool = False
) -> None:
    """Copies values from a state dict with the same names and shapes. Each rank copies its parts and
    nothing is sent; or, with `rank0_only`, rank 0 has the state and sends the parts. Missing or
    unexpected names raise on every rank, before anything changes."""
    _C.load_full_state_dict(_C.ModuleMirror(module), dict(state), rank0_only)


def sharded_state_dict(module: nn.Module) -> dict[str, torch.Tensor]:
    """The sharded tensors themselves, sharing the module's memory; nothing is gathered or sent."""
    return _C.sharded_state_dict(_C.ModuleMirror(module))


def load_sharded_state_dict(module: nn.Module, state: Mapping[str, torch.Tensor]) -> None:
    """Copies values from tensors of any placements, on any mesh of the same world."""
    _C.load_sharded_state_dict(_C.ModuleMirror(module), dict(state))
