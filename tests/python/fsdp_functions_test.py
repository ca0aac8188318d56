"""Functions of torch that are written in Python, or that vmap batches, take parameters of fully_shard and
their views as plain tensors, as PyTorch's FSDP does."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tessera
from models import TIGHT

MASK = torch.tensor([True, False, True])


def embed(indexes, table):
    return F.embedding(indexes, table)


def bag_of_weights(x, i, w):
    return F.embedding_bag(i, x[:7], per_sample_weights=w.view(-1)[:12].view(4, 3), mode="sum")


# name: (function of a plain x [12, 3], plain indexes [4, 3] below 5, and w; the shape of w)
CASES = {
    "loss of a view": (lambda x, i, w: F.linear_cross_entropy(x, w.reshape(7, 3), i.view(-1)), (7, 3)),
    "loss of a slice": (lambda x, i, w: F.linear_cross_entropy(x, w[1:6], i.view(-1)), (7, 3)),
    "loss of a view of a view": (
        lambda x, i, w: F.linear_cross_entropy(x, w.t().t()[:5], i.view(-1)),
        (7, 3),
    ),
    "bags": (lambda x, i, w: F.embedding_bag(i, w), (7, 3)),
    "bags of a slice": (lambda x, i, w: F.embedding_bag(i, w[:5]), (7, 3)),
    "bags of a part of a view": (lambda x, i, w: F.embedding_bag(i, w.view(2, 5, 3).unbind()[1]), (10, 3)),
    "bags with weights of a view": (bag_of_weights, (5, 3)),
    "mean of a view": (lambda x, i, w: torch.masked.mean(w[:5], dim=1, mask=MASK.expand(5, 3)), (7, 3)),
    "vmap of tables": (lambda x, i, w: torch.vmap(embed)(i, w), (4, 5, 3)),
    "vmap of a view of tables": (lambda x, i, w: torch.vmap(embed)(i, w.view(4, 5, 3)), (20, 3)),
    "vmap of tables as second dim": (lambda x, i, w: torch.vmap(embed, (0, 1))(i, w), (5, 4, 3)),
    "vmap of one table": (lambda x, i, w: torch.vmap(embed, (0, None))(i, w), (5, 3)),
    "vmap of a slice": (lambda x, i, w: torch.vmap(embed, (0, None))(i, w[1:6]), (7, 3)),
    "vmap of a slice inside": (lambda x, i, w: torch.vmap(lambda one: embed(one, w[1:6]))(i), (7, 3)),
    "vmap of a view inside": (lambda x, i, w: torch.vmap(lambda n, t: embed(n, t[:5]))(i, w), (4, 7, 3)),
    "vmap of vmap": (lambda x, i, w: torch.vmap(torch.vmap(embed, (0, None)), (0, None))(i, w), (5, 3)),
    "vmap of bags of a slice": (
        lambda x, i, w: torch.vmap(lambda one: F.embedding_bag(one.view(1, 3), w[:5]))(i),
        (7, 3),
    ),
    "vmap of gradients": (
        lambda x, i, w: torch.vmap(torch.func.grad(lambda t, n: embed(n, t).square().sum()))(w, i),
        (4, 5, 3),
    ),
    "gradient of a slice": (
        lambda x, i, w: torch.func.grad(lambda t: embed(i, t[:5]).square().sum())(w),
        (7, 3),
    ),
}
if not hasattr(F, "linear_cross_entropy"):  # not in every version of torch
    CASES = {name: case for name, case in CASES.items() if not name.startswith("loss")}
WAYS = ("train", "checkpoint", "reentrant", "no_grad", "inference")


def ways_of_gradients():
    """torch.func.grad refuses the hooks of checkpoint; of older torch it is zero in inference mode."""
    with torch.inference_mode():
        records = bool(torch.func.grad(torch.square)(torch.ones(())))
    return [way for way in WAYS if way != "checkpoint" and (records or way != "inference")]


RUNS = [(name, way) for name in CASES for way in (ways_of_gradients() if "gradient" in name else WAYS)]


def numbers(seed):
    """Not torch.manual_seed, which thread ranks share."""
    return torch.Generator().manual_seed(seed)


def inputs(rank):
    x = torch.randn(12, 3, generator=numbers(1 + rank)).double().requires_grad_()
    return x, torch.randint(0, 5, (4, 3), generator=numbers(1 + rank))


class Net(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.function, shape = CASES[name]
        self.scale = nn.Parameter(torch.linspace(1, 2, 3).double())
        self.w = nn.Parameter(torch.rand(shape, generator=numbers(0)).double() + 0.1)

    def inner(self, x, indexes):
        return self.function(x * self.scale, indexes, self.w)

    def forward(self, x, indexes, way):
        if way not in ("checkpoint", "reentrant"):
            return self.inner(x, indexes)
        return checkpoint(self.inner, x, indexes, use_reentrant=way == "reentrant")


def value(net, way, rank):
    """What the net computes in that way; where it trains, of two steps of gradients."""
    if way == "no_grad":
        with torch.no_grad():
            return net(*inputs(rank), way)
    if way == "inference":
        with torch.inference_mode():
            return net(*inputs(rank), way)
    for _ in range(2):
        result = net(*inputs(rank), way)
        result.square().sum().backward()
    return result.detach()


def gradients_of_both(plain, way):
    """The mean over the ranks, each of which has inputs of its own."""
    for rank in range(2):
        value(plain, way, rank)
    return [None if p.grad is None else p.grad / 2 for p in plain.parameters()]


def compare_with_plain(rank, name, way):
    plain = Net(name)
    net = tessera.fully_shard(copy.deepcopy(plain), tessera.init_device_mesh("dp=2"))
    found = value(net, way, rank)
    assert not tessera.is_dtensor(found)
    torch.testing.assert_close(found, value(copy.deepcopy(plain), way, rank), **TIGHT)
    for p, gradient in zip(net.parameters(), gradients_of_both(plain, way), strict=True):
        assert (p.grad is None) == (gradient is None)
        if gradient is not None:
            torch.testing.assert_close(tessera.full_tensor(p.grad), gradient, **TIGHT)


@pytest.mark.parametrize(("name", "way"), RUNS)
def test_values_and_gradients_are_those_of_the_plain_module(ranks, name, way):
    ranks(2, lambda rank: compare_with_plain(rank, name, way))


def test_on_processes(torchrun):
    torchrun(
        2,
        """
        import os
        import fsdp_functions_test as cases
        for name, way in cases.RUNS:
            cases.compare_with_plain(int(os.environ["RANK"]), name, way)
        """,
    )


def compare_modules(plain, rank, call, **options):
    """One step of a module that is sharded as a whole, with other inputs on each rank."""
    net = tessera.fully_shard(copy.deepcopy(plain), tessera.init_device_mesh("dp=2"), **options)
    found = call(net, rank)
    found.sum().backward()
    expected = [call(plain, each) for each in range(2)]
    (sum(each.sum() for each in expected) / 2).backward()
    close = {"rtol": 0.05, "atol": 0.05} if options else TIGHT
    torch.testing.assert_close(found.double(), expected[rank], **close)
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(tessera.full_tensor(p.grad), q.grad, **close)


LOW = {"mp_policy": tessera.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}


@pytest.mark.skipif(not hasattr(nn, "LinearCrossEntropyLoss"), reason="this torch has no LinearCrossEntropyLoss")
@pytest.mark.parametrize("options", [{}, LOW], ids=["float64", "bfloat16"])
def test_a_linear_cross_entropy_loss_takes_plain_batches(ranks, options):
    def call(loss, rank):
        x, indexes = inputs(rank)
        return loss(x.detach(), indexes.view(-1))

    plain = nn.LinearCrossEntropyLoss(3, 5).double()
    ranks(2, lambda rank: compare_modules(copy.deepcopy(plain), rank, call, **options))


def test_a_module_with_an_embedding_is_batched_by_vmap(ranks):
    plain = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3)).double()

    def call(net, rank):
        return torch.vmap(net)(inputs(rank)[1])

    ranks(2, lambda rank: compare_modules(copy.deepcopy(plain), rank, call))


def test_parameters_are_read_outside_of_their_module(ranks):
    """After forward too, by a program that looks up rows of an embedding itself."""
    plain = nn.Sequential(nn.Embedding(7, 3), nn.Linear(3, 3)).double()

    def call(net, rank):
        indexes = inputs(rank)[1]
        table = net[0].weight
        batched = torch.vmap(embed, (0, None))(indexes[:, 0], table[1:6])
        return net(indexes).mean(1) + F.embedding_bag(indexes, table[:5]) + batched

    ranks(2, lambda rank: compare_modules(copy.deepcopy(plain), rank, call))


def test_plain_tensors_among_sharded_ones_stay_refused(ranks):
    """Also beside views of such parameters, and views of sharded tensors are no such views."""

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        net = tessera.fully_shard(Net("bags"), mesh)
        indexes, sharded = inputs(rank)[1], tessera.distribute_tensor(torch.ones(7, 3).double(), mesh, "S0")
        batch = tessera.distribute_tensor(indexes, mesh, "S0")
        batched = torch.vmap(embed, (0, None))
        weights = torch.ones(4, 3).double()
        calls = [
            lambda w: F.embedding_bag(indexes, sharded),
            lambda w: F.embedding_bag(indexes, sharded[:5]),
            lambda w: F.embedding_bag(indexes, sharded.detach().t().t()),
            lambda w: F.embedding_bag(batch, w[:5], per_sample_weights=weights, mode="sum"),
            lambda w: F.embedding_bag(indexes, w[:5], per_sample_weights=sharded[:4], mode="sum"),
            lambda w: torch.masked.mean(sharded, dim=0, mask=torch.ones(7, 3, dtype=torch.bool)),
            lambda w: batched(indexes, sharded),
            lambda w: batched(indexes, sharded[:5]),
            lambda w: torch.vmap(lambda i: embed(i, sharded[:5]))(indexes),
        ]
        for call in calls:
            net.function = lambda x, i, w, call=call: call(w)
            for context in (torch.enable_grad(), torch.no_grad()):
                with context, pytest.raises(tessera.InvalidArgument, match="plain tensor of shape"):
                    net(*inputs(rank), "train")

    ranks(2, body)


@pytest.mark.parametrize("placement", ["R", "S0", "S1"])
def test_parameters_that_are_sharded_over_other_axes_too_meet_no_plain_tensors(ranks, placement):
    """Plain indexes may differ on the ranks of the other axis, which each look up a part of the table."""

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2,tp=2")
        net = Net("bags")
        tessera.distribute_(net.w, mesh["tp"], [placement], src_data_rank=None)
        tessera.fully_shard(net, mesh["dp"], ignored_params=[net.scale])
        indexes = inputs(rank)[1]
        shared = inputs(0)[1]
        for table in (lambda w: w, lambda w: w[:5]):
            net.function = lambda x, i, w, table=table: F.embedding_bag(i, table(w))
            with pytest.raises(tessera.InvalidArgument, match="plain tensor of shape"):
                net(inputs(rank)[0], indexes, "train")
            batch = tessera.distribute_tensor(shared, mesh["tp"], ["R"], src_data_rank=None)
            expected = F.embedding_bag(shared, table(Net("bags").w))
            found = net(inputs(rank)[0], batch, "train")
            torch.testing.assert_close(tessera.full_tensor(found.detach()), expected.detach(), **TIGHT)

    ranks(4, body)
