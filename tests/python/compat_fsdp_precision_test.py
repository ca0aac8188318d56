"""FSDP2's mixed precision policy: what is cast, around forward and methods like it."""

import dataclasses
from typing import NamedTuple

import pytest
import torch
from torch import nn

from tessera.compat import init_device_mesh
from tessera.compat.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

LOW = MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float64)


@dataclasses.dataclass(frozen=True)
class Pair:
    x: torch.Tensor
    count: int


@dataclasses.dataclass
class Nested:
    pair: Pair
    more: list


class Named(NamedTuple):
    x: torch.Tensor
    count: int


class Layer(nn.Module):
    """Gives what it got, with a linear layer on every tensor."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, given):
        if isinstance(given, torch.Tensor):
            assert given.dtype == torch.bfloat16
            return self.linear(given)
        if isinstance(given, Nested):
            return Nested(self(given.pair), [self.linear(x) for x in given.more])
        return type(given)(self.linear(given.x), given.count)

    def features(self, x, *, scale):
        assert x.dtype == scale.dtype == torch.bfloat16
        return self.linear(x) * scale


X = torch.ones(2, 4)


@pytest.mark.parametrize(
    "given", [X, Pair(X, 3), Nested(Pair(X, 3), [X]), Named(X, 3)], ids=lambda v: type(v).__name__
)
def test_tensors_are_cast_wherever_they_lie(ranks, given):
    def body(rank):
        layer = fully_shard(Layer(), mesh=init_device_mesh("cpu", (2,)), mp_policy=LOW)
        out = layer(given)
        assert type(out) is type(given)
        tensors = [out] if isinstance(out, torch.Tensor) else []
        tensors += [value for value in (getattr(out, "x", None),) if value is not None]
        tensors += [out.pair.x, *out.more] if isinstance(out, Nested) else []
        assert tensors and all(tensor.dtype == torch.float64 for tensor in tensors)
        sum(tensor.sum() for tensor in tensors).backward()
        assert layer.linear.weight.grad.dtype == torch.float32

    ranks(2, body)
    assert X.dtype == torch.float32  # what was given stays as it is


def test_methods_are_cast_as_forward_is(ranks):
    def body(rank):
        layer = fully_shard(Layer(), mesh=init_device_mesh("cpu", (2,)), mp_policy=LOW)
        register_fsdp_forward_method(layer, "features")
        assert layer.features(X, scale=X).dtype == torch.float64
        register_fsdp_forward_method(nn.Linear(2, 2), "no_such_method")  # no FSDPModule: nothing to do

    ranks(2, body)
