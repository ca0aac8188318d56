"""The Python and shell blocks of the documentation run as they stand; tools/doc_blocks.py says how."""

import contextlib
import io
import os
import pathlib
import subprocess
import sys

import pytest

import tessera
from python_process import TESSERA

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import doc_blocks  # noqa: E402

BLOCKS = [block for block in doc_blocks.all_blocks() if block.how() == "run"]
PYTHON = [block for block in BLOCKS if block.language == "python"]
BUILD = pathlib.Path(tessera.__file__).parents[2]  # of the package that is tested
SHELL_PAGES = sorted({block.page for block in BLOCKS if block.language == "bash"})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in which the tree's files are found under their names, and new ones do no harm."""
    for entry in ROOT.iterdir():
        if not entry.name.startswith(".") and entry.name != "build":
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "build").symlink_to(BUILD)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def chains():
    """Blocks that continue each other run as one program."""
    out = []
    for block in PYTHON:
        if "continues" in block.marks:
            assert out[-1][-1].page == block.page, block.name
            out[-1].append(block)
        else:
            out.append([block])
    return out


def run(block, names):
    """Runs a block with what is given, line numbers as in the page."""
    parts = [block.marks.get("given", ""), "\n" * (block.line - 1) + block.code, block.marks.get("then", "")]

    def body(rank, names):
        for part in parts:
            exec(compile(part, block.page, "exec"), names)  # noqa: S102 - our own pages

    if block.ranks:
        tessera.run_ranks(block.ranks, lambda rank: body(rank, {"rank": rank}), timeout=60)
    else:
        body(0, names)


def test_the_pages_have_blocks():
    assert len(PYTHON) >= 9 and len(SHELL_PAGES) >= 3


@pytest.mark.parametrize("chain", chains(), ids=lambda chain: chain[0].name)
def test_python(chain, folder):
    names = {"__name__": "__main__"}
    for block in chain:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if "raises" in block.marks:
                with pytest.raises(Exception) as caught:
                    run(block, names)
                assert block.marks["raises"] in str(caught.value)
            else:
                run(block, names)
        missing = doc_blocks.missing_lines(block.expected, printed.getvalue())
        assert missing == [], f"{block.name} printed: {printed.getvalue()}"


@pytest.mark.skipif(not TESSERA.exists(), reason="the command line is not built there")
@pytest.mark.parametrize("page", SHELL_PAGES)
def test_shell(page, folder):
    script, expected = "set -e\n", ""
    for block in BLOCKS:
        if block.page != page:
            continue
        expected += block.expected if block.language == "bash" else ""
        if block.language == "bash":
            script += f"{block.marks.get('given', '')}\n{block.code}{block.marks.get('then', '')}\n"
    for block in doc_blocks.blocks_of_page(page):
        if "file" in block.marks:
            (folder / block.marks["file"]).write_text(block.code, encoding="utf-8")
    script = script.replace("/tmp/five", str(folder)).replace(".venv/bin/python", sys.executable)
    environment = dict(
        os.environ,
        OMP_NUM_THREADS="1",
        PATH=f"{TESSERA.parent}{os.pathsep}{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        PYTHONPATH=str(BUILD / "python"),
    )
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert doc_blocks.missing_lines(expected, done.stdout) == [], done.stdout + done.stderr
