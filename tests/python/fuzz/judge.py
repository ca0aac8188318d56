"""What became of a program on one rank, and on all.

    right     every variable is what the plain run says
    artefact  wrong, but the plain run has a statement whose result is its own (artefacts.py)
    undecided rounding moves the plain run as far as the ranks are from it (conditioning.py): counted
    refused   a clear error, the same on all ranks: counted, no failure
    outside   a rank outside of the mesh, which ended where a statement reads a value
    wrong     a value, gradient, buffer or copy is not
    unclear   an error that is no refusal, or that not all ranks have
    hang      no answer in time
    crash     a process ended
"""

from __future__ import annotations

import dataclasses
import pathlib
import re

REFUSALS = pathlib.Path(__file__).with_name("refusals.txt")


@dataclasses.dataclass(frozen=True)
class Verdict:
    kind: str
    text: str = ""
    statement: int = -1  # which one raised

    def is_failure(self) -> bool:
        return self.kind not in ("right", "refused", "outside", "artefact", "undecided", "nothing")


def refusals() -> list[re.Pattern[str]]:
    lines = REFUSALS.read_text(encoding="utf-8").splitlines()
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


_PATTERNS = refusals()


def is_refusal(text: str) -> bool:
    return any(pattern.search(text) for pattern in _PATTERNS)


def of_error(error: BaseException, statement: int) -> Verdict:
    """A rank's exception."""
    text = f"{type(error).__name__}: {error}"
    return Verdict("refused" if is_refusal(text) else "unclear", text, statement)


def of_ranks(verdicts: list[Verdict]) -> Verdict:
    """All ranks together; they must agree. Those that ended early did not see the rest."""
    verdicts = [v for v in verdicts if v.kind != "outside"] or verdicts
    kinds = {v.kind for v in verdicts}
    if len(kinds) == 1 and len({v.statement for v in verdicts}) == 1:
        return verdicts[0]
    if kinds in ({"right", "artefact"}, {"right", "undecided"}):
        return next(v for v in verdicts if v.kind != "right")
    for kind in ("crash", "hang", "wrong"):
        for rank, verdict in enumerate(verdicts):
            if verdict.kind == kind:
                return dataclasses.replace(verdict, text=f"rank {rank}: {verdict.text}")
    said = {rank: f"{v.kind} {v.text[:300]}" for rank, v in enumerate(verdicts)}
    first = min((v.statement for v in verdicts if v.statement >= 0), default=-1)
    return Verdict("unclear", f"ranks do not agree: {said}", first)
