"""A minute of the fuzzer (tests/python/fuzz), and whether it finds what is put in on purpose."""

import os
import pathlib
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).with_name("fuzz")))

import hunt  # noqa: E402
import program  # noqa: E402
import worlds  # noqa: E402

SECONDS = float(os.environ.get("TESSERA_FUZZ_SECONDS") or 25)
PROGRAMS = int(os.environ.get("TESSERA_FUZZ_PROGRAMS") or 150)
SEED = int(os.environ.get("TESSERA_FUZZ_SEED") or 0)


@pytest.mark.parametrize("processes", [0, 2])
def test_random_programs_give_on_shards_what_they_give_plain(processes):
    print(f"seed {SEED} (TESSERA_FUZZ_SEED={SEED} repeats it; `make fuzz` takes hours)")
    until = time.monotonic() + SECONDS
    with worlds.World(processes) as world:
        chase = hunt.Hunt(world)
        for seed in range(SEED, SEED + PROGRAMS):
            failure = chase.try_seed(seed)
            assert failure is None, failure.report(f"seed{seed}.py")
            if time.monotonic() > until:
                break
    print(chase.totals)


@pytest.mark.parametrize(
    "plant, processes, op",
    [("number", 0, "masked_fill"), ("gradient", 0, "mul_"), ("copy", 2, "tanh")],
)
def test_a_planted_defect_is_found_and_made_short(plant, processes, op):
    with worlds.World(processes, plant) as world:
        chase = hunt.Hunt(world, shrink_s=20)
        failures = filter(None, map(chase.try_seed, range(SEED, SEED + 2000)))
        failure = next(f for f in failures if op in f.report(""))
    assert failure.verdict.kind == "wrong"
    assert len(failure.programs) == 1
    assert len(failure.programs[0].statements) <= 6, failure.report("")


def test_a_failure_is_written_as_a_program_that_runs(tmp_path):
    found = program.Program(
        seed=1,
        mesh="dp=2",
        inputs=[program.Input("x0", (3, 4), "S0", grad=True)],
        statements=["x1 = x0 * 2", "x1.sum().backward()"],
    )
    names = {}
    text = program.runnable([found], "why", "it.py").replace("replay([", "found = ([")
    exec(text, names)
    assert names["found"] == [found]
