"""torch.nn.Module's own methods on modules of fully_shard: conversions, states, other parameters."""

import copy

import models
import pytest
import torch
from torch import nn
from torch.func import functional_call

import tessera
from tessera.compat import DTensor, Shard, distribute_tensor, init_device_mesh
from tessera.compat.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard


def sharded(model, **options):
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=init_device_mesh("cpu", (2,)), **options)
    return fully_shard(model, mesh=init_device_mesh("cpu", (2,)), **options)


def values(model):
    return {name: value.full_tensor() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("steps_before", [0, 3])
def test_a_module_is_converted_with_its_gradients_and_trains_on(ranks, mlp, steps_before):
    x = torch.randn(4, 6, dtype=torch.float64)

    def body(rank):
        model, plain = sharded(mlp()), mlp()
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, plain)]

        def step(dtype):
            model(x.to(dtype).chunk(2)[rank]).square().sum().backward()
            plain(x.to(dtype)).square().sum().div(2).backward()
            for optimizer in optimizers:
                optimizer.step()

        for _ in range(steps_before):
            step(torch.float64)
        for dtype in (torch.float32, torch.float64):
            assert model.to(dtype) is model
            plain.to(dtype)
            for parameter in model.parameters():
                assert parameter.dtype == parameter.to_local().dtype == dtype
                assert steps_before == 0 or parameter.grad.dtype == dtype
                assert isinstance(parameter, DTensor) and isinstance(parameter, nn.Parameter)
            step(dtype)
            tolerance = 1e-5 if dtype == torch.float32 else 1e-6  # what float32 has rounded stays
            models.compare_state(values(model), plain.state_dict(), rtol=tolerance, atol=tolerance)

    ranks(2, body)


def test_modules_on_meta_are_filled_by_torchs_to_empty(ranks):
    def body(rank):
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
            sharded(model, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float64))
        assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
        with pytest.raises(RuntimeError, match=r"meta.*'0.weight', '0.bias', '1.weight'"):
            model(torch.ones(2, 6))
        model.to_empty(device="cpu")
        for module in (model[0], model[1], model[2]):
            module.reset_parameters()
        assert not any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
        model(torch.randn(4, 6)).sum().backward()
        assert all(p.grad.placements == (Shard(0),) for p in model.parameters())

    ranks(2, body)


def test_a_part_of_a_group_cannot_be_converted(ranks, mlp):
    def body(rank):
        model = fully_shard(mlp(), mesh=init_device_mesh("cpu", (2,)))
        with pytest.raises(RuntimeError, match="before fully_shard"):
            model[0].to(torch.float32)  # no FSDPModule itself
        assert model[0].weight.dtype == torch.float64
        model(torch.ones(2, 6).double()).sum().backward()

    ranks(2, body)


def test_a_state_holds_sharded_tensors_that_share_memory(ranks, mlp):
    def body(rank):
        model = sharded(mlp(), reshard_after_forward=False)
        model(torch.ones(2, 6).double())
        state = model.state_dict()
        for name, parameter in model.named_parameters():
            assert state[name].placements == (Shard(0),)
            assert state[name].to_local().data_ptr() == parameter.to_local().data_ptr()
            assert model.state_dict(keep_vars=True)[name] is parameter
        new = {name: tensor.detach().clone().fill_(rank) for name, tensor in state.items()}
        model.load_state_dict(new)
        assert all(bool((p.to_local() == rank).all()) for p in model.parameters())
        assert model(torch.ones(2, 6).double()).isfinite().all()

    ranks(2, body)


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_state_is_loaded_sharded_or_whole(ranks, mlp, assign, whole):
    state = mlp().float().state_dict()

    def body(rank):
        model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 4))
        if assign:
            model.to("meta", torch.float64)
        sharded(model)
        before = list(model.parameters())
        mesh = model[0].weight.device_mesh
        given = state if whole else {n: distribute_tensor(v, mesh, [Shard(0)]) for n, v in state.items()}
        model.load_state_dict(given, assign=assign)
        assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
        models.compare_state(values(model), state, rtol=0, atol=0)
        model(torch.ones(2, 6)).sum().backward()
        assert all(p.grad.dtype == torch.float32 for p in model.parameters())

    ranks(2, body)


