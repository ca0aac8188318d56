"""fully_shard on unmodified torch.nn modules: training as on one rank, and what goes with it."""

import copy
import json
import pickle

import models
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tessera

STEPS = 5
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


def like(initial, name="gpt"):
    model = models.MODELS[name]().double()
    model.load_state_dict(initial)
    return model


def shard_blocks(model, mesh, shard=tessera.fully_shard, **options):
    for block in model.blocks:
        shard(block, mesh, **options)
    return shard(model, mesh, **options)


def part_of(rank, count):
    return lambda tensor: tensor.chunk(count)[rank]


@pytest.fixture(scope="module")
def gpt():
    """The initial state, and the parameters after training on one rank."""
    initial = copy.deepcopy(models.make("gpt").state_dict())
    return initial, models.train(models.make("gpt"), STEPS)[1]


@pytest.fixture
def mlp():
    """make() gives the same layers every time."""
    initial = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4)).double()

    def make():
        return copy.deepcopy(initial)

    return make


@pytest.mark.parametrize("mesh_text", ["dp=2", "dp=4", "dp=2,fs=2"])
def test_a_gpt_trains_as_on_one_rank(ranks, gpt, mesh_text):
    initial, expected = gpt
    size = tessera.DeviceMesh.parse(mesh_text).size()

    def body(rank):
        mesh = tessera.init_device_mesh(mesh_text)
        model = shard_blocks(like(initial), mesh)
        assert all(isinstance(p, nn.Parameter) and tessera.is_dtensor(p) for p in model.parameters())
        found = models.train(model, STEPS, my_part=part_of(rank, size))[1]
        models.compare_state(found, expected, **TIGHT)
        assert tessera.gathered_memory(mesh).bytes == 0

    ranks(size, body)


def test_a_gpt_trains_with_whole_parameters_on_every_rank(ranks, gpt):
    initial, expected = gpt

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = shard_blocks(like(initial), mesh, tessera.replicate)
        found = models.train(model, STEPS, my_part=part_of(rank, 2))[1]
        models.compare_state(found, expected, **TIGHT)

    ranks(2, body)


def test_a_gpt_trains_over_data_and_tensor_parallel_axes(ranks, gpt):
    initial, expected = gpt

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2,tp=2")
        model = models.distribute(like(initial), mesh["tp"])
        shard_blocks(model, mesh["dp"])
        cut = part_of(mesh.get_local_rank("dp"), 2)
        found = models.train(
            model, STEPS, my_part=lambda t: models.spread_batch(cut(t), mesh["tp"])
        )[1]
        models.compare_state(found, expected, **TIGHT)

    ranks(4, body)


def test_a_gpt_trains_under_torchrun_with_gloo(beside_torch):
    """Over PyTorch's mesh and over ours, beside torch.distributed."""
    out = beside_torch(
        2,
        f"""
        expected = models.train(models.make("gpt"), {STEPS})[1]
        theirs = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        for mesh in (theirs, tessera.init_device_mesh("dp=2")):
            model = models.make("gpt")
            for block in model.blocks:
                compat.fully_shard(block, mesh=mesh)
            compat.fully_shard(model, mesh=mesh)
            found = models.train(model, {STEPS}, my_part=lambda t: t.chunk(2)[rank])[1]
            models.compare_state(found, expected, rtol=1e-10, atol=1e-10)
            print("equal on rank", rank)
        """,
    )
    assert out.count("equal on rank") == 4


def test_python_code_in_backward_lets_other_ranks_gather(ranks, mlp):
    """Hooks take the interpreter's lock on the thread that then waits for a gather or a reduction."""
    x = torch.randn(4, 6, dtype=torch.float64)

    def body(rank):
        mesh = tessera.init_device_mesh("dp=4")
        model = mlp()
        seen = []
        for layer in (model[0], model[2]):
            tessera.fully_shard(layer, mesh)
            layer.register_full_backward_hook(lambda m, gi, go: seen.append(sum(range(1000 * rank))))
            layer.weight.register_hook(lambda grad: seen.append(tuple(grad.shape)))
        mine = x[rank : rank + 1].clone().requires_grad_()
        y = checkpoint(model, mine, use_reentrant=False)
        y.sum().backward()
        return len(seen), tessera.gathered_memory(mesh).bytes

    assert ranks(4, body) == [(4, 0)] * 4


