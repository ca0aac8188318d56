"""Worlds of ranks: threads of this process, processes, fake ones."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from . import _C
from ._C import World

T = TypeVar("T")
_join_lock = threading.Lock()


def run_ranks(
    n: int, fn: Callable[[int], T], *, timeout: float = 600.0, detect_deadlock: bool = True
) -> list[T]:
    """Runs fn(0), ..., fn(n-1) as the ranks of a world, each in a thread of its own.

    Returns what they returned, by rank. When one raises, the others get a PeerError where they wait
    for it, and its exception is raised here. How tests run, and how several ranks share one GPU.

        >>> def rank_sum(rank):
        ...     mesh = tessera.init_device_mesh("cpu", (4,))
        ...     x = tessera.from_local(torch.full((2,), float(rank)), mesh, [Shard(0)])
        ...     return x.sum().item()
        >>> run_ranks(4, rank_sum)
        [12.0, 12.0, 12.0, 12.0]

    `timeout` is how many seconds a rank waits for others in one call. `detect_deadlock=False` is for
    programs that start threads of their own which take part in the communication.
    """
    ranks = _C.ThreadRanks(n, timeout, detect_deadlock)
    results: list[Any] = [None] * n
    errors: dict[int, BaseException] = {}

    def body(rank: int) -> None:
        try:
            results[rank] = ranks.run(rank, fn)
        except BaseException as error:  # noqa: BLE001 - it is raised again by the caller below
            errors[rank] = error

    threads = [
        threading.Thread(target=body, args=(rank,), name=f"rank{rank}") for rank in range(n)
    ]
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
        for thread in threads:
            thread.join()
        ranks.wait_for_threads()
    except BaseException as error:  # Ctrl-C, or no thread left: the ranks must not go on without us
        ranks.fail(0, f"{type(error).__name__} in the thread that called run_ranks")
        for thread in started:
            thread.join()
        ranks.wait_for_threads()
        raise
    if errors:
        first = ranks.first_failed()
        rank = first if first in errors else min(errors)
        raised = errors[rank]
        if hasattr(raised, "add_note"):
            raised.add_note(f"on rank {rank} of {n}")
        raise raised
    return results


def current_world() -> World:
    """The world of the calling thread: its rank's inside run_ranks, else the process's.

    The process's world is made at the first call: over torch.distributed's store where that is
    initialised, else from the variables that torchrun, Slurm or MPI set, else of one rank. It ends
    with torch.distributed's default group; after the next init_process_group there is another world.
    Where torch.distributed's ranks are threads of one process (backend "threaded", as in its own
    tests), so are ours.
    """
    if _C.entered_world() is None:
        _join_torch_distributed()
    _asked.set()
    return _C.current_world()


_asked = threading.Event()  # set once the process may have a world


def has_world() -> bool:
    """Whether current_world() was called before: the process then has its world."""
    return _asked.is_set()


def _join_torch_distributed() -> None:
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return
    if distributed.get_backend() == "threaded":
        _enter_as_thread()
        return
    with _join_lock:
        group = distributed.distributed_c10d._get_default_group()
        if _joined and _joined[0]() is group:
            return
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        if distributed.get_backend() == "fake":
            world = _C.fake_world(distributed.get_rank(), distributed.get_world_size())
        else:
            world = _C.world_over_group(group.group_name, local_rank)
        if _joined:  # over a destroyed group whose object something keeps, as a default of torch's functions does
            _C.end_process_world()
        else:
            _C.close_process_world()
        _C.set_process_world(world)
        _joined[:] = [weakref.ref(group)]
        weakref.finalize(group, _leave_destroyed_group, _joined[0]).atexit = False


# The default group whose ranks met for our world. Its name would not do: all default groups have one.
_joined: list[weakref.ref[Any]] = []


def _leave_destroyed_group(group: weakref.ref[Any]) -> None:
    """Runs in destroy_process_group, while all ranks still have their connections to the store."""
    if not _joined or _joined[0] is not group:
        return  # another world came first
    _joined.clear()
    _C.end_process_world()


def _enter_as_thread() -> None:
    """This thread becomes the rank that torch.distributed says it is, until it ends."""
    distributed = torch.distributed
    rank, size = distributed.get_rank(), distributed.get_world_size()
    store = distributed.distributed_c10d._get_default_store()
    key = "tessera thread ranks"
    if rank == 0:
        made = _C.ThreadRanks(size, 600.0, False, inherit_state=False)
        _thread_ranks[id(made)] = [made] * size
        store.set(key, str(id(made)))
    number = int(store.get(key))
    with _join_lock:
        waiting = _thread_ranks[number]  # a reference for each rank that has still to come
        ranks = waiting.pop()
        if not waiting:
            del _thread_ranks[number]
    _this_thread.entered = _C.EnteredRank(ranks, rank)


_this_thread = threading.local()
_thread_ranks: dict[int, list[Any]] = {}


def _wait_for_ended_threads() -> None:
    """Joined threads still destroy what libtorch keeps for them, which needs a living interpreter."""
    _C.wait_for_ended_threads({thread.ident for thread in threading.enumerate() if thread.ident})


atexit.register(_wait_for_ended_threads)


def report_failure(why: str) -> None:
    """Informs the other ranks of this process's world that this one has failed, and why.

    They get a PeerError with the reason immediately instead of waiting for the timeout. An uncaught
    exception is reported without this call. The world cannot communicate afterwards.
    """
    _C.report_failure(why)


def _report_uncaught() -> None:
    previous = sys.excepthook

    def hook(kind: Any, value: Any, trace: Any) -> None:
        previous(kind, value, trace)
        if issubclass(kind, _C.PeerError):
            _C.close_links()  # another rank is the cause: the others learn it the same way
        else:
            _C.report_failure(f"{kind.__name__}: {value}")

    sys.excepthook = hook


_report_uncaught()


def fake_world(rank: int, size: int) -> Any:
    """A context in which this thread is one rank of a world that does not exist, for planning.

        >>> with tessera.fake_world(5, 1024):
        ...     mesh = tessera.init_device_mesh("cpu", (128, 8), mesh_dim_names=("dp", "tp"))
        ...     mesh.get_coordinate()
        [0, 5]
    """
    return _C.WorldScope(_C.fake_world(rank, size))


def manual_seed(seed: int) -> None:
    """Seeds the generators of this rank; call it with the same seed on all ranks.

    Inside run_ranks torch.manual_seed does the same: each rank has generators of its own, and
    torch.get_rng_state and torch.set_rng_state are about them, as torch.utils.checkpoint needs it.
    """
    _C.rank_seed(seed)
