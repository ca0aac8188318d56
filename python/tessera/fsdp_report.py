"""Memory and communication of fully_shard's groups: for tests and reports."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

from . import _C
from ._C import DeviceMesh
from .comm import Recorder
from .fsdp import Modules, mirror_of
from .mesh import mesh_from_torch


class GatheredMemory(NamedTuple):
    """Bytes gathered on this rank: now, and the peak since the last reset."""

    bytes: int
    peak_bytes: int


class ShardedGroup(NamedTuple):
    """One group of parameters, for tests and reports."""

    parameters: int
    gathered_bytes: int
    gathered: bool
    state: str  # idle, forward, pre_backward or post_backward
    merged: int  # groups with the same number share their collectives
    merged_bytes: int


class MessageSeconds(NamedTuple):
    """Totals of all messages of one kind: their number, the time in flight, and the part of it in which
    this rank was blocked."""

    messages: int
    under_way_s: float
    exposed_s: float


class CommunicationTime(NamedTuple):
    """Of this rank's gathers and reductions."""

    gathers: MessageSeconds
    reductions: MessageSeconds

    @property
    def hidden(self) -> float:
        """The fraction of the total that was not exposed, 0 to 1."""
        under_way = self.gathers.under_way_s + self.reductions.under_way_s
        exposed = self.gathers.exposed_s + self.reductions.exposed_s
        return 1 - exposed / under_way if under_way > 0 else 0.0


def communication_time(recorder: Recorder) -> CommunicationTime:
    """How much of the groups' communication overlapped with computation while the recorder was active."""
    gathers, reductions = _C.communication_time(recorder)
    return CommunicationTime(MessageSeconds(*gathers), MessageSeconds(*reductions))


class StepTrace:
    """What each group computes and when, and all communication of this rank, until stop() or the end
    of its `with` block.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("dp=2")
        ...     layer = tessera.fully_shard(torch.nn.Linear(3, 4), mesh)
        ...     with StepTrace(mesh) as trace:
        ...         layer(torch.ones(2, 3)).sum().backward()
        ...     return "forward of group" in trace.json()      # trace.write("step.json")
        >>> tessera.run_ranks(2, show)
        [True, True]
    """

    def __init__(self, mesh: DeviceMesh | Any):
        self._recording: _C.StepTrace | None = _C.StepTrace(mesh_from_torch(mesh))
        self._json = ""

    def stop(self) -> None:
        """Stops recording; keeps what was recorded."""
        self._json = self.json()
        self._recording = None

    def json(self) -> str:
        """For chrome://tracing and ui.perfetto.dev: a row of computation, and below it the
        messages in flight."""
        return self._json if self._recording is None else self._recording.json()

    def write(self, path: str | PathLike[str]) -> None:
        """json() as a file."""
        Path(path).write_text(self.json(), encoding="utf-8")

    def __enter__(self) -> StepTrace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()


def sharded_groups(module: Modules) -> list[ShardedGroup]:
    """The groups of the module's parameters, in their order."""
    return [ShardedGroup(**group) for group in _C.sharded_groups(mirror_of(module))]


def gathered_memory(mesh: DeviceMesh | Any) -> GatheredMemory:
    """Bytes that are gathered on this rank, by all groups of the mesh's world."""
    return GatheredMemory(*_C.gathered_memory(mesh_from_torch(mesh)))


def reset_peak_gathered_memory(mesh: DeviceMesh | Any) -> None:
    """Sets the peak to what is gathered now."""
    _C.reset_peak_gathered_memory(mesh_from_torch(mesh))
