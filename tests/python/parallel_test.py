"""parallelize_module on torch.nn modules: styles, plans, and what a step sends."""

import copy
import importlib
import warnings

import pytest
import torch
from torch import nn

import tessera
from tessera.compat import parallel as compat


class Attention(nn.Module):
    def __init__(self, width=8, heads=4):
        super().__init__()
        self.head_size = width // heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, width, bias=False)
        self.wv = nn.Linear(width, width, bias=False)
        self.wo = nn.Linear(width, width)

    def forward(self, x):
        # Local heads: -1 is what this rank has.
        q, k, v = (w(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
                   for w in (self.wq, self.wk, self.wv))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width=8, hidden=10):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(13, 8)
        self.layers = nn.ModuleList(Block() for _ in range(2))
        self.double()

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return x


PLAN = {
    "embedding": tessera.RowwiseParallel(),
    "layers.*.attention.w[qkv]": tessera.ColwiseParallel(),
    "layers.*.attention.wo": tessera.RowwiseParallel(),
    "layers.*.up": tessera.ColwiseParallel(),
    "layers.*.down": tessera.RowwiseParallel(),
}


def trained(model, tokens, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(tokens).square().mean().backward()
        optimizer.step()
    return {
        name: tessera.full_tensor(p) if tessera.is_dtensor(p) else p.detach()
        for name, p in model.named_parameters()
    }


TOKENS = torch.arange(10).reshape(2, 5) % 13


@pytest.mark.parametrize("size", [2, 4])
def test_a_plan_trains_as_one_rank(size):
    expected = trained(Model(), TOKENS)

    def body(rank):
        mesh = tessera.init_device_mesh(f"tp={size}")
        model = tessera.parallelize_module(Model(), mesh, copy.deepcopy(PLAN))
        assert str(tessera.placements(model.layers[0].up.weight)) == "(Shard(0),)"
        return trained(model, TOKENS)

    for got in tessera.run_ranks(size, body):
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, rtol=0, atol=1e-9)


def test_a_layer_sends_two_all_reduces_each_way():
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        model = tessera.parallelize_module(Block().double(), mesh, {
            "attention.w[qkv]": tessera.ColwiseParallel(),
            "attention.wo": tessera.RowwiseParallel(),
            "up": tessera.ColwiseParallel(),
            "down": tessera.RowwiseParallel(),
        })
        x = torch.ones(2, 5, 8, dtype=torch.float64, requires_grad=True)
        model(x).sum().backward()
        with tessera.Recorder() as recorder:
            y = model(x)
            forward = recorder.count()
            y.sum().backward()
        return forward, recorder.count()

    assert tessera.run_ranks(2, body) == [(2, 4)] * 2


def test_a_layer_by_sequence_sends_two_gathers_and_two_reductions_each_way():
    """Queries, keys and values use one gathered input; the norm's gradients are one all_reduce."""
    torch.manual_seed(1)
    plain = Block().double()
    x = torch.arange(96, dtype=torch.float64).reshape(2, 6, 8).sin()
    expected = copy.deepcopy(plain)
    out = expected(x)
    out.square().sum().backward()
    sequence = tessera.Shard(1)
    by_inputs = tessera.RowwiseParallel(output_layouts=sequence, use_local_output=False)

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        model = tessera.parallelize_module(copy.deepcopy(plain), mesh, {
            "norm": tessera.SequenceParallel(), "attention.wo": by_inputs, "down": by_inputs,
            "attention.w[qkv]": tessera.ColwiseParallel(input_layouts=sequence),
            "up": tessera.ColwiseParallel(input_layouts=sequence),
        })
        given = tessera.distribute_tensor(x, mesh, "S1").requires_grad_()
        with tessera.Recorder() as forward:
            y = model(given)
        torch.testing.assert_close(tessera.full_tensor(y), out)
        loss = y.square().sum()
        with tessera.Recorder() as backward:
            loss.backward()
        for own, other in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(tessera.full_tensor(own.grad), other.grad)
        ops = "all_gather", "reduce_scatter", "all_reduce"
        return [[sent.count(op, "tp") for op in ops] + [sent.count()] for sent in (forward, backward)]

    assert tessera.run_ranks(2, body) == [[[2, 2, 0, 4], [2, 2, 1, 5]]] * 2


def test_a_sequence_is_split():
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        torch.manual_seed(1)
        plain = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(6, 8)).double()
        model = tessera.parallelize_module(copy.deepcopy(plain), mesh, {
            "0": tessera.SequenceParallel(),
            "1": tessera.ColwiseParallel(input_layouts=tessera.Shard(1)),
            "2": tessera.RowwiseParallel(output_layouts=tessera.Shard(1)),
        })
        x = torch.arange(96, dtype=torch.float64).reshape(2, 6, 8).sin()
        y = model(x.chunk(2, 1)[rank])
        torch.testing.assert_close(y, plain(x).chunk(2, 1)[rank])
        y.square().sum().backward()
        plain(x).square().sum().backward()
        for own, other in zip(model.parameters(), plain.parameters()):
            torch.testing.assert_close(tessera.full_tensor(own.grad), other.grad)
        return True

    assert all(tessera.run_ranks(2, body))


