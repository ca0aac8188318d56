"""The names of torch.distributed.tensor.debug."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.distributed._functional_collectives  # registers c10d_functional's operators

from .. import _C
from ..comm import Recorder

# The operators under which PyTorch's mode counts; a move from Shard to Shard is its own operator.
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
    # distribute_tensor sends each rank its part from one: a scatter, whatever carries it.
    scatters = event.site == "distribute_tensor" and event.op == "all_to_all"
    name = "scatter" if scatters else event.op
    of_group = event.site == "fully_shard" and name in _OPERATORS_OF_GROUPS
    namespace, operator = (_OPERATORS_OF_GROUPS if of_group else _OPERATORS)[name].split(".")
    return getattr(getattr(torch.ops, namespace), operator)


class CommDebugMode:
    """Counts the collectives of a block of code, on this rank, under PyTorch's operators.

        >>> def show(rank):
        ...     x = tessera.distribute_tensor(torch.ones(4), tessera.init_device_mesh("tp=2"), "S0")
        ...     with CommDebugMode() as mode:
        ...         tessera.full_tensor(x)
        ...     return mode.get_comm_counts()[torch.ops.c10d_functional.all_gather_into_tensor]
        >>> tessera.run_ranks(2, show)
        [1, 1]

    The small message of from_local, by which the ranks tell their sizes, moves no tensor and is left
    out. tessera.Recorder tells more: bytes, axis, time, and the operator that asked.
    """

    def __init__(self) -> None:
        self._recorder: Recorder | None = None
        self._counts: Counter[Any] = Counter()

    def __enter__(self) -> CommDebugMode:
        self._counts = Counter()
        self._recorder = Recorder()
        return self

    def __exit__(self, *exc: object) -> None:
        self._counts = self.comm_counts
        if self._recorder is not None:
            self._recorder.stop()
        self._recorder = None

    @property
    def comm_counts(self) -> Counter[Any]:
        """Calls by operator, 0 for one that was not called; of the last block, or so far."""
        if self._recorder is None:
            return self._counts
        events = (event for event in self._recorder.events if event.site != "from_local")
        return Counter(map(_operator, events))

    def get_comm_counts(self) -> Counter[Any]:
        return self.comm_counts

    def get_total_counts(self) -> int:
        return sum(self.comm_counts.values())

    def __repr__(self) -> str:
        return f"CommDebugMode(get_total_counts()={self.get_total_counts()})"


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
