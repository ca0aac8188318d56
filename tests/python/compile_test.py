"""torch.compile on code with sharded tensors: it runs, not compiled."""

import copy
import logging

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tessera
import tessera.compat

# The guard that torch's CUDA build uses where there is no GPU belongs to the first thread that enters a mode of fake
# tensors, as torch.compile does, and in 2.11 it is used after that thread has ended: let it be this one.
with FakeTensorMode():
    pass

LAYERS = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.GELU(), torch.nn.Linear(6, 4)).double()
X = torch.randn(4, 4, dtype=torch.float64)


@pytest.fixture
def warnings_of_compile():
    """The messages that torch.compile logs meanwhile."""
    torch.compiler.reset()
    messages = []

    class Handler(logging.Handler):
        def emit(self, record):
            messages.append(record.getMessage())

    logger, handler = logging.getLogger("torch._dynamo.utils"), Handler()
    logger.addHandler(handler)
    yield messages
    logger.removeHandler(handler)


def test_a_compiled_model_runs_as_it_is_with_one_warning(ranks, warnings_of_compile):
    expected = LAYERS(X)

    def body(rank):
        mesh = tessera.init_device_mesh("tp=1")
        model = copy.deepcopy(LAYERS)
        tessera.distribute_module(model, mesh)
        compiled = torch.compile(model, backend="eager")
        out = compiled(tessera.distribute_tensor(X, mesh, "S0"))
        assert tessera.is_dtensor(out)
        torch.testing.assert_close(tessera.full_tensor(out), expected)
        out.sum().backward()
        assert all(p.grad is not None for p in model.parameters())

        sharded = copy.deepcopy(LAYERS)
        tessera.fully_shard(sharded, mesh)
        torch.testing.assert_close(torch.compile(sharded, backend="eager")(X), expected)

    ranks(1, body)
    assert sum("sharded tensor" in message for message in warnings_of_compile) == 1


def test_a_graph_of_all_is_refused_with_the_reason(ranks, warnings_of_compile):
    def body(rank):
        x = tessera.distribute_tensor(X, tessera.init_device_mesh("tp=1"), "S0")
        with pytest.raises(Exception, match="sharded tensor tp=1 : S0 : 4x4.*local_map"):
            torch.compile(lambda t: t.sin() + 1, backend="eager", fullgraph=True)(x)

    ranks(1, body)


def test_plain_functions_inside_are_compiled(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=1")
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward

        compiled = torch.compile(lambda t: t.sin() + 1, backend=backend)
        x = tessera.distribute_tensor(X, mesh, "S0")
        out = tessera.local_map(compiled, out_placements=["S0"], device_mesh=mesh)(x)
        torch.testing.assert_close(tessera.full_tensor(out), X.sin() + 1)
        assert len(graphs) == 1

    ranks(1, body)


def test_torch_lists_what_can_be_overridden_beside_the_methods_of_compat():
    torch.overrides._get_overridable_functions.cache_clear()  # torch.compile asks for this list
    assert torch.add in torch.overrides.get_overridable_functions()[torch]
    doubled = torch.compile(lambda x: torch.add(x, x), backend="eager", fullgraph=True)
    assert doubled(torch.ones(2)).tolist() == [2, 2]


def test_plain_tensors_may_have_attributes_of_these_names(ranks):
    class Annotated(torch.Tensor):
        pass

    for x in (torch.ones(2), torch.ones(2).as_subclass(Annotated)):
        assert not hasattr(x, "placements")
        x.placements = "mine"
        assert x.placements == "mine" and not hasattr(x, "device_mesh")

    def body(rank):
        y = tessera.distribute_tensor(X, tessera.init_device_mesh("tp=1"), "S0")
        with pytest.raises(AttributeError, match="cannot be set"):
            y.placements = ()

    ranks(1, body)
