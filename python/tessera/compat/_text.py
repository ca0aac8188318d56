"""How placements and sharded tensors print after enable(): as PyTorch's do.

    repr(Shard(0)), str(Shard(0))               Shard(dim=0), S(0)           without it Shard(0), S0
    repr(Partial()), str(Partial())             Partial(sum), P(sum)         Partial('sum'), P(sum)
    repr(_StridedShard(0, split_factor=2))      _StridedShard(dim=0, sf=2)   StridedShard(0, 2)

Texts that this library reads again (Placement.parse, pickles) stay its own.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _C, _methods
from .._C import Placement
from ._methods import device_mesh, placements

_placement_texts = (Placement.__repr__, Placement.__str__)
_describe = _methods.describe


def _repr(placement: Placement) -> str:
    if placement.kind == "shard":
        return f"Shard(dim={placement.dim})"
    if placement.kind == "strided":
        return f"_StridedShard(dim={placement.dim}, sf={placement.split_factor})"
    if placement.kind == "partial":
        return f"Partial({placement.reduce_op})"
    return _placement_texts[0](placement)


def _str(placement: Placement) -> str:
    if placement.kind == "shard":
        return f"S({placement.dim})"
    if placement.kind == "strided":
        return f"_S({placement.dim}, {placement.split_factor})"
    return _placement_texts[1](placement)


def _describe_as_pytorch(tensor: torch.Tensor) -> str:
    detached = tensor.detach()
    local = _C.to_local(detached, None)
    return (
        f"DTensor(local_tensor={local}, device_mesh={device_mesh(detached)}, "
        f"placements={placements(detached)})"
    )


def _set(repr_: Any, str_: Any, describe: Any) -> None:
    Placement.__repr__ = repr_  # type: ignore[method-assign]
    Placement.__str__ = str_  # type: ignore[method-assign]
    _methods.describe = describe


def install() -> None:
    """Prints as PyTorch does from now on."""
    _set(_repr, _str, _describe_as_pytorch)


def uninstall() -> None:
    """Prints this library's texts again."""
    _set(*_placement_texts, _describe)
