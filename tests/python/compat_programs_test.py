"""Programs that run with PyTorch's fully_shard and meshes, and so run here."""

import copy
import os
import socket
import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import tessera
from tessera.compat import fully_shard, init_device_mesh
from models import TIGHT


def mean_over_ranks(plain, inputs):
    """The gradients of one rank that has all ranks' inputs."""
    for given in inputs:
        (plain(*given).square().sum() / len(inputs)).backward()


def compare_gradients(model, plain):
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad.full_tensor(), q.grad, **TIGHT)


class Chain(nn.ModuleList):
    def forward(self, x):
        for layer in self:
            x = layer(x)
        return x


class Sum(nn.ModuleDict):
    def forward(self, x):
        return sum(layer(x) for layer in self.values())


@pytest.mark.parametrize(
    "make",
    [
        lambda: Chain([nn.Linear(3, 4), nn.Linear(4, 3)]),
        lambda: Sum({"a": nn.Linear(3, 4), "b": nn.Linear(3, 4)}),
    ],
)
def test_containers_with_a_forward_of_their_own_are_sharded(ranks, make):
    initial = make().double()
    inputs = [(torch.randn(2, 3).double(),) for _ in range(2)]

    def body(rank):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        plain, model = copy.deepcopy(initial), copy.deepcopy(initial)
        mean_over_ranks(plain, inputs)
        fully_shard(model, mesh=mesh)
        model(*inputs[rank]).square().sum().backward()
        compare_gradients(model, plain)
        for container in (nn.ModuleList([nn.Linear(2, 2)]), nn.ModuleDict({"a": nn.Linear(2, 2)})):
            with pytest.raises(tessera.InvalidArgument, match="do not implement forward"):
                fully_shard(container, mesh=mesh)

    ranks(2, body)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_an_embedding_bag_looks_up_plain_indices(ranks, mode):
    initial = nn.EmbeddingBag(7, 3, mode=mode).double()
    inputs = [
        (torch.tensor([0, 1, 2, 6]), torch.tensor([0, 2])),
        (torch.tensor([3, 3, 5, 1, 0]), torch.tensor([0, 1])),
    ]

    def body(rank):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        plain, model = copy.deepcopy(initial), copy.deepcopy(initial)
        mean_over_ranks(plain, inputs)
        fully_shard(model, mesh=mesh)
        model(*inputs[rank]).square().sum().backward()
        compare_gradients(model, plain)

    ranks(2, body)


def test_an_embedding_with_max_norm_is_refused_in_every_way(ranks):
    """Ranks look up different rows: what one of them renormalises the others would not."""

    def body(rank):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        model = fully_shard(nn.Embedding(6, 3, max_norm=1.0), mesh=mesh)
        before = model.weight.full_tensor().clone()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="max_norm"):
                model(torch.tensor([rank, 2]))
            with tessera.implicit_replication(), pytest.raises(RuntimeError, match="max_norm"):
                model(torch.tensor([rank, 2]))
        assert torch.equal(model.weight.full_tensor(), before)

    ranks(2, body)


def test_an_event_of_the_cpu_is_no_reason_to_wait(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        model = fully_shard(nn.Linear(2, 2), mesh=mesh)
        model.set_post_optim_event(torch.cpu.current_stream().record_event())
        model.set_post_optim_event(torch.Event(device="cpu"))
        model.set_post_optim_event(torch.cpu.Event())
        assert model(torch.ones(1, 2)).shape == (1, 2)

    ranks(2, body)


def test_axes_may_have_names_with_dashes(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("mesh-0", "a.b/c"))
        x = tessera.distribute_tensor(torch.arange(4.0), mesh, "S0,R")
        assert torch.equal(tessera.full_tensor(x), torch.arange(4.0))
        model = fully_shard(nn.Linear(2, 2), mesh=mesh["mesh-0"])
        assert tessera.DeviceMesh.parse(str(mesh)).axis_names == ("mesh-0", "a.b/c")
        assert model(torch.ones(1, 2)).shape == (1, 2)

    ranks(2, body)


def expert_parallel(mesh):
    """Experts sharded over ep, and fully sharded over what is left of dp."""
    parts = mesh._unflatten(0, (2, 2), ("efsdp", "ep"))
    rows = torch.arange(24.0).view(8, 3)
    experts = nn.Linear(3, 8, bias=False)
    experts.weight = nn.Parameter(tessera.distribute_tensor(rows, parts["ep"], "S0"))
    fully_shard(experts, mesh=parts["efsdp"])
    x = tessera.distribute_tensor(torch.ones(2, 3), parts["ep"], "R")
    experts(x).sum().backward()
    assert torch.equal(experts.weight.full_tensor(), rows)
    assert torch.equal(experts.weight.grad.full_tensor(), torch.full((8, 3), 2.0))
    assert str(tessera.sharding(experts.weight)) == "efsdp=2,ep=2 : S0#1,S0#0 : 8x3"


def test_experts_are_sharded_over_an_unflattened_axis(ranks):
    ranks(4, lambda rank: expert_parallel(init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))))


PROGRAM = """
    import torch.distributed as dist
    from tessera.compat import DeviceMesh
    from compat_programs_test import expert_parallel

    mesh = DeviceMesh("cpu", [0, 1, 2, 3], mesh_dim_names=("dp",))
    assert dist.get_world_size() == 4 and type(mesh) is not DeviceMesh
    expert_parallel(mesh)
    dist.destroy_process_group()
"""


def test_a_mesh_initialises_torch_distributed_from_the_variables_alone(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folders = [os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")]
    meeting = {
        "WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "TESSERA_TIMEOUT_S": "60",
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
    }
    started = [
        subprocess.Popen(
            [sys.executable, str(program)],
            env=dict(os.environ, RANK=str(rank), **meeting),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(4)
    ]
    ended = [(process.communicate(timeout=120)[0], process.returncode) for process in started]
    assert all(code == 0 for _, code in ended), ended
