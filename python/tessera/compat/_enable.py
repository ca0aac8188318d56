"""enable(): programs that import torch.distributed.tensor, unchanged, get this library's names.

    tessera.compat.enable()
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor      # this library's

The modules stay PyTorch's own objects, so `import torch.distributed.tensor as dt` from before enable() follows too,
and so does attribute access. They look at who asks: a program gets the names of NAMES from this package; PyTorch's
own code (torch.distributed.checkpoint, FullyShardedDataParallel, torch.compile, ...) gets PyTorch's, and works as it
does beside `import tessera.compat`. A name that this package does not have is PyTorch's for everybody: what is
private there acts on PyTorch's DTensors alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from types import ModuleType
from typing import Any

import torch

from ._text import install as _print_as_pytorch
from ._text import uninstall as _print_own_texts

_TENSOR = "torch.distributed.tensor"
_CONTEXT = f"{_TENSOR}.experimental._context_parallel"
_FSDP = "torch.distributed.fsdp"

# Modules of PyTorch, and those of this package that have their names. What both have is taken from here.
NAMES: dict[str, tuple[str, ...]] = {
    _TENSOR: ("",),
    f"{_TENSOR}._api": ("_api", "placement_types", "device_mesh", "_dtensor_spec"),
    f"{_TENSOR}._collective_utils": ("_collective_utils",),
    f"{_TENSOR}._dtensor_spec": ("_dtensor_spec", "placement_types", "device_mesh"),
    f"{_TENSOR}._random": ("_random",),
    f"{_TENSOR}._utils": ("_utils",),
    f"{_TENSOR}.debug": ("debug",),
    f"{_TENSOR}.debug._comm_mode": ("debug",),
    f"{_TENSOR}.debug._visualize_sharding": ("debug",),
    f"{_TENSOR}.device_mesh": ("device_mesh",),
    f"{_TENSOR}.experimental": ("experimental",),
    f"{_TENSOR}.experimental._attention": ("experimental._attention",),
    f"{_TENSOR}.experimental._func_map": ("experimental",),
    f"{_TENSOR}.experimental._register_sharding": ("experimental",),
    f"{_TENSOR}.experimental._tp_transform": ("experimental",),
    _CONTEXT: ("experimental._context_parallel",),
    f"{_CONTEXT}._attention": ("experimental._context_parallel._attention",),
    f"{_CONTEXT}._cp_custom_ops": ("experimental._context_parallel._cp_custom_ops",),
    f"{_CONTEXT}._load_balancer": ("experimental._context_parallel._load_balancer",),
    f"{_TENSOR}.parallel": ("parallel",),
    f"{_TENSOR}.parallel._data_parallel_utils": ("parallel._data_parallel_utils",),
    f"{_TENSOR}.parallel.api": ("parallel.api",),
    f"{_TENSOR}.parallel.ddp": ("parallel.ddp",),
    f"{_TENSOR}.parallel.fsdp": ("parallel.fsdp",),
    f"{_TENSOR}.parallel.input_reshard": ("parallel.input_reshard",),
    f"{_TENSOR}.parallel.loss": ("parallel.loss",),
    f"{_TENSOR}.parallel.style": ("parallel.style",),
    f"{_TENSOR}.placement_types": ("placement_types",),
    "torch.distributed._tensor": ("",),
    "torch.distributed._tensor.api": ("_api",),
    "torch.distributed._tensor.placement_types": ("placement_types", "_dtensor_spec"),
    "torch.distributed.device_mesh": ("device_mesh",),
    _FSDP: ("fsdp",),
    f"{_FSDP}._fully_shard": ("fsdp",),
    f"{_FSDP}._fully_shard._fsdp_api": ("fsdp",),
    f"{_FSDP}._fully_shard._fsdp_common": ("fsdp",),
    f"{_FSDP}._fully_shard._fully_shard": ("fsdp",),
    "torch.distributed._composable.fsdp": ("fsdp",),
    "torch.distributed._composable.fsdp.fully_shard": ("fsdp",),
    "torch.distributed._composable.replicate_with_fsdp": ("replicate_with_fsdp",),
}

# Names of torch.distributed itself, which PyTorch's own code does not use by these: they are set.
_OF_TORCH_DISTRIBUTED = ("DeviceMesh", "init_device_mesh")

# Who is answered as a program although it is part of torch: PyTorch's tests, and DistributedDataParallel, which
# prepares tensor-parallel modules.
_PROGRAMS_IN_TORCH = ("torch.testing.", "torch.nn.parallel.distributed")

_lock = threading.Lock()
_enabled: dict[ModuleType, type[ModuleType]] = {}  # the modules, and their classes before
_replaced: dict[str, Any] = {}  # the names of torch.distributed, and PyTorch's objects


def _asked_by_program(name: str) -> bool:
    """Of the attribute `name`: whether the caller's caller is no code of PyTorch or of this library."""
    frame = sys._getframe(2)
    caller = str(frame.f_globals.get("__name__", ""))
    if not caller.startswith(("torch.", "tessera.")) or caller.startswith(_PROGRAMS_IN_TORCH):
        return True
    # torch.compile evaluates attributes that the program names, and guards them. Those that it names itself are
    # in its code, or in the table of trace_rules.
    is_compiler = caller.startswith("torch._dynamo.") and caller != "torch._dynamo.trace_rules"
    return is_compiler and name not in frame.f_code.co_names