def test_gradients_are_kept_back_until_they_are_wanted(ranks, mlp):
    x = torch.randn(4, 6, dtype=torch.float64)
    plain = mlp()
    plain(x).square().sum().backward()

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = tessera.fully_shard(mlp(), mesh, gradient_divide_factor=1)
        first, second = x.chunk(2)[rank].chunk(2)
        tessera.set_requires_gradient_sync(model, False)
        with tessera.expect_comm("1 all_gather"):
            model(first).square().sum().backward()
        assert all(p.grad is None for p in model.parameters())
        tessera.set_requires_gradient_sync(model, True)
        model(second).square().sum().backward()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(tessera.full_tensor(p.grad), q.grad, **TIGHT)

    ranks(2, body)


def test_groups_are_gathered_and_let_go_on_demand(ranks, mlp):
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


def test_mixed_precision_casts_inputs_outputs_and_messages(ranks, mlp):
    x = torch.randn(2, 6)
    policy = tessera.MixedPrecision(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
    )

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = tessera.fully_shard(mlp().float(), mesh, mixed_precision=policy)
        seen = []
        model[0].register_forward_hook(lambda m, inputs, out: seen.append((inputs[0].dtype, out.dtype)))
        with tessera.Recorder() as recorder:
            out = model(x)
            out.sum().backward()
        assert seen == [(torch.bfloat16, torch.bfloat16)] and out.dtype == torch.float32
        assert [(e.op, e.dtype) for e in recorder.events] == [
            ("all_gather", torch.bfloat16),
            ("reduce_scatter", torch.float32),
        ]
        assert all(p.dtype == p.grad.dtype == torch.float32 for p in model.parameters())

    ranks(2, body)


def test_options_say_what_is_cut_and_where(ranks, mlp):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = mlp()
        weight = model[2].weight
        tessera.fully_shard(
            [model[0], model[2]],
            mesh,
            shard_dim=lambda name, p: 1 if name == "0.weight" else None,
            ignored=[weight],
        )
        assert [tessera.is_dtensor(p) for p in model.parameters()] == [True, True, False, True]
        assert tessera.placements(model[0].weight) == (tessera.Shard(1),)
        assert tessera.placements(model[0].bias) == (tessera.Shard(0),)
        assert len(tessera.sharded_groups(model)) == 1
        model(torch.ones(2, 6).double()).sum().backward()
        assert tessera.placements(model[0].weight.grad) == (tessera.Shard(1),)

    ranks(2, body)


def test_a_list_of_tensors_is_a_group(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        scale = torch.arange(4.0).requires_grad_()
        shift = torch.ones(4, requires_grad=True)
        tessera.fully_shard([scale, shift], mesh)
        (torch.full((4,), rank + 1.0) * scale + shift).sum().backward()
        assert tessera.full_tensor(scale.grad).tolist() == [1.5] * 4
        assert tessera.full_tensor(shift.grad).tolist() == [1.0] * 4

    ranks(2, body)


def test_state_goes_out_whole_and_comes_in_from_any_layout(ranks):
    plain = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7))

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7))
        tessera.fully_shard(model, mesh)
        tessera.load_full_state(model, plain.state_dict())
        state = tessera.full_state(model)
        assert state.keys() == plain.state_dict().keys()
        models.compare_state(state, plain.state_dict())
        assert len(tessera.full_state(model, rank0_only=True)) >= (len(state) if rank == 0 else 0)
        tessera.load_full_state(model, state if rank == 0 else {}, rank0_only=True)
        tessera.load_sharded_state(model, tessera.sharded_state(model))
        models.compare_state(tessera.full_state(model), plain.state_dict())
        # torch's own, shard by shard.
        sharded = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            model[0].weight.zero_()
        model.load_state_dict(sharded)
        models.compare_state(tessera.full_state(model), plain.state_dict())
        with pytest.raises(tessera.InvalidArgument, match="lacks"):
            tessera.load_full_state(model, {})

    ranks(2, body)


