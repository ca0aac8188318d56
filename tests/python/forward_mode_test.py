"""Forward-mode derivatives go through what moves values between ranks, with and without reverse mode beside them."""

START = """
import torch
import torch.autograd.forward_ad as fw
import tessera

mesh = tessera.init_device_mesh("tp=2")
x = torch.arange(1.0, 6.0)  # uneven parts
FUNCTIONS = {
    "a reduced Partial beside a gathered slice": lambda x: x.sum(0, keepdim=True).exp() + x[:1],
    "a Partial scaled and reduced": lambda x: (x.sum(0) * 2).exp(),
    "a Partial reduced twice": lambda x: x.sum().exp() + x.sum().sin(),
    "redistribute": lambda x: moved(x).sin(),
    "full_tensor": lambda x: whole(x.sin()).sin(),
    "local parts": lambda x: over_local(x).sin(),
    "a matrix product": lambda x: (x[:, None] @ x[None]).sum(1).cos(),
    "a sum along the sharded dim": lambda x: x.cumsum(0).sin(),
}


def moved(x):
    return tessera.redistribute(x, "R") if tessera.is_dtensor(x) else x


def whole(x):
    return tessera.full_tensor(x) if x is not None and tessera.is_dtensor(x) else x


def over_local(x):
    if not tessera.is_dtensor(x):
        return x * 2
    return tessera.from_local(tessera.to_local(x) * 2, mesh, tessera.placements(x), shape=x.shape, stride=x.stride())


def tangent(f, x, t, requires_grad):
    x = x.detach().requires_grad_(requires_grad)
    with fw.dual_level():
        out = fw.unpack_dual(f(fw.make_dual(x, t))).tangent
    return whole(out), torch.autograd.grad(whole(out).sum(), x)[0] if requires_grad else None


def sharded(t, placement):
    return tessera.distribute_tensor(t, mesh, placement)
"""


def test_tangents_and_their_gradients_are_those_of_the_whole_tensors(beside_torch):
    beside_torch(2, START + """
for name, f in FUNCTIONS.items():
    for placement in ("S0", "R"):
        for requires_grad in (False, True):
            expected, of_expected = tangent(f, x, x.sqrt(), requires_grad)
            found, of_found = tangent(f, sharded(x, placement), sharded(x.sqrt(), placement), requires_grad)
            assert found is not None, name
            torch.testing.assert_close(found, expected, msg=f"{name}, {placement}")
            torch.testing.assert_close(whole(of_found), of_expected, msg=f"gradient of {name}, {placement}")
""")


def test_a_kept_copy_without_a_tangent_is_not_used_for_a_dual_number(beside_torch):
    beside_torch(2, START + """
f = lambda x: x.exp()
partial = sharded(x, "S0").sum(0)
f(partial)  # keeps a reduced copy
with fw.dual_level():
    found = fw.unpack_dual(f(fw.make_dual(partial, torch.ones_like(partial)))).tangent
torch.testing.assert_close(whole(found), x.sum().exp() * whole(torch.ones_like(partial)))
""")
