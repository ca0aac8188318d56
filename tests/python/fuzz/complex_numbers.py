"""Statements with complex numbers, and their real and imaginary parts."""

import torch

from grammar import Draw, value


def _complex(d: Draw) -> str | None:
    return d.some(lambda v: v.dtype == torch.complex128)


@value(0.7)
def composed(d: Draw) -> str | None:
    x = d.some(lambda v: v.dtype == torch.float64)
    y = x and d.some(lambda v: v.dtype == torch.float64 and v.shape == d.env[x].shape)
    return y and d.pick(f"torch.complex({x}, {y})", f"{x}.to(torch.complex128)")


@value(1)
def computed(d: Draw) -> str | None:
    c = _complex(d)
    return c and d.pick(
        f"{c} * {c}",
        f"{c}.conj()",
        f"{c} * {d.number()}",
        f"{c}.conj() + 1j",
        f"{c}.sum({d.dim(c)})" if d.shape(c) else f"{c}.clone()",
        f"{c}.transpose(0, -1)" if d.shape(c) else f"{c}.neg()",
        f"{c}.conj().resolve_conj()",
    )


@value(0.5)
def filled(d: Draw) -> str | None:
    """With a complex number, whose value decides which Partial inputs pass."""
    c = _complex(d)
    if c is None:
        return None
    number = d.pick("0j", "1j", "2 - 1j", "0.0")
    shape = d.shape(c)
    mask = d.some(lambda v: v.dtype == torch.bool and list(v.shape) == shape)
    if mask is not None and d.chance(0.5):
        return f"{c}.masked_fill({mask}, {number})"
    return f"torch.constant_pad_nd({c}, (1, {d.pick(0, 2)}), {number})" if shape else f"{c} + {number}"


@value(1.5)
def taken_apart(d: Draw) -> str | None:
    c = _complex(d)
    return c and d.pick(
        f"{c}.real", f"{c}.imag", f"torch.view_as_real({c})", f"({c} * {c}.conj()).real", f"{c}.conj().imag"
    )
