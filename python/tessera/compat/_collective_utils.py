"""The names of torch.distributed.tensor._collective_utils that programs use."""

from __future__ import annotations

import torch


def pad_tensor(tensor: torch.Tensor, pad_dim: int, pad_size: int) -> torch.Tensor:
    """The tensor with `pad_size` zeros after its end along a dim."""
    if pad_size == 0:
        return tensor
    shape = list(tensor.shape)
    shape[pad_dim] = pad_size
    return torch.cat([tensor, tensor.new_zeros(shape)], pad_dim)


def unpad_tensor(tensor: torch.Tensor, pad_dim: int, pad_size: int) -> torch.Tensor:
    """The tensor without its last `pad_size` elements along a dim."""
    return tensor.narrow(pad_dim, 0, tensor.size(pad_dim) - pad_size)


__all__ = ["pad_tensor", "unpad_tensor"]
