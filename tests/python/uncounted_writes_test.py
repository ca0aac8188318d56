"""A reduced or gathered copy of a tensor is not used after a write, also one that autograd does not
count: to x.data, to to_local(x), to the memory x was made of, by fused optimizers, to statistics."""

import pytest
import torch
import torch.nn.functional as F

import tessera

SHAPE = (4, 3)


def _fused_adam(x):
    mesh = tessera.device_mesh(x)
    step = tessera.distribute_tensor(torch.ones(()), mesh, ["R"])
    states = [x.detach() * 0 for _ in range(2)]
    with torch.no_grad():
        torch._fused_adam_(
            [x], [x.detach() * 0 + 1], [states[0]], [states[1]], [], [step], lr=0.1, beta1=0.9,
            beta2=0.9, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip


def _set_data(x):
    x.data = (x * 2).detach()


def _in_inference_mode(x):
    with torch.inference_mode():
        x.mul_(2)


def _update_statistics(x):
    """Of a view, or where that would be gathered, of the tensor behind another name."""
    part = _part(x) if _part(x).dim() == 1 else x.view(-1)
    n = part.numel()
    batch = torch.arange(8.0 * n).view(8, n) ** 2
    other = tessera.distribute_tensor(torch.ones(n), tessera.device_mesh(x), ["R"])
    F.batch_norm(tessera.distribute_tensor(batch, tessera.device_mesh(x), ["R"]), part, other, training=True)


def _part(x):
    """A view that needs no other rank's elements."""
    return x[1:3] if tessera.placements(x)[0].is_shard(1) else x[:, 1]


WRITES = {
    "data": lambda x, made_of: x.data.mul_(2),
    "a view of data": lambda x, made_of: _part(x.data).mul_(2),
    "data of a view": lambda x, made_of: _part(x).data.mul_(2),
    "to_local": lambda x, made_of: tessera.to_local(x).mul_(2),
    "a view of to_local": lambda x, made_of: tessera.to_local(x)[:, :1].mul_(2),
    "to_local of a view": lambda x, made_of: tessera.to_local(_part(x)).mul_(2),
    "to_local of a view of data": lambda x, made_of: tessera.to_local(_part(x.data)).mul_(2),
    "what it was made of": lambda x, made_of: made_of.mul_(2),
    "a view of what it was made of": lambda x, made_of: made_of.view(-1)[1:].mul_(2),
    "detach": lambda x, made_of: _part(x.detach()).mul_(2),
    "a view in inference mode": lambda x, made_of: _in_inference_mode(_part(x)),
    "foreach": lambda x, made_of: torch._foreach_mul_([_part(x)], 2.0),
    "foreach that also reads it": lambda x, made_of: torch._foreach_add_([x.data], [x]),
    "set_data": lambda x, made_of: _set_data(x),
    "a fused optimizer": lambda x, made_of: _fused_adam(x),
    "a fused optimizer of a view": lambda x, made_of: _fused_adam(_part(x)),
    "statistics": lambda x, made_of: _update_statistics(x),
}

USES = {
    "P(sum)": [torch.tanh, lambda x: F.linear(x, x)],
    "P(max)": [torch.tanh, lambda x: F.linear(x, x)],
    "S0": [lambda x: F.linear(x, x), lambda x: x.cumprod(0)],
    "S1": [lambda x: x.cumprod(1), lambda x: x.sort(1)[0]],
}


def _made(mesh, placement):
    """A tensor and the plain one that it was made of."""
    values = torch.arange(12.0).view(SHAPE) / 7 - 0.4
    if placement[0] == "P":
        made_of = (values / 2 if placement == "P(sum)" else values).clone()
    else:
        made_of = values.chunk(2, int(placement[1]))[tessera.current_world().rank].clone()
    return tessera.from_local(made_of, mesh, [placement]), made_of


@pytest.mark.parametrize("placement", USES)
@pytest.mark.parametrize("write", WRITES)
def test_a_copy_of_a_value_is_not_used_after_a_write(placement, write):
    def rank(_):
        mesh = tessera.init_device_mesh("tp=2")
        for use in USES[placement]:
            x, made_of = _made(mesh, placement)
            before = tessera.full_tensor(use(x))
            WRITES[write](x, made_of)
            found = tessera.full_tensor(use(x))
            fresh = tessera.from_local(tessera.to_local(x).clone(), mesh, tessera.placements(x))
            expected = tessera.full_tensor(use(fresh))
            torch.testing.assert_close(found, expected, msg=f"{write} of {placement}")
            assert not torch.equal(found, before), "nothing was written"

    tessera.run_ranks(2, rank)


def test_batch_norm_updates_statistics_whose_memory_holds_the_negative(ranks):
    """libtorch loses this write on plain tensors: it is not in the op's schema."""
    x, z = torch.randn(6, 3).double(), torch.randn(3, dtype=torch.complex128)

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        batch, whole = (tessera.distribute_tensor(t.clone(), mesh, p) for t, p in ((x, "S0"), (z, "R")))
        var = tessera.distribute_tensor(torch.ones(3).double(), mesh, "R")
        F.batch_norm(batch, whole.conj().imag, var, training=True, momentum=0.5)
        expected = 0.5 * x.mean(0) - 0.5 * z.imag
        torch.testing.assert_close(tessera.full_tensor(whole).imag, -expected)
        torch.testing.assert_close(tessera.full_tensor(whole).real, z.real)

    ranks(2, body)
