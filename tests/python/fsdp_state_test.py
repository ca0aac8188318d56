"""Values and gradients of what fully_shard holds: states by name, torch's and ours, and their norm."""

import copy

import models
import pytest
import torch
from torch import nn

import tessera
from models import TIGHT


def test_state_goes_out_whole_and_comes_in_from_any_layout(ranks):
    plain = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7))

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7))
        tessera.fully_shard(model, mesh)
        tessera.load_full_state_dict(model, plain.state_dict())
        state = tessera.full_state_dict(model)
        assert state.keys() == plain.state_dict().keys()
        models.compare_state(state, plain.state_dict())
        assert len(tessera.full_state_dict(model, rank0_only=True)) >= (len(state) if rank == 0 else 0)
        tessera.load_full_state_dict(model, state if rank == 0 else {}, rank0_only=True)
        tessera.load_sharded_state_dict(model, tessera.sharded_state_dict(model))
        models.compare_state(tessera.full_state_dict(model), plain.state_dict())
        # torch's own, shard by shard.
        sharded = copy.deepcopy(model.state_dict())
        with torch.no_grad():
            model[0].weight.zero_()
        model.load_state_dict(sharded)
        models.compare_state(tessera.full_state_dict(model), plain.state_dict())
        with pytest.raises(tessera.InvalidArgument, match="lacks"):
            tessera.load_full_state_dict(model, {})

    ranks(2, body)


def hundred_parameters():
    return nn.Sequential(*[nn.Linear(3, 4) for _ in range(50)])


def test_a_hundred_parameters_are_sent_from_their_source_in_one_message(ranks):
    models_of = [hundred_parameters() for _ in range(2)]
    expected = models_of[0][49].weight.detach().clone()

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        with tessera.expect_comm("1 all_to_all"):
            tessera.fully_shard(models_of[rank], mesh, src_data_rank=0)
        assert torch.equal(tessera.full_tensor(models_of[rank][49].weight.detach()), expected)

    ranks(2, body)


def test_the_full_state_of_a_hundred_parameters_is_gathered_in_one_message(ranks):
    def body(rank):
        model = tessera.fully_shard(hundred_parameters(), tessera.init_device_mesh("dp=2"))
        for rank0_only in (False, True):
            with tessera.expect_comm("1 all_gather"):
                tessera.full_state_dict(model, rank0_only=rank0_only)

    ranks(2, body)


def test_the_full_state_of_a_hundred_parameters_is_loaded_with_at_most_two_messages(ranks):
    """Names and shapes, and then all parts at once; nothing where every rank has the state."""

    def body(rank):
        model = tessera.fully_shard(hundred_parameters(), tessera.init_device_mesh("dp=2"))
        state = tessera.full_state_dict(model)
        with tessera.expect_comm("nothing"):
            tessera.load_full_state_dict(model, state)
        with tessera.expect_comm("1 broadcast, 1 all_to_all"):
            tessera.load_full_state_dict(model, state if rank == 0 else {}, rank0_only=True)

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
