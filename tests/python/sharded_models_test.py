"""Exported models from the file to the ranks, as a user does it: tessera shard, then tessera verify, which runs
them whole and on processes and compares. In float64: 1e-10."""

import json
import pathlib
import subprocess

import exported_models
import pytest
import torch

TESSERA = pathlib.Path(__file__).parents[2] / "build/bin/tessera"
pytestmark = pytest.mark.skipif(not TESSERA.exists(), reason="the command line is not built there")

BLOCK = {"up": "colwise", "down": "rowwise"}


def of_layers(prefix, **styles):
    return {"modules": {f"{prefix}.{name}": style for name, style in styles.items()}, "rest": "replicate"}


#: By model: a plan as one would write it, and the all_reduces that it needs (None: other collectives too).
#: The mixture of experts is cut in core form alone, since aten::einsum has no rule.
PLANS = {
    "mlp": ({"modules": BLOCK, "rest": "replicate"}, 1),
    "gpt": (of_layers("blocks.*", **BLOCK), 1),
    "llama": (of_layers("layers.*", gate="colwise", q="colwise", k="colwise", v="colwise", o="rowwise", **BLOCK), None),
    "bert": (of_layers("blocks.*", q="colwise", k="colwise", v="colwise", o="rowwise", **BLOCK), 2),
    "vit": (of_layers("encoder.layers.*", linear1="colwise", linear2="rowwise"), 1),
    "moe": ({"weights": {"up": "S0", "down": "S0"}, "rest": "replicate"}, None),
}


def tessera_json(*words):
    done = subprocess.run([TESSERA, *map(str, words), "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def double(value):
    return value.double() if value.is_floating_point() else value


@pytest.mark.parametrize(
    ("name", "form", "ranks"),
    [(name, form, ranks) for name in PLANS if name != "moe" for form, ranks in (("raw", 2), ("decomposed", 4))]
    + [("mlp", "core", 3), ("bert", "core", 2), ("vit", "core", 4), ("llama", "raw", 3), ("moe", "core", 2)],
)
def test_models_compute_the_same_on_several_processes(tmp_path, name, form, ranks):
    case = exported_models.cases()[name]
    case.model.double()
    case.args = tuple(map(double, case.args))
    plan, all_reduces = PLANS[name]
    torch.export.save(exported_models.exported(case, form, dynamic=form != "core"), tmp_path / "model.pt2")
    (tmp_path / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    mesh = ("--mesh", f"tp={ranks}", "--plan", tmp_path / "plan.json")
    tessera_json("shard", tmp_path / "model.pt2", *mesh, "-o", tmp_path / "sharded")
    ops = tessera_json("inspect", tmp_path / "sharded/rank_0.pt2")["ops"]
    collectives = {op: count for op, count in ops.items() if "c10d" in op and "wait" not in op}
    assert collectives
    if all_reduces is not None:
        assert collectives == {"_c10d_functional::all_reduce": all_reduces}
    result = tessera_json("verify", tmp_path / "model.pt2", tmp_path / "sharded")
    assert result["ok"] and result["ranks"] == ranks
    assert all(output["relative"] <= 1e-10 for output in result["outputs"] if output["dtype"] == "f64")
