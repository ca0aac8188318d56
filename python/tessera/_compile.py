"""torch.compile leaves code with sharded tensors to Python.

Compiled code would bypass the kernels of sharded tensors. When torch.compile asks a sharded tensor for its
memory, an error makes it run the code uncompiled, with a warning; with fullgraph=True it fails and shows the
error.
"""

from __future__ import annotations

import functools
import logging

import torch

from . import _C

_WHAT = "torch.compile on a sharded tensor"


class _Once(logging.Filter):
    """Lets the warning through once; torch has one for every function that it tries."""

    _said = False

    def filter(self, record: logging.LogRecord) -> bool:
        if _WHAT not in record.getMessage():
            return True
        first, self._said = not self._said, True
        return first


def install() -> None:
    plain = torch.Tensor.untyped_storage

    @functools.wraps(plain)
    def untyped_storage(self: torch.Tensor) -> torch.UntypedStorage:
        if _C.is_dtensor(self) and torch._guards.TracingContext.try_get() is not None:
            from torch._subclasses.fake_tensor import UnsupportedFakeTensorException

            raise UnsupportedFakeTensorException(
                f"{_WHAT} {_C.sharding(self)}: the code around it runs as it is, not compiled; "
                "compile functions of plain tensors, for example those given to local_map"
            )
        return plain(self)

    torch.Tensor.untyped_storage = untyped_storage
    logging.getLogger("torch._dynamo.utils").addFilter(_Once())
