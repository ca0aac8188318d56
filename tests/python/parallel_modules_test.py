"""parallelize_module on modules other than chains of Linear: convolutions, bags of embeddings, weights that two
modules share, calls by keyword, adapters; and modules that it refuses."""

import copy
import types

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

import tessera
from tessera import ColwiseParallel, Replicate, RowwiseParallel

TOKENS = torch.tensor([[1, 5, 11, 0], [7, 7, 2, 3]])


def numbers(*shape, step=0.7):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).mul(step).add(0.1).sin().view(shape)


def whole(tensor):
    return tessera.full_tensor(tensor) if tessera.is_dtensor(tensor) else tensor


def train(model, inputs, loss_of):
    """Losses of three steps, and the gradients of the first."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, grads = [], {}
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(model(*inputs))
        loss.backward()
        grads = grads or {name: whole(p.grad).clone() for name, p in model.named_parameters()
                          if p.grad is not None}
        optimizer.step()
        losses.append(whole(loss.detach()))
    return {"loss": torch.stack(losses), **grads}


def squares(out):
    return out.square().sum() / max(1, out.numel())


def words(logits):
    with tessera.loss_parallel():
        return F.cross_entropy(logits.flatten(0, 1), TOKENS.flatten())


def check(make, plan, *inputs, ranks=2, loss=squares):
    """Trains as one rank; returns the placements of the parameters."""
    plain = make().double()
    with torch.no_grad():
        for i, parameter in enumerate(plain.parameters()):
            parameter.copy_(numbers(*parameter.shape, step=0.37 + 0.01 * i) * 0.3)
    expected = train(copy.deepcopy(plain), inputs, loss)

    def body(rank):
        model = copy.deepcopy(plain)
        tessera.parallelize_module(model, tessera.init_device_mesh(f"tp={ranks}"), plan)
        got = train(model, inputs, loss)
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(got[name], value, rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name}: {text}")
        return {name: str(tessera.placements(p)[0]) if tessera.is_dtensor(p) else "plain"
                for name, p in model.named_parameters()}

    return tessera.run_ranks(ranks, body)[0]


def convolutions(kind, **options):
    return nn.Sequential(kind(3, 8, 3, **options), nn.ReLU(), kind(8, 4, 3, **options))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("kind", "dims"), [
    (nn.Conv1d, (9,)), (nn.Conv2d, (6, 5)), (nn.Conv3d, (5, 5, 6)), (nn.ConvTranspose2d, (4, 3))])
def test_channels_of_convolutions_are_split(kind, dims, ranks):
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    make = lambda: convolutions(kind)
    is_transposed = kind is nn.ConvTranspose2d
    placed = check(make, plan, numbers(2, 3, *dims), ranks=ranks)
    assert placed["0.weight"] == ("S1" if is_transposed else "S0") and placed["0.bias"] == "S0"
    assert placed["2.weight"] == ("S0" if is_transposed else "S1") and placed["2.bias"] == "R"
    check(make, plan, numbers(3, *dims), ranks=ranks)  # without a batch
    whole_channels = {"0": ColwiseParallel(output_layouts=Replicate()),
                      "2": RowwiseParallel(input_layouts=Replicate())}
    check(make, whole_channels, numbers(2, 3, *dims), ranks=ranks)


class Bag(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(12, 6, mode=mode), nn.Linear(6, 3)

    def forward(self, tokens, offsets=None, weights=None):
        return self.out(self.bag(tokens, offsets, per_sample_weights=weights))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_embeddings(mode):
    make = lambda: Bag(mode)
    by_words = {"bag": RowwiseParallel()}
    by_features = {"bag": ColwiseParallel(), "out": RowwiseParallel()}
    offsets = torch.tensor([0, 3, 4])
    for tokens in ((TOKENS,), (TOKENS.flatten(), offsets)):
        assert check(make, by_words, *tokens)["bag.weight"] == "S0"
        assert check(make, by_features, *tokens)["bag.weight"] == "S1"
    if mode == "sum":
        check(make, by_words, TOKENS.flatten(), offsets, numbers(8))
        check(make, by_features, TOKENS.flatten(), offsets, numbers(8), ranks=3)


class Tied(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.embedding, self.head = nn.Embedding(12, 6), nn.Linear(6, 12, bias=bias)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_a_module_whose_weight_another_one_splits(ranks, bias):
    """The plan names one of the two modules that share a weight; the other computes as before."""
    make = lambda: Tied(bias)
    for plan, layout in (
        ({"embedding": RowwiseParallel()}, "S0"),
        ({"embedding": ColwiseParallel(output_layouts=Replicate())}, "S1"),
        ({"head": ColwiseParallel(output_layouts=Replicate())}, "S0"),
        ({"head": RowwiseParallel(input_layouts=Replicate())}, "S1"),
        ({"head": "colwise_gather_output"}, "S0"),
        ({"embedding": RowwiseParallel(), "head": ColwiseParallel(use_local_output=False)}, "S0"),
    ):
        assert check(make, plan, TOKENS, ranks=ranks, loss=words)["embedding.weight"] == layout


def test_a_style_of_its_own_counts_for_a_tied_module():
    """Also if it comes in a later call: the logits stay sharded."""

    def body(rank):
        mesh, model = tessera.init_device_mesh("tp=2"), Tied(bias=True).double()
        tessera.parallelize_module(model, mesh, {"embedding": RowwiseParallel()})
        assert not tessera.is_dtensor(model(TOKENS))
        tessera.parallelize_module(model, mesh, {"head": ColwiseParallel(use_local_output=False)})
        return str(tessera.placements(model(TOKENS))[0])

    assert tessera.run_ranks(2, body) == ["S2", "S2"]


class ByKeyword(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x):
        return self.down(input=self.up(input=x))


def test_modules_may_be_called_by_keyword():
    check(ByKeyword, {"up": ColwiseParallel(), "down": RowwiseParallel()}, numbers(2, 5, 6), ranks=3)

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        layer = tessera.parallelize_module(nn.Linear(4, 4), mesh, ColwiseParallel())
        with pytest.raises(tessera.InvalidArgument, match="Linear was called without arguments"):
            layer()
        return True

    assert all(tessera.run_ranks(2, body))


class Adapted(nn.Module):
    """A frozen Linear with an adapter of low rank."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.down, self.up = nn.Linear(inputs, 2, bias=False), nn.Linear(2, outputs, bias=False)

    @property
    def weight(self):
        return self.base_layer.weight

    def forward(self, x):
        return self.base_layer(x) + self.up(self.down(x)) * 2


