"""Stages of torch.distributed.pipelining that fully_shard shards: gradients of inputs and of weights apart."""

import pytest
import torch
from torch import nn
from torch.distributed.pipelining import _backward

import tessera


def split_backward(model, x, target):
    """A microbatch of a zero-bubble schedule: the gradient of the input first, those of the weights later.
    The function is asked for as PyTorch's stages ask for it."""
    loss = (model(x) - target).square().sum()
    (grad,), groups = _backward.stage_backward_input([loss], None, [x], model.parameters())
    _backward.stage_backward_weight(model.parameters(), groups)
    return grad


def whole_backward(model, x, target):
    (model(x) - target).square().sum().backward()
    return x.grad


def batches(rank):
    """Three microbatches of a rank: inputs and targets."""
    generator = torch.Generator().manual_seed(rank)
    drawn = torch.randn(3, 5, 10, generator=generator, dtype=torch.float64)
    return [(both[:, :6].clone().requires_grad_(), both[:, 6:]) for both in drawn]


@pytest.mark.parametrize("kind", ["fully_shard", "replicate", "one group", "accumulated"])
def test_gradients_of_weights_are_reduced(ranks, mlp, kind):
    plain = mlp()
    for rank in range(2):
        for x, target in batches(rank):
            whole_backward(plain, x, target)
    expected = [parameter.grad / 2 for parameter in plain.parameters()]

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = mlp()
        if kind == "fully_shard":
            tessera.fully_shard(model[0], mesh, reshard_after_forward=False)
            tessera.fully_shard(model[2], mesh)
        elif kind == "replicate":
            tessera.replicate(model, mesh)
        else:
            tessera.fully_shard(model, mesh)
        seen = []
        model[0].weight.register_hook(lambda grad: seen.append(grad.shape))
        for i, (x, target) in enumerate(batches(rank)):
            if kind == "accumulated":
                tessera.set_requires_gradient_sync(model, i == 2)
            of_input = whole_backward(mlp(), x.detach().requires_grad_(), target)
            torch.testing.assert_close(split_backward(model, x, target), of_input)
            if kind == "accumulated" and i < 2:
                assert model[0].weight.grad is None
        assert seen == [torch.Size([9, 6])] * 3
        for parameter, gradient in zip(model.parameters(), expected):
            assert tessera.is_dtensor(parameter.grad)
            torch.testing.assert_close(tessera.full_tensor(parameter.grad), gradient)

    ranks(2, body)


def test_parameters_outside_the_group_and_other_types(ranks, mlp):
    """Ignored parameters keep PyTorch's way, and gradients rest in the type of their parameter."""

    def body(rank):
        mesh = tessera.init_device_mesh("dp=2")
        model = mlp().float()
        policy = tessera.MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
        tessera.fully_shard(model[0], mesh, mp_policy=policy)
        tessera.fully_shard(model, mesh, ignored_params=[model[2].bias])
        reference = nn.Sequential(mlp()[0].bfloat16(), nn.Tanh(), mlp()[2].float())
        x, target = (t.detach().float() for t in batches(0)[0])
        split_backward(model, x.requires_grad_(), target)
        hidden = reference[1](reference[0](x.detach().bfloat16()).float())
        (reference[2](hidden) - target).square().sum().backward()
        for parameter, other in zip(model.parameters(), reference.parameters()):
            assert parameter.grad.dtype == torch.float32
            grad = tessera.full_tensor(parameter.grad) if tessera.is_dtensor(parameter) else parameter.grad
            torch.testing.assert_close(grad, other.grad.float(), rtol=0.05, atol=0.05)
        assert not tessera.is_dtensor(model[2].bias.grad)

    ranks(2, body)


def test_modules_without_groups_are_left_alone(mlp):
    model, reference = mlp(), mlp()
    x, target = batches(0)[0]
    torch.testing.assert_close(
        split_backward(model, x, target), whole_backward(reference, x.detach().requires_grad_(), target)
    )
    for parameter, other in zip(model.parameters(), reference.parameters()):
        torch.testing.assert_close(parameter.grad, other.grad)


ZERO_BUBBLE = """
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble

mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
group = mesh["pp"].get_group()
torch.manual_seed(0)
layers = [torch.nn.Linear(4, 4) for _ in range(4)]
data = torch.randn(2, 4, 2, 4)  # by rank of dp: four microbatches of a row, inputs and targets

def loss(found, target):
    return (found - target).square().sum()

reference = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
reference.load_state_dict(torch.nn.Sequential(*layers).state_dict())
for x, target in data.movedim(2, 1):
    (loss(reference(x), target) / 2).backward()

stages = []
for index in (mesh.get_local_rank("pp"), mesh.get_local_rank("pp") + 2):
    part = compat.fully_shard(torch.nn.Sequential(layers[index]), mesh=mesh["dp"])
    stages.append(PipelineStage(part, index, 4, torch.device("cpu"), group=group))
schedule = ScheduleInterleavedZeroBubble(stages, n_microbatches=4, loss_fn=loss, scale_grads=False)
x, target = data[mesh.get_local_rank("dp")].movedim(1, 0)
if mesh.get_local_rank("pp") == 0:
    schedule.step(x)
else:
    schedule.step(target=target, losses=[])
for stage in stages:
    found = stage.submod[0].weight.grad.full_tensor()
    torch.testing.assert_close(found, reference[stage.stage_index].weight.grad)
print("all right", flush=True)
"""


def test_a_zero_bubble_schedule(beside_torch):
    assert beside_torch(4, ZERO_BUBBLE).count("all right") == 4
