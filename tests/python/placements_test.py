"""A list of placements says all that the sharding says, also the order in which axes shard."""

import pytest
import torch
from torch import nn

import tessera
import tessera.compat
from tessera.compat import DTensor
from tessera.placement import StridedShard


def over_tensor_parallelism(mesh, rows):
    """A weight that tp shards first and fully_shard after it."""
    layer = nn.Linear(3, rows, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.arange(rows * 3.0).view(rows, 3))
    tessera.distribute_(layer.weight, mesh["tp"], "S0")
    tessera.fully_shard(layer, mesh["dp"])
    return layer.weight


@pytest.mark.parametrize("rows", [8, 7, 5, 10, 1, 13])
@pytest.mark.parametrize("axes", ["dp=2,tp=2", "dp=3,tp=2", "dp=2,tp=3"])
def test_placements_under_fully_shard_over_tensor_parallelism_go_round(ranks, rows, axes):
    def body(rank):
        mesh = tessera.init_device_mesh(axes)
        w = over_tensor_parallelism(mesh, rows)
        full = torch.arange(rows * 3.0).view(rows, 3)
        lists = {
            "tensor": w.placements,
            "function": tessera.placements(w),
            "sharding": tessera.sharding(w).placements,
            "spec": w._spec.placements,
        }
        for name, placements in lists.items():
            again = DTensor.from_local(
                w.to_local(), w.device_mesh, placements, run_check=False, shape=w.shape, stride=w.stride()
            )
            assert torch.equal(again.full_tensor(), full), (name, placements)
            measured = tessera.from_local(tessera.to_local(w), tessera.device_mesh(w), placements)
            assert torch.equal(tessera.full_tensor(measured), full), (name, placements)
        if rows == 8 and axes == "dp=2,tp=2":
            assert w.placements == (StridedShard(0, 2), tessera.Shard(0))
            assert tessera.sharding(w).axes_of_dim(0) == ("tp", "dp")

    ranks(tessera.DeviceMesh.parse(axes).size(), body)


def test_writes_to_a_state_change_the_next_forward(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = nn.Linear(4, 4)
        model.load_state_dict({"weight": torch.eye(4), "bias": torch.ones(4)})
        tessera.fully_shard(model, mesh, reshard_after_forward=False)
        x = torch.ones(1, 4)
        with torch.no_grad():
            assert torch.equal(model(x), torch.full((1, 4), 2.0))
            for value in model.state_dict().values():
                value.mul_(0.5)
            assert torch.equal(model(x), torch.full((1, 4), 1.0))

    ranks(2, body)


@pytest.mark.parametrize("axes", ["dp=2", "dp=2,fs=1"])
def test_writes_to_a_state_between_forward_and_backward_are_an_error(ranks, axes):
    def body(rank):
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
        tessera.fully_shard(model, tessera.init_device_mesh(axes))
        state = model.state_dict()
        for _ in range(2):
            model(torch.ones(1, 4)).sum().backward()
            loss = model(torch.ones(1, 4)).sum()
            state["2.weight"].mul_(0.5)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()

    ranks(2, body)
