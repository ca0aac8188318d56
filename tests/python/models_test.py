"""Models in plain torch.nn with weights distributed by hand train as on one rank."""

import models
import pytest
import torch

import tessera

STEPS = 10
OPTIMIZERS = {
    "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=1e-1, momentum=0.9, foreach=True),
}


@pytest.mark.parametrize("mesh_text", ["tp=2", "dp=2", "dp=2,tp=2", "tp=4"])
@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_ten_steps_are_those_of_one_rank(ranks, name, mesh_text):
    expected = models.train(models.make(name), STEPS)
    initial = models.make(name)
    size = tessera.DeviceMesh.parse(mesh_text).size()

    def body(rank):
        mesh = tessera.init_device_mesh(mesh_text)
        model = models.MODELS[name]().double()
        model.load_state_dict(initial.state_dict())
        models.compare(models.train(models.distribute(model, mesh), STEPS, mesh), expected)

    ranks(size, body)


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_optimizers_foreach_and_fused(ranks, optimizer):
    make_optimizer = OPTIMIZERS[optimizer]
    expected = models.train(models.make("gpt"), 3, make_optimizer=make_optimizer)
    initial = models.make("gpt")

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2,tp=2")
        model = models.GPT().double()
        model.load_state_dict(initial.state_dict())
        models.distribute(model, mesh)
        models.compare(models.train(model, 3, mesh, make_optimizer), expected)

    ranks(4, body)


@pytest.mark.parametrize("initialised_by_user", [False, True])
def test_ten_steps_under_torchrun_with_gloo(torchrun, initialised_by_user):
    out = torchrun(
        4,
        f"""
        import models, torch, tessera
        if {initialised_by_user}:
            torch.distributed.init_process_group("gloo")
        for name in sorted(models.MODELS):
            mesh = tessera.init_device_mesh("dp=2,tp=2")
            expected = models.train(models.make(name), {STEPS})
            found = models.train(models.distribute(models.make(name), mesh), {STEPS}, mesh)
            models.compare(found, expected)
            print(name + " is equal on rank " + str(mesh.get_rank()))
        if {initialised_by_user}:
            total = torch.ones(1)
            torch.distributed.all_reduce(total)
            assert total.item() == 4
            torch.distributed.destroy_process_group()
        """,
    )
    assert out.count("is equal on rank") == 8
