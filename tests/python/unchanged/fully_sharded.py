"""fully_shard with mixed precision off, training, clipping, and a checkpoint by torch.distributed.checkpoint."""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor


def make():
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 10), nn.GELU(), nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 3)).double()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mp_policy=MixedPrecisionPolicy(output_dtype=torch.float64))
    return fully_shard(model)


def train(model, optimizer, steps):
    for step in range(steps):
        torch.manual_seed(100 * step + rank)
        model(torch.randn(4, 6).double()).square().mean().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


dist.init_process_group("gloo")
rank, results = dist.get_rank(), {}
model = make()
assert isinstance(model, FSDPModule) and all(isinstance(p, DTensor) for p in model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
results["norm"] = train(model, optimizer, 3)

folder = f"{sys.argv[1]}.checkpoint"
state, optimizer_state = get_state_dict(model, optimizer)
dcp.save({"model": state, "optimizer": optimizer_state}, checkpoint_id=folder)
assert os.path.exists(os.path.join(folder, ".metadata"))
again = make()
optimizer = torch.optim.AdamW(again.parameters(), lr=0.1)
state, optimizer_state = get_state_dict(again, optimizer)
loaded = {"model": state, "optimizer": optimizer_state}
dcp.load(loaded, checkpoint_id=folder)
set_state_dict(again, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
results["norm again"] = train(again, optimizer, 2)
for name, value in again.state_dict().items():
    results[name] = value.full_tensor()
full = get_model_state_dict(again, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
results |= {f"full.{name}": value for name, value in full.items()}

print("DTensor of", DTensor.__module__)
torch.save(results, f"{sys.argv[1]}.{rank}")
dist.barrier()
dist.destroy_process_group()
