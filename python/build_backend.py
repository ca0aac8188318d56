"""What `pip install .` builds with: scikit-build-core, against the torch of the environment.

A build isolated by pip sees only what it asked for, but the wheel must fit the torch that it will be
used with. So torch is asked for only where the environment has none that fits; CMakeLists.txt finds
the one that is there (python/find_torch.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from scikit_build_core import build as _build
from scikit_build_core.build import (  # noqa: F401 - the hooks that stay as they are
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

_FIND_TORCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "find_torch.py")
_TORCH = "torch>=2.11,<2.14"


def _requires_torch() -> list[str]:
    found = subprocess.run([sys.executable, _FIND_TORCH], capture_output=True, text=True)
    return [] if found.returncode == 0 else [_TORCH]


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _build.get_requires_for_build_wheel(config_settings) + _requires_torch()


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _build.get_requires_for_build_editable(config_settings) + _requires_torch()
