"""Runs the programs that a failure printed: on thread ranks, or as one rank of a job."""

from __future__ import annotations

import sys

import worker
from program import Program


def replay(programs: list[Program]) -> None:
    """Says what each rank found; exits with 1 if the last program fails."""
    for program in programs:
        verdicts = worker.judge_here(program)
    for verdict in verdicts:
        print(verdict.kind, verdict.text)
    sys.exit(any(v.kind != "right" for v in verdicts))
