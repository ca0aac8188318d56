"""Watching communication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from . import _C
from ._C import DeviceMesh, World
from .ranks import current_world


def _world(where: DeviceMesh | World | None) -> World:
    if where is None:
        return current_world()
    return where.world if isinstance(where, DeviceMesh) else where


class Recorder(_C.Recorder):
    """Records this rank's collectives until it is stopped or its `with` block ends.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("tp=2")
        ...     x = tessera.distribute_tensor(torch.ones(4, 4), mesh, "S0")
        ...     with Recorder() as recorder:
        ...         x.cumprod(0)
        ...     return recorder.count(), recorder.events[0].op, recorder.events[0].site
        >>> tessera.run_ranks(2, show)[0]
        (1, 'all_to_all', 'aten::cumprod')

    `where` is the mesh or world to listen to; by default the calling rank's world.
    """

    def __init__(self, where: DeviceMesh | World | None = None):
        super().__init__(_world(where))

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def expect(self, expected: str) -> None:
        """Raises with the difference unless what was recorded is as expected (see expect_comm)."""
        _C.expect_comm(self, expected)


@contextmanager
def expect_comm(expected: str, where: DeviceMesh | World | None = None) -> Iterator[Recorder]:
    """The communication that a block of code is allowed; anything else raises with the difference.

        with expect_comm("2 all_gather on tp, 1 all_reduce, 0 implicit"): ...
        with expect_comm("nothing"): ...
    """
    with Recorder(where) as recorder:
        yield recorder
    recorder.expect(expected)


def write_trace(path: str | PathLike[str], recorders: Recorder | Sequence[Recorder]) -> None:
    """Writes what was recorded as a file for chrome://tracing or ui.perfetto.dev."""
    several = [recorders] if isinstance(recorders, _C.Recorder) else list(recorders)
    Path(path).write_text(_C.trace_json(several), encoding="utf-8")
