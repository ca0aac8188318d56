"""The names of torch.distributed.tensor.experimental."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import _C
from ..module import local_map
from ..policy import implicit_replication
from ..rules import register_rule


def register_sharding(op: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """As torch.distributed.tensor.experimental.register_sharding: the decorated function gets the
    op's arguments, with a Sharding for each tensor, and lists ([results], [operands]) placements.
    Entries that are no tensor are None among the operands."""
    overloads = op if isinstance(op, (list, tuple)) else [op]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for overload in overloads:
            schema = overload._schema
            name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
            register_rule(name, _as_rows(function), results=len(schema.returns))
        return function

    return decorate


def _as_rows(function: Callable[..., Any]) -> Callable[..., Any]:
    def rows(call: _C.RuleCall, axis: int) -> Any:
        for results, operands in function(*call.args.values()):
            yield [p for p in operands if p is not None], results

    return rows


__all__ = ["implicit_replication", "local_map", "register_sharding"]
