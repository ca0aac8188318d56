"""Programs for PyTorch's DTensor and FSDP2 run unchanged after tessera.compat.enable()."""

import importlib
import pathlib
import sys
import textwrap
import types

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor as torch_tensor

import tessera
from one_import_test import PROGRAM as ONE_IMPORT
from python_process import run_python, run_world, torchrun
from tessera import compat
from tessera.compat._enable import NAMES

UNCHANGED = pathlib.Path(__file__).with_name("unchanged")
WITH_RESULTS = """
import sys
import torch
import torch.distributed as dist
{program}
print("DTensor of", DTensor.__module__)
torch.save({{name: value.detach() for name, value in results.items()}}, f"{{sys.argv[1]}}.{{rank}}")
dist.destroy_process_group()
"""


@pytest.fixture
def enabled():
    compat.enable()
    yield
    compat.disable()


@pytest.mark.parametrize(
    ("program", "n"),
    [("dtensor_basics", 2), ("tensor_parallel", 2), ("fully_sharded", 2), ("two_axes", 4), ("language_model", 4),
     (None, 2)],
)
def test_an_unchanged_program_gives_what_it_gives_with_pytorch(program, n, tmp_path):
    file = tmp_path / "program.py"
    if program is None:
        file.write_text(WITH_RESULTS.format(program=ONE_IMPORT), encoding="utf-8")
    else:
        file = UNCHANGED / f"{program}.py"
    theirs = run_world(n, file, tmp_path / "theirs")
    ours = run_world(n, "-m", "tessera.compat", file, tmp_path / "ours")
    assert theirs.count("DTensor of torch.distributed.tensor") == n, theirs
    assert ours.count("DTensor of tessera.compat._api") == n, ours
    for rank in range(n):
        expected = torch.load(tmp_path / f"theirs.{rank}")
        found = torch.load(tmp_path / f"ours.{rank}")
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(
                found[name], value, rtol=1e-10, atol=1e-12, msg=lambda text: f"{name}: {text}"
            )


def test_a_module_of_a_package_is_run_as_main(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "near.py").write_text("from torch.distributed.tensor import Shard\n", encoding="utf-8")
    source = """
        import os, sys
        from torch.distributed.tensor import DTensor
        from .near import Shard
        if __name__ == "__main__":
            line = [sys.argv[0].endswith("module.py"), *sys.argv[1:], DTensor.__module__, Shard.__module__]
            os.write(1, (" ".join(map(str, line)) + "\\n").encode())
    """
    (package / "module.py").write_text(textwrap.dedent(source), encoding="utf-8")
    out = torchrun(2, "-m", "tessera.compat", "-m", "package.module", "-m", "x", cwd=tmp_path)
    assert out.count("True -m x tessera.compat._api tessera.") == 2, out


SPAWNS = """
import sys
import torch.multiprocessing as multiprocessing
from torch.distributed.tensor import DTensor
import beside

class OfMain:
    pass

def child(rank, given):
    assert isinstance(given, OfMain)
    print("child", DTensor.__module__, flush=True)

if __name__ == "__main__":
    print(sys.argv[1:], beside.VALUE, flush=True)
    multiprocessing.spawn(child, (OfMain(),), nprocs=1)
"""


def test_a_program_finds_its_modules_and_arguments_and_processes_that_it_spawns_are_enabled(tmp_path):
    (tmp_path / "spawns.py").write_text(SPAWNS, encoding="utf-8")
    (tmp_path / "beside.py").write_text("VALUE = 'found'\n", encoding="utf-8")
    out = run_python("-m", "tessera.compat", tmp_path / "spawns.py", "--steps", "3")
    assert out == "['--steps', '3'] found\nchild tessera.compat._api\n"


def test_without_a_program_it_says_how_it_is_called(tmp_path):
    for arguments in ([], ["-m"], ["--unknown"]):
        out = run_world(1, "-m", "tessera.compat", *arguments, code=2)
        assert out.startswith("usage: python -m tessera.compat program.py [args...]"), out
    assert run_world(1, "-m", "tessera.compat", "--help").startswith("usage: ")
    assert "there is no program" in run_world(1, "-m", "tessera.compat", tmp_path / "none.py", code=1)


