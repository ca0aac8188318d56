"""Writes in place that accumulate, scatter or reorder, and steps of parameters without an optimizer."""

import torch

from grammar import Draw, effect


@effect(1.5)
def at_indices(d: Draw) -> str | None:
    if (x := d.floats(1)) is None:
        return None
    dim = d.dim(x) % len(d.shape(x))
    index = d.index(x, dim)
    if not index:
        return None
    count = len(d.env[index[1:].split()[0]])
    shape = d.shape(x)
    shape[dim] = count
    along = f"{index}.reshape({[-1 if i == dim else 1 for i in range(len(shape))]}).expand({shape})"
    source = f"{x}.detach().narrow({dim}, 0, 1).clone().expand({shape})"
    before = "slice(None), " * dim
    return d.pick(
        f"{x}.scatter_add_({dim}, {along}, {source})",
        f"{x}.index_add_({dim}, {index}, {source})",
        f"{x}.index_put_(({before.replace('slice(None)', f'constant(torch.arange({d.shape(x)[0]}))[:, None]')}{index},)"
        f", constant(torch.tensor({d.number()}, dtype={x}.dtype)), accumulate=True)"
        if dim < 2
        else f"{x}.index_fill_({dim}, {index}, {d.number()})",
        f"{x}.scatter_reduce_({dim}, {along}, {source}, '{d.pick('sum', 'mean')}', include_self={d.pick(True, False)})",
        f"{x}.scatter_({dim}, {along}, {d.number()})",
    )


@effect(1)
def by_mask(d: Draw) -> str | None:
    x = d.floats()
    m = x and d.mask(x)
    return m and d.pick(
        f"{x}.masked_scatter_({m}, {x}.detach().clone().flip(0) if {x}.dim() else {x}.detach().clone())",
        f"{x}[{m}.expand_as({x})] *= {d.number()}",
        f"{x}.masked_fill_(~{m}, {d.number()})",
        f"{x}.copy_(torch.where({m}, {x}.detach(), {d.number()}))",
    )


@effect(1)
def element_by_element(d: Draw) -> str | None:
    x = d.floats()
    if not x:
        return None
    forms = ["square_()", "erf_()", "atan_()", "sinh_()", "rsqrt_()", "exp_()", "pow_(2)", "mish_()"]
    form = d.rng.choice(forms)
    if form == "mish_()":
        return f"F.mish({x}, inplace=True)"
    if form in ("rsqrt_()", "exp_()", "sinh_()"):
        return f"{x}.tanh_().add_(2.0).{form}"
    return f"{x}.{form}"


@effect(0.7)
def along_a_dim(d: Draw) -> str | None:
    if (x := d.floats(1)) is None:
        return None
    dim = d.dim(x)
    forms = [f"{x}.cumsum_({dim})", f"{x}.copy_({x}.detach().flip({dim}))", f"{x}.renorm_(2, {dim}, 1.0)"]
    if len(d.shape(x)) == 2:
        forms += [f"{x}.tril_({d.pick(0, 1, -1)})", f"{x}.triu_()", f"{x}.fill_diagonal_({d.number()})"]
        if d.shape(x)[0] == d.shape(x)[1]:
            y = f"{x}.detach().clone()"
            forms += [f"{x}.addmm_({y}, {y}, beta=0.5)", f"{x}.copy_({x}.detach().t().clone())"]
    return d.rng.choice(forms)


@effect(0.7)
def lists(d: Draw) -> str | None:
    x = d.floats()
    if not x:
        return None
    same = d.env[x].shape
    y = d.some(lambda v: v.shape == same and v.dtype == d.env[x].dtype)
    if not y or d.env[x].untyped_storage().data_ptr() == d.env[y].untyped_storage().data_ptr():
        return None
    return d.pick(
        f"torch._foreach_copy_([{x}], [{y}])",
        f"torch._foreach_lerp_([{x}], [{y}], {d.pick('0.25', '0.5')})",
        f"torch._foreach_add_([{x}], [{y}], alpha={d.number()})",
        f"torch._foreach_mul_([{x}], [{y}])",
    )


@effect(0.7)
def steps(d: Draw) -> str | None:
    """As a training loop without an optimizer writes to its parameters."""
    found = [x for x in d.leaves() if d.env[x].grad is not None and d.env[x].grad.dtype == d.env[x].dtype]
    if not found:
        return None
    x = d.rng.choice(found)
    return d.pick(
        f"with torch.no_grad(): {x}.sub_({x}.grad, alpha=0.1)",
        f"with torch.no_grad(): {x} -= 0.1 * {x}.grad",
        f"with torch.no_grad(): {x}.mul_(0.5)",
        f"with torch.no_grad(): {x}.copy_({x} * 0.5)",
        f"{x}.grad = None",
        f"with torch.no_grad(): {x}.grad.zero_()",
    )
