"""States as programs have them: objects with a state_dict(), scalars of numpy; what is no state is refused;
spare files."""

import pytest
import tessera
import torch
import torch.distributed.checkpoint as dcp


class Loader:
    def __init__(self, position=0):
        self.position = position
        self.seen = torch.full((2,), float(position))

    def state_dict(self):
        return {"position": self.position, "seen": self.seen}

    def load_state_dict(self, state):
        self.position = state["position"]


def make(scale):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=scale)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {
        "model": model,
        "optim": optimizer,
        "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 1),
        "data": [Loader(int(10 * scale)), {"n": int(scale)}],
    }


def check(loaded, saved):
    assert torch.equal(loaded["model"].weight, saved["model"].weight)
    assert loaded["optim"].param_groups[0]["lr"] == saved["optim"].param_groups[0]["lr"]
    moments = (each["optim"].state_dict()["state"][0]["exp_avg"] for each in (loaded, saved))
    assert torch.equal(*moments)
    assert loaded["schedule"].state_dict() == saved["schedule"].state_dict()


def test_objects_are_saved_and_loaded_by_their_state_dicts(tmp_path):
    saved = make(1.0)
    tessera.save(saved, tmp_path / "c")
    loaded = make(2.0)
    tessera.load(loaded, tmp_path / "c")
    check(loaded, saved)
    assert loaded["data"][0].position == 10 and loaded["data"][1] == {"n": 1}
    with pytest.raises(tessera.InvalidArgument, match="the checkpoint lacks data.1.other"):
        tessera.load({**loaded, "data": [Loader(7), {"other": 1}]}, tmp_path / "c")
    assert loaded["data"][0].position == 10  # an error comes before any load_state_dict()


def test_pytorch_reads_and_writes_the_same_objects(tmp_path):
    saved = make(1.0)
    del saved["data"]
    tessera.save(saved, tmp_path / "ours")
    loaded = make(2.0)
    del loaded["data"]
    dcp.load(loaded, checkpoint_id=tmp_path / "ours", no_dist=True)
    check(loaded, saved)
    dcp.save({"model": saved["model"], "loader": Loader(5)}, checkpoint_id=tmp_path / "theirs", no_dist=True)
    state = {"model": torch.nn.Linear(3, 2), "loader": Loader()}
    tessera.load(state, tmp_path / "theirs")
    assert torch.equal(state["model"].weight, saved["model"].weight) and state["loader"].position == 5


def test_a_sharded_module_and_its_optimizer_are_objects_too(ranks, tmp_path):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        torch.manual_seed(3)
        models = []
        for _ in range(2):
            model = torch.nn.Linear(3, 5)
            tessera.fully_shard(model, mesh)
            optimizer = torch.optim.AdamW(model.parameters())
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
            models.append({"model": model, "optim": optimizer})
        tessera.save(models[0], tmp_path / "c")
        tessera.load(models[1], tmp_path / "c")
        one, two = (tessera.full_state_dict(each["model"]) for each in models)
        assert all(torch.equal(one[name], two[name]) for name in one)

    ranks(2, body)


def test_what_is_no_state_is_refused(tmp_path):
    for wrong in ("text", [torch.ones(2)], (1, 2), None, torch.ones(2), torch.nn.Linear(1, 1)):
        for call in (tessera.save, tessera.load, tessera.AsyncSaver().save):
            with pytest.raises(tessera.InvalidArgument, match="a state is a dict of names and values, not a"):
                call(wrong, tmp_path / "c")
    with pytest.raises(tessera.NotSupported, match="pair is a tuple that holds a tensor"):
        tessera.save({"pair": (torch.ones(2), 1)}, tmp_path / "c")
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(tessera.InvalidArgument, match="rows is not a dense tensor"):
        tessera.save({"rows": nested}, tmp_path / "c")
    assert not list(tmp_path.iterdir())


def test_every_scalar_of_numpy_is_a_number(tmp_path):
    numpy = pytest.importorskip("numpy")
    tessera.save({"x": numpy.float32(0.5), "h": numpy.float16(2), "b": numpy.bool_(True)}, tmp_path / "c")
    state = {"x": None, "h": None, "b": None}
    tessera.load(state, tmp_path / "c")
    assert state == {"x": 0.5, "h": 2.0, "b": True} and type(state["b"]) is bool and type(state["x"]) is float
    for value, kind in ((numpy.complex64(1), "complex"), (numpy.longdouble(1), "longdouble")):
        with pytest.raises(tessera.NotSupported, match=f"c is a {kind}"):
            tessera.save({"c": value}, tmp_path / "d")


def test_files_of_a_replaced_checkpoint_are_overwritten(ranks, tmp_path):
    spare = tmp_path / "spare"

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        state = {"w": tessera.distribute_tensor(torch.zeros(6), mesh, "S0"), "n": 0}
        saver = tessera.AsyncSaver()
        for n in range(1, 7):
            with torch.no_grad():
                state["w"].fill_(n)
            state["n"] = n
            tessera.save(state, tmp_path / "c", spare=spare)
            tessera.save_step(state, tmp_path / "run", n, keep=1, spare=spare)
            saver.save(state, tmp_path / "async", spare=str(spare))
            saver.wait()
            for path in (tmp_path / "c", tessera.step_path(tmp_path / "run", n), tmp_path / "async"):
                loaded = {"w": torch.zeros(6), "n": 0}
                tessera.load(loaded, path)
                assert loaded["n"] == n and torch.equal(loaded["w"], torch.full((6,), float(n)))

    ranks(2, body)
    assert sorted(path.name for path in tmp_path.iterdir()) in (
        ["async", "c", "run", "spare"],
        ["async", "c", "run"],
    )
