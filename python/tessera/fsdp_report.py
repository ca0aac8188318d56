"""What the groups of fully_shard hold and send: for tests and reports."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _C
from ._C import DeviceMesh
from .fsdp import Modules, mirror_of
from .mesh import mesh_from_torch


class GatheredMemory(NamedTuple):
    """What is gathered on this rank: now, and at most since the last reset."""

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
    """Of all messages of one kind: how many, how long they were under way, and for how much of that
    this rank only waited."""

    messages: int
    under_way_s: float
    exposed_s: float


class CommunicationTime(NamedTuple):
    """Of this rank's gathers and reductions since the last reset."""

    gathers: MessageSeconds
    reductions: MessageSeconds


def communication_time(mesh: DeviceMesh | Any) -> CommunicationTime:
    """How much of the groups' communication hid behind computing."""
    gathers, reductions = _C.communication_time(mesh_from_torch(mesh))
    return CommunicationTime(MessageSeconds(*gathers), MessageSeconds(*reductions))


def reset_communication_time(mesh: DeviceMesh | Any) -> None:
    """Counts from now on."""
    _C.reset_communication_time(mesh_from_torch(mesh))


def sharded_groups(module: Modules) -> list[ShardedGroup]:
    """The groups of the module's parameters, in their order."""
    return [ShardedGroup(**group) for group in _C.sharded_groups(mirror_of(module))]


def gathered_memory(mesh: DeviceMesh | Any) -> GatheredMemory:
    """Bytes that are gathered on this rank, by all groups of the mesh's world."""
    return GatheredMemory(*_C.gathered_memory(mesh_from_torch(mesh)))


def reset_peak_gathered_memory(mesh: DeviceMesh | Any) -> None:
    """The peak is from now on what is gathered now."""
    _C.reset_peak_gathered_memory(mesh_from_torch(mesh))
