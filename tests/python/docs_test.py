"""The programs in docs/python.md run, and its fragments too, given what they name."""

import pathlib
import re

import models
import pytest
import torch

import tessera

PAGE = pathlib.Path(__file__).parents[2] / "docs/python.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
PROGRAMS = [block for block in BLOCKS if "run_ranks" in block]
FRAGMENTS = [block for block in BLOCKS if "run_ranks" not in block]


def run(block, names):
    exec(compile(block, str(PAGE), "exec"), names)  # noqa: S102 - our own page


def test_the_page_has_both():
    assert len(PROGRAMS) >= 4 and len(FRAGMENTS) >= 2


@pytest.mark.parametrize("program", PROGRAMS)
def test_program(program):
    run(program, {})


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_fragment(fragment, ranks):
    def body(rank):
        names = {
            "torch": torch,
            "weight": torch.ones(6, 4),
            "batch": torch.ones(8, 4),
            "model": models.GPT(),
            "mesh": tessera.init_device_mesh("dp=4"),
        }
        run(fragment, names)

    ranks(4, body)
