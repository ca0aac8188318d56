"""The complete programs in docs/python.md run."""

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parents[2] / "docs/python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
PROGRAMS = [block for block in BLOCKS if "run_ranks" in block]


def test_the_page_has_programs():
    assert len(PROGRAMS) >= 2


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program):
    exec(compile(program, str(PAGE), "exec"), {})  # noqa: S102 - our own page
