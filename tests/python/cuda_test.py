"""Thread ranks that share one GPU train as one rank does; needs a GPU and a torch with CUDA."""

import copy

import models
import pytest
import torch

import tessera

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
STEPS = 3


@pytest.fixture(scope="module")
def gpt():
    initial = copy.deepcopy(models.make("gpt").state_dict())
    return initial, models.train(models.make("gpt"), STEPS)[1]


def like(initial):
    model = models.GPT().double()
    model.load_state_dict(initial)
    return model.cuda()


def on_cpu(state):
    return {name: value.cpu() for name, value in state.items()}


@pytest.mark.parametrize("mesh_text", ["cuda:tp=2", "cuda:dp=2,tp=2"])
def test_weights_distributed_by_hand(ranks, gpt, mesh_text):
    initial, expected = gpt

    def body(rank):
        mesh = tessera.init_device_mesh(mesh_text)
        model = models.distribute(like(initial), mesh)
        found = models.train(
            model, STEPS, my_part=lambda tensor: models.spread_batch(tensor.cuda(), mesh)
        )[1]
        models.compare_state(on_cpu(found), expected)

    ranks(tessera.DeviceMesh.parse(mesh_text).size(), body)


@pytest.mark.parametrize("fused", [False, True])
def test_fully_shard(ranks, gpt, fused):
    initial, expected = gpt

    def body(rank):
        mesh = tessera.init_device_mesh("cuda:dp=2")
        model = like(initial)
        for block in model.blocks:
            tessera.fully_shard(block, mesh)
        tessera.fully_shard(model, mesh)
        found = models.train(
            model,
            STEPS,
            make_optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, fused=fused),
            my_part=lambda tensor: tensor.chunk(2)[rank].cuda(),
        )[1]
        models.compare_state(on_cpu(found), expected)
        assert tessera.gathered_memory(mesh).bytes == 0

    ranks(2, body)
