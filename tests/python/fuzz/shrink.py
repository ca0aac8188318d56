"""From a program that fails to a short one that still does."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator

from inputs import split_placements
from program import Program

Fails = Callable[[list[Program]], bool]


def _fewer_statements(program: Program) -> Iterator[Program]:
    """Large pieces first, from the end: later statements need earlier ones."""
    count = len(program.statements)
    size = max(1, count // 2)
    while size:
        for end in range(count, 0, -size):
            start = max(0, end - size)
            yield program.keeping([not start <= i < end for i in range(count)])
        size //= 2


def _simpler_inputs(program: Program) -> Iterator[Program]:
    """Replicated, contiguous, without gradient."""
    for at, item in enumerate(program.inputs):
        whole = ",".join("R" for _ in split_placements(item.placements)[0])
        for change in ({"placements": whole}, {"transposed": False}, {"grad": False}):
            simple = dataclasses.replace(item, **change)
            if simple != item:
                inputs = [*program.inputs[:at], simple, *program.inputs[at + 1 :]]
                yield dataclasses.replace(program, inputs=inputs)


def _fewer_axes(program: Program, ranks_fixed: bool) -> Iterator[Program]:
    """Without an axis; with processes only one that has a single rank."""
    axes = program.mesh.split(",")
    for at, axis in enumerate(axes):
        if len(axes) < 2 or (ranks_fixed and not axis.endswith("=1")):
            continue
        inputs = []
        for item in program.inputs:
            places, order = split_placements(item.placements)
            if order:
                break
            left = ",".join(p for i, p in enumerate(places) if i != at)
            inputs.append(dataclasses.replace(item, placements=left))
        if len(inputs) == len(program.inputs):
            mesh = ",".join(a for i, a in enumerate(axes) if i != at)
            yield dataclasses.replace(program, mesh=mesh, inputs=inputs)


def _plainer_statements(program: Program) -> Iterator[Program]:
    """Out of their regions."""
    for at, statement in enumerate(program.statements):
        if statement.text.startswith("with ") and ": " in statement.text:
            bare = dataclasses.replace(statement, text=statement.text.split(": ", 1)[1])
            statements = [*program.statements[:at], bare, *program.statements[at + 1 :]]
            yield dataclasses.replace(program, statements=statements)


def shrink(programs: list[Program], fails: Fails, ranks_fixed: bool, limit_s: float) -> list[Program]:
    """The shortest found in the time. The last program is the one that fails; those before it only
    ran in the same process, and are left out where that does not matter."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        for smaller in _smaller(programs, ranks_fixed):
            if time.monotonic() > until:
                break
            if fails(smaller):
                programs = smaller
                break
        else:
            break
    return programs


def _smaller(programs: list[Program], ranks_fixed: bool) -> Iterator[list[Program]]:
    before = programs[:-1]
    size = len(before)
    while size:
        for start in range(0, len(before), size):
            yield [*before[:start], *before[start + size :], programs[-1]]
        size //= 2
    for at in range(len(programs) - 1, -1, -1):
        program = programs[at]
        ways = (
            _fewer_statements(program),
            _fewer_axes(program, ranks_fixed),
            _simpler_inputs(program),
            _plainer_statements(program),
        )
        for way in ways:
            for smaller in way:
                if smaller != program:
                    yield [*programs[:at], smaller, *programs[at + 1 :]]
