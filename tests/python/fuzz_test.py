"""A minute of the fuzzer (tests/python/fuzz), and whether it finds what is put in on purpose."""

import os
import pathlib
import sys
import time

import pytest
import torch

import tessera

sys.path.insert(0, str(pathlib.Path(__file__).with_name("fuzz")))

import artefacts  # noqa: E402
import compare  # noqa: E402
import conditioning  # noqa: E402
import execute  # noqa: E402
import hunt  # noqa: E402
import program  # noqa: E402
import worker  # noqa: E402
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
    [("number", 0, "masked_fill"), ("gradient", 0, "_("), ("copy", 2, "tanh")],
)
def test_a_planted_defect_is_found_and_made_short(plant, processes, op):
    with worlds.World(processes, plant) as world:
        chase = hunt.Hunt(world, shrink_s=60)
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
    assert artefacts.shares_elements(torch.zeros(4).unfold(0, 2, 1))
    assert artefacts.shares_elements(torch.zeros(3, 1).expand(3, 2))
    for apart in (torch.zeros(4).unfold(0, 2, 2), torch.zeros(3, 4).t()[::2], torch.zeros(0, 3), torch.zeros(())):
        assert not artefacts.shares_elements(apart)


def test_looking_at_gradients_moves_no_retain_grad_hook():
    """Where a base was written to, is_leaf and grad_fn of its views are not free of effects."""
    expected = _plain(
        ["x1 = x0 * x0", "x2 = x1.transpose(0, 1)", "x2.grad_fn, x2.retain_grad()", "x3 = x2 / 0.5"]
        + ["x1.select(0, 0).sub_(0.25)", "x3.sum().backward()"],
        program.Input("x0", (1, 1), "R", grad=True),
    )
    assert "x2.grad" in expected.values


def test_what_a_hook_saw_is_compared_in_its_own_order():
    """Not in that of hooks of other tensors."""
    hooks = [f"{x}.register_hook(lambda g: seen.append(g.detach().clone()))" for x in ("x0", "x1")]
    leaves = [program.Input(x, (2,), "R", grad=True) for x in ("x0", "x1")]
    sums = ["x0.sum().backward()", "(2 * x1).sum().backward()", "(3 * x0).sum().backward()"]
    expected = _plain([*hooks, *sums], *leaves).values
    assert not compare.first_difference(expected, _plain([*hooks, sums[1], sums[0], sums[2]], *leaves).values)
    assert compare.first_difference(expected, _plain([*hooks, *sums[::-1]], *leaves).values)


def test_statistics_that_libtorch_does_not_update_make_no_program():
    """Those of a complex tensor's imaginary part are in memory as they are, those of its conjugate not."""
    update = "F.batch_norm(x0, x1, x2, training=True, momentum=0.5)"
    statistics = ["x1 = x9.imag.select(0, 0)", "x2 = x9.real.select(0, 1)"]
    tensors = [program.Input("x0", (3, 3), "R"), program.Input("x9", (2, 3), "R", dtype="complex128")]
    assert "x1" in _plain([*statistics, update], *tensors).values
    with pytest.raises(execute.NotAProgram, match="loses what .* writes to x1"):
        _plain(["x1 = x9.conj().imag.select(0, 0)", statistics[1], update], *tensors)


