"""What the tests of the Python package share."""

import copy
import gc
import textwrap

import pytest
import torch

import python_process
import tessera


def pytest_collection_finish(session):
    """What was imported stays to the end: the collector need not visit it, at the exit above all."""
    gc.freeze()


@pytest.fixture(autouse=True)
def one_seed():
    torch.manual_seed(0)


@pytest.fixture
def ranks():
    """ranks(n, fn): fn(rank) on n thread ranks; what they returned."""

    def run(n, fn):
        return tessera.run_ranks(n, fn, timeout=60)

    return run


@pytest.fixture
def mlp():
    """make() gives the same layers every time."""
    initial = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 4)).double()

    def make():
        return copy.deepcopy(initial)

    return make


@pytest.fixture
def torchrun(tmp_path):
    """torchrun(n, source): the program on n processes, which finds the modules of this folder; its
    output, or a failure that shows it."""

    def run(n, source):
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(source), encoding="utf-8")
        return python_process.run_world(n, program)

    return run


BESIDE_TORCH = """
import models
import tessera
import torch
from tessera import compat
from torch.distributed.device_mesh import init_device_mesh

torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
{source}
torch.distributed.barrier()
torch.distributed.destroy_process_group()
"""


@pytest.fixture
def beside_torch(torchrun):
    """The same for the middle of a program that uses torch.distributed: see BESIDE_TORCH."""
    return lambda n, source: torchrun(n, BESIDE_TORCH.format(source=textwrap.dedent(source)))
