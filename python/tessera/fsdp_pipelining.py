"""Zero-bubble schedules of torch.distributed.pipelining on parameters of fully_shard.

They compute the gradients of a stage's inputs and of its weights apart. For the weights they take
torch.autograd.grad, which reduces nothing, and assign what it gives to weight.grad; PyTorch reduces that itself for
its own FSDPModule. Here such a gradient goes to the parameter's group instead, as that of any backward does: it is
reduced, or kept while set_requires_gradient_sync(module, False) says so.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from . import _C

_USERS = ("torch.distributed.pipelining._backward", "torch.distributed.pipelining.stage")
_FUNCTION = "stage_backward_weight"


class _Collector:
    """Takes a parameter's place in PyTorch's function, and keeps what is assigned to its grad."""

    def __init__(self, parameter: torch.Tensor):
        self.parameter = parameter
        self.requires_grad = parameter.requires_grad
        self.grad_fn = parameter.grad_fn
        self.grad: torch.Tensor | None = None

    def view_as(self, _: Any) -> torch.Tensor:
        return self.parameter.view_as(self.parameter)


@contextlib.contextmanager
def _without_hooks(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """torch.autograd.grad has called them already."""
    taken = [(p._backward_hooks, dict(p._backward_hooks)) for p in parameters if p._backward_hooks]
    for hooks, _ in taken:
        hooks.clear()
    try:
        yield
    finally:
        for hooks, before in taken:
            hooks.update(before)


def _backward_of(collectors: Iterable[_Collector]) -> None:
    """One backward for all of them, so that a group reduces once."""
    arrived = [collector for collector in collectors if collector.grad is not None]
    if not arrived:
        return
    parameters = [collector.parameter for collector in arrived]
    with _without_hooks(parameters):
        torch.autograd.backward(parameters, [collector.grad for collector in arrived])


def _replacing(plain: Any) -> Any:
    @functools.wraps(plain)
    def stage_backward_weight(weights: Iterable[torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        weights = list(weights)
        collectors = {i: _Collector(w) for i, w in enumerate(weights) if _C.in_group(w)}
        before = plain(iter([collectors.get(i, w) for i, w in enumerate(weights)]), *args, **kwargs)
        grads = [collectors[i].parameter.grad if i in collectors else g for i, g in enumerate(before)]
        _backward_of(collectors.values())
        return tuple(grads)

    stage_backward_weight.of_tessera = True  # type: ignore[attr-defined]
    return stage_backward_weight


def install_if_imported() -> None:
    """Replaces PyTorch's function once the program has imported it, which takes a second."""
    for name in _USERS:
        plain = getattr(sys.modules.get(name), _FUNCTION, None)
        if plain is not None and not hasattr(plain, "of_tessera"):
            setattr(sys.modules[name], _FUNCTION, _replacing(plain))
