"""What a random statement is made from: the variables so far, and the makers of statements.

A maker is a function of a Draw that returns the text of a statement or expression, or None where the
variables so far allow none. It may propose what torch refuses: the plain run of the generator
decides what becomes part of a program.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import torch

from program import NAME

INTEGERS = (torch.int64, torch.int32, torch.int8, torch.uint8)
NUMBERS = ("0.0", "0.5", "1.0", "2.0", "-1.0", "-5.0", "3.0", "0.25", "-0.5")


@dataclasses.dataclass(frozen=True)
class Maker:
    make: Callable[[Draw], str | None]
    weight: float
    value: bool  # an expression, whose result gets a name
    draws: bool = False


MAKERS: list[Maker] = []


def value(weight: float = 1.0, draws: bool = False) -> Callable[[Any], Any]:
    """Registers a maker of expressions."""

    def add(make: Any) -> Any:
        MAKERS.append(Maker(make, weight, True, draws))
        return make

    return add


def effect(weight: float = 1.0, draws: bool = False) -> Callable[[Any], Any]:
    """Registers a maker of statements that write, hook or run backward."""

    def add(make: Any) -> Any:
        MAKERS.append(Maker(make, weight, False, draws))
        return make

    return add


class Draw:
    """Random choices among the variables of a program under construction."""

    def __init__(self, rng: random.Random, env: dict[str, Any], axes: list[int]):
        self.rng = rng
        self.env = env
        self.axes = axes  # of the mesh
        self.guards: list[str] = []

    # Numbers

    def number(self) -> str:
        return self.rng.choice(NUMBERS)

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def pick(self, *options: Any) -> Any:
        return self.rng.choice(options)

    def below(self, n: int) -> int:
        return self.rng.randrange(n)

    # Variables

    def names(self, fits: Callable[[torch.Tensor], bool]) -> list[str]:
        return [
            n
            for n, v in self.env.items()
            if NAME.fullmatch(n) and isinstance(v, torch.Tensor) and fits(v)
        ]

    def some(self, fits: Callable[[torch.Tensor], bool]) -> str | None:
        """A variable; late ones more often than early ones."""
        found = self.names(fits)
        if not found:
            return None
        start = self.below(len(found)) if self.chance(0.6) else 0
        return self.rng.choice(found[start:])

    def leaves(self) -> list[str]:
        """Those that require grad."""

        def fits(v: torch.Tensor) -> bool:
            try:
                return v.requires_grad and v.is_leaf
            except RuntimeError:  # one of several views of a base that was written to
                return False

        return self.names(fits)

    def floats(self, least: int = 0, most: int = 9) -> str | None:
        """A floating-point tensor of so many dims."""
        return self.some(lambda v: v.is_floating_point() and least <= v.dim() <= most)

    def ints(self, least: int = 0) -> str | None:
        """An integer tensor of so many dims at least, of any width."""
        return self.some(lambda v: v.dtype in INTEGERS and v.dim() >= least)

    def like(self, name: str) -> str | None:
        """Another floating-point tensor that broadcasts to this one's shape."""
        shape = self.env[name].shape

        def fits(v: torch.Tensor) -> bool:
            if not v.is_floating_point() or v.dim() > len(shape) or v.dtype != self.env[name].dtype:
                return False
            tail = shape[len(shape) - v.dim() :]
            return all(a == b or a == 1 for a, b in zip(v.shape, tail, strict=True))

        return self.some(fits)

    def mask(self, name: str) -> str | None:
        """A condition that broadcasts to this tensor's shape."""
        shape = self.env[name].shape

        def fits(v: torch.Tensor) -> bool:
            if v.dtype != torch.bool or v.dim() > len(shape):
                return False
            tail = shape[len(shape) - v.dim() :]
            return all(a == b or a == 1 for a, b in zip(v.shape, tail, strict=True))

        return self.some(fits)

    # About a variable

    def shape(self, name: str) -> list[int]:
        return list(self.env[name].shape)

    def dim(self, name: str) -> int:
        """A dim of it, sometimes counted from the end."""
        n = self.env[name].dim()
        dim = self.below(n)
        return dim - n if self.chance(0.3) else dim

    def stretch(self, name: str, dim: int) -> tuple[int, int] | None:
        """start and length of a part of a dim."""
        size = self.shape(name)[dim]
        if size < 1:
            return None
        start = self.below(size)
        return start, 1 + self.below(size - start)

    def index(self, name: str, dim: int) -> str | None:
        """Indices into a dim, as an expression of one dim or, rarely, none."""
        size = self.shape(name)[dim]
        if size < 1:
            return None
        found = self.some(lambda v: v.dtype == torch.int64 and v.dim() == 1)
        return f"({found} % {size})" if found else None

    def placements(self) -> str:
        """Placements of any tensor on the mesh, for a tensor of at least one dim."""
        return ",".join(self.pick("R", "S0", "S0", "S-1") for _ in self.axes)

    # What rounding must not decide

    def require(self, guard: str) -> None:
        self.guards.append(guard)
