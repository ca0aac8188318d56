"""Small models as people export them, each with its inputs and dynamic sizes: what the tests of
exported programs run."""

import dataclasses
import math

import torch
from torch import nn
from torch.export import Dim, export
from torch.nn import functional as F


class Mlp(nn.Module):
    def __init__(self, width=12, hidden=24):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class GptBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, width // self.heads).transpose(1, 2) for t in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2: learned positions, one projection for q, k and v, tied embeddings."""

    def __init__(self, words=24, width=24, heads=4, layers=1, longest=16):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, shared_heads, hidden):
        super().__init__()
        self.heads, self.shared_heads, self.size = heads, shared_heads, width // heads
        self.norm1 = RmsNorm(width)
        self.q = nn.Linear(width, heads * self.size, bias=False)
        self.k = nn.Linear(width, shared_heads * self.size, bias=False)
        self.v = nn.Linear(width, shared_heads * self.size, bias=False)
        self.o = nn.Linear(heads * self.size, width, bias=False)
        self.norm2 = RmsNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape

        def heads(t, count):
            return t.view(batch, length, count, self.size).transpose(1, 2)

        def rotate(t):
            half = torch.cat((-t[..., self.size // 2 :], t[..., : self.size // 2]), -1)
            return t * cos + half * sin

        y = self.norm1(x)
        q = rotate(heads(self.q(y), self.heads))
        k = rotate(heads(self.k(y), self.shared_heads))
        v = heads(self.v(y), self.shared_heads)
        repeats = self.heads // self.shared_heads
        k, v = (
            t[:, :, None].expand(batch, self.shared_heads, repeats, length, self.size).reshape(
                batch, self.heads, length, self.size
            )
            for t in (k, v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(batch, length, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """RoPE, grouped queries, SwiGLU, RMSNorm, tied embeddings."""

    def __init__(self, words=24, width=24, heads=6, shared_heads=3, hidden=36, layers=1, longest=16):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, shared_heads, hidden) for _ in range(layers))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        size = width // heads
        speed = 1.0 / 10000 ** (torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(longest).float(), speed)
        self.register_buffer("cos", torch.cat((angles, angles), -1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat((angles, angles), -1).sin(), persistent=False)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos[:length], self.sin[:length])
        return self.head(self.norm(x))


class BertBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        q, k, v = (
            f(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for f in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(width // self.heads) + mask
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
        x = self.norm1(x + self.o(y))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    """An encoder with a padding mask; gives the hidden states and the pooled first one."""

    def __init__(self, words=24, width=24, heads=4, layers=1, longest=16):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.norm = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(BertBlock(width, heads) for _ in range(layers))
        self.pool = nn.Linear(width, width)

    def forward(self, tokens, *, mask):
        x = self.norm(self.words(tokens) + self.places(torch.arange(tokens.shape[1])))
        bias = (1.0 - mask[:, None, None, :].to(x.dtype)) * -1e9
        for block in self.blocks:
            x = block(x, bias)
        return {"states": x, "pooled": torch.tanh(self.pool(x[:, 0]))}


class Vit(nn.Module):
    def __init__(self, image=8, patch=4, width=24, heads=4, layers=1, classes=6):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, heads, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.places
        return self.head(self.encoder(x)[:, 0])


class Moe(nn.Module):
    """A mixture of experts as exports have it: every expert computes, the gate weighs."""

    def __init__(self, width=12, hidden=16, experts=4, chosen=2):
        super().__init__()
        self.gate = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, hidden) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)
        self.chosen = chosen

    def forward(self, x):
        weights, experts = self.gate(x).softmax(-1).topk(self.chosen, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        gates = torch.zeros_like(self.gate(x)).scatter(-1, experts, weights)
        y = F.silu(torch.einsum("btw,ewh->beth", x, self.up))
        y = torch.einsum("beth,ehw->betw", y, self.down)
        return torch.einsum("betw,bte->btw", y, gates)


@dataclasses.dataclass
class Case:
    """A model, the inputs of its export, and other inputs of the same program."""

    model: nn.Module
    args: tuple
    kwargs: dict
    dynamic: dict
    other: tuple  # (args, kwargs) of another shape


def _tokens(*shape):
    return torch.randint(0, 24, shape)


def cases():
    """By name, in the order in which one would read them."""
    torch.manual_seed(1)
    batch, length = Dim("batch", max=32), Dim("length", min=2, max=16)
    mask = torch.ones(3, 8).tril(4)
    other_mask = torch.ones(2, 5).tril(3)
    image = torch.randn(3, 3, 8, 8)
    return {
        "mlp": Case(Mlp(), (torch.randn(3, 8, 12),), {}, {"x": {0: batch, 1: length}}, ((torch.randn(2, 5, 12),), {})),
        "gpt": Case(Gpt(), (_tokens(3, 8),), {}, {"tokens": {0: batch, 1: length}}, ((_tokens(2, 5),), {})),
        "llama": Case(Llama(), (_tokens(3, 8),), {}, {"tokens": {0: batch, 1: length}}, ((_tokens(2, 5),), {})),
        "bert": Case(
            Bert(),
            (_tokens(3, 8),),
            {"mask": mask},
            {"tokens": {0: batch, 1: length}, "mask": {0: batch, 1: length}},
            ((_tokens(2, 5),), {"mask": other_mask}),
        ),
        "vit": Case(Vit().eval(), (image,), {}, {"images": {0: batch}}, ((torch.randn(5, 3, 8, 8),), {})),
        "moe": Case(Moe(), (torch.randn(3, 8, 12),), {}, {"x": {0: batch, 1: length}}, ((torch.randn(2, 5, 12),), {})),
    }


FORMS = ("raw", "decomposed", "core")


def refusal(name, *, dynamic):
    """Why this version of torch cannot export the case of this name; None if it can."""
    if name == "llama" and dynamic and torch.__version__.startswith("2.11."):
        return "torch 2.11 cannot export it with a dynamic length: min(4 s, 8 s) == 4 s is not solved"
    return None


def exported(case, form, *, dynamic):
    """The case as an ExportedProgram: raw, after run_decompositions({}), or in core ATen."""
    program = export(case.model, case.args, case.kwargs, dynamic_shapes=case.dynamic if dynamic else None)
    if form == "decomposed":
        return program.run_decompositions({})
    return program.run_decompositions() if form == "core" else program