ARTEFACTS = {
    "overlap": ["x1 = x0.unfold(0, 2, 1)", "x1.mul_(2.0)"],
    "overlap of a list": ["x1 = x0.unfold(0, 2, 1)", "torch._foreach_addcmul_([x1], [x1], [x1], -0.5)"],
    "gradient": ["x1 = torch.autograd.grad(x0.sum(), x0)[0]", "x1[:1] = 3.0"],
    "clone": ["x1 = x0.unfold(0, 2, 1)", "x2 = torch.select_scatter(x1, x1.select(1, 0) * 2, 1, 0)"],
    "angle": ["x1 = x0.float() * 1000", "x2 = x1.double().sin()"],
    "angle in place": ["x1 = x0.float() * 1000", "x1.cos_()"],
}
NO_ARTEFACTS = {
    "one number": ["x1 = x0.unfold(0, 2, 1)", "x1.fill_(2.0)", "x1[x1 > 3.0] = 1.0", "x1.zero_()"],
    "apart": ["x1 = x0.unfold(0, 2, 2)", "x1.mul_(2.0)", "x0.mul_(2.0)"],
    "a part of the overlap": ["x1 = x0.unfold(0, 2, 1)", "x1.select(1, 0).mul_(2.0)"],
    "a gradient of its own": ["x1 = torch.autograd.grad((x0 * x0).sum(), x0)[0]", "x1[:1] = 3.0"],
    "a gradient that is read": ["x1 = torch.autograd.grad(x0.sum(), x0)[0]", "x2 = x1 * 2", "x2.mul_(2.0)"],
    "scattered": ["x1 = x0.view(2, 2)", "x2 = torch.select_scatter(x1, x1.select(1, 0) * 2, 1, 0)"],
    "a small angle": ["x1 = x0.float()", "x2 = x1.sin()"],
    "an angle in full": ["x1 = x0 * 1000", "x2 = x1.sin()"],
}


def _artefact(statements):
    grad = any("autograd" in s for s in statements)
    made = program.Program(1, "dp=2", [program.Input("x0", (4,), "P(sum)", grad=grad)], statements)
    return tessera.run_ranks(1, lambda rank: artefacts.first_artefact(made))[0]


@pytest.mark.parametrize("what", ARTEFACTS)
def test_a_statement_whose_plain_result_is_its_own_is_known(what):
    found = _artefact(ARTEFACTS[what])
    assert found is not None and found[0] == 1, found


@pytest.mark.parametrize("what", NO_ARTEFACTS)
def test_a_statement_that_resembles_such_a_one_is_judged(what):
    assert _artefact(NO_ARTEFACTS[what]) is None


def test_a_defect_beside_an_artefact_is_found():
    with worlds.World(0, "number") as world:
        made = program.Program(
            seed=1,
            mesh="dp=2",
            inputs=[program.Input("x0", (4,), "S0"), program.Input("x1", (4,), "P(sum)")],
            statements=[*ARTEFACTS["overlap"], "x3 = x0.abs() > 0.0", "x4 = x0.masked_fill(x3, 2.0)"]
            + ["x5 = x0.masked_fill(x3, 3.0)"],
        )
        verdict = world.run([made])
        assert verdict.kind == "artefact" and verdict.statement == 1, verdict
        assert world.run([made.without(1)], reset=True).kind == "wrong"


# The gradient of the sum of a softmax is zero but for rounding, and RMSprop divides it by its size.
ROUNDING_DECIDES = [
    "opt1 = torch.optim.RMSprop([x0], 0.1)",
    "x1 = x2 * 2",
    "(x0.softmax(1) * 3000).sum().backward()",
    "opt1.step()",
]
BFLOAT16_DECIDES = [
    "with torch.autocast('cpu', torch.bfloat16): x1 = x0.float() @ x2.float().t()",
    "x3 = (x1.double() * 16).sin()",
]


def _explains(statements, change):
    """Whether noise explains what `change` does to the values of a plain run."""
    inputs = [program.Input("x0", (4, 6), "S0", grad="opt1" in statements[0]), program.Input("x2", (4, 6), "S0")]
    made = program.Program(1, "dp=2", inputs, statements)

    def judge(rank):
        expected = execute.run_plain(made)
        found = change(made, dict(expected.values))
        assert compare.first_difference(expected.values, found, expected.rounded.holds)
        return conditioning.explains(made, expected, found)

    return tessera.run_ranks(1, judge)[0]


def _moved(name, by):
    def change(made, values):
        value, grad = values[name]
        return {**values, name: (value + by, grad)}

    return change


@pytest.mark.parametrize("statements", [ROUNDING_DECIDES, BFLOAT16_DECIDES])
def test_what_rounding_decides_is_undecided(statements):
    assert _explains(statements, lambda made, values: conditioning._noisy_run(made, 77))


