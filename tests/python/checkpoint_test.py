"""tessera.save and tessera.load: states of any nesting, values of all kinds, steps, safetensors, models."""

import pytest
import torch

import tessera
from tessera.compat import distribute_tensor


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
    with pytest.raises(tessera.NotSupported, match="model is a object"):
        tessera.save({"model": object()}, tmp_path / "d")
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
