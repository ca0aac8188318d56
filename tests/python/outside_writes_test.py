"""A gathered or reduced copy of a tensor is not used after a collective of the program wrote to the local part, nor kept
where the memory is not torch's."""

import pytest

START = """
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
import tessera

rank = dist.get_rank()
mesh = tessera.init_device_mesh("dp=2")


def new(placement):
    x = torch.arange(16.0).view(4, 4) / 16
    return tessera.distribute_tensor(x, mesh, placement) if placement == "S0" else tessera.from_local(x + rank, mesh, placement)


def check_use(use, x, write):
    before = tessera.full_tensor(use(x))
    write(tessera.to_local(x))
    found, whole = tessera.full_tensor(use(x)), tessera.full_tensor(x)
    torch.testing.assert_close(found, use(whole), rtol=0, atol=0)
    assert not torch.equal(before, found)


def check(x, write):
    "An op that gathers, and one that reduces."
    check_use((lambda x: F.linear(x, x)) if tessera.placements(x)[0].is_shard() else torch.sinh, x, write)
"""

WRITES = {
    "broadcast": "dist.broadcast(part, 0)",
    "all_reduce": "dist.all_reduce(part)",
    "of a view": "dist.all_reduce(part[0])",
    "async": "dist.all_reduce(part, async_op=True).wait()",
    "coalesced": "dist.all_reduce_coalesced([part])",
    "reduce": "dist.reduce(part, 0)",
    "scatter": "dist.scatter(part, [part.clone() + r + 1 for r in range(2)] if rank == 0 else None, 0)",
    "all_to_all": "dist.all_to_all_single(part, part.clone() + 3)",
    "all_gather": "n = len(part) // 2; dist.all_gather([part[:n], part[n:]], part[:n].clone() + rank + 1)",
    "all_gather_into": "dist.all_gather_into_tensor(part, part[: len(part) // 2].clone() + rank + 1)",
    "reduce_scatter": "dist.reduce_scatter_tensor(part, torch.cat([part, part]))",
    "receive": "w = dist.isend(part.clone() + 5, 1 - rank); dist.recv(part, 1 - rank); w.wait()",
    "batch": "for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, part.clone() + 5, 1 - rank),"
    " dist.P2POp(dist.irecv, part, 1 - rank)]): w.wait()",
    "functional": "torch.ops._c10d_functional.wait_tensor("
    "torch.ops._c10d_functional.all_reduce_(part, 'sum', dist.group.WORLD.group_name))",
}


def test_collectives_of_the_program_are_writes(beside_torch):
    cases = "\n".join(
        f"def write(part):\n    {text}\nfor placement in ('S0', 'P(sum)'):\n    check(new(placement), write)"
        for text in WRITES.values()
    )
    beside_torch(2, START + cases)


def test_collectives_on_a_parameter_of_fully_shard_are_writes(beside_torch):
    beside_torch(2, START + """
layer = tessera.fully_shard(torch.nn.Linear(4, 4, bias=False), mesh, reshard_after_forward=False)
with torch.no_grad():
    first = layer(torch.eye(4))
    dist.broadcast(tessera.to_local(layer.weight), 0)
    assert torch.equal(layer(torch.eye(4)), tessera.full_tensor(layer.weight).t())
    assert not torch.equal(first, layer(torch.eye(4)))
""")


def test_collectives_on_plain_tensors_count_as_before(beside_torch):
    beside_torch(2, START + """
x = new("S0")
F.linear(x, x)
plain = torch.ones(3)
dist.all_reduce(plain)
assert plain._version == 0
""")


@pytest.mark.parametrize("source", ["torch.from_numpy(array)", "torch.from_dlpack(array)"])
def test_memory_of_another_library_is_read_at_each_use(beside_torch, source):
    beside_torch(2, START + f"""
for placement in ("S0", "P(sum)"):
    array = np.arange(16, dtype=np.float32).reshape(4, 4) / 16
    x = tessera.from_local({source}, mesh, placement)

    def write(part):
        array[:] *= 2

    check(x, write)
""")


def test_a_write_that_torch_cannot_see_is_announced(beside_torch):
    beside_torch(2, START + """
def write(part):
    part.numpy()[:] = 1
    torch.autograd.graph.increment_version(part)

for placement in ("S0", "P(sum)"):
    check(new(placement), write)
""")
