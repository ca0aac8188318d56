"""A process that runs programs: all ranks as threads, or one rank of a job.

Reads a line {"reset": bool, "programs": [...]} from stdin, answers with a line of the verdicts on the
last program, one for each rank it is. Programs of one line, and of lines without a reset, share the
process and its caches, which is how a user's program runs.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
import warnings
from typing import Any

import torch

import artefacts
import compare
import conditioning
import execute
import judge
import plant
import tessera
from judge import Verdict
from program import Program

THREADS_TIMEOUT_S = 60
# A rank outside of the mesh ends where a statement reads a value, or has as many results as a mask has
# ones. Nothing waits for it.
NO_VALUE = re.compile(r"a rank outside it, which holds no value|aten::index\.Tensor on mesh .* outside it: the shape")


def judge_rank(program: Program, expected: execute.Expected) -> tuple[Verdict, dict[str, Any]]:
    """Runs the program as a rank: the verdict, and what it found."""
    try:
        found = execute.run_rank(program)
    except execute.Refused as refused:
        if NO_VALUE.search(str(refused.error)):
            return Verdict("outside"), {}
        return judge.of_error(refused.error, refused.index), {}
    except Exception as error:  # noqa: BLE001 - also inputs and reading back may fail
        return Verdict("unclear", f"{type(error).__name__}: {error}"), {}
    if difference := compare.first_difference(expected.values, found, expected.rounded.holds):
        return Verdict("wrong", difference), found
    return Verdict("right"), found


def judge_again(program: Program, expected: execute.Expected, wrong: Verdict, found: dict[str, Any]) -> Verdict:
    """Whether what a rank found is right all the same. Call it inside a world of one rank."""
    if wrong.kind == "unclear":
        artefact = artefacts.artefact_of_error(program, wrong.text, wrong.statement)
        return Verdict("artefact", artefact[1], artefact[0]) if artefact else wrong
    if artefacts.is_another_plain_result(program, found):
        return Verdict("right")
    if artefact := artefacts.first_artefact(program):
        statement, text = artefact
        return Verdict("artefact", text, statement)
    return Verdict("undecided", wrong.text) if conditioning.explains(program, expected, found) else wrong


def judge_here(program: Program) -> list[Verdict]:
    """One verdict for each rank that this process is."""
    try:
        expected = tessera.run_ranks(1, lambda rank: execute.run_plain(program))[0]
    except execute.NotAProgram as error:
        return [Verdict("nothing", str(error))]
    if "RANK" in os.environ:
        judged = [judge_rank(program, expected)]
    else:
        judged = tessera.run_ranks(
            program.ranks(), lambda rank: judge_rank(program, expected), timeout=THREADS_TIMEOUT_S
        )

    def again(verdict: Verdict, found: dict[str, Any]) -> Verdict:
        return tessera.run_ranks(1, lambda rank: judge_again(program, expected, verdict, found))[0]

    return [again(*one) if one[0].kind in ("wrong", "unclear") else one[0] for one in judged]


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    plant.install()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a program prints is no answer
    print("[]", file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        if task["reset"]:
            tessera.clear_caches()
        for fields in task["programs"]:
            verdicts = judge_here(Program.from_json(fields))
        print(json.dumps([dataclasses.asdict(v) for v in verdicts]), file=answers, flush=True)


if __name__ == "__main__":
    main()
