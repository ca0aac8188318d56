#!/usr/bin/env python3
"""Trains a tiny language model on a text and exports it: python export.py text.txt model.pt2.

The model reads and predicts bytes. Batch and length of its input are dynamic.
"""

import pathlib
import sys

import torch
from torch import nn
from torch.export import Dim
from torch.nn import functional as F

LONGEST = 64


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(batch, length, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self, words=128, width=32, heads=4, layers=2):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(model, text, steps=1500, batch=16):
    data = torch.tensor(list(text))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for step in range(steps):
        starts = torch.randint(0, len(data) - LONGEST - 1, (batch,))
        rows = torch.stack([data[i : i + LONGEST + 1] for i in starts])
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 500 == 0:
            print(f"step {step} loss {loss.item():.3f}")


def main():
    torch.manual_seed(0)
    text = pathlib.Path(sys.argv[1]).read_bytes()
    model = LanguageModel()
    train(model, bytes(byte for byte in text if byte < 128))
    sizes = {0: Dim("batch", max=64), 1: Dim("length", max=LONGEST)}
    program = torch.export.export(model.eval(), (torch.zeros(2, 8, dtype=torch.int64),), dynamic_shapes=(sizes,))
    for node in program.graph.nodes:  # the places in this file, which the program does not need
        node.meta.pop("stack_trace", None)
    torch.export.save(program, sys.argv[2])


if __name__ == "__main__":
    main()
