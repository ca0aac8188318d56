"""Ops that only exported programs contain, since libtorch takes them apart elsewhere: every choice of shardings of
their inputs and results gives what the whole program gives."""

import itertools
import random

import pytest
import torch
from torch.nn import functional as F

import tessera

CASES = {
    "conv1d": (F.conv1d, (2, 4, 8), (6, 4, 3)),
    "conv1d without a batch": (F.conv1d, (4, 4), (6, 4, 3)),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (2, 4, 4, 4), (6, 4, 3, 3)),
    "conv2d without a batch": (lambda x, w: F.conv2d(x, w, padding=1), (4, 4, 8), (6, 4, 3, 3)),
    "conv2d of a named padding": (lambda x, w: F.conv2d(x, w, padding="same"), (4, 4, 8), (6, 4, 3, 3)),
    "conv2d in groups": (lambda x, w: F.conv2d(x, w, groups=2), (2, 4, 4, 4), (6, 2, 3, 3)),
    "conv2d of each channel": (lambda x, w: F.conv2d(x, w, groups=4), (4, 4, 8), (8, 1, 3, 3)),
    "conv3d": (F.conv3d, (2, 4, 4, 4, 4), (2, 4, 3, 3, 3)),
    "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), (2, 4, 4), (4, 6, 4)),
    "conv_transpose2d": (F.conv_transpose2d, (2, 4, 4, 4), (4, 6, 3, 3)),
    "conv_transpose2d without a batch": (F.conv_transpose2d, (4, 4, 4), (4, 6, 3, 3)),
    "conv_transpose2d in groups": (lambda x, w: F.conv_transpose2d(x, w, groups=2), (2, 4, 4, 4), (4, 3, 3, 3)),
    "max_pool1d": (lambda x: F.max_pool1d(x, 3, 1, 1), (4, 8)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 3, 1, 1), (2, 4, 4, 4)),
    "max_pool2d without a batch": (lambda x: F.max_pool2d(x, 3, 1, 1), (4, 4, 4)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 3, 1, 1), (4, 4, 4, 4)),
    "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 1, 1), (4, 8)),
    "adaptive_avg_pool1d": (lambda x: F.adaptive_avg_pool1d(x, 4), (4, 6)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (2, 4, 4, 4)),
    "interpolate to a size": (lambda x: F.interpolate(x, size=5, mode="nearest"), (2, 4, 4)),
    "prelu": (F.prelu, (2, 4, 6), (4,)),
    "prelu of one number": (lambda x, w: F.prelu(x, w[:1]), (4, 6), (4,)),
    "bilinear": (lambda x, w: F.bilinear(x, x + 1, w), (4, 6), (8, 6, 6)),
    "outer": (torch.outer, (4,), (6,)),
    "movedim": (lambda x: torch.movedim(x, 0, 2), (2, 4, 6)),
    "broadcast_to": (lambda x: torch.broadcast_to(x, (4, 2, 6)), (2, 6)),
    "multiply": (torch.multiply, (4, 6), (4, 6)),
    "divide": (lambda x, w: torch.divide(x, w + 8, rounding_mode="floor"), (4, 6), (6,)),
    "concat": (lambda x, w: torch.concat([x, w], 1), (4, 6), (4, 2)),
    "clip": (lambda x: torch.clip(x, -0.5, 0.5), (4, 6)),
    "layer_norm": (lambda x: F.layer_norm(x, (6,)), (4, 2, 6)),
    "group_norm": (lambda x: F.group_norm(x, 2), (2, 4, 6)),
    "batch_norm": (lambda x, w: F.batch_norm(x, w, w * w + 1), (2, 4, 6), (4,)),
    "softmax": (lambda x: x.softmax(1), (4, 6)),
    "attention": (F.scaled_dot_product_attention, (2, 4, 6, 8), (2, 4, 6, 8), (2, 4, 6, 8)),
    "causal attention": (
        lambda x, w: F.scaled_dot_product_attention(x, w, w, is_causal=True),
        (2, 4, 6, 8),
        (2, 4, 6, 8),
    ),
    "attention without a batch": (F.scaled_dot_product_attention, (4, 6, 8), (4, 6, 8), (4, 6, 8)),
    "attention with shared heads": (
        lambda x, w: F.scaled_dot_product_attention(x, w, w, enable_gqa=True),
        (2, 4, 6, 8),
        (2, 2, 6, 8),
    ),
    "matrix by vector": (torch.matmul, (2, 4, 6), (6,)),
    "vector by matrices": (torch.matmul, (4,), (2, 4, 6)),
    "broadcast matrices": (torch.matmul, (2, 1, 4, 6), (4, 6, 2)),
    "chunk": (lambda x: x.chunk(3, 1)[1], (4, 8)),
    "flatten": (lambda x: x.flatten(1), (4, 2, 6)),
    "unflatten": (lambda x: x.unflatten(1, (2, 4)), (4, 8)),
    "repeat_interleave": (lambda x: x.repeat_interleave(2, 0), (4, 6)),
    "reflecting pad": (lambda x: F.pad(x, (2, 1), mode="reflect"), (2, 4, 6)),
    "constant pad": (lambda x: F.pad(x, (2, 1, 0, 3), value=3.0), (4, 6)),
    "where": (lambda x: torch.where(x > 0, x, 2.0), (4, 6)),
    "einsum": (lambda x, w: torch.einsum("bij,bkj->bki", x, w), (2, 4, 6), (2, 8, 6)),
    "complex product": (lambda x, w: torch.complex(x, x + 1) @ torch.complex(w, w - 1), (4, 6), (6, 8)),
}


