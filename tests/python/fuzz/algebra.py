"""Statements of linear algebra, and Fourier transforms."""

from grammar import Draw, value


@value(1)
def products(d: Draw) -> str | None:
    x = d.floats(2)
    if not x:
        return None
    n = d.number()
    return d.pick(
        f"torch.einsum('...ij,...ik->...jk', {x}, {x})",
        f"torch.einsum('...i,...i->...', {x}, {x})",
        f"torch.einsum('i...,j...->ij', {x}, {x})" if len(d.shape(x)) == 2 else f"torch.einsum('...i->i', {x})",
        f"torch.tensordot({x}, {x}, dims=([0], [0]))" if len(d.shape(x)) < 4 else f"{x}.mT @ {x}",
        f"torch.cdist({x}, {x} + 2.0)",
        # Copies: kron saves views of its operands that have version counters of their own, so a
        # later write changes gradients in libtorch too, where it should be an error.
        f"torch.kron({x}[..., :2].clone(), {x}[..., :1].clone())" if len(d.shape(x)) == 2 else f"{x}.mT",
        f"F.cosine_similarity({x} + 3.0, {x} * {x} + 1.0, dim={d.dim(x)})",
        f"F.pairwise_distance({x}, {x} + 2.0)",
        f"torch.linalg.multi_dot([{x}, {x}.mT, {x}])" if len(d.shape(x)) == 2 else f"{x} @ {x}.mT * {n}",
    )


@value(0.7)
def batches(d: Draw) -> str | None:
    x = d.some(lambda v: v.is_floating_point() and v.dim() == 3)
    return x and d.pick(
        f"torch.bmm({x}, {x}.mT)",
        f"torch.baddbmm({x} @ {x}.mT, {x}, {x}.mT, beta={d.number()}, alpha={d.number()})",
        f"torch.addbmm({x}[0] @ {x}[0].mT, {x}, {x}.mT, beta={d.number()})" if d.shape(x)[0] else f"{x}.mT",
        f"F.bilinear({x}, {x}, {x}.mT @ {x})" if d.shape(x)[1] == d.shape(x)[2] else f"{x}.mT",
    )


def _definite(d: Draw, x: str) -> str:
    """Positive definite matrices, far from singular. The factor is no number that a later statement may
    replace: by 0, rounding would decide."""
    size = d.shape(x)[-2]
    return f"({x} @ {x}.mT + 2 * constant(torch.eye({size}, dtype={x}.dtype)))"


@value(1)
def factors(d: Draw) -> str | None:
    x = d.some(lambda v: v.dtype.itemsize == 8 and v.is_floating_point() and v.dim() >= 2 and v.numel() > 0)
    if not x:
        return None
    a = _definite(d, x)
    return d.pick(
        f"torch.linalg.inv({a})",
        f"torch.linalg.cholesky({a})",
        f"torch.linalg.solve({a}, {x})",
        f"torch.linalg.det({a} / 10)",
        f"torch.logdet({a})",
        f"torch.linalg.slogdet({a})[1]",
        f"torch.linalg.solve_triangular({a}.tril(), {x}, upper=False)",
        f"torch.linalg.matrix_power({a} / 10, {d.pick(0, 2, 3)})",
        f"torch.linalg.matrix_exp({a} / 100)",
        f"torch.cholesky_solve({x}, torch.linalg.cholesky({a}))",
        f"torch.linalg.eigvalsh({a}).sum(-1)",
        f"torch.linalg.matrix_norm({x} + 0.1)",
    )


@value(0.7)
def fourier(d: Draw) -> str | None:
    x = d.some(lambda v: v.dtype.itemsize == 8 and v.is_floating_point() and v.dim() >= 1 and v.numel() > 0)
    if not x:
        return None
    dim = d.dim(x)
    norm = d.pick("backward", "ortho")
    return d.pick(
        f"torch.fft.fft({x}, dim={dim}, norm='{norm}').real",
        f"torch.fft.rfft({x}, dim={dim}).imag",
        f"torch.fft.irfft(torch.fft.rfft({x}, dim={dim}), n={d.shape(x)[dim]}, dim={dim})",
        f"torch.fft.fft({x}, dim={dim})",
        f"torch.fft.fftshift({x}, {dim})",
    )
