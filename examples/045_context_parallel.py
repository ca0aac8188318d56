"""Trains a causal transformer layer whose sequence is sharded over four ranks. The model is plain torch.nn and calls
scaled_dot_product_attention; inside context_parallel that call works over all ranks. Its buffers are laid out in
head-tail order, so that every rank computes the same share of the causal triangle. Losses are those of one rank."""

import torch
from torch import nn
from torch.nn import functional as F

import tessera

BATCH, LENGTH, WIDTH, HEADS = 2, 48, 32, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        parts = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(seen.transpose(1, 2).flatten(2))


def numbers():
    torch.manual_seed(7)  # the same on every rank
    model = Layer().double()
    x = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64)
    return model, x, x.cumsum(1).tanh()  # what came before matters


def train(mesh, method):
    model, x, y = numbers()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    # x and y become this rank's positions, in place, and are restored at the end.
    with tessera.context_parallel(mesh, buffers=[x, y], buffer_seq_dims=[1, 1], method=method):
        assert x.shape[1] == LENGTH // mesh.size()
        for _ in range(10):
            optimizer.zero_grad()
            loss = (model(x) - y).square().sum() / (BATCH * LENGTH * WIDTH)
            loss.backward()
            added_up = [loss.detach(), *(p.grad for p in model.parameters())]
            for value in added_up:  # each rank has the addends of its positions
                whole = tessera.full_tensor(tessera.from_local(value, mesh, [tessera.Partial()]))
                value.copy_(whole)
            optimizer.step()
            losses.append(loss.item())
    assert x.shape[1] == LENGTH
    return losses


if __name__ == "__main__":
    alone = tessera.run_ranks(1, lambda rank: train(tessera.init_device_mesh("cp=1"), "ring"))[0]
    for method in ("ring", "all_to_all"):
        together = tessera.run_ranks(4, lambda rank: train(tessera.init_device_mesh("cp=4"), method))[0]
        print(f"{method}: loss {together[0]:.9f} -> {together[-1]:.9f}, on one rank {alone[-1]:.9f}")
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-9)
