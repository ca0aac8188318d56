"""Programs written for torch.distributed.tensor, with one import changed."""

import pytest
import torch

import tessera
from tessera.compat import (
    CPUOffloadPolicy,
    DeviceMesh,
    DTensor,
    ExplicitRedistributionContext,
    FSDPModule,
    MixedPrecisionPolicy,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    fully_shard,
    init_device_mesh,
    zeros,
)


def test_methods_and_properties_are_those_of_dtensor(ranks):
    full = torch.arange(12.0).view(4, 3)

    def body(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        x = distribute_tensor(full, mesh, [Shard(0), Replicate()])
        assert isinstance(x, DTensor) and isinstance(x, torch.Tensor)
        assert x.device_mesh == mesh and x.placements == (Shard(0), Replicate())
        assert x.to_local().shape == (2, 3) and torch.equal(x.full_tensor(), full)
        y = x.redistribute(placements=[Replicate(), Shard(1)])
        assert y.placements == (Replicate(), Shard(1))
        y = x.redistribute(mesh, [Shard(1), Shard(0)], async_op=True)
        assert torch.equal(y.full_tensor(), full)
        z = DTensor.from_local(y.to_local(), mesh, [Shard(1), Shard(0)], run_check=False)
        assert torch.equal(z.full_tensor(), full)
        assert x.sum(0).placements == (Partial(), Replicate())
        assert zeros(4, 2, device_mesh=mesh, placements=[Shard(0), Shard(1)]).to_local().numel() == 2

    ranks(4, body)


def test_plain_tensors_do_not_get_the_methods():
    plain = torch.ones(2)
    for name in ("placements", "device_mesh", "to_local", "full_tensor", "redistribute"):
        assert not hasattr(plain, name)
    assert not isinstance(plain, DTensor)
    with pytest.raises(tessera.NotSupported):
        DTensor(plain)


def test_meshes_answer_as_pytorchs_do(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        assert mesh.mesh.tolist() == [[0, 1], [2, 3]] and mesh.mesh_dim_names == ("dp", "tp")
        assert (mesh.size(), mesh.size(1), mesh.ndim, mesh.shape) == (4, 2, 2, (2, 2))
        assert mesh.get_rank() == rank and mesh.get_local_rank("tp") == rank % 2
        assert mesh["tp"].size() == 2 and mesh["tp", "dp"].shape == (2, 2)
        again = DeviceMesh("cpu", mesh.mesh, mesh_dim_names=("dp", "tp"))
        assert isinstance(again, DeviceMesh) and again == mesh
        assert len(mesh.get_all_groups()) == 2
        group = mesh.get_group("dp")
        total = torch.tensor([float(rank)])
        group.allreduce([total]).wait()
        return total.item()

    assert ranks(4, body) == [2.0, 4.0, 2.0, 4.0]


def test_distribute_module_with_border_functions(ranks):
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    x = torch.randn(6, 4)
    expected = plain(x)

    def partition(name, module, mesh):
        if name == "0":
            tessera.distribute_(module.weight, mesh, [Shard(0)])
            tessera.distribute_(module.bias, mesh, [Shard(0)])
        if name == "2":
            tessera.distribute_(module.weight, mesh, [Shard(1)])

    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
        model.load_state_dict(plain.state_dict())
        weight = model[0].weight
        distribute_module(
            model,
            mesh,
            partition,
            input_fn=lambda m, inputs, mesh: distribute_tensor(inputs[0], mesh, [Replicate()]),
            output_fn=lambda m, out, mesh: out.redistribute(placements=[Replicate()]).to_local(),
        )
        assert model[0].weight is weight and weight.placements == (Shard(0),)
        assert model[2].bias.placements == (Replicate(),)
        torch.testing.assert_close(model(x), expected)
        with pytest.raises(tessera.InvalidArgument, match="distributed already"):
            distribute_module(model, mesh)

    ranks(2, body)


def test_explicit_redistribution_context(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        with ExplicitRedistributionContext(), pytest.raises(RuntimeError, match="redistribute"):
            x.cumsum(0)

    ranks(2, body)


def test_a_program_of_fsdp2_runs(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3))).double()
        policy = MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.float64)
        inner = MixedPrecisionPolicy(param_dtype=torch.float32)
        for layer in model[:2]:
            fully_shard(layer, mesh=mesh, mp_policy=inner, reshard_after_forward=False)
        fully_shard(
            model,
            mesh=mesh,
            mp_policy=policy,
            offload_policy=CPUOffloadPolicy(),
            shard_placement_fn=lambda p: Shard(1) if p.dim() == 2 else None,
        )
        assert isinstance(model, FSDPModule) and isinstance(model, torch.nn.Sequential)
        assert isinstance(model[0], FSDPModule) and not isinstance(model[2], FSDPModule)
        assert type(model).__name__ == "FSDPSequential" and type(model[:2]) is torch.nn.Sequential
        assert model[2].weight.placements == (Shard(1),)

        model.unshard()
        assert [group.gathered for group in tessera.sharded_groups(model)] == [False, False, True]
        model.reshard()
        model.unshard(async_op=True).wait()
        model.set_modules_to_forward_prefetch([model[0]])
        model.set_requires_gradient_sync(False)
        model.set_is_last_backward(False)
        x = torch.full((2, 4), rank + 1.0).double()
        model(x).sum().backward()
        assert model[0].weight.grad is None
        model.set_requires_gradient_sync(True, recurse=False)
        model(x).sum().backward()
        assert model[0].weight.grad is None and model[2].weight.grad.placements == (Shard(1),)
        model.set_requires_gradient_sync(True)
        seen = []

        def all_gather(output_tensor, input_tensor, group, async_op=False):
            seen.append("all_gather")
            return group._allgather_base(output_tensor, input_tensor)

        model.set_custom_all_gather(all_gather)
        model.set_all_reduce_hook(lambda reduced: seen.append("reduced"))
        out = model(x)
        out.sum().backward()
        assert {"all_gather", "reduced"} == set(seen)
        assert out.dtype == torch.float64 and model[0].weight.grad.placements == (Shard(0),)

    ranks(2, body)


