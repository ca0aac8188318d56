"""Worlds that follow each other in one process, as torch.distributed's groups are made and destroyed."""

import textwrap

import pytest

START = """
import os, socket
import pytest
import torch
import torch.distributed as dist
import tessera

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
kept = []


def check(keeps=False, device_mesh=None):
    mesh = device_mesh or tessera.init_device_mesh(f"tp={size}")
    x = tessera.from_local(torch.full((3,), rank + 1.0), mesh, [tessera.Partial()])
    assert tessera.full_tensor(x).tolist() == [size * (size + 1) / 2] * 3
    rows = tessera.distribute_tensor(torch.arange(7.0), mesh, [tessera.Shard(0)])
    assert tessera.full_tensor(rows * 2).tolist() == [2.0 * i for i in range(7)]
    if keeps:
        kept.append((mesh, x, rows))
    return mesh


def own_store(turn=0):
    "Rank 0 hosts the store of each group, instead of the launcher, at a port of its own in each turn."
    launcher = dist.TCPStore("localhost", launcher_port, is_master=False)
    key = f"port of turn {turn}"
    if rank == 0:
        with socket.socket() as s:
            s.bind(("localhost", 0))
            launcher.set(key, str(s.getsockname()[1]))
    os.environ["MASTER_PORT"] = launcher.get(key).decode()
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"


launcher_port = int(os.environ["MASTER_PORT"])
"""

IN_TURN = """
for turn in range(4):
    own_store(turn)
    dist.init_process_group("gloo")
    check({keeps})
    check({keeps})
    dist.destroy_process_group()
"""

# The mesh is made before torch.distributed is there, so its world hosts the store, with which it lives on.
MESH_FIRST = """
own_store()
before = check(keeps=True)
dist.init_process_group("gloo")
check()
check(device_mesh=before)
dist.destroy_process_group()
"""

# Something keeps the groups' objects, as defaults of torch's own functions do, and what is kept for speed has the meshes
# to the end of the process.
KEPT_GROUPS = """
for turn in range(3):
    own_store(turn)
    dist.init_process_group("gloo")
    kept.append(dist.group.WORLD)
    mesh = check()
    if turn > 0 and size > 1:
        with pytest.raises(tessera.PeerError, match="ended"):
            tessera.full_tensor(before)
    layer = torch.nn.Linear(4, 4)
    tessera.fully_shard(layer, mesh)
    layer(torch.ones(2, 4)).sum().backward()
    torch.optim.Adam(layer.parameters()).step()
    before = layer.weight.detach()
    check()
    dist.destroy_process_group()
"""

# Groups that torch made, under its own class of meshes.
TORCH_MESHES = """
for turn in range(3):
    own_store(turn)
    dist.init_process_group("gloo")
    check(keeps={keeps}, device_mesh=dist.device_mesh.init_device_mesh("cpu", (size,), mesh_dim_names=("tp",)))
    check()
    dist.destroy_process_group()
"""

WITHOUT_TORCH = """
for turn in range(3):
    {hosted}
    check({keeps})
    tessera._C.end_process_world()
"""

# Each group has a store of its own. On one that lasts, as a launcher's, or a server that a rank still finds although it
# is about to end, torch.distributed's second group reads the addresses of the first.
OVER_TORCH = [MESH_FIRST, KEPT_GROUPS] + [text.format(keeps=keeps) for text in (IN_TURN, TORCH_MESHES) for keeps in (False, True)]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("body", OVER_TORCH)
def test_there_is_a_world_for_each_group_of_torch(torchrun, n, body):
    torchrun(n, textwrap.dedent(START) + body)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("hosted", ["", "own_store(turn)"])
def test_worlds_follow_each_other_without_torch(torchrun, hosted, keeps):
    torchrun(2, textwrap.dedent(START) + WITHOUT_TORCH.format(hosted=hosted, keeps=keeps))
