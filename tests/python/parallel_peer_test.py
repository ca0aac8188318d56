"""Programs that use torch.distributed.tensor.parallel as PyTorch's own tests do (parallelize_module,
styles, models, losses, together with fully_shard), on processes with Gloo: once as they are, and once
with their imports changed. Results, placements and the number of collectives must be equal.
"""

import pytest

pytest.importorskip("expecttest")  # PyTorch's own test models import it

DRIVER = """
import re
import torch
import torch.distributed as dist
import tessera
dist.init_process_group("gloo")
torch.set_num_threads(1)

def changed(text):
    text = re.sub(r"from torch\\.distributed\\.tensor\\b", "from tessera.compat", text)
    text = re.sub(r"from torch\\.distributed\\.", "from tessera.compat.", text)
    assert "from torch.distributed" not in text
    return text

def compare(got, expected):
    assert got.keys() == expected.keys(), (got.keys() ^ expected.keys())
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(
                got[name].detach(), value.detach(), rtol=1e-9, atol=1e-11,
                msg=lambda text, name=name: f"{{name}}: {{text}}")
        else:
            assert got[name] == value, (name, got[name], value)
    print(len(expected), "results are equal")

program = {program!r}
theirs = {{"order": "plan first"}}
exec(program, theirs)
for order in {orders!r}:
    ours = {{"order": order}}
    exec(changed(program), ours)
    assert theirs["parallelize_module"] is not ours["parallelize_module"]
    compare(ours["results"], theirs["results"])
dist.destroy_process_group()
"""

IMPORTS = """
import copy
import warnings
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel, ParallelStyle, PrepareModuleInput, PrepareModuleInputOutput,
    PrepareModuleOutput, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module,
)
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.distributed.tensor.parallel.input_reshard import input_reshard
from torch.distributed.tensor.parallel.loss import loss_parallel as loss_parallel_of_module
from torch.distributed.tensor.parallel.style import ColwiseParallel as colwise_of_module
import torch.testing._internal.distributed._tensor.common_dtensor as peer

assert loss_parallel_of_module is loss_parallel and colwise_of_module is ColwiseParallel
results = {}

def numbers(*shape):
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count, dtype=torch.float64) * 0.7).sin().view(shape)

def whole(tensor):
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

def placed(tensor):
    if not isinstance(tensor, DTensor):
        return "plain"
    return [f"S{p.dim}" if p.is_shard() else "R" if p.is_replicate() else "P" for p in tensor.placements]

def keep(name, model, out, x=None):
    results[name + ".out"] = whole(out).detach().clone()
    results[name + ".out is"] = placed(out)
    for key, parameter in model.named_parameters():
        results[name + "." + key] = whole(parameter).detach().clone()
        results[name + "." + key + " is"] = placed(parameter)
        if parameter.grad is not None:
            results[name + "." + key + ".grad"] = whole(parameter.grad).clone()
    if x is not None:
        results[name + ".x.grad"] = whole(x.grad).clone()
"""

