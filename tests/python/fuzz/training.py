"""Statements of training: backward, hooks, optimizers, random numbers, users' functions."""

import torch

from grammar import Draw, effect, value


def _loss(d: Draw) -> str | None:
    found = d.names(lambda v: v.requires_grad and v.is_floating_point())
    if not found:
        return None
    terms = []
    for x in d.rng.sample(found, min(len(found), d.pick(1, 2, 3))):
        x = f"{x}.double()"
        scale = d.pick("0.5", "2.0")
        terms.append(d.pick(f"({x} * {x}).sum()", f"{x}.sum() * {scale}", f"{x}.sin().mean()"))
    return " + ".join(terms)


@effect(1)
def backward(d: Draw) -> str | None:
    loss = _loss(d)
    return loss and f"({loss}).backward(retain_graph={d.pick('True', 'False')})"


@value(0.7)
def gradient(d: Draw) -> str | None:
    loss = _loss(d)
    x = d.some(lambda v: v.requires_grad)
    create = d.pick("", ", create_graph=True")
    return loss and x and f"torch.autograd.grad({loss}, {x}{create}, retain_graph=True)[0]"


@effect(1.5)
def hook(d: Draw) -> str | None:
    x = d.some(lambda v: v.requires_grad)
    what = d.pick(
        f"register_hook(lambda g: g * {d.number()})",
        "register_hook(lambda g: seen.append(g.detach().clone()))",
        "register_hook(lambda g: seen.append(g.sum().item()))",
        "retain_grad()",
        "register_hook(lambda g: g + g.mean())",
        "register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))",
    )
    # libtorch crashes where the hook of a view finds that its base was written to.
    return x and f"{x}.grad_fn, {x}.{what}"


@value(0.5)
def own_function(d: Draw) -> str | None:
    x = d.floats()
    return x and f"Halves.apply({x})[{d.pick(0, 1)}]"


@value(0.7)
def recomputed(d: Draw) -> str | None:
    x = d.some(lambda v: v.requires_grad)
    return x and f"checkpoint(lambda t: (t * t).tanh() * {d.number()}, {x}, use_reentrant=False)"


@value(0.5)
def functional(d: Draw) -> str | None:
    """torch.func; not forward mode, which thread ranks refuse."""
    x = d.floats(1)
    return x and d.pick(
        f"torch.func.vmap(lambda t: (t * t).sin() + {d.number()})({x})",
        f"torch.func.vmap(lambda t: t.tanh() * 2, in_dims={d.dim(x)})({x})",
        f"torch.func.grad(lambda t: (t * t).sin().sum())({x}.detach())",
        f"torch.func.vmap(torch.func.grad(lambda t: t.sin().sum()))({x}.detach())",
        f"torch.func.vjp(lambda t: t * t, {x}.detach())[1]({x}.detach())[0]",
    )


@value(0.5)
def leaf(d: Draw) -> str | None:
    x = d.floats()
    return x and f"{x}.detach().clone().requires_grad_()"


@value(1)
def optimizer(d: Draw) -> str | None:
    leaves = d.leaves()
    if not leaves:
        return None
    some = ", ".join(d.rng.sample(leaves, 1 + d.below(len(leaves))))
    nets = [name for name in d.env if name.startswith("net")]
    if nets and d.chance(0.7):
        some = f"*{d.rng.choice(nets)}.parameters(), " + d.pick("", some)
    rate = d.pick("lr=0.1", "lr=0.01")
    return d.pick(
        f"torch.optim.SGD([{some}], {rate}, momentum=0.9)",
        f"torch.optim.AdamW([{some}], {rate}, weight_decay=0.1, foreach={d.pick('True', 'False')})",
        f"torch.optim.Adagrad([{some}], {rate})",
        f"torch.optim.RMSprop([{some}], {rate}, momentum=0.5)",
        f"torch.optim.Adam([{some}], {rate}, amsgrad=True, fused={d.pick('True', 'False')})",
    )


@effect(1.5)
def step(d: Draw) -> str | None:
    found = [n for n in d.env if n.startswith("opt")]
    if not found:
        return None
    name, what = d.rng.choice(found), d.pick("step()", "step()", "zero_grad()")
    if what == "step()" and not isinstance(d.env[name], torch.optim.SGD):
        d.require(f"steady({name})")
    return f"{name}.{what}"


@effect(0.3)
def clip(d: Draw) -> str | None:
    leaves = [x for x in d.leaves() if d.env[x].grad is not None]
    return f"torch.nn.utils.clip_grad_norm_([{', '.join(leaves)}], 0.5)" if leaves else None


@value(1, draws=True)
def random_values(d: Draw) -> str | None:
    x = d.floats()
    return x and d.pick(
        f"torch.rand_like({x})",
        f"torch.randn_like({x})",
        f"F.dropout({x}, {d.pick('0.5', '0.2', '0.0')})",
        f"torch.bernoulli(torch.sigmoid({x}.detach()))",
        f"torch.normal({x}.detach(), 0.5)",
        f"torch.rand_like({x}) * {x}",
    )


@effect(0.5, draws=True)
def random_write(d: Draw) -> str | None:
    x = d.some(lambda v: v.is_floating_point() and not v.requires_grad)
    return x and f"{x}.{d.pick('normal_()', 'uniform_(-1, 1)', 'bernoulli_(0.5)', 'exponential_()')}"
