"""`python -m tessera ...` and the command `tessera`: the command line of the C++ library.

    tessera launch -n 4 python train.py      four ranks on this host
    tessera explain aten::mm dp=2,tp=4 ...   what an op would do
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

_PROGRAM = Path(__file__).parent / "bin" / "tessera"


def _environment() -> dict[str, str]:
    """The program finds a torch that is installed beside this package; another one is passed to it."""
    environment = dict(os.environ)
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return environment
    torch = Path(spec.origin).parent
    if torch.parent != Path(__file__).parent.parent:
        paths = [str(torch / "lib"), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, paths))
    return environment


def main() -> None:
    if not _PROGRAM.exists():
        sys.exit(f"tessera: {_PROGRAM} is not there; this package was built without the command line")
    os.execve(_PROGRAM, ["tessera", *sys.argv[1:]], _environment())


if __name__ == "__main__":
    main()
