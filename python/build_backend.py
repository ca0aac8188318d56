"""What `pip install .` builds with: scikit-build-core, against the torch of the environment.

A build isolated by pip sees only what it asked for, but the wheel must fit the torch that it will be
used with. So torch is asked for only where the environment has none that fits; CMakeLists.txt finds
the one that is there (python/find_torch.py).
"""

from __future__ import annotations

from typing import Any

import torch_requirement
from scikit_build_core import build as _build
from scikit_build_core.build import (  # noqa: F401 - the hooks that stay as they are
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)


def _requires_torch() -> list[str]:
    return [] if torch_requirement.of_environment() else [torch_requirement.ANY]


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _build.get_requires_for_build_wheel(config_settings) + _requires_torch()


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    return _build.get_requires_for_build_editable(config_settings) + _requires_torch()
