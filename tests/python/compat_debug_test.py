"""tessera.compat.debug, as programs that count communication use it."""

import subprocess
import sys
import textwrap

import torch
from torch import nn

import tessera
from tessera.compat import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
)
from tessera.compat.debug import CommDebugMode

OPS = torch.ops.c10d_functional


def partition(name, module, mesh):
    placements = {"0": [Shard(0)], "1": [Shard(1)]}.get(name)
    if placements is not None:
        module.weight = nn.Parameter(distribute_tensor(module.weight, mesh, placements))


def test_counts_are_told_by_module_and_direction(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False))
        distribute_module(
            model,
            mesh,
            partition,
            input_fn=lambda module, inputs, mesh: DTensor.from_local(inputs[0], mesh, [Replicate()]),
        )
        model[1].register_forward_hook(lambda m, i, out: out.redistribute(placements=[Replicate()]))
        with CommDebugMode() as mode:
            assert mode.get_parameter_info() == {} and mode.get_total_counts() == 0
            model(torch.ones(3, 4, requires_grad=True)).sum().backward()
        counts = mode.comm_module_counts
        for module in ("Global", "Sequential", "Sequential.1"):
            assert counts[module]["forward"] == {OPS.all_reduce: 1}, module
        assert "Sequential.0" not in counts or not counts["Sequential.0"]["forward"]
        assert counts["Global"]["backward"] == {OPS.all_reduce: 1}  # of the input's gradient
        assert mode.get_sharding_info() == {
            "Sequential.0.weight": (Shard(0),),
            "Sequential.1.weight": (Shard(1),),
        }
        assert "Sequential.1" in mode.generate_comm_debug_tracing_table(noise_level=1)

    ranks(2, body)


def test_the_direction_is_that_of_the_call_where_no_op_follows_it(ranks):
    def body(rank):
        mesh = init_device_mesh("cpu", (2,))
        x = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()]).requires_grad_()
        with CommDebugMode() as mode:
            loss = x.redistribute(placements=[Shard(0)]).square().sum().full_tensor()
            torch.autograd.grad(loss, x, torch.ones(()))
        counts = mode.comm_module_counts["Global"]
        assert counts["forward"] == {OPS.all_reduce: 1}
        assert counts["backward"] == {OPS.all_gather_into_tensor: 1}

    ranks(2, body)


def test_hooks_do_not_stay_and_modules_may_run_again():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with CommDebugMode():
        for _ in range(3):
            model(torch.ones(1, 2))
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in model.modules())


COUNT = """
    from tessera.compat.debug import CommDebugMode
    from torch.distributed import _functional_collectives as collectives

    assert type(compat.init_device_mesh("cpu", (2,))) is type(init_device_mesh("cpu", (2,)))
    with init_device_mesh("cpu", (2,)) as mesh:
        x = compat.distribute_tensor(torch.arange(8.0).view(2, 4), placements=[compat.Shard(1)])

    def row_sums(mesh, part):
        return collectives.all_reduce(part.sum(1), "sum", mesh).wait()

    with CommDebugMode() as mode:
        out = compat.local_map(row_sums, [compat.Replicate()], (None, [compat.Shard(1)]))(mesh, x)
        torch.distributed.broadcast(torch.ones(2), 0)
    assert out.to_local().tolist() == [6.0, 22.0]
    expected = {torch.ops.c10d_functional.all_reduce: 1, torch.ops.c10d.broadcast_: 1}
    assert mode.get_comm_counts() == expected, mode.get_comm_counts()
    print("counted on rank " + str(rank))
"""


def test_collectives_of_the_program_itself_are_counted_too(beside_torch):
    assert beside_torch(2, COUNT).count("counted on rank") == 2


def test_each_thread_rank_has_counts_of_its_own(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        with CommDebugMode() as mode:
            for _ in range(rank + 1):
                model(torch.ones(1, 2))
            tessera.full_tensor(tessera.ones(4, device_mesh=mesh, placements="S0"))
        return mode.get_total_counts(), len(mode.advanced_module_tracker.module_helper_dict)

    assert ranks(2, body) == [(1, 4), (1, 4)]


FAKE = """
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore
    torch.distributed.init_process_group("fake", rank=1, world_size=4, store=FakeStore())
    from tessera.compat import DeviceMesh, Replicate, Shard, distribute_tensor, init_device_mesh
    from tessera.compat.debug import CommDebugMode
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    assert type(mesh) is torch.distributed.device_mesh.DeviceMesh and isinstance(mesh, DeviceMesh)
    x = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0), Shard(1)], src_data_rank=None)
    assert x.device_mesh is mesh and x.to_local().shape == (2, 2)
    with CommDebugMode() as mode:
        x.redistribute(placements=[Shard(0), Replicate()])
    assert mode.get_comm_counts() == {torch.ops.c10d_functional.all_gather_into_tensor: 1}
    print("counted")
"""


def test_fake_ranks_of_pytorch_are_fake_here(tmp_path):
    program = tmp_path / "fake.py"
    program.write_text(textwrap.dedent(FAKE), encoding="utf-8")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "counted" in done.stdout, done.stdout + done.stderr
