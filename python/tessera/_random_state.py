"""torch's seeds and random states inside thread ranks: those of the rank, not of the process.

torch.utils.checkpoint saves torch.get_rng_state() and draws again from it, so a rank that draws from
a generator of its own must be found there; otherwise its dropout would be another one in backward.
"""

from __future__ import annotations

from typing import Any

import torch

from . import _C

_plain_manual_seed = torch.manual_seed
_plain_initial_seed = torch.initial_seed
_plain_get_cpu = torch.get_rng_state
_plain_set_cpu = torch.set_rng_state
_plain_get_cuda = torch.cuda.get_rng_state
_plain_set_cuda = torch.cuda.set_rng_state


_CPU = torch.device("cpu")


def _own_generator() -> torch.Generator | None:
    """The generator of the thread rank that calls; None elsewhere."""
    found = _C.rank_generator(_CPU)
    return None if found is torch.default_generator else found


def _cuda_device(device: Any) -> torch.device:
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return found if found.index is not None else torch.device("cuda", torch.cuda.current_device())


def _manual_seed(seed: int) -> torch.Generator:
    own = _own_generator()
    if own is None:
        return _plain_manual_seed(seed)
    _C.rank_seed(int(seed) % 2**64)
    return own


def _initial_seed() -> int:
    own = _own_generator()
    return int(_plain_initial_seed() if own is None else own.initial_seed())


def _get_cpu() -> torch.Tensor:
    own = _own_generator()
    return _plain_get_cpu() if own is None else own.get_state()


def _set_cpu(new_state: torch.Tensor) -> None:
    own = _own_generator()
    if own is None:
        _plain_set_cpu(new_state)
    else:
        own.set_state(new_state)


def _get_cuda(device: Any = "cuda") -> torch.Tensor:
    if _own_generator() is None:
        return _plain_get_cuda(device)
    return _C.rank_generator(_cuda_device(device)).get_state()


def _set_cuda(new_state: torch.Tensor, device: Any = "cuda") -> None:
    if _own_generator() is None:
        _plain_set_cuda(new_state, device)
    else:
        _C.rank_generator(_cuda_device(device)).set_state(new_state)


def install() -> None:
    for module in (torch, torch.random):
        module.manual_seed = _manual_seed
        module.initial_seed = _initial_seed
        module.get_rng_state = _get_cpu
        module.set_rng_state = _set_cpu
    for module in (torch.cuda, torch.cuda.random):
        module.get_rng_state = _get_cuda
        module.set_rng_state = _set_cuda
