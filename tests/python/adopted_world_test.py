"""Worlds over torch.distributed whose store does not answer."""

HOST_IS_STOPPED = """
import os, signal, time
import torch.distributed as dist
import tessera

os.environ["TESSERA_TIMEOUT_S"] = "3"
rank = int(os.environ["RANK"])
launcher = dist.TCPStore("localhost", int(os.environ["MASTER_PORT"]), is_master=False)
own = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False) if rank == 0 else None
if rank == 0:
    launcher.set("port", str(own.port))
    launcher.set("pid", str(os.getpid()))
port, pid = int(launcher.get("port")), int(launcher.get("pid"))
store = own or dist.TCPStore("localhost", port, is_master=False)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
dist.barrier()
if rank == 0:
    os.kill(pid, signal.SIGSTOP)
    os._exit(0)
while open(f"/proc/{pid}/stat").read().split(") ")[1][0] != "T":
    time.sleep(0.01)
begin = time.monotonic()
try:
    tessera.init_device_mesh("dp=2")
except tessera.PeerError as error:
    assert "did not answer within 3000 ms" in str(error), error
else:
    raise AssertionError("a stopped host answers")
finally:
    took = time.monotonic() - begin
    os.kill(pid, signal.SIGCONT)
assert took < 20, took
os._exit(0)
"""


def test_a_stopped_host_of_the_store_is_an_error_within_the_timeout(torchrun):
    torchrun(2, HOST_IS_STOPPED)