def test_norms_are_clipped_with_one_message(ranks, mlp):
    plain = mlp()
    plain(torch.ones(2, 6).double()).sum().backward()
    norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.5)

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = tessera.fully_shard(mlp(), mesh)
        model(torch.ones(2, 6).double()).sum().backward()
        with tessera.expect_comm("1 all_reduce on dp"):
            found = tessera.clip_grad_norm_(model.parameters(), 0.5)
        torch.testing.assert_close(found, norm, **TIGHT)
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(tessera.full_tensor(p.grad), q.grad, **TIGHT)

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


def test_a_smaller_world_and_an_order_of_ones_own(ranks, gpt):
    initial, expected = gpt

    def body(rank):
        mesh = tessera.init_device_mesh("dp=4")
        model = shard_blocks(like(initial), mesh, reshard_after_forward=2, merge_bytes=0)
        tessera.set_modules_to_forward_prefetch(model.blocks[0], [model.blocks[1]])
        tessera.set_modules_to_backward_prefetch(model.blocks[1], [model.blocks[0]])
        tessera.reset_communication_time(mesh)
        found = models.train(model, STEPS, my_part=part_of(rank, 4))[1]
        models.compare_state(found, expected, **TIGHT)
        time = tessera.communication_time(mesh)
        assert time.gathers.messages > 0 and time.reductions.messages > 0

    ranks(4, body)


def test_a_step_is_traced_with_what_it_computes_and_sends(ranks, mlp, tmp_path):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = tessera.fully_shard(mlp(), mesh)
        tessera.reset_communication_time(mesh)
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
        time = tessera.communication_time(mesh)
        assert time.reductions.messages == 1 and 0 <= time.hidden < 1

    ranks(2, body)


def test_modules_made_on_meta_are_filled_alike_on_any_number_of_ranks(ranks):
    def weights(rank, size, **options):
        mesh = tessera.init_device_mesh(f"dp={size}")
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
        tessera.fully_shard(model, mesh, **options)
        tessera.to_empty(model, "cpu")
        tessera.manual_seed(7)
        for parameter in model.parameters():
            nn.init.normal_(parameter)
        model(torch.ones(2, 6)).sum().backward()
        assert {group.state for group in tessera.sharded_groups(model)} == {"idle"}
        return tessera.full_state(model)

    alone = ranks(1, lambda rank: weights(rank, 1))[0]
    for found in ranks(3, lambda rank: weights(rank, 3, cpu_offload=tessera.CpuOffload())):
        models.compare_state(found, alone, rtol=0, atol=0)


def test_parameters_may_have_a_mesh_of_their_own(ranks, mlp):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=4")
        pair = tessera.init_device_mesh("dp=2,fs=2")
        model = tessera.fully_shard(
            mlp(), mesh, shard_mesh=lambda name, p: pair if name == "2.weight" else None
        )
        assert tessera.device_mesh(model[2].weight) == pair
        assert tessera.device_mesh(model[0].weight) == mesh
        model(torch.ones(2, 6).double()).sum().backward()
        assert tessera.device_mesh(model[2].weight.grad) == pair

    ranks(4, body)


def test_what_has_no_meaning_is_refused(ranks, mlp):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = tessera.fully_shard(mlp(), mesh)
        for wrong in (
            lambda: tessera.fully_shard(model, mesh),
            lambda: tessera.fully_shard([model[0].weight], mesh),
            lambda: tessera.fully_shard([nn.Linear(2, 2).weight.t()], mesh),
            lambda: tessera.unshard(model[0], recurse=False),
        ):
            with pytest.raises(tessera.InvalidArgument):
                wrong()
        with pytest.raises(tessera.NotSupported, match="before fully_shard"):
            copy.deepcopy(model)
        with pytest.raises(tessera.NotSupported, match="cannot be pickled"):
            pickle.dumps(model.state_dict())

    ranks(2, body)
