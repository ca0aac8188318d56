"""Options of fully_shard: types, dims, meshes and devices; and what it refuses."""

import copy
import pickle

import models
import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import tessera


def test_mixed_precision_casts_inputs_outputs_and_messages(ranks, mlp):
    x = torch.randn(2, 6)
    policy = tessera.MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
    )

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = tessera.fully_shard(mlp().float(), mesh, mp_policy=policy)
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


def test_options_say_what_is_sharded_and_where(ranks, mlp):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = mlp()
        weight = model[2].weight
        tessera.fully_shard(
            [model[0], model[2]],
            mesh,
            shard_dim=lambda name, p: 1 if name == "0.weight" else None,
            ignored_params=[weight],
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
        return tessera.full_state_dict(model)

    alone = ranks(1, lambda rank: weights(rank, 1))[0]
    for found in ranks(3, lambda rank: weights(rank, 3, offload_policy=tessera.CPUOffloadPolicy())):
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


def test_averages_and_norms_between_steps_work_on_the_shards(ranks, mlp):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        plain, model = mlp(), tessera.fully_shard(mlp(), mesh)
        with tessera.Recorder() as recorder:
            for p in model.parameters():
                average = p.detach().clone()
                average.mul_(0.9).add_(p.data, alpha=0.2)
                assert tessera.is_dtensor(average) and tessera.is_dtensor(p.data.clone())
                p.data.copy_(average)
        assert not recorder.events
        for p, q in zip(model.parameters(), plain.parameters()):
            assert torch.allclose(p.detach().norm(), q.detach().norm() * 1.1)

    ranks(2, body)


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
        doubled = nn.Parameter(TwoTensor(torch.ones(2), torch.ones(2)))
        with pytest.raises(tessera.NotSupported, match="Python class"):
            tessera.fully_shard([doubled], mesh)
        with pytest.raises(tessera.NotSupported, match="before fully_shard"):
            copy.deepcopy(model)

    ranks(2, body)


def test_a_rank_pickles_its_state_dict_and_loads_it_into_another_model(ranks, mlp):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model, other = (tessera.fully_shard(mlp(), mesh) for _ in range(2))
        other.load_state_dict(pickle.loads(pickle.dumps(model.state_dict())))
        for name, value in other.state_dict().items():
            assert value.equal(model.state_dict()[name]), name

    ranks(2, body)
