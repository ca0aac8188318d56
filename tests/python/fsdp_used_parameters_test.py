"""Ranks that use different parameters of a group get an error, and right gradients with the option for it."""

import pytest
import tessera
import torch
from tessera.compat.device_mesh import DeviceMesh
from torch import nn

PROGRAM = """
import os

import tessera
import torch
from tessera.compat.device_mesh import DeviceMesh
from torch import nn

os.environ["TESSERA_CHECK_COLLECTIVES"] = "{checked}"
os.environ["TESSERA_TIMEOUT_S"] = "5"
torch.manual_seed(0)
rank = int(os.environ["RANK"])
experts = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(3))
tessera.fully_shard(list(experts), tessera.init_device_mesh("dp=2"))
tessera.set_reduce_unused_parameters(experts, {option})
try:
    used = experts[0](torch.ones(2, 4)) + experts[1 + rank](torch.ones(2, 4))
    used.sum().backward()
    print(rank, [tessera.full_tensor(e.weight.grad).unique().tolist() for e in experts])
except RuntimeError as error:
    print(rank, "raised:", error)
"""


def test_checked_mode_names_the_parameters_of_each_rank(torchrun):
    out = torchrun(2, PROGRAM.format(checked=1, option=False))
    assert out.count("raised:") == 2, out
    assert "gradients of parameters 0-1 of 3" in out and "gradients of parameters 0,2 of 3" in out, out
    assert "set_reduce_unused_parameters" in out


def test_processes_get_an_error_without_checked_mode(torchrun):
    out = torchrun(2, PROGRAM.format(checked=0, option=False))
    assert out.count("raised:") == 2, out
    assert "set_reduce_unused_parameters" in out


def test_a_layer_that_one_rank_skips_is_named_as_the_cause(ranks):
    """Layers of one size, so that the gathers of two of them look alike."""

    def body(rank):
        layers = [nn.Linear(128, 128, bias=False) for _ in range(3)]
        for layer in layers:
            tessera.fully_shard(layer, tessera.init_device_mesh("dp=2"))
        del layers[rank]
        nn.Sequential(*layers)(torch.ones(2, 128)).sum().backward()

    with pytest.raises(RuntimeError, match="different groups of fully_shard: one of them skipped a layer"):
        ranks(2, body)


def test_with_the_option_what_a_rank_did_not_use_counts_as_zeros(torchrun):
    out = torchrun(2, PROGRAM.format(checked=1, option=True))
    assert out.count("[[2.0], [1.0], [1.0]]") == 2, out


@pytest.mark.parametrize("width", [4, 300])  # small parameters share a slot of the message
def test_thread_ranks_get_an_error(width):
    def main(rank):
        experts = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        tessera.fully_shard(list(experts), tessera.init_device_mesh("dp=2"))
        x = torch.ones(2, width)
        with pytest.raises(RuntimeError, match="gradients of different parameters"):
            (experts[0](x) + experts[1 + rank](x)).sum().backward()

    tessera.run_ranks(2, main)


def test_ranks_may_have_other_groups_on_other_meshes():
    """Groups are told apart by their number on a mesh, so a model of some ranks alone changes nothing."""

    def main(rank):
        torch.manual_seed(0)
        inner = DeviceMesh("cpu", [0, 1], mesh_dim_names=("dp",))
        if rank < 2:
            teacher = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
            tessera.fully_shard(list(teacher), inner)
            teacher(torch.ones(1, 4)).sum().backward()
        student = nn.Linear(4, 4)
        tessera.fully_shard(student, tessera.init_device_mesh("dp=4"))
        for _ in range(3):
            student(torch.ones(1, 4)).sum().backward()
        return tessera.full_tensor(student.weight.grad).unique().tolist()

    assert tessera.run_ranks(4, main) == [[3.0]] * 4
