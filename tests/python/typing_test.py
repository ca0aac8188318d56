"""The package's types hold by themselves, and the stubs say what the C++ part has."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("mypy")
ROOT = pathlib.Path(__file__).parents[2]


def run(*arguments):
    environment = dict(os.environ, MYPYPATH=str(ROOT / "python"))
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_package_is_typed_strictly(tmp_path):
    run("mypy", "--cache-dir", str(tmp_path), "python/tessera")


USER = """
import tessera
from tessera import Replicate, Shard
from tessera.compat import DTensor, FSDPModule, fully_shard

def main(rank: int) -> float:
    mesh = tessera.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    x = tessera.ones(4, device_mesh=mesh, placements=[Shard(0)])
    placed: tuple[tessera.Placement, ...] = tessera.placements(tessera.redistribute(x, [Replicate()]))
    with tessera.expect_comm("nothing") as recorder:
        events: list[tessera.CommEvent] = recorder.events
    return float(len(placed) + len(events))

totals: list[float] = tessera.run_ranks(2, main)
wrong: int = tessera.explain("aten::mm")
"""


def test_a_users_program_sees_the_types(tmp_path):
    program = tmp_path / "user.py"
    program.write_text(USER, encoding="utf-8")
    with pytest.raises(AssertionError) as found:
        run("mypy", "--cache-dir", str(tmp_path), str(program))
    last = len(USER.splitlines())
    assert f"user.py:{last}: error" in str(found.value) and "Found 1 error" in str(found.value)


def test_the_stubs_are_those_of_the_runtime():
    allowed = pathlib.Path(__file__).with_name("stubtest_allowlist.txt")
    config = ["--mypy-config-file", "pyproject.toml"]
    run("mypy.stubtest", "--concise", *config, "--allowlist", str(allowed), "tessera._C")
