"""Tensors whose elements share memory: expand, unfold."""

from program import Input, Program

PROGRAMS = {
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
    "a write to a part of an expanded dim reaches the one element": Program(
        seed=20261119147575,
        mesh="dp=2",
        inputs=[Input("x4", (6,), "S0")],
        statements=[
            "x6 = x4.expand([3, 6])",
            "x15 = x6.unbind(-1)[0]",
            "x17 = x15[2:]",
            "x17.view(-1).sin_()",
        ],
    ),
    "a reduced copy of an expanded tensor": Program(
        seed=1,
        mesh="tp=2",
        inputs=[Input("x2", (5, 1), "P(sum)", grad=True)],
        statements=["x3 = x2.expand(5, 4).t()", "x4 = torch.sin(x3)", "x4.sum().backward()"],
    ),
    "a product of views whose elements share memory": Program(
        seed=5002788,
        mesh="dp=4",
        inputs=[Input("x0", (2, 1), "P(sum)")],
        statements=[
            "x5 = torch.stack([x0, x0, x0], 0)",
            "x6 = x5.repeat_interleave(2, 2)",
            "x8 = x6.unfold(0, 2, 1)",
            "x14 = x8.transpose(-2, -1) @ x8",
        ],
    ),
    "one expanded tensor is input and weight of a convolution": Program(
        seed=20261119146043,
        mesh="dp=2,tp=1",
        inputs=[Input("x0", (1, 2), "SS0(2),S1", grad=True)],
        statements=[
            "x11 = x0.expand([3, 3, 2])",
            "x19 = F.conv1d(x11, x11, padding=1, stride=1)",
            "(x19.double().sum() * 2.0).backward()",
        ],
    ),
}
