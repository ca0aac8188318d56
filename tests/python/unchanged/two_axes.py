"""Tensor parallelism and fully_shard on two axes, and DistributedDataParallel around a tensor-parallel module."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed._tensor import DTensor, DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel.api import parallelize_module
from torch.distributed.tensor.parallel.style import ColwiseParallel, RowwiseParallel
from torch.nn.parallel import DistributedDataParallel

PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def make():
    torch.manual_seed(9)
    return nn.Sequential(nn.Linear(5, 8), nn.SiLU(), nn.Linear(8, 3)).double()


def train(model, index):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for step in range(3):
        torch.manual_seed(10 * step + index)
        model(torch.randn(4, 5).double()).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


dist.init_process_group("gloo")
rank, results = dist.get_rank(), {}
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
assert isinstance(mesh, DeviceMesh) and isinstance(mesh["tp"], torch.distributed.DeviceMesh)
dp, tp = mesh["dp"], mesh["tp"]

model = fully_shard(parallelize_module(make(), tp, PLAN), mesh=dp)
assert len(model[0].weight.placements) == 2 and model[0].weight.to_local().shape == (2, 5)
train(model, dp.get_local_rank())
for name, value in model.state_dict().items():
    results["fsdp." + name] = value.full_tensor()

model = DistributedDataParallel(parallelize_module(make(), tp, PLAN), device_mesh=dp)
train(model, dp.get_local_rank())
results["ddp"] = model(torch.linspace(0, 1, 20, dtype=torch.float64).view(4, 5)).detach().square()

print("DTensor of", DTensor.__module__)
torch.save(results, f"{sys.argv[1]}.{rank}")
dist.barrier()
dist.destroy_process_group()