INTEROP = """
    import torch, tessera
    import torch.distributed as dist
    from torch.distributed import tensor as theirs
    from torch.distributed.device_mesh import init_device_mesh

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    full = torch.arange(30.0).view(6, 5)

    # Ours over their mesh, with their placements.
    x = tessera.distribute_tensor(full, mesh, [theirs.Shard(0), theirs.Shard(1)])
    assert torch.equal(tessera.full_tensor(x), full)
    assert tessera.DeviceMesh.from_torch(mesh) == tessera.device_mesh(x)

    # Parts of their mesh are parts of ours.
    ours = tessera.DeviceMesh.from_torch(mesh)
    assert tessera.DeviceMesh.from_torch(mesh["tp"]) == ours["tp"]
    assert tessera.DeviceMesh.from_torch(mesh["dp"]).world.name == ours.world.name
    layer = torch.nn.Linear(4, 6)
    for tensor in layer.parameters():
        tessera.distribute_(tensor, mesh["tp"], [theirs.Shard(0)])
    tessera.fully_shard(layer, mesh["dp"])
    x = tessera.distribute_tensor(torch.ones(2, 4), mesh["tp"], [theirs.Replicate()])
    layer(x).sum().backward()
    assert torch.equal(tessera.full_tensor(layer.weight.grad), torch.full((6, 4), 2.0))

    # Theirs to ours and back, without a copy.
    theirs_x = theirs.distribute_tensor(full, mesh, [theirs.Shard(0), theirs.Replicate()])
    ours = tessera.from_torch_dtensor(theirs_x)
    assert tessera.to_local(ours).data_ptr() == theirs_x.to_local().data_ptr()
    assert torch.equal(tessera.full_tensor(ours * 2), full * 2)
    back = tessera.to_torch_dtensor(ours)
    assert back.to_local().data_ptr() == theirs_x.to_local().data_ptr()
    assert back.placements == theirs_x.placements and back.device_mesh == mesh
    assert torch.equal(back.full_tensor(), full)

    # Gradients cross.
    leaf = theirs.distribute_tensor(full, mesh, [theirs.Shard(0), theirs.Shard(1)])
    leaf.requires_grad_()
    (tessera.from_torch_dtensor(leaf) ** 2).sum().backward()
    assert torch.equal(leaf.grad.full_tensor(), 2 * full)

    # A mesh over a group of the user's; our own mesh next to theirs.
    ring = tessera.mesh_from_group(dist.group.WORLD)
    assert torch.equal(tessera.full_tensor(tessera.distribute_tensor(full, ring, "S0")), full)
    own = tessera.init_device_mesh("dp=4")
    y = tessera.distribute_tensor(full, own, "S0")
    assert torch.equal(tessera.to_torch_dtensor(y).full_tensor(), full)
    print("all right on rank", rank)
    dist.destroy_process_group()
"""


def test_tensors_and_meshes_of_pytorch_convert_without_a_copy(torchrun):
    assert torchrun(4, INTEROP).count("all right on rank") == 4
