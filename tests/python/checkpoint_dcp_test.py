"""Checkpoints beside PyTorch: torch.distributed.checkpoint saves and loads sharded tensors, and each library loads
what the other saved."""

import pathlib

import pytest
import torch

import tessera
from tessera.compat import Partial, distribute_tensor


def test_a_checkpoint_is_loaded_in_other_placements_and_by_pytorchs_own_tensors(beside_torch, tmp_path):
    out = beside_torch(
        2,
        f"""
        import torch.distributed.checkpoint as dcp
        from torch.distributed import tensor as theirs

        def make(seed):
            torch.manual_seed(seed)
            return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 3))

        def check(found):
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value)

        def save(state, name):
            dcp.save({{"model": state}}, checkpoint_id={str(tmp_path)!r} + name)

        def load(state, name="/ours"):
            dcp.load({{"model": state}}, checkpoint_id={str(tmp_path)!r} + name)

        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        saved = make(1)
        tessera.distribute_(saved[0].weight, mesh, "S1")
        compat.fully_shard(saved[1], mesh=mesh)
        expected = tessera.full_state_dict(saved)
        save(saved.state_dict(), "/ours")

        spread = make(2)
        tessera.distribute_(spread[0].weight, mesh, "S0")
        tessera.distribute_(spread[1].weight, mesh, "R")
        load(spread.state_dict())
        check(tessera.full_state_dict(spread))

        sharded = compat.fully_shard(make(3), mesh=mesh)
        load(sharded.state_dict())
        check(tessera.full_state_dict(sharded))

        state = {{
            name: theirs.distribute_tensor(torch.zeros_like(value), mesh, [theirs.Shard(0)])
            for name, value in expected.items()
        }}
        load(state)
        check({{name: tensor.full_tensor() for name, tensor in state.items()}})

        save(state, "/theirs")
        with torch.no_grad():
            for parameter in spread.parameters():
                parameter.zero_()
        load(spread.state_dict(), "/theirs")
        check(tessera.full_state_dict(spread))
        print("equal on rank " + str(rank))
        """,
    )
    assert out.count("equal on rank") == 2


def test_parts_of_several_boxes_are_saved_and_loaded(beside_torch, tmp_path):
    out = beside_torch(
        2,
        f"""
        import torch.distributed.checkpoint as dcp
        from torch.distributed import tensor as theirs

        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        full = torch.arange(27.0).reshape(9, 3)

        def placed(value, placements):
            return tessera.distribute_tensor(value, tessera.mesh_from_torch(mesh), placements)

        for i, saved in enumerate(("SS0(2)", "S0[2,7]", "S0", "R")):
            folder = {str(tmp_path)!r} + "/" + str(i)
            dcp.save({{"w": placed(full, saved)}}, checkpoint_id=folder)
            for wanted in ("SS0(3)", "S0[8,1]", "S1", "R"):
                state = {{"w": placed(torch.zeros(9, 3), wanted)}}
                dcp.load(state, checkpoint_id=folder)
                torch.testing.assert_close(tessera.full_tensor(state["w"]), full)
            state = {{"w": theirs.distribute_tensor(torch.zeros(9, 3), mesh, [theirs.Shard(1)])}}
            dcp.load(state, checkpoint_id=folder)
            torch.testing.assert_close(state["w"].full_tensor(), full)
        print("equal on rank " + str(rank))
        """,
    )
    assert out.count("equal on rank") == 2


