"""A GPT and a Llama-like model in plain torch.nn, and how their weights are sharded by hand.

Nothing in the models knows of shards. `distribute` walks the parameters by name: colwise weights are
sharded on dim 0 over the tp axis, rowwise ones on dim 1, the rest is replicated; the batch is
sharded over the dp axis.
"""

import torch
from torch import nn
from torch.nn import functional as F

import tessera

VOCAB, WIDTH, HEADS, LAYERS, LENGTH = 48, 32, 4, 2, 12
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH)
        self.k = nn.Linear(WIDTH, WIDTH)
        self.v = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            part(x).view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))


class GPTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Learned positions, LayerNorm, GELU, head tied to the embedding."""

    colwise = ("q.weight", "q.bias", "k.weight", "k.bias", "v.weight", "v.bias")
    colwise += ("up.weight", "up.bias", "tokens.weight")
    rowwise = ("out.weight", "down.weight")

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(GPTBlock() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class LlamaBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.RMSNorm(WIDTH)
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, WIDTH // 2, bias=False)  # two heads for keys and values
        self.v = nn.Linear(WIDTH, WIDTH // 2, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm2 = nn.RMSNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def attend(self, x, cosine, sine):
        batch, length, _ = x.shape
        size = WIDTH // HEADS

        def heads(y):
            return y.view(batch, length, -1, size).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(x)), heads(self.v(x))
        q, k = rotate(q, cosine, sine), rotate(k, cosine, sine)
        k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))

    def forward(self, x, cosine, sine):
        x = x + self.attend(self.norm1(x), cosine, sine)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotate(x, cosine, sine):
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat([-second, first], dim=-1) * sine


class Llama(nn.Module):
    """Rotary positions, RMSNorm, SwiGLU, grouped keys and values, a head of its own."""

    colwise = ("q.weight", "k.weight", "v.weight", "gate.weight", "up.weight", "head.weight")
    rowwise = ("out.weight", "down.weight", "tokens.weight")

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        size = WIDTH // HEADS
        angles = torch.outer(
            torch.arange(LENGTH).double(), 10000.0 ** (-torch.arange(0, size, 2) / size)
        )
        self.register_buffer("cosine", torch.cat([angles, angles], -1).cos().float())
        self.register_buffer("sine", torch.cat([angles, angles], -1).sin().float())

    def forward(self, tokens):
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cosine, self.sine)
        return self.head(self.norm(x))


MODELS = {"gpt": GPT, "llama": Llama}


def make(name):
    """The same weights on every rank, whatever else draws random numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        return MODELS[name]().double()


def batches(steps, batch=4):
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        tokens = torch.randint(VOCAB, (batch, LENGTH + 1), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:].contiguous()


def distribute(model, mesh):
    """Colwise, rowwise and replicated over "tp" where the mesh has it, replicated over "dp"."""

    def over(tp):
        return [tp if axis == "tp" else "R" for axis in mesh.axis_names]

    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        end = ".".join(name.split(".")[-2:])
        tp = "S0" if end in model.colwise else "S1" if end in model.rowwise else "R"
        tessera.distribute_(tensor, mesh, over(tp), src_data_rank=None)
    return model


def spread_batch(tensor, mesh):
    placements = ["S0" if axis == "dp" else "R" for axis in mesh.axis_names]
    return tessera.distribute_tensor(tensor, mesh, placements, src_data_rank=None)


def train(model, steps, mesh=None, make_optimizer=None, my_part=None):
    """The losses, and the full parameters by name. `my_part(tensor)` splits a batch into plain parts."""
    make_optimizer = make_optimizer or (lambda p: torch.optim.AdamW(p, lr=1e-2))
    optimizer = make_optimizer(model.parameters())
    losses = []
    for tokens, targets in batches(steps):
        if my_part is not None:
            tokens, targets = my_part(tokens), my_part(targets)
        elif mesh is not None:
            tokens, targets = spread_batch(tokens, mesh), spread_batch(targets, mesh)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    whole = {
        name: (tessera.full_tensor(p.detach()) if tessera.is_dtensor(p) else p.detach())
        for name, p in model.named_parameters()
    }
    return losses, whole


def compare(found, expected):
    torch.testing.assert_close(found[0], expected[0], rtol=1e-9, atol=1e-12)
    compare_state(found[1], expected[1])


def compare_state(found, expected, rtol=1e-7, atol=1e-10):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )
