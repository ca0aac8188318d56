"""No elements, no channels, ragged parts."""

from program import Input, Program

PROGRAMS = {
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
    "a ragged dim without elements is not moved to a dim of one": Program(
        seed=4,
        mesh="dp=1,tp=2",
        inputs=[Input("x0", (5, 0, 0), "S1[0],R"), Input("x1", (0,), "R,R"), Input("x2", (0,), "R,R")],
        statements=["x3 = F.instance_norm(x0, x1, x2, use_input_stats=True, momentum=0.5)"],
    ),
    "a convolution of no channels with a bias": Program(
        seed=1,
        mesh="dp=2",
        inputs=[
            Input("x0", (3, 0, 5), "S0", grad=True),
            Input("x1", (4, 0, 3), "S0", grad=True),
            Input("x2", (4,), "S0", grad=True),
        ],
        statements=["x3 = F.conv1d(x0, x1, x2, padding=1)", "x3.sum().backward()"],
    ),
    "block_diag of a tensor without elements has a gradient": Program(
        seed=20261119302145,
        mesh="dp=2",
        inputs=[Input("x0", (0,), "S0", grad=True), Input("x1", (2, 2), "S0", grad=True)],
        statements=["x2 = torch.block_diag(x0, x1[0], x1)", "x2.sin().sum().backward()"],
    ),
    "the second derivative of matrix_exp": Program(
        seed=20261119517094,
        mesh="tp=2",
        inputs=[Input("x1", (3, 3), "R", grad=True)],
        statements=[
            "x2 = torch.linalg.matrix_exp(x1)",
            "x3 = torch.autograd.grad((x2 * x2).sum(), x1, create_graph=True)[0]",
            "x3.sin().sum().backward()",
        ],
    ),
}
