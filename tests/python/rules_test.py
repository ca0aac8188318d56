"""Rules of one's own: by notation, by a Python function; explanations."""

import pytest
import torch

import tessera
from tessera import Replicate, Shard


@torch.library.custom_op("tessera_rules::scaled_mm", mutates_args=())
def scaled_mm(a: torch.Tensor, b: torch.Tensor, factor: float) -> torch.Tensor:
    # numpy: what sharded tensors could not run through
    return torch.from_numpy(a.numpy() @ b.numpy()) * factor


@scaled_mm.register_fake
def _(a, b, factor):
    return a.new_empty(a.shape[0], b.shape[1])


def rows(call, axis):
    assert call.op == "tessera_rules::scaled_mm" and call.mesh.size(axis) > 1
    assert call.args["factor"] == 2.0 and call.operands[0].shape == (4, 6)
    yield [Shard(0), Replicate()], [Shard(0)]
    yield [Replicate(), Shard(1)], [Shard(1)]


@pytest.mark.parametrize("rule", ["mk, kn -> mn", rows])
def test_a_rule_lets_an_op_run_on_shards(ranks, rule):
    tessera.register_rule("tessera_rules::scaled_mm", rule)
    a, b = torch.randn(4, 6), torch.randn(6, 8)

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2,tp=2")
        x = tessera.distribute_tensor(a, mesh, [Shard(0), Replicate()], src_data_rank=None)
        y = tessera.distribute_tensor(b, mesh, [Replicate(), Shard(1)], src_data_rank=None)
        with tessera.expect_comm("nothing"):
            z = torch.ops.tessera_rules.scaled_mm(x, y, 2.0)
        assert tessera.placements(z) == (Shard(0), Shard(1))
        torch.testing.assert_close(tessera.full_tensor(z), a @ b * 2)

    ranks(4, body)


def test_a_rule_that_places_too_few_operands_is_refused(ranks):
    tessera.register_rule(
        "tessera_rules::scaled_mm", lambda call, axis: [([Shard(0)], [Shard(0)])]
    )

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = tessera.distribute_tensor(torch.ones(4, 4), mesh, "S0", src_data_rank=None)
        with pytest.raises(RuntimeError, match="places 1 operands, the op has 2"):
            torch.ops.tessera_rules.scaled_mm(x, x, 2.0)

    ranks(2, body)


def test_what_is_no_notation_is_refused():
    with pytest.raises(tessera.InvalidArgument):
        tessera.register_rule("tessera_rules::scaled_mm", "mk, kn ->")


def test_explain_lists_candidates_and_the_choice(ranks):
    x = tessera.Sharding.parse("tp=4 : S1 : 8x16")
    w = tessera.Sharding.parse("tp=4 : S0 : 16x32")
    text = tessera.explain(torch.ops.aten.mm.default, x, w)
    assert "tp=4 : S1 : 8x16" in text and "chosen" in text and "P(sum)" in text

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        t = tessera.distribute_tensor(torch.ones(4, 4), mesh, "S0", src_data_rank=None)
        with tessera.expect_comm("nothing"):
            return tessera.explain("aten::cumsum", t, 0)

    assert "chosen" in ranks(2, body)[0]
    for op in ("aten::allclose", "aten::matmul"):  # decomposed here, and by libtorch
        assert "made of other ops" in tessera.explain(op, x, x)
    assert "replicated inputs" in tessera.explain("aten::nonzero", x)
    with pytest.raises(tessera.InvalidArgument):
        tessera.explain("aten::mm", None, None)


def test_plans_say_how_a_tensor_moves():
    source = tessera.Sharding.parse("dp=2,tp=4 : S0,S0 : 64x32")
    target = tessera.Sharding.parse("dp=2,tp=4 : R,S1 : 64x32")
    plan = tessera.make_plan(source, target)
    assert plan.communicates() and plan.bytes > 0 and plan.seconds > 0
    assert [step.move for step in plan.steps] and "over" in str(plan)