def adapted():
    return nn.Sequential(Adapted(6, 8), nn.GELU(), Adapted(8, 6))


@pytest.mark.parametrize("ranks", [2, 3])
def test_adapters_of_low_rank(ranks):
    placed = check(adapted, {"0.base_layer": ColwiseParallel(), "0.up": ColwiseParallel(),
                             "2.base_layer": RowwiseParallel(), "2.down": RowwiseParallel()},
                   numbers(2, 5, 6), ranks=ranks)
    assert placed["0.down.weight"] == placed["2.up.weight"] == "plain"


@pytest.mark.parametrize("size", [0, 1])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_batches_of_one_and_of_none(size, ranks):
    """Three hidden units: on four ranks the last has none."""
    make = lambda: nn.Sequential(nn.Linear(6, 3), nn.GELU(), nn.Linear(3, 6))
    check(make, {"0": ColwiseParallel(), "2": RowwiseParallel()}, numbers(size, 5, 6), ranks=ranks)


@pytest.mark.parametrize(("make", "texts"), [
    (adapted, ["weight is not a parameter of its own", "base_layer.weight"]),
    (lambda: nn.Sequential(weight_norm(nn.Linear(4, 4))), ["not a parameter of its own"]),
    (lambda: nn.Sequential(nn.Bilinear(3, 4, 5)), ["not Bilinear"]),
    (lambda: nn.Sequential(nn.Conv2d(4, 8, 3, groups=2)), ["without groups"]),
    (lambda: nn.Sequential(nn.Embedding(4, 4, sparse=True)), ["sparse gradients", "sparse=False"]),
])
@pytest.mark.parametrize("style", [ColwiseParallel, RowwiseParallel])
def test_modules_that_cannot_be_split_are_refused(make, texts, style):
    def body(rank):
        model = make()
        with pytest.raises(NotImplementedError) as error:
            tessera.parallelize_module(model, tessera.init_device_mesh("tp=2"), {"0": style()})
        assert all(text in str(error.value) for text in texts), error.value
        return any(tessera.is_dtensor(p) for p in model.parameters())

    assert tessera.run_ranks(2, body) == [False, False]


class Heads(nn.Module):
    """Grouped queries as transformers' models compute them."""

    def __init__(self, heads=4, kv_heads=2):
        super().__init__()
        self.head_dim = 3
        self.q, self.k, self.v = (nn.Linear(6, n * 3) for n in (heads, kv_heads, kv_heads))
        self.o = nn.Linear(heads * 3, 6)

    def forward(self, x):
        q, k, v = (w(x).view(*x.shape[:-1], -1, self.head_dim).transpose(1, 2) for w in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.o(out.transpose(1, 2).flatten(2))


class WithConfig(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = types.SimpleNamespace(num_attention_heads=4, num_key_value_heads=2)
        self.attention = Heads()

    def forward(self, x):
        return self.attention(x)


def test_heads_of_a_plan_of_words_must_divide():
    split = {"attention.[qkv]": "colwise", "attention.o": "rowwise"}
    gathered = {"attention.[qkv]": "colwise_gather_output", "attention.o": "rowwise_split_input"}
    check(WithConfig, split, numbers(2, 5, 6), ranks=2)
    for ranks, heads in ((3, 4), (4, 2)):
        check(WithConfig, gathered, numbers(2, 5, 6), ranks=ranks)  # as the message says

        def body(rank):
            model = WithConfig()
            with pytest.raises(tessera.InvalidArgument, match=f"{heads} heads, which cannot be divided over {ranks}"):
                tessera.parallelize_module(model, tessera.init_device_mesh(f"tp={ranks}"), split)
            return any(tessera.is_dtensor(p) for p in model.parameters())

        assert not any(tessera.run_ranks(ranks, body))
