"""Random programs that run on whole tensors.

Each statement is tried in the plain run before it becomes part of the program, so that what a rank
then refuses is the library's doing.
"""

from __future__ import annotations

import math
import os
import random
import re

import tessera
import torch

# Each registers its makers.
import accumulating  # noqa: F401
import algebra  # noqa: F401
import complex_numbers  # noqa: F401
import indexing  # noqa: F401
import integers  # noqa: F401
import modules  # noqa: F401
import pointwise  # noqa: F401
import products  # noqa: F401
import reductions  # noqa: F401
import special  # noqa: F401
import training  # noqa: F401
import views  # noqa: F401
import windows  # noqa: F401
import writes  # noqa: F401
from execute import NotAProgram, PlainRun
from grammar import MAKERS, NUMBERS, Draw, Maker
from inputs import reductions_of
from program import Input, Program, Statement

SHORTEST, LONGEST = 5, 40
AXIS_NAMES = ("dp", "tp", "cp")
AUTOCAST = "torch.autocast('cpu', torch.bfloat16)"
REGIONS = (
    "torch.no_grad()",
    "torch.no_grad()",
    "torch.inference_mode()",
    "torch.enable_grad()",
    AUTOCAST,
    f"{AUTOCAST}, torch.autocast('cpu', enabled=False)",
)
# The share of programs with ranks outside of their mesh.
OUTSIDE = float(os.environ.get("TESSERA_FUZZ_OUTSIDE") or 0.05)
# What those cannot do: read a value, or shard a module over a mesh that they are not in.
_NEEDS_VALUES = re.compile(r"float\(x|\.item\(|sharded\(|masked_select|nonzero|unique|bincount")
# A conjugate is computed at once, so resolve_conj() is the tensor itself, not a new one of the mode.
# Parameters that inference mode makes are not for training.
_KEEPS_MODE = re.compile(r"resolve_conj|sharded\(")
_WRITES = re.compile(r"_norm\(|grad\(|checkpoint|Halves|net\d")
_NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?![\w.])")


def random_mesh(rng: random.Random, ranks: int | None) -> str:
    """One to three axes, one to eight ranks, or as many as there are."""
    ranks = ranks or rng.choice((1, 2, 2, 3, 4, 4, 4, 5, 6, 8))
    sizes: list[int] = []
    left = ranks
    for _ in range(rng.choice((0, 1, 1, 2))):
        size = rng.choice([f for f in range(1, left + 1) if left % f == 0])
        sizes.append(size)
        left //= size
    sizes.append(left)
    rng.shuffle(sizes)
    return ",".join(f"{name}={size}" for name, size in zip(AXIS_NAMES, sizes, strict=False))


def _ragged_sizes(rng: random.Random, size: int, ranks: int) -> list[int]:
    """Uneven parts of a dim, some of them empty."""
    marks = sorted(rng.randint(0, size) for _ in range(ranks - 1))
    return [b - a for a, b in zip([0, *marks], [*marks, size], strict=True)]


def random_placements(
    rng: random.Random, shape: tuple[int, ...], axes: list[int], dtype: torch.dtype
) -> str:
    places = []
    reductions = reductions_of(dtype)
    reduction = rng.choice(("sum", *reductions)) if reductions else ""  # one for all axes
    for _ in axes:
        draw = rng.random()
        if draw < 0.3 or (not shape and draw < 0.75):
            places.append("R")
        elif draw < 0.75 or not reductions:
            places.append(f"S{rng.randrange(len(shape))}" if shape else "R")
        else:
            places.append(f"P({reduction})")
    shards = [p for p in places if p[0] == "S"]
    nested = len(shards) > len(set(shards))
    if nested and not any(p[0] == "P" for p in places) and rng.random() < 0.5:
        turns = list(range(len(places)))
        rng.shuffle(turns)
        return ",".join(f"{p}#{t}" if p[0] == "S" else p for p, t in zip(places, turns, strict=True))
    for axis, place in enumerate(places):
        if place[0] == "S" and shards.count(place) == 1 and rng.random() < 0.15:
            dim = int(place[1:])
            ragged = f"{place}[{','.join(map(str, _ragged_sizes(rng, shape[dim], axes[axis])))}]"
            places[axis] = ragged if rng.random() < 0.5 else f"SS{dim}(2)"
    return ",".join(places)


def random_inputs(rng: random.Random, axes: list[int]) -> list[Input]:
    """Shapes are made from few sizes, so that many of them fit together."""
    sizes = [rng.choice((1, 2, 3, 4, 5, 6, 7, 8)) for _ in range(3)]
    if rng.random() < 0.06:
        sizes[0] = 0
    inputs: list[Input] = []

    def add(shape: tuple[int, ...], dtype: str = "float64", grad: bool = False) -> None:
        placements = random_placements(rng, shape, axes, getattr(torch, dtype))
        transposed = len(shape) > 1 and rng.random() < 0.2
        inputs.append(Input(f"x{len(inputs)}", shape, placements, dtype, grad, transposed))

    def shape_of(dims: int) -> tuple[int, ...]:
        return tuple(rng.choice(sizes) for _ in range(dims))

    for dims in (2, rng.choice((1, 2, 3)), rng.choice((0, 1, 2, 3, 3, 4))):
        add(shape_of(dims), grad=rng.random() < 0.75)
    if rng.random() < 0.5:
        channels = inputs[rng.randrange(3)].shape[1:2]
        for _ in range(2):
            add(channels or (sizes[0],))
    if rng.random() < 0.7:
        shape = inputs[rng.randrange(3)].shape
        add(shape[rng.randrange(len(shape) + 1) :] if shape else shape, "bool")
    if rng.random() < 0.7:
        add((rng.choice((1, 2, 3, 5)),), "int64")
    if rng.random() < 0.3:
        add(inputs[rng.randrange(3)].shape, "int64")
    if rng.random() < 0.3:
        add(inputs[rng.randrange(3)].shape, rng.choice(("uint8", "int8", "int32")))
    if rng.random() < 0.1:
        add(shape_of(2), "float32", grad=True)
    if rng.random() < 0.1:
        add(inputs[rng.randrange(3)].shape, "complex128", grad=rng.random() < 0.5)
    return inputs


