"""The names of torch.distributed.tensor.parallel._data_parallel_utils: a sharded parameter as its local
part and a spec, for wrappers that know plain parameters alone."""

from __future__ import annotations

from typing import Any

import torch

from .. import _methods
from .._api import DTensor
from .._dtensor_spec import DTensorSpec


def sync_grad_hook(grad: torch.Tensor, *, device_handle: Any = None, compute_stream: Any = None) -> Any:
    """The gradient: it is finished when a hook sees it."""
    return grad


def _flatten_tensor(tensor: torch.Tensor) -> tuple[torch.Tensor, DTensorSpec | None]:
    if not isinstance(tensor, DTensor):
        return tensor, None
    return _methods.local_tensor(tensor), _methods.spec(tensor)


def _unflatten_tensor(
    tensor: torch.Tensor, spec: DTensorSpec, *, device_handle: Any = None, compute_stream: Any = None
) -> torch.Tensor:
    """Differentiable: the gradient of the local part is that of the rank's shard."""
    return DTensor.from_local(
        tensor, spec.mesh, spec.placements, shape=spec.shape, stride=spec.stride
    )


__all__: list[str] = []
