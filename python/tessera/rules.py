"""Sharding rules for user-defined ops, and explanations of decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Union

import torch

from . import _C
from ._C import DeviceMesh, RuleCall, Sharding

Rows = Iterable[tuple[Any, Any]]
RuleFunction = Callable[[RuleCall, int], Rows]


def register_rule(
    op: str, rule: Union[str, RuleFunction], *, results: int = 1
) -> None:
    """Says how an op may run on shards. Every rank registers the same rules.

    `rule` is a line of notation (docs/rule_notation.md) or a function that lists, for one axis of
    the mesh, which placements of the operands are legal and which placements the results then have. All
    replicated is always legal and need not be listed. The cheapest legal row is chosen.

        register_rule("mylib::scaled_mm", "mk, kn -> mn ; linear 0 ; linear 1")

        def rows(call, axis):                # call.operands: Shardings; call.args: by name
            yield [Shard(0), Replicate()], [Shard(0)]
            yield [Replicate(), Shard(1)], [Shard(1)]
        register_rule("mylib::scaled_mm", rows)

    `results` is how many tensors the op returns. The op's Meta (fake) kernel gives the shapes of
    sharded results; without one it runs replicated.
    """
    _C.claim(op)
    if isinstance(rule, str):
        _C.register_notation(op, rule)
    else:
        _C.register_function(op, rule, results)
    _C.clear_caches()


def explain(op: Any, *args: Any, candidates: int = 32, **kwargs: Any) -> str:
    """Which placements an op can run in, what each costs, and which is chosen; nothing runs.

    `op` is torch.ops.aten.mm.default or "aten::mm"; the arguments are those of the op, with a
    Sharding or a sharded tensor for each tensor.

        >>> x = tessera.Sharding.parse("tp=4 : S1 : 8x16")
        >>> w = tessera.Sharding.parse("tp=4 : S0 : 16x32")
        >>> print(explain("aten::mm", x, w).splitlines()[0])
        aten::mm on tp=4
    """
    if isinstance(op, str):
        name, _, overload = op.partition(".")
        namespace, _, base = name.partition("::")
        op = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    names = [argument.name for argument in op._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    values = [
        (argument.name, given.get(argument.name, argument.default_value))
        for argument in op._schema.arguments
    ]
    overload = op._schema.overload_name
    full_name = op._schema.name + (f".{overload}" if overload else "")
    return _C.explain(full_name, values, _mesh_among(given.values()), candidates)


def _mesh_among(values: Iterable[Any]) -> DeviceMesh:
    for value in values:
        if isinstance(value, Sharding):
            return value.mesh
        if _C.is_dtensor(value):
            return _C.device_mesh(value)
        if isinstance(value, (list, tuple)):
            try:
                return _mesh_among(value)
            except _C.InvalidArgument:
                continue
    raise _C.InvalidArgument("explain needs a Sharding or a sharded tensor among the arguments")


def rule_of(op: str) -> str | None:
    """The rule of an op as text, None if it has none.

        >>> rule_of("aten::mm")
        'mk, kn -> mn ; linear 0 ; linear 1'
    """
    return _C.rule_text(op)


def ruled_ops() -> list[str]:
    """All ops that have a rule of their own; in-place, out= and foreach forms derive from them."""
    return _C.ruled_ops()
