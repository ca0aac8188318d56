"""Sharding rules of one's own ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Union

from . import _C
from ._C import RuleCall

Rows = Iterable[tuple[Any, Any]]
RuleFunction = Callable[[RuleCall, int], Rows]


def register_rule(
    op: str, rule: Union[str, RuleFunction], *, results: int = 1
) -> None:
    """Says how an op may run on shards. Every rank registers the same rules.

    `rule` is a line of notation (docs/rule_notation.md) or a function that lists, for one axis of
    the mesh, which placements of the operands are legal and what they make of the results. All
    replicated is always legal and need not be listed. The cheapest legal one is taken.

        register_rule("mylib::scaled_mm", "mk, kn -> mn ; linear 0 ; linear 1")

        def rows(call, axis):                # call.operands: Shardings; call.args: by name
            yield [Shard(0), Replicate()], [Shard(0)]
            yield [Replicate(), Shard(1)], [Shard(1)]
        register_rule("mylib::scaled_mm", rows)

    `results` is how many tensors the op returns. The op's Meta (fake) kernel tells the shapes of
    sharded results; without one it runs replicated.
    """
    if isinstance(rule, str):
        _C.register_notation(op, rule)
    else:
        _C.register_function(op, rule, results)
    _C.clear_decisions()


def rule_of(op: str) -> str | None:
    """The rule of an op as text, None if it has none.

        >>> rule_of("aten::mm")
        'mk, kn -> mn ; linear 0 ; linear 1'
    """
    return _C.rule_text(op)


def ruled_ops() -> list[str]:
    """All ops that have a rule of their own; in-place, out= and foreach forms derive from them."""
    return _C.ruled_ops()
