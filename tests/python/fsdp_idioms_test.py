"""Code that reads the dtype of its weights trains under a bfloat16 policy as in full precision, in all
ways to train. What real models do, each in a few lines; sweep_models.py has the models."""

import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import tessera

LOW = tessera.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Convolutions(nn.Module):
    """Each compares the types of input and bias before it computes."""

    def __init__(self):
        super().__init__()
        self.one = nn.Conv1d(4, 6, 3, padding=1)
        self.two = nn.Conv2d(6, 4, 3, padding="same")
        self.three = nn.Conv3d(4, 4, 1)

    def forward(self, x):
        y = self.two(self.one(x.unflatten(1, (4, 2))).unsqueeze(-1))
        return self.three(y.unsqueeze(-1)).flatten(1)


class CastsToWeight(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x):
        scaled = x.float() * 0.5
        return self.layer(scaled.to(self.layer.weight.dtype))


class AsksModel(nn.Module):
    """As PreTrainedModel.dtype of transformers."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

    @property
    def dtype(self):
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    def forward(self, x):
        times = torch.arange(4, dtype=torch.float32).repeat(2)
        return self.inner(x + times.sin().to(self.dtype))


class T5Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        x = x * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
        if self.weight.dtype in (torch.float16, torch.bfloat16):
            x = x.to(self.weight.dtype)
        return self.out(self.weight * x)


class FloatRouter(nn.Module):
    """As the gate of DeepSeek, and the state of Mamba."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 64).reshape(8, 8))
        self.decay = nn.Parameter(torch.linspace(0, 1, 8))

    def forward(self, x):
        scores = F.linear(x.type(torch.float32), self.weight.type(torch.float32))
        return scores * -torch.exp(self.decay.float())


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, 3 * 64).reshape(3, 8, 8))

    def forward(self, x):
        out = torch.zeros_like(x)
        for expert in range(3):
            rows = torch.arange(expert, len(x), 3)
            done = F.linear(x[rows].float().to(self.weight.dtype), self.weight[expert])
            out.index_add_(0, rows, done.to(x.dtype))
        return out


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer = kind(4, 4, num_layers=2, batch_first=True)

    def forward(self, x):
        return self.layer(x.unflatten(1, (2, 4)))[0].flatten(1)


class Normalizations(nn.Module):
    """Running statistics stay float32."""

    def __init__(self):
        super().__init__()
        self.batch = nn.BatchNorm1d(8)
        self.image = nn.BatchNorm2d(2)
        self.instance = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
        self.out = nn.Linear(8, 8)

    def forward(self, x):
        x = self.image(self.batch(x).view(-1, 2, 2, 2)).flatten(1)
        return self.out(self.instance(x.view(-1, 2, 4)).flatten(1))


