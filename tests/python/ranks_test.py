"""Thread ranks in Python: results, errors, locks."""

import os
import socket
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import tessera
from python_process import run_python, run_world


def test_results_come_by_rank(ranks):
    assert ranks(3, lambda rank: rank * rank) == [0, 1, 4]


def test_the_first_exception_is_raised_with_its_rank_and_wakes_the_others(ranks):
    seen = {}

    def body(rank):
        mesh = tessera.init_device_mesh("tp=3")
        if rank == 1:
            raise KeyError("lost")
        try:
            tessera.distribute_tensor(torch.ones(6), mesh, "S0").sum().item()
        except RuntimeError as error:
            seen[rank] = str(error)
            raise

    with pytest.raises(KeyError, match="lost") as caught:
        ranks(3, body)
    notes = getattr(caught.value, "__notes__", ["on rank 1 of 3"])
    assert "on rank 1 of 3" in notes
    assert set(seen) == {0, 2} and all("rank 1" in text for text in seen.values())


def test_a_rank_that_never_comes_is_an_error_not_a_hang(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = tessera.distribute_tensor(torch.ones(4), mesh, "S0", src_data_rank=None)
        if rank == 0:
            tessera.full_tensor(x)

    with pytest.raises(tessera.PeerError):
        ranks(2, body)


def test_a_thread_that_cannot_start_ends_the_ranks_that_did(ranks, monkeypatch):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=2")
        x = tessera.distribute_tensor(torch.ones(4), mesh, "S0", src_data_rank=None)
        tessera.full_tensor(x)  # waits for rank 1

    start = threading.Thread.start

    def start_but_one(thread):
        if thread.name == "rank1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_but_one)
    before = threading.active_count()
    with pytest.raises(RuntimeError, match="can't start new thread"):
        ranks(2, body)
    assert threading.active_count() == before


def test_ranks_that_compute_in_python_do_not_keep_others_from_communicating(ranks):
    def body(rank):
        mesh = tessera.init_device_mesh("tp=4")
        x = tessera.distribute_tensor(torch.ones(8), mesh, "S0", src_data_rank=None)
        total = 0.0
        for _ in range(20):
            total += sum(i % 3 for i in range(200 * rank))  # holds the interpreter's lock
            total += x.sum().item()
        return total > 0

    assert all(ranks(4, body))


def test_functions_of_torch_that_hold_the_lock_still_let_other_ranks_run(ranks):
    """Indexing, bool() and hooks reach the kernels in ways of their own."""

    def body(rank):
        mesh = tessera.init_device_mesh("tp=4")
        x = tessera.distribute_tensor(torch.arange(16.0), mesh, "S0", src_data_rank=None)
        x.requires_grad_()
        seen = []
        x.register_hook(lambda grad: seen.append(grad.sum().item()))
        y = x[3] + x[-1]
        assert bool(y == 18)
        y.backward()
        if x.sum() > 0:
            return seen

    assert ranks(4, body) == [[2.0]] * 4


def test_grad_mode_of_the_caller_holds_in_the_ranks(ranks):
    with torch.no_grad():
        assert ranks(2, lambda rank: torch.is_grad_enabled()) == [False, False]
    assert ranks(2, lambda rank: torch.is_grad_enabled()) == [True, True]


def test_every_rank_has_its_own_random_numbers_from_one_seed(ranks):
    def body(rank):
        tessera.manual_seed(5)
        return torch.randn(3).tolist()

    first = ranks(4, body)
    assert all(numbers == first[0] for numbers in first)


def test_worlds_nest_and_leave_the_thread_as_it_was(ranks):
    def body(rank):
        inner = tessera.run_ranks(2, lambda r: tessera.current_world().size)
        return inner, tessera.current_world().size

    assert ranks(3, body) == [([2, 2], 3)] * 3
    assert threading.active_count() < 50


def test_a_fake_rank_plans_without_the_others():
    with tessera.fake_world(5, 1024) as world:
        mesh = tessera.init_device_mesh("cpu", (128, 8), mesh_dim_names=("dp", "tp"))
        assert world.kind == "fake" and mesh.get_coordinate() == [0, 5]
        x = tessera.distribute_tensor(
            torch.empty(1024, 16, device="meta"), mesh, "S0,S1", src_data_rank=None
        )
        assert tessera.to_local(x).shape == (8, 2)


UNCAUGHT = """
    import sys
    import torch, tessera

    mesh = tessera.init_device_mesh("cpu", (2,))
    x = tessera.from_local(torch.ones(4), mesh, [tessera.Shard(0)])
    tessera.full_tensor(x)
    if tessera.current_world().rank == 1:
        try:
            raise RuntimeError("out of cheese")
        except RuntimeError:
            sys.excepthook(*sys.exc_info())  # what Python does with an uncaught one
    else:
        try:
            tessera.full_tensor(x * 2)
        except tessera.PeerError as error:
            print("reported:", error)
"""


def test_an_exception_that_nobody_catches_reaches_the_other_ranks(torchrun):
    out = torchrun(2, UNCAUGHT)
    assert "reported:" in out and "out of cheese" in out, out


KILLED = """
import os, signal
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
import tessera

mesh = tessera.init_device_mesh("tp=3")
x = tessera.distribute_tensor(torch.ones(6), mesh, "S0")
x.sum().item()
if tessera.current_world().rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
x.sum().item()
"""


def test_a_survivor_that_ends_by_its_error_is_not_taken_for_the_cause(tmp_path):
    program = tmp_path / "killed.py"
    program.write_text(KILLED)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    common = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen(
            [sys.executable, str(program)],
            env={**os.environ, **common, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    errors = [process.communicate(timeout=120)[1] for process in started]
    for rank in (0, 2):
        assert "no sign of life from rank 1" in errors[rank], errors[rank]
        assert "failed first" not in errors[rank], errors[rank]


def _gradient_of_dropout(rank, recompute):
    mesh = tessera.init_device_mesh("tp=2")
    x = tessera.distribute_tensor(torch.arange(1.0, 31.0).view(6, 5), mesh, ["S0"]).requires_grad_()
    torch.manual_seed(3)
    y = recompute(lambda t: F.dropout(t.tanh(), 0.5) * t, x)
    F.dropout(x.detach())  # what is drawn between forward and backward
    y.square().sum().backward()
    after = torch.rand(3)  # recomputation leaves the state as it was
    return tessera.full_tensor(y.detach()), tessera.full_tensor(x.grad), after


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_on_thread_ranks_draws_the_same_numbers_again(reentrant):
    kept = tessera.run_ranks(2, lambda rank: _gradient_of_dropout(rank, lambda f, x: f(x)))
    again = tessera.run_ranks(
        2,
        lambda rank: _gradient_of_dropout(rank, lambda f, x: checkpoint(f, x, use_reentrant=reentrant)),
    )
    for a, b in zip(kept, again, strict=True):
        for expected, found in zip(a, b, strict=True):
            assert torch.equal(found, expected)


def test_torchs_seeds_and_states_are_those_of_the_thread_rank():
    before = torch.get_rng_state()

    def body(rank):
        torch.manual_seed(40 + rank)
        assert torch.initial_seed() == 40 + rank
        state = torch.get_rng_state()
        first = torch.rand(4)
        torch.set_rng_state(state)
        assert torch.equal(torch.rand(4), first)
        with torch.random.fork_rng():
            torch.rand(7)
        return first, torch.rand(2)

    for rank, (first, then) in enumerate(tessera.run_ranks(3, body)):
        own = torch.Generator().manual_seed(40 + rank)
        assert torch.equal(first, torch.rand(4, generator=own))
        assert torch.equal(then, torch.rand(2, generator=own))
    assert torch.equal(torch.get_rng_state(), before)


FAILED_BACKWARD = """
import time
import torch
import tessera

ended = []


class SlowToEnd:
    def __del__(self):
        time.sleep(0.2)
        ended.append(self)


class Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.kept = SlowToEnd()
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        raise ValueError("no gradient")


def body(rank):
    x = torch.ones(3, requires_grad=True)
    try:
        (Kept.apply(x) + Failing.apply(x)).sum().backward()
    except ValueError:
        pass  # autograd's queue of this thread still owns the functions that did not run


for _ in range(2):
    tessera.run_ranks(2, body)
print(len(ended))
"""


def test_ranks_have_ended_with_all_that_their_threads_own(tmp_path):
    program = tmp_path / "failed_backward.py"
    program.write_text(FAILED_BACKWARD)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "4\n"


CHECKED = """
import os
os.environ["TESSERA_CHECK_COLLECTIVES"] = "1"
import torch
import tessera

torch.distributed.init_process_group("gloo")
mesh = tessera.init_device_mesh("tp=2")
shape = (2, 3) if torch.distributed.get_rank() == 0 else (3, 2)  # as many elements: bare Gloo adds them up
try:
    mesh.get_group("tp").allreduce([torch.ones(shape)]).wait()
except RuntimeError as error:
    print(error)
"""


def test_checked_mode_holds_over_torch_distributeds_store_too(tmp_path):
    program = tmp_path / "checked.py"
    program.write_text(CHECKED)
    text = run_world(2, program)
    assert text.count("rank 0 calls all_reduce (sum) of 2x3 float32, rank 1 calls") == 2, text


TIMEOUT = """
import os
os.environ["TESSERA_TIMEOUT_S"] = "soon"
import torch
import tessera

store = torch.distributed.HashStore()
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
try:
    tessera.init_device_mesh("tp=1")
except tessera.InvalidArgument as error:
    print(error)
"""


def test_a_timeout_that_is_no_number_is_named(tmp_path):
    program = tmp_path / "timeout.py"
    program.write_text(TIMEOUT)
    assert 'TESSERA_TIMEOUT_S is "soon", expected a number of seconds above 0' in run_python(program)
