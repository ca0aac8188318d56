"""Conjugates and imaginary parts, which share their tensor without its memory."""

from program import Input, Program

PROGRAMS = {
    "a conjugate sees what is written to its tensor": Program(
        seed=20261118900453,
        mesh="dp=2",
        inputs=[Input("x2", (1, 1, 7), "R")],
        statements=[
            "x7 = torch.complex(x2, x2)",
            "x15 = x7.imag",
            "x17 = x7.conj().imag",
            "x15[:, :, 6:7] = x15.detach().mean()",
        ],
    ),
    "a conjugate of parts sees writes of lists, and is written to": Program(
        seed=20261118903523,
        mesh="dp=2,tp=2",
        inputs=[Input("x0", (3, 4), "S0,P(sum)"), Input("x1", (3, 4), "P(avg),S1")],
        statements=[
            "x2 = torch.complex(x0 * 1, x0 * 2)",
            "x3 = x2.conj()",
            "x4 = torch.complex(x1 * 1, x1 * 3)",
            "x5 = x4.conj()[:, 1:]",
            "torch._foreach_mul_([x2, x4], 3.0)",
            "x6 = x3 * 2",
            "x5.mul_(2.0)",
            "x3[1] = 4.0",
            "x7 = x2 + x4",
        ],
    ),
    "a resolved conjugate is a tensor of its own": Program(
        seed=6,
        mesh="dp=2",
        inputs=[Input("x0", (3, 4), "S0", grad=True)],
        statements=[
            "x1 = torch.complex(x0 * 1, x0 * x0)",
            "x2 = x1.conj().resolve_conj()",
            "x3 = x1.conj().imag.resolve_neg()",
            "x4 = x1.conj().imag.resolve_conj()",
            "x5 = x1.conj().real.resolve_neg()",
            "x6 = x1.conj().conj().resolve_conj()",
            "x7 = x1.conj()[1:].resolve_conj()",
            "x2.mul_(2.0)",
            "x3.add_(1.0)",
            "x4.mul_(3.0)",
            "x5.mul_(4.0)",
            "x6[0].mul_(5.0)",
            "x7.mul_(6.0)",
            "(x2.real * x3 + x4 * x5 + x6.imag + x7.imag.sum()).sum().backward()",
        ],
    ),
    "the gradient of a conjugate whose tensor is written to": Program(
        seed=5,
        mesh="dp=2",
        inputs=[Input("x0", (3, 4), "S0", grad=True)],
        statements=[
            "x1 = torch.complex(x0 * 1, x0 * x0)",
            "x2 = x1.conj()",
            "x1[:, 1:].mul_(2.0)",
            "x2[0].mul_(3.0)",
            "x3 = (x2 * x1).imag",
            "(x3.sum() + (x2.real * x2.imag).sin().sum()).backward()",
        ],
    ),
}
