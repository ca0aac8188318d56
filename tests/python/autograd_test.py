"""Backward and random numbers where code of the program takes part: views that are written to, hooks,
functions of its own, seeds of its own. On thread ranks and on processes."""

import pytest
import torch

import tessera
from tessera import Replicate, Shard


def view_writes(mesh):
    for placement in (Replicate(), Shard(0)):
        for steps in (
            lambda z: z.select(1, 1).mul_(3),
            lambda z: z[:, 1:3].mul_(3),
            lambda z: z.t()[2].pow_(2),
            lambda z: z.unbind(1),
            lambda z: z.view(4, 3, 2)[:, 1].mul_(z[:, :1].detach().clone()),
        ):
            full = torch.arange(24.0).reshape(4, 6).requires_grad_()
            z = full * 1
            steps(z)
            (z * z).sum().backward()
            d = tessera.distribute_tensor(full.detach(), mesh, [placement]).requires_grad_()
            z = d * 1
            steps(z)
            (z * z).sum().backward()
            torch.testing.assert_close(tessera.full_tensor(d.grad), full.grad)


class OnlyFirst(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, b):
        return a + b

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def no_gradient(mesh):
    local = torch.ones(2, 6, requires_grad=True)
    a = tessera.distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)]).requires_grad_()
    for b in (
        tessera.from_local(local, mesh, [Shard(0)]),
        tessera.redistribute(tessera.from_local(local, mesh, [Shard(0)]), [Shard(1)]),
    ):
        OnlyFirst.apply(a, b).sum().backward()
    assert local.grad is None
    assert tessera.full_tensor(a.grad).tolist() == torch.full((4, 6), 2.0).tolist()


class Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.weight = weight
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.weight, None


def plain_tensors(mesh):
    stats = torch.zeros(4, 6)
    x = tessera.distribute_tensor(torch.ones(4, 6), mesh, [Shard(0)]).requires_grad_()
    hook = x.register_hook(lambda g: stats.add_(g) and None)
    with pytest.raises(RuntimeError, match="a plain tensor of shape 4x6"):
        (x * 2).sum().backward()
    hook.remove()
    assert not tessera.is_dtensor(stats)
    x.register_post_accumulate_grad_hook(lambda p: stats.add_(p.grad) and None)
    with pytest.raises(RuntimeError, match="a plain tensor of shape 4x6"):
        (x * 2).sum().backward()
    x = x.detach().requires_grad_()
    with pytest.raises(RuntimeError, match="a plain tensor of shape 4x6"):
        Weighted.apply(x, stats + 1).sum().backward()
    for reentrant in (True, False):
        with pytest.raises(RuntimeError, match="a plain tensor of shape 4x6"):
            recomputed(x, stats + 1, reentrant).sum().backward()


def saved_offsets(mesh):
    """F.embedding_bag makes offsets in Python, which its derivative reads. Beside a hook, no program holds them."""
    if torch.__version__.startswith(("2.11", "2.12")):
        return  # where that cannot be known, it is refused
    table, rows = torch.randn(4, 3, dtype=torch.float64), torch.randint(0, 4, (3, 2))
    grads = []
    for weight, bags in ((table, rows), [tessera.distribute_tensor(t, mesh, "S0") for t in (table, rows)]):
        weight.requires_grad_()
        y = torch.nn.functional.embedding_bag(bags, weight, mode="sum")
        y.register_hook(lambda g: g * 2)
        y.sin().sum().backward()
        grads.append(weight.grad)
    torch.testing.assert_close(tessera.full_tensor(grads[1]), grads[0])


def recomputed(x, plain, reentrant):
    calls = []

    def block(y):  # plain only when it is computed again
        calls.append(1)
        return (y + (plain if len(calls) > 1 else 3)).exp()

    return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=reentrant)


def seeds(mesh):
    rank = tessera.current_world().rank
    x = tessera.distribute_tensor(torch.ones(64, 6), mesh, [Replicate()])
    tessera.manual_seed(42 + rank)
    for draw in (
        lambda: torch.nn.functional.dropout(x),
        lambda: torch.rand_like(x),
        lambda: torch.multinomial(x, 2),
    ):
        with pytest.raises(RuntimeError, match="rank 0 has the seed 42, rank 1 has 43"):
            draw()
    rows = tessera.redistribute(x, [Shard(0)])
    torch.nn.functional.dropout(rows)
    tessera.manual_seed(42)
    y = torch.nn.functional.dropout(x)
    assert torch.equal(tessera.to_local(y), tessera.full_tensor(tessera.redistribute(y, [Shard(0)])))


def forward_mode(mesh):
    """On processes alone: libtorch's levels of such derivatives belong to the process, not to a thread."""
    full = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(4, 6)

    def f(t):
        return (t.sin() @ t.t()).sum(0)

    of = {
        "jvp": lambda x: torch.func.jvp(f, (x,), (x * 0.5,))[1],
        "jacfwd": torch.func.jacfwd(f),
        "hessian": torch.func.hessian(lambda t: f(t).sum()),
    }
    for name, derivative in of.items():
        for placement in (Replicate(), Shard(0), Shard(1)):
            x = tessera.distribute_tensor(full, mesh, [placement])
            torch.testing.assert_close(tessera.full_tensor(derivative(x)), derivative(full), msg=name)
    for placement in (Replicate(), Shard(0), Shard(1)):  # a second operand, which has no tangent
        w = tessera.distribute_tensor(full, mesh, [placement])
        x = tessera.distribute_tensor(full[0], mesh, [Shard(0)])
        of_both = torch.func.jvp(lambda t: (w @ t).tanh(), (x,), (x * 0.5,))[1]
        expected = torch.func.jvp(lambda t: (full @ t).tanh(), (full[0],), (full[0] * 0.5,))[1]
        torch.testing.assert_close(tessera.full_tensor(of_both), expected)
        jacobian = torch.func.jacfwd(lambda t: (w @ t).tanh())(x)
        expected = torch.func.jacfwd(lambda t: (full @ t).tanh())(full[0])
        torch.testing.assert_close(tessera.full_tensor(jacobian), expected)


BODIES = [view_writes, no_gradient, plain_tensors, saved_offsets, seeds]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_on_thread_ranks(ranks, body):
    ranks(2, lambda _: body(tessera.init_device_mesh("tp=2")))


def test_forward_mode_is_refused_on_thread_ranks():
    """One rank at a time: the level that one has entered is visible to all."""

    def main(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = tessera.distribute_tensor(torch.ones(4, 6), mesh, "S0", src_data_rank=None)
        if rank == 0:
            with pytest.raises(RuntimeError, match="forward-mode derivatives .* on thread ranks"):
                torch.func.jvp(torch.sin, (x,), (x,))
            with pytest.raises(RuntimeError, match="forward-mode derivatives .* on thread ranks"):
                torch.func.jacfwd(torch.sin)(x)

    tessera.run_ranks(2, main)
    assert torch.func.jvp(torch.sin, (torch.zeros(2),), (torch.ones(2),))[1].tolist() == [1.0, 1.0]


def test_on_processes(torchrun):
    torchrun(
        2,
        """
        import autograd_test, tessera
        mesh = tessera.init_device_mesh("tp=2")
        for body in [*autograd_test.BODIES, autograd_test.forward_mode]:
            body(mesh)
        """,
    )
