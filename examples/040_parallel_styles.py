"""Trains a small Llama of plain torch.nn, split over two ranks by a plan alone: first with whole activations,
then with activations that are sharded over the sequence between the blocks. The loss is computed on logits that
stay sharded over the vocabulary. Losses are those of one rank, and the messages of a step are counted."""

import torch
from torch import nn
from torch.nn import functional as F

import tessera
from tessera import ColwiseParallel, Replicate, RowwiseParallel, SequenceParallel, Shard

PLACES, WIDTH, HEADS, KV_HEADS, HIDDEN, WORDS, LAYERS = 8, 32, 8, 4, 44, 40, 2
HEAD_SIZE = WIDTH // HEADS


def rotate(x, angles):
    first, second = x.chunk(2, -1)
    return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk = nn.Linear(WIDTH, KV_HEADS * HEAD_SIZE, bias=False)
        self.wv = nn.Linear(WIDTH, KV_HEADS * HEAD_SIZE, bias=False)
        self.wo = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, angles):
        # -1: the heads that this rank has
        q, k, v = (w(x).unflatten(-1, (-1, HEAD_SIZE)).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        seen = F.scaled_dot_product_attention(
            rotate(q, angles), rotate(k, angles), v, is_causal=True, enable_gqa=True
        )
        return self.wo(seen.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.up = nn.Linear(WIDTH, HIDDEN, bias=False), nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.mlp_norm, self.mlp = nn.RMSNorm(WIDTH), Mlp()

    def forward(self, x, angles):
        x = x + self.attention(self.attention_norm(x), angles)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        steps = torch.arange(PLACES).unsqueeze(1) / torch.arange(1, HEAD_SIZE + 1)
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, steps)
        return self.head(self.norm(x))


def plan_for(by_sequence):
    between = Shard(1) if by_sequence else Replicate()
    plan = {
        "embedding": RowwiseParallel(output_layouts=between),  # the vocabulary
        "layers.*.attention.wq": ColwiseParallel(input_layouts=between, heads=HEADS),
        "layers.*.attention.w[kv]": ColwiseParallel(input_layouts=between, heads=KV_HEADS),
        "layers.*.attention.wo": RowwiseParallel(output_layouts=between),
        "layers.*.mlp.gate": ColwiseParallel(input_layouts=between),
        "layers.*.mlp.up": ColwiseParallel(input_layouts=between),
        "layers.*.mlp.down": RowwiseParallel(output_layouts=between),
        # The logits stay sharded over the words, and so does the loss.
        "head": ColwiseParallel(input_layouts=between, use_local_output=False),
    }
    if by_sequence:
        plan |= {"layers.*.*_norm": SequenceParallel(), "norm": SequenceParallel()}
    return plan


def train(mesh_text, by_sequence=False):
    """The losses of ten steps, and what the second one sends."""
    mesh = tessera.init_device_mesh(mesh_text)
    torch.manual_seed(7)  # the same on every rank
    model = tessera.parallelize_module(Llama(), mesh, plan_for(by_sequence))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    text = torch.arange(4 * (PLACES + 1)).view(4, PLACES + 1) % 37
    losses, sent = [], ""
    for step in range(10):
        optimizer.zero_grad()
        with tessera.Recorder() as recorder:
            logits = model(text[:, :-1])
            with tessera.loss_parallel():
                loss = F.cross_entropy(logits.flatten(0, 1), text[:, 1:].flatten())
            loss.backward()
        if step == 1:
            ops = ("all_reduce", "all_gather", "reduce_scatter")
            sent = ", ".join(f"{recorder.count(op, 'tp')} {op}" for op in ops)
        optimizer.step()
        losses.append(loss.item())
    return losses, sent


if __name__ == "__main__":
    alone, _ = tessera.run_ranks(1, lambda rank: train("tp=1"))[0]
    for by_sequence in (False, True):
        together, sent = tessera.run_ranks(2, lambda rank: train("tp=2", by_sequence))[0]
        print("sharded over the sequence:" if by_sequence else "whole activations:", sent, "a step;",
              f"loss {together[0]:.4f} -> {together[-1]:.4f}, on one rank {alone[-1]:.4f}")
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-4)
