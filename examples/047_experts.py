"""Trains a mixture of experts: a router picks two of eight experts for each token, and each of four ranks holds two of
the experts. Tokens go to the ranks of their experts and back; how many is known only when the step runs. The losses
are those of one rank, with and without a capacity."""

import torch
from torch import nn
from torch.nn import functional as F

import tessera

TOKENS, WIDTH, HIDDEN, EXPERTS, CHOICES = 120, 16, 32, 8, 2


class Mixture(nn.Module):
    def __init__(self, capacity):
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.up = nn.Parameter(torch.randn(EXPERTS, WIDTH, HIDDEN) / 4)
        self.down = nn.Parameter(torch.randn(EXPERTS, HIDDEN, WIDTH) / 6)
        self.capacity, self.load = capacity, None

    def experts(self, rows, experts):
        return experts.matmul(F.silu(experts.matmul(rows, self.up)), self.down)

    def forward(self, x):
        gate, choice = self.router(x).softmax(-1).topk(CHOICES, -1)
        out, self.load = tessera.expert_parallel(
            x, choice, gate, self.experts, experts=EXPERTS, capacity_factor=self.capacity
        )
        return x + out


def train(mesh_text, capacity):
    mesh = tessera.init_device_mesh(mesh_text)
    torch.manual_seed(7)  # the same on every rank
    model = Mixture(capacity).double()
    inputs = torch.randn(TOKENS, WIDTH, dtype=torch.float64)
    tessera.distribute_(model.up, mesh, "S0")  # experts over the ranks
    tessera.distribute_(model.down, mesh, "S0")
    tessera.distribute_module(model, mesh)  # the router is replicated
    tessera.reduce_gradients(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x = tessera.distribute_tensor(inputs, mesh, "S0")
    y = tessera.distribute_tensor(inputs.roll(1, 1).sin(), mesh, "S0")
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = (model(x) - y).square().sum() / inputs.numel()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.load.kept, str(model.load)


if __name__ == "__main__":
    for capacity in (None, 1.0):
        alone, kept_alone, _ = tessera.run_ranks(1, lambda rank: train("ep=1", capacity))[0]
        together, kept, load = tessera.run_ranks(4, lambda rank: train("ep=4", capacity))[0]
        print(f"loss {together[0]:.9f} -> {together[-1]:.9f}, on one rank {alone[-1]:.9f}\n{load}")
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)
        assert kept == kept_alone and (capacity is None) == (sum(kept) == TOKENS * CHOICES)
