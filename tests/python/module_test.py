"""torch.nn, torch.optim, autocast, checkpointing and hooks on sharded parameters."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization, remove_parametrizations
from torch.utils.checkpoint import checkpoint

import tessera


def make():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))


def spread(model, mesh):
    for tensor, placements in zip(model.parameters(), ("S0", "S0", "S1", "R"), strict=True):
        tessera.distribute_(tensor, mesh, placements, src_data_rank=None)
    return model


def twin(plain, mesh):
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
    model.load_state_dict(plain.state_dict())
    return spread(model, mesh)


def whole(tensor):
    return tessera.full_tensor(tensor.detach())


def inputs(mesh, full):
    return tessera.distribute_tensor(full, mesh, "R", src_data_rank=None)


@pytest.fixture
def case():
    plain, x = make(), torch.randn(5, 6)
    plain(x).square().sum().backward()
    return plain, x


def test_parameters_become_sharded_in_place(ranks, case):
    plain, x = case

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
        model.load_state_dict(plain.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = list(model.parameters())
        spread(model, mesh)
        assert all(a is b for a, b in zip(before, model.parameters(), strict=True))
        assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in before)
        model(inputs(mesh, x)).square().sum().backward()
        optimizer.step()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(whole(p), q.detach() - 0.1 * q.grad)

    ranks(2, body)


def test_deepcopy_and_state_dict_keep_the_shards(ranks, case):
    plain, x = case

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        model = twin(plain, mesh)
        other = copy.deepcopy(model)
        state = model.state_dict()
        with torch.no_grad():
            for p in other.parameters():
                p.zero_()
        assert all(tessera.is_dtensor(value) for value in state.values())
        assert other(inputs(mesh, x)).abs().sum().item() == 0
        other.load_state_dict(state)
        for p, q in zip(other.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(whole(p), q.detach())

    ranks(2, body)


def test_checkpointing_recomputes_the_same(ranks, case):
    plain, x = case

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        model = twin(plain, mesh)
        out = checkpoint(model, inputs(mesh, x), use_reentrant=False)
        out.square().sum().backward()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(whole(p.grad), q.grad)

    ranks(2, body)


def test_hooks_see_sharded_activations_and_gradients(ranks, case):
    plain, x = case

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        model = twin(plain, mesh)
        seen = []
        model[0].register_forward_hook(lambda m, i, o: seen.append(tessera.placements(o)))
        model[0].register_full_backward_hook(
            lambda m, gi, go: seen.append(tessera.is_dtensor(go[0]))
        )
        model(inputs(mesh, x)).square().sum().backward()
        return seen

    assert ranks(2, body)[0] == [(tessera.Shard(1),), True]


def test_autocast_reaches_the_local_kernels(ranks, case):
    plain, x = case
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = plain(x)

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        model = twin(plain, mesh)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = model(inputs(mesh, x))
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(whole(y), expected, rtol=2e-2, atol=2e-2)

    ranks(2, body)


def test_local_map_runs_on_the_parts_and_differentiates(ranks):
    full = torch.randn(6, 4, dtype=torch.float64)

    def body(rank):
        mesh = tessera.init_device_mesh("tp=3")
        x = tessera.distribute_tensor(full, mesh, "S0", src_data_rank=None).requires_grad_()
        rows = tessera.local_map(
            lambda a: a.sum(1), out_placements=["S0"], in_placements=["S0"]
        )
        y = rows(x)
        torch.testing.assert_close(whole(y), full.sum(1))
        (y**2).sum().backward()
        torch.testing.assert_close(whole(x.grad), (2 * full.sum(1, True)).expand(6, 4))
        with pytest.raises(tessera.InvalidArgument, match="redistribute_inputs"):
            rows(tessera.redistribute(x, "S1"))

    ranks(3, body)


def test_factories_make_the_same_tensor_for_every_placement(ranks):
    def body(rank):
        results = []
        for mesh_text, placements in (("tp=4", "S0"), ("tp=4", "S1"), ("dp=2,tp=2", "S1,S0")):
            mesh = tessera.init_device_mesh(mesh_text)
            tessera.manual_seed(7)
            where = {"device_mesh": mesh, "placements": placements}
            results.append(whole(tessera.randn(6, 5, **where)))
            assert whole(tessera.full((3, 2), 2.5, **where)).eq(2.5).all()
            assert tessera.ones(3, 2, dtype=torch.int32, **where).dtype == torch.int32
            assert torch.equal(whole(tessera.eye(4, 3, **where)), torch.eye(4, 3))
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
        line = tessera.arange(1, 10, 2, device_mesh=tessera.init_device_mesh("tp=4"))
        return whole(line).tolist()

    assert ranks(4, body)[0] == [1, 3, 5, 7, 9]


def test_reduce_gradients_places_them_as_their_parameters(ranks, case):
    plain, x = case

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4))
        model.load_state_dict(plain.state_dict())
        tessera.distribute_module(model, mesh)
        rows = tessera.distribute_tensor(x, mesh, "S0", src_data_rank=None)
        tessera.reduce_gradients(model)
        model(rows).square().sum().backward()
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            assert tessera.placements(p.grad) == tessera.placements(p)
            torch.testing.assert_close(whole(p.grad), q.grad)

    ranks(2, body)


class Assorted(nn.Module):
    """Parameters and buffers of many kinds, with values that depend on `seed`."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.many = nn.ParameterList([torch.randn(4, 4) for _ in range(50)])
        self.tied = self.many[3]
        self.frozen = nn.Parameter(torch.randn(3, 5).bfloat16(), requires_grad=False)
        self.turning = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.image = nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
        self.across = nn.Parameter(torch.randn(5, 3).t())
        self.scale = nn.Parameter(torch.randn(()))
        self.nothing = nn.Parameter(torch.randn(0, 3))
        self.shared = nn.Parameter(torch.randn(6, 2))
        self.register_buffer("steps", torch.randint(9, ()))
        self.register_buffer("mask", torch.rand(7) > 0.5)
        self.register_buffer("sharded_none", None)
        self.many[0].grad = torch.randn(4, 4)


