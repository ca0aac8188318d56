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
