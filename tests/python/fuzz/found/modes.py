"""Inference mode, no_grad, autocast, optimizers."""

from program import Input, Program

PROGRAMS = {
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
    "autocast casts a product with a Partial operand": Program(
        seed=20261121541,
        mesh="tp=5",
        inputs=[Input("x6", (3, 3), "P(avg)", dtype="float32", grad=True)],
        statements=[
            "with torch.autocast('cpu', torch.bfloat16): x11 = torch.addmm(x6, x6, x6.t() @ x6, beta=0.25, alpha=3.0)",
        ],
    ),
    "autocast casts the input of linear whose weight is Partial": Program(
        seed=1,
        mesh="tp=2",
        inputs=[Input("x6", (4, 4), "S0", dtype="float32", grad=True)],
        statements=["with torch.autocast('cpu', torch.bfloat16): x12 = F.linear(x6, x6.t() @ x6)"],
    ),
    "the state of a module that inference mode made": Program(
        seed=20261123540,
        mesh="tp=2",
        inputs=[Input("x1", (3,), "R")],
        statements=[
            "with torch.inference_mode(): net12 = sharded(torch.nn.Linear(5, 2), 630, reshard_after_forward=False)",
            "[v.mul_(0.5) for v in net12.state_dict().values()]",
        ],
    ),
    "a reduced copy of a view that gives no gradient back saves no other operand": Program(
        seed=20261120101856,
        mesh="tp=4",
        inputs=[
            Input("x2", (2, 8), "P(sum)", grad=True),
            Input("x9", (8,), "S0"),
        ],
        statements=[
            "x6 = x2 * 1",
            "x10 = x9 * 1",
            "with torch.no_grad(): x8 = x6.movedim(0, 0)",
            "x14 = torch.matmul(x8, x10)",
            "x10[0] = -1.0",
            "(x14 * x14).sum().backward()",
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
    "inference mode keeps the same gathers on all ranks": Program(
        seed=20261119152529,
        mesh="dp=6,tp=1",
        inputs=[
            Input("x2", (8, 8, 8), "P(max),S1[8]"),
            Input("x3", (8,), "P(sum),R"),
            Input("x4", (8,), "P(sum),SS0(2)"),
        ],
        statements=[
            "with torch.inference_mode(): x3.addcmul_(x4, x4, value=0.25)",
            "x3.addcmul_(x4, x4, value=-5.0)",
            "x14 = x2 @ x2",
        ],
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
    "a comparison of a Partial view that no gradient may be recorded of": Program(
        seed=2,
        mesh="dp=2",
        inputs=[Input("x0", (3, 4), "P(sum)", grad=True)],
        statements=[
            "x1 = x0 * 2",
            "with torch.no_grad(): x2 = x1.select(0, 1)",
            "x3 = x1.unbind(0)[2]",
            "x1.mul_(3.0)",
            "x4 = x2 > 0",
            "x5 = x3 <= x2",
            "x6 = x2.argmax(0)",
            "x1.sum().backward()",
        ],
    ),
    "a linear layer of a view taken in no_grad does not save its weight": Program(
        seed=20261119212910,
        mesh="tp=2",
        inputs=[Input("x1", (4, 4), "S0", grad=True), Input("x2", (4, 4), "R", grad=True)],
        statements=[
            "x3 = x1 * 2.0",
            "with torch.no_grad(): x4 = x1.softmax(1).transpose(0, -1)",
            "x5 = F.linear(x4, x3)",
            "with torch.no_grad(): torch.mul(x2, 0.5, out=x3)",
            "x5.sin().sum().backward()",
        ],
    ),
}
