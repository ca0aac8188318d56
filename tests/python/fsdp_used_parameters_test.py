"""Ranks that use different parameters of a group: found in checked mode, right with the option for it."""

PROGRAM = """
import os

import tessera
import torch
from torch import nn

os.environ["TESSERA_CHECK_COLLECTIVES"] = "{checked}"
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


def test_with_the_option_what_a_rank_did_not_use_counts_as_zeros(torchrun):
    out = torchrun(2, PROGRAM.format(checked=1, option=True))
    assert out.count("[[2.0], [1.0], [1.0]]") == 2, out
