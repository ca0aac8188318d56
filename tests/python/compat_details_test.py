"""What PyTorch's own DTensor tests ask of the names in tessera.compat, beside compat_test.py."""

import pytest
import torch
from torch import nn
from torch.distributed import tensor as theirs

import tessera
from tessera import compat
from tessera.compat import (
    DataParallelMeshDims,
    DeviceMesh,
    DTensor,
    ExplicitRedistributionContext,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
)
from tessera.compat import _utils as utils
from tessera.compat._collective_utils import unpad_tensor
from tessera.compat._dtensor_spec import DTensorSpec
from tessera.compat._random import manual_seed
from tessera.compat.experimental import register_sharding
from tessera.compat.parallel import parallelize_module
from tessera.compat.placement_types import _MaskPartial, _StridedShard


def test_parts_keep_the_order_of_their_dims_in_memory(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        local = torch.randn(8, 4, 3).permute(1, 2, 0)
        x = DTensor.from_local(local, mesh, [Shard(1)])
        assert x.shape == (4, 6, 8) and x.stride() == (6, 1, 24)
        assert x.to_local().data_ptr() == local.data_ptr()
        gaps = DTensor.from_local(torch.ones(4, 6)[:, ::2], mesh, [Replicate()])
        assert gaps.is_contiguous() and gaps.to_local().is_contiguous()
        return x.full_tensor()

    first, second = ranks(2, body)
    assert torch.equal(first, second)


def test_run_check_compares_what_ranks_bring(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        square = torch.ones(3, 3)
        for mine in (
            square.double() if rank else square,
            square.clone().requires_grad_(rank == 0),
            square.t() if rank else square,
        ):
            with pytest.raises(ValueError, match="from_local"):
                DTensor.from_local(mine, mesh, [Shard(0)], run_check=True)
        x = DTensor.from_local(torch.ones(3 + rank, 4 - rank), mesh, [Shard(0)])
        assert x.shape == (2 * (3 + rank), 4 - rank)

    with pytest.warns(UserWarning, match="as its own"):  # not in the ranks: threads share the filters
        ranks(2, body)


def test_an_axis_may_stay_partial_while_another_moves(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2, 2))
        local = torch.arange(8.0).view(2, 4)
        x = DTensor.from_local(local, mesh, [Partial(), Shard(0)])
        y = x.redistribute(mesh, [Partial(), Shard(1)])
        assert y.placements == (Partial(), Shard(1)) and torch.equal(x.full_tensor(), y.full_tensor())
        for target in ([Replicate(), Partial()], [Partial("max"), Shard(0)]):
            with pytest.raises(RuntimeError, match="Can not redistribute"):
                x.redistribute(mesh, target)
        assert Partial("prod") == Partial("product")

    ranks(4, body)


def test_a_redistribute_that_moves_nothing_places_the_gradient(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.ones(3, requires_grad=True), mesh, [Replicate()])
        y = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        y.backward(torch.ones(3))
        assert x.grad.placements == (Replicate(),) and x.grad.to_local().tolist() == [2.0] * 3

    ranks(2, body)


def test_meshes_as_contexts_serve_factories_and_modules(ranks):
    def body(rank):
        with DeviceMesh("cpu", [0, 1]):
            assert compat.zeros(4, placements=[Shard(0)]).to_local().shape == (2,)
            assert distribute_module(nn.Linear(2, 2)).weight.placements == (Replicate(),)

    ranks(2, body)


def test_ranks_outside_a_mesh_have_empty_parts(ranks):
    def body(rank):
        mesh = DeviceMesh("cpu", [0, 2])
        x = compat.zeros(4, 3, device_mesh=mesh, placements=[Shard(0)])
        inside = rank != 1
        assert x.to_local().shape == ((2, 3) if inside else (0,))
        if not inside:
            assert x.sum().to_local().item() == 0.0
            with pytest.raises(RuntimeError, match="part of the device mesh"):
                manual_seed(1, mesh)

    ranks(3, body)


def test_border_functions_without_the_module_are_deprecated(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        model = distribute_module(
            nn.Linear(4, 2),
            mesh,
            input_fn=lambda inputs, mesh: DTensor.from_local(inputs[0], mesh, [Shard(0)]),
            output_fn=lambda out, mesh: out.to_local(),
        )
        assert model(torch.ones(3, 4)).shape == (3, 2)
        with pytest.raises(RuntimeError, match="leaf"):  # before the placements are looked at
            distribute_tensor(torch.ones(2, requires_grad=True) + 1, mesh, [])

    with pytest.warns(FutureWarning, match="Deprecating"):
        ranks(2, body)


def test_rows_by_a_spec(ranks):
    torch.library.define("compat_details::twice", "(Tensor x, int dim) -> Tensor")
    torch.library.impl("compat_details::twice", "CPU", lambda x, dim: x * 2)
    torch.library.impl("compat_details::twice", "Meta", lambda x, dim: torch.empty_like(x))
    op = torch.ops.compat_details.twice.default

    @register_sharding(op)
    def rows(x, dim):
        assert isinstance(x, DTensorSpec) and x.ndim == 2
        return [([Shard(d)], [Shard(d), None]) for d in range(x.ndim) if d != dim]

    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(1)])
        return op(x, 0).placements

    assert ranks(2, body) == [(Shard(1),)] * 2


