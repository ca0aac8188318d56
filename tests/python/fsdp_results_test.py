"""What ops on parameters of fully_shard alone give where autograd records nothing (evaluation, frozen
parameters, functions of one's own) is computed on the shards. Its views, some of which name strides, are
those of the plain result."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tessera
from models import TIGHT

VALUES = torch.randn(4, 4, 6, generator=torch.Generator().manual_seed(0)).double()

# name: a result of w [4, 4, 6], of shape [6, 4, 4] and not row-major
RESULTS = {
    "product": lambda w: w.permute(2, 0, 1) * 2,
    "cast": lambda w: w.permute(2, 0, 1).to(torch.float32),
    "cast of a slice": lambda w: torch.cat([w, w], 2)[:, :, ::2].permute(2, 0, 1).to(torch.float32),
    "clone": lambda w: w.permute(2, 0, 1).clone(),
    "resampled": lambda w: F.interpolate(w.permute(2, 0, 1)[None], (8, 8), mode="bilinear")[0, :, ::2, ::2],
}
VIEWS = {
    "flatten": lambda t: t.flatten(1),
    "flatten and more": lambda t: t.flatten(1).t().chunk(3)[1],
    "reshape": lambda t: t.reshape(6, 16),
    "row-major order": lambda t: t.permute(1, 2, 0).reshape(-1),
    "view": lambda t: t.permute(1, 2, 0).reshape(16, 6).view(2, 8, 6),
    "unflatten": lambda t: t.permute(1, 2, 0).unflatten(0, (2, 2)).permute(0, 3, 1, 2).reshape(2, 6, 8),
    "cast": lambda t: t.to(torch.float16).flatten(1),
    "none": lambda t: t,
}


def compare(placement, frozen):
    mesh = tessera.init_device_mesh("dp=2" if placement is None else "dp=2,tp=2")
    module = nn.Module()
    module.w = nn.Parameter(VALUES.clone(), requires_grad=not frozen)
    if placement is not None:
        tessera.distribute_(module.w, mesh["tp"], [placement], src_data_rank=None)
    tessera.fully_shard(module, mesh if placement is None else mesh["dp"])
    with torch.set_grad_enabled(frozen):
        for result in RESULTS.values():
            for view in VIEWS.values():
                found, expected = view(result(module.w)), view(result(VALUES))
                assert found.stride() == expected.stride()
                zero = torch.zeros_like(expected)
                if placement is not None:
                    zero = tessera.distribute_tensor(zero, mesh["tp"], ["R"], src_data_rank=None)
                value = zero + found
                if placement is not None:
                    value = tessera.full_tensor(value)
                torch.testing.assert_close(value, expected, **TIGHT)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("placement", [None, "R", "S0", "S1", "S2"])
def test_views_of_results_have_the_elements_of_plain_ones(ranks, placement, frozen):
    ranks(2 if placement is None else 4, lambda rank: compare(placement, frozen))


def test_on_processes(torchrun):
    torchrun(
        2,
        """
        import fsdp_results_test as cases
        for frozen in (False, True):
            cases.compare(None, frozen)
        """,
    )


class Product(torch.autograd.Function):
    """Computes with parameters alone where autograd does not record, as LoHa's weights do."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return (a @ b) * 2

    @staticmethod
    def backward(ctx, gradient):
        a, b = ctx.saved_tensors
        return gradient @ b.t() * 2, a.t() @ gradient * 2


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        numbers = torch.Generator().manual_seed(0)
        self.a = nn.Parameter(torch.randn(5, 2, generator=numbers).double())
        self.b = nn.Parameter(torch.randn(2, 3, generator=numbers).double())

    def forward(self, x):
        with torch.no_grad():
            scale = self.a.abs().max() + self.b.sum()
        return F.linear(x, Product.apply(self.a, self.b)) * scale + F.linear(x, (self.a @ self.b).detach())


class Block(nn.Module):
    """Recomputes a module: as checkpointing of the blocks of a model does."""

    def __init__(self, reentrant):
        super().__init__()
        self.adapted = Adapted()
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.adapted, x, use_reentrant=self.reentrant).square().sum()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("own_group", [False, True])
def test_recomputation_computes_as_forward_did(ranks, reentrant, own_group):
    def body(rank):
        plain, net = Block(reentrant), Block(reentrant)
        mesh = tessera.init_device_mesh("dp=2")
        tessera.fully_shard(net.adapted if own_group else net, mesh)
        inputs = torch.randn(2, 2, 2, 4, 3, generator=torch.Generator().manual_seed(1)).double()
        for _ in range(2):
            net(inputs[rank].clone().requires_grad_()).backward()
            for x in inputs:
                (plain(x.clone().requires_grad_()) / 2).backward()
        for p, q in zip(net.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(tessera.full_tensor(p.grad), q.grad, **TIGHT)

    ranks(2, body)


def test_data_is_written_in_place(ranks):
    """`p.data += x` gives p the data that it has."""

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        plain = nn.Linear(3, 5).double()
        net = tessera.fully_shard(copy.deepcopy(plain), mesh)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        x = torch.ones(2, 3).double()
        for _ in range(2):
            for module in (plain, net):
                module(x).sum().backward()
                for p in module.parameters():
                    p.data *= 0.5
                    p.data -= 0.1 * p.grad
                    p.data = p.data
            torch.optim.SGD(plain.parameters(), lr=0.1).step()
            optimizer.step()
        for p, q in zip(net.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(tessera.full_tensor(p.detach()), q.detach(), **TIGHT)
            torch.testing.assert_close(tessera.full_tensor(p.grad), q.grad, **TIGHT)
            with pytest.raises(RuntimeError, match="p.data.copy_"):
                p.data = p.data * 2

    ranks(2, body)
