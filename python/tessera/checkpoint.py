"""Checkpoints that any mesh can load: PyTorch's distributed checkpoint directories, written safely.

    tessera.save({"model": model.state_dict(), "step": 100}, "step_100")
    state = {"model": model.state_dict(), "step": 0}
    tessera.load(state, "step_100")          # on other ranks, in other placements; writes in place

`torch.distributed.checkpoint` loads what save() wrote, and load() what it saved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import torch

from . import _C
from .ranks import current_world

_Path = tuple[Union[str, int], ...]


@dataclass(frozen=True)
class LoadReport:
    """What a checkpoint and a state do not have in common."""

    missing: list[str]
    unexpected: list[str]


_Box = tuple[tuple[int, ...], tuple[int, ...]]


def write_items(name: str, tensor: torch.Tensor) -> list[_Box]:
    """Which boxes of the tensor this rank writes, as (begin, end). Of copies on several ranks one is
    written; the name decides by which rank."""
    return _C.write_items(name, tensor)


def chunk_list(tensor: torch.Tensor) -> list[_Box]:
    """Every box that this rank holds: several of a strided shard, none outside of the mesh."""
    return _C.chunk_list(tensor)


def tensor_shard(tensor: torch.Tensor, offset: Sequence[int]) -> torch.Tensor:
    """This rank's memory of the held box that begins at `offset`."""
    return _C.tensor_shard(tensor, offset)


def _is_leaf(value: Any) -> bool:
    """PyTorch's rule: dicts are opened, and lists that hold a tensor or a dict somewhere."""
    if isinstance(value, Mapping) or _is_stateful(value):
        return False
    if not isinstance(value, list):
        return True
    return all(not isinstance(entry, torch.Tensor) and _is_leaf(entry) for entry in value)


def _is_stateful(value: Any) -> bool:
    """PyTorch's Stateful: a module, an optimizer, a scheduler, a data loader."""
    methods = (getattr(value, name, None) for name in ("state_dict", "load_state_dict"))
    return not isinstance(value, (type, Mapping)) and all(map(callable, methods))


class _Flat:
    """The values of a nested state by name, and where each of them is."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = {}
        self.paths: dict[str, _Path] = {}
        self.stateful: list[tuple[Any, Any]] = []  # objects, and the dicts that they gave
        self._places: dict[str, tuple[Any, Any]] = {}  # containers and keys
        if not isinstance(state, Mapping):
            raise _C.InvalidArgument(f"a state is a dict of names and values, not a {type(state).__name__}")
        for key, member in state.items():
            self._visit((str(key),), member, (state, key))

    def _visit(self, path: _Path, value: Any, place: tuple[Any, Any]) -> None:
        if _is_stateful(value):
            given = value.state_dict()
            self.stateful.append((value, given))
            value = given
        if isinstance(value, Mapping):
            for key, member in value.items():
                self._visit((*path, str(key)), member, (value, key))
        elif not _is_leaf(value):
            for index, member in enumerate(value):
                self._visit((*path, index), member, (value, index))
        else:
            name = ".".join(map(str, path))
            if name in self.values:
                raise _C.InvalidArgument(f"two values of the state have the name {name}")
            self.values[name] = value
            self.paths[name] = path
            self._places[name] = place

    def set(self, name: str, value: Any) -> None:
        container, key = self._places[name]
        container[key] = value


def _flatten(state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, _Path]]:
    flat = _Flat(state)
    return flat.values, flat.paths


def save(
    state: Mapping[str, Any], directory: str | os.PathLike[str], *, spare: str | os.PathLike[str] | None = None
) -> None:
    """Writes nested dicts and lists of tensors (plain, sharded, of fully_shard), numbers, text, bytes
    and tuples, and objects that have state_dict() and load_state_dict(): modules, optimizers, data
    loaders. Every rank calls it; each writes its own parts, replicated ones are written once. The
    directory is replaced at once: an interrupted or failed save leaves what was there.

    `spare` is a directory, of the same file system and for nothing else, in which the files of the
    checkpoint that is replaced are kept; the next save overwrites them. Virtual disks take such blocks about
    twice as fast as new ones, for the space of one more checkpoint.

        >>> def show(rank):
        ...     mesh = tessera.init_device_mesh("dp=2")
        ...     w = tessera.distribute_tensor(torch.arange(4.0), mesh, "S0")
        ...     tessera.save({"model": {"w": w}, "step": 3}, folder + "/step_3")
        ...     state = {"model": {"w": torch.zeros(4)}, "step": 0}
        ...     tessera.load(state, folder + "/step_3")
        ...     return state
        >>> import tempfile; folder = tempfile.mkdtemp()
        >>> tessera.run_ranks(2, show)[1]
        {'model': {'w': tensor([0., 1., 2., 3.])}, 'step': 3}
    """
    _C.save_state(lambda: _flatten(state), directory, spare, current_world())


def save_step(
    state: Mapping[str, Any],
    root: str | os.PathLike[str],
    step: int,
    *,
    keep: int = 0,
    spare: str | os.PathLike[str] | None = None,
) -> None:
    """save() to root/step_<step>; of the checkpoints there the last `keep` stay, with 0 all of them."""
    _C.save_step(lambda: _flatten(state), root, step, keep, spare, current_world())


def latest_step(root: str | os.PathLike[str]) -> int | None:
    """The last step that has a checkpoint; None if there is none."""
    return _C.latest_step(root)


def step_path(root: str | os.PathLike[str], step: int) -> str:
    """The directory of a step's checkpoint."""
    return _C.step_path(root, step)


