"""Defects put in on purpose, to see that the fuzzer finds them: TESSERA_FUZZ_PLANT names one.

    number     masked_fill of a sharded tensor uses the number of its first call
    gradient   a write to a view of a sharded tensor gives a wrong gradient
    copy       on rank 1 alone, tanh of a sharded tensor is off by a little
"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch

import tessera

_here = threading.local()


def _number() -> None:
    right = torch.Tensor.masked_fill

    def masked_fill(self: torch.Tensor, mask: torch.Tensor, number: Any) -> torch.Tensor:
        if tessera.is_dtensor(self):
            first = _here.__dict__.setdefault("first", {})
            number = first.setdefault(str(tessera.sharding(self)), number)
        return right(self, mask, number)

    torch.Tensor.masked_fill = masked_fill  # type: ignore[method-assign,assignment]


def _gradient() -> None:
    for name in ("mul_", "add_", "sub_", "div_", "neg_", "tanh_", "sigmoid_", "sin_"):
        setattr(torch.Tensor, name, _with_wrong_gradient(getattr(torch.Tensor, name)))


def _with_wrong_gradient(right: Any) -> Any:
    def write(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = right(self, *args, **kwargs)
        recorded = torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        if recorded and tessera.is_dtensor(self) and self._is_view() and self.requires_grad:
            self._base.register_hook(lambda g: g.roll(1, -1) if g.dim() else g)
        return out

    return write


def _copy() -> None:
    right = torch.Tensor.tanh

    def tanh(self: torch.Tensor) -> torch.Tensor:
        out = right(self)
        if tessera.is_dtensor(self) and tessera.current_world().rank == 1:
            with torch.no_grad():
                tessera.to_local(out.detach()).add_(1e-3)
        return out

    torch.Tensor.tanh = tanh  # type: ignore[method-assign,assignment]


def install() -> None:
    wanted = os.environ.get("TESSERA_FUZZ_PLANT")
    if wanted:
        {"number": _number, "gradient": _gradient, "copy": _copy}[wanted]()
