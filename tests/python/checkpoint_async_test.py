"""torch.distributed.checkpoint.async_save of sharded tensors: what it copied is written, and PyTorch loads it."""

STATE = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.checkpoint.staging import BlockingAsyncStager

mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
ours = tessera.mesh_from_torch(mesh)
full = torch.arange(27.0).reshape(9, 3)
torch.manual_seed(1)
model = compat.fully_shard(torch.nn.Linear(5, 7), mesh=mesh)
expected = tessera.full_state_dict(model)

def state():
    made = {text: tessera.distribute_tensor(full.clone(), ours, text) for text in ("S0", "S1", "R", "SS0(2)", "S0[8,1]")}
    return {"tensors": made, "model": model.state_dict(), "step": 7}

def check(folder):
    loaded = {"tensors": {name: torch.zeros(9, 3) for name in ("S0", "S1", "R", "SS0(2)", "S0[8,1]")}}
    loaded["model"] = {name: torch.zeros_like(value) for name, value in expected.items()}
    loaded["step"] = 0
    dcp.load(loaded, checkpoint_id=folder)
    assert all(torch.equal(value, full) for value in loaded["tensors"].values())
    assert all(torch.equal(loaded["model"][name], value) for name, value in expected.items())
    assert loaded["step"] == 7
"""


def test_threads_and_every_stager_write_the_state_of_the_call(beside_torch, tmp_path):
    out = beside_torch(
        2,
        STATE
        + f"""
for name, options in (
    ("default", {{}}),
    ("again", {{}}),
    ("blocking", {{"async_stager": BlockingAsyncStager()}}),
    ("cached", {{"async_stager": BlockingAsyncStager(cache_staged_state_dict=True)}}),
):
    saved = state()
    folder = {str(tmp_path)!r} + "/" + name
    written = dcp.async_save(saved, checkpoint_id=folder, **options)
    with torch.no_grad():  # after the copy
        for value in saved["tensors"].values():
            value.zero_()
    written.result()
    check(folder)
print("equal on rank " + str(rank))
""",
    )
    assert out.count("equal on rank") == 2


def test_a_background_process_gets_the_shards(torchrun, tmp_path):
    source = STATE + f"""
dcp.async_save(
    state(), checkpoint_id={str(tmp_path)!r} + "/process", async_checkpointer_type=AsyncCheckpointerType.PROCESS
).result()
check({str(tmp_path)!r} + "/process")
print("equal on rank " + str(rank))
torch.distributed.destroy_process_group()
"""
    # The background process imports the program.
    program = (
        "import tessera, torch\nfrom tessera import compat\n"
        "from torch.distributed.device_mesh import init_device_mesh\n\n"
        "if __name__ == '__main__':\n"
        "    torch.distributed.init_process_group('gloo')\n    rank = torch.distributed.get_rank()\n"
    ) + "".join(f"    {line}\n" if line else "\n" for line in source.splitlines())
    assert torchrun(2, program).count("equal on rank") == 2
