"""Functions of torch that are written in Python and make tensors of their own on the way.

What they make is the same on every rank, so inside them plain tensors count as replicated, as inside
libtorch's own composite ops: those that draw numbers get a generator whose seed the ranks share. What
the caller passes is held to the usual rule.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

from . import _C, factories
from .placement import Replicate

_FUNCTIONS = (
    (torch, "svd_lowrank"),
    (torch, "pca_lowrank"),
    (torch, "lobpcg"),
    (torch, "unravel_index"),
    (torch.masked, "mean"),
    (torch.masked, "std"),
    (torch.masked, "var"),
    (torch.nn.functional, "embedding_bag"),
    (torch.nn.functional, "fractional_max_pool2d"),
    (torch.nn.functional, "fractional_max_pool2d_with_indices"),
    (torch.nn.functional, "fractional_max_pool3d"),
    (torch.nn.functional, "fractional_max_pool3d_with_indices"),
    (torch.nn.functional, "linear_cross_entropy"),
)


# Their numbers come from the rank's generator, which nothing keeps alike on all ranks.
_DRAWING = {"svd_lowrank", "pca_lowrank", "lobpcg"} | {
    name for _, name in _FUNCTIONS if name.startswith("fractional_max_pool")
}


@contextlib.contextmanager
def _same_draws(mesh: Any) -> Iterator[None]:
    """The default generators draw the same numbers on all ranks of the mesh, and go on afterwards
    where they were."""
    seed = factories.rand(1, dtype=torch.float64, device_mesh=mesh, placements=[Replicate()] * mesh.ndim)
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(int(_C.to_local(seed, None).item() * 2**53))
        yield


def _computes_as_plain(tensor: torch.Tensor) -> bool:
    """Whether a sharded tensor is whole and plain where plain tensors meet it: a parameter of
    fully_shard that is sharded over no other axes, or a view of one at any depth."""
    base = tensor if tensor._base is None else tensor._base
    return _C.in_group(base) and _C.unsharded_sharding(base) is None


def _all_compute_as_plain(tensors: list[torch.Tensor]) -> bool:
    return all(not _C.is_dtensor(tensor) or _computes_as_plain(tensor) for tensor in tensors)


def _check_plain(name: str, tensors: list[torch.Tensor]) -> None:
    if _C.ImplicitReplication.current():
        return
    for tensor in tensors:
        if not _C.is_dtensor(tensor) and tensor.numel() != 1:
            raise _C.InvalidArgument(
                f"{name}: a plain tensor of shape {tuple(tensor.shape)} among sharded ones; "
                "distribute it, or take plain tensors as replicated with implicit_replication()"
            )


def _composite(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        tensors = [
            leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
        ]
        if _all_compute_as_plain(tensors):
            return function(*args, **kwargs)
        _check_plain(function.__name__, tensors)
        # Their derivatives, where those are written in Python too, make plain gradients.
        args, kwargs = pytree.tree_map_only(torch.Tensor, _C.with_placed_gradient, (args, kwargs))
        draws: Any = contextlib.nullcontext()
        if function.__name__ in _DRAWING:
            draws = _same_draws(next(_C.device_mesh(tensor) for tensor in tensors if _C.is_dtensor(tensor)))
        with draws, _C.CompositeScope():
            result = function(*args, **kwargs)
        _take_in_derivatives()
        return result

    return wrapped


def _in_scope(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with _C.CompositeScope():
            return function(*args, **kwargs)

    return wrapped


def _unchunked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that works through its batch in chunks if it is given options: of a sharded batch
    each rank has its part only, and the chunks of the whole would have to be gathered."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if any(_C.is_dtensor(arg) for arg in args if isinstance(arg, torch.Tensor)):
            kwargs["options"] = None
        return function(*args, **kwargs)

    return wrapped


# Under vmap, libtorch's batching rules make indexes of their own.
_BATCHED = ((torch.nn.functional, "embedding"),)


def _unwrapped(tree: Any) -> list[torch.Tensor]:
    """The tensors inside, without the wrappers of torch.func's levels."""
    tensors = []
    for leaf in pytree.tree_leaves(tree):
        while isinstance(leaf, torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(leaf):
            leaf = torch._C._functorch.get_unwrapped(leaf)
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
    return tensors


def _refused_on_threads(make_dual: Callable[..., Any]) -> Callable[..., Any]:
    """Thread ranks would take and end each other's levels of forward-mode derivatives. The dispatcher refuses
    tangents too, but sees none of those that vmap batches, as in jacfwd and hessian."""

    @functools.wraps(make_dual)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for tensor in _unwrapped((args, kwargs)):
            if not _C.is_dtensor(tensor):
                continue
            world = _C.world_of(_C.sharding(tensor).mesh)
            if world.kind == "threads" and world.size > 1:
                raise _C.NotSupported(
                    "forward-mode derivatives (jvp, jacfwd, hessian, forward_ad) on thread ranks: libtorch "
                    "has one list of their levels for all threads of a process; run the ranks as processes "
                    "(tessera launch), or use reverse mode (vjp, jacrev)"
                )
        return make_dual(*args, **kwargs)

    return wrapped


def _batched(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if torch._C._functorch.maybe_current_level() is None:
            return function(*args, **kwargs)
        tensors = _unwrapped((args, kwargs))
        if _all_compute_as_plain(tensors):
            return function(*args, **kwargs)
        _check_plain(function.__name__, tensors)
        with _C.CompositeScope():
            return function(*args, **kwargs)

    return wrapped


@functools.cache
def _take_in(op: Any) -> None:
    """Derivatives of these functions that are custom ops in Python are torch's own too."""
    op._backward_fn = _in_scope(op._backward_fn)


def _take_in_derivatives() -> None:
    losses = sys.modules.get("torch.nn.modules.linear_cross_entropy")  # imported by the first call
    for op in vars(losses).values() if losses is not None else ():
        if getattr(op, "_backward_fn", None) is not None:
            _take_in(op)


def install() -> None:
    for module, name in _FUNCTIONS:
        function = getattr(module, name, None)  # some are not in every version of torch
        if function is not None:
            if name == "linear_cross_entropy":
                function = _unchunked(function)
            setattr(module, name, _composite(function))
    for module, name in _BATCHED:
        setattr(module, name, _batched(getattr(module, name)))
    forward_ad = torch.autograd.forward_ad
    forward_ad.make_dual = _refused_on_threads(forward_ad.make_dual)
    lobpcg = getattr(torch._lobpcg, "LOBPCGAutogradFunction", None)
    if lobpcg is not None:
        lobpcg.backward = staticmethod(_in_scope(lobpcg.backward))
