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


def test_the_stubs_are_those_of_the_runtime():
    allowed = pathlib.Path(__file__).with_name("stubtest_allowlist.txt")
    config = ["--mypy-config-file", "pyproject.toml"]
    run("mypy.stubtest", "--concise", *config, "--allowlist", str(allowed), "tessera._C")