class Composites(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Parameter(torch.linspace(-1, 1, 8).reshape(1, 2, 4))
        self.slope = nn.PReLU()
        self.pair = nn.Bilinear(4, 4, 8)
        self.norm = nn.RMSNorm(8)

    def forward(self, x):
        x = self.slope(x).unflatten(1, (2, 4))
        seen = F.scaled_dot_product_attention(self.query.expand_as(x), x, x)
        return self.norm(self.pair(seen[:, 0], seen[:, 1]))


class ReadsFromOutside(nn.Module):
    """The parent asks a child that has not been entered, and that is a group of its own."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])

    def forward(self, x):
        for block in self.blocks:
            x = block((x.float() + 1).to(block.weight.dtype))
        return x


IDIOMS = {
    "convolutions": Convolutions,
    "casts_to_weight": CastsToWeight,
    "asks_model": AsksModel,
    "t5_norm": T5Norm,
    "float_router": FloatRouter,
    "experts": Experts,
    "lstm": functools.partial(Recurrent, nn.LSTM),
    "gru": functools.partial(Recurrent, nn.GRU),
    "normalizations": Normalizations,
    "composites": Composites,
    "reads_from_outside": ReadsFromOutside,
}


class Net(nn.Module):
    def __init__(self, idiom):
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.block = IDIOMS[idiom]()
        self.last = nn.Linear(8, 3)
        self.recompute = None  # whether by the older kind of checkpointing

    def forward(self, x):
        x = self.first(x)
        if self.recompute is None:
            out = self.block(x)
        else:
            out = checkpoint(self.block, x, use_reentrant=self.recompute)
        return self.last(out.to(x.dtype))


X, Y = torch.linspace(-1, 1, 48).reshape(6, 8), torch.linspace(0, 1, 18).reshape(6, 3)
WAYS = {
    "train": {},
    "checkpoint": {"recompute": False},
    "reentrant": {"recompute": True},
    "accumulate": {"backwards": 2},
    "evaluate": {"train": False},
}


def losses(net, recompute=None, backwards=1, train=True, clip=tessera.clip_grad_norm_):
    net.recompute = recompute
    net.train(train)
    if not train:
        with torch.no_grad():
            first = F.mse_loss(net(X).float(), Y).item()
        with torch.inference_mode():
            return [first, F.mse_loss(net(X).float(), Y).item()]
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    seen = []
    for _ in range(3):
        for _ in range(backwards):
            loss = F.mse_loss(net(X).float(), Y)
            loss.backward()
            seen.append(loss.item())
        clip(net.parameters(), 1.0)
        assert all(p.grad.dtype == torch.float32 for p in net.parameters())
        optimizer.step()
        optimizer.zero_grad()
    return seen


def sharded(net, groups=lambda net: [net.block], policy=LOW):
    mesh = tessera.init_device_mesh("dp=2")
    for module in [*groups(net), net]:
        tessera.fully_shard(module, mesh, mp_policy=policy)
    return net


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("idiom", IDIOMS)
def test_code_that_reads_dtypes_trains_as_in_full_precision(ranks, idiom, way):
    plain = Net(idiom)
    copies = [copy.deepcopy(plain) for _ in range(2)]
    want = losses(plain, clip=nn.utils.clip_grad_norm_, **WAYS[way])

    def body(rank):
        net = copies[rank]
        inner = list(net.block.blocks) if idiom == "reads_from_outside" else []
        sharded(net, lambda net: [*inner, net.block])
        got = losses(net, **WAYS[way])
        assert all(p.dtype == torch.float32 for p in net.parameters())
        assert got == pytest.approx(want, abs=0.05)
        for name, buffer in net.named_buffers():
            torch.testing.assert_close(buffer, plain.get_buffer(name), atol=0.05, rtol=0.05)

    ranks(2, body)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_types_and_replicas_work_alike(ranks, dtype):
    plain = Net("t5_norm")
    copies = [copy.deepcopy(plain) for _ in range(4)]
    want = losses(plain, clip=nn.utils.clip_grad_norm_)
    policy = tessera.MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)

    def body(rank):
        assert losses(sharded(copies[rank], policy=policy)) == pytest.approx(want, abs=0.05)
        whole = copies[2 + rank]
        tessera.replicate(whole, tessera.init_device_mesh("dp=2"), mp_policy=policy)
        assert losses(whole) == pytest.approx(want, abs=0.05)

    ranks(2, body)


def test_views_of_activations_are_recorded_as_without_shards(ranks):
    """libtorch records a parameter's views so that they can be taken again, which costs, and those
    of plain tensors by their strides."""

    def body(rank):
        layer = nn.Linear(4, 4, bias=False)
        tessera.fully_shard(layer, tessera.init_device_mesh("dp=2"))
        turned = layer.weight.t()
        assert not torch._C._is_view_replay_enabled()
        out = torch.ones(2, 3, 4) @ turned
        out.view(6, 4).sum().backward()
        assert torch.equal(tessera.full_tensor(layer.weight.grad), torch.full((4, 4), 6.0))
        with torch.no_grad():
            layer.weight.mul_(2)
        weight = tessera.full_tensor(layer.weight.detach())
        assert torch.equal((torch.eye(4) @ turned).detach(), weight.t())

    ranks(2, body)


def test_sparse_gradients_are_reduced_as_dense_ones(ranks):
    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(16, 8, sparse=True), nn.Linear(8, 4))

    indexes = torch.randint(0, 16, (4, 5), generator=torch.Generator().manual_seed(0))
    plain = net()
    for _ in range(2):  # the second is added to the first
        plain(indexes).square().mean().backward()

    def body(rank):
        sharded = tessera.fully_shard(net(), tessera.init_device_mesh("dp=2"))
        for _ in range(2):
            sharded(indexes.chunk(2)[rank]).square().mean().backward()
        for mine, p in zip(sharded.parameters(), plain.parameters(), strict=True):
            expected = p.grad.to_dense()
            torch.testing.assert_close(tessera.full_tensor(mine.grad), expected)

    ranks(2, body)
