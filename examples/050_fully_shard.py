"""Trains a small classifier of spirals with fully_shard on three ranks: each holds a third of every parameter
and of the optimizer's state, and works on a third of the batch. The loss is that of one rank."""

import math

import torch

import tessera

ROWS, STEPS = 96, 30


def spirals():
    arm = torch.arange(ROWS) % 3
    radius = torch.linspace(0.2, 2.0, ROWS)
    angle = radius * 2.5 + arm * 2 * math.pi / 3
    return torch.stack([radius * angle.cos(), radius * angle.sin()], 1), arm


def make_net():
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 3)
    )
    values = torch.Generator().manual_seed(3)  # the same on every rank
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=values) * 0.3)
    return net


def train(rank, ranks):
    mesh = tessera.init_device_mesh(f"dp={ranks}")
    net = make_net()
    for layer in (net[0], net[2], net[4]):
        tessera.fully_shard(layer, mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    points, arms = spirals()
    rows = ROWS // ranks
    x, y = (t[rank * rows : (rank + 1) * rows] for t in (points, arms))
    for _ in range(STEPS):
        with tessera.Recorder() as recorder:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
    if rank == 0 and ranks > 1:
        print("the last step:", recorder, sep="\n")
        print("gathered now:", tessera.gathered_memory(mesh).bytes, "bytes")
    with torch.no_grad():
        return torch.nn.functional.cross_entropy(net(points), arms).item()


if __name__ == "__main__":
    alone = tessera.run_ranks(1, lambda rank: train(rank, 1))[0]
    together = tessera.run_ranks(3, lambda rank: train(rank, 3))[0]
    print(f"loss after {STEPS} steps: {alone:.6f} on one rank, {together:.6f} on three")
    assert abs(alone - together) < 1e-4
