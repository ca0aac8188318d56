"""Leaves that a program makes from parameters of fully_shard, as soft prompts and untied heads are: in no
group, so nothing would reduce their gradients. A backward that would accumulate one is refused, unless that
backward made the leaf, as recomputation does."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tessera
from models import TIGHT

X = torch.arange(12.0).double().view(4, 3) / 10
LOW = tessera.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w.t()

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient @ w, gradient.t() @ x


class ProductOfHalves(torch.autograd.Function):
    """Computes with results that autograd does not record."""

    @staticmethod
    def forward(ctx, x, w, compute):
        ctx.shape = w.shape
        return x.float() @ compute(w)

    @staticmethod
    def backward(ctx, gradient):
        return None, torch.ones(ctx.shape), None


class Recomputed(Product):
    """Computes again in backward, with leaves of its own."""

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            y = x @ w.t()
        y.backward(gradient)
        return x.grad, w.grad


class OwnGraph(torch.autograd.Function):
    """Records a graph of its own in forward."""

    @staticmethod
    def forward(ctx, x, w):
        with torch.enable_grad():
            ctx.leaves = x.detach().requires_grad_(), w.detach().requires_grad_()
            ctx.y = ctx.leaves[0] @ ctx.leaves[1].t()
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, gradient):
        return torch.autograd.grad(ctx.y, ctx.leaves, gradient)


def embedding():
    torch.manual_seed(0)
    return nn.Embedding(6, 3).double()


def made_in_no_grad(w):
    with torch.no_grad():
        return nn.Parameter(w[:2].clone())


def combined(w):
    return (w.detach() * 2 + w.data).requires_grad_()


def in_another_module(w):
    head = nn.Linear(3, 6, bias=False)
    head.register_parameter("weight", nn.Parameter(w.detach().clone()))
    return head.weight


# name: a new leaf from the weight [6, 3] of a sharded embedding
LEAVES = {
    "clone": lambda w: nn.Parameter(w.detach().clone()),
    "requires_grad_": lambda w: w.detach().clone().requires_grad_(),
    "rows": lambda w: nn.Parameter(w.detach()[:2].clone()),
    "rows without grad mode": made_in_no_grad,
    "view": lambda w: nn.Parameter(w.detach()[:2]),
    "same memory": lambda w: nn.Parameter(w.detach()),
    "of the parameter": lambda w: nn.Parameter(w),
    "data": lambda w: w.data.requires_grad_(),
    "cast": lambda w: nn.Parameter(w.detach().to(torch.float32)),
    "like": lambda w: torch.ones_like(w, requires_grad=True),
    "combined": combined,
    "in another module": in_another_module,
}


def with_hooks(x, w):
    w.register_hook(lambda gradient: gradient)
    w.register_post_accumulate_grad_hook(lambda leaf: None)
    return x @ w.t()


# name: what uses a leaf [n, 3] beside a plain x [2, 3]
USES = {
    "product": lambda x, w: x @ w.t(),
    "linear": lambda x, w: F.linear(x, w),
    "linear of rows": lambda x, w: F.linear(x, w[:2]),
    "concatenation": lambda x, w: torch.cat([w, x]),
    "look-up": lambda x, w: F.embedding(torch.tensor([0, 1]), w),
    "rows": lambda x, w: x * w[0],
    "split": lambda x, w: x @ w.split(1)[0].t(),
    "cast": lambda x, w: x.float() @ w.to(torch.float16).float().t(),
    "contiguous": lambda x, w: x @ w.t().contiguous(),
    "alone": lambda x, w: w.square().sum() * x.sum(),
    "number": lambda x, w: x.sum() * w,
    "function": lambda x, w: Product.apply(x, w),
    "function of rows": lambda x, w: Product.apply(x, w[:2]),
    "function of a cast": lambda x, w: ProductOfHalves.apply(x, w, lambda w: w.to(torch.float16).float().t()),
    "function of a result": lambda x, w: ProductOfHalves.apply(x, w, lambda w: (w * 2 + 1).t().float()),
    "checkpoint": lambda x, w: checkpoint(lambda x, w: x @ w.t(), x, w, use_reentrant=False),
    "hooks": with_hooks,
    "foreach": lambda x, w: torch._foreach_mul([w], 2.0)[0],
    "reentrant": lambda x, w: checkpoint(lambda x, w: x @ w.t(), x, w, use_reentrant=True),
    "reentrant around it": lambda x, w: checkpoint(
        lambda x: x @ w.t(), x.clone().requires_grad_(), use_reentrant=True
    ),
}
SCOPES = {
    "no scope": contextlib.nullcontext,
    "implicit_replication": tessera.implicit_replication,
    "loss_parallel": tessera.loss_parallel,
}


def refused(make, use, rank, scope=contextlib.nullcontext, mesh="dp=2", **options):
    """The backward raises on this rank, and the parameter trains as if nothing had been tried."""
    emb = tessera.fully_shard(embedding(), tessera.init_device_mesh(mesh), **options)
    w = make(emb.weight)
    assert tessera.is_dtensor(w) and w.is_leaf
    x = X.chunk(2)[rank % 2]
    with scope():
        loss = use(x.to(w.dtype), w).sum()
        with pytest.raises(RuntimeError, match="tessera.full_tensor"):
            loss.backward()
        assert w.grad is None
        computed = torch.bfloat16 if "mp_policy" in options else torch.float64
        (x.to(computed) @ emb.weight.t()).square().mean().backward()
    plain = embedding()
    (X @ plain.weight.t()).square().mean().backward()
    close = {"rtol": 0.05, "atol": 0.05} if "mp_policy" in options else TIGHT
    torch.testing.assert_close(tessera.full_tensor(emb.weight.grad), plain.weight.grad, **close)


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("leaf", LEAVES)
def test_a_leaf_is_refused_beside_plain_tensors(ranks, leaf, scope):
    ranks(2, lambda rank: refused(LEAVES[leaf], USES["product"], rank, SCOPES[scope]))


@pytest.mark.parametrize("use", USES)
def test_every_use_of_a_leaf_is_refused(ranks, use):
    for leaf in ("clone", "rows", "same memory"):
        ranks(2, lambda rank, leaf=leaf: refused(LEAVES[leaf], USES[use], rank))


@pytest.mark.parametrize("mesh", ["dp=2,fs=2", "dp=4"])
def test_on_other_meshes_and_options(ranks, mesh):
    for options in ({}, {"mp_policy": LOW}, {"gradient_divide_factor": 4.0, "reshard_after_forward": False}):
        ranks(4, lambda rank, o=options: refused(LEAVES["rows"], USES["product"], rank, mesh=mesh, **o))


def test_on_processes(torchrun):
    torchrun(
        2,
        """
        import os
        import fsdp_leaves_test as cases
        rank = int(os.environ["RANK"])
        for make in cases.LEAVES.values():
            for scope in cases.SCOPES.values():
                cases.refused(make, cases.USES["product"], rank, scope)
        for use in cases.USES.values():
            cases.refused(cases.LEAVES["clone"], use, rank)
        cases.train_what_the_message_says(rank)
        cases.compute_with_what_is_not_a_leaf(rank)
        cases.recompute_with_leaves(rank)
        """,
    )


def trained(make_head, x, rank_mean):
    """A head from the rows of an embedding after two steps."""
    holder = nn.Module()
    holder.emb = embedding()
    holder.head = nn.Module()
    make_head(holder)
    optimizer = torch.optim.SGD(holder.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (rank_mean(x @ holder.head.w.t()) + rank_mean(x @ holder.emb.weight.t())).backward()
        optimizer.step()
    return holder.head.w, holder.emb.weight


def train_what_the_message_says(rank):
    mesh = tessera.init_device_mesh("dp=2")

    def plain(holder):
        holder.head.w = nn.Parameter(holder.emb.weight.detach()[:2].clone())

    def sharded(holder):
        tessera.fully_shard(holder.emb, mesh)
        holder.head.w = nn.Parameter(tessera.full_tensor(holder.emb.weight.detach())[:2].clone())
        tessera.fully_shard(holder.head, mesh)

    def loss(y):
        return y.square().mean()

    found = trained(sharded, X.chunk(2)[rank], loss)
    for p, q in zip(found, trained(plain, X, loss), strict=True):
        torch.testing.assert_close(tessera.full_tensor(p.detach()), q.detach(), **TIGHT)


def test_what_the_message_says_trains_as_one_rank(ranks):
    ranks(2, train_what_the_message_says)


def compute_with_what_is_not_a_leaf(rank):
    """Each value has a gradient that ends in the parameter itself, or none."""
    x = X.chunk(2)[rank]

    def written(w):
        out = w.detach().clone()
        out.add_(w)
        return out

    def viewed(w):
        with torch.no_grad():
            view = w[:]
        return view + w

    def doubled(w):
        return w.t().t().to(torch.float64) * 2

    for of in (doubled, lambda w: w[:2].clone(), lambda w: w.t().t(), written, viewed):
        emb, plain = tessera.fully_shard(embedding(), tessera.init_device_mesh("dp=2")), embedding()
        (x @ of(emb.weight).t()).square().mean().backward()
        (X @ of(plain.weight).t()).square().mean().backward()
        torch.testing.assert_close(tessera.full_tensor(emb.weight.grad), plain.weight.grad, **TIGHT)
        frozen = emb.weight.detach().clone()
        torch.testing.assert_close(x @ frozen.t(), x @ plain.weight.t().detach(), **TIGHT)


def gradient_alone(x, w):
    leaf = w.detach().requires_grad_()
    (gradient,) = torch.autograd.grad((x @ leaf.t()).square().sum(), leaf)
    return x @ (w * gradient).t()


# name: what makes leaves of a weight and passes their gradients on itself
RECOMPUTED = {
    "reentrant": lambda x, w: checkpoint(lambda x, w: x @ w.t(), x, w, use_reentrant=True),
    "reentrant with a view": lambda x, w: checkpoint(lambda x, v: x @ v, x, w.t(), use_reentrant=True),
    "reentrant twice": lambda x, w: checkpoint(
        lambda x, w: checkpoint(lambda x, w: x @ w.t(), x, w, use_reentrant=True), x, w, use_reentrant=True
    ),
    "function": Recomputed.apply,
    "function of a cast": lambda x, w: Recomputed.apply(x.float(), w.to(torch.float32)),
    "graph of its own": OwnGraph.apply,
    "gradient alone": gradient_alone,
}


def recompute_with_leaves(rank):
    for name, use in RECOMPUTED.items():
        emb, plain = tessera.fully_shard(embedding(), tessera.init_device_mesh("dp=2")), embedding()
        for _ in range(2):
            use(X.chunk(2)[rank].clone().requires_grad_(), emb.weight).square().sum().backward()
            for x in X.chunk(2):
                (use(x.clone().requires_grad_(), plain.weight).square().sum() / 2).backward()
        close = {"rtol": 1e-5, "atol": 1e-5} if "cast" in name else TIGHT
        torch.testing.assert_close(tessera.full_tensor(emb.weight.grad), plain.weight.grad, **close)


def test_recomputation_makes_leaves_of_its_own(ranks):
    ranks(2, recompute_with_leaves)


def test_values_computed_from_parameters_are_allowed(ranks):
    ranks(2, compute_with_what_is_not_a_leaf)


def test_without_its_gradient_a_leaf_is_allowed(ranks):
    def body(rank):
        x, whole = X.chunk(2)[rank], embedding().weight
        emb = tessera.fully_shard(embedding(), tessera.init_device_mesh("dp=2"))
        leaf = nn.Parameter(emb.weight.detach().clone())
        with torch.no_grad():
            torch.testing.assert_close(x @ leaf.t(), x @ whole.t(), **TIGHT)
            torch.testing.assert_close(leaf.norm(), whole.norm(), **TIGHT)
            torch.testing.assert_close(Product.apply(x, leaf), x @ whole.t(), **TIGHT)
            torch.testing.assert_close(x @ (leaf * 2).t(), x @ whole.t() * 2, **TIGHT)
            leaf.mul_(2).add_(leaf)
        with torch.inference_mode():
            torch.testing.assert_close(x @ leaf.t(), x @ whole.t() * 4, **TIGHT)
        torch.testing.assert_close(x @ leaf.detach().t(), x @ whole.t().detach() * 4, **TIGHT)
        assert (leaf > torch.zeros(3)).equal(whole > 0)  # has no derivative
        leaf.requires_grad_(False)
        (x.clone().requires_grad_() @ leaf.t()).sum().backward()

    ranks(2, body)


def test_with_sharded_tensors_of_its_mesh_a_leaf_trains(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        emb, plain = tessera.fully_shard(embedding(), mesh), embedding()
        leaf = nn.Parameter(emb.weight.detach().clone())
        whole = nn.Parameter(plain.weight.detach().clone())
        x = tessera.distribute_tensor(X, mesh, [tessera.Shard(0)])
        for _ in range(2):
            (x @ leaf.t()).square().mean().backward()
            (X @ whole.t()).square().mean().backward()
        torch.testing.assert_close(tessera.full_tensor(leaf.grad), whole.grad, **TIGHT)

    ranks(2, body)


def test_a_transform_of_functions_gives_the_gradient_of_this_rank(ranks):
    """As torch.autograd.grad by a parameter does: nothing is accumulated."""

    def body(rank):
        x, whole = X.chunk(2)[rank], embedding().weight.detach()
        emb = tessera.fully_shard(embedding(), tessera.init_device_mesh("dp=2"))

        def gradient(w):
            return torch.func.grad(lambda w: (x @ w.t()).square().sum())(w)

        torch.testing.assert_close(gradient(emb.weight.detach().clone()), gradient(whole), **TIGHT)

    ranks(2, body)


def test_transforms_work_where_ranks_agree_on_gathers(ranks):
    def body(rank):
        torch.manual_seed(0)
        plain = nn.Linear(3, 5).double()
        net = tessera.fully_shard(copy.deepcopy(plain), tessera.init_device_mesh("dp=2"))
        tessera.set_reduce_unused_parameters(net, True)
        x = X.chunk(2)[rank]

        def gradient(module):
            return torch.func.grad(lambda x: module(x).square().sum())(x)

        for _ in range(2):
            torch.testing.assert_close(gradient(net), gradient(plain), **TIGHT)
            net.zero_grad()

    ranks(2, body)