def test_every_public_name_is_ours_and_disable_gives_pytorchs_back(enabled):
    """By import, by attribute, and by a module that was imported before."""
    fsdp = importlib.import_module("torch.distributed.fsdp")
    first_fsdp = ("torch.distributed.fsdp.api", "torch.distributed.fsdp.fully_sharded_data_parallel")
    stays = {
        "torch.distributed.tensor._random": {"OffsetBasedRNGTracker"},
        "torch.distributed.fsdp": {n for n in fsdp.__all__ if vars(fsdp)[n].__module__ in first_fsdp},
        "torch.distributed.fsdp._fully_shard._fully_shard": {
            "disable_fsdp_module_new_init",
            "get_cls_to_fsdp_cls",
        },
    }
    for path in NAMES:
        module = importlib.import_module(path)
        for name in vars(module).get("__all__", ()):
            value, theirs = getattr(module, name), vars(module)[name]
            if isinstance(theirs, types.ModuleType) or name in stays.get(path, ()):
                assert value is theirs, (path, name)
            elif "_cp_custom_ops" not in path and name != "flex_cp_allgather":
                assert value is not theirs, (path, name)
    from torch.distributed import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    assert DTensor is compat.DTensor is torch_tensor.DTensor is torch.distributed.tensor.DTensor
    assert Shard is compat.Shard is torch.distributed._tensor.Shard
    assert init_device_mesh is compat.init_device_mesh is dist.init_device_mesh
    assert fsdp.FullyShardedDataParallel is vars(fsdp)["FullyShardedDataParallel"]

    compat.disable()
    for path in NAMES:
        assert type(sys.modules[path]) is types.ModuleType
    assert torch_tensor.DTensor is not compat.DTensor
    assert dist.init_device_mesh is not compat.init_device_mesh


def test_names_that_pytorchs_modules_import_are_ours_too(enabled):
    """A name means the same in every module that a program may take it from."""
    ours = {}  # by PyTorch's object
    for path in NAMES:
        for name, value in vars(sys.modules[path]).items():
            found = getattr(sys.modules[path], name)
            if found is not value and getattr(value, "__name__", None) == name:
                assert ours.setdefault(id(value), found) is found, (path, name)
    for path in NAMES:
        for name, value in vars(sys.modules[path]).items():
            if getattr(value, "__name__", None) == name:
                assert getattr(sys.modules[path], name) is ours.get(id(value), value), (path, name)
    style = sys.modules["torch.distributed.tensor.parallel.style"]
    assert style.DTensor is compat.DTensor and style.distribute_module is compat.distribute_module


def test_enable_and_disable_may_be_called_twice():
    theirs = torch_tensor.DTensor
    for _ in range(2):
        compat.enable()
        compat.enable()
        assert torch_tensor.DTensor is compat.DTensor
        compat.disable()
        compat.disable()
        assert torch_tensor.DTensor is theirs


def test_what_a_program_assigns_is_ours(enabled, monkeypatch):
    random = torch.distributed.tensor._random
    assert random._rng_tracker is None
    monkeypatch.setattr(random, "_rng_tracker", "set")
    assert compat._random._rng_tracker == "set" and vars(random)["_rng_tracker"] != "set"


