"""A feed-forward network under parallelize_module, its communication counted by CommDebugMode."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)
        self.head = nn.Linear(8, 12, bias=False)

    def forward(self, x):
        return self.head(self.down(self.up(self.norm(x)).relu()))


mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
rank, results = dist.get_rank(), {}
torch.manual_seed(5)
model = FeedForward().double()
x, target = torch.randn(4, 6, 8).double(), torch.randint(12, (4, 6))
plan = {
    "norm": SequenceParallel(),
    "up": ColwiseParallel(input_layouts=Shard(1)),
    "down": RowwiseParallel(),
    "head": ColwiseParallel(use_local_output=False),
}
parallelize_module(model, mesh, plan)
assert isinstance(model.up.weight, DTensor) and model.up.weight.to_local().shape == (8, 8)

optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
comm = CommDebugMode()
for step in range(3):
    optimizer.zero_grad()
    with comm:
        logits = model(x.chunk(2, dim=1)[rank])
    with loss_parallel():
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        loss.backward()
    optimizer.step()
    results[f"loss{step}"] = loss.full_tensor().detach() if isinstance(loss, DTensor) else loss.detach()
counts = comm.get_comm_counts()
functional = torch.ops.c10d_functional
results["gathers"] = torch.tensor(counts[functional.all_gather_into_tensor])
results["reduces"] = torch.tensor(counts[functional.all_reduce])
for name, value in model.state_dict().items():
    results[name] = value.full_tensor()

print("DTensor of", DTensor.__module__)
torch.save(results, f"{sys.argv[1]}.{rank}")
dist.barrier()
dist.destroy_process_group()