def test_distribute_module_sends_few_messages():
    expected = Assorted(0)

    def shard(name, module, mesh):
        if name == "":
            tessera.distribute_(module.shared, mesh, ["S0", "R"])

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2,tp=2")
        model = Assorted(rank)
        before = dict(model.named_parameters())
        with tessera.Recorder() as recorder:
            tessera.distribute_module(model, mesh, shard)
        own = dict(model.named_parameters())
        assert all(own[name] is tensor for name, tensor in before.items())
        assert model.tied is model.many[3]
        own.update(model.named_buffers())
        for name, tensor in (*expected.named_parameters(), *expected.named_buffers()):
            assert tessera.is_dtensor(own[name]), name
            assert own[name].requires_grad == tensor.requires_grad, name
            assert own[name].dtype == tensor.dtype, name
            assert torch.equal(whole(own[name]), tensor.detach()), name
            local = tessera.to_local(own[name].detach())
            assert local.untyped_storage().nbytes() == local.nbytes, name
        assert model.image.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(whole(model.many[0].grad), expected.many[0].grad)
        assert [str(p) for p in tessera.placements(model.shared)] == ["S0", "R"]
        return recorder.count()

    sent = tessera.run_ranks(4, body)
    # Two for all of float32, one for the only tensor of each other dtype, one for `shared`.
    assert sent == [7] * 4


def test_distribute_module_without_messages():
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        with torch.device("meta"):
            unset = nn.Linear(3, 4)
        with tessera.Recorder() as recorder:
            tessera.distribute_module(unset, mesh)
            model = tessera.distribute_module(Assorted(1), mesh, src_data_rank=None)
        assert all(tessera.to_local(p).is_meta for p in unset.parameters())
        assert torch.equal(whole(model.many[7]), Assorted(1).many[7].detach())
        with pytest.raises(tessera.InvalidArgument, match="rank number 2"):
            tessera.distribute_module(Assorted(1), mesh, src_data_rank=2)
        return recorder.count()

    assert tessera.run_ranks(2, body) == [0, 0]


def test_a_transformer_encoder_in_evaluation_takes_a_padding_mask(ranks):
    """PyTorch's module makes a nested tensor of a plain input, whose padding comes back as zeros."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    plain = nn.TransformerEncoder(layer, 2).double().eval()
    x = torch.randn(4, 5, 8, dtype=torch.float64)
    padding = torch.arange(5) >= torch.tensor([5, 3, 4, 1])[:, None]
    with torch.no_grad():
        expected = plain(x, src_key_padding_mask=padding)

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = copy.deepcopy(plain)
        tessera.distribute_module(model, mesh)
        with torch.no_grad():
            mask = tessera.distribute_tensor(padding, mesh, "S0")
            out = model(tessera.distribute_tensor(x, mesh, "S0"), src_key_padding_mask=mask)
        torch.testing.assert_close(whole(out)[~padding], expected[~padding])

    ranks(2, body)


class Doubled(nn.Module):
    def forward(self, weight):
        return weight * 2


class DoubledAlike(Doubled):
    def right_inverse(self, weight):
        return weight / 2


def spectral(layer):
    nn.utils.parametrizations.spectral_norm(layer, n_power_iterations=50)


PARAMETRIZATIONS = {
    "of the tensor itself": lambda layer: register_parametrization(layer, "weight", Doubled()),
    "with an inverse": lambda layer: register_parametrization(layer, "weight", DoubledAlike()),
    "spectral_norm": spectral,
}


@pytest.mark.parametrize("way", PARAMETRIZATIONS)
@pytest.mark.parametrize("removed", [False, True])
def test_parametrizations_are_registered_on_sharded_parameters(ranks, way, removed):
    def step(model, x):
        for layer in (model[0], model[2]):
            PARAMETRIZATIONS[way](layer)
            if removed:
                remove_parametrizations(layer, "weight")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return dict(model.named_parameters())

    plain, x = make().double(), torch.randn(5, 6).double()
    expected = step(copy.deepcopy(plain), x)

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        found = step(twin(plain, mesh).double(), inputs(mesh, x))
        assert found.keys() == expected.keys()
        for name, p in found.items():
            assert isinstance(p, nn.Parameter) and tessera.is_dtensor(p)
            torch.testing.assert_close(whole(p), expected[name].detach(), msg=name)
        held = tessera.fully_shard(make(), mesh)
        with pytest.raises(RuntimeError, match="Register parametrizations before fully_shard"):
            register_parametrization(held[0], "weight", DoubledAlike())

    ranks(2, body)
