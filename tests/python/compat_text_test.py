"""What PyTorch's names print after enable(), beside what PyTorch prints."""

import copy
import io
import pickle

import pytest
import torch
from torch.distributed.tensor import Partial as TorchPartial
from torch.distributed.tensor import Replicate as TorchReplicate
from torch.distributed.tensor import Shard as TorchShard
from torch.distributed.tensor._dtensor_spec import DTensorSpec as TorchSpec
from torch.distributed.tensor.placement_types import _StridedShard as TorchStridedShard

import tessera
from python_process import run_world
from tessera import compat
from tessera.compat._dtensor_spec import DTensorSpec, TensorMeta, spec_of

THEIRS = [
    TorchShard(0),
    TorchShard(2),
    TorchReplicate(),
    TorchPartial(),
    TorchPartial("avg"),
    TorchStridedShard(1, split_factor=4),
]
OURS = [
    compat.Shard(0),
    compat.Shard(2),
    compat.Replicate(),
    compat.Partial(),
    compat.Partial("avg"),
    compat._StridedShard(1, split_factor=4),
]


@pytest.fixture
def enabled():
    compat.enable()
    yield
    compat.disable()


def test_placements_print_as_pytorchs(enabled):
    for ours, theirs in zip(OURS, THEIRS, strict=True):
        assert (repr(ours), str(ours)) == (repr(theirs), str(theirs))
        assert f"{ours}" == f"{theirs}"


def test_without_enable_they_print_what_parse_reads():
    compat.enable()
    compat.disable()
    assert (repr(OURS[0]), str(OURS[0])) == ("Shard(0)", "S0")
    for placement in OURS:
        assert tessera.Placement.parse(str(placement)) == placement


def test_pickles_do_not_depend_on_what_is_printed(enabled, ranks):
    written = [pickle.dumps(placement) for placement in OURS]
    assert [copy.deepcopy(placement) for placement in OURS] == OURS

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = tessera.distribute_tensor(torch.arange(4.0), mesh, [compat.Shard(0)])
        return pickle.dumps(x)

    of_tensor = ranks(2, body)
    compat.disable()
    assert [pickle.loads(text) for text in written] == OURS
    assert ranks(2, lambda rank: pickle.loads(of_tensor[rank]).tolist()) == [[0.0, 1.0, 2.0, 3.0]] * 2


TENSORS = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
x = distribute_tensor(torch.arange(8.0).view(4, 2), mesh, [Shard(0)])
texts = [repr(x), str(x.placements), f"{x.redistribute(placements=[Replicate()])}", str(x.device_mesh), str(x._spec)]
if dist.get_rank() == 0:
    torch.save(texts, sys.argv[1])
