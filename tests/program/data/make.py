"""Writes the exported programs beside this file: python make.py. They cover, in a few kilobytes each, what the
reader has to understand: dynamic sizes, nested arguments and results, tied weights, mutated and
non-persistent buffers, constants, infinities, several outputs of one op, a higher-order op."""

import pathlib

import torch
from torch import nn
from torch.export import Dim, export, save

HERE = pathlib.Path(__file__).parent


class Block(nn.Module):
    def __init__(self, width=8, heads=2, words=10):
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(words, width)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("ramp", torch.arange(4.0), persistent=False)

    def forward(self, tokens, *, extra):
        self.calls.add_(1)
        x = self.embed(tokens)
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm(x)).chunk(3, -1)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width)) + extra["shift"]
        best, where = self.head(x).max(-1)
        return {"logits": self.head(x), "best": (best, where), "ramp": self.ramp * 2}


class Masked(nn.Module):
    def forward(self, x, mask):
        return torch.where(mask, x, float("-inf")).softmax(-1) + torch.tensor([0.5])


class Branch(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda y: (y.sin(),), lambda y: (y.cos(),), (x,))[0]


def write(name, program):
    for module in program.graph_module.modules():
        for node in getattr(module, "graph", torch.fx.Graph()).nodes:
            node.meta.pop("stack_trace", None)
    save(program, HERE / f"{name}.pt2")


def main():
    torch.manual_seed(0)
    block = Block()
    tokens = torch.randint(0, 10, (2, 6))
    extra = {"shift": torch.zeros(8)}
    sizes = {"tokens": {0: Dim("batch", max=64), 1: Dim("length", min=2, max=128)}, "extra": {"shift": None}}
    write("block_dynamic", export(block, (tokens,), {"extra": extra}, dynamic_shapes=sizes))
    static = export(block, (tokens,), {"extra": extra})
    write("block", static)
    write("block_core", static.run_decompositions())
    write("linear", export(nn.Linear(3, 2), (torch.zeros(4, 3),)))
    write("masked", export(Masked(), (torch.zeros(2, 3), torch.ones(2, 3, dtype=torch.bool))))
    write("branch", export(Branch(), (torch.ones(3),)))


if __name__ == "__main__":
    main()
