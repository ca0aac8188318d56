"""Programs written for torch.distributed.tensor, with one import changed."""

import copy
import pickle

import pytest
import torch

import tessera
from tessera.compat import (
    DeviceMesh,
    DTensor,
    ExplicitRedistributionContext,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
    zeros,
)
from tessera.compat._dtensor_spec import DTensorSpec, TensorMeta
from tessera.compat._utils import compute_local_shape_and_global_offset
from tessera.compat.debug import CommDebugMode
from tessera.compat.experimental import local_map


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


def test_a_tensor_is_a_local_part_and_a_spec(ranks):
    def body(rank):
        mesh = DeviceMesh("cpu", list(range(2)))
        meta = TensorMeta(torch.Size([6, 3]), (3, 1), torch.float32)
        local = torch.full((3, 3), float(rank), requires_grad=True)
        x = DTensor(local, DTensorSpec(mesh, (Shard(0),), meta), requires_grad=True)
        assert x.is_leaf and x.requires_grad and x.shape == (6, 3)
        DTensor(local, x._spec, requires_grad=False)
        y = DTensor.from_local(torch.ones(3, 3), mesh, [Shard(0)])
        assert x._spec == y._spec and hash(x._spec) == hash(y._spec)
        assert x._spec.placements == (Shard(0),) and x._spec.tensor_meta == meta
        assert x._spec.num_shards == 2 and x._spec.is_sharded() and not x._spec.is_replicated()
        assert x._local_tensor.data_ptr() == local.data_ptr() and not x._local_tensor.requires_grad
        with torch.no_grad():
            assert x.to_local() is x._local_tensor
        offset = compute_local_shape_and_global_offset(x.shape, mesh, x.placements)
        assert offset == ((3, 3), (3 * rank, 0))
        with pytest.raises(tessera.InvalidArgument, match="both shape and stride"):
            DTensor.from_local(torch.ones(3, 3), mesh, [Shard(0)], shape=(6, 3))

    with pytest.warns(UserWarning, match="from_local"):
        ranks(2, body)


def test_collectives_are_counted_under_pytorchs_operators(ranks):
    ops = torch.ops.c10d_functional

    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        mode = CommDebugMode()
        with mode:
            x = distribute_tensor(torch.ones(4, 3, requires_grad=True), mesh, [Shard(0)])
            assert mode.get_comm_counts()[torch.ops.c10d.scatter_] == 1
        with mode:
            out = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
            out.backward(torch.ones_like(out))
        assert mode.comm_counts[ops.all_gather_into_tensor] == 1
        assert mode.comm_counts[ops.reduce_scatter_tensor] == 1 and mode.get_total_counts() == 2
        assert torch.equal(x.grad.full_tensor(), torch.full((4, 3), 2.0))
        with mode:
            DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)]).redistribute(mesh, [Shard(1)])
        assert mode.get_comm_counts() == {torch.ops._dtensor.shard_dim_alltoall: 1}

    ranks(2, body)


def test_a_mesh_may_be_the_context(ranks):
    def body(rank):
        with DeviceMesh("cpu", [0, 1]) as outer:
            x = DTensor.from_local(torch.ones(3), placements=[Shard(0)])
            with DeviceMesh("cpu", [[0], [1]]) as inner:
                y = distribute_tensor(torch.ones(4), placements=[Replicate(), Replicate()])
            z = distribute_tensor(torch.ones(4), placements=[Shard(0)])
        assert x.device_mesh == z.device_mesh == outer and y.device_mesh == inner
        with pytest.raises(tessera.InvalidArgument, match="no device_mesh"):
            distribute_tensor(torch.ones(4), placements=[Shard(0)])

    ranks(2, body)


def test_what_pytorch_distributes_or_refuses(ranks):
    full = torch.arange(12.0).view(4, 3)

    def body(rank):
        mesh = DeviceMesh("cpu", [[0, 1], [2, 3]])
        x = distribute_tensor(full, mesh, [Shard(0), Partial()])
        assert x.placements == (Shard(0), Partial()) and torch.equal(x.full_tensor(), full)
        x = distribute_tensor(full, mesh, [Partial("max"), Shard(1)])
        assert torch.equal(x.full_tensor(), full)
        with pytest.raises(ValueError, match="un-reduced"):
            distribute_tensor(full, mesh, [Partial("product"), Shard(1)])
        with pytest.raises(ValueError, match="must have the same length"):
            distribute_tensor(full, mesh, [Shard(0)])
        with pytest.raises(RuntimeError, match="distribute leaf tensor"):
            distribute_tensor(full.requires_grad_() + 1, mesh, [Shard(0), Shard(1)])
        with pytest.raises(ValueError, match="to a different device mesh"):
            distribute_tensor(x, init_device_mesh("cpu", (4,)), [Shard(0)])
        with pytest.raises(ValueError, match="to a different placements"):
            distribute_tensor(x, mesh, [Shard(0), Replicate()])
        meta = distribute_tensor(torch.ones(4, 3, device="meta"), mesh, [Shard(0), Shard(1)])
        assert meta.is_meta and meta.to_local().shape == (2, 2 - rank % 2)
        real = torch.nn.init.constant_(torch.empty_like(meta, device="cpu"), 2.0)
        assert torch.equal(real.full_tensor(), torch.full((4, 3), 2.0))

    ranks(4, body)


