"""fully_shard on unmodified torch.nn modules: training as on one rank."""

import copy

import models
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tessera
from models import TIGHT

STEPS = 5


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
        part = part_of(mesh.get_local_rank("dp"), 2)
        found = models.train(
            model, STEPS, my_part=lambda t: models.spread_batch(part(t), mesh["tp"])
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
            print("equal on rank " + str(rank))
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


def test_a_smaller_world_and_an_order_of_ones_own(ranks, gpt):
    initial, expected = gpt

    def body(rank):
        mesh = tessera.init_device_mesh("dp=4")
        model = shard_blocks(like(initial), mesh, reshard_after_forward=2, merge_bytes=0)
        tessera.set_modules_to_forward_prefetch(model.blocks[0], [model.blocks[1]])
        tessera.set_modules_to_backward_prefetch(model.blocks[1], [model.blocks[0]])
        with tessera.Recorder() as recorder:
            found = models.train(model, STEPS, my_part=part_of(rank, 4))[1]
        models.compare_state(found, expected, **TIGHT)
        time = tessera.communication_time(recorder)
        assert time.gathers.messages > 0 and time.reductions.messages > 0

    ranks(4, body)
