"""The names of torch.distributed.tensor.experimental._context_parallel._cp_custom_ops: PyTorch's own operators, which
gather plain tensors over a process group."""

from torch.distributed.tensor.experimental._context_parallel._cp_custom_ops import (
    flex_cp_allgather,
    flex_cp_allgather_backward,
)

__all__ = ["flex_cp_allgather", "flex_cp_allgather_backward"]