def test_ranks_outside_the_mesh_take_parts_as_even(ranks):
    def body(rank):
        mesh = DeviceMesh("cpu", [0, 2])
        x = DTensor.from_local(torch.ones(3, 4), mesh, [Shard(0)]) + 2
        assert x.shape == (6, 4) and x.to_local().numel() == (12 if rank in (0, 2) else 0)
        assert x.sum().shape == () and x.equal(x)

    ranks(3, body)


def test_parts_as_shard_splits_them():
    parts, pads = Shard(0)._split_tensor(torch.arange(5), 4, with_padding=True)
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3], [4, 0], [0, 0]]
    assert pads == [0, 0, 1, 2]
    parts, pads = Shard(1)._split_tensor(torch.ones(2, 3), 2, with_padding=False)
    assert [tuple(part.shape) for part in parts] == [(2, 2), (2, 1)] and pads == []


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
        with pytest.raises(tessera.InvalidArgument, match="should only be called once on a module"):
            distribute_module(model, mesh)

    ranks(2, body)


def test_explicit_redistribution_context(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        with ExplicitRedistributionContext(), pytest.raises(RuntimeError, match="redistribute"):
            x.cumsum(0)

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

    # Tensor parallelism shards first: PyTorch writes that as a strided shard.
    first_tp = torch.nn.Linear(3, 8, bias=False)
    rows = torch.arange(24.0).view(8, 3)
    first_tp.load_state_dict({"weight": rows})
    tessera.distribute_(first_tp.weight, mesh["tp"], [theirs.Shard(0)])
    tessera.fully_shard(first_tp, mesh["dp"])
    as_theirs = tessera.to_torch_dtensor(first_tp.weight.detach(), mesh)
    assert str(as_theirs.placements) == "(_StridedShard(dim=0, sf=2), Shard(dim=0))", as_theirs.placements
    assert torch.equal(as_theirs.full_tensor(), rows)

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
    print("all right on rank " + str(rank))
    dist.destroy_process_group()
"""


def test_tensors_and_meshes_of_pytorch_convert_without_a_copy(torchrun):
    assert torchrun(4, INTEROP).count("all right on rank") == 4


def test_local_map_counts_arguments_and_results_as_pytorch_does(ranks):
    x, w = torch.randn(6, 4), torch.randn(4, 6)
    rows, columns, whole = [Shard(0)], [Shard(1)], [Replicate()]

    @local_map(out_placements=([Partial()], None), in_placements=(None, columns, rows))
    def product(factor, a, b):
        return a @ b * factor, "done"

    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        a, b = distribute_tensor(x, mesh, columns), distribute_tensor(w, mesh, rows)
        out, said = product(2, a, b)
        assert said == "done" and out.placements == (Partial(),)
        torch.testing.assert_close(out.full_tensor(), 2 * x @ w)
        assert torch.equal(product(2, x, w)[0], 2 * x @ w)  # no sharded tensor: the function alone
        assert local_map(torch.equal, out_placements=None)(a, a) is True
        twice = local_map(torch.mul, out_placements=columns, in_placements=(columns, None))
        assert torch.equal(twice(a, 2.0).full_tensor(), 2 * x)
        with pytest.raises(AssertionError, match="expects placements"):
            local_map(torch.mm, out_placements=whole, in_placements=(columns, None))(a, b)
        with pytest.raises(AssertionError, match="not a tensor"):
            local_map(torch.mul, out_placements=whole, in_placements=(columns, rows))(a, 2.0)
        with pytest.raises(ValueError, match="set redistribute_inputs=True"):
            local_map(torch.mm, out_placements=whole, in_placements=(whole, rows))(a, b)

    ranks(2, body)


def test_placements_and_meshes_are_copied_with_what_holds_them(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        held = {"mesh": mesh, "placements": [Shard(1), Replicate(), Partial("max")]}
        assert copy.deepcopy(held) == held
        assert pickle.loads(pickle.dumps(held["placements"])) == held["placements"]

    ranks(2, body)


def test_specs_meshes_and_shards_answer_more_questions(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        spec = distribute_tensor(torch.ones(4, 6), mesh, [Replicate(), Shard(1)])._spec
        assert spec.dim_map == [-1, 1] and spec.num_shards_map == [1, 2] and spec.sums == []
        assert DTensorSpec.from_dim_map(mesh, [-1, 1], [0]).placements == (Partial(), Shard(1))
        twice = distribute_tensor(torch.ones(8), mesh, [Shard(0), Shard(0)])._spec
        assert twice.dim_map == [0] and twice.num_shards_map == [4]
        with pytest.raises(tessera.InvalidArgument, match="already"):
            DTensorSpec.from_dim_map(mesh, [1, 1], [])
        parts = [Shard(0).local_shard_size_and_offset(10, 4, i) for i in range(4)]
        assert parts == [(3, 0), (3, 3), (3, 6), (1, 9)]
        assert Shard(0).local_shard_size_and_offset(2, 4, 3) == (0, 2)
        flat = mesh._flatten("all")
        assert flat._unflatten("all", (2, 2), ("a", "b")).mesh_dim_names == ("a", "b")
        assert flat._is_current_rank_part_of_mesh()

    ranks(4, body)
