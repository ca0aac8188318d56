"""Statements that look at the same memory otherwise, and those that put tensors together."""

from grammar import Draw, value


def _any(d: Draw, least: int = 0) -> str | None:
    if d.chance(0.1):
        return d.some(lambda v: v.dim() >= least)
    return d.floats(least)


@value(3)
def select(d: Draw) -> str | None:
    if (x := _any(d, 1)) is None:
        return None
    dim = d.dim(x)
    size = d.shape(x)[dim]
    return f"{x}.select({dim}, {d.below(size) - d.pick(0, size)})" if size else None


@value(3)
def narrow(d: Draw) -> str | None:
    if (x := _any(d, 1)) is None:
        return None
    dim = d.dim(x)
    part = d.stretch(x, dim)
    return part and f"{x}.narrow({dim}, {part[0]}, {part[1]})"


@value(3)
def slices(d: Draw) -> str | None:
    if (x := _any(d, 1)) is None:
        return None
    items = []
    for size in d.shape(x):
        kind = d.below(5)
        if kind == 0 and size:
            items.append(str(d.below(size)))
        elif kind == 1:
            items.append(f"{d.below(size + 1)}:")
        elif kind == 2:
            items.append(f":{d.below(size + 2)}:{d.pick(1, 2)}")
        elif kind == 3:
            items.append("::2")
        else:
            items.append(":")
    if d.chance(0.2):
        items.insert(d.below(len(items) + 1), "None")
    return f"{x}[{', '.join(items)}]"


@value(2)
def transpose(d: Draw) -> str | None:
    x = _any(d, 2)
    return x and f"{x}.transpose({d.dim(x)}, {d.dim(x)})"


@value(1.5)
def permute(d: Draw) -> str | None:
    if (x := _any(d, 2)) is None:
        return None
    dims = list(range(len(d.shape(x))))
    d.rng.shuffle(dims)
    return f"{x}.permute({', '.join(map(str, dims))})"


def _reshaped(d: Draw, x: str) -> list[int]:
    """Its elements in other dims: two joined, or one split."""
    shape = d.shape(x)
    if len(shape) >= 2 and d.chance(0.6):
        at = d.below(len(shape) - 1)
        return [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]]
    for at in range(len(shape)):
        for factor in (2, 3, 5):
            if shape[at] and shape[at] % factor == 0:
                return [*shape[:at], factor, shape[at] // factor, *shape[at + 1 :]]
    return [-1] if 0 not in shape else shape


@value(2.5)
def view(d: Draw) -> str | None:
    x = _any(d)
    return x and f"{x}.{d.pick('view', 'reshape', 'reshape')}({_reshaped(d, x)})"


@value(1)
def flatten(d: Draw) -> str | None:
    x = _any(d, 1)
    return x and f"{x}.flatten({d.pick(0, 0, -2) if len(d.shape(x)) > 1 else 0})"


@value(1)
def squeeze(d: Draw) -> str | None:
    x = _any(d, 1)
    return x and d.pick(f"{x}.squeeze()", f"{x}.squeeze({d.dim(x)})")


@value(1)
def unsqueeze(d: Draw) -> str | None:
    x = _any(d)
    return x and f"{x}.unsqueeze({d.below(len(d.shape(x)) + 1)})"


@value(1)
def expand(d: Draw) -> str | None:
    if (x := _any(d)) is None:
        return None
    shape = [size if size != 1 else d.pick(1, 2, 3) for size in d.shape(x)]
    return f"{x}.expand({[d.pick(2, 3), *shape] if d.chance(0.4) else shape})"


@value(1)
def diagonal(d: Draw) -> str | None:
    x = d.some(lambda v: v.is_floating_point() and v.dim() >= 2)
    return x and f"{x}.diagonal({d.pick(0, 0, 1, -1)}, 0, 1)"


@value(1)
def split(d: Draw) -> str | None:
    if (x := _any(d, 1)) is None:
        return None
    dim = d.dim(x)
    form = d.pick(f"split({d.pick(1, 2, 3)}, {dim})", f"chunk({d.pick(2, 3)}, {dim})", f"unbind({dim})")
    return f"{x}.{form}[{d.pick(0, -1)}]"


@value(0.7)
def unfold(d: Draw) -> str | None:
    x = _any(d, 1)
    return x and f"{x}.unfold({d.dim(x)}, 2, {d.pick(1, 2)})"


@value(0.5)
def alias(d: Draw) -> str | None:
    x = _any(d)
    return x and f"{x}.{d.pick('detach()', 'view_as(' + x + ')', 'contiguous()', 'alias()')}"


@value(0.3)
def as_strided(d: Draw) -> str | None:
    x = _any(d, 2)
    return x and f"{x}.as_strided({d.shape(x)[::-1]}, {x}.stride()[::-1])"


@value(2)
def cat(d: Draw) -> str | None:
    if (x := d.floats(1)) is None:
        return None
    shape = d.env[x].shape
    same = [d.some(lambda v: v.shape == shape and v.dtype == d.env[x].dtype) for _ in range(d.pick(1, 2))]
    names = ", ".join([x, *[s for s in same if s]])
    return d.pick(f"torch.cat([{names}], {d.dim(x)})", f"torch.stack([{names}], {d.dim(x)})")


@value(1.5)
def rearrange(d: Draw) -> str | None:
    if (x := d.floats(1)) is None:
        return None
    dim = d.dim(x)
    return d.pick(
        f"{x}.flip({dim})",
        f"{x}.roll({d.pick(1, 2, -1)}, {dim})",
        f"{x}.repeat({[d.pick(1, 2) for _ in d.shape(x)]})",
        f"F.pad({x}, ({d.pick(0, 1, 2)}, {d.pick(0, 1, -1)}), value={d.number()})",
        f"{x}.tril({d.pick(0, 1, -1)})",
        f"{x}.triu({d.pick(0, 1, -1)})",
        f"{x}.repeat_interleave({d.pick(2, 3)}, {dim})",
        f"torch.diag_embed({x})",
        f"{x}.movedim({dim}, 0)",
    )
