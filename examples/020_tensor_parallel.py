"""A perceptron with its hidden layer sharded over two ranks (tp) and its batch over two more (dp). The losses
are those of one rank."""

import torch

import tessera


def train(mesh_text):
    mesh = tessera.init_device_mesh(mesh_text)
    tessera.manual_seed(7)
    inputs = torch.linspace(-1, 1, 32 * 16).view(32, 16)
    targets = torch.tanh(inputs[:, :4] - inputs[:, 4:8])
    up, down = torch.nn.Linear(16, 64), torch.nn.Linear(64, 4)
    model = torch.nn.Sequential(up, torch.nn.GELU(), down)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for tensor, placements in (
        (up.weight, "R,S0"),    # each rank of tp has half of the hidden units
        (up.bias, "R,S0"),
        (down.weight, "R,S1"),  # and takes them as inputs: results are partial sums
        (down.bias, "R,R"),
    ):
        tessera.distribute_(tensor, mesh, placements)
        with torch.no_grad():
            tensor.normal_(std=0.2)  # by global index: the same on any mesh
    tessera.reduce_gradients(model)
    x = tessera.distribute_tensor(inputs, mesh, "S0,R")
    y = tessera.distribute_tensor(targets, mesh, "S0,R")
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        out = tessera.redistribute(model(x), "S0,R")
        loss = torch.nn.functional.mse_loss(out, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    alone = tessera.run_ranks(1, lambda rank: train("dp=1,tp=1"))[0]
    together = tessera.run_ranks(4, lambda rank: train("dp=2,tp=2"))[0]
    for step, (one, four) in enumerate(zip(alone, together)):
        print(f"step {step}: loss {one:.6f} on one rank, {four:.6f} on four")
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-4)
    assert together[-1] < together[0]
