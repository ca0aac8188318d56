"""Recurrent modules and cells on sharded inputs."""

import copy

import pytest
import torch

import tessera


def spread(full, mesh, placements):
    return tessera.distribute_tensor(full, mesh, placements, src_data_rank=None)


@pytest.mark.parametrize("module", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_modules_start_from_zeros_of_their_own(ranks, module):
    torch.manual_seed(0)
    net = module(5, 6, num_layers=2, batch_first=True)
    x = torch.randn(4, 3, 5)
    expected = net(x)[0].detach()
    parameters = [p.detach().clone() for p in net.parameters()]

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        mine = module(5, 6, num_layers=2, batch_first=True)
        with torch.no_grad():
            for p, value in zip(mine.parameters(), parameters, strict=True):
                p.copy_(value)
        tessera.distribute_module(mine, mesh)
        out = mine(spread(x, mesh, "S0"))[0]
        out.sum().backward()
        state = torch.ones(2, 4, 6)
        state = (state, state) if module is torch.nn.LSTM else state
        with pytest.raises(RuntimeError, match="a plain tensor of shape 2x4x6"):
            mine(spread(x, mesh, "S0"), state)
        return torch.allclose(tessera.full_tensor(out.detach()), expected)

    assert ranks(2, body) == [True, True]


@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_recurrent_cells_start_from_zeros_of_their_own(ranks, cell):
    torch.manual_seed(0)
    net = cell(5, 6)
    xs = torch.randn(2, 4, 5)

    def steps(net, first, second):
        state = net(second, net(first))
        return state[0] if cell is torch.nn.LSTMCell else state

    expected = steps(net, *xs)
    (expected * expected).sum().backward()

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        mine = copy.deepcopy(net)
        mine.zero_grad()
        tessera.distribute_module(mine, mesh)
        out = steps(mine, *(spread(x, mesh, "S0") for x in xs))
        (out * out).sum().backward()
        state = torch.ones(4, 6)
        with pytest.raises(RuntimeError, match="a plain tensor of shape 4x6"):
            mine(spread(xs[0], mesh, "S0"), (state, state) if cell is torch.nn.LSTMCell else state)
        torch.testing.assert_close(tessera.full_tensor(out), expected)
        for mine_p, p in zip(mine.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(tessera.full_tensor(mine_p.grad), p.grad)

    ranks(2, body)
