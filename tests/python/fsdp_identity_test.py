"""Which module a group is of, after modules and lists of tensors that had groups are gone: a module is refused
only if it was given to fully_shard itself."""

import gc

import pytest
import torch
from torch import nn

import tessera

TIMES = 40  # enough for the allocator to give out the memory of what is gone again


def make():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).double()


def check_trains(model, plain):
    x = torch.arange(6.0, dtype=torch.float64).view(2, 3).sin()
    for one in (model, plain):
        one(x).square().mean().backward()
    for own, other in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(tessera.full_tensor(own.grad), other.grad)


def copied(model):
    out = make()
    out.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()})
    return out


@pytest.mark.parametrize("shard", [tessera.fully_shard, tessera.replicate])
def test_a_list_of_a_modules_tensors_is_not_the_module(ranks, shard):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        for _ in range(TIMES):
            model = make()
            with torch.no_grad():
                for i, parameter in enumerate(model.parameters()):
                    parameter.copy_(torch.arange(parameter.numel()).add(i).sin().view_as(parameter))
            plain = copied(model)
            shard([model[0].weight], mesh)
            shard(model, mesh)
            assert len(tessera.sharded_groups(model)) == 2
            check_trains(model, plain)

    ranks(2, body)


def test_lists_that_follow_each_other_are_not_one_module(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        for _ in range(TIMES):
            model = make()
            for parameter in list(model.parameters())[:3]:
                tessera.fully_shard([parameter], mesh)
            tessera.fully_shard([model[0], model[1]], mesh)
            assert len(tessera.sharded_groups(model)) == 4

    ranks(2, body)


def test_a_module_may_hold_parameters_of_one_that_is_gone(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        for _ in range(TIMES):
            outer, first = make(), nn.Linear(3, 4).double()
            tessera.fully_shard(first, mesh)
            outer[0].weight, outer[0].bias = first.weight, first.bias
            del first
            gc.collect()
            tessera.fully_shard(outer, mesh)
            assert len(tessera.sharded_groups(outer)) == 2

    ranks(2, body)


def test_a_module_in_two_models_of_which_one_is_gone(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        for _ in range(TIMES):
            shared = nn.Linear(3, 3).double()
            for _ in range(3):
                model = nn.Sequential(shared, nn.Linear(3, 2).double())
                tessera.fully_shard(model, mesh)
                assert tessera.is_dtensor(model[1].weight)
                del model
                gc.collect()

    ranks(2, body)


def test_a_module_or_a_list_is_refused_the_second_time(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = tessera.fully_shard(make(), mesh)
        for wrong, said in (
            (lambda: tessera.fully_shard(model, mesh), "twice on one Sequential"),
            (lambda: tessera.fully_shard([nn.Linear(2, 2), model], mesh), "twice on one Sequential"),
            (lambda: tessera.fully_shard([model[0].weight], mesh), "belongs to a group already"),
        ):
            with pytest.raises(tessera.InvalidArgument, match=said):
                wrong()
        tessera.fully_shard(model[0], mesh)  # another module, of which nothing is left to shard
        assert len(tessera.sharded_groups(model)) == 1

    ranks(2, body)
