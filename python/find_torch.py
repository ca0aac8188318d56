"""Prints the directory of the torch that an interpreter has, 2.11 to 2.13; fails if there is none.

Looks first where this process looks, then where a new one would that ignores PYTHONPATH: pip hides
the environment from a build it isolates, but only so. Imports nothing: torch takes seconds.
"""

import importlib.util
import os
import re
import subprocess
import sys


def torch_dir():
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    directory = os.path.dirname(spec.origin)
    try:
        with open(os.path.join(directory, "version.py"), encoding="utf-8") as file:
            version = re.search(r"__version__ = '(\d+)\.(\d+)", file.read())
    except OSError:
        return None
    fits = version is not None and (2, 11) <= tuple(map(int, version.groups())) < (2, 14)
    return directory if fits else None


def main():
    found = torch_dir()
    if found is None and not sys.flags.isolated:
        sys.exit(subprocess.call([sys.executable, "-I", os.path.abspath(__file__)]))
    if found is None:
        sys.exit("no torch 2.11 to 2.13 in this environment; pip install torch==2.13.0")
    print(found)


if __name__ == "__main__":
    main()