def test_the_questions_of_a_checkpoint_are_answered_by_sharded_tensors_alone(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = distribute_tensor(torch.arange(8.0), mesh, "S0")
        (chunk,) = x.__create_chunk_list__()
        assert tuple(chunk.offsets) == (4 * rank,) and tuple(chunk.sizes) == (4,)
        empty = distribute_tensor(torch.ones(1), mesh, "S0")
        assert len(empty.__create_chunk_list__()) == 1 - rank
        strided = tessera.redistribute(x, [tessera.StridedShard(0, 2)])
        assert [tuple(c.offsets) for c in strided.__create_chunk_list__()] == [(2 * rank,), (4 + 2 * rank,)]
        with pytest.raises(tessera.InvalidArgument, match="redistribute"):
            distribute_tensor(torch.ones(8), mesh, [Partial()]).__create_chunk_list__()
        assert not hasattr(torch.ones(2), "__create_chunk_list__")
        whole = distribute_tensor(torch.ones(3), mesh, "R")
        assert len(whole.__create_write_items__("whole", whole)) == 1  # the planner picks one rank
        assert torch.equal(tessera.tensor_shard(strided, (4 + 2 * rank,)), torch.arange(2.0) + 4 + 2 * rank)
        return {f"w{i}" for i in range(40) if tessera.write_items(f"w{i}", whole)}

    first, second = ranks(2, body)
    assert first.isdisjoint(second) and len(first | second) == 40 and 8 < len(first) < 32


def test_replicated_tensors_are_spread_over_the_files_of_all_ranks(beside_torch, tmp_path):
    """Every holder offers its boxes, and PyTorch's planner, which alone knows who takes part (no_dist, a process
    group), gives each to the rank that has least: once in all, about as much for each."""
    folder = str(tmp_path / "even")
    beside_torch(
        2,
        f"""
        import torch.distributed.checkpoint as dcp

        mesh = tessera.mesh_from_torch(init_device_mesh("cpu", (2,), mesh_dim_names=("dp",)))
        state = {{f"w{{i}}": tessera.distribute_tensor(torch.full((64, 64), float(i)), mesh, "R") for i in range(12)}}
        dcp.save(state, checkpoint_id={folder!r})
        alone = {{name: tessera.to_local(value) for name, value in state.items()}}
        if rank == 0:  # one rank by itself has all of it
            dcp.save(state, checkpoint_id={folder!r} + "_alone", no_dist=True)
        torch.distributed.barrier()
        for where in ({folder!r}, {folder!r} + "_alone"):
            loaded = {{name: torch.zeros_like(value) for name, value in alone.items()}}
            dcp.load(loaded, checkpoint_id=where)
            assert all(torch.equal(loaded[name], alone[name]) for name in alone)
        """,
    )
    sizes = [file.stat().st_size for file in pathlib.Path(folder).glob("*.distcp")]
    assert len(sizes) == 2 and sum(sizes) < 12 * 64 * 64 * 4 * 1.3  # each tensor once
    assert max(sizes) < 1.1 * min(sizes)


VALUES = """
import torch.distributed.checkpoint as dcp
from torch.distributed import tensor as theirs

mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("dp",))
ours = tessera.mesh_from_torch(mesh)
tensors = {
    "even": torch.arange(48.0).reshape(8, 6),
    "uneven": torch.arange(35).reshape(5, 7),
    "short": torch.ones(1, 3, dtype=torch.bfloat16),
    "empty": torch.zeros(0, 4),
    "scalar": torch.tensor(2.5, dtype=torch.float64),
    "flags": torch.tensor([True, False, True]),
    "complex": torch.arange(6.0) * 1j,
    "float8": torch.arange(12.0).reshape(3, 4).to(torch.float8_e4m3fn),
    "wide": torch.arange(12).reshape(4, 3).to(torch.uint16),
    "turned": torch.arange(12.0).reshape(3, 4).t(),
}
others = {"step": 100, "rate": 1e-3, "name": "gpt", "betas": (0.9, 0.999), "none": None, "yes": True,
    "state": b"\\x00\\xff\\x80", "nothing": b"", "big": 2**40, "params": [0, 1, 2], "empty_list": []}

def placed(value, with_ours, dim):
    placement = dim if value.dim() > dim else None
    if with_ours:
        text = "R" if placement is None else f"S{dim}"
        return tessera.distribute_tensor(value, ours, text)
    if value.dtype in (torch.float8_e4m3fn, torch.uint16):
        return value.clone()  # which Gloo does not send
    kinds = [theirs.Replicate() if placement is None else theirs.Shard(dim)]
    return theirs.distribute_tensor(value, mesh, kinds)

def state_of(with_ours, dim, fill=None):
    model = {
        name: placed(value if fill is None else torch.zeros_like(value), with_ours, dim)
        for name, value in tensors.items()
    }
    plain = torch.arange(5.0) if fill is None else torch.zeros(5)
    rest = dict(others) if fill is None else {name: None for name in others}
    return {"model": model, "layers": [{"w": plain}, {"x": 7 if fill is None else 0}], "rest": rest}

def whole(tensor, with_ours):
    if type(tensor) is torch.Tensor and not tessera.is_dtensor(tensor):
        return tensor
    return tessera.full_tensor(tensor) if with_ours else tensor.full_tensor()

def check(state, with_ours):
    for name, value in tensors.items():
        got = whole(state["model"][name], with_ours)
        assert got.dtype == value.dtype and torch.equal(got.to(torch.complex128), value.to(torch.complex128)), name
    assert torch.equal(state["layers"][0]["w"], torch.arange(5.0))
    assert state["layers"][1]["x"] == 7
    assert state["rest"] == others, state["rest"]
"""


def test_pytorch_loads_what_tessera_saved_on_other_ranks(beside_torch, tmp_path):
    folder = str(tmp_path / "ours")
    beside_torch(4, VALUES + f"\ntessera.save(state_of(True, 0), {folder!r})\n")
    out = beside_torch(
        3,
        VALUES
        + f"""
for dim in (0, 1):
    state = state_of(False, dim, fill=0)
    dcp.load(state, checkpoint_id={folder!r})
    check(state, False)
    state = state_of(True, dim, fill=0)
    tessera.load(state, {folder!r})
    check(state, True)
print("equal on rank " + str(rank))
""",
    )
    assert out.count("equal on rank") == 3
    whole = torch.load(_as_one_file(folder, tmp_path), weights_only=False)
    assert torch.equal(whole["model"]["even"], torch.arange(48.0).reshape(8, 6))
    assert whole["rest"]["betas"] == (0.9, 0.999)


def _as_one_file(folder, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    target = tmp_path / "whole.pt"
    dcp_to_torch_save(folder, target)
    return target


def test_tessera_loads_what_pytorch_saved_on_other_ranks(beside_torch, tmp_path):
    folder = str(tmp_path / "theirs")
    beside_torch(
        4, VALUES + f"\ndcp.save(state_of(False, 0), checkpoint_id={folder!r})\n"
    )
    out = beside_torch(
        2,
        VALUES
        + f"""
for dim in (0, 1):
    state = state_of(True, dim, fill=0)
    tessera.load(state, {folder!r})
    check(state, True)
print("equal on rank " + str(rank))
""",
    )
    assert out.count("equal on rank") == 2


def test_what_each_rank_of_pytorch_saved_on_its_own_is_one_checkpoint(beside_torch, tmp_path):
    """use_collectives=False: each rank describes its own files, and no file describes all of them."""
    folder = str(tmp_path / "theirs")
    save = f"""
state = dict(state_of(False, 0), rank=rank, mine=torch.full((3,), float(rank)))
dcp.save(state, checkpoint_id={folder!r}, use_collectives=False)
"""
    beside_torch(4, VALUES + save)
    assert not (tmp_path / "theirs/.metadata").exists() and (tmp_path / "theirs/__3.metadata").exists()
    out = beside_torch(
        2,
        VALUES
        + f"""
for dim in (0, 1):
    state = dict(state_of(True, dim, fill=0), rank=None, mine=torch.zeros(3))
    tessera.load(state, {folder!r})
    check(state, True)
    assert state["rank"] == rank and state["mine"].tolist() == [rank] * 3  # each rank's own copy
print("equal on rank " + str(rank))
if rank == 0:
    import os
    os.remove({folder!r} + "/__2.metadata")
torch.distributed.barrier()
try:
    tessera.load(dict(state_of(True, 0, fill=0), rank=None, mine=torch.zeros(3)), {folder!r})
except Exception as error:
    assert "is incomplete: its chunks hold 4 of 6 elements" in str(error), error
else:
    raise AssertionError("a rank's part is missing, and nothing was said")
tessera.save(state_of(True, 0), {folder!r})
state = state_of(True, 1, fill=0)
tessera.load(state, {folder!r})
check(state, True)
""",
    )
    assert out.count("equal on rank") == 2
    assert not list(pathlib.Path(folder).glob("__*.metadata"))
