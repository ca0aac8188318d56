"""Statements that write to a tensor in place: to variables, and to views of them."""

from artefacts import shares_elements
from grammar import Draw, effect


def _written(d: Draw, x: str) -> str:
    """The tensor itself, or a view of it that has no name."""
    shape = d.shape(x)
    if not shape or d.chance(0.5):
        return x
    dim = d.below(len(shape))
    size = shape[dim]
    if not size:
        return x
    start = d.below(size)
    return d.pick(
        f"{x}.select({dim}, {start})",
        f"{x}.narrow({dim}, {start}, {1 + d.below(size - start)})",
        f"{x}[{':, ' * dim}{start}:]",
        f"{x}.transpose(0, {dim})",
        f"{x}[{':, ' * dim}::2]",
        f"{x}.diagonal()" if len(shape) > 1 else f"{x}.view(-1)",
        f"{x}.unsqueeze({dim})",
    )


@effect(5)
def by_number(d: Draw) -> str | None:
    if (x := d.floats()) is None:
        return None
    n = d.number()
    return f"{_written(d, x)}." + d.pick(
        f"mul_({n})",
        f"add_({n})",
        f"sub_({n})",
        f"div_({d.pick('2.0', '-4.0')})",
        f"fill_({n})",
        "zero_()",
        "neg_()",
        "tanh_()",
        "sigmoid_()",
        "sin_()",
    )


@effect(1)
def kinked(d: Draw) -> str | None:
    if (x := d.floats()) is None:
        return None
    n = d.number()
    d.require(f"away({x}, {n})")
    return f"{_written(d, x)}.{d.pick(f'clamp_(min={n})', f'clamp_(max={n})')}"


def _apart_in_memory(d: Draw, x: str, y: str) -> bool:
    """What a write gives is not defined if it reads another view of the same memory."""
    storages = [d.env[n].untyped_storage().data_ptr() for n in (x, y)]
    return x == y or storages[0] != storages[1]


@effect(3)
def by_tensor(d: Draw) -> str | None:
    x = d.floats()
    y = x and d.like(x)
    if not y or not _apart_in_memory(d, x, y):
        return None
    return f"{x}." + d.pick(
        f"add_({y}, alpha={d.number()})",
        f"mul_({y})",
        f"copy_({y})",
        f"sub_({y})",
        f"addcmul_({y}, {y}, value={d.number()})",
        f"lerp_({y}, {d.pick('0.25', '0.75')})",
    )


@effect(3)
def part_by_tensor(d: Draw) -> str | None:
    """x[...] = y and its like; y may be computed from x itself."""
    if (x := d.floats(1)) is None:
        return None
    dim = d.below(len(d.shape(x)))
    part = d.stretch(x, dim)
    if not part:
        return None
    before = ":, " * dim
    start, length = part
    piece = f"{x}[{before}{start}:{start + length}]"
    one = f"{x}[{before}{start}]"
    source = d.pick(
        f"{x}.narrow({dim}, {d.below(d.shape(x)[dim] - length + 1)}, {length}).clone()",
        f"{x}.sum({dim}, keepdim=True)",
        d.number(),
        f"{x}.detach().mean()",
    )
    if source[0] != "x":
        return f"{d.pick(piece, one)} = {source}"
    return d.pick(f"{piece} = {source}", f"{piece} += {source}", f"{piece}.copy_({source})")


@effect(2.5)
def by_mask(d: Draw) -> str | None:
    x = d.floats()
    m = x and d.mask(x)
    return m and d.pick(
        f"{x}.masked_fill_({m}, {d.number()})",
        f"{x}.masked_fill_({m}, {d.number()})",
        f"{x}[{m}.expand_as({x})] = {d.number()}",
    )


@effect(2)
def by_index(d: Draw) -> str | None:
    if (x := d.floats(1)) is None:
        return None
    dim = d.dim(x) % len(d.shape(x))
    index = d.index(x, dim)
    if not index:
        return None
    before = ":, " * dim
    row = f"{x}.narrow({dim}, 0, 1).clone()"
    return d.pick(
        f"{x}.index_fill_({dim}, {index}, {d.number()})",
        f"{x}[{before}{index}] = {d.number()}",
        f"{x}.index_add_({dim}, {index}[:1], {row}, alpha={d.number()})",
        f"{x}.index_copy_({dim}, {index}[:1], {row})",
        f"{x}[{before}{index}[:1]] = {row}",
        f"{x}[{before}{index}[:1]] += {row}",
    )


@effect(0.5)
def to_integers(d: Draw) -> str | None:
    i = d.ints()
    return i and f"{_written(d, i)}.{d.pick('add_(1)', 'fill_(2)', 'zero_()', 'mul_(2)')}"


@effect(0.4)
def shape_in_place(d: Draw) -> str | None:
    """Not of a leaf: autograd would add a gradient of the old shape to it."""
    leaves = d.leaves()
    found = d.names(lambda v: v.is_floating_point() and v.dim() >= 2)
    x = d.rng.choice([n for n in found if n not in leaves] or [None])
    return x and d.pick(f"{x}.transpose_(0, 1)", f"{x}.unsqueeze_(0)", f"{x}.squeeze_()")


@effect(1)
def out_argument(d: Draw) -> str | None:
    """Into a tensor that exists and has the shape."""
    x = d.floats()
    if not x:
        return None
    shape, dtype = d.env[x].shape, d.env[x].dtype
    y = d.some(lambda v: v.shape == shape and v.dtype == dtype)
    if not y or not _apart_in_memory(d, x, y):
        return None
    mul = f"torch.mul({x}, {d.number()}, out={y})"
    tanh = f"torch.tanh({x}, out={y})"
    add = f"torch.add({x}, {y}, alpha={d.number()}, out={y})"
    what = d.pick(mul, add, tanh)
    if (x == y or what == add) and shares_elements(d.env[y]):
        return None  # an element would be read before or after its second write
    return f"with torch.no_grad(): {what}"


@effect(1)
def many(d: Draw) -> str | None:
    x, y = d.floats(), d.floats()
    if not x or not y or x == y or not _apart_in_memory(d, x, y):
        return None
    return d.pick(
        f"torch._foreach_mul_([{x}, {y}], {d.number()})",
        f"torch._foreach_add_([{x}, {y}], {d.number()})",
        f"torch._foreach_addcmul_([{x}, {y}], [{x}, {y}], [{x}, {y}], {d.number()})",
    )
