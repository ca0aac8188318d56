"""Statements that contract: products of matrices, convolutions, pooling, losses."""

from grammar import Draw, value


@value(4)
def matmul(d: Draw) -> str | None:
    if (x := d.floats(2)) is None:
        return None
    shape, dtype = d.shape(x), d.env[x].dtype
    y = d.some(
        lambda v: v.dtype == dtype and v.dim() >= 1 and v.shape[-2 if v.dim() > 1 else 0] == shape[-1]
    )
    if y and d.chance(0.7):
        return d.pick(f"{x} @ {y}", f"torch.matmul({x}, {y})")
    y = d.some(lambda v: v.dtype == dtype and v.dim() == 2 and v.shape[-1] == shape[-1])
    return y and d.pick(f"F.linear({x}, {y})", f"{x} @ {y}.t()", f"F.linear({x}, {y}, {y}.sum(1))")


@value(1)
def itself(d: Draw) -> str | None:
    x = d.floats(2)
    return x and d.pick(f"{x} @ {x}.transpose(-1, -2)", f"{x}.transpose(-2, -1) @ {x}")


@value(1)
def addmm(d: Draw) -> str | None:
    x = d.some(lambda v: v.is_floating_point() and v.dim() == 2)
    return x and d.pick(
        f"torch.addmm({x}, {x}, {x}.t() @ {x}, beta={d.number()}, alpha={d.number()})",
        f"torch.einsum('ij,kj->ik', {x}, {x})",
        f"torch.outer({x}[:, 0], {x}.sum(1))",
        f"torch.mv({x}, {x}.sum(0))",
    )


@value(0.7)
def in_float32(d: Draw) -> str | None:
    """What autocast casts."""
    x = d.some(lambda v: v.is_floating_point() and v.dim() == 2)
    return x and d.pick(
        f"F.linear({x}.float(), {x}.float())",
        f"({x}.float() @ {x}.float().t()).double()",
        f"F.softmax({x}.float() @ {x}.float().t(), -1)",
        f"F.layer_norm({x}.float(), {x}.shape[1:])",
    )


@value(0.7)
def dot(d: Draw) -> str | None:
    x = d.some(lambda v: v.is_floating_point() and v.dim() == 1)
    return x and d.pick(f"torch.dot({x}, {x})", f"torch.outer({x}, {x})", f"{x} @ {x}")


@value(1)
def convolution(d: Draw) -> str | None:
    x = d.some(lambda v: v.is_floating_point() and v.dim() == 3)
    if not x:
        return None
    channels, dtype = d.shape(x)[1], d.env[x].dtype
    w = d.some(lambda v: v.dtype == dtype and v.dim() == 3 and v.shape[1] == channels)
    pool = d.pick(
        f"F.avg_pool1d({x}, 2, {d.pick(1, 2)})",
        f"F.adaptive_avg_pool1d({x}, {d.pick(1, 2)})",
        f"F.interpolate({x}, scale_factor=2)",
    )
    if d.chance(0.4) or not w or not channels:  # of no channels libtorch makes none, whatever the weight has
        return pool
    return f"F.conv1d({x}, {w}, padding={d.pick(0, 1, 2)}, stride={d.pick(1, 2)})"


@value(1)
def attention(d: Draw) -> str | None:
    x = d.some(lambda v: v.is_floating_point() and v.dim() in (3, 4) and v.numel() > 0)
    causal = d.pick("True", "False")
    return x and f"F.scaled_dot_product_attention({x}, {x}, {x}, is_causal={causal})"


@value(1)
def losses(d: Draw) -> str | None:
    x = d.floats(2)
    if not x:
        return None
    y = d.like(x) or x
    shape = d.shape(x)
    target = d.some(lambda v: str(v.dtype) == "torch.int64" and list(v.shape) == shape[:1])
    reduction = d.pick("mean", "sum", "none")
    if target and len(shape) == 2 and shape[1]:
        return d.pick(
            f"F.cross_entropy({x}, {target} % {shape[1]}, reduction='{reduction}')",
            f"F.nll_loss({x}, {target} % {shape[1]}, reduction='{reduction}')",
            f"F.cross_entropy({x}, {target} % {shape[1]}, label_smoothing={d.pick(0.1, 0.2)})",
        )
    y = f"{y}.expand_as({x})"
    name, goal = d.pick(
        ("mse_loss", y),
        ("binary_cross_entropy_with_logits", f"{y}.detach().sigmoid()"),
        ("kl_div", f"{y}.softmax(-1)"),
    )
    return f"F.{name}({x}, {goal}, reduction='{reduction}')"
