"""What one mesh axis does to a tensor: the four kinds of placement.

Every placement is a `Placement`; the names here make and distinguish them.

    >>> p = Shard(0)
    >>> isinstance(p, Shard), isinstance(p, Placement), p.dim, str(p)
    (True, True, 0, 'S0')
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import torch

from . import _C
from ._C import Placement


class _Kind(type(Placement)):  # type: ignore[misc]
    """A name for one kind of Placement: calling it makes one, isinstance looks at the kind."""

    _kinds: tuple[str, ...]

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Placement) and instance.kind in cls._kinds


class Shard(Placement, metaclass=_Kind):
    """Dim `dim` is sharded over the ranks of the axis, as torch.chunk splits: [10] over 4 is 3,3,3,1."""

    _kinds = ("shard", "strided", "ragged")

    def __new__(cls, dim: int) -> Shard:
        return _C.shard(dim)  # type: ignore[return-value]


class StridedShard(Placement, metaclass=_Kind):
    """Dim `dim` is split in `split_factor` pieces, each sharded over the ranks."""

    _kinds = ("strided",)

    def __new__(cls, dim: int, split_factor: int) -> StridedShard:
        return _C.strided_shard(dim, split_factor)  # type: ignore[return-value]


class RaggedShard(Placement, metaclass=_Kind):
    """Dim `dim` is split into parts of exactly these sizes."""

    _kinds = ("ragged",)

    def __new__(cls, dim: int, sizes: Sequence[int]) -> RaggedShard:
        return _C.ragged_shard(dim, list(sizes))  # type: ignore[return-value]


class Replicate(Placement, metaclass=_Kind):
    """Every rank of the axis holds all of it."""

    _kinds = ("replicate",)

    def __new__(cls) -> Replicate:
        return _C.replicate()  # type: ignore[return-value]


class Partial(Placement, metaclass=_Kind):
    """Every rank of the axis holds an addend (or factor, or candidate for the maximum, ...)."""

    _kinds = ("partial",)

    def __new__(cls, reduce_op: str = "sum") -> Partial:
        # "prod" is how torch names the function.
        return _C.partial("product" if reduce_op == "prod" else reduce_op)  # type: ignore[return-value]


#: The text that Placement.parse reads, whatever str() gives after tessera.compat.enable().
placement_text = Placement.__str__


def _placement(text: str) -> Placement:
    return Placement.parse(text)


def _reduce(self: Placement) -> tuple[Any, ...]:
    return _placement, (placement_text(self),)


Placement.__reduce__ = _reduce  # type: ignore[method-assign, assignment]
torch.serialization.add_safe_globals([_placement])  # torch.load(weights_only=True) reads placements

#: Placements as functions take them: "S0,R", [Shard(0), Replicate()], one for a mesh of one axis;
#: PyTorch's own placement objects count too.
Placements = Union[str, Placement, Sequence[Any]]
