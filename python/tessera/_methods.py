"""Methods of torch.Tensor that access storage, which a sharded tensor does not have.

All other methods work as they are. These few ask for storage, or would communicate where the caller
does not expect it (a print on one rank), so they check first whether the tensor is sharded.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from . import _C, _pickle

_plain_repr = torch.Tensor.__repr__
_plain_deepcopy = torch.Tensor.__deepcopy__
_plain_parameter_deepcopy = torch.nn.Parameter.__deepcopy__
_plain_tolist = torch.Tensor.tolist
_plain_reduce_ex = torch.Tensor.__reduce_ex__


def describe(tensor: torch.Tensor) -> str:
    """Global shape, placements and this rank's part; no communication."""
    sharding = _C.sharding(tensor)
    rank = sharding.mesh.get_rank()
    extra = ""
    if tensor.grad_fn is not None:
        extra = f", grad_fn=<{type(tensor.grad_fn).__name__}>"
    elif tensor.requires_grad:
        extra = ", requires_grad=True"
    dtype = str(tensor.dtype).removeprefix("torch.")
    with torch.no_grad():
        local = _C.to_local(tensor.detach(), None)
    return (
        f"DTensor(shape={tuple(tensor.shape)}, dtype={dtype}, "
        f"placements={sharding.placements}, mesh='{sharding.mesh}'{extra}, "
        f"local{'' if rank is None else f' on rank {rank}'}="
        f"{_plain_repr(local)})"
    )


def _repr(self: torch.Tensor, *, tensor_contents: Any = None) -> str:
    if _C.is_dtensor(self):
        return describe(self)
    return str(_plain_repr(self, tensor_contents=tensor_contents))


def _deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> Any:
    if not _C.is_dtensor(self):
        return _plain_deepcopy(self, memo)
    if id(self) in memo:
        return memo[id(self)]
    if not self.is_leaf:
        raise RuntimeError(
            "only leaf tensors can be deep-copied; detach() this one first (or is it a "
            "non-parameter attribute of the module?)"
        )
    with torch.no_grad():
        copy = self.detach().clone(memory_format=torch.preserve_format)
    copy.requires_grad_(self.requires_grad)
    memo[id(self)] = copy
    if self.grad is not None:
        copy.grad = _deepcopy(self.grad, memo)
    return copy


def _parameter_deepcopy(self: torch.nn.Parameter, memo: dict[int, Any]) -> Any:
    # The copy would be whole: it has no group that it could be freed with.
    if id(self) not in memo and _C.is_dtensor(self) and _C.in_group(self):
        raise _C.NotSupported(
            f"a parameter of fully_shard cannot be deep-copied ({_C.sharding(self)}): copy the module "
            "before fully_shard, or load tessera.full_state_dict(module) into another one"
        )
    return _plain_parameter_deepcopy(self, memo)


def _reduce_ex(self: torch.Tensor, protocol: Any) -> Any:
    if _C.is_dtensor(self):
        return _pickle.reduce(self)
    return _plain_reduce_ex(self, protocol)


def _tolist(self: torch.Tensor) -> Any:
    # Like item(): the values, not this rank's part of them, and under implicit_comm's policy.
    return _plain_tolist(_C.read_whole(self, "tolist") if _C.is_dtensor(self) else self)


def _of_plain_tensor(name: str) -> Any:
    """A method that makes a plain tensor of the type and device of this one, from data that the program
    has (new_tensor, new). libtorch's looks for the device in the keys, where a sharded tensor's
    is not."""
    plain = getattr(torch.Tensor, name)

    @functools.wraps(plain)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _C.is_dtensor(self):
            self = torch.empty((), dtype=self.dtype, device=self.device)
        return plain(self, *args, **kwargs)

    return method


def _of_part(name: str) -> Any:
    """A question about memory that this rank's part answers."""
    plain = getattr(torch.Tensor, name)

    @functools.wraps(plain)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _C.is_dtensor(self):
            with torch.no_grad():
                self = _C.to_local(self.detach(), None)
        return plain(self, *args, **kwargs)

    return method


def _refusing(name: str) -> Any:
    """A method that addresses memory: its own for plain tensors, an error for sharded ones."""
    plain = getattr(torch.Tensor, name)

    @functools.wraps(plain)
    def method(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if _C.is_dtensor(self):
            raise _C.NotSupported(
                f"{name} of a sharded tensor {_C.sharding(self)}: no rank has all of it in its "
                f"memory; use tessera.to_local(x).{name}(...) or tessera.full_tensor(x).{name}(...)"
            )
        return plain(self, *args, **kwargs)

    return method


_ADDRESS_MEMORY = (
    "numpy",
    "data_ptr",
    "untyped_storage",
    "__array__",
    "__dlpack__",
    "share_memory_",
)


_MAKE_PLAIN_TENSORS = ("new", "new_tensor")
_ASK_FOR_PART = ("is_pinned", "is_shared")


def install() -> None:
    for names, made in (
        (_ADDRESS_MEMORY, _refusing),
        (_MAKE_PLAIN_TENSORS, _of_plain_tensor),
        (_ASK_FOR_PART, _of_part),
    ):
        for name in names:
            setattr(torch.Tensor, name, made(name))
    torch.Tensor.tolist = _tolist
    torch.Tensor.__repr__ = _repr
    torch.Tensor.__deepcopy__ = _deepcopy
    torch.nn.Parameter.__deepcopy__ = _parameter_deepcopy
    torch.Tensor.__reduce_ex__ = _reduce_ex