STYLES = IMPORTS + """
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
rank = mesh.get_local_rank()

def run(name, model, plan, *inputs, count=True):
    torch.manual_seed(3)
    for parameter in model.parameters():
        parameter.data = numbers(*parameter.shape)
    parallelize_module(model, mesh, plan)
    given = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    with CommDebugMode() as forward:
        out = model(*given)
    with CommDebugMode() as backward:
        whole_out = out if not isinstance(out, DTensor) else out.to_local()
        whole_out.square().sum().backward()
    if count:
        results[name + " sends"] = (forward.get_total_counts(), backward.get_total_counts())
    keep(name, model, out, given[0] if given[0].requires_grad else None)

x = numbers(4, 10)
part = x.chunk(2)[rank]
both = {"net1": ColwiseParallel(), "net2": RowwiseParallel()}
run("mlp", peer.MLPModule("cpu").double(), both, x)
run("mlp by patterns", peer.MLPModule("cpu").double(), {"net[1]": ColwiseParallel(), "*2": RowwiseParallel()}, x)
run("mlp stacked", peer.MLPStacked("cpu").double(),
    {"layers.*.net1": ColwiseParallel(), "layers.*.net2": RowwiseParallel()}, x)
run("mlp of one style", peer.MLPModule("cpu").double(), {"net*": ColwiseParallel(output_layouts=Replicate())}, x)
sequence = {"net1": ColwiseParallel(input_layouts=Shard(0)), "net2": RowwiseParallel(output_layouts=Shard(0))}
# This library counts the message that carries the sizes of uneven parts.
run("mlp by sequence", peer.MLPModule("cpu").double(), sequence, part, count=False)

run("colwise", nn.Linear(10, 6).double(), ColwiseParallel(), x)
run("colwise to all", nn.Linear(10, 6).double(), ColwiseParallel(output_layouts=Replicate()), x)
run("colwise of rows", nn.Linear(10, 6).double(), ColwiseParallel(input_layouts=Shard(0)), part, count=False)
run("colwise, sharded result", nn.Linear(10, 6).double(), ColwiseParallel(use_local_output=False), x)
run("rowwise", nn.Linear(10, 6).double(), RowwiseParallel(), x.chunk(2, 1)[rank])
run("rowwise of all", nn.Linear(10, 6).double(), RowwiseParallel(input_layouts=Replicate()), x)
run("rowwise to rows", nn.Linear(10, 6).double(), RowwiseParallel(output_layouts=Shard(0)), x.chunk(2, 1)[rank])
tokens = torch.tensor([[0, 5, 2], [7, 7, 1]])
run("embedding by features", nn.Embedding(8, 6).double(), ColwiseParallel(), tokens)
run("embedding by rows", nn.Embedding(8, 6).double(), RowwiseParallel(input_layouts=Replicate()), tokens)
run("embedding to all", nn.Embedding(8, 6).double(), ColwiseParallel(output_layouts=Replicate()), tokens)

places = numbers(2, 6, 4)
for name, norm in (("layer", nn.LayerNorm(4)), ("rms", nn.RMSNorm(4)), ("dropout", nn.Dropout(0.0)),
                   ("python rms", peer.RMSNormPython(4))):
    run("sequence " + name, norm.double(), SequenceParallel(), places.chunk(2, 1)[rank], count=False)
run("sequence local", nn.LayerNorm(4).double(), SequenceParallel(use_local_output=True), places.chunk(2, 1)[rank], count=False)
run("sequence dim 0", nn.LayerNorm(4).double(), SequenceParallel(sequence_dim=0), places.chunk(2)[rank], count=False)

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4).double()
    def forward(self, x, y=None, *, scale=None):
        out = self.linear(whole(x)) if not isinstance(x, DTensor) else whole(x).matmul(self.linear.weight.t())
        return out if y is None else out + whole(y) if scale is None else out * whole(scale)

small = numbers(4, 4)
rows = small.chunk(2)[rank]
run("inputs", Two(), PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate(),
                                        use_local_output=True), rows, count=False)
run("two inputs", Two(), PrepareModuleInput(input_layouts=(Shard(0), None),
                                            desired_input_layouts=(Replicate(), None),
                                            use_local_output=True), rows, small, count=False)
run("outputs", Two(), PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0)), small)
run("in and out", Two(), PrepareModuleInputOutput(
    input_layouts=Shard(0), desired_input_layouts=Replicate(), use_local_input=True,
    output_layouts=Replicate(), desired_output_layouts=Shard(1)), rows, count=False)

named = parallelize_module(Two(), mesh, PrepareModuleInput(
    input_kwarg_layouts={"scale": Shard(0)}, desired_input_kwarg_layouts={"scale": Replicate()},
    use_local_output=True))
named.linear.weight.data = numbers(4, 4)
named.linear.bias.data = numbers(4)
results["by name"] = named(small, small, scale=rows)

# What is wrong, and what is a warning only.
for name, wrong in {
    "no layouts": lambda: PrepareModuleInput(input_layouts=Shard(0)),
    "lengths": lambda: PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=(None, None)),
    "lengths out": lambda: PrepareModuleOutput(output_layouts=(Shard(0),), desired_output_layouts=(None, None)),
    "norm": lambda: parallelize_module(nn.LayerNorm(4), mesh, ColwiseParallel()),
    "style": lambda: parallelize_module(nn.Linear(4, 4), mesh, {"": "colwise of what?"}),
}.items():
    try:
        wrong()
        results["wrong " + name] = "nothing"
    except Exception as error:
        results["wrong " + name] = isinstance(error, (AssertionError, NotImplementedError, TypeError, RuntimeError))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    untouched = parallelize_module(peer.MLPModule("cpu"), mesh, {"nothing": ColwiseParallel()})
    parallelize_module(untouched, mesh, None)
results["warnings"] = sum("nothing" in str(w.message) or "parallelize_plan" in str(w.message) for w in seen)
results["untouched"] = [placed(p) for p in untouched.parameters()]
with mesh:
    entered = parallelize_module(peer.MLPModule("cpu"), parallelize_plan=both)
results["entered"] = [placed(p) for p in entered.parameters()]
results["repr"] = [repr(s).split("(")[0] for s in (*both.values(), SequenceParallel())]

model = peer.MLPModule("cpu").double()
for parameter in model.parameters():
    parameter.data = numbers(*parameter.shape)
model = input_reshard(parallelize_module(model, mesh, both), mesh, 0)
given = x.clone().requires_grad_()
out = model(given)
out.square().sum().backward()
keep("input_reshard", model, out, given)
"""