def test_views_of_a_sharded_dim_of_size_1_and_distances_stay_where_they_are(ranks):
    full = torch.arange(8.0).view(1, 2, 4)

    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(full, mesh, [Shard(0)])
        with tessera.expect_comm("nothing"):
            y, z = x.view(1, 8), x.view(8, 1)
            assert y.placements == (Shard(0),) and z.placements == (Shard(1),)
            assert y.to_local().data_ptr() == x.to_local().data_ptr()
        assert torch.equal(y.full_tensor(), full.view(1, 8))
        assert torch.equal(z.full_tensor(), full.view(8, 1))
        a, b = (distribute_tensor(t, mesh, [Shard(0)]) for t in (full[0], full[0] ** 2))
        for p, partial in ((1, "sum"), (float("inf"), "max")):
            with tessera.expect_comm("nothing"):
                apart = torch.dist(a, b, p)
            assert apart.placements == (Partial(partial),)
            assert apart.item() == torch.dist(full[0], full[0] ** 2, p).item()

    ranks(2, body)


def test_placements_have_pytorchs_further_names():
    assert _MaskPartial is Partial and Partial.LINEAR_REDUCE_OPS == ("sum", "avg")
    with pytest.raises(TypeError):
        _StridedShard(0, 2)
    strided = _StridedShard(0, split_factor=2)
    assert isinstance(strided, _StridedShard) and not isinstance(Shard(0), _StridedShard)
    parts, pads = strided._split_tensor(torch.arange(7), 2)
    assert [part.tolist() for part in parts] == [[0, 1, 4, 5], [2, 3, 6, 0]] and pads == [0, 1]
    assert unpad_tensor(parts[1], 0, 1).tolist() == [2, 3, 6]
    for i, part in enumerate(Shard(0)._split_tensor(torch.arange(5), 4, with_padding=False)[0]):
        chosen = Shard(0)._select_split_tensor(torch.arange(5), 4, i, with_padding=False)
        assert torch.equal(chosen, part)
    assert Shard(0)._local_shard_size_and_offset(5, 4, 2) == (1, 4)
    from torch.optim.optimizer import _foreach_supported_types

    assert DTensor in _foreach_supported_types


def test_placements_equal_pytorchs():
    pairs = [
        (Shard(1), theirs.Shard(1)),
        (Replicate(), theirs.Replicate()),
        (Partial("max"), theirs.Partial("max")),
    ]
    if hasattr(theirs, "_StridedShard"):  # not in every version
        pairs.append((_StridedShard(0, split_factor=2), theirs._StridedShard(0, split_factor=2)))
    for i, (ours, _) in enumerate(pairs):
        for j, (_, other) in enumerate(pairs):
            assert (ours == other) == (i == j)
    assert (theirs.Shard(0),) == (Shard(0),) and Partial() != theirs.Partial("only there")
    assert Shard(0) != 0 and Replicate() is not None


