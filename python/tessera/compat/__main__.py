"""`python -m tessera.compat program.py [args]`: a program for PyTorch's DTensor and FSDP2 runs, unchanged, on this
library.

    torchrun --nproc-per-node 4 -m tessera.compat train.py --steps 10
    torchrun --nproc-per-node 4 -m tessera.compat -m package.train --steps 10
"""

from __future__ import annotations

import multiprocessing.spawn
import os
import runpy
import sys
from typing import Any

from . import enable

_USAGE = """usage: python -m tessera.compat program.py [args...]
       python -m tessera.compat -m package.module [args...]
       torchrun --nproc-per-node N -m tessera.compat program.py [args...]

Runs a program that is written for torch.distributed.tensor, fully_shard and device meshes of PyTorch on tessera,
unchanged: tessera.compat.enable() is called before it starts."""


class _EnableInChild:
    """Unpickling it calls enable()."""

    def __reduce__(self) -> Any:
        return enable, ()


def _enable_in_spawned_processes() -> None:
    """A process that multiprocessing spawns imports the program anew, from what this function prepares."""
    prepare = multiprocessing.spawn.get_preparation_data

    def prepare_enabled(name: str) -> dict[str, Any]:
        return {"tessera": _EnableInChild(), **prepare(name)}

    multiprocessing.spawn.get_preparation_data = prepare_enabled


def main() -> None:
    arguments = sys.argv[1:]
    if arguments[:1] in (["-h"], ["--help"]):
        print(_USAGE)
        return
    is_module = arguments[:1] == ["-m"]
    program = arguments[is_module:]
    if not program or (program[0].startswith("-") and not is_module):
        print(_USAGE, file=sys.stderr)
        sys.exit(2)
    enable()
    _enable_in_spawned_processes()
    sys.argv = program
    if is_module:
        runpy.run_module(program[0], run_name="__main__", alter_sys=True)
        return
    if not os.path.exists(program[0]):
        sys.exit(f"python -m tessera.compat: there is no program {program[0]}")
    if not getattr(sys.flags, "safe_path", False) and os.path.isfile(program[0]):
        sys.path[0] = os.path.dirname(os.path.abspath(program[0]))  # where Python looks for a program's modules
    runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
