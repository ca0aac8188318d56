"""Exported models from the file to the ranks, as a user does it: tessera shard, then tessera verify, which runs
them whole and on processes and compares. In float64: 1e-10."""

import json
import os
import signal
import subprocess
import time

import exported_models
import pytest
import torch

from python_process import TESSERA

pytestmark = pytest.mark.skipif(not TESSERA.exists(), reason="the command line is not built there")

BLOCK = {"up": "colwise", "down": "rowwise"}
ATTENTION = {"q": "colwise", "k": "colwise", "v": "colwise", "o": "rowwise"}


def of_layers(prefix, **styles):
    return {"modules": {f"{prefix}.{name}": style for name, style in styles.items()}}


#: By model: a plan as one would write it, and the all_reduces that it needs where heads, columns and experts are
#: divided evenly: one for each pair.
PLANS = {
    "mlp": ({"modules": BLOCK}, 1),
    "gpt": (of_layers("blocks.*", attention="colwise", out="rowwise", **BLOCK), 2),
    "llama": (of_layers("layers.*", gate="colwise", **ATTENTION, **BLOCK), 2),
    "bert": (of_layers("blocks.*", **ATTENTION, **BLOCK), 2),
    "vit": (
        of_layers(
            "encoder.layers.*",
            **{
                "self_attn": "colwise",
                "self_attn.out_proj": "rowwise",
                "linear1": "colwise",
                "linear2": "rowwise",
            },
        ),
        2,
    ),
    "moe": ({"weights": {"up": "S0", "down": "S0"}}, 1),
}
#: Ranks by which the model's heads and experts can be divided.
EVEN = {"mlp": (2, 3, 4), "gpt": (2, 4), "llama": (3,), "bert": (2, 4), "vit": (2, 4), "moe": (2, 4)}


def tessera_json(*words, ok=True):
    done = subprocess.run([TESSERA, *map(str, words), "--json"], capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == ok, done.stdout + done.stderr
    return json.loads(done.stdout) if ok else done.stderr


def double(value):
    return value.double() if value.is_floating_point() else value


def collectives_of(path):
    ops = tessera_json("inspect", path)["ops"]
    return {op: count for op, count in ops.items() if "c10d" in op and "wait" not in op}


def matrix():
    """(model, form, dynamic sizes, numbers of ranks, whether the plan is given): each model in each form, in turns on
    2, 3 or 4 ranks, and static with the plan or dynamic with one that is found, such that each number of ranks occurs
    with both and each model has a plan that divides it evenly. With TESSERA_FULL_MATRIX=1 (seven minutes) everything
    with everything; tests/interp has that on threads."""
    full = "TESSERA_FULL_MATRIX" in os.environ
    for i, name in enumerate(PLANS):
        for j, form in enumerate(exported_models.FORMS):
            for dynamic in (False, True) if full else ((i + j) % 2 == 0,):
                ranks = (2, 3, 4) if full else (2 + (i // 2 + j + 2) % 3,)
                size = "dynamic" if dynamic else "static"
                given = (True, False) if full else (not dynamic,)
                yield pytest.param(name, form, dynamic, ranks, given, id=f"{name}-{form}-{size}")


@pytest.mark.parametrize("name, form, dynamic, numbers, plans", list(matrix()))
def test_models_compute_the_same_on_several_processes(tmp_path, name, form, dynamic, numbers, plans):
    if reason := exported_models.refusal(name, dynamic=dynamic):
        pytest.skip(reason)
    case = exported_models.cases()[name]
    case.model.double()
    case.args = tuple(map(double, case.args))
    model = tmp_path / "model.pt2"
    torch.export.save(exported_models.exported(case, form, dynamic=dynamic), model)
    plan, all_reduces = PLANS[name]
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    given, found = ("--plan", tmp_path / "plan.json"), ("--plan", "auto", "--memory", "70%")
    for ranks in numbers:
        for words in [given if is_given else found for is_given in plans]:
            sharded = tmp_path / f"{ranks}_{len(words)}"
            shard = ("shard", model, "--mesh", f"tp={ranks}", *words, "-o", sharded)
            if name == "moe" and ranks == 3 and len(words) == 2:  # 4 experts: 2, 2 and none
                assert "plan is not possible" in tessera_json(*shard, ok=False)
                assert not sharded.exists()
                continue
            tessera_json(*shard)
            collectives = collectives_of(sharded / "rank_0.pt2")
            assert collectives
            if len(words) == 2 and ranks in EVEN[name]:
                assert sum(collectives.values()) == all_reduces
                # Results of experts may as well be gathered: as many bytes for so few tokens.
                kinds = {"all_reduce", "all_gather_into_tensor"} if name == "moe" else {"all_reduce"}
                assert {kind.removeprefix("_c10d_functional::") for kind in collectives} <= kinds
            result = tessera_json("verify", model, sharded)
            assert result["ok"] and result["ranks"] == ranks
            assert all(output["relative"] <= 1e-10 for output in result["outputs"] if output["dtype"] == "f64")


@pytest.mark.parametrize("single", [[], ["--single-file"]], ids=["directory", "file"])
def test_an_interrupted_shard_leaves_nothing_behind(tmp_path, single):
    """128 MiB: long enough for a signal in the middle."""
    model = tmp_path / "model.pt2"
    wide = torch.nn.Sequential(torch.nn.Linear(1024, 16384), torch.nn.Linear(16384, 1024))
    torch.export.save(torch.export.export(wide, (torch.zeros(1, 1024),)), model)
    plan = {"modules": {"0": "colwise", "1": "rowwise"}}
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    before = sorted(tmp_path.iterdir())
    words = ["shard", model, "--mesh", "tp=4", "--plan", tmp_path / "plan.json", "-o", tmp_path / "out", *single]
    with subprocess.Popen(
        [TESSERA, *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells ignore it in the background
    ) as started:
        while started.poll() is None and not list(tmp_path.glob("out.unfinished*")):
            time.sleep(0.001)
        started.send_signal(signal.SIGINT)
        assert started.wait(60) == 128 + signal.SIGINT
    assert sorted(tmp_path.iterdir()) == before
