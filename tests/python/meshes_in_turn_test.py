"""Programs that make their meshes anew in each turn. What the ranks count per mesh must not depend on where a mesh
is in memory, nor on when a rank frees its own."""

import textwrap

import pytest
import tessera

from python_process import run_world

PROGRAM = """
import os
import random

import torch
from torch import nn

import tessera

whole = torch.arange(24.0).view(4, 6) - 7


def tensors(mesh, rng):
    "The second use of a partial tensor finds the copy of the first, and leaves out a reduction."
    p = tessera.from_local(whole / 2, mesh, [tessera.Partial()])
    positive = p > 0
    if rng.random() < 0.5:
        y = p.relu() * positive
        assert torch.equal(tessera.to_local(y), whole.relu())


def modules(mesh, rng):
    "Rank 0 alone uses one of two modules."
    torch.manual_seed(rng.randrange(100))
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(rng.randrange(1, 4))])
    for layer in model:
        tessera.fully_shard(layer, mesh)
    tessera.set_reduce_unused_parameters(model, True)
    used = model[0] if mesh.get_rank() == 0 else model
    for _ in range(2):
        used(torch.ones(2, 4)).sum().backward()


def run(rank, use, turns, holds):
    "holds: whether the ranks hold meshes for some turns, each for others."
    held = []
    for turn in range(turns):
        rng, own = random.Random(turn), random.Random(turn * 7 + rank)
        mesh = tessera.init_device_mesh(rng.choice(["a=2", "b=2", "c=2", "d=2"]))
        others = [tessera.DeviceMesh.parse(f"q={size}") for size in range(2, 3 + own.randrange(9))]
        del others[::2]  # a rank's next mesh gets one of these addresses
        use(mesh, rng)
        if holds and own.random() < 0.5:
            held.append(mesh)
        if own.random() < 0.3:
            held.clear()
        del mesh
        tessera.clear_caches()
    return "all turns"


USES = {"tensors": (tensors, 150), "modules": (modules, 40)}
"""

ON_PROCESSES = """
print(run(int(os.environ["RANK"]), *USES["{use}"], holds={holds}))
"""

CASES = [(use, holds) for use in ("tensors", "modules") for holds in (False, True)]


@pytest.mark.parametrize("use, holds", CASES)
def test_meshes_come_and_go_on_threads(use, holds):
    names = {}
    exec(PROGRAM, names)  # noqa: S102
    ended = tessera.run_ranks(2, lambda rank: names["run"](rank, *names["USES"][use], holds), timeout=60)
    assert ended == ["all turns"] * 2


@pytest.mark.parametrize("use, holds", CASES)
def test_meshes_come_and_go_on_processes(tmp_path, use, holds):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + textwrap.dedent(ON_PROCESSES.format(use=use, holds=holds)))
    assert run_world(2, program).count("all turns") == 2
