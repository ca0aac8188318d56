"""What a rank gets from a module with a style is its part of the promised layout, also where an op computes
another one: with fewer features, channels or positions than ranks, and with channels in parts."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tessera
from tessera import ColwiseParallel, Replicate, RowwiseParallel, SequenceParallel


def numbers(*shape, step=0.7):
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).mul(step).add(0.1).sin().view(shape)


def filled(module):
    with torch.no_grad():
        for i, parameter in enumerate(module.double().parameters()):
            parameter.copy_(numbers(*parameter.shape, step=0.37 + 0.01 * i))
    return module


def part(tensor, dim, ranks, rank, parts=1):
    """This rank's part of each of `parts` pieces, as torch.chunk splits them."""
    out = []
    for piece in tensor.chunk(parts, dim):
        size = piece.size(dim)
        begin = min(size, -(-size // ranks) * rank)
        out.append(piece.narrow(dim, begin, min(size - begin, -(-size // ranks))))
    return torch.cat(out, dim)


def gradients(module, x):
    out = {name: tessera.full_tensor(p.grad) if tessera.is_dtensor(p.grad) else p.grad
           for name, p in module.named_parameters()}
    if x.requires_grad:
        out["input"] = x.grad
    return out


def check(module, x, style, ranks, *, output, parts=1, input_dim=None, local=True):
    """`output` is the dim of which a rank gets its part, None: it gets the whole result; `input_dim` the same
    of the input."""
    filled(module)
    whole = copy.deepcopy(module)
    whole_x = x.clone().requires_grad_(x.is_floating_point())
    want = whole(whole_x)
    want.square().sum().backward()
    want_grads = gradients(whole, whole_x)

    def body(rank):
        mine = copy.deepcopy(module)
        tessera.parallelize_module(mine, tessera.init_device_mesh(f"tp={ranks}"), copy.deepcopy(style))
        own_x = x if input_dim is None else part(x, input_dim, ranks, rank)
        own_x = own_x.clone().requires_grad_(x.is_floating_point())
        y = mine(own_x)
        own_y = y if local else tessera.to_local(y)
        expected = want if output is None else part(want, output, ranks, rank, parts)
        assert not tessera.is_dtensor(own_y)
        torch.testing.assert_close(own_y, expected)
        y.square().sum().backward()
        for name, grad in gradients(mine, own_x).items():
            expected = want_grads[name]
            if name == "input" and input_dim is not None:
                expected = part(expected, input_dim, ranks, rank)
            torch.testing.assert_close(grad, expected, msg=lambda text, name=name: f"{name}: {text}")
        return True

    assert all(tessera.run_ranks(ranks, body))


TOKENS = torch.tensor([[1, 0, 2], [0, 2, 2]])
#: Of (inputs, outputs): the module, its input, and the dim of its features.
KINDS = {
    "linear": (nn.Linear, lambda n: numbers(2, 3, n), -1),
    "embedding": (nn.Embedding, lambda n: TOKENS % n, -1),
    "bag": (lambda i, o: nn.EmbeddingBag(i, o, mode="mean"), lambda n: TOKENS % n, -1),
    "conv1d": (lambda i, o: nn.Conv1d(i, o, 3, padding=1), lambda n: numbers(2, n, 4), -2),
    "conv1d without a batch": (lambda i, o: nn.Conv1d(i, o, 2, bias=False), lambda n: numbers(n, 4), -2),
    "conv2d": (lambda i, o: nn.Conv2d(i, o, 2), lambda n: numbers(2, n, 3, 2), -3),
    "conv3d": (lambda i, o: nn.Conv3d(i, o, 1), lambda n: numbers(1, n, 2, 1, 2), -4),
    "conv_transpose1d": (lambda i, o: nn.ConvTranspose1d(i, o, 2), lambda n: numbers(2, n, 3), -2),
    "conv_transpose2d": (lambda i, o: nn.ConvTranspose2d(i, o, 2), lambda n: numbers(2, n, 2, 2), -3),
}
# 1, 2, 3 and 5 features over 4 ranks leave at least one without any.
FEATURES = [(2, 1), (3, 1), (3, 2), (3, 4), (4, 1), (4, 2), (4, 3), (4, 5), (4, 8)]


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_colwise_rank_gets_its_own_outputs_also_if_others_get_none(kind, local):
    make, inputs, dim = KINDS[kind]
    for ranks, features in FEATURES:
        style = ColwiseParallel(use_local_output=local)
        check(make(3, features), inputs(3), style, ranks, output=dim, local=local)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rowwise_rank_gets_the_whole_result_also_if_it_has_no_inputs(kind):
    make, inputs, dim = KINDS[kind]
    looks_up = "embedding" in kind or kind == "bag"
    for ranks, features in FEATURES:
        check(make(features, 3), inputs(features), RowwiseParallel(), ranks, output=None,
              input_dim=None if looks_up else dim)
        check(make(features, 3), inputs(features), RowwiseParallel(input_layouts=Replicate()), ranks,
              output=None)


@pytest.mark.parametrize("kind", ["linear", "embedding", "conv1d", "conv_transpose2d"])
@pytest.mark.parametrize("parts", [2, 3])
def test_outputs_in_parts_are_a_ranks_slice_of_each_part(kind, parts):
    make, inputs, dim = KINDS[kind]
    for ranks, features in [(2, 2), (2, 1), (2, 5), (4, 4), (4, 2), (4, 5)]:
        check(make(3, parts * features), inputs(3), ColwiseParallel(parts=parts), ranks, output=dim, parts=parts)


class Gated(nn.Module):
    def __init__(self, features, moves):
        super().__init__()
        self.moves = moves
        self.weight = nn.Parameter(torch.empty(2 * features, 3))

    def forward(self, x):
        gate, up = F.linear(x, self.weight).chunk(2, -1)
        return (gate * up).transpose(0, 1) if self.moves else gate * up


@pytest.mark.parametrize("moves", [False, True])
def test_a_module_that_combines_its_parts_gives_a_ranks_slice_of_the_combination(moves):
    for ranks, features in [(2, 2), (2, 1), (4, 2), (4, 5)]:
        check(Gated(features, moves), numbers(4, 3), ColwiseParallel(parts=2), ranks, output=0 if moves else 1)


@pytest.mark.parametrize("kind", ["conv1d", "conv2d", "conv3d", "conv_transpose2d"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_pair_of_convolutions_with_few_channels_between(kind, ranks):
    make, inputs, _ = KINDS[kind]
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    for channels in (1, 2, 3, 5):
        model = nn.Sequential(make(3, channels), nn.ReLU(), make(channels, 2))
        check(model, torch.cat([inputs(3)] * 2, -1), plan, ranks, output=None)


POSITION_WISE = {
    "layer norm": (lambda: nn.LayerNorm(4), lambda n: numbers(2, n, 4), 1),
    "rms norm": (lambda: nn.RMSNorm(4), lambda n: numbers(2, n, 4), 1),
    "dropout": (lambda: nn.Dropout(0.0), lambda n: numbers(2, n, 4), -2),
    "linear": (lambda: nn.Linear(4, 3), lambda n: numbers(2, n, 4), 1),
    "convolution": (lambda: nn.Conv1d(3, 4, 1), lambda n: numbers(2, 3, n), 2),
    "upsampling": (lambda: nn.Upsample(scale_factor=2), lambda n: numbers(2, n, 4), 1),
    "padding": (lambda: nn.ReflectionPad1d(1), lambda n: numbers(2, n, 4), 1),
    "pooling": (lambda: nn.AvgPool2d(2), lambda n: numbers(2, n, 4, 4), 1),
}


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("kind", POSITION_WISE)
def test_a_rank_gets_its_own_positions_also_if_others_get_none(kind, local):
    make, inputs, dim = POSITION_WISE[kind]
    for ranks, length in FEATURES:
        style = SequenceParallel(sequence_dim=dim, use_local_output=local)
        check(make(), inputs(length), style, ranks, output=dim, input_dim=dim, local=local)


def test_a_result_without_the_positions_keeps_its_layout():
    class Mean(nn.Module):
        def forward(self, x):
            return x.mean(1)

    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        module = tessera.parallelize_module(Mean(), mesh, SequenceParallel())
        x = numbers(2, 4, 5)
        y = module(x.chunk(2, 1)[rank])
        torch.testing.assert_close(tessera.full_tensor(y), x.mean(1))
        return str(tessera.placements(y)[0])

    assert "P" in tessera.run_ranks(2, body)[0]


def test_an_output_layout_in_parts_may_be_counted_from_the_end():
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        layer = filled(nn.Linear(3, 8))
        whole = copy.deepcopy(layer)
        style = ColwiseParallel(output_layouts=tessera.StridedShard(-1, 2))
        tessera.parallelize_module(layer, mesh, style)
        x = numbers(2, 3)
        torch.testing.assert_close(layer(x), part(whole(x), 1, 2, rank, 2))
        return True

    assert all(tessera.run_ranks(2, body))


@pytest.mark.parametrize("length", [1, 2, 3, 5])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_prepared_inputs_and_outputs_are_as_desired_also_if_some_ranks_have_none(ranks, length):
    x = numbers(length, 3)

    class Halves(nn.Module):
        def forward(self, given):
            self.given = given
            return given * 2

    def body(rank):
        mesh = tessera.init_device_mesh(f"tp={ranks}")
        rows, columns = tessera.Shard(0), tessera.Shard(1)
        module = tessera.parallelize_module(Halves(), mesh, tessera.PrepareModuleInputOutput(
            input_layouts=rows, desired_input_layouts=columns, use_local_input=True,
            output_layouts=columns, desired_output_layouts=rows))
        y = module(part(x, 0, ranks, rank))
        torch.testing.assert_close(module.given, part(x, 1, ranks, rank))
        torch.testing.assert_close(y, part(x, 0, ranks, rank) * 2)
        return True

    assert all(tessera.run_ranks(ranks, body))