@pytest.mark.parametrize(
    "statements, change",
    [
        (ROUNDING_DECIDES, _moved("x0", 0.1)),
        (ROUNDING_DECIDES, _moved("x1", 1e-6)),
        (BFLOAT16_DECIDES, _moved("x3", 10.0)),
        (BFLOAT16_DECIDES, _moved("x1", 10.0)),
        (ROUNDING_DECIDES, lambda made, values: {**values, "x1": (values["x1"][0], True)}),
        (ROUNDING_DECIDES, lambda made, values: {**values, "x1": (values["x1"][0][:2], False)}),
        (ROUNDING_DECIDES, lambda made, values: {k: v for k, v in values.items() if k != "x1"}),
        (["x1 = x0.sin()"], _moved("x1", 1e-6)),
    ],
)
def test_what_rounding_does_not_explain_stays_wrong(statements, change):
    assert not _explains(statements, change)


def test_a_wrong_value_beside_an_undecided_one_stays_wrong():
    def change(made, values):
        return _moved("x1", 1e-6)(made, conditioning._noisy_run(made, 77))

    assert not _explains(ROUNDING_DECIDES, change)


HOOK_ON_LINEAR = [
    "x1 = F.linear(x0, x2, x2.sum(1))",
    "x1.register_hook(lambda g: seen.append(g.detach().clone()))",
    "x1.mul_(2.0)",
    "x1.sum().backward()",
]


def _is_another_plain_result(made, found):
    return tessera.run_ranks(1, lambda rank: artefacts.is_another_plain_result(made, found))[0]


def test_a_hook_on_the_result_of_linear_may_see_what_it_sees_for_two_dims():
    inputs = [program.Input("x0", (2, 3, 4), "S0", grad=True), program.Input("x2", (5, 4), "R")]
    made = program.Program(1, "dp=2", inputs, HOOK_ON_LINEAR)
    assert [v.kind for v in worker.judge_here(made)] == ["right", "right"]
    plain = _plain(HOOK_ON_LINEAR, *inputs).values
    assert not _is_another_plain_result(made, _moved("x1", 1e-3)(made, dict(plain)))


def test_a_gradient_may_be_expanded_where_a_view_of_a_written_tensor_was_taken_again():
    """Plain autograd goes through as_strided there, whose derivative is a copy."""
    inputs = [program.Input("x0", (7,), "R", grad=True), program.Input("x4", (2,), "R", dtype="int64")]
    statements = ["x1 = x0 * x0", "x2 = x1.squeeze()", "x2[:2] = 2.0"]
    statements += ["x3 = torch.autograd.grad(x2.sum() * 3.0, x1, create_graph=True)[0]"]
    statements += ["x3.index_fill_(0, x4 % 7, 0.25)"]
    made = program.Program(1, "dp=2", inputs, statements)
    assert [v.kind for v in worker.judge_here(made)] == ["right", "right"]
    plain = _plain(statements, *inputs).values
    assert (plain["x3"][0] == 3.0).any()
    whole = {**plain, "x3": (torch.full_like(plain["x3"][0], 0.25), plain["x3"][1])}
    assert _is_another_plain_result(made, whole)
    assert not _is_another_plain_result(made, _moved("x1", 1e-3)(made, dict(whole)))


def test_a_reshape_may_be_a_view_of_a_result_that_is_row_major():
    """sin of a sum that was redistributed is row-major, where the plain one is laid out as its operand."""
    inputs = [program.Input("x0", (6, 7), "P(sum)")]
    statements = ["x1 = x0.t().expand([2, 7, 6])", "x2 = x1.sin()", "x3 = x2.reshape([14, 6])", "x3.mul_(2.0)"]
    made = program.Program(1, "dp=2", inputs, statements)
    assert [v.kind for v in worker.judge_here(made)] == ["right", "right"]
    plain = _plain(statements, *inputs).values
    written = {**plain, "x2": (plain["x2"][0] * 2, False)}
    assert _is_another_plain_result(made, written)
    assert not _is_another_plain_result(made, _moved("x3", 1e-3)(made, written))
