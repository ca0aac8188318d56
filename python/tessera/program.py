"""Exported programs (`.pt2`), run by the C++ part."""

import os
from collections.abc import Mapping, Sequence
from typing import Any, overload

import torch

from . import _C
from .ranks import current_world


class _Runnable:
    """What programs of one rank and of several have in common."""

    _program: _C.Program | _C.ShardedProgram

    @property
    def input_names(self) -> list[str]:
        """In the order in which `run` takes them."""
        return self._program.input_names

    @property
    def output_names(self) -> list[str]:
        """In the order in which `run` gives them."""
        return self._program.output_names

    @overload
    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]: ...
    @overload
    def run(self, inputs: Sequence[Any]) -> list[Any]: ...
    def run(self, inputs: Mapping[str, Any] | Sequence[Any]) -> dict[str, Any] | list[Any]:
        """The results for these inputs: by name for a mapping, else by position. Collective if the
        program is sharded."""
        if isinstance(inputs, Mapping):
            return self._program.run_named(dict(inputs))
        return self._program.run(list(inputs))


class Program(_Runnable):
    """An exported program that torch.export.save wrote, run by the C++ library.

    The results are those of `torch.export.load(path).module()`, to the bit, without gradients.
    Nested arguments and results are flat here, named by their paths:

        program = tessera.load_program("model.pt2")
        program.input_names                     # ["tokens", "extra.shift"]
        logits, best = program.run([tokens, shift])
        program.run({"tokens": tokens, "extra.shift": shift})["logits"]
    """

    _program: _C.Program

    def __init__(self, program: _C.Program) -> None:
        self._program = program

    @property
    def path(self) -> str:
        """The file."""
        return self._program.path

    def tensor(self, name: str) -> torch.Tensor:
        """A parameter, buffer or constant by its name in the model; writes change later runs."""
        return self._program.tensor(name)


def load_program(
    path: str | os.PathLike[str], *, device: str | torch.device | None = None
) -> Program:
    """Loads a `.pt2` file; `device` moves the whole program, weights and computation."""
    return Program(_C.Program.load(os.fspath(path), None if device is None else str(device)))


class ShardedProgram(_Runnable):
    """A program that `tessera shard` or `shard_program` made for several ranks, on one of them.

    Every rank loads the directory, or the file of all ranks, and runs it with the same whole inputs; all
    get the whole results:

        program = tessera.load_sharded_program("llama_tp4")     # torchrun --nproc-per-node 4
        logits, = program.run([tokens])
    """

    _program: _C.ShardedProgram

    def __init__(self, program: _C.ShardedProgram) -> None:
        self._program = program

    @property
    def mesh(self) -> str:
        """What it was sharded for: "tp=4"."""
        return self._program.mesh


def load_sharded_program(
    directory: str | os.PathLike[str], *, device: str | torch.device | None = None
) -> ShardedProgram:
    """Loads this rank's program of a directory, or of a file of all ranks; as many ranks as its mesh has
    call it."""
    return ShardedProgram(
        _C.ShardedProgram.load(
            os.fspath(directory), current_world(), None if device is None else str(device)
        )
    )
