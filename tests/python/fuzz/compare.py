"""Whether a rank found what the plain run found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

RELATIVE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 3e-2}


def first_difference(
    expected: dict[str, Any], found: dict[str, Any], rounded: Callable[[str], torch.dtype | None] = lambda name: None
) -> str:
    """The first variable that is not right, and how; empty if all are. `rounded` says which of them
    have the digits of another type than their own. Of a tensor on meta only shape and type count."""
    for name, want in expected.items():
        if name not in found:
            return f"{name} is missing"
        if difference := _difference(want, found[name], rounded(name)):
            return f"{name}: {difference}"
    if more := [name for name in found if name not in expected]:
        return f"{more[0]} should not be there"
    return ""


def _is_tensor(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], torch.Tensor)


def _difference(want: Any, have: Any, rounded: torch.dtype | None) -> str:
    if _is_tensor(want):
        if not _is_tensor(have):
            return f"expected a tensor, found {have!r}"
        if want[1] != have[1]:
            return f"requires_grad is {have[1]}"
        return _tensor_difference(want[0], have[0], rounded)
    if isinstance(want, list):
        if not isinstance(have, list) or len(have) != len(want):
            return f"expected {len(want)} values, found {have!r}"
        each = (_difference(w, h, rounded) for w, h in zip(want, have, strict=True))
        return next(filter(None, each), "")
    if isinstance(want, (float, complex)):
        return _difference((torch.tensor(want), False), (torch.tensor(have), False), rounded)
    return "" if want == have else f"expected {want!r}, found {have!r}"


def _tensor_difference(want: torch.Tensor, have: torch.Tensor, rounded: torch.dtype | None) -> str:
    if want.shape != have.shape:
        return f"shape {tuple(have.shape)}, expected {tuple(want.shape)}"
    if want.dtype != have.dtype:
        return f"{have.dtype}, expected {want.dtype}"
    if not want.numel() or have.is_meta:
        return ""
    if not want.is_floating_point() and not want.is_complex():
        wrong = want != have
    else:
        relative = RELATIVE[want.dtype.to_real()]
        if rounded:
            relative = max(relative, RELATIVE[rounded])
        scale = max(1.0, float(want.abs().max()))
        wrong = ~((want - have).abs() <= relative * scale) & ~(want.isnan() & have.isnan())
    if not wrong.any():
        return ""
    place = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{int(wrong.sum())} of {want.numel()} values are wrong, the first at {list(place)}: "
        f"{have[place].item()!r}, expected {want[place].item()!r}"
    )
