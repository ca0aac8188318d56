"""The Python and shell blocks of the documentation run as they stand; tools/doc_blocks.py says how."""

import contextlib
import io
import os
import pathlib
import subprocess
import sys

import pytest

import tessera

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import doc_blocks  # noqa: E402

BLOCKS = [block for block in doc_blocks.all_blocks() if block.how() == "run"]
PYTHON = [block for block in BLOCKS if block.language == "python"]
SHELL_PAGES = sorted({block.page for block in BLOCKS if block.language == "bash"})
TESSERA = ROOT / "build/bin/tessera"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in which the tree's files are found under their names, and new ones do no harm."""
    for entry in ROOT.iterdir():
        if not entry.name.startswith("."):
            (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def source_of(block):
    """The block with what is given, after those that it continues; line numbers as in the page."""
    code = "\n" * (block.line - 1) + block.code
    if "continues" not in block.marks:
        return [block.marks.get("given", ""), code, block.marks.get("then", "")]
    of_page = [other for other in PYTHON if other.page == block.page]
    before = of_page[of_page.index(block) - 1]
    return source_of(before) + [block.marks.get("given", ""), code, block.marks.get("then", "")]


def run(block):
    parts = source_of(block)

    def body(rank):
        names = {"rank": rank, "__name__": "__main__"}
        for part in parts:
            exec(compile(part, block.page, "exec"), names)  # noqa: S102 - our own pages

    if block.ranks:
        tessera.run_ranks(block.ranks, body, timeout=60)
    else:
        body(0)


def test_the_pages_have_blocks():
    assert len(PYTHON) >= 9 and len(SHELL_PAGES) >= 3


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: block.name)
def test_python(block, folder):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if "raises" in block.marks:
            with pytest.raises(Exception) as caught:
                run(block)
            assert block.marks["raises"] in str(caught.value)
        else:
            run(block)
    assert doc_blocks.missing_lines(block.expected, printed.getvalue()) == [], printed.getvalue()


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
        PYTHONPATH=str(ROOT / "build/python"),
    )
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert doc_blocks.missing_lines(expected, done.stdout) == [], done.stdout + done.stderr
