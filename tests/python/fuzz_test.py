"""A minute of the fuzzer (tests/python/fuzz), and whether it finds what is put in on purpose."""

import os
import pathlib
import sys
import time

import pytest
import torch

import tessera

sys.path.insert(0, str(pathlib.Path(__file__).with_name("fuzz")))

import compare  # noqa: E402
import execute  # noqa: E402
import hunt  # noqa: E402
import program  # noqa: E402
import worlds  # noqa: E402
import writes  # noqa: E402

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


def _plain(statements, *inputs):
    made = program.Program(1, "dp=2", list(inputs), statements)
    return tessera.run_ranks(1, lambda rank: execute.run_plain(made))[0]


def test_only_what_float32_rounded_is_compared_as_float32():
    expected = _plain(
        ["x1 = x0 * 2", "x2 = x0.float().double()", "x3 = x2.view(-1)", "x4 = x1 + 1", "x5 = x3 * 3"],
        program.Input("x0", (3, 4), "P(sum)"),
    )
    assert expected.rounded.names == {"x2", "x3", "x5"}
    for name in ("x0", "x1", "x2", "x3", "x4", "x5"):
        value, grad = expected.values[name]
        found = {**expected.values, name: (value + 1e-5, grad)}
        said = compare.first_difference(expected.values, found, expected.rounded.holds)
        assert bool(said) == (name in ("x0", "x1", "x4")), name
        found[name] = (value + 0.1, grad)
        assert compare.first_difference(expected.values, found, expected.rounded.holds)


def test_gradients_of_what_float32_rounded_are_rounded_and_others_are_not():
    leaf = program.Input("x0", (3, 4), "S0", grad=True)
    assert not _plain(["x1 = x0.float()", "x0.sin().sum().backward()"], leaf).rounded.gradients
    rounded = _plain(["x1 = x0.float()", "x1.sin().sum().backward()"], leaf).rounded
    assert rounded.holds("x0.grad")
    assert not rounded.holds("x0")


@pytest.mark.parametrize(
    "statements",
    [
        ["x3 = (x0 * x1).sum()", "x4 = F.batch_norm(x0, x1, x2, training=True)", "x3.backward()"],
        ["with torch.inference_mode(): x3 = x0.detach().clone().requires_grad_()", "x4 = x3 * 2"],
    ],
)
def test_what_libtorch_itself_gets_wrong_is_no_program(statements):
    channels = [program.Input(name, (4,), "R") for name in ("x1", "x2")]
    with pytest.raises(execute.NotAProgram):
        _plain(statements, program.Input("x0", (3, 4), "S0", grad=True), *channels)


def test_elements_that_share_memory_are_known():
    assert writes._shares_elements(torch.zeros(4).unfold(0, 2, 1))
    assert writes._shares_elements(torch.zeros(3, 1).expand(3, 2))
    for apart in (torch.zeros(4).unfold(0, 2, 2), torch.zeros(3, 4).t()[::2], torch.zeros(0, 3), torch.zeros(())):
        assert not writes._shares_elements(apart)
