"""parallelize_module on one matrix for queries, keys and values: parts and heads of a style."""

import copy

import pytest
import torch
from torch import nn

import tessera


class FusedAttention(nn.Module):
    """One matrix for queries, keys and values."""

    def __init__(self, width=8, heads=4):
        super().__init__()
        self.head_size = width // heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (-1, self.head_size)).transpose(1, 2)
                   for part in self.qkv(x).chunk(3, -1))
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("local", [True, False])
def test_fused_projections_are_split_by_heads(local):
    torch.manual_seed(2)
    plain = FusedAttention().double()
    x = torch.arange(80, dtype=torch.float64).reshape(2, 5, 8).sin()
    expected = copy.deepcopy(plain)
    out = expected(x)
    out.square().sum().backward()

    def body(rank):
        model = copy.deepcopy(plain)
        tessera.parallelize_module(model, tessera.init_device_mesh("tp=2"), {
            "qkv": tessera.ColwiseParallel(parts=3, heads=4, use_local_output=local),
            "out": tessera.RowwiseParallel(),
        })
        y = model(x)
        torch.testing.assert_close(y, out)
        y.square().sum().backward()
        for own, other in zip(model.parameters(), expected.parameters()):
            torch.testing.assert_close(tessera.full_tensor(own.grad), other.grad)
        return True

    assert all(tessera.run_ranks(2, body))


def test_heads_and_parts_must_divide_before_anything_changes():
    def body(rank):
        mesh = tessera.init_device_mesh("tp=3")
        said = []
        for style in (tessera.ColwiseParallel(parts=5), tessera.ColwiseParallel(parts=3, heads=3, ),
                      tessera.ColwiseParallel(parts=3, heads=4), tessera.ColwiseParallel(heads=1)):
            model = FusedAttention()
            with pytest.raises(tessera.InvalidArgument) as error:
                tessera.parallelize_module(model, mesh, {"out": tessera.RowwiseParallel(), "qkv": style})
            said.append(str(error.value))
            assert not any(tessera.is_dtensor(p) for p in model.parameters())
        return said

    said = tessera.run_ranks(3, body)[0]
    assert "24 outputs are not 5 equal parts" in said[0]
    assert "8 outputs are not 3 equal heads" in said[1]
    assert "4 heads cannot be divided over 3 ranks" in said[2]
    assert "use_local_output=False replicates them" in said[3]