def test_parameters_may_be_replaced_until_the_first_forward(ranks, mlp):
    def body(rank):
        model = fully_shard(mlp(), mesh=init_device_mesh("cpu", (2,)))
        with torch.no_grad():
            model[0].bias = nn.Parameter(model[0].bias * 2 + 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        plain = mlp()
        plain[0].bias = nn.Parameter(plain[0].bias.detach() * 2 + 1)
        x = torch.randn(2, 6, dtype=torch.float64)
        torch.testing.assert_close(model(x), plain(x))
        model(x).sum().backward()
        plain(x).sum().backward()
        optimizer.step()
        torch.optim.SGD(plain.parameters(), lr=1.0).step()
        models.compare_state(values(model), plain.state_dict(), **models.TIGHT)
        model.set_gradient_divide_factor(4.0)  # also of the group's new parameter
        model(x).sum().backward()

    ranks(2, body)


def test_values_that_a_functional_call_lends_do_not_replace_parameters(ranks, mlp):
    x = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(4, 6)

    def losses(model, part):
        """The first forwards are calls with other values: of a new model, then computed, then batched."""
        other = {name: nn.Parameter(p.detach()) for name, p in mlp().named_parameters()}
        yield functional_call(model, other, (part,)).square().mean().detach()
        scaled = {name: p * 1.5 for name, p in model.named_parameters()}
        yield functional_call(model, scaled, (part,)).square().mean()
        rows = torch.func.vmap(lambda row: functional_call(model, other, (row,)))(part)
        yield model(part).square().mean() + rows.detach().mean()

    def body(rank):
        model, plain = sharded(mlp()), mlp()
        held = list(model.parameters())
        for found, expected in zip(losses(model, x.chunk(2)[rank]), losses(plain, x), strict=True):
            if expected.requires_grad:
                found.backward()
                expected.backward()
        assert all(a is b for a, b in zip(held, model.parameters(), strict=True))
        grads = {name: p.grad.full_tensor() for name, p in model.named_parameters()}
        models.compare_state(grads, {n: p.grad for n, p in plain.named_parameters()}, **models.TIGHT)

    ranks(2, body)


def test_a_module_tells_that_it_is_sharded(ranks, mlp):
    def body(rank):
        model = sharded(mlp())
        states = {fully_shard.state(module) for module in (model, model[0], model[2])}
        assert len(states) == 3 and None not in states
        assert fully_shard.state(model[1]) is None
        with pytest.raises(AssertionError, match="only be applied to a module once"):
            fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        with pytest.raises(AssertionError, match="before fully_shard"):
            copy.deepcopy(model)
        with pytest.raises(ValueError, match="do not implement forward"):
            fully_shard(nn.ModuleList([nn.Linear(2, 2)]), mesh=init_device_mesh("cpu", (2,)))
        assert not isinstance(model[:2], FSDPModule)

    ranks(2, body)


def test_frozen_parameters_may_hold_integers(ranks):
    def body(rank):
        model = nn.Linear(4, 3)
        counts = torch.arange(5)
        model.register_parameter("counts", nn.Parameter(counts.clone(), requires_grad=False))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)), mp_policy=policy)
        assert torch.equal(model.counts + torch.zeros(5, dtype=torch.int64), counts)
        model(torch.ones(2, 4)).sum().backward()
        assert model.counts.grad is None and model.weight.grad.dtype == torch.float32
        assert tessera.full_state_dict(model)["counts"].tolist() == counts.tolist()

    ranks(2, body)


def test_pytorchs_helpers_and_replicate_know_these_modules(beside_torch):
    out = beside_torch(
        2,
        """
        from torch import nn
        from torch.distributed.checkpoint import state_dict as helpers

        plain, model = nn.Linear(5, 3), nn.Linear(5, 3)
        compat.fully_shard(model)
        assert model.weight.device_mesh == init_device_mesh("cpu", (2,))
        full = helpers.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        helpers.set_model_state_dict(model, plain.state_dict() if rank == 0 else {}, options=full)
        expected = [plain.state_dict()]
        torch.distributed.broadcast_object_list(expected)
        full = helpers.StateDictOptions(full_state_dict=True)
        found = helpers.get_model_state_dict(model, options=full)
        assert not any(tessera.is_dtensor(value) for value in found.values())
        models.compare_state(found, expected[0], rtol=0, atol=0)
        print("equal on rank " + str(rank))

        from torch.distributed import fsdp as theirs
        from torch.distributed._composable import replicate

        inside, outside = (nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2))
        replicate(inside[0])
        policy = theirs.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
        compat.fully_shard(inside, mp_policy=policy, offload_policy=theirs.CPUOffloadPolicy(False))
        compat.fully_shard(outside[1])
        replicate(outside)
        for model in (inside, outside):
            assert [tessera.is_dtensor(p) for p in model.parameters()] == [False] * 2 + [True] * 2
        outside(torch.full((1, 4), rank + 1.0)).sum().backward()
        mine = outside[0].weight.grad.clone()
        torch.distributed.broadcast(mine, 0)
        torch.testing.assert_close(outside[0].weight.grad, mine)
        print("beside replicate on rank " + str(rank))
        """,
    )
    assert out.count("equal on rank") == out.count("beside replicate on rank") == 2
