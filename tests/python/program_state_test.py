"""Exported programs that keep state in buffers (keys and values of earlier tokens, running statistics), sharded: the
state is sharded with the weights that fill it, and runs that follow each other give what the whole program gives."""

import json
import subprocess

import pytest
import torch
from torch import nn

from python_process import TESSERA

pytestmark = pytest.mark.skipif(not TESSERA.exists(), reason="the command line is not built there")

HEADS, SIZE, LENGTH, WORDS = 12, 4, 8, 30
MEGATRON = {"modules": {"query": "colwise", "key": "colwise", "value": "colwise", "out": "rowwise"}}
FORMS = {"raw": lambda program: program, "infer": lambda program: program.run_decompositions({})}


class Decoder(nn.Module):
    """One token at a time; how a cache is written differs from model to model."""

    def __init__(self, write, registered=True):
        super().__init__()
        width = HEADS * SIZE
        self.write = write
        self.embed = nn.Embedding(WORDS, width)
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.value, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.cache = {}  # of a tensor that no module registers torch.export makes a constant
        for name in ("keys", "values"):
            cache = torch.zeros(2, HEADS, LENGTH, SIZE, dtype=torch.double)
            self.register_buffer(name, cache if registered else None)
            self.cache[name] = cache
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, token, position):
        x = self.embed(token)

        def heads(layer):
            return layer(x).view(x.shape[0], 1, HEADS, SIZE).transpose(1, 2)

        keys = self.cache["keys"] if self.keys is None else self.keys
        values = self.cache["values"] if self.values is None else self.values
        self.write(keys, position, heads(self.key))
        self.write(values, position, heads(self.value))
        self.steps += 1
        seen = (torch.arange(LENGTH) <= position)[None, None, None]
        y = nn.functional.scaled_dot_product_attention(heads(self.query), keys, values, attn_mask=seen)
        return self.out(y.transpose(1, 2).flatten(2)), self.steps.clone()


def by_index_copy(cache, position, new):
    cache.index_copy_(2, position, new)


def by_index_put(cache, position, new):
    cache[:, :, position] = new


def by_sum(cache, position, new):
    cache.mul_(0.5)
    cache.add_(new)


class Statistics(nn.Module):
    """Batch norm in training: the running statistics of the runs before are a result."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Conv2d(4, 12, 1), nn.BatchNorm2d(12), nn.Conv2d(12, 4, 1)

    def forward(self, x):
        before = self.norm.running_mean.clone()
        return self.second(self.norm(self.first(x))), before


class ReadThroughView(nn.Module):
    """A view of the buffer that is made before the write is read after it."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 12, bias=False), nn.Linear(12, 8, bias=False)
        self.register_buffer("state", torch.zeros(2, 12))

    def forward(self, x):
        view = self.state.view(2, 3, 4)
        self.state.add_(self.up(x))
        return self.down(view.reshape(2, 12))


def cli(*words):
    done = subprocess.run([TESSERA, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def export(model, inputs, form, path):
    torch.manual_seed(0)
    program = FORMS[form](torch.export.export(model.double(), inputs))
    torch.export.save(program, path)


def shard(tmp_path, mesh, plan=None):
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    words = ["--plan", tmp_path / "plan.json"] if plan is not None else []
    text = cli("shard", tmp_path / "model.pt2", "--mesh", mesh, *words, "-o", tmp_path / "sharded", "--json")
    cli("verify", tmp_path / "model.pt2", tmp_path / "sharded", "--repeat", "3", "--tolerance", "1e-12")
    for file in sorted((tmp_path / "sharded").glob("*.pt2")):
        torch.export.load(file).validate()
    return json.loads(text)


def placed(report, name):
    return {weight["name"]: weight["placements"] for weight in report["weights"]}.get(name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("write", [by_index_copy, by_index_put, by_sum])
def test_a_cache_is_sharded_by_heads_and_takes_no_collective(tmp_path, write, form):
    export(Decoder(write).eval(), (torch.tensor([[3], [7]]), torch.tensor([2])), form, tmp_path / "model.pt2")
    report = shard(tmp_path, "tp=3", MEGATRON)
    assert placed(report, "keys") == placed(report, "values") == "S1"
    assert report["collectives"] == 1


def test_a_cache_that_no_module_registers_is_sharded_too(tmp_path):
    model = Decoder(by_index_copy, registered=False).eval()
    export(model, (torch.tensor([[3], [7]]), torch.tensor([2])), "raw", tmp_path / "model.pt2")
    report = shard(tmp_path, "tp=3", MEGATRON)
    assert report["collectives"] == 1
    assert sum(weight["placements"] == "S1" and weight["type"] == "f64 2x12x8x4" for weight in report["weights"]) == 2


@pytest.mark.parametrize("form", FORMS)
def test_a_cache_can_be_demanded_whole(tmp_path, form):
    export(Decoder(by_index_copy).eval(), (torch.tensor([[3], [7]]), torch.tensor([2])), form, tmp_path / "model.pt2")
    report = shard(tmp_path, "tp=2", {**MEGATRON, "weights": {"keys": "R", "values": "R"}})
    assert placed(report, "keys") in (None, "R")
    assert report["collectives"] == 3


@pytest.mark.parametrize("form", FORMS)
def test_running_statistics_are_what_the_whole_program_has(tmp_path, form):
    export(Statistics().train(), (torch.randn(4, 4, 3, 3).double(),), form, tmp_path / "model.pt2")
    shard(tmp_path, "tp=2", {"modules": {"first": "colwise", "second": "rowwise"}})


def test_a_buffer_that_a_view_shares_stays_whole(tmp_path):
    export(ReadThroughView().eval(), (torch.randn(2, 8).double(),), "raw", tmp_path / "model.pt2")
    report = shard(tmp_path, "tp=2", {"modules": {"up": "colwise"}})
    assert placed(report, "state") in (None, "R")
