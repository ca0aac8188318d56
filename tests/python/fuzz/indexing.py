"""Statements that read by index, and look-ups."""

import torch

from grammar import Draw, value


def _along(index: str, dim: int, dims: int) -> str:
    """The indices in a dim of their own, the others of size 1."""
    return f"{index}.reshape({[-1 if i == dim else 1 for i in range(dims)]})"


@value(2.5)
def by_tensor(d: Draw) -> str | None:
    if (x := d.floats(1)) is None:
        return None
    dim = d.dim(x) % len(d.shape(x))
    index = d.index(x, dim)
    before = ":, " * dim
    return index and d.pick(
        f"{x}[{before}{index}]",
        f"{x}.index_select({dim}, {index})",
        f"{x}.take_along_dim({_along(index, dim, len(d.shape(x)))}, {dim})",
    )


@value(1)
def by_pair(d: Draw) -> str | None:
    if (x := d.floats(2)) is None:
        return None
    i, j = d.index(x, 0), d.index(x, 1)
    return i and j and d.pick(f"{x}[{i}, {i} % {max(d.shape(x)[1], 1)}]", f"{x}[{i}][:, {j}]")


@value(1)
def by_list(d: Draw) -> str | None:
    if (x := d.floats(1)) is None or not d.shape(x)[0]:
        return None
    return f"{x}[{[d.below(d.shape(x)[0]) for _ in range(d.pick(1, 2, 3))]}]"


@value(1)
def by_mask(d: Draw) -> str | None:
    if (x := d.floats(1)) is None:
        return None
    shape = d.env[x].shape
    m = d.some(lambda v: v.dtype == torch.bool and v.dim() > 0 and v.shape == shape[: v.dim()])
    return m and f"{x}[{m}]"


@value(1.5)
def gather(d: Draw) -> str | None:
    if (x := d.floats(1)) is None:
        return None
    shape = d.shape(x)
    dim = d.dim(x)
    size = shape[dim]
    i = d.some(lambda v: str(v.dtype) == "torch.int64" and v.dim() == len(shape))
    if not i or not size:
        return None
    return f"{x}.gather({dim}, {i} % {size})"


@value(1.5)
def scatter(d: Draw) -> str | None:
    if (x := d.floats(1)) is None:
        return None
    dim = d.dim(x) % len(d.shape(x))
    index = d.index(x, dim)
    if not index:
        return None
    count = len(d.env[index[1:].split()[0]])
    shape = d.shape(x)
    shape[dim] = count
    along = _along(index, dim, len(shape))
    source = f"{x}.narrow({dim}, 0, 1).expand({shape})"
    return d.pick(
        f"{x}.index_add({dim}, {index}, {source}, alpha={d.number()})",
        f"{x}.index_fill({dim}, {index}, {d.number()})",
        f"{x}.scatter({dim}, {along}, {d.number()})",
        f"{x}.scatter_add({dim}, {along}.expand({shape}), {source})",
        f"torch.index_copy({x}, {dim}, {index}[:1], {x}.narrow({dim}, 0, 1))",
        f"torch.select_scatter({x}, {x}.select({dim}, 0) * 2, {dim}, {d.below(d.shape(x)[dim])})",
    )


@value(1.5)
def embedding(d: Draw) -> str | None:
    w = d.some(lambda v: v.is_floating_point() and v.dim() == 2 and v.shape[0] > 0)
    i = d.ints()
    return w and i and f"F.embedding({i} % {d.shape(w)[0]}, {w})"


@value(0.7)
def one_hot(d: Draw) -> str | None:
    i = d.ints()
    return i and f"F.one_hot({i} % 5, 5).double()"
