"""Programs that the fuzzer found wrong or refused once, as it made them short; all are right now."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).with_name("fuzz")))

import worker  # noqa: E402
from program import Input, Program  # noqa: E402

RIGHT = {
    "a view in place in inference mode keeps the gradient": Program(
        seed=1,
        mesh="dp=2",
        inputs=[Input("x0", (4, 6), "S0", grad=True)],
        statements=[
            "x1 = x0 * 1",
            "with torch.inference_mode(): x1.unsqueeze_(0)",
            "(x1.double().sin().mean()).backward()",
        ],
    ),
    "a leaf that becomes a view in inference mode stays a leaf": Program(
        seed=1,
        mesh="cp=2",
        inputs=[Input("x2", (8, 2, 8), "S0", grad=True)],
        statements=["with torch.inference_mode(): x2.unsqueeze_(0)", "x6 = x2.squeeze(-1)", "x6.sum().backward()"],
    ),
    "what inference mode reduced is used for gradients": Program(
        seed=1,
        mesh="tp=2",
        inputs=[
            Input("x2", (5, 1, 1), "R", grad=True),
            Input("x3", (1,), "P(sum)"),
            Input("x4", (1,), "S0"),
        ],
        statements=[
            "with torch.inference_mode(): x6 = x3 / (x4 * x4 + 1)",
            "x11 = F.log_softmax(x2, 0)",
            "x20 = x11 @ x3",
            "x20.sum().backward()",
        ],
    ),
    "elements of a Partial view that share memory are written once": Program(
        seed=912762,
        mesh="dp=2,cp=1",
        inputs=[
            Input("x1", (4, 4, 4), "P(avg),S2"),
            Input("x3", (2,), "R,R", dtype="int64"),
        ],
        statements=[
            "x17 = (x1 * x1 + 3.0).sum(2, keepdim=True)",
            "x23 = x17.unfold(1, 2, 1)",
            "x23.index_fill_(1, (x3 % 3), -1.0)",
        ],
    ),
    "sums into elements that share memory add up": Program(
        seed=3,
        mesh="dp=2,tp=2",
        inputs=[
            Input("x1", (4, 5), "P(sum),S0"),
            Input("x2", (2, 4, 2), "R,R"),
            Input("x3", (2,), "R,R", dtype="int64"),
        ],
        statements=["x4 = x1.unfold(1, 2, 1)", "x4.index_add_(0, x3 % 4, x2)"],
    ),
    "a sharded view whose elements share memory": Program(
        seed=3,
        mesh="dp=2",
        inputs=[Input("x1", (6, 5), "S0"), Input("x3", (2,), "R", dtype="int64")],
        statements=["x4 = x1.unfold(1, 2, 1)", "x4.index_fill_(0, x3 % 6, -1.0)"],
    ),
    "an expanded Partial tensor is filled under a mask": Program(
        seed=911449,
        mesh="dp=2",
        inputs=[Input("x2", (4, 6, 6), "P(sum)"), Input("x3", (4, 6, 6), "R", dtype="bool")],
        statements=["x6 = x2.expand([2, 4, 6, 6])", "x6.masked_fill_(x3, 1.0)"],
    ),
    "an expanded Partial tensor of which a rank has nothing": Program(
        seed=914804,
        mesh="dp=2,tp=3",
        inputs=[Input("x0", (2, 5), "P(sum),S0"), Input("x3", (), "R,R", dtype="bool")],
        statements=["x5 = x0.expand([3, 2, 5])", "x5.masked_fill_(x3, -0.5)"],
    ),
    "an expanded Partial tensor is written by a mask": Program(
        seed=910985,
        mesh="cp=2",
        inputs=[Input("x2", (1, 5), "P(sum)"), Input("x3", (5,), "R", dtype="bool")],
        statements=["x6 = x2.expand([2, 3, 5])", "x6[x3.expand_as(x6)] = 0.0"],
    ),
    "attention of windows that share memory": Program(
        seed=912187,
        mesh="tp=2",
        inputs=[Input("x2", (7, 7, 7), "S0")],
        statements=[
            "x13 = x2.unfold(0, 2, 1)",
            "x31 = F.scaled_dot_product_attention(x13, x13, x13, is_causal=True)",
        ],
    ),
    "a gathered view outlives the shape of its base": Program(
        seed=910810,
        mesh="dp=1,tp=2",
        inputs=[Input("x9", (4, 4, 1), "S0,R")],
        statements=["x17 = x9.diagonal(0, 0, 1)", "x9.unsqueeze_(0)", "x17.add_(1)", "x9.mul_(2)"],
    ),
    "a view changes its shape and is written to": Program(
        seed=4,
        mesh="tp=2",
        inputs=[Input("x0", (4, 4, 4), "S0", grad=True), Input("x1", (4, 4), "R")],
        statements=[
            "x2 = x0 * 1",
            "x3 = x2.select(2, 1)",
            "x3.transpose_(0, 1)",
            "x3.mul_(x1)",
            "x2.mul_(2)",
            "(x2.sin().sum() + (x3 * x1).sum()).backward()",
        ],
    ),
    "one_hot of no elements": Program(
        seed=5,
        mesh="dp=2",
        inputs=[Input("x5", (), "R", dtype="bool"), Input("x6", (0, 2), "R", dtype="int64")],
        statements=["x9 = F.one_hot(x6 % 5, 5).double()", "x12 = x9.logcumsumexp(2)", "x15 = x12 * x5"],
    ),
    "a convolution without channels": Program(
        seed=910869,
        mesh="tp=2",
        inputs=[Input("x0", (6, 6), "S0", grad=True)],
        statements=[
            "x8 = x0[1:, 6:]",
            "x20 = torch.stack([x8, x8 * 2, x8], -1)",
            "x25 = F.conv1d(x20, x20, padding=0, stride=2)",
            "(x25.double().sum() * 2.0).backward()",
        ],
    ),
    "ragged shards of dims of size 1 meet in one dim": Program(
        seed=913092,
        mesh="dp=2,tp=3",
        inputs=[Input("x1", (7, 4, 1), "S2,S0")],
        statements=["x3 = x1.narrow(0, 5, 1)", "x5 = x3.reshape([4, 1])"],
    ),
    "a weight that no gradient needs is written to": Program(
        seed=913633,
        mesh="tp=3",
        inputs=[
            Input("x0", (8, 4), "R", grad=True),
            Input("x2", (7, 8, 4), "S0"),
            Input("x5", (4,), "R", dtype="bool"),
        ],
        statements=[
            "x18 = F.linear(x2, x0)",
            "with torch.no_grad(): x0.masked_fill_(x5, -0.5)",
            "(x0.double().sum() * 2.0 + x18.double().sum() * 2.0).backward()",
        ],
    ),
    "a fused optimizer and views": Program(
        seed=912956,
        mesh="dp=4",
        inputs=[Input("x2", (8, 1), "S0", grad=True)],
        statements=[
            "x4 = x2.double()",
            "x5 = x2.sum()",
            "x11 = x4.expand([8, 1])",
            "opt19 = torch.optim.Adam([x4], lr=0.1, amsgrad=True, fused=True)",
            "x25 = x11.unbind(-2)[0]",
            "(x5 * x5).backward()",
            "opt19.step()",
        ],
    ),
}

REFUSED = {
    "a base changes its shape while a view of it has a derivative": Program(
        seed=912773,
        mesh="tp=3",
        inputs=[Input("x2", (6, 6), "S0", grad=True)],
        statements=[
            "x14 = torch.sin(x2)",
            "x16 = x14.narrow(1, 3, 3)",
            "x14.transpose_(0, 1)",
            "x16.sin().mean().backward()",
        ],
    ),
    "statistics that are a view of what they are taken of": Program(
        seed=913376,
        mesh="tp=4",
        inputs=[Input("x0", (2, 1), "P(avg)"), Input("x2", (1,), "R")],
        statements=[
            "x12 = x0.select(0, -1)",
            "x13 = F.batch_norm(x0, x2, x12, training=True, momentum=0.1)",
        ],
    ),
}


@pytest.mark.parametrize("what", RIGHT)
def test_a_program_that_was_wrong_is_right(what):
    for verdict in worker.judge_here(RIGHT[what]):
        assert verdict.kind == "right", verdict.text


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_answer_is_refused(what):
    for verdict in worker.judge_here(REFUSED[what]):
        assert verdict.kind == "refused", verdict.text
