"""torch.distributed.checkpoint saves sharded tensors, and loads them placed otherwise."""

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


def test_nested_states_come_back_and_errors_name_what_does_not_fit(tmp_path):
    state = {"a": {7: torch.arange(3.0)}, "list": [torch.ones(2), {"n": 1}], "plain": [1, (2.5, "x")]}
    tessera.save(state, tmp_path / "c")
    loaded = {"a": {7: torch.zeros(3)}, "list": [torch.zeros(2), {"n": 0}], "plain": None}
    report = tessera.load(loaded, tmp_path / "c")
    assert (report.missing, report.unexpected) == ([], [])
    assert loaded["plain"] == [1, (2.5, "x")] and loaded["list"][1]["n"] == 1
    assert torch.equal(loaded["a"][7], torch.arange(3.0))
    with pytest.raises(tessera.InvalidArgument, match="the state lacks a.7, list.0"):
        tessera.load({"other": 1}, tmp_path / "c", allow_missing=True)
    report = tessera.load({"other": 1}, tmp_path / "c", allow_missing=True, allow_unexpected=True)
    assert report.missing == ["other"] and len(report.unexpected) == 4
    with pytest.raises(tessera.NotSupported, match="model is a Linear"):
        tessera.save({"model": torch.nn.Linear(1, 1)}, tmp_path / "d")
    half = {"a": {7: torch.zeros(3, dtype=torch.half)}}
    with pytest.raises(tessera.InvalidArgument, match="f32 in the checkpoint and f16"):
        tessera.load(half, tmp_path / "c", allow_unexpected=True)
    tessera.load(half, tmp_path / "c", allow_unexpected=True, cast=True)
    assert half["a"][7].sum() == 3


def test_a_value_that_one_rank_cannot_save_is_an_error_on_all(ranks, tmp_path):
    """None of them waits for the rank that gave up."""

    class Own:
        pass

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        w = distribute_tensor(torch.arange(4.0), mesh, "S0")
        saver = tessera.AsyncSaver()
        texts = []
        for bad in (Own(), {1, 2}, [torch.ones(1), Own()], "\ud800", 2**64):
            state = {"w": w, "bad": bad if rank == 1 else 1}
            for call in (
                lambda: tessera.save(state, tmp_path / "c"),
                lambda: tessera.save_step(state, tmp_path / "run", 1),
                lambda: tessera.save_safetensors(state, tmp_path / "m"),
                lambda: saver.save(state, tmp_path / "c"),
                lambda: tessera.load(state, tmp_path / "c"),
            ):
                with pytest.raises(tessera.Error if rank == 1 else tessera.PeerError, match="rank 1: .*bad") as caught:
                    call()
                texts.append(str(caught.value))
        twice = {"w": w, "a.b": 1, "a": {"b": 2}} if rank == 1 else {"w": w}
        with pytest.raises(tessera.InvalidArgument if rank == 1 else tessera.PeerError, match="the name a.b"):
            tessera.save(twice, tmp_path / "c")
        tessera.save({"w": w}, tmp_path / "c")
        return texts

    first, second = ranks(2, body)
    assert first == second


def test_numbers_of_numpy_are_numbers(tmp_path):
    numpy = pytest.importorskip("numpy")
    tessera.save({"n": numpy.int64(-3), "u": numpy.uint8(200), "x": numpy.float64(0.5)}, tmp_path / "c")
    state = {"n": None, "u": None, "x": None}
    tessera.load(state, tmp_path / "c")
    assert state == {"n": -3, "u": 200, "x": 0.5} and type(state["n"]) is int
    with pytest.raises(tessera.NotSupported, match="a is a ndarray"):
        tessera.save({"a": numpy.zeros(1, dtype=numpy.int64)}, tmp_path / "c")


def test_a_message_quotes_damaged_bytes_of_any_value(tmp_path):
    tessera.save({"n": 1}, tmp_path / "c")
    checksums = tmp_path / "c" / "checksums.json"
    checksums.write_bytes(checksums.read_bytes().replace(b"format", b"\xff\xfeormat"))
    with pytest.raises(tessera.InvalidArgument, match=r"checksums.json.*\\xff"):
        tessera.load({"n": 0}, tmp_path / "c")


def test_safetensors_are_those_of_the_reference_library(ranks, tmp_path):
    reference = pytest.importorskip("safetensors.torch")
    tensors = {"w": torch.arange(35.0).reshape(5, 7), "half": torch.ones(3).bfloat16(), "n": torch.tensor(3)}

    def save(rank):
        mesh = tessera.init_device_mesh("tp=2")
        placed = {n: distribute_tensor(t, mesh, "S0") if t.dim() else t for n, t in tensors.items()}
        tessera.save_safetensors(placed, tmp_path / "ours.safetensors")

    ranks(2, save)
    for name, value in reference.load_file(tmp_path / "ours.safetensors").items():
        assert torch.equal(value, tensors[name]) and value.dtype == tensors[name].dtype
    reference.save_file(tensors, tmp_path / "theirs.safetensors")

    def load(rank):
        mesh = tessera.init_device_mesh("tp=2")
        state = {n: distribute_tensor(torch.zeros_like(t), mesh, "S1" if t.dim() > 1 else "R") for n, t in tensors.items()}
        tessera.load(state, tmp_path / "theirs.safetensors")
        return all(torch.equal(tessera.full_tensor(state[n]), t) for n, t in tensors.items())

    assert all(ranks(2, load))


def test_steps_are_kept_and_background_saves_end(ranks, tmp_path):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        w = distribute_tensor(torch.arange(5.0), mesh, "S0")
        for step in (1, 2, 30):
            tessera.save_step({"w": w, "step": step}, tmp_path / "run", step, keep=2)
        saver = tessera.AsyncSaver()
        saver.save({"w": w}, tmp_path / "later")
        with torch.no_grad():
            w.zero_()
        saver.wait()
        assert not saver.busy()
        tessera.load({"w": w}, tmp_path / "later")
        return tessera.full_tensor(w).sum().item()

    assert tessera.latest_step(tmp_path / "none") is None
    assert ranks(2, body) == [10.0, 10.0]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["step_2", "step_30"]
    state = {"w": torch.zeros(5), "step": 0}
    tessera.load(state, tessera.step_path(tmp_path / "run", tessera.latest_step(tmp_path / "run")))
    assert state["step"] == 30 and state["w"].sum() == 10


def test_a_model_of_transformers_comes_sharded_and_goes_back(ranks, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=64, n_positions=32)

    def make():
        return transformers.GPT2LMHeadModel(config).eval()

    model = make()
    model.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    tokens = torch.arange(8)[None]
    expected = model(tokens).logits

    def body(rank):
        sharded = make()
        tessera.fully_shard(sharded, tessera.init_device_mesh("dp=2"))
        named = sharded.state_dict(keep_vars=True)
        state = {name: value for name, value in named.items() if name != "lm_head.weight"}  # tied
        tessera.load(state, tmp_path / "theirs")
        with torch.no_grad():
            torch.testing.assert_close(sharded(tokens).logits, expected)
        tessera.save_safetensors(state, tmp_path / "ours", max_file_bytes=20_000)

    ranks(2, body)
    config.save_pretrained(tmp_path / "ours")
    back = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours")
    for name, value in model.state_dict().items():
        assert torch.equal(back.state_dict()[name], value), name