dist.destroy_process_group()
"""


def test_sharded_tensors_print_as_pytorchs(tmp_path):
    file = tmp_path / "tensors.py"
    file.write_text(TENSORS, encoding="utf-8")
    run_world(2, file, tmp_path / "theirs")
    run_world(2, "-m", "tessera.compat", file, tmp_path / "ours")
    assert torch.load(tmp_path / "ours") == torch.load(tmp_path / "theirs")


def as_pytorchs(placement):
    if placement.is_replicate():
        return TorchReplicate()
    if placement.kind == "strided":
        return TorchStridedShard(placement.dim, split_factor=placement.split_factor)
    return TorchShard(placement.dim)


@pytest.mark.parametrize(
    ("placed", "expected"),
    [
        ("R,R,R", ()),
        ("S0,R,S1", ((0, (0,)), (1, (2,)))),
        ("S0,S0,S0", ((0, (0, 1, 2)),)),
        ("SS0(6),SS0(2),S0", ((0, (2, 1, 0)),)),
        ("SS0(2),SS0(2),S0", ((0, (2, 0, 1)),)),
        ("SS1(3),S1,S0", ((0, (2,)), (1, (1, 0)))),
        ("SS0(5),S0,R", None),
    ],
)
def test_shard_order_is_that_of_pytorch(placed, expected, enabled):
    mesh = tessera.DeviceMesh([("a", 4), ("b", 3), ("c", 2)])
    placements = tuple(map(tessera.Placement.parse, placed.split(",")))
    spec = DTensorSpec(mesh, placements, TensorMeta(torch.Size([48, 24]), (24, 1), torch.float32))
    assert spec.shard_order == expected
    if hasattr(TorchSpec, "_maybe_convert_StridedShard_to_shard_order"):
        theirs = tuple(map(as_pytorchs, placements))
        assert expected == TorchSpec._maybe_convert_StridedShard_to_shard_order(theirs, mesh)
        text = TorchSpec.format_shard_order_str(theirs, spec.shard_order)
        assert str(spec) == f"Spec(f32[48, 24]({text}))"


def test_spec_of_a_tensor_has_its_shard_order(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2,tp=2")
        x = tessera.distribute_tensor(torch.ones(8, 4), mesh, "SS0(2),S0")
        return spec_of(x).shard_order, spec_of(x + 1).shard_order

    assert ranks(4, body)[0] == (((0, (1, 0)),), ((0, (1, 0)),))


def test_torch_load_of_weights_only_reads_placements_and_specs(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = tessera.distribute_tensor(torch.ones(8, 4), mesh, "S0")
        meta = spec_of(x).tensor_meta
        kept = {"placements": [OURS, x], "meta": meta, "order": spec_of(x).shard_order}
        file = io.BytesIO()
        torch.save(kept, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        assert loaded["placements"][0] == OURS and tessera.is_dtensor(loaded["placements"][1])
        assert loaded["meta"] == meta and loaded["order"] == spec_of(x).shard_order
        other = spec_of(x).shallow_copy_with_tensor_meta(None)
        assert other.placements == spec_of(x).placements
        with pytest.raises(ValueError, match="tensor_meta is not set"):
            other.shape  # noqa: B018

    ranks(2, body)


def test_refusals_begin_as_pytorchs(ranks):
    """Programs and their users search for these texts."""

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = tessera.distribute_tensor(torch.ones(8, 8), mesh, "S0")
        with pytest.raises(RuntimeError, match="the local_tensor argument only accepts torch.Tensor but got"):
            compat.DTensor.from_local(x, mesh, [compat.Shard(0)])
        with (
            compat.ExplicitRedistributionContext(),
            pytest.raises(RuntimeError, match="Implicit redistribution occurred"),
        ):
            x @ x
        before = "need to convert all torch.Tensor to DTensor before calling distributed operators"
        with pytest.raises(RuntimeError, match=before):
            x + torch.ones(8, 8)
        rows = [compat.Shard(0)]
        twice = compat.local_map(lambda a: (a, a), out_placements=(rows,), in_placements=(rows,))
        with pytest.raises(AssertionError, match="out_placements for 1 results, there are 2"):
            twice(x)
        both = compat.local_map(lambda a: (a, 2), out_placements=(rows, None), in_placements=(rows,))
        assert both(x)[0].shape == (8, 8) and both(x)[1] == 2
        model = compat.fully_shard(torch.nn.Linear(4, 4), mesh=mesh)
        with pytest.raises(AssertionError, match="not support deepcopy. Please use state dict for serialization"):
            copy.deepcopy(model)
        pairs = tessera.init_device_mesh("dp=1,fs=2")
        model = compat.fully_shard(torch.nn.Linear(4, 4), mesh=pairs)
        with pytest.raises(ValueError, match="stream cannot be set when using native HSDP"):
            model.set_all_reduce_hook(print, stream=torch.cpu.Stream())

    ranks(2, body)


def test_a_device_with_an_index_is_refused_before_ranks_are_asked_for():
    for shape in ((2, 2), (1,)):
        with pytest.raises(RuntimeError, match="Device type with index is not supported but got cuda:0"):
            compat.init_device_mesh("cuda:0", shape)
