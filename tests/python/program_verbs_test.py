"""The command line on exported programs: generated inputs, tolerances, what inspect shows, and reasons."""

import json
import subprocess

import pytest
import torch
from torch import nn

from python_process import TESSERA

pytestmark = pytest.mark.skipif(not TESSERA.exists(), reason="the command line is not built there")


def cli(*words, code=0):
    done = subprocess.run([TESSERA, *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr if code else done.stdout


def save(model, inputs, path, **options):
    torch.manual_seed(0)
    torch.export.save(torch.export.export(model.eval(), inputs, **options), path)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(64, 8), nn.Linear(8, 64, bias=False)

    def forward(self, tokens):
        return self.head(self.embed(tokens.view(-1)))


def test_a_seed_gives_a_sharded_program_the_inputs_of_the_whole_one(tmp_path):
    save(Words().double(), (torch.randint(0, 64, (4, 4)),), tmp_path / "model.pt2")
    (tmp_path / "plan.json").write_text('{"modules": {"embed": "vocabulary", "head": "vocabulary"}}')
    cli("shard", tmp_path / "model.pt2", "--mesh", "tp=4", "--plan", tmp_path / "plan.json", "-o", tmp_path / "tp4")
    results = []
    for program in ("model.pt2", "tp4"):
        cli("run", tmp_path / program, "--random", "5", "-o", tmp_path / "out.safetensors")
        raw = (tmp_path / "out.safetensors").read_bytes()
        header = int.from_bytes(raw[:8], "little")
        results.append(torch.frombuffer(bytearray(raw[8 + header :]), dtype=torch.float64))
    torch.testing.assert_close(results[0], results[1], rtol=1e-10, atol=1e-10)
    assert results[0].view(16, 64).unique(dim=0).size(0) > 4  # words of the whole table


class CastLast(nn.Module):
    """Computed in one type, returned in another."""

    def __init__(self, dtype):
        super().__init__()
        self.up, self.down = nn.Linear(64, 256, dtype=dtype), nn.Linear(256, 64, dtype=dtype)

    def forward(self, x):
        return {"value": self.down(self.up(x)).float(), "input": x.float()}


@pytest.mark.parametrize(("dtype", "allowed"), [(torch.bfloat16, 2e-2), (torch.float32, 1e-4)], ids=str)
def test_the_tolerance_is_that_of_the_type_that_computes(tmp_path, dtype, allowed):
    save(CastLast(dtype), (torch.randn(8, 64).to(dtype),), tmp_path / "model.pt2")
    (tmp_path / "plan.json").write_text('{"modules": {"up": "colwise", "down": "rowwise"}}')
    cli("shard", tmp_path / "model.pt2", "--mesh", "tp=4", "--plan", tmp_path / "plan.json", "-o", tmp_path / "tp4")
    report = json.loads(cli("verify", tmp_path / "model.pt2", tmp_path / "tp4", "--json"))
    assert {one["name"]: one["allowed"] for one in report["outputs"]} == {"value": allowed, "input": 1e-4}


class FixedArguments(nn.Module):
    def forward(self, x, times, how, *, scale):
        return {"sum": (x * scale).sum() * times, "count": 3, "none": None}, how == "a"


def test_inspect_shows_what_was_fixed_at_export(tmp_path):
    save(FixedArguments(), (torch.randn(2), 4, "a"), tmp_path / "model.pt2", kwargs={"scale": 2.5})
    report = json.loads(cli("inspect", tmp_path / "model.pt2", "--json"))
    assert [one["type"] for one in report["inputs"]] == ["f32 2", "fixed: 4", 'fixed: "a"', "fixed: 2.5"]
    assert {one["name"]: one["type"] for one in report["outputs"]}["0.count"] == "fixed: 3"


class NeedsItWhole(nn.Module):
    """The op sees a view of the weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32))

    def forward(self, x):
        return torch.linalg.matrix_exp(self.weight.mT.contiguous()) @ x


def test_a_limit_that_cannot_be_kept_names_the_op_behind_a_view(tmp_path):
    save(NeedsItWhole(), (torch.randn(32, 4),), tmp_path / "model.pt2")
    words = ["--mesh", "tp=2", "--memory", "60%", "-o", tmp_path / "tp2"]
    assert "stays whole: aten::linalg_matrix_exp (node linalg_matrix_exp) needs it whole" in cli("shard", tmp_path / "model.pt2", *words, code=2)
    assert not (tmp_path / "tp2").exists()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 8)

    def forward(self, x, times):
        return self.layer(x) * times


def test_generated_inputs_have_the_numbers_of_the_export(tmp_path):
    sizes = (None, torch.export.Dim.DYNAMIC)
    save(Scaled().double(), (torch.randn(4, 6).double(), 3), tmp_path / "model.pt2", dynamic_shapes=sizes)
    cli("shard", tmp_path / "model.pt2", "--mesh", "tp=2", "-o", tmp_path / "tp2")
    report = json.loads(cli("verify", tmp_path / "model.pt2", tmp_path / "tp2", "--json"))
    assert [one["shape"] for one in report["outputs"]] == ["4x8"]


class Chosen(nn.Module):
    def forward(self, x):
        return x[x > 0] * 2


def test_sizes_that_depend_on_values_run_and_are_refused_by_shard(tmp_path):
    save(Chosen(), (torch.randn(4, 6),), tmp_path / "model.pt2")
    cli("run", tmp_path / "model.pt2", "--random", "0")
    error = cli("shard", tmp_path / "model.pt2", "--mesh", "tp=2", "-o", tmp_path / "tp2", code=2)
    assert "known only when the program runs" in error and "u0" in error
    assert not (tmp_path / "tp2").exists()


def test_modules_that_are_near_a_name_exclude_the_root(tmp_path):
    save(Words(), (torch.randint(0, 64, (4, 4)),), tmp_path / "model.pt2")
    (tmp_path / "plan.json").write_text('{"modules": {"layers.*.up": "colwise"}}')
    plan = ("--mesh", "tp=2", "--plan", tmp_path / "plan.json", "-o", tmp_path / "tp2")
    error = cli("shard", tmp_path / "model.pt2", *plan, code=2)
    assert error.rstrip().endswith(("near it: embed, head", "near it: head, embed"))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.down(self.up(x))


def test_blocks_of_autocast_run_once_they_are_decomposed(tmp_path):
    torch.manual_seed(0)
    program = torch.export.export(Mixed(), (torch.randn(4, 8),))
    torch.export.save(program, tmp_path / "model.pt2")
    assert "run_decompositions({})" in cli("run", tmp_path / "model.pt2", "--random", "0", code=2)
    torch.export.save(program.run_decompositions({}), tmp_path / "decomposed.pt2")
    plan = tmp_path / "plan.json"
    plan.write_text('{"weights": {"up.weight": "S0", "up.bias": "S0", "down.weight": "S1"}}')
    cli("shard", tmp_path / "decomposed.pt2", "--mesh", "tp=2", "--plan", plan, "-o", tmp_path / "tp2")
    cli("verify", tmp_path / "decomposed.pt2", tmp_path / "tp2")
