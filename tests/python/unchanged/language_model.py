"""A Llama as pretraining programs have it: activations sharded over the sequence, loss on sharded logits,
recomputed layers, and fully_shard over another axis."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F

WORDS, WIDTH, HEADS, KV_HEADS, PLACES = 32, 16, 4, 2, 8


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight


def rotated(x, turns):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns[None, :, None]).flatten(3)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.size = WIDTH // HEADS
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk = nn.Linear(WIDTH, KV_HEADS * self.size, bias=False)
        self.wv = nn.Linear(WIDTH, KV_HEADS * self.size, bias=False)

    def forward(self, x, turns):
        q, k, v = (w(x).unflatten(-1, (-1, self.size)) for w in (self.wq, self.wk, self.wv))
        q, k = rotated(q, turns), rotated(k, turns)
        k, v = (t.repeat_interleave(HEADS // KV_HEADS, 2) for t in (k, v))
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(seen.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.attention = Norm(), Attention()
        self.ffn_norm, self.feed_forward = Norm(), FeedForward()

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok_embeddings = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleDict({str(i): Layer() for i in range(2)})
        self.norm, self.output = Norm(), nn.Linear(WIDTH, WORDS, bias=False)
        angles = torch.outer(torch.arange(PLACES).double(), torch.tensor([1.0, 0.1]).double())
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

    def forward(self, tokens):
        x = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            x = layer(x, self.turns)
        return self.output(self.norm(x))


def parallelize(model, tp):
    parallelize_module(model, tp, {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
    })
    for layer in model.layers.values():
        parallelize_module(layer, tp, {
            "attention_norm": SequenceParallel(),
            "attention": PrepareModuleInput(
                input_layouts=(Shard(1), None), desired_input_layouts=(Replicate(), None)),
            "attention.w[qkv]": ColwiseParallel(),
            "attention.wo": RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": SequenceParallel(),
            "feed_forward": PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "feed_forward.w[13]": ColwiseParallel(),
            "feed_forward.w2": RowwiseParallel(output_layouts=Shard(1)),
        })


dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
rank, results = dist.get_rank(), {}
model = Llama().double()
parallelize(model, mesh["tp"])
for name, layer in model.layers.items():
    model.layers[name] = fully_shard(checkpoint_wrapper(layer, preserve_rng_state=False), mesh=mesh["dp"])
fully_shard(model, mesh=mesh["dp"])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(3):
    torch.manual_seed(100 + step)
    text = torch.randint(WORDS, (4, PLACES + 1)).chunk(2)[mesh.get_local_rank("dp")]
    optimizer.zero_grad()
    with loss_parallel():
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    for name, value in (("loss", loss), ("norm", norm)):
        results[f"{name}{step}"] = (value.full_tensor() if isinstance(value, DTensor) else value).detach()
for name, value in model.state_dict().items():
    results[name] = value.full_tensor()

print("DTensor of", DTensor.__module__)
torch.save(results, f"{sys.argv[1]}.{rank}")
dist.barrier()
dist.destroy_process_group()
