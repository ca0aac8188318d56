"""One program text, run with PyTorch's DTensor and FSDP2 and, its imports changed, with this library."""

PROGRAM = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import (
    DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor, zeros,
)
from torch.distributed.tensor.experimental import local_map

def partition(name, module, mesh):
    for key, parameter in list(module.named_parameters(recurse=False)):
        placements = [Shard(1) if name == "2" and parameter.dim() == 2 else Replicate()]
        if name == "0":
            placements = [Shard(0)]
        sharded = nn.Parameter(distribute_tensor(parameter, mesh, placements))
        module.register_parameter(key, sharded)

def make():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4)).double()

def steps(model, x, optimizer):
    for _ in range(3):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

results = {}
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
assert isinstance(mesh, DeviceMesh) and mesh.size() == 2 and mesh.ndim == 1
rank = mesh.get_local_rank()
x = torch.arange(12.0, dtype=torch.float64).view(2, 6) / 7

# Tensors
a = distribute_tensor(x, mesh, [Shard(0)])
assert isinstance(a, DTensor) and a.placements == (Shard(0),) and a.device_mesh.size() == 2
results["mm"] = (a @ a.t()).redistribute(placements=[Replicate()]).to_local()
results["sum"] = a.sum(0).full_tensor()
assert a.sum(0).placements[0].is_partial() or a.sum(0).placements[0].is_replicate()
b = DTensor.from_local(x + rank, mesh, [Partial()], run_check=False)
results["partial"] = (b * 2).redistribute(mesh, [Shard(1)]).full_tensor()
results["zeros"] = zeros(3, 2, device_mesh=mesh, placements=[Shard(0)]).full_tensor()
double = local_map(lambda t: t * 2, out_placements=[Shard(0)], in_placements=([Shard(0)],), device_mesh=mesh)
results["local_map"] = double(a).full_tensor()

# Tensor parallelism
model = distribute_module(
    make(), mesh, partition,
    input_fn=lambda module, inputs, mesh: distribute_tensor(inputs[0], mesh, [Replicate()]),
    output_fn=lambda module, out, mesh: out.redistribute(placements=[Replicate()]).to_local(),
)
steps(model, x, torch.optim.AdamW(model.parameters(), lr=0.1, foreach=True))
for name, parameter in model.named_parameters():
    assert isinstance(parameter, nn.Parameter) and isinstance(parameter, DTensor)
    results["tp." + name] = parameter.detach().full_tensor()

# Fully sharded
model = make()
for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh, reshard_after_forward=True)
fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy())
assert isinstance(model, FSDPModule)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
steps(model, x[rank : rank + 1], optimizer)
model.set_requires_gradient_sync(False)
model(x[rank : rank + 1]).sum().backward()
model.set_requires_gradient_sync(True)
model(x[rank : rank + 1]).sum().backward()
results["norm"] = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
if isinstance(results["norm"], DTensor):
    results["norm"] = results["norm"].full_tensor()
optimizer.step()
for name, value in model.state_dict().items():
    results["fsdp." + name] = value.full_tensor()
"""

DRIVER = """
import re
import torch
import torch.distributed as dist
import tessera
PROGRAM = {program!r}
dist.init_process_group("gloo")
torch.set_num_threads(1)
theirs, ours = {{}}, {{}}
exec(PROGRAM, theirs)
ours_text = re.sub(r"from torch\\.distributed\\.tensor\\b", "from tessera.compat", PROGRAM)
ours_text = re.sub(r"from torch\\.distributed\\.", "from tessera.compat.", ours_text)
assert "from torch.distributed" not in ours_text
exec(ours_text, ours)
assert theirs["DTensor"] is not ours["DTensor"]
assert theirs["results"].keys() == ours["results"].keys()
for name, value in theirs["results"].items():
    torch.testing.assert_close(
        ours["results"][name].detach(), value.detach(), rtol=1e-10, atol=1e-12,
        msg=lambda text, name=name: f"{{name}}: {{text}}",
    )
print(len(theirs["results"]), "results are equal")
dist.destroy_process_group()
"""


def test_a_program_gives_the_same_with_one_import_changed(torchrun):
    out = torchrun(2, DRIVER.format(program=PROGRAM))
    assert out.count("results are equal") == 2, out
