"""Writes the exported programs beside this file: python make.py [name ...], large for llama_large*.

Six small models, each in three forms (raw: as torch.export gives it; infer: run_decompositions({});
core: core ATen) and with static and with dynamic batch and length (_dynamic). Widths, heads and
words can be divided by 2, 3 and 4, except where that is the point: 6 key heads in llama. mlp, gpt
and llama are of float64, the others of float32.
"""

import math
import pathlib
import sys
from typing import NamedTuple

import torch
from torch import nn
from torch._export.serde.serialize import serialize
from torch.export import Dim, export, save
from torch.nn import functional as F

HERE = pathlib.Path(__file__).parent
WIDTH, HEADS, WORDS = 24, 12, 60


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Conv1d(nn.Module):
    """GPT-2's linear layer: the weight is transposed, and rows are flattened."""

    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_in, fan_out) * 0.1)
        self.bias = nn.Parameter(torch.randn(fan_out) * 0.1)

    def forward(self, x):
        size = x.size()[:-1] + (self.weight.size(1),)
        return torch.addmm(self.bias, x.reshape(-1, x.size(-1)), self.weight).view(size)


class GptBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.attn_proj = Conv1d(WIDTH, 3 * WIDTH), Conv1d(WIDTH, WIDTH)
        self.c_fc, self.mlp_proj = Conv1d(WIDTH, 4 * WIDTH), Conv1d(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        def heads(t):
            return t.view(t.shape[0], t.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)

        q, k, v = (heads(t) for t in self.c_attn(self.ln_1(x)).split(WIDTH, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(x.shape[0], x.shape[1], WIDTH).contiguous()
        x = x + self.dropout(self.attn_proj(y))
        return x + self.dropout(self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh")))


class Gpt(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(32, WIDTH)
        self.h = nn.ModuleList(GptBlock() for _ in range(layers))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, WORDS, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


class RmsNorm(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotate_half(x):
    a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-b, a), dim=-1)


class Sizes(NamedTuple):
    width: int = WIDTH
    heads: int = HEADS
    key_heads: int = 6
    hidden: int = 2 * WIDTH
    words: int = WORDS


class LlamaAttention(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.size, self.groups = sizes.width // sizes.heads, sizes.heads // sizes.key_heads
        self.q_proj = nn.Linear(sizes.width, sizes.width, bias=False)
        self.k_proj = nn.Linear(sizes.width, sizes.key_heads * self.size, bias=False)
        self.v_proj = nn.Linear(sizes.width, sizes.key_heads * self.size, bias=False)
        self.o_proj = nn.Linear(sizes.width, sizes.width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, _ = x.shape
        q, k, v = (
            p(x).view(batch, length, -1, self.size).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q, k = (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)

        def repeat(t):
            b, h, s, d = t.shape
            return t[:, :, None, :, :].expand(b, h, self.groups, s, d).reshape(b, h * self.groups, s, d)

        y = F.scaled_dot_product_attention(q, repeat(k), repeat(v), is_causal=True)
        return self.o_proj(y.transpose(1, 2).contiguous().view(batch, length, -1))


class LlamaMlp(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.gate_proj = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.up_proj = nn.Linear(sizes.width, sizes.hidden, bias=False)
        self.down_proj = nn.Linear(sizes.hidden, sizes.width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.input_layernorm = RmsNorm(sizes.width)
        self.post_attention_layernorm = RmsNorm(sizes.width)
        self.self_attn, self.mlp = LlamaAttention(sizes), LlamaMlp(sizes)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, sizes=Sizes(), layers=2):
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.words, sizes.width)
        self.layers = nn.ModuleList(LlamaBlock(sizes) for _ in range(layers))
        self.norm = RmsNorm(sizes.width)
        self.lm_head = nn.Linear(sizes.width, sizes.words, bias=False)
        self.lm_head.weight = self.embed_tokens.weight
        size = sizes.width // sizes.heads
        self.register_buffer("inv_freq", 1.0 / 10000 ** (torch.arange(0, size, 2) / size), persistent=False)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(0)
        angles = places[:, :, None].to(x.dtype) * self.inv_freq[None, None, :].to(x.dtype)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))


class BertLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.output, self.norm_1 = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)
        self.intermediate, self.dense = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm_2 = nn.LayerNorm(WIDTH)

    def forward(self, x, bias):
        def heads(t):
            return t.view(t.shape[0], t.shape[1], HEADS, WIDTH // HEADS).permute(0, 2, 1, 3)

        q, k, v = heads(self.query(x)), heads(self.key(x)), heads(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS) + bias
        y = torch.matmul(scores.softmax(-1), v).permute(0, 2, 1, 3).contiguous()
        x = self.norm_1(x + self.output(y.view(x.shape[0], x.shape[1], WIDTH)))
        return self.norm_2(x + self.dense(F.gelu(self.intermediate(x))))


class Bert(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.words, self.places, self.types = (nn.Embedding(n, WIDTH) for n in (WORDS, 32, 2))
        self.norm = nn.LayerNorm(WIDTH)
        self.layer = nn.ModuleList(BertLayer() for _ in range(layers))
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("position_ids", torch.arange(32).unsqueeze(0), persistent=False)

    def forward(self, tokens, mask):
        bias = (1.0 - mask[:, None, None, :].to(torch.float32)) * torch.finfo(torch.float32).min
        places = self.position_ids[:, : tokens.shape[1]]
        x = self.norm(self.words(tokens) + self.places(places) + self.types(torch.zeros_like(tokens)))
        for layer in self.layer:
            x = layer(x, bias)
        return x, torch.tanh(self.pooler(x[:, 0]))


class VitBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        x = x + self.proj(y)
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self, layers=2):
        super().__init__()
        self.patch = nn.Conv2d(3, WIDTH, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 17, WIDTH) * 0.1)
        self.blocks = nn.ModuleList(VitBlock() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 12)

    def forward(self, image):
        x = self.patch(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


class ListOfExperts(nn.Module):
    def __init__(self, experts=4):
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts, bias=False)
        self.experts = nn.ModuleList(LlamaMlp(Sizes()) for _ in range(experts))

    def forward(self, x):
        best, where = self.gate(x).softmax(-1).topk(2, dim=-1)
        share = torch.zeros_like(self.gate(x)).scatter(-1, where, best / best.sum(-1, keepdim=True))
        y = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            y = y + expert(x) * share[..., i, None]
        return y


class StackOfExperts(nn.Module):
    def __init__(self, experts=12):
        super().__init__()
        self.gate = nn.Linear(WIDTH, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, WIDTH, WIDTH) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, WIDTH, WIDTH) * 0.1)

    def forward(self, x):
        rows = x.reshape(-1, WIDTH)
        best, where = self.gate(rows).softmax(-1).topk(2, dim=-1)
        share = torch.zeros(rows.shape[0], self.up.shape[0], dtype=x.dtype).scatter(1, where, best)
        y = torch.bmm(rows.unsqueeze(0).expand(self.up.shape[0], -1, -1), self.up)
        y = torch.bmm(F.silu(y), self.down) * share.t().unsqueeze(-1)
        return y.sum(0).view(x.shape)


class Moe(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.norm_1, self.norm_2 = RmsNorm(), RmsNorm()
        self.first, self.second = ListOfExperts(), StackOfExperts()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = x + self.first(self.norm_1(x))
        return self.head(x + self.second(self.norm_2(x)))


def strip(program):
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            for key in ("stack_trace", "from_node", "torch_fn", "source_fn_stack"):
                node.meta.pop(key, None)
    program._example_inputs = None
    return program


def write(name, program):
    save(strip(program), HERE / f"{name}.pt2")


def describe(name, sizes, layers, tokens):
    """A model of real size without its weights: models/model.json alone, as llama_large.json."""
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model, inputs = Llama(sizes, layers), torch.zeros(tokens, dtype=torch.int64)
    torch.set_default_dtype(torch.float32)
    program = strip(export(model.eval(), (inputs,)))
    (HERE / f"{name}.json").write_bytes(serialize(program).exported_program)


def models():
    tokens = torch.randint(0, WORDS, (2, 8))
    batch, length = Dim("batch", min=2, max=64), Dim("length", min=2, max=32)
    mask = torch.ones(2, 8, dtype=torch.int64)
    mask[1, 5:] = 0
    sizes = {0: batch, 1: length}
    yield "mlp", Mlp().double(), (torch.randn(2, 8, WIDTH).double(),), (sizes,)
    yield "gpt", Gpt().double(), (tokens,), (sizes,)
    yield "llama", Llama().double(), (tokens,), (sizes,)
    yield "bert", Bert(), (tokens, mask), (sizes, sizes)
    yield "vit", Vit(), (torch.randn(2, 3, 16, 16),), ({0: batch},)
    yield "moe", Moe(), (tokens,), (sizes,)


def main():
    torch.manual_seed(0)
    large = Sizes(width=4096, heads=32, key_heads=8, hidden=11008, words=32000)
    if len(sys.argv) == 1 or "large" in sys.argv[1:]:
        describe("llama_large", large, 2, (1, 2048))
        describe("llama_large_short", large, 2, (1, 64))
    for name, model, inputs, sizes in models():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        model.eval()
        for weight in model.parameters():  # few distinct values, so that the files pack well
            weight.data = (weight.data * 16).round() / 16
        for suffix, dynamic in (("", None), ("_dynamic", sizes)):
            raw = export(model, inputs, dynamic_shapes=dynamic)
            write(f"{name}_raw{suffix}", raw)
            write(f"{name}_infer{suffix}", export(model, inputs, dynamic_shapes=dynamic).run_decompositions({}))
            write(f"{name}_core{suffix}", export(model, inputs, dynamic_shapes=dynamic).run_decompositions())


if __name__ == "__main__":
    main()
