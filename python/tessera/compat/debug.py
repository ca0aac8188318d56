"""The names of torch.distributed.tensor.debug."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed._functional_collectives  # registers c10d_functional's operators
from torch.distributed.tensor.debug import _comm_mode

from .. import _C
from ..comm import Recorder

# The operators under which PyTorch's mode counts. A move from Shard to Shard is an operator of its own
# there; on CPUs PyTorch gathers instead, which this library does not.
_OPERATORS = {
    "all_reduce": "c10d_functional.all_reduce",
    "all_gather": "c10d_functional.all_gather_into_tensor",
    "reduce_scatter": "c10d_functional.reduce_scatter_tensor",
    "all_to_all": "_dtensor.shard_dim_alltoall",
    "broadcast": "c10d.broadcast_",
    "scatter": "c10d.scatter_",
    "gather": "c10d.gather_",
    "send": "c10d.send",
    "recv": "c10d.recv_",
    "barrier": "c10d.barrier",
}


# fully_shard's, which are no functions of tensors there: they write to memory that is given.
_OPERATORS_OF_GROUPS = {
    "all_gather": "c10d._allgather_base_",
    "reduce_scatter": "c10d._reduce_scatter_base_",
    "all_reduce": "c10d.allreduce_",
}


def _operator(event: _C.CommEvent) -> Any:
    if event.site == "from_local":
        return None
    # distribute_tensor sends each rank its part from one: a scatter, whatever carries it.
    scatters = event.site == "distribute_tensor" and event.op == "all_to_all"
    name = "scatter" if scatters else event.op
    of_group = event.site == "fully_shard" and name in _OPERATORS_OF_GROUPS
    namespace, operator = (_OPERATORS_OF_GROUPS if of_group else _OPERATORS)[name].split(".")
    return getattr(getattr(torch.ops, namespace), operator)


class _ModuleTracker(_comm_mode._CommModeModuleTracker):  # type: ignore[misc]
    """Which module runs, with the placements of its parameters. PyTorch's hooks are the process's:
    where ranks are threads, each tracker heeds its own. `take_events` is called before the module
    changes: what was sent until then belongs to the old one."""

    def __init__(self, take_events: Callable[[], None]) -> None:
        super().__init__()
        self._rank: int | None = None
        self._take_events = take_events

    def __enter__(self) -> None:
        self._rank = _rank_of_thread()
        super().__enter__()

    def _is_of_another_rank(self) -> bool:
        return _rank_of_thread() not in (None, self._rank)

    def _fw_pre_hook(self, mod: Any, input: Any) -> None:
        if self._is_of_another_rank():
            return
        self._take_events()
        # PyTorch's adds a hook at each call, which would leave the module more than once.
        before = self.register_forward_hook_handles.pop(self._get_mod_name(mod), None)
        if before is not None:
            before.remove()
        super()._fw_pre_hook(mod, input)
        for name, parameter in mod.named_parameters(recurse=False):
            if _C.is_dtensor(parameter):
                placements = _C.placements(parameter)
                self.sharding_dict[f"{self.name}.{name}"] = placements
                of_module = self.module_helper_dict.setdefault(self.name, {})
                of_module.setdefault("parameters", {})[name] = str(placements)

    def _fw_set_module_hook(self, mod: Any, input: Any, output: Any) -> None:
        if not self._is_of_another_rank():
            self._take_events()
            super()._fw_set_module_hook(mod, input, output)

    def _fw_post_hook(self, mod: Any, input: Any, output: Any) -> None:
        if not self._is_of_another_rank():
            self._take_events()
            super()._fw_post_hook(mod, input, output)

    def _bw_hook(self, mod: Any, output: Any) -> None:
        if not self._is_of_another_rank():
            self._take_events()
            super()._bw_hook(mod, output)


def _rank_of_thread() -> int | None:
    world = _C.entered_world()
    return None if world is None else world.rank


class CommDebugMode(_comm_mode.CommDebugMode):  # type: ignore[misc]
    """Counts the collectives of a block of code, on this rank, under PyTorch's operators: those of
    sharded tensors, and what the program calls itself.

        >>> def show(rank):
        ...     x = tessera.distribute_tensor(torch.ones(4), tessera.init_device_mesh("tp=2"), "S0")
        ...     with CommDebugMode() as mode:
        ...         tessera.full_tensor(x)
        ...     return mode.get_comm_counts()[torch.ops.c10d_functional.all_gather_into_tensor]
        >>> tessera.run_ranks(2, show)
        [1, 1]

    It is PyTorch's own mode, which also has the counts of each module (comm_module_counts), its
    tables and its dumps. It counts what was sent: a move from Shard to Shard is an all_to_all on CPUs
    too, where PyTorch gathers. The small message of from_local, by which the ranks exchange
    their sizes, moves no tensor and is left out. tessera.Recorder has more: bytes, axis, time, and
    the operator that asked.
    """

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        super().__init__()
        self.advanced_module_tracker = _ModuleTracker(self._take_events)

    def __enter__(self) -> CommDebugMode:
        super().__enter__()
        self._recorder = Recorder()
        return self

    def __exit__(self, *exc: object) -> None:
        self._take_events()
        if self._recorder is not None:
            self._recorder.stop()
        self._recorder = None
        super().__exit__(*exc)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = super().__torch_dispatch__(func, types, args, kwargs)
        self._take_events()  # now, while it is known which module runs
        return out

    def _take_events(self) -> None:
        if self._recorder is None or self._recorder.count() == 0:
            return
        events = self._recorder.events
        self._recorder.clear()
        tracker = self.advanced_module_tracker
        modules = {tracker.name, *tracker.module_parents_dict.get(tracker.name, ())}
        for event in events:
            operator = _operator(event)
            if operator is None:
                continue
            direction = "backward" if event.in_backward else "forward"
            self._counts[operator] += 1
            for module in modules:
                counts = self._of_modules.setdefault(
                    module, {"forward": Counter(), "backward": Counter()}
                )
                counts[direction][operator] += 1

    # PyTorch's mode keeps these two as attributes; here a look at them first takes what was recorded.

    @property
    def comm_counts(self) -> Counter[Any]:
        """Calls by operator, 0 for one that was not called; of the last block, or so far."""
        self._take_events()
        return self._counts

    @comm_counts.setter
    def comm_counts(self, counts: Any) -> None:
        self._counts: Counter[Any] = Counter(counts)

    @property
    def comm_module_counts(self) -> dict[str, dict[str, Any]]:
        """The same by module ("Global": all of them) and by "forward" and "backward"."""
        self._take_events()
        return self._of_modules

    @comm_module_counts.setter
    def comm_module_counts(self, counts: Any) -> None:
        self._of_modules: dict[str, dict[str, Any]] = counts


def _clear_sharding_prop_cache() -> None:
    """Drops cached decisions: which rows were chosen for which calls."""
    _C.clear_caches()


def _get_fast_path_sharding_prop_cache_stats() -> tuple[int, int]:
    """How many calls found their row chosen already, and how many did not."""
    stats = _C.cache_stats()
    return stats["decision_hits"], stats["decision_misses"]


def visualize_sharding(dtensor: torch.Tensor, header: str = "", use_rich: bool = False) -> None:
    """Prints on the mesh's first rank which ranks hold which part of a tensor of one or two dims.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("dp=2,tp=2")
        ...     visualize_sharding(tessera.distribute_tensor(torch.ones(4, 6), mesh, "R,S1"))
        >>> results = tessera.run_ranks(4, show)
        rows 0:4, columns 0:3    ranks 0, 2
        rows 0:4, columns 3:6    ranks 1, 3
    """
    sharding = _C.sharding(dtensor)
    if not 1 <= dtensor.dim() <= 2:
        raise _C.InvalidArgument(f"visualize_sharding of {sharding}: tensors of one or two dims")
    if sharding.mesh.get_rank() != sharding.mesh.ranks[0]:
        return
    holders: dict[str, list[int]] = {}
    for rank in sharding.mesh.ranks:
        for begin, end in sharding.boxes(rank):
            names = ("rows", "columns") if len(begin) == 2 else ("elements",)
            ranges = zip(names, begin, end, strict=True)
            text = ", ".join(f"{name} {first}:{last}" for name, first, last in ranges)
            holders.setdefault(text, []).append(rank)
    width = max(map(len, holders), default=0)
    lines = [header] if header else []
    for text, ranks in holders.items():
        who = ", ".join(map(str, ranks))
        lines.append(f"{text:{width}}    rank{'s' if len(ranks) > 1 else ''} {who}")
    print("\n".join(lines))


__all__ = ["CommDebugMode", "visualize_sharding"]
