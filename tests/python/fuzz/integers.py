"""Statements with integers and truth values: arithmetic, conversions, reductions, writes."""

import torch

from grammar import INTEGERS, Draw, effect, value


def _masks(d: Draw) -> str | None:
    return d.some(lambda v: v.dtype == torch.bool)


def _beside(d: Draw, name: str) -> str:
    """A tensor of the same shape and type, perhaps itself."""
    like = d.env[name]
    return d.some(lambda v: v.shape == like.shape and v.dtype == like.dtype) or name


@value(1.5)
def arithmetic(d: Draw) -> str | None:
    if (i := d.ints()) is None:
        return None
    j = _beside(d, i)
    n = d.pick(1, 2, 3, 5)
    return d.pick(
        f"{i} + {j}",
        f"{i} - {j} * {n}",
        f"{i} * {j}",
        f"{i} // {n}",
        f"{i} % {n}",
        f"{n} - {i}",
        f"{i} & {j}",
        f"{i} | {n}",
        f"{i} ^ {j}",
        f"{i} << 1",
        f"({i} - {n}).abs()",
        f"torch.maximum({i}, {j})",
        f"{i}.clamp({n - 3}, {n})",
        f"{i}.double()",
        f"{i}.float() * 0.5",
        f"{i} / {n}",
        f"{i}.to(torch.int32).long()",
        f"torch.gcd({i}, {j})",
    )


@value(1)
def of_other_types(d: Draw) -> str | None:
    """Short integers wrap around, numbers may widen the type, and two tensors have the wider one."""
    if (i := d.ints()) is None:
        return None
    shape = d.shape(i)
    j = d.some(lambda v: v.dtype in INTEGERS and list(v.shape) == shape) or i
    return d.pick(
        f"{i}.to(torch.uint8)",
        f"{i}.to(torch.int8)",
        f"{i}.to(torch.uint8).long()",
        f"{i}.to(torch.int8) * {d.pick(50, 100)}",
        f"{i} + {d.pick(0.5, -2.5, 1e-3)}",
        f"{i} * {d.pick(0.5, -2.5)}",
        f"{i} + True",
        f"{i} - {d.pick(5, 7, 100)}",
        f"-{i}",
        f"{i} + {j}",
        f"{i} * {j}",
        f"torch.fmax({i}, {j})",
        f"{i}.sign()",
        f"{i}.square()",
        f"torch.add({i}, {j}, alpha={d.pick(2, -3)})",
    )


@value(1)
def reduced(d: Draw) -> str | None:
    i = d.ints(least=1)
    if not i or not d.env[i].numel():
        return None
    dim = d.dim(i)
    return d.pick(
        f"{i}.sum({dim})",
        f"{i}.sum({dim}, dtype=torch.{d.pick('uint8', 'int8', 'int32')})",
        f"{i}.amax({dim}) - {d.pick(3, 100)}",
        f"-{i}.amin({dim})",
        f"{i}.amax({dim})",
        f"{i}.amin({dim}, keepdim=True)",
        f"({i} % 3).prod({dim})",
        f"{i}.cumsum({dim})",
        f"{i}.sort({dim})[0]",
        f"torch.bincount({i}.flatten().abs() % 7, minlength=7)",
        f"{i}.flip({dim})",
        f"({i} % 4).unique()",
        f"torch.cat([{i}, {i}], {dim})",
    )


@value(0.7)
def rounded(d: Draw) -> str | None:
    """Integers of what no rounding brings to another one."""
    if (x := d.floats()) is None:
        return None
    d.require(f"away(({x} * 4).frac().abs(), 0.5)")
    return f"({x} * 4).round().long()"


@value(1)
def truths(d: Draw) -> str | None:
    if (m := _masks(d)) is None:
        return None
    n = _beside(d, m)
    return d.pick(
        f"{m} & {n}",
        f"{m} | {n}",
        f"~{m}",
        f"{m} ^ {n}",
        f"{m}.logical_and({n})",
        f"{m}.long()",
        f"{m}.double() - 0.5",
        f"{m}.any({d.dim(m)})" if d.shape(m) else f"{m}.any()",
        f"{m}.all({d.dim(m)}, keepdim=True)" if d.shape(m) else f"{m}.all()",
        f"torch.count_nonzero({m})",
        f"{m}.sum({d.dim(m)})" if d.shape(m) else f"{m}.sum()",
        f"{m}.sum() + {d.pick(0.5, 1e-6)}",
    )


@value(0.7)
def compared(d: Draw) -> str | None:
    if (i := d.ints()) is None:
        return None
    j = _beside(d, i)
    return d.pick(f"{i} == {j}", f"{i} != {d.pick(0, 1, 2)}", f"{i} > {d.pick(0, 1, 2)}", f"{i} <= {j}")


@effect(1)
def written(d: Draw) -> str | None:
    if (i := d.ints()) is None:
        return None
    n = d.pick(1, 2, 3)
    forms = [f"{i}.sub_({n})", f"{i}.clamp_(max={n})", f"{i}.bitwise_or_({n})", f"{i}.remainder_({n})", f"{i}.neg_()"]
    if d.shape(i) and d.shape(i)[0]:
        row = d.below(d.shape(i)[0])
        forms += [f"{i}[{row}] = {n}", f"{i}[{row}:].add_({n})", f"{i}.cumsum_(0)", f"{i}[{i} > {n}] = {n}"]
    return d.rng.choice(forms)


@effect(0.7)
def truths_written(d: Draw) -> str | None:
    if (m := _masks(d)) is None:
        return None
    n = _beside(d, m)
    return d.pick(f"{m}.logical_not_()", f"{m}.logical_or_({n})", f"{m}.fill_({d.pick(True, False)})", f"{m}.bitwise_and_({n})")