def test_inputs_and_outputs_are_prepared():
    class Two(nn.Module):
        def forward(self, x, scale=None):
            return x * scale, x

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        seen = []
        model = Two()
        style = tessera.PrepareModuleInputOutput(
            input_layouts=tessera.Shard(0),
            desired_input_layouts=tessera.Replicate(),
            input_kwarg_layouts={"scale": tessera.Replicate()},
            desired_input_kwarg_layouts={"scale": tessera.Replicate()},
            output_layouts=(tessera.Replicate(), None),
            desired_output_layouts=(tessera.Shard(0), None),
        )
        tessera.parallelize_module(model, mesh, style)
        scaled, whole = model(torch.full((2, 2), float(rank)), scale=torch.tensor(3.0))
        seen.append((scaled.tolist(), tuple(whole.shape)))
        return seen

    assert tessera.run_ranks(2, body) == [
        [([[0.0, 0.0], [0.0, 0.0]], (4, 2))], [([[3.0, 3.0], [3.0, 3.0]], (4, 2))]
    ]


def test_bad_plans_are_errors_before_anything_changes():
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        said = []
        for plan in (
            {"up": tessera.ColwiseParallel(), "dwn": tessera.RowwiseParallel()},
            {"up": tessera.ColwiseParallel(), "norm": tessera.ColwiseParallel()},
            {"up": "colwise", "down": "sideways"},
        ):
            model = Block()
            with pytest.raises((tessera.Error, NotImplementedError)) as error:
                tessera.parallelize_module(model, mesh, plan)
            said.append(str(error.value))
            assert not any(tessera.is_dtensor(p) for p in model.parameters())
        return said

    said = tessera.run_ranks(2, body)[0]
    assert "'dwn'" in said[0] and "down" in said[0]
    assert "only support nn.Linear" in said[1]
    assert "sideways" in said[2]


def test_compat_has_all_names_of_pytorch():
    import torch.distributed.tensor.parallel as theirs

    assert set(theirs.__all__) == set(compat.__all__)
    names = {name for name in dir(theirs) if not name.startswith("_")}
    submodules = ("api", "style", "loss", "input_reshard", "ddp", "fsdp")
    assert names <= set(dir(compat)) | {"input_reshard", "fsdp", "ddp"}, names - set(dir(compat))
    for name in submodules:
        own = importlib.import_module(f"tessera.compat.parallel.{name}")
        peer = importlib.import_module(f"torch.distributed.tensor.parallel.{name}")
        assert set(peer.__all__) == set(own.__all__), name


@pytest.mark.parametrize("mesh_text", ["dp=2,tp=2", "dp=3,tp=2", "dp=2,tp=3"])
def test_fully_shard_and_a_plan_in_either_order(mesh_text):
    x = torch.arange(6 * 5 * 8, dtype=torch.float64).reshape(6, 5, 8).sin()

    plain = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8), nn.LayerNorm(8)).double()

    def steps(model, part):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        for _ in range(10):
            optimizer.zero_grad()
            model(part).square().mean().backward()
            optimizer.step()
        return [tessera.full_tensor(p.detach()) if tessera.is_dtensor(p) else p.detach()
                for p in model.parameters()]

    expected = steps(copy.deepcopy(plain), x)

    def body(rank):
        mesh = tessera.init_device_mesh(mesh_text)
        part = x.chunk(mesh.size(0))[mesh["dp"].get_local_rank()]
        placed = []
        for plan_first in (True, False):
            model = copy.deepcopy(plain)
            actions = [
                lambda: tessera.parallelize_module(model, mesh["tp"], {
                    "0": tessera.ColwiseParallel(), "2": tessera.RowwiseParallel()}),
                lambda: [tessera.fully_shard(model[2], mesh["dp"]), tessera.fully_shard(model, mesh["dp"])],
            ]
            for act in actions if plan_first else reversed(actions):
                act()
            placed.append([str(tessera.sharding(p)) for p in model.parameters()])
            for got, value in zip(steps(model, part), expected):
                torch.testing.assert_close(got, value, rtol=0, atol=1e-9)
        assert placed[0] == placed[1]
        return True

    ranks = 1
    for axis in mesh_text.split(","):
        ranks *= int(axis.split("=")[1])
    assert all(tessera.run_ranks(ranks, body))