class Op(torch.nn.Module):
    def __init__(self, function, count):
        super().__init__()
        self.function = function
        self.forward = (self.one, self.two, self.three)[count - 1]

    def one(self, x):
        return self.function(x)

    def two(self, x, w):
        return self.function(x, w)

    def three(self, x, w, v):
        return self.function(x, w, v)


def exported(name):
    function, *shapes = CASES[name]
    torch.manual_seed(0)
    inputs = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
    return torch.export.export(Op(function, len(inputs)), tuple(inputs)), inputs


@pytest.mark.parametrize("name", CASES)
def test_every_sharding_of_an_op_gives_the_whole_result(tmp_path, name):
    whole, inputs = exported(name)
    torch.export.save(whole, tmp_path / "model.pt2")
    program = tessera.load_program(tmp_path / "model.pt2")
    (expected,) = program.run(inputs)
    (result,) = program.output_names
    values = dict(zip(program.input_names, inputs, strict=True), **{result: expected})
    choices = [["R"] + [f"S{d}" for d, size in enumerate(t.shape) if size > 1] for t in values.values()]
    every = list(itertools.product(*choices))
    chosen = random.Random(0).sample(every, min(len(every), 16))
    for number, placements in enumerate(chosen):
        pinned = dict(zip(values, placements, strict=True))
        plan = {"outputs": {result: pinned.pop(result)}, "inputs": pinned}
        folder = tmp_path / str(number)
        tessera.shard_program(tmp_path / "model.pt2", "tp=2", plan, directory=folder)
        for (found,) in tessera.run_ranks(2, lambda _rank, at=folder: tessera.load_sharded_program(at).run(inputs)):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10, msg=lambda m, p=plan: f"{p}: {m}")


@pytest.mark.parametrize(
    ("name", "inputs", "output", "messages"),
    [
        ("conv2d in groups", {"x": "S1", "w": "S0"}, "S1", 0),
        ("conv2d of each channel", {"x": "S0", "w": "S0"}, "S0", 0),
        ("conv_transpose1d", {"w": "S1"}, "S1", 0),
        ("conv_transpose2d without a batch", {"x": "S0", "w": "S0"}, "R", 1),
        ("conv_transpose2d in groups", {"x": "S1", "w": "S0"}, "S1", 0),
        ("max_pool3d", {"x": "S0"}, "S0", 0),
        ("interpolate", {"x": "S1"}, "S1", 0),
        ("prelu", {"x": "S1", "w": "S0"}, "S1", 0),
        ("bilinear", {"w": "S0"}, "S1", 0),
        ("outer", {"x": "S0"}, "S0", 0),
        ("movedim", {"x": "S0"}, "S2", 0),
        ("broadcast_to", {"x": "S0"}, "S1", 0),
        ("divide", {"x": "S1", "w": "S0"}, "S1", 0),
        ("concat", {"x": "S0", "w": "S0"}, "S0", 0),
        ("complex product", {"x": "S1", "w": "S0"}, "R", 1),
    ],
)
def test_shardings_that_an_op_keeps_need_no_messages(name, inputs, output, messages):
    plan = {"inputs": inputs, "outputs": {"output": output}}
    local = tessera.tensor_parallel_transformation(exported(name)[0], "tp=2", plan, rank=0)
    collectives = [str(n.target) for n in local.graph.nodes if "_c10d_functional" in str(n.target)]
    assert sum("wait_tensor" not in one for one in collectives) == messages


class UpAndDown(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.ConvTranspose2d(4, 8, 2, 2), torch.nn.Conv2d(8, 4, 2, 2)

    def forward(self, x):
        return self.down(self.up(x).relu())


@pytest.mark.parametrize("core", [False, True], ids=["raw", "core"])
def test_styles_of_transposed_convolutions_shard_the_dims_of_their_features(core):
    whole = torch.export.export(UpAndDown().double(), (torch.randn(2, 4, 3, 3).double(),))
    whole = whole.run_decompositions() if core else whole
    plan = {"up": "colwise", "down": "rowwise"}
    local = tessera.tensor_parallel_transformation(whole, "tp=2", plan, rank=0)
    assert local.state_dict["up.weight"].shape == (4, 4, 2, 2)
    assert local.state_dict["down.weight"].shape == (4, 4, 2, 2)
    targets = [str(node.target) for node in local.graph.nodes]
    assert sum("all_reduce" in one for one in targets) == 1
    assert not any("all_gather" in one for one in targets)
