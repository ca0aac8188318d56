"""What the wheel says of torch: the minor version of the one that it is compiled for.

scikit-build-core calls dynamic_metadata for the field `dependencies` (pyproject.toml).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

_FIND_TORCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "find_torch.py")
#: What can be compiled for.
ANY = "torch>=2.11,<2.14"


def of_environment() -> str | None:
    """"torch==2.13.*" for the torch that a build here compiles for; None if there is none."""
    found = subprocess.run(
        [sys.executable, _FIND_TORCH], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        return None
    with open(os.path.join(found.stdout.strip(), "version.py"), encoding="utf-8") as file:
        version = re.search(r"__version__ = '(\d+\.\d+)", file.read())
    return None if version is None else f"torch=={version[1]}.*"


def dynamic_metadata(field: str, settings: Mapping[str, Any] | None = None) -> list[str]:
    assert field == "dependencies" and not settings
    return [of_environment() or ANY, "numpy"]