def _redirected(homes: dict[str, ModuleType]) -> type[ModuleType]:
    """The class of a module that takes these names from these modules when a program asks."""

    class Redirected(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name in homes and _asked_by_program(name):
                return getattr(homes[name], name)
            return super().__getattribute__(name)

        def __setattr__(self, name: str, value: Any) -> None:
            if name in homes and _asked_by_program(name):
                setattr(homes[name], name, value)
            else:
                super().__setattr__(name, value)

    return Redirected


def _homes(theirs: ModuleType, ours: tuple[str, ...]) -> dict[str, ModuleType]:
    """Where this package has the module's names."""
    homes: dict[str, ModuleType] = {}
    for path in reversed(ours):
        module = importlib.import_module(f"{__package__}.{path}".rstrip("."))
        for name, value in vars(module).items():
            is_name = not name.startswith("__") and not isinstance(value, ModuleType)
            if is_name and name in vars(theirs):
                homes[name] = module
    return homes


def _add_imported_names(redirected: list[tuple[ModuleType, dict[str, ModuleType]]]) -> None:
    """PyTorch's modules have names of each other too: DTensor is also that of ....parallel.style. What is this
    library's in one of them is so in all."""
    known: dict[int, ModuleType] = {}  # by PyTorch's object
    for theirs, homes in redirected:
        for name, home in homes.items():
            value = vars(theirs)[name]
            if getattr(value, "__name__", None) == name:
                known[id(value)] = home
    for theirs, homes in redirected:
        for name, value in vars(theirs).items():
            if id(value) in known and getattr(value, "__name__", None) == name:
                homes.setdefault(name, known[id(value)])


def _exists(path: str) -> bool:
    """Older releases of PyTorch do not have every module."""
    try:
        return importlib.util.find_spec(path) is not None
    except ModuleNotFoundError:
        return False


def _warm_up_pytorch() -> None:
    """PyTorch's C++ code finds DTensor and its kin in these modules once, at its first operator on a DTensor, and no
    frame tells that it is the one who asks. So it finds them here, before a program can be answered otherwise."""
    theirs = importlib.import_module(_TENSOR)
    mesh = theirs.DeviceMesh("cpu", [0], _init_backend=False, _rank=0)
    one = theirs.DTensor.from_local(torch.ones(1, 1), mesh, [theirs.Replicate()], run_check=False)
    one.add_(one @ one + torch.ones(()))
    torch.add(one, one, out=one)


def enable() -> None:
    """From now on programs get this library's names from PyTorch's modules of DTensor, FSDP2 and device meshes.

    Works before and after these are imported; names that a program has imported already stay what they are. A second
    call does nothing. Placements and sharded tensors print as PyTorch's (_text.py). `python -m tessera.compat program.py`
    calls it before the program starts.
    """
    with _lock:
        if not _enabled:
            _redirect()


def _redirect() -> None:
    _warm_up_pytorch()
    redirected = [
        (theirs, _homes(theirs, ours))
        for theirs, ours in ((importlib.import_module(p), NAMES[p]) for p in NAMES if _exists(p))
    ]
    _add_imported_names(redirected)
    for theirs, homes in redirected:
        _enabled[theirs] = type(theirs)
        theirs.__class__ = _redirected(homes)
    device_mesh = importlib.import_module(f"{__package__}.device_mesh")
    for name in _OF_TORCH_DISTRIBUTED:
        _replaced[name] = getattr(torch.distributed, name)
        setattr(torch.distributed, name, getattr(device_mesh, name))
    _print_as_pytorch()


def disable() -> None:
    """Undoes enable(): the modules are as they were. What a program has imported meanwhile stays this library's."""
    with _lock:
        for theirs, before in _enabled.items():
            theirs.__class__ = before
        for name, value in _replaced.items():
            setattr(torch.distributed, name, value)
        _enabled.clear()
        _replaced.clear()
        _print_own_texts()


__all__ = ["disable", "enable"]
