"""Views that are gathered or change their shape, and their bases."""

from program import Input, Program

PROGRAMS = {
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
    "a base changes its shape while a gathered view of it has a derivative": Program(
        seed=1,
        mesh="dp=2",
        inputs=[Input("x2", (7, 7), "SS0(2)", grad=True)],
        statements=[
            "x4 = torch.sin(x2)",
            "x5 = x4.narrow(0, 6, 1)",
            "x4.transpose_(0, 1)",
            "x5.sin().mean().backward()",
        ],
    ),
    "a leaf changes its shape while a gathered view of it has a derivative": Program(
        seed=2010647,
        mesh="dp=2",
        inputs=[Input("x4", (7, 7), "SS0(2)", dtype="float32", grad=True)],
        statements=[
            "x5 = x4.narrow(0, 6, 1)",
            "x9 = x5.permute(0, 1)",
            "with torch.no_grad(): x4.unsqueeze_(0)",
            "x9.sin().sum().backward()",
        ],
    ),
    "a view by strides of a gathered view is written to": Program(
        seed=2011632,
        mesh="dp=4",
        inputs=[Input("x1", (2, 8), "S1")],
        statements=[
            "x11 = x1.as_strided([8, 2], x1.stride()[::-1])",
            "x12 = x11.as_strided([2, 8], x11.stride()[::-1])",
            "x12.diagonal().sub_(2.0)",
            "x13 = x12.as_strided([2, 8], x12.stride())",
            "x13.mul_(3.0)",
        ],
    ),
    "a gathered view that is out of date is read by an op that places gradients": Program(
        seed=3017526,
        mesh="cp=2",
        inputs=[Input("x7", (2, 6), "S1[5,1]", dtype="float32", grad=True)],
        statements=[
            "x9 = x7[[0, 0, 0]]",
            "x11 = x9.flatten(-2)",
            "x9.neg_()",
            "x16 = x11.repeat([2])",
            "x16.sum().backward()",
        ],
    ),
    "index_fill keeps the order of dims of a view with gaps": Program(
        seed=8006835,
        mesh="dp=2,tp=1",
        inputs=[Input("x1", (3, 8, 8), "S0#0,S0#1"), Input("x3", (3,), "R,R", dtype="int64")],
        statements=[
            "x4 = x1.diagonal(-1, 0, 1)",
            "x5 = x4.index_fill(0, (x3 % 8), 0.5)",
            "x6 = x5.reshape([16])",
            "x6[13:15] = x6.detach().mean()",
        ],
    ),
}
