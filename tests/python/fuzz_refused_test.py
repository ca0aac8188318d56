"""Programs without an answer, as the fuzzer found and shortened them; all ranks refuse them."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).with_name("fuzz")))

import worker  # noqa: E402
from program import Input, Program  # noqa: E402

REFUSED = {
    "statistics that are a view of what they are taken of": Program(
        seed=913376,
        mesh="tp=4",
        inputs=[Input("x0", (2, 1), "P(avg)"), Input("x2", (1,), "R")],
        statements=[
            "x12 = x0.select(0, -1)",
            "x13 = F.batch_norm(x0, x2, x12, training=True, momentum=0.1)",
        ],
    ),
    "statistics whose elements share memory": Program(
        seed=9977131717,
        mesh="dp=2",
        inputs=[Input("x0", (2, 2), "S0"), Input("x2", (2,), "R", grad=True), Input("x3", (2,), "P(sum)")],
        statements=[
            "x9 = torch.autograd.grad(x2.double().sum() * 2.0, x2)[0]",
            "x16 = F.batch_norm(x0, x3, x9, training=True, momentum=0.5)",
        ],
    ),
    "statistics and what they are taken of are gathered views of one tensor": Program(
        seed=3019520,
        mesh="dp=2,tp=2",
        inputs=[Input("x0", (5, 5), "S0,S0"), Input("x1", (5,), "R,R")],
        statements=[
            "x2 = x0.select(0, 0)",
            "x3 = x0.as_strided([5, 5], x0.stride()[::-1])",
            "x4 = F.batch_norm(x3, x2, x1, training=True, momentum=0.1)",
        ],
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_answer_is_refused(what):
    for verdict in worker.judge_here(REFUSED[what]):
        assert verdict.kind == "refused", verdict.text