MODELS = IMPORTS + """
for name in ("ColwiseParallel", "RowwiseParallel", "SequenceParallel", "PrepareModuleInput",
             "parallelize_module", "Shard", "Replicate", "DTensor"):
    setattr(peer, name, globals()[name])
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))

def train(name, model, tokens, steps, loss_of):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        out = loss_of(model, tokens)
        optimizer.step()
    keep(name, model, out)

def squares(model, tokens):
    loss = whole(model(tokens)).square().mean()
    loss.backward()
    return loss

tokens = torch.arange(16).view(2, 8) % 13
for by_sequence in (False, True):
    for local in (False, True):
        for tied in (False, True):
            torch.manual_seed(5)
            args = peer.ModelArgs(n_layers=2, vocab_size=14, max_seq_len=8, dim=16, n_heads=4,
                                  dropout_p=0.0, weight_tying=tied)
            model = peer.Transformer(args).double()
            # PyTorch has no rule for attention on the CPU, so there it gets local tensors always.
            has_rule = not DTensor.__module__.startswith("torch.")
            peer.Transformer.parallelize(model, mesh, by_sequence, local or not has_rule)
            train(f"transformer {by_sequence} {local} {tied}", model, tokens, 3, squares)

def classes(model, tokens):
    with loss_parallel():
        loss = F.cross_entropy(model(numbers(6, 8)), tokens.flatten()[:6] % 10, **options)
        (loss if loss.dim() == 0 else loss.sum()).backward()
    return loss

for name, options in {
    "mean": {}, "sum": {"reduction": "sum"}, "none": {"reduction": "none"},
    "ignored": {"ignore_index": 3}, "weighted": {"weight": numbers(10).abs() + 0.1},
}.items():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 10)).double()
    parallelize_module(model, mesh, {"2": ColwiseParallel(use_local_output=False)})
    train("loss " + name, model, tokens, 3, classes)
results = {name: value for name, value in results.items() if not name.endswith(" is")}
"""

TWO_DIMS = IMPORTS + """
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

def shard(model):
    for layer in model:
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])

torch.manual_seed(2)
model = nn.Sequential(peer.MLPModule("cpu"), peer.MLPModule("cpu")).double()
plan = {"*.net1": ColwiseParallel(), "*.net2": RowwiseParallel()}
if order == "fully_shard first":
    shard(model)
parallelize_module(model, mesh["tp"], plan)
if order == "plan first":
    shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
x = numbers(4, 10).chunk(2)[mesh.get_local_rank("dp")]
for step in range(3):
    optimizer.zero_grad()
    out = model(x)
    out.square().mean().backward()
    optimizer.step()
results["loss"] = out.square().mean()
for name, parameter in model.named_parameters():
    results[name] = whole(parameter.detach())
    results[name + " grad"] = whole(parameter.grad)
    results[name + " is"] = (tuple(parameter.device_mesh.mesh_dim_names), tuple(parameter.to_local().shape))
for name, value in model.state_dict().items():
    results["state " + name] = whole(value)
"""

WITH_DDP = IMPORTS + """
from torch.nn.parallel import DistributedDataParallel
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

torch.manual_seed(2)
model = nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 6), nn.LayerNorm(6),
                      nn.Linear(6, 10)).double()
parallelize_module(model, mesh["tp"], {
    "0": RowwiseParallel(input_layouts=Replicate()), "1": ColwiseParallel(), "3": RowwiseParallel(),
    "5": ColwiseParallel(output_layouts=Replicate())})
_pre_dp_module_transform(model)
results["shapes"] = {name: tuple(p.shape) for name, p in model.named_parameters()}
replica = DistributedDataParallel(model, process_group=mesh["dp"].get_group())
optimizer = torch.optim.AdamW(replica.parameters(), lr=0.1)
tokens = (torch.arange(12).view(4, 3) * 7 % 10).chunk(2)[mesh.get_local_rank("dp")]
for step in range(3):
    optimizer.zero_grad()
    loss = F.cross_entropy(replica(tokens).flatten(0, 1), tokens.flatten().flip(0))
    loss.backward()
    results[f"loss {step}"] = loss.detach()
    for name, parameter in optimizer_parameters if step else ():
        results[f"{name} {step}"] = parameter.grad.clone()
    optimizer_parameters = list(zip(results["shapes"], optimizer.param_groups[0]["params"]))
    optimizer.step()
for name, parameter in optimizer_parameters:
    results[name] = parameter.detach().clone()
"""


def driver(program, orders=("plan first",)):
    return DRIVER.format(program=program, orders=orders)


def test_styles_do_as_those_of_pytorch(torchrun):
    assert torchrun(2, driver(STYLES)).count("results are equal") == 2


def test_models_and_losses_train_as_with_pytorch(torchrun):
    assert torchrun(2, driver(MODELS)).count("results are equal") == 2


def test_two_dims_train_as_with_pytorch_in_either_order(torchrun):
    """PyTorch refuses fully_shard first; the results must be those of its only order."""
    out = torchrun(4, driver(TWO_DIMS, ("plan first", "fully_shard first")))
    assert out.count("results are equal") == 8


def test_ddp_over_another_axis_trains_as_with_pytorch(torchrun):
    assert torchrun(4, driver(WITH_DDP)).count("results are equal") == 4