class Generator:
    """Adds statements to a program, with the plain run at hand."""

    def __init__(self, program: Program, rng: random.Random):
        self.program = program
        self.rng = rng
        self.axes = [int(axis.split("=")[1]) for axis in program.mesh.split(",")]
        self.run = PlainRun(program)
        self.next = len(program.inputs)
        self.makers = [m.weight for m in MAKERS]

    def _name(self, text: str) -> str:
        self.next += 1
        kinds = {"torch.optim.": "opt", "sharded(": "net"}
        kind = next((k for start, k in kinds.items() if text.startswith(start)), "x")
        return f"{kind}{self.next - 1}"

    def _again(self) -> Statement | None:
        """An earlier statement with other numbers: what was decided for those must not be reused."""
        found = [s for s in self.program.statements if _NUMBER.search(s.text) and not s.guard]
        if not found:
            return None
        earlier = self.rng.choice(found[-5:])
        text = _NUMBER.sub(lambda _: self.rng.choice(NUMBERS), earlier.text)
        if target := earlier.target():
            text = re.sub(rf"\b{target}\b", self._name(text), text, count=1)
        return Statement(text, earlier.draws)

    def propose(self) -> Statement | None:
        if self.rng.random() < 0.2:
            return self._again()
        maker: Maker = self.rng.choices(MAKERS, self.makers)[0]
        draw = Draw(self.rng, self.run.env, self.axes)
        text = maker.make(draw)
        if not text:
            return None
        if maker.value:
            text = f"{self._name(text)} = {text}"
        if not maker.draws and not text.startswith("with") and not _KEEPS_MODE.search(text):
            if self.rng.random() < 0.1:
                text = f"with {self.rng.choice(REGIONS)}: {text}"
            elif ".float()" in text and self.rng.random() < 0.3:
                text = f"with {AUTOCAST}: {text}"
        return Statement(text, maker.draws, " and ".join(draw.guards))

    def take(self, statement: Statement) -> bool:
        """Adds it if the plain run takes it."""
        if self.program.outside and _NEEDS_VALUES.search(statement.text):
            return False
        try:
            self.run.step(statement)
        except NotAProgram:
            self._undo(statement)
            return False
        self.program.statements.append(statement)
        return True

    def _undo(self, statement: Statement) -> None:
        """What only computes leaves nothing but its result; all else may have written something."""
        target = statement.target()
        if target and not statement.draws and not _WRITES.search(statement.text):
            self.run.env.pop(target, None)
            return
        self._repeat(len(self.program.statements))

    def _repeat(self, count: int) -> None:
        """The first statements again. One that works no more had read what a refused one left, and ends
        the program."""
        del self.program.statements[count:]
        self.run = PlainRun(self.program)
        for index, earlier in enumerate(self.program.statements):
            try:
                self.run.step(earlier)
            except NotAProgram:
                self._repeat(index)
                return

    def finish(self) -> None:
        """Ends with gradients of what was computed, and a step."""
        draw = Draw(self.rng, self.run.env, self.axes)
        for _ in range(3):
            text = training.backward(draw)
            if text and self.take(Statement(text)):
                break
        if text := training.step(draw):
            self.take(Statement(text, guard=" and ".join(draw.guards)))


def _generate(seed: int, ranks: int | None, without: str) -> Program:
    rng = random.Random(seed)
    outside = rng.choice((1, 1, 2)) if rng.random() < OUTSIDE and ranks != 1 else 0
    outside = min(outside, ranks - 1) if ranks else outside
    mesh = random_mesh(rng, ranks - outside if ranks else None)
    axes = [int(axis.split("=")[1]) for axis in mesh.split(",")]
    program = Program(seed, mesh, random_inputs(rng, axes), [], outside)
    generator = Generator(program, rng)
    length = int(SHORTEST * math.exp(rng.random() * math.log(LONGEST / SHORTEST)))
    for _ in range(4 * length):
        if len(program.statements) >= length:
            break
        statement = generator.propose()
        if statement and not (without and re.search(without, statement.text)):
            generator.take(statement)
    generator.finish()
    return program


def generate(seed: int, ranks: int | None = None, without: str = "") -> Program:
    """The program of a seed, for a mesh of so many ranks (1 to 8, drawn, unless given); without
    statements that a regular expression matches."""
    return tessera.run_ranks(1, lambda rank: _generate(seed, ranks, without))[0]
