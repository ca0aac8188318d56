"""Every optimizer of torch.optim, in each of its forms, on sharded parameters and under fully_shard:
after some steps the parameters and the state are those of the plain run."""

import copy

import pytest
import torch

import tessera
from tessera import Replicate, Shard

STEPS = 4


class Net(torch.nn.Module):
    """Matrices, vectors, and a parameter of one number."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 5)
        self.norm = torch.nn.LayerNorm(5)
        self.scale = torch.nn.Parameter(torch.full((1,), 1.5))
        self.second = torch.nn.Linear(5, 3, bias=False)

    def forward(self, x):
        return self.second(self.norm(torch.tanh(self.first(x))) * self.scale)


def adam_forms(kind):
    forms = [{}, {"amsgrad": True, "weight_decay": 0.1}, {"maximize": True}]
    return [(kind, dict(form, **way)) for form in forms for way in ({}, {"foreach": True}, {"fused": True})]


def plain_and_foreach(kind, *forms):
    return [(kind, dict(form, foreach=way)) for form in forms for way in (False, True)]


CASES = [
    *adam_forms("Adam"),
    *adam_forms("AdamW"),
    *plain_and_foreach("SGD", {}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "fused": True}),
    ("SGD", {"momentum": 0.9, "maximize": True, "fused": True}),
    *plain_and_foreach("Adagrad", {}, {"initial_accumulator_value": 0.3, "lr_decay": 0.1}, {"maximize": True}),
    ("Adagrad", {"fused": True}),
    *plain_and_foreach("Adadelta", {}, {"weight_decay": 0.1, "maximize": True}),
    *plain_and_foreach("Adamax", {}, {"weight_decay": 0.1, "maximize": True}),
    *plain_and_foreach("ASGD", {}, {"weight_decay": 0.1, "maximize": True}),
    *plain_and_foreach("NAdam", {}, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    *plain_and_foreach("RAdam", {}, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    *plain_and_foreach("RMSprop", {}, {"centered": True, "momentum": 0.9, "maximize": True}),
    *plain_and_foreach("Rprop", {}, {"maximize": True}),
    *plain_and_foreach("Adafactor", {}, {"weight_decay": 0.1, "maximize": True}),
    ("LBFGS", {"max_iter": 3}),
    ("LBFGS", {"max_iter": 3, "line_search_fn": "strong_wolfe"}),
]
IDS = [f"{kind}-{'-'.join(f'{k}={v}' for k, v in form.items()) or 'plain'}" for kind, form in CASES]


def train(net, kind, form, x, target):
    optimizer = getattr(torch.optim, kind)(net.parameters(), **form)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), target)
        loss.backward()
        return loss

    for _ in range(STEPS):
        if kind == "LBFGS":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
    return optimizer


def whole(value):
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    return tessera.full_tensor(value) if tessera.is_dtensor(value) else value


def results(net, optimizer, with_state=True):
    out = {name: whole(p) for name, p in net.named_parameters()}
    for index, p in enumerate(net.parameters()) if with_state else ():
        for name, value in optimizer.state[p].items():
            if isinstance(value, torch.Tensor):
                out[f"state {index} {name}"] = whole(value)
    return out


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-9, atol=1e-9, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(scope="module")
def start():
    torch.manual_seed(3)
    return Net().double(), torch.randn(8, 6).double(), torch.randn(8, 3).double()


@pytest.mark.parametrize(("kind", "form"), CASES, ids=IDS)
def test_steps_as_the_plain_one(ranks, start, kind, form):
    net, x, target = start
    plain = copy.deepcopy(net)
    # LBFGS keeps its state as one vector of all parameters, under the first.
    with_state = kind != "LBFGS"
    expected = results(plain, train(plain, kind, form, x, target), with_state)

    def body(_):
        mesh = tessera.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        sharded = copy.deepcopy(net)
        placements = {"first.weight": Shard(0), "second.weight": Shard(1), "norm.weight": Shard(0)}
        for name, p in list(sharded.named_parameters()):
            placed = tessera.distribute_tensor(p.detach(), mesh, [placements.get(name, Replicate())])
            module, _, leaf = name.rpartition(".")
            setattr(sharded.get_submodule(module), leaf, torch.nn.Parameter(placed))
        put = [tessera.distribute_tensor(t, mesh, [Shard(0)]) for t in (x, target)]
        assert_same(results(sharded, train(sharded, kind, form, *put), with_state), expected)

        held = copy.deepcopy(net)
        tessera.fully_shard(held.first, mesh)
        tessera.fully_shard(held, mesh)
        assert_same(results(held, train(held, kind, form, x, target), with_state), expected)

    ranks(2, body)


def test_muon_steps_as_the_plain_one(ranks):
    def train_matrices(put):
        matrices = [torch.nn.Parameter(put(torch.randn(6, 5, generator=torch.Generator().manual_seed(i)))) for i in range(2)]
        optimizer = torch.optim.Muon(matrices, lr=0.1)
        for _ in range(STEPS):
            (matrices[0] * matrices[1]).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return [whole(m) for m in matrices]

    expected = train_matrices(lambda m: m)

    def body(_):
        mesh = tessera.init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
        for placement in (Shard(0), Shard(1), Replicate()):
            got = train_matrices(lambda m, p=placement: tessera.distribute_tensor(m, mesh, [p]))
            for ours, theirs in zip(got, expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2)

    ranks(2, body)