def test_gradients_on_two_meshes_are_clipped_together():
    """The norm is not in the plan: its parameters are on dp alone."""
    x = torch.arange(64, dtype=torch.float64).reshape(4, 2, 8).sin()
    plain = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 12), nn.Linear(12, 8)).double()
    expected = copy.deepcopy(plain)
    expected(x).square().sum().div(2).backward()
    norm = nn.utils.clip_grad_norm_(expected.parameters(), 0.1)

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2,tp=2")
        model = copy.deepcopy(plain)
        tessera.parallelize_module(model, mesh["tp"], {
            "1": tessera.ColwiseParallel(), "2": tessera.RowwiseParallel()})
        tessera.fully_shard(model, mesh["dp"])
        model(x.chunk(2)[mesh["dp"].get_local_rank()]).square().sum().backward()
        torch.testing.assert_close(tessera.clip_grad_norm_(model.parameters(), 0.1), norm)
        for own, other in zip(model.parameters(), expected.parameters(), strict=True):
            torch.testing.assert_close(tessera.full_tensor(own.grad), other.grad)
        return True

    assert all(tessera.run_ranks(4, body))


def test_a_plan_after_fully_shard_that_is_wrong_changes_nothing():
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2,tp=2")
        model = tessera.fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), mesh["dp"])
        for over, plan in ((mesh["tp"], {"0": tessera.ColwiseParallel(), "2": tessera.RowwiseParallel()}),
                           (mesh["dp"], {"0": tessera.ColwiseParallel()})):
            with pytest.raises(tessera.InvalidArgument):
                tessera.parallelize_module(model, over, plan)
            assert all(tessera.device_mesh(p) == mesh["dp"] for p in model.parameters())
        model(torch.ones(1, 4)).sum().backward()
        with pytest.raises(tessera.InvalidArgument, match="has a gradient"):
            tessera.parallelize_module(model, mesh["tp"], {"0": tessera.ColwiseParallel()})
        return True

    assert all(tessera.run_ranks(4, body))


def test_compat_warns_about_a_path_that_matches_nothing():
    def body(rank):  # one rank: threads share the filters of warnings
        mesh = tessera.init_device_mesh("tp=1")
        with pytest.warns(UserWarning, match="could not be resolved"):
            compat.parallelize_module(Block(), mesh, {"nothing": compat.ColwiseParallel()})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            compat.parallelize_module(Block(), mesh, {"up": compat.ColwiseParallel()})
        return True

    assert tessera.run_ranks(1, body)[0]


@pytest.mark.parametrize("places", [6, 7])
def test_overlapped_products_give_the_same(places):
    """Async tensor parallelism: a batch of 3 in pieces of 2 and 1, over 2 ranks."""
    torch.manual_seed(1)
    plain = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 6), nn.Linear(6, 8)).double()
    x = torch.arange(24 * places, dtype=torch.float64).reshape(3, places, 8).sin()
    expected = copy.deepcopy(plain)
    expected(x).square().sum().backward()

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        model = tessera.parallelize_module(copy.deepcopy(plain), mesh, {
            "0": tessera.SequenceParallel(),
            "1": tessera.ColwiseParallel(input_layouts=tessera.Shard(1), overlap=2),
            "2": tessera.RowwiseParallel(output_layouts=tessera.Shard(1), overlap=2),
        })
        with tessera.Recorder() as recorder:
            y = model(x.chunk(2, 1)[rank])
        sent = recorder.count("all_gather", "tp"), recorder.count("reduce_scatter", "tp")
        torch.testing.assert_close(y, expected(x).chunk(2, 1)[rank])
        y.square().sum().backward()
        for own, other in zip(model.parameters(), expected.parameters()):
            torch.testing.assert_close(tessera.full_tensor(own.grad), other.grad)
        return sent

    assert tessera.run_ranks(2, body) == [(2, 2)] * 2


def test_overlap_needs_a_linear():
    def body(rank):
        with pytest.raises(tessera.InvalidArgument, match="for nn.Linear"):
            tessera.parallelize_module(nn.Embedding(4, 4), tessera.init_device_mesh("tp=2"),
                                       tessera.ColwiseParallel(overlap=2))
        return True

    assert all(tessera.run_ranks(2, body))


def test_the_gradients_of_all_norms_are_one_message():
    torch.manual_seed(1)
    plain = nn.Sequential(*(nn.LayerNorm(8) for _ in range(5))).double()
    x = torch.arange(96, dtype=torch.float64).reshape(2, 6, 8).sin()
    plain(x).square().sum().backward()

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        model = copy.deepcopy(plain)
        model.zero_grad()
        model = tessera.parallelize_module(model, mesh, {"*": tessera.SequenceParallel()})
        y = model(x.chunk(2, 1)[rank])
        with tessera.Recorder() as recorder:
            y.square().sum().backward()
        for own, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert tessera.placements(own.grad)[0] == tessera.Replicate()
            torch.testing.assert_close(tessera.full_tensor(own.grad), other.grad)
        return recorder.count()

    assert tessera.run_ranks(2, body) == [1, 1]
