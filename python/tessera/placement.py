"""What one mesh axis does to a tensor: the four kinds of placement.

Every placement is a `Placement`; the names here make them and tell them apart.

    >>> p = Shard(0)
    >>> isinstance(p, Shard), isinstance(p, Placement), p.dim, str(p)
    (True, True, 0, 'S0')
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Union

from . import _C
from ._C import Placement


class _Kind(type):
    """A name for one kind of Placement: calling it makes one, isinstance looks at the kind."""

    _kinds: tuple[str, ...]
    _make: Callable[..., Placement]

    def __call__(cls, *args: Any, **kwargs: Any) -> Placement:
        return cls._make(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, Placement) and instance.kind in cls._kinds


class Shard(metaclass=_Kind):
    """Dim `dim` is cut over the ranks of the axis, as torch.chunk cuts: [10] over 4 is 3,3,3,1."""

    _kinds = ("shard", "strided", "ragged")

    @staticmethod
    def _make(dim: int) -> Placement:
        return _C.shard(dim)


class StridedShard(metaclass=_Kind):
    """Dim `dim` is cut in `split_factor` pieces, each of them over the ranks."""

    _kinds = ("strided",)

    @staticmethod
    def _make(dim: int, split_factor: int) -> Placement:
        return _C.strided_shard(dim, split_factor)


class RaggedShard(metaclass=_Kind):
    """Dim `dim` is cut into parts of exactly these sizes."""

    _kinds = ("ragged",)

    @staticmethod
    def _make(dim: int, sizes: Sequence[int]) -> Placement:
        return _C.ragged_shard(dim, list(sizes))


class Replicate(metaclass=_Kind):
    """Every rank of the axis holds all of it."""

    _kinds = ("replicate",)

    @staticmethod
    def _make() -> Placement:
        return _C.replicate()


class Partial(metaclass=_Kind):
    """Every rank of the axis holds an addend (or factor, or candidate for the maximum, ...)."""

    _kinds = ("partial",)

    @staticmethod
    def _make(reduce_op: str = "sum") -> Placement:
        return _C.partial(reduce_op)


#: Placements as functions take them: "S0,R", [Shard(0), Replicate()], one for a mesh of one axis;
#: PyTorch's own placement objects count too.
Placements = Union[str, Placement, Sequence[Any]]
