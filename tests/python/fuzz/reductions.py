"""Statements that reduce, scan, sort and normalise."""

from grammar import Draw, value


def _over(d: Draw, x: str) -> str:
    """Arguments that say which dims."""
    n = len(d.shape(x))
    keep = d.pick("", ", keepdim=True")
    if n > 1 and d.chance(0.2):
        dims = d.rng.sample(range(n), 2)
        return f"{tuple(dims)}{keep}"
    return f"{d.dim(x)}{keep}"


@value(3)
def all_of_it(d: Draw) -> str | None:
    x = d.floats()
    return x and d.pick(
        f"{x}.sum()", f"{x}.mean()", f"({x} * 0.1).exp().sum().log()", f"({x} * {x} + 0.1).norm()"
    )


@value(4)
def over_dims(d: Draw) -> str | None:
    if (x := d.floats(1)) is None:
        return None
    over = _over(d, x)
    return d.pick(
        f"{x}.sum({over})",
        f"{x}.mean({over})",
        f"{x}.logsumexp({over})",
        f"({x} * {x} + 0.1).sum({over})",
        f"torch.linalg.vector_norm({x} * {x} + 0.5, {d.pick(1, 2, 3)}, dim={over})",
        f"{x}.var({over})" if d.env[x].numel() else f"{x}.sum({over})",
    )


@value(2.5)
def extremes(d: Draw) -> str | None:
    if (x := d.floats(1)) is None:
        return None
    d.require(f"apart({x})")
    dim = d.dim(x)
    return d.pick(
        f"{x}.amax({dim})",
        f"{x}.amin({dim}, keepdim=True)",
        f"{x}.max({dim})[{d.pick(0, 0, 1)}]",
        f"{x}.min({dim})[0]",
        f"{x}.argmax({dim})",
        f"{x}.argmin({dim})",
        f"{x}.max()",
        f"{x}.median({dim})[0]",
        f"{x}.cummax({dim})[0]",
        f"{x}.kthvalue(1, {dim})[0]",
        f"{x}.sort({dim}, descending={d.pick(True, False)})[{d.pick(0, 0, 1)}]",
        f"{x}.topk(1, {dim})[0]",
        f"{x}.argsort({dim})",
    )


@value(1.5)
def scans(d: Draw) -> str | None:
    x = d.floats(1)
    return x and d.pick(
        f"{x}.cumsum({d.dim(x)})", f"{x}.cumprod({d.dim(x)})", f"{x}.logcumsumexp({d.dim(x)})"
    )


@value(0.5)
def products(d: Draw) -> str | None:
    x = d.floats(1)
    return x and d.pick(f"{x}.prod({d.dim(x)})", f"{x}.prod()")


@value(0.7)
def truths(d: Draw) -> str | None:
    m = d.some(lambda v: not v.is_floating_point())
    return m and d.pick(f"{m}.any()", f"{m}.all()", f"{m}.sum()", f"{m}.double().mean()")


@value(2)
def softmax(d: Draw) -> str | None:
    x = d.floats(1)
    return x and f"{d.pick('torch.softmax', 'F.log_softmax', 'F.softmin')}({x}, {d.dim(x)})"


@value(2)
def layer_norm(d: Draw) -> str | None:
    if (x := d.floats(1)) is None:
        return None
    shape = d.shape(x)
    last = shape[-1]
    w = d.some(lambda v: v.is_floating_point() and list(v.shape) == [last])
    weight = f", {w}, {d.pick(w, 'None')}" if w and d.chance(0.7) else ""
    return d.pick(
        f"F.layer_norm({x}, [{last}]{weight})",
        f"F.rms_norm({x}, [{last}]{weight.rsplit(',', 1)[0]})",
        f"F.group_norm({x}, {d.pick(1, shape[1])})" if len(shape) >= 2 and shape[1] else None,
        f"F.normalize({x} * {x} + 0.1, dim={d.dim(x)})",
    )


@value(2)
def batch_norm(d: Draw) -> str | None:
    """Also writes the running statistics, where there are tensors that can be those."""
    if (x := d.floats(2)) is None:
        return None
    channels = d.shape(x)[1]
    plain = [
        n
        for n in d.names(lambda v: v.is_floating_point() and list(v.shape) == [channels])
        if not d.env[n].requires_grad and d.env[n].dtype == d.env[x].dtype
    ]
    train = d.pick("training=True", "training=True", "training=False")
    momentum = f"momentum={d.pick('0.1', '0.5')}"
    if len(plain) >= 2:
        mean, var = d.rng.sample(plain, 2)
        d.require(f"bool(({var} > 0.01).all())" if train.endswith("False") else "True")
        if d.chance(0.3) and len(d.shape(x)) > 2:
            return f"F.instance_norm({x}, {mean}, {var}, use_input_stats=True, {momentum})"
        return f"F.batch_norm({x}, {mean}, {var}, {train}, {momentum})"
    if d.chance(0.3) and len(d.shape(x)) > 2:
        return f"F.instance_norm({x})"
    return f"F.batch_norm({x}, None, None, training=True)"
