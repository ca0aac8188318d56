"""Statements with functions that are used less often: of one tensor, of two, losses."""

from grammar import Draw, value


@value(1.5)
def of_one(d: Draw) -> str | None:
    if (x := d.floats(1)) is None:
        return None
    dim = d.dim(x)
    return d.pick(
        f"F.mish({x})",
        f"F.logsigmoid({x})",
        f"F.celu({x} * {x} + 0.1)",
        f"F.selu({x} * {x} + 0.1)",
        f"{x}.nansum({dim})",
        f"{x}.nanmean({dim})",
        f"{x}.diff(dim={dim})",
        f"torch.trapezoid({x}, dim={dim})",
        f"torch.std_mean({x} * {x}, {dim}, correction=0)[1]",
        f"torch.log1p({x} * {x})",
        f"torch.expm1({x} * 0.1)",
        f"torch.special.i0({x} * 0.1)",
        f"torch.xlogy({x}, {x} * {x} + 1.0)",
        f"torch.lgamma({x} * {x} + 1.0)",
        f"torch.sinc({x} * {x} + 0.5)",
        f"{x}.renorm(2, {dim % len(d.shape(x))}, 100.0)",
        f"torch.cross({x}[..., :3], {x}[..., :3] * 2 + 1, dim=-1)" if d.shape(x)[-1] >= 3 else f"{x}.asinh()",
        f"F.glu({x}, {dim})" if d.shape(x)[dim] % 2 == 0 else f"{x}.atan()",
        f"torch.meshgrid({x}.flatten()[:2], {x}.flatten()[:3], indexing='ij')[{d.pick(0, 1)}]",
        f"torch.broadcast_tensors({x}, {x}[:1])[1]",
        f"{x}.rot90(1, (0, -1))" if len(d.shape(x)) > 1 else f"{x}.asinh()",
        f"torch.tensor_split({x}, {d.pick(2, 3)}, {dim})[{d.pick(0, 1)}]",
        f"torch.cartesian_prod({x}.flatten()[:2], {x}.flatten()[:2])",
        f"torch.vander({x}.flatten()[:3] * 0.5, 3)",
        f"torch.block_diag({x}.flatten()[:2], {x}.flatten()[:2])",
    )


@value(1)
def ordered(d: Draw) -> str | None:
    """What depends on the order of the values."""
    if (x := d.floats(1)) is None:
        return None
    d.require(f"apart({x})")
    dim = d.dim(x)
    return d.pick(
        f"{x}.quantile({d.pick(0.25, 0.5)}, {dim})" if d.shape(x)[dim] else f"{x}.clone()",
        f"torch.aminmax({x}, dim={dim})[{d.pick(0, 1)}]",
        f"{x}.cummin({dim})[0]",
        f"{x}.topk({d.pick(1, 2)}, {dim})[{d.pick(0, 1)}]",
        f"{x}.msort()",
        f"torch.bucketize({x}, constant(torch.tensor([-101, 7, 130], dtype={x}.dtype)) / 128)",
        f"torch.searchsorted({x}.sort(-1)[0], {x}[..., :1] + 1e-3)",
        f"torch.histc({x}.detach(), 4, -21, 20)",
    )


@value(1)
def of_two(d: Draw) -> str | None:
    x = d.floats()
    y = x and d.like(x)
    return y and d.pick(
        f"torch.logaddexp({x}, {y})",
        f"({x} * {x} + 1.0).pow({y} * 0.1)",
        f"torch.copysign({x} * {x} + 1.0, {y} * {y} + 1.0)",
        f"torch.dist({x}, {y} + 10.0)",
        f"torch.fmin({x} - 100.0, {y})",
        f"torch.ldexp({x}, {y}.detach() * 0)",
        f"torch.div({x}, {y} * {y} + 1.0)",
        f"{x}.addcdiv({y}, {y} * {y} + 1.0, value={d.number()})",
        f"torch.stack(torch.broadcast_tensors({x}, {y}))",
    )


@value(1)
def losses(d: Draw) -> str | None:
    x = d.floats(2)
    y = x and d.like(x)
    if not y or d.env[x].numel() == 0:
        return None
    goal = f"{y}.expand_as({x}).detach()"
    reduction = f"reduction='{d.pick('mean', 'sum', 'none')}'"
    return d.pick(
        f"F.huber_loss({x}, {goal} + 20.0, {reduction})",
        f"F.soft_margin_loss({x}, {goal}.tanh(), {reduction})",
        f"F.poisson_nll_loss({x} * 0.1, {goal}, {reduction})",
        f"F.gaussian_nll_loss({x}, {goal}, {goal} * {goal} + 1.0, {reduction})",
        f"F.cosine_embedding_loss({x} + 3.0, {goal} + 4.0, constant(torch.ones({d.shape(x)[0]})), {reduction})"
        if len(d.shape(x)) == 2
        else f"F.mse_loss({x}, {goal})",
        f"F.triplet_margin_loss({x}, {goal} + 1.0, {goal} + 10.0, margin=100.0, {reduction})",
    )


@value(0.7)
def bags(d: Draw) -> str | None:
    w = d.some(lambda v: v.is_floating_point() and v.dim() == 2 and v.shape[0] > 0)
    i = d.some(lambda v: str(v.dtype) == "torch.int64" and v.dim() == 2)
    return w and i and f"F.embedding_bag({i}.abs() % {d.shape(w)[0]}, {w}, mode='{d.pick('sum', 'mean')}')"
