"""Trains on four ranks, saves module and optimizer, and goes on from the checkpoint on two ranks and on one. Every
continuation ends with the parameters of the run that was never interrupted."""

import pathlib
import tempfile

import torch

import tessera

STEPS, SAVED_AFTER = 6, 3


def make_run(mesh):
    net = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.Tanh(), torch.nn.Linear(20, 3)).double()
    values = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=values, dtype=torch.double) * 0.3)
    for layer in (net[0], net[2]):
        tessera.fully_shard(layer, mesh)
    return net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)


def train(net, optimizer, start, stop):
    x = torch.linspace(-1, 1, 48, dtype=torch.double).view(8, 6)  # the same batch on every rank
    for _ in range(start, stop):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()


def first_run(folder):
    net, optimizer = make_run(tessera.init_device_mesh("dp=4"))
    train(net, optimizer, 0, SAVED_AFTER)
    state = {"model": net.state_dict(), "optim": optimizer.state_dict(), "step": SAVED_AFTER}
    tessera.save(state, folder)
    train(net, optimizer, SAVED_AFTER, STEPS)
    return tessera.full_state_dict(net)


def resumed(folder, ranks):
    net, optimizer = make_run(tessera.init_device_mesh(f"dp={ranks}"))
    train(net, optimizer, 0, 1)  # so that the optimizer has its state
    state = {"model": net.state_dict(), "optim": optimizer.state_dict(), "step": 0}
    tessera.load(state, folder)
    net.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optim"])
    train(net, optimizer, state["step"], STEPS)
    return tessera.full_state_dict(net)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        folder = str(pathlib.Path(root) / "step_3")
        expected = tessera.run_ranks(4, lambda rank: first_run(folder))[0]
        for ranks in (2, 1):
            state = tessera.run_ranks(ranks, lambda rank, ranks=ranks: resumed(folder, ranks))[0]
            worst = max((state[name] - value).abs().max().item() for name, value in expected.items())
            print(f"resumed on {ranks} ranks: parameters differ by {worst:.1e}")
            assert worst < 1e-12
