"""Runs random programs in a world and collects what came out."""

from __future__ import annotations

import collections
import dataclasses
import re

from generate import generate
from judge import Verdict
from program import Program, runnable
from shrink import shrink
from worlds import World

MOST_REFUSED = 10  # statements of one program that are left out when ranks refuse them
PROGRAMS_PER_CACHE = 100  # then the world starts with empty caches
SHRINK_S = 90.0
_OP = re.compile(r"\.?\b([a-zA-Z_]\w*)\(")


@dataclasses.dataclass
class Failure:
    """Programs that fail, the last of them after the others ran in the same world."""

    seed: int
    world: str
    verdict: Verdict
    programs: list[Program]

    def signature(self) -> str:
        """The same for failures of one cause, as far as can be seen."""
        text = re.sub(r"[^a-zA-Z]+", " ", self.verdict.text)[:40] if self.verdict.kind != "wrong" else ""
        last = self.programs[-1].statements
        ops = sorted({op for s in last for op in _OP.findall(s.text)} - {"sum", "backward", "double"})
        return f"{self.verdict.kind} {text} {' '.join(ops)}"

    def report(self, name: str) -> str:
        why = f"{self.verdict.kind}: {self.verdict.text[:1500]}\n\nSeed {self.seed}, {self.world}."
        return runnable(self.programs, why, name)


@dataclasses.dataclass
class Totals:
    programs: int = 0
    statements: int = 0
    kinds: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    refusals: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        refused = "".join(f"\n  refused {n:5d} x {text}" for text, n in self.refusals.most_common(25))
        return f"{self.programs} programs, {self.statements} statements: {kinds or 'none'}{refused}"

    def add(self, other: Totals) -> None:
        self.programs += other.programs
        self.statements += other.statements
        self.kinds += other.kinds
        self.refusals += other.refusals


def kind_of(verdict: Verdict) -> str:
    """What must stay the same while a failure is made shorter."""
    if verdict.kind == "wrong":
        return "wrong"
    return verdict.kind + re.sub(r"[^a-zA-Z]+", " ", verdict.text)[:30]


class Hunt:
    def __init__(self, world: World, shrink_s: float = SHRINK_S, without: str = ""):
        self.world = world
        self.without = without
        self.shrink_s = shrink_s
        self.totals = Totals()
        self.name = f"{world.processes} processes" if world.processes else "thread ranks"

    def try_seed(self, seed: int) -> Failure | None:
        """Generates and runs the program of a seed. Statements that ranks refuse, or whose plain result
        is no measure (artefacts.py), are counted, left out, and the rest is run again."""
        program = generate(seed, self.world.processes or None, self.without)
        self.totals.programs += 1
        for _ in range(MOST_REFUSED):
            verdict = self.world.run([program], reset=len(self.world.ran) >= PROGRAMS_PER_CACHE)
            if verdict.kind not in ("refused", "artefact"):
                break
            text = program.statements[verdict.statement].text
            op = (_OP.findall(text) or [text])[-1]
            said = re.sub(r"\d+", "N", verdict.text)[:110]
            self.totals.refusals[f"{op}: {said}"] += 1
            program = program.without(verdict.statement)
        self.totals.kinds[verdict.kind] += 1
        self.totals.statements += len(program.statements)
        return self._failure(seed, program, verdict) if verdict.is_failure() else None

    def _failure(self, seed: int, program: Program, verdict: Verdict) -> Failure:
        before = self.world.ran[:-1]
        kind = kind_of(verdict)
        last = verdict

        def fails(programs: list[Program]) -> bool:
            nonlocal last
            found = self.world.run(programs, reset=True)
            if kind_of(found) == kind:
                last = found
                return True
            return False

        history = self._needed(program, before, fails)
        if history is None:
            text = f"not seen again: {verdict.text}"
            return Failure(seed, self.name, dataclasses.replace(verdict, text=text), [program])
        short = shrink(history, fails, bool(self.world.processes), self.shrink_s)
        return Failure(seed, self.name, last, short)

    def _needed(self, program: Program, before: list[Program], fails: object) -> list[Program] | None:
        """The program alone, or with the programs that ran before it, fewest first."""
        count = 0
        while True:
            candidate = [*before[len(before) - count :], program]
            if fails(candidate):  # type: ignore[operator]
                return candidate
            if count >= len(before):
                return None
            count = min(len(before), max(1, count * 4))
