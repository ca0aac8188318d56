"""What the groups of fully_shard hold and send: on demand, by the program's functions, and traced."""

import json

import pytest
import torch

import tessera
from models import TIGHT


def test_groups_are_gathered_and_resharded_on_demand(ranks, mlp):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = mlp()
        tessera.fully_shard(model[0], mesh)
        tessera.fully_shard(model, mesh)
        own, inner = ([g.gathered for g in tessera.sharded_groups(m)] for m in (model[2], model[0]))
        assert own == inner == [False]
        tessera.unshard(model, recurse=False)
        assert [g.gathered for g in tessera.sharded_groups(model)] == [False, True]
        assert tessera.gathered_memory(mesh).bytes > 0
        tessera.unshard(model)
        assert all(g.gathered for g in tessera.sharded_groups(model))
        tessera.reshard(model)
        assert tessera.gathered_memory(mesh).bytes == 0
        assert tessera.gathered_memory(mesh).peak_bytes > 0
        tessera.reset_peak_gathered_memory(mesh)
        assert tessera.gathered_memory(mesh).peak_bytes == 0

    ranks(2, body)


def test_collectives_of_the_program_take_the_place_of_ours(ranks, mlp):
    plain = mlp()
    plain(torch.ones(2, 6).double()).sum().backward()

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = tessera.fully_shard(mlp(), mesh, gradient_divide_factor=1)
        called = []

        def all_gather(outputs, inputs, group, async_op):
            called.append("all_gather")
            for output, given in zip(outputs, inputs, strict=True):
                group._allgather_base(output, given).wait()

        def reduce_scatter(outputs, inputs, group, async_op):
            called.append("reduce_scatter")
            (output,), (given,) = outputs, inputs
            return group._reduce_scatter_base(output, given)

        def allocate(count, device):
            called.append("allocate")
            return torch.empty(count, dtype=torch.uint8, device=device)

        tessera.set_collectives(
            model, all_gather=all_gather, reduce_scatter=reduce_scatter, allocate=allocate
        )
        model(torch.ones(2, 6).double()[rank : rank + 1]).sum().backward()
        assert {"all_gather", "reduce_scatter", "allocate"} <= set(called)
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(tessera.full_tensor(p.grad), q.grad, **TIGHT)

    ranks(2, body)


def test_a_step_is_traced_with_what_it_computes_and_sends(ranks, mlp, tmp_path):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = tessera.fully_shard(mlp(), mesh)
        path = tmp_path / f"{rank}.json"
        with tessera.Recorder() as recorder, tessera.StepTrace(mesh) as trace:
            model(torch.ones(2, 6).double()).sum().backward()
            assert "all_gather" in trace.json()
        model(torch.ones(2, 6).double())  # not recorded any more
        trace.write(path)
        found = json.loads(path.read_text())
        names = [event.get("name", "") for event in found.get("traceEvents", found)]
        assert sum("all_gather" in name for name in names) == 1, names
        assert any("forward of group" in name for name in names), names
        for event in recorder.events:
            assert 0 < event.exposed <= event.seconds
        assert recorder.exposed == pytest.approx(sum(e.exposed for e in recorder.events))
        time = tessera.communication_time(recorder)
        assert time.reductions.messages == 1 and 0 <= time.hidden < 1

    ranks(2, body)
