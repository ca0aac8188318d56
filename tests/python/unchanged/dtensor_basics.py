"""Tensors of torch.distributed.tensor: made, redistributed, computed with and differentiated."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.tensor as dt
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module
from torch.distributed.tensor.experimental import implicit_replication, local_map
from torch.distributed.tensor.placement_types import Placement

mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
rank, results = dist.get_rank(), {}
whole = torch.arange(24.0, dtype=torch.float64).view(4, 6) / 5

x = dt.distribute_tensor(whole, mesh, [Shard(0)])
assert isinstance(x, torch.distributed.tensor.DTensor) and isinstance(x, dt.DTensor)
assert not isinstance(whole, DTensor) and isinstance(x.placements[0], Placement)
assert x.to_local().shape == (2, 6) and x.device_mesh == mesh
results["local"] = x.to_local()
results["columns"] = x.redistribute(placements=[Shard(1)]).to_local()
results["addends"] = DTensor.from_local(whole + rank, mesh, [Partial()]).full_tensor()
results["ones"] = torch.distributed.tensor.ones(3, 5, device_mesh=mesh, placements=[Shard(1)]).to_local()

weight = dt.distribute_tensor(whole.t().contiguous(), mesh, [Replicate()]).requires_grad_()
((x @ weight).softmax(-1) ** 2).sum().backward()
results["grad"] = weight.grad.full_tensor()
with implicit_replication():
    results["mixed"] = (x + whole[:1]).full_tensor()
rows = local_map(lambda t: t.cumsum(1), out_placements=[Shard(0)], device_mesh=mesh)
results["local_map"] = rows(x).full_tensor()

torch.manual_seed(3)
replicated = distribute_module(torch.nn.Linear(6, 2).double(), mesh)
results["module"] = replicated(x).full_tensor().detach()

print("DTensor of", DTensor.__module__)
torch.save(results, f"{sys.argv[1]}.{rank}")
dist.barrier()
dist.destroy_process_group()
