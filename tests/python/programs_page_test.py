"""The commands of docs/programs.md run as they stand there."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TEXT = (ROOT / "docs/programs.md").read_text(encoding="utf-8")
TESSERA = ROOT / "build/bin/tessera"


@pytest.mark.skipif(not TESSERA.exists(), reason="the command line is not built there")
def test_the_commands_run(tmp_path):
    blocks = re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) == 3
    script = "set -e\n" + "".join(blocks)
    script = script.replace("/tmp/five", str(tmp_path)).replace(".venv/bin/python", sys.executable)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=ROOT,
        env=dict(os.environ, OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "computes what" in done.stdout, done.stdout
    assert (tmp_path / "out.safetensors").exists()
