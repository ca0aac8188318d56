"""replicate() of torch.distributed._composable.replicate_with_fsdp, on this library."""

import pytest
import torch
from torch import nn

import tessera
from tessera.compat import CPUOffloadPolicy, Replicate, Shard, init_device_mesh
from tessera.compat.fsdp import FSDPModule, fully_shard
from tessera.compat.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from tessera.compat.replicate_with_fsdp import ReplicateModule, replicate

X = torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(8, 6).sin()


def trained(model, batches, accumulate):
    """Three steps, each of them two backwards, with clipping."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        for i, batch in enumerate(batches):
            accumulate(i == len(batches) - 1)
            (model(batch).square().mean() / len(batches)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.mark.parametrize("tp", [1, 2])
def test_replicas_train_as_one_rank_beside_tensor_parallelism_too(ranks, mlp, tp):
    expected = trained(mlp(), [X], lambda last: None)

    def body(rank):
        mesh = init_device_mesh("cpu", (4 // tp, tp), mesh_dim_names=("dp", "tp"))
        dp = mesh["dp"]
        model = mlp()
        if tp > 1:
            parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        for part in (model[0], model[2], model):
            assert replicate(part, mesh=dp) is part
        assert isinstance(model, ReplicateModule) and type(model[0]).__name__ == "ReplicateLinear"
        assert type(model[:1]) is nn.Sequential
        placements = (Replicate(),) if tp == 1 else (Replicate(), Shard(0))
        assert model[0].weight.placements == placements
        mine = X.chunk(dp.size())[dp.get_local_rank()].chunk(2)
        found = trained(model, mine, model.set_requires_gradient_sync)
        for name, value in found.items():
            torch.testing.assert_close(value.full_tensor(), expected[name])

    ranks(4, body)


def test_a_program_gets_it_by_pytorchs_name(beside_torch):
    out = beside_torch(
        2,
        """
        compat.enable()
        from torch.distributed._composable.replicate_with_fsdp import ReplicateModule, replicate
        from torch.distributed.tensor import DTensor, Replicate

        model = replicate(torch.nn.Linear(3, 4))
        model(torch.ones(2, 3) * (rank + 1)).sum().backward()
        assert isinstance(model, ReplicateModule) and isinstance(model.weight, DTensor)
        assert model.weight.device_mesh.mesh_dim_names == ("replicate",)
        assert model.weight.grad.placements == (Replicate(),)
        assert model.weight.grad.to_local().eq(3).all()
        print("averaged on rank " + str(rank))
        """,
    )
    assert out.count("averaged on rank") == 2


def test_it_is_inside_fully_shard_and_refuses_what_it_cannot_do(ranks, mlp):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        model = mlp()
        replicate(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
        assert model[0].weight.placements == (Replicate(),)
        assert model[2].weight.placements == (Shard(0),)
        assert not isinstance(model, ReplicateModule) and isinstance(model, FSDPModule)
        with pytest.raises(AssertionError, match="only be applied to a module once"):
            replicate(model[0], mesh=mesh)
        with pytest.raises(tessera.NotSupported, match="whole parameters are not offloaded"):
            replicate(mlp(), mesh=mesh, offload_policy=CPUOffloadPolicy())
        with pytest.raises(ValueError, match="do not implement forward"):
            replicate(nn.ModuleList([nn.Linear(2, 2)]), mesh=mesh)

    ranks(2, body)
