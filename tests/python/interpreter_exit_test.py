"""The interpreter ends while threads that were ranks destroy what libtorch keeps for them.

Thread.join returns before that. A destructor that waits for the interpreter's lock when it finalizes is
unwound, which terminates the process. `HELD` makes that certain: the lock is held from before the
destructors run until the interpreter finalizes, and is released then.
"""

import sys

import pytest

import python_process

HELD = """
import atexit, ctypes, sys, threading, time

def hold_the_lock():
    until = time.monotonic() + 0.6
    while time.monotonic() < until:
        pass

atexit.register(hold_the_lock)  # registered first, so called last

import torch
import torch.distributed as dist
import tessera
from torch.testing._internal.distributed.multi_threaded_pg import _install_threaded_pg

class ReleasesTheLock:
    def __del__(self, sleep=time.sleep):
        sleep(0.3)

kept = ReleasesTheLock()

def end_late():
    # A destructor that runs before those of the thread's older variables.
    libc = ctypes.CDLL(None)
    libc.__cxa_thread_atexit_impl(libc.usleep, ctypes.c_void_p(300_000), None)

def work():
    mesh = tessera.init_device_mesh("cpu", (2,))
    x = tessera.distribute_tensor(torch.arange(4.0), mesh, [tessera.Shard(0)])
    assert x.sum().item() == 6
"""

THREADED_GROUP = """
def body(rank, store):
    dist.init_process_group("threaded", rank=rank, world_size=2, store=store)
    {work}
    dist.barrier()
    assert torch._C._len_torch_function_stack() == 0
    end_late()

torch._C._distributed_c10d._set_thread_isolation_mode(True)
_install_threaded_pg()
store = dist.HashStore()
threads = [threading.Thread(target=body, args=(rank, store)) for rank in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.setswitchinterval(1000)
"""

ENTERS_UNDER_A_MODE = """
    with torch.device("cpu"):
        work()
"""

KEEPS_AN_OBJECT = """
    work()
    torch._C._stash_obj_in_tls("kept", object())
"""

RUN_RANKS = """
def keep_an_object(*event):
    if not torch._C._is_key_in_tls("kept"):
        torch._C._stash_obj_in_tls("kept", object())

def body(rank):
    work()
    end_late()

threading.setprofile(keep_an_object)  # called by each thread before anything else
tessera.run_ranks(2, body)
sys.setswitchinterval(1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs glibc's destructors of threads")
@pytest.mark.parametrize(
    "program",
    [
        THREADED_GROUP.format(work=ENTERS_UNDER_A_MODE.strip()),
        THREADED_GROUP.format(work=KEEPS_AN_OBJECT.strip()),
        RUN_RANKS,
    ],
    ids=["a mode when the rank was entered", "an object of the thread", "ranks of run_ranks"],
)
def test_threads_that_were_ranks_end_before_the_interpreter(tmp_path, program):
    path = tmp_path / "program.py"
    path.write_text(HELD + program, encoding="utf-8")
    code, _, err = python_process.run_once(path)
    assert code == 0, err
