"""Random programs as data: what goes in, then one statement a line.

A program is text, so the plain run and the ranks run the same thing, a shorter program is the same
program with lines left out, and a failure prints as something to run:

    Program(
        seed=3,
        mesh="dp=2",
        inputs=[Input("x0", (3, 4), "S0", grad=True)],
        statements=["x1 = x0 * 1", "x1.select(1, 1).mul_(3)", "x1.sum().backward()"],
    )

Variables are x0, x1, ..., optimizers opt0, ... and modules net0, ...; hooks append to `seen`.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Sequence

NAME = re.compile(r"\b(?:x|opt|net)\d+\b")
_TARGET = re.compile(r"^(?:with [^:]*: )?((?:x|opt|net)\d+) = ")


@dataclasses.dataclass(frozen=True)
class Input:
    """A tensor that the program starts with, and how it is placed: "S0,R", "P(max)", "S0#1,S0#0"."""

    name: str
    shape: tuple[int, ...]
    placements: str
    dtype: str = "float64"
    grad: bool = False
    transposed: bool = False  # its memory is that of the reversed dims


@dataclasses.dataclass(frozen=True)
class Statement:
    text: str
    draws: bool = False  # random numbers
    guard: str = ""  # what must hold before it in the plain run, or rounding decides the result

    def names(self) -> set[str]:
        return set(NAME.findall(self.text))

    def target(self) -> str | None:
        match = _TARGET.match(self.text)
        return match.group(1) if match else None

    def __repr__(self) -> str:
        if not self.draws and not self.guard:
            return repr(self.text)
        rest = ", draws=True" if self.draws else ""
        rest += f", guard={self.guard!r}" if self.guard else ""
        return f"Statement({self.text!r}{rest})"


@dataclasses.dataclass
class Program:
    seed: int
    mesh: str
    inputs: list[Input]
    statements: list[Statement]
    outside: int = 0  # ranks of the world that are not in the mesh

    def __post_init__(self) -> None:
        self.statements = [Statement(s) if isinstance(s, str) else s for s in self.statements]

    def ranks(self) -> int:
        """Of the world: first those of the mesh."""
        return self.mesh_ranks() + self.outside

    def mesh_ranks(self) -> int:
        product = 1
        for axis in self.mesh.split(","):
            product *= int(axis.split("=")[1])
        return product

    def keeping(self, wanted: Sequence[bool]) -> Program:
        """Without the statements that are not wanted and those that need what they defined; without
        inputs that are used no more."""
        have = {i.name for i in self.inputs}
        kept = []
        for statement, wants in zip(self.statements, wanted, strict=True):
            target = statement.target()
            if wants and statement.names() - {target} <= have:
                kept.append(statement)
                have |= {target} if target else set()
        used = set().union(*(s.names() for s in kept)) if kept else set()
        inputs = [i for i in self.inputs if i.name in used] or self.inputs[:1]
        return dataclasses.replace(self, inputs=inputs, statements=kept)

    def without(self, index: int) -> Program:
        return self.keeping([i != index for i in range(len(self.statements))])

    def to_json(self) -> dict:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(fields: dict) -> Program:
        inputs = [Input(**{**i, "shape": tuple(i["shape"])}) for i in fields["inputs"]]
        statements = [Statement(**s) for s in fields["statements"]]
        return Program(fields["seed"], fields["mesh"], inputs, statements, fields["outside"])

    def source(self) -> str:
        def lines(items: Iterable[object]) -> str:
            return "".join(f"        {item!r},\n" for item in items)

        return (
            f"Program(\n    seed={self.seed},\n    mesh={self.mesh!r},\n"
            f"    inputs=[\n{lines(self.inputs)}    ],\n"
            f"    statements=[\n{lines(self.statements)}    ],\n"
            + (f"    outside={self.outside},\n)" if self.outside else ")")
        )


_RUNNABLE = '''\
"""{why}

    PYTHONPATH=build/python:tests/python/fuzz python {name}
    PYTHONPATH=build/python:tests/python/fuzz python -m tessera launch -n {ranks} python {name}
"""
from program import Input, Program, Statement
from replay import replay

replay([
{programs},
])
'''


def runnable(programs: list[Program], why: str, name: str) -> str:
    """A Python program that repeats a failure: one program, or several whose last one fails after
    the others ran in the same process. It runs on thread ranks, or as one rank of a job."""
    text = ",\n".join(p.source() for p in programs)
    why = why.replace("\\", "/").replace('"""', "'''")
    return _RUNNABLE.format(why=why, name=name, ranks=programs[-1].ranks(), programs=text)


def to_line(programs: list[Program]) -> str:
    return json.dumps([p.to_json() for p in programs])
