"""The Python examples run; each checks its own results."""

import pathlib

import pytest

from python_process import TESSERA, run_example

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))


def test_there_are_examples():
    assert len(EXAMPLES) >= 9


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_example(file):
    if "verify" in file.read_text(encoding="utf-8") and not TESSERA.exists():
        pytest.skip("the command line is not built there")
    assert run_example(file)
