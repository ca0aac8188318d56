"""Statements that compute element by element."""

from grammar import Draw, value


@value(4)
def with_number(d: Draw) -> str | None:
    x = d.floats()
    n = d.number()
    return x and d.pick(
        f"{x} * {n}",
        f"{x} + {n}",
        f"{n} - {x}",
        f"{x} / {d.pick('2.0', '-4.0', '0.5')}",
        f"{x}.pow({d.pick(0, 1, 2, 3)})",
        f"torch.add({x}, {x}, alpha={n})",
        f"F.leaky_relu({x} * {x} + 0.1, {n})",
        f"F.elu({x} * {x} + 0.1, {d.pick('0.5', '2.0')})",
        f"torch.full_like({x}, {n})",
        f"torch.nan_to_num({x}, {n})",
        f"torch.lerp({x}, {x} * 2, {n})",
    )


@value(2)
def kinked(d: Draw) -> str | None:
    """Their derivatives jump: not where a value is."""
    if (x := d.floats()) is None:
        return None
    n = d.number()
    d.require(f"away({x}, {n})")
    kind = d.below(6)
    if kind == 0:
        d.require(f"away({x}, 0.0)")
        return f"{x}.{d.pick('relu()', 'abs()', 'sign()')}"
    return (
        f"{x}.clamp(min={n})",
        f"{x}.clamp(max={n})",
        f"F.threshold({x}, {n}, {d.number()})",
        f"{x}.clamp({n}, {float(n) + 1})",
        f"F.hardtanh({x}, {float(n)}, {float(n) + 5})",
    )[kind - 1]


@value(3)
def smooth(d: Draw) -> str | None:
    x = d.floats()
    return x and d.pick(
        f"{x}.sin()",
        f"{x}.tanh()",
        f"{x}.sigmoid()",
        f"{x}.neg()",
        f"({x} * 0.1).exp()",
        f"({x} * {x} + 1).log()",
        f"({x} * {x} + 1).sqrt()",
        f"({x} * {x} + 1).reciprocal()",
        f"F.gelu({x})",
        f"F.silu({x})",
        f"F.softplus({x})",
        f"torch.erf({x})",
        f"{x}.square()",
        f"{x}.clone()",
        f"torch.zeros_like({x})",
        f"torch.ones_like({x}) * {x}",
    )


@value(4)
def of_two(d: Draw) -> str | None:
    x = d.floats()
    y = x and d.like(x)
    return y and d.pick(
        f"{x} + {y}",
        f"{y} - {x}",
        f"{x} * {y}",
        f"{x} / ({y} * {y} + 1)",
        f"torch.add({x}, {y}, alpha={d.number()})",
        f"torch.sub({y}, {x}, alpha={d.number()})",
        f"torch.rsub({x}, {y}, alpha={d.number()})",
        f"torch.lerp({x}, {y}, {d.number()})",
        f"torch.addcmul({x}, {y}, {x}, value={d.number()})",
        f"torch.addcdiv({x}, {y}, {x} * {x} + 1, value={d.number()})",
        f"torch.atan2({x}, {y} * {y} + 1)",
        f"torch.hypot({x}, {y} + 3)",
    )


@value(1.5)
def extremes_of_two(d: Draw) -> str | None:
    x = d.floats()
    y = x and d.like(x)
    if not y or x == y:
        return None
    d.require(f"away({x} - {y}, 0.0)")
    return d.pick(f"torch.maximum({x}, {y})", f"torch.minimum({x}, {y})", f"torch.fmax({x}, {y})")


@value(3)
def masked(d: Draw) -> str | None:
    x = d.floats()
    m = x and d.mask(x)
    if not m:
        return None
    y = d.like(x) or x
    return d.pick(
        f"{x}.masked_fill({m}, {d.number()})",
        f"{x}.masked_fill({m}, {d.number()})",
        f"torch.where({m}, {x}, {y})",
        f"torch.where({m}, {x}, {d.number()})",
        f"torch.where({m}, {d.number()}, {x})",
        f"{x} * {m}",
    )


@value(1.5)
def condition(d: Draw) -> str | None:
    """What later statements take as a mask."""
    if (x := d.floats()) is None:
        return None
    n = d.number()
    d.require(f"away({x}, {n})")
    return f"{x} {d.pick('>', '<', '>=')} {n}"


@value(0.7)
def logic(d: Draw) -> str | None:
    m = d.some(lambda v: v.dtype.is_floating_point is False and v.dtype.is_signed is False)
    return m and d.pick(f"~{m}", f"{m} & {m}", f"{m}.logical_xor({m})", f"{m}.long()", f"{m}.double()")


@value(0.7)
def integers(d: Draw) -> str | None:
    i = d.ints()
    return i and d.pick(f"{i} + 1", f"{i} % {d.pick(2, 3)}", f"{i}.double()", f"{i} == 2", f"{i} * 2 - 1")


@value(0.5)
def other_type(d: Draw) -> str | None:
    x = d.floats()
    return x and d.pick(f"{x}.float().double()", f"{x}.to(torch.float32)", f"{x}.double()")


@value(1)
def placed(d: Draw) -> str | None:
    x = d.floats(1)
    return x and f"place({x}, '{d.placements()}')"


@value(0.5)
def by_item(d: Draw) -> str | None:
    x = d.floats()
    return x and f"{x} * float({x}.sum().tanh())"