INTERNALS = """
import sys
import tessera.compat
tessera.compat.enable()
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.state_dict as state_dict
import torch.distributed._functional_collectives as collectives
import torch._dynamo, torch.distributed.pipelining, torch.distributed._tools.mem_tracker
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
assert DTensor is tessera.compat.DTensor is not state_dict.DTensor

mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
rank = dist.get_rank()
torch.manual_seed(0)
plain = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
x = torch.randn(8, 4)

compiled = torch.compile(plain, backend="aot_eager", fullgraph=True)
torch.testing.assert_close(compiled(x), plain(x))
graphs = []
@torch.compile(backend=lambda graph, example: graphs.append(graph) or graph)
def asks(t):
    return t + 1 if not isinstance(t, torch.distributed.tensor.DTensor) else t
for _ in range(3):
    assert torch.equal(asks(x), x + 1)
assert len(graphs) == 1, "guards on PyTorch's modules failed"
exported = torch.export.export(plain, (x,))
torch.testing.assert_close(exported.module()(x), plain(x))

total = collectives.all_reduce(torch.ones(2) * (rank + 1), "sum", mesh)
assert total.tolist() == [3.0, 3.0]

for wrapped in (nn.parallel.DistributedDataParallel(plain), FullyShardedDataParallel(
        nn.Sequential(nn.Linear(4, 2)), device_mesh=mesh, device_id=torch.device("cpu"))):
    optimizer = torch.optim.AdamW(wrapped.parameters(), foreach=True)
    wrapped(x).sum().backward()
    assert nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0) > 0
    optimizer.step()

sharded = distribute_tensor(x, mesh, [Shard(0)])
saved = {"plain": plain.state_dict(), "sharded": sharded}
dcp.save(saved, checkpoint_id=sys.argv[1])
loaded = {"plain": {name: torch.zeros_like(value) for name, value in plain.state_dict().items()},
          "sharded": distribute_tensor(torch.zeros(8, 4), mesh, [Shard(1)])}
dcp.load(loaded, checkpoint_id=sys.argv[1])
assert torch.equal(loaded["sharded"].full_tensor(), x)
for name, value in plain.state_dict().items():
    assert torch.equal(loaded["plain"][name], value)

# PyTorch's own DTensors, for those who ask PyTorch's own code.
theirs = vars(sys.modules["torch.distributed.tensor"])
other = theirs["distribute_tensor"](x, mesh, [theirs["Shard"](0)])
assert type(other) is theirs["DTensor"] and torch.equal((other + other).full_tensor(), x + x)
for found, expected in ((other.t() @ other, x.t() @ x), (torch.mm(other, other.t()), torch.mm(x, x.t())),
                        (other.add_(1) * torch.tensor(2.0), (x + 1) * 2), (torch.cat([other, other]).sum(0),
                        2 * (x + 1).sum(0)), (other[0:3], x[0:3] + 1)):
    assert type(found) is theirs["DTensor"]
    torch.testing.assert_close(found.full_tensor(), expected)
dcp.save({"other": other}, checkpoint_id=sys.argv[1] + ".other")
print("all works", flush=True)
dist.destroy_process_group()
"""


def test_pytorchs_own_code_works_as_before(tmp_path):
    program = tmp_path / "internals.py"
    program.write_text(INTERNALS, encoding="utf-8")
    out = run_world(2, program, tmp_path / "checkpoint")
    assert out.count("all works") == 2, out


RING = """
import torch
import torch.distributed as dist
from torch.distributed.tensor.experimental._attention import _cp_options, set_rotate_method
from torch.distributed.tensor.experimental._context_parallel._attention import _templated_ring_attention

dist.init_process_group("gloo")
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 8, 4) for _ in range(3))
expected = torch.nn.functional.scaled_dot_product_attention(q, k, v).chunk(2, 2)[dist.get_rank()]
_cp_options.enable_load_balance = False
parts = [t.chunk(2, 2)[dist.get_rank()].contiguous() for t in (q, k, v)]
for method in ("allgather", "alltoall"):
    set_rotate_method(method)
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out = _templated_ring_attention(dist.group.WORLD, 2, op, *parts)[0]
    torch.testing.assert_close(out, expected)
print(_templated_ring_attention.__module__)
dist.destroy_process_group()
"""


def test_pytorchs_ring_of_plain_tensors_heeds_our_options(tmp_path):
    """Load balance is refused without a causal mask: the ring runs only if it sees that it is off."""
    (tmp_path / "ring.py").write_text(RING, encoding="utf-8")
    out = run_world(2, "-m", "tessera.compat", tmp_path / "ring.py")
    assert out.count("tessera.compat.experimental._context_parallel._attention") == 2, out


def test_what_has_no_counterpart_says_so(ranks):
    from tessera.compat.experimental._context_parallel import _attention, _load_balancer

    def body(rank):
        mesh = compat.init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
        part = compat.distribute_tensor(torch.ones(1, 1, 4, 2), mesh, [compat.Shard(2)])
        with pytest.raises(tessera.NotSupported, match="inside context_parallel"):
            _attention._templated_ring_attention(None, 2, None, part, part, part)

    ranks(2, body)
    with pytest.raises(tessera.NotSupported, match="inside context_parallel"):
        _attention._sdpa_handler(torch.ops.aten.mm.default, (), {})
    assert _load_balancer._create_default_load_balancer(6, 2, "cpu") is None
    balancer = _load_balancer._create_default_load_balancer(8, 2, "cpu")
    assert balancer._generate_indices().tolist() == [[0, 1, 6, 7, 2, 3, 4, 5]]