class AsyncSaver:
    """Saves in the background: save() returns when the tensors are copied to memory of the CPU, and a
    thread writes the copy. An error is raised by the next save() or wait(), on every rank; a second
    save() waits for the first, or raises with `refuse_when_busy`. Call wait() before the program ends."""

    def __init__(self, *, refuse_when_busy: bool = False) -> None:
        self._saver = _C.AsyncSaver(refuse_when_busy)

    def save(
        self,
        state: Mapping[str, Any],
        directory: str | os.PathLike[str],
        *,
        spare: str | os.PathLike[str] | None = None,
    ) -> None:
        self._saver.save(lambda: _flatten(state), directory, spare, current_world())

    def wait(self) -> None:
        """Blocks until the checkpoint is in place, on every rank."""
        self._saver.wait()

    def busy(self) -> bool:
        """Whether this rank's thread still writes."""
        return self._saver.busy()


def save_safetensors(
    tensors: Mapping[str, torch.Tensor],
    path: str | os.PathLike[str],
    *,
    max_file_bytes: int = 5_000_000_000,
) -> None:
    """Writes tensors, plain or sharded, as safetensors: one file if the path ends so, else a directory as
    transformers makes it. Every rank calls it and writes its parts; nothing is gathered. load() reads it."""
    _C.save_safetensors(lambda: (dict(tensors), {}), path, max_file_bytes, current_world())


def load(
    state: MutableMapping[str, Any],
    directory: str | os.PathLike[str],
    *,
    allow_missing: bool = False,
    allow_unexpected: bool = False,
    renames: Mapping[str, str] | None = None,
    cast: bool = False,
    verify: bool = True,
) -> LoadReport:
    """Reads a checkpoint into the tensors of the state, sharded as they are, and sets its other values.
    Names, shapes and types must fit unless the options allow otherwise; `cast` converts elements;
    `renames` are regular expressions for names of the checkpoint and what they become, or globs
    ({"glob:module.*.weight": "layers.*.w"}). All errors, damaged files among them, come on every rank and
    before anything has changed. Objects get their part by load_state_dict()."""
    flat: list[_Flat] = []

    def flatten() -> tuple[dict[str, Any], dict[str, _Path]]:
        flat.append(_Flat(state))
        return flat[0].values, flat[0].paths

    missing, unexpected, values = _C.load_state(
        flatten,
        directory,
        allow_missing,
        allow_unexpected,
        list((renames or {}).items()),
        cast,
        verify,
        current_world(),
    )
    for name, value in values.items():
        if name not in missing:
            flat[0].set(name, value)
    for stateful, given in flat[0].stateful:
        stateful.load_state_dict(given)
    return LoadReport(missing, unexpected)
