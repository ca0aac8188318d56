"""torch.nn.init on sharded tensors: the distribution, and the same values on any number of ranks."""

import pytest
import torch
from torch import nn

import tessera

SHAPE = (64, 30)

INITIALISERS = {
    "uniform_": nn.init.uniform_,
    "normal_": nn.init.normal_,
    "trunc_normal_": nn.init.trunc_normal_,
    "trunc_normal_ far from the mean": lambda x: nn.init.trunc_normal_(x, 0.0, 1.0, 1.5, 2.0),
    "trunc_normal_ narrow": lambda x: nn.init.trunc_normal_(x, 0.0, 1.0, -0.1, 0.1),
    "constant_": lambda x: nn.init.constant_(x, 0.3),
    "eye_": nn.init.eye_,
    "xavier_uniform_": nn.init.xavier_uniform_,
    "xavier_normal_": nn.init.xavier_normal_,
    "kaiming_uniform_": nn.init.kaiming_uniform_,
    "kaiming_normal_": nn.init.kaiming_normal_,
    "orthogonal_": nn.init.orthogonal_,
}


def initialised(ranks, count, mesh, placements, initialise, dtype):
    def body(rank):
        made = tessera.distribute_tensor(
            torch.zeros(SHAPE, dtype=dtype), tessera.init_device_mesh(mesh), placements
        )
        parameter = nn.Parameter(made)
        tessera.manual_seed(3)
        assert initialise(parameter) is parameter and parameter.requires_grad
        assert tessera.sharding(parameter) == tessera.sharding(made)
        return tessera.full_tensor(parameter.detach())

    return ranks(count, body)[0]


@pytest.mark.parametrize("name", INITIALISERS)
def test_values_do_not_depend_on_the_number_of_ranks(ranks, name):
    initialise = INITIALISERS[name]
    for dtype in (torch.float32, torch.bfloat16):
        if name == "orthogonal_" and dtype is torch.bfloat16:
            continue  # no QR of this type
        one = initialised(ranks, 1, "tp=1", "R", initialise, dtype)
        for count, mesh, placements in ((2, "tp=2", "S0"), (4, "dp=2,tp=2", "R,S1"), (3, "tp=3", "S0")):
            several = initialised(ranks, count, mesh, placements, initialise, dtype)
            if name == "orthogonal_":
                torch.testing.assert_close(several, one)
            else:
                assert torch.equal(several, one), (dtype, mesh, placements)


@pytest.mark.parametrize("low, high", [(-2.0, 2.0), (-0.1, 0.1), (1.5, 2.0)])
def test_a_truncated_normal_has_the_moments_of_the_plain_one(ranks, low, high):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        tessera.manual_seed(5)
        x = tessera.distribute_tensor(torch.zeros(200, 200), mesh, "S0")
        return tessera.full_tensor(nn.init.trunc_normal_(x, 0.0, 1.0, low, high))

    x = ranks(2, body)[0]
    plain = nn.init.trunc_normal_(torch.empty(200, 200), 0.0, 1.0, low, high)
    assert low <= x.min() and x.max() <= high
    assert abs(x.mean() - plain.mean()) < 0.02 * (high - low)
    assert abs(x.std() - plain.std()) < 0.02 * (high - low)


def test_new_and_new_tensor_make_plain_tensors_of_the_same_type(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = tessera.distribute_tensor(torch.zeros(4, 3, dtype=torch.float64), mesh, "S0")
        for made, shape in (
            (x.new_tensor(2), ()),
            (x.new_tensor([1, 2]), (2,)),
            (x.new_tensor(2.5, device="cpu"), ()),
            (x.new(2, 3), (2, 3)),
            (x.new([1.0, 2.0]), (2,)),
        ):
            assert not tessera.is_dtensor(made)
            assert made.dtype == torch.float64 and made.shape == shape
        assert x.new_tensor([1, 2]).tolist() == [1, 2]
        assert x.new_tensor(2, dtype=torch.int32, requires_grad=False).dtype == torch.int32
        assert (x + x.new_tensor(2.0)).sum().item() == 24
        with tessera.expect_comm("nothing"):
            assert not x.is_pinned() and not x.is_shared()

    ranks(2, body)
