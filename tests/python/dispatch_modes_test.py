"""Modes of torch see the program's ops, and none of what this library does to run them."""

import functools
import threading

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import tessera


class Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.ops.append(str(function))
        return function(*args, **(kwargs or {}))


LAYOUTS = ["R", "S0", "S1", "P(sum)", "P(avg)"]
FUNCTIONS = [
    lambda x, w: (x @ w).sin() @ w,
    lambda x, w: torch.nn.functional.rms_norm(x, x.shape[1:]) * w.sum(),
    lambda x, w: (x * x).softmax(1)[1:].exp(),
]


def new(mesh, layout):
    tessera.clear_caches()
    return tessera.from_local(torch.arange(16.0).view(4, 4) / 16, mesh, layout)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_first_call_shows_the_ops_of_the_second(function, layout):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        w = tessera.distribute_tensor(torch.eye(4), mesh, "R")
        x, seen = new(mesh, layout), []
        w = w if x.shape == (4, 4) else tessera.distribute_tensor(torch.ones(x.shape[1], x.shape[1]), mesh, "R")
        for value in (x, x.clone()):
            with Seen() as mode:
                function(value, w)
            seen.append(mode.ops)
        assert seen[0] == seen[1]
        return seen[0]

    first, second = tessera.run_ranks(2, body)
    assert first == second
    assert not any("empty" in op or "copy" in op or "zeros" in op for op in first), first


@pytest.mark.parametrize("layout", LAYOUTS)
def test_selective_checkpointing_saves_the_ops_that_it_was_asked_to(layout):
    """The second pass runs on another thread, which has decided about nothing yet."""
    contexts = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.mm.default])
    function = FUNCTIONS[0]

    def gradient(x, w, saves):
        w = w.detach().requires_grad_()
        if saves:
            function(x, w)
            loss = checkpoint(function, x, w, use_reentrant=False, context_fn=contexts).sum()
        else:
            loss = function(x, w).sum()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        return tessera.full_tensor(w.grad)

    mesh = tessera.init_device_mesh("tp=1")
    x = new(mesh, layout)
    w = tessera.distribute_tensor(torch.arange(16.0).view(4, 4) / 16, mesh, "R")
    torch.testing.assert_close(gradient(x, w, True), gradient(x, w, False))


def test_a_graph_of_ops_cannot_hold_a_redistribution(beside_torch):
    """On processes, since make_fx patches a global of torch."""
    beside_torch(2, """
import pytest
from torch.fx.experimental.proxy_tensor import make_fx

mesh = tessera.init_device_mesh("tp=2")
x = tessera.distribute_tensor(torch.arange(4.0), mesh, "S0")
refused = lambda: pytest.raises(RuntimeError, match="make_fx and torch.func.linearize")
with refused():
    make_fx(lambda x: x.sum(0).exp())(x)
with refused():
    torch.func.linearize(lambda x: x.sum(0).exp(), x)
with refused():
    make_fx(lambda x: tessera.to_local(x))(x)
graph = make_fx(lambda x: x.sin() * 2)(x)
assert torch.equal(tessera.full_tensor(graph(x + 1)), tessera.full_tensor((x + 1).sin() * 2))
""")
