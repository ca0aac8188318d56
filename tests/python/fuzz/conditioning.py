"""Whether rounding alone explains a difference.

Ranks add in another order than the plain run, and round the parts of a Partial sum instead of the sum.
Where a program magnifies that (an optimizer that divides a gradient, which is zero but for rounding, by
its size; a softmax of large products in bfloat16), no result is right or wrong. So the plain run is
repeated with noise of the size of rounding on everything that an op computes from, and a difference is
undecided only if every variable that differs moves by about as much in these runs.

A wrong value in a program that is not so sensitive stays wrong: 1e-15 of noise moves it by about 1e-15.
Only numbers are explained this way, never a shape, a type, requires_grad, or a value that is missing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import compare
from execute import Expected, NotAProgram, PlainRun, snapshot
from program import Program

RUNS = 6
FACTOR = 4.0  # a difference may be so many times what the noise moved
ULPS = 2.0  # of each value that an op reads

# Copies, which round nothing.
_EXACT = ("aten::clone", "aten::copy_", "aten::_to_copy", "aten::detach", "aten::lift_fresh", "aten::set_")


class Noise(TorchDispatchMode):
    """Every op computes from values that differ from its arguments by rounding."""

    def __init__(self, seed: int):
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        if schema.name in _EXACT or not schema.returns:
            return func(*args, **kwargs)
        noisy = [
            value if i >= len(schema.arguments) or schema.arguments[i].alias_info is not None else self._moved(value)
            for i, value in enumerate(args)
        ]
        return func(*noisy, **kwargs)

    def _moved(self, value: Any) -> Any:
        return tree_map(self._move, value) if isinstance(value, (torch.Tensor, list, tuple)) else value

    def _move(self, t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or t.is_meta or not (t.is_floating_point() or t.is_complex()):
            return t
        signs = torch.randint(0, 2, t.shape, generator=self.generator).double() * 2 - 1
        moved = t * (1.0 + signs * (ULPS * torch.finfo(t.dtype).eps))  # in double precision
        return torch.empty_like(t).copy_(moved)


def _noisy_run(program: Program, seed: int) -> dict[str, Any] | None:
    """None where the plain run does not work with noise."""
    run = PlainRun(program)
    try:
        for index, guarded in enumerate(program.statements):
            # A guard that fails because of the noise would hide what it is there to measure.
            statement = dataclasses.replace(guarded, guard="")
            if statement.draws:  # on sharded tensors of one rank
                run.step(statement)
                continue
            with Noise(seed + index):
                run.step(statement)
    except NotAProgram:
        return None
    return snapshot(run.env)


def _distance(want: Any, have: Any) -> float:
    """The largest difference of two values of a snapshot; infinite if they differ in more than numbers."""
    if isinstance(want, list):
        if not isinstance(have, list) or len(want) != len(have):
            return float("inf")
        return max((_distance(w, h) for w, h in zip(want, have, strict=True)), default=0.0)
    if isinstance(want, float) and isinstance(have, float):
        want, have = (torch.tensor(want), False), (torch.tensor(have), False)
    if not isinstance(want, tuple) or not isinstance(have, tuple):
        return 0.0 if want == have else float("inf")
    (a, a_grad), (b, b_grad) = want, have
    if a_grad != b_grad or a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if not a.numel() or b.is_meta:
        return 0.0
    if not a.is_floating_point() and not a.is_complex():
        return 0.0 if torch.equal(a, b) else float("inf")
    difference = (a - b).abs().double()
    return float(difference.nan_to_num(nan=float("inf")).max())


def explains(
    program: Program,
    expected: Expected,
    found: dict[str, Any],
    run: Callable[[Program, int], dict[str, Any] | None] = _noisy_run,
) -> bool:
    """Whether noise moves the plain run as far as the ranks are from it. Call it inside a world of one
    rank."""
    if expected.values.keys() != found.keys():
        return False
    values, rounded = expected.values, expected.rounded.holds
    wrong = [
        key for key in values if compare.first_difference({key: values[key]}, {key: found[key]}, rounded)
    ]
    distances = {key: _distance(values[key], found[key]) for key in wrong}
    if not wrong or float("inf") in distances.values():
        return False
    noisy = [n for n in (run(program, program.seed + 1000 * i) for i in range(RUNS)) if n is not None]
    for key, distance in distances.items():
        moved = [_distance(values[key], n[key]) for n in noisy if key in n]
        finite = [m for m in moved if m != float("inf")]
        if distance > FACTOR * max(finite, default=0.0):
            return False
    return True