def test_methods_can_be_called_on_the_class(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
        y = DTensor.redistribute(x, placements=[Replicate()])
        return torch.equal(DTensor.to_local(y), DTensor.full_tensor(x))

    assert all(ranks(2, body))


def test_shapes_and_strides_can_be_computed_alone(ranks):
    offset = utils._compute_local_shape_and_global_offset
    placements = [_StridedShard(0, split_factor=2), Shard(0)]
    assert offset((8, 3), (2, 2), [1, 0], placements) == ((2, 3), (2, 0))
    local = torch.empty_strided((2, 3, 4), (12, 4, 1))

    def body(rank):
        mesh = init_device_mesh("cpu", (2, 2))
        shape, stride = utils.compute_global_tensor_info(local, mesh, [Shard(2), Shard(0)])
        assert shape == [4, 3, 8] and stride == [24, 8, 1]
        whole = torch.empty_strided(shape, stride)
        info = utils.compute_local_tensor_info(whole, mesh, [Shard(2), Shard(0)])
        assert info == ([2, 3, 4], [12, 4, 1])
        line = init_device_mesh("cpu", (4,))
        assert utils.compute_global_tensor_shape((5, rank), line, [Shard(1)]) == (5, 6)
        with pytest.raises(RuntimeError, match="identical size across ranks"):
            utils.compute_global_tensor_shape((5 + rank, rank), line, [Shard(1)])

    ranks(4, body)


FIRST_MESH = """
    import torch
    from tessera.compat import Shard, distribute_tensor, init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    x = distribute_tensor(torch.arange(4.0), mesh, [Shard(0)])
    assert x.device_mesh is mesh and mesh.get_group().size() == 2
    print("rank " + str(mesh.get_rank()) + " has " + str(x.sum().item()))
    torch.distributed.destroy_process_group()
"""


def test_the_first_mesh_under_torchrun_initialises_torch_distributed(torchrun):
    out = torchrun(2, FIRST_MESH)
    assert "rank 0 has 6.0" in out and "rank 1 has 6.0" in out


BACKENDS_BY_AXIS = """
    mesh = compat.init_device_mesh(
        "cpu", (1, 2), mesh_dim_names=("dp", "tp"), backend_override={"tp": "gloo", 0: "gloo"}
    )
    x = compat.distribute_tensor(torch.arange(8.0), mesh, [compat.Shard(0), compat.Shard(0)])
    calls = mesh.get_group("tp")._get_sequence_number_for_group
    before = calls()
    tp_whole = x.redistribute(placements=[compat.Shard(0), compat.Replicate()])
    assert tp_whole.device_mesh is mesh and tp_whole.to_local().numel() == 8
    assert calls() > before, "sent by the group that was asked for"
    try:
        compat.init_device_mesh("cpu", (2,), backend_override={"tp": "gloo"})
    except RuntimeError as error:
        print("all right on rank " + str(rank) + ": " + str(error))
"""


def test_backends_of_a_mesh_can_be_named_by_axis(beside_torch, ranks):
    assert beside_torch(2, BACKENDS_BY_AXIS).count("invalid keys in backend_override") == 2

    def body(rank):
        with pytest.raises(tessera.NotSupported, match="call init_process_group first"):
            init_device_mesh("cpu", (2,), backend_override={0: "gloo"})

    ranks(2, body)


OPTIONS_OF_THE_CLASS = """
from tessera.compat import DeviceMesh, Replicate, Shard, zeros

sizes = torch.arange(2).view(2, 1)
mesh = DeviceMesh("cpu", sizes, mesh_dim_names=("a", "b"), backend_override=(("gloo", None), (None, None)))
assert zeros(4, 2, device_mesh=mesh, placements=[Shard(0), Replicate()]).to_local().shape == (2, 2)
assert issubclass(type(mesh), DeviceMesh) and not issubclass(torch.Tensor, DeviceMesh)
paper = DeviceMesh("cpu", [1], _init_backend=False)
assert paper.get_coordinate() == ((0,) if rank == 1 else None), paper.get_coordinate()
try:
    paper.get_group()
except RuntimeError as error:
    print("all right: " + str(error), flush=True)
"""


def test_the_class_of_meshes_takes_pytorchs_options(beside_torch, ranks):
    assert beside_torch(2, OPTIONS_OF_THE_CLASS).count("process groups not initialized") == 2

    def body(rank):
        with pytest.raises(tessera.NotSupported, match="call init_process_group first"):
            DeviceMesh("cpu", [0, 1], backend_override=(("gloo", None),))
        assert issubclass(type(DeviceMesh("cpu", [0, 1])), DeviceMesh)

    ranks(2, body)


EQUAL_MESHES = """
import gc
import torch
import torch.distributed as dist
from tessera.compat import DeviceMesh, Shard, zeros

dist.init_process_group("gloo")

def make():
    return DeviceMesh("cpu", [0, 2])

first = make()
zeros(4, device_mesh=first, placements=[Shard(0)])
second = make()
del first
gc.collect()
x = zeros(4, device_mesh=second, placements=[Shard(0)]) + 1
print("part", tuple(x.to_local().shape), flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_a_mesh_outlives_an_equal_one_that_was_made_before(torchrun):
    out = torchrun(3, EQUAL_MESHES)
    assert out.count("part (2,)") == 2 and out.count("part (0,)") == 1


def test_refusals_begin_with_pytorchs_words(ranks):
    """Programs and tests match them."""

    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        with pytest.raises(RuntimeError, match="placements is needed for redistribute!"):
            x.redistribute(mesh)
        with pytest.raises(RuntimeError, match="leaf tensors! but found non-leaf tensor!"):
            distribute_tensor(torch.ones(4, requires_grad=True) * 2, mesh, [Shard(0)])
        with pytest.raises(RuntimeError, match="only accepts torch.Tensor but got"):
            DTensor.from_local([1.0, 2.0], mesh, [Shard(0)])
        with pytest.raises(RuntimeError, match="got mixed torch.Tensor and DTensor, need to convert all"):
            x + torch.ones(4, 4)
        with pytest.raises(ValueError, match="input_fn should take in 3 arguments, but got 1 arguments!"):
            distribute_module(nn.Linear(4, 4), mesh, input_fn=lambda inputs: inputs)
        with pytest.raises(TypeError, match="Expect Union.* for parallelize_plan, <class 'list'> found!"):
            parallelize_module(nn.Linear(4, 4), mesh, [])
        with pytest.raises(RuntimeError, match="Invalid mode silent"):
            ExplicitRedistributionContext(mode="silent")
        with pytest.raises(ValueError, match="At least one of shard or replicate must be set"):
            DataParallelMeshDims()

    ranks(2, body)
