"""Reduced and gathered copies that are kept, and what writes beside them: running statistics, saved tensors."""

from program import Input, Program

PROGRAMS = {
    "statistics are updated whose base was reduced before": Program(
        seed=2000198,
        mesh="tp=4",
        inputs=[Input("x2", (), "R"), Input("x3", (6,), "R"), Input("x4", (6,), "P(max)")],
        statements=[
            "x6 = x4.view([2, 3])",
            "x7 = x6.reshape([6])",
            "x8 = x2 * x2",
            "x9 = x4.reshape([2, 3])",
            "x10 = torch.addcdiv(x9, x8, x9 * x9 + 1, value=-0.5)",
            "x12 = torch.stack([x3, x4], 0)",
            "x16 = F.batch_norm(x12, x7, x3, training=True, momentum=0.5)",
            "x17 = torch.addcdiv(x9, x8, x9 * x9 + 1, value=-1.0)",
        ],
    ),
    "statistics are updated that were gathered before": Program(
        seed=2000224,
        mesh="tp=2",
        inputs=[Input("x2", (5, 3, 3), "R"), Input("x3", (3,), "S0"), Input("x4", (3,), "R")],
        statements=[
            "x7 = torch.rsub(x2, x4, alpha=-5.0)",
            "x8 = F.rms_norm(x4, [3], x3)",
            "x13 = F.layer_norm(x7, [3], x8, None)",
            "x14 = F.batch_norm(x2, x8, x3, training=True, momentum=0.1)",
            "x23 = torch.outer(x8, x8)",
        ],
    ),
    "statistics that are a view of a reduced tensor are updated": Program(
        seed=2001810,
        mesh="tp=5",
        inputs=[Input("x0", (6, 6), "R"), Input("x4", (6,), "P(sum)")],
        statements=[
            "x8 = x4.reshape([2, 3])",
            "x11 = x8.transpose(1, 1).squeeze()",
            "x12 = x8.select(-1, -1)",
            "x14 = x0.reshape([2, 3, 6])",
            "x15 = x12 * x12",
            "x17 = (x11 * x11 + 0.1).norm()",
            "x18 = x14.diagonal(0, 0, 1)",
            "x32 = F.batch_norm(x18, x15, x12, training=True, momentum=0.5)",
            "x34 = (x11 * x11 + -5.0).norm()",
        ],
    ),
    "a reduced copy has the strides of its tensor, so that flatten copies it": Program(
        seed=914764,
        mesh="cp=1",
        inputs=[Input("x2", (5, 1, 8, 5), "P(avg)", grad=True), Input("x6", (1,), "R", dtype="int64")],
        statements=[
            "x8 = x2.permute(2, 3, 1, 0)",
            "x10 = torch.minimum(x8, x8 * 0)",
            "with torch.no_grad(): x12 = x10.flatten(0)",
            "x13 = x12.flatten(0)",
            "x13.index_copy_(0, (x6 % 200)[:1], x13.narrow(0, 0, 1).clone())",
        ],
    ),
    "statistics of instance_norm in a gathered view reach its base": Program(
        seed=3001038,
        mesh="tp=2",
        inputs=[Input("x0", (4, 4), "S0"), Input("x1", (4,), "R"), Input("x2", (4, 4, 3), "R")],
        statements=[
            "x6 = x0[1, 0:]",
            "x21 = F.instance_norm(x2, x6, x1, use_input_stats=True, momentum=0.1)",
        ],
    ),
    "a write to a view of a batch norm of a transposed view reaches it": Program(
        seed=5002335,
        mesh="tp=2",
        inputs=[Input("x2", (6, 2, 2), "S1"), Input("x3", (2,), "R"), Input("x4", (2,), "R")],
        statements=[
            "x12 = x2.diagonal(-1, 0, 1)",
            "x15 = F.batch_norm(x12, x3, x4 * x4, training=True, momentum=0.1)",
            "x20 = x15.unfold(1, 2, 2).flatten(0)",
            "x20.sub_(1.0)",
        ],
    ),
    "linear with a gathered view as weight saves no input": Program(
        seed=5000991,
        mesh="tp=2",
        inputs=[Input("x1", (5, 2, 5), "R", grad=True), Input("x2", (5, 2, 5), "S1")],
        statements=[
            "x7 = x2.select(-2, -2)",
            "x16 = 3.0 - x1",
            "x20 = F.linear(x16, x7, x7.sum(1))",
            "x16.add_(0.25)",
            "x20.sin().mean().backward()",
        ],
    ),
    "linear saves a copy of an input whose dims cannot be folded": Program(
        seed=7000457,
        mesh="dp=2",
        inputs=[Input("x0", (7, 5), "R", grad=True), Input("x1", (3, 2, 4, 5), "S1")],
        statements=[
            "x2 = x1 * 1",
            "x3 = F.linear(x2.transpose(0, 1), x0, x0.sum(1))",
            "x2.add_(1.0)",
            "x3.sin().mean().backward()",
        ],
    ),
    "a norm over the only element of a sharded dim, counted from the end": Program(
        seed=9977132415,
        mesh="dp=2,tp=1",
        inputs=[Input("x0", (1,), "SS0(2),R", grad=True)],
        statements=["x1 = torch.linalg.vector_norm(x0 * x0 + 0.5, 1, dim=-1)", "x1.backward()"],
    ),
}
