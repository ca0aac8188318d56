"""The names of torch.distributed.tensor.parallel.loss."""

from ...parallel import loss_parallel

__all__ = ["loss_parallel"]
