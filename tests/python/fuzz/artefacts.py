"""Statements whose plain result is libtorch's own: its loops, its memory or its rounding decide it.

    overlap    a write that depends on the order of elements, to a tensor two of whose elements have one
               address: x.unfold(0, 2, 1).mul_(2)
    gradient   a write to a result of torch.autograd.grad that autograd made by expand: all elements of
               the plain one change, a gradient on shards has an address for each
    clone      select_scatter and its like of a tensor with shared elements: the copy that libtorch
               writes to shares them too, and so has the new values in more places
    attention  attention whose derivative depends on the kernel: that for CPUs returns gradients with odd
               strides of dims of one element, 6x6x6x1 {36,1,6,1}, which batch norm's derivative misreads
               and whether backward needs the result, so that a later write to it is an error
    saved      linear of a tensor that is not row-major saves a copy, and a view of one that is: then a
               later write to it is an error of backward
    angle      sin and cos of a large number that float32 rounded: the digits that are left decide

The plain run is repeated with a look at every op, and only after a difference was found: the ops of
autograd may differ under such a mode. A statement so found is left out, and the rest is judged again.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import compare
from execute import NotAProgram, PlainRun, run_plain
from program import Program

LARGEST_ANGLE = 100.0  # float32 leaves an error of about 1e-5 times the ops before it

_WRITTEN = "modified by an inplace operation"
_VIEWS_OR_COPIES = re.compile(r"\b(reshape|reshape_as|flatten|ravel|contiguous)\(")
_ANGLES = ("aten::sin", "aten::cos", "aten::tan")
_CLONES = ("aten::select_scatter", "aten::slice_scatter", "aten::diagonal_scatter", "aten::as_strided_scatter")
_STATISTICS = ("running_mean", "running_var")  # batch norm writes to them, and its schema does not say so
# Every element gets the same number, in any order.
_CONSTANT = ("aten::fill_", "aten::zero_", "aten::masked_fill_", "aten::index_fill_")


def shares_elements(t: torch.Tensor) -> bool:
    """Whether two elements have one address, as in unfold(0, 2, 1)."""
    places = torch.zeros((), dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(t.shape, t.stride(), strict=True)):
        shape = [-1] + [1] * (t.dim() - dim - 1)
        places = places + (torch.arange(size) * stride).view(shape)
    return places.unique().numel() < t.numel()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for item in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(item, torch.Tensor):
            yield item


def _arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    for i, argument in enumerate(func._schema.arguments):
        if i < len(args):
            yield argument, args[i]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def _is_constant(name: str, args: tuple[Any, ...]) -> bool:
    if name == "aten::index_put_":
        return args[2].numel() == 1 and not (len(args) > 3 and args[3])
    return name in _CONSTANT


class Watch(TorchDispatchMode):
    """Looks at the ops of one statement."""

    def __init__(self, gradients: list[torch.UntypedStorage]):
        super().__init__()
        self.gradients = gradients  # memory of those made by expand
        self.found = ""
        self.has_large_angle = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.found = self.found or self._reason(func, args, kwargs)
        return func(*args, **kwargs)

    def _reason(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        name = func._schema.name
        if name.removesuffix("_") in _ANGLES and args[0].numel():
            self.has_large_angle |= float(args[0].abs().max()) > LARGEST_ANGLE
        if name in _CLONES and shares_elements(args[0]):
            return f"the copy that {name} makes shares elements"
        memory = [storage.data_ptr() for storage in self.gradients]
        given = list(_arguments(func, args, kwargs))
        trains = any(argument.name == "training" and value for argument, value in given)
        for argument, value in given:
            announced = argument.alias_info is not None and argument.alias_info.is_write
            if not announced and not (trains and argument.name in _STATISTICS):
                continue
            for t in _tensors(value):
                if t.untyped_storage().data_ptr() in memory:
                    return f"{name} writes to an expanded gradient"
                if not _is_constant(name, args) and shares_elements(t):
                    return f"{name} writes to elements that share memory"
        return ""


def _last_attention(program: Program) -> int | None:
    found = [i for i, s in enumerate(program.statements) if "scaled_dot_product_attention" in s.text]
    return found[-1] if found else None


def _attention_by_kernel(program: Program) -> int | None:
    """The last attention, if another kernel gives another plain result."""
    last = _last_attention(program)
    if last is None:
        return None
    expected = run_plain(program)
    with sdpa_kernel(SDPBackend.MATH):
        other = run_plain(program)
    differs = compare.first_difference(expected.values, other.values, expected.rounded.holds)
    return last if differs else None


@contextlib.contextmanager
def _attention_of_rows() -> Iterator[None]:
    """The inputs of attention are row-major, as redistributed ones are. The kernel depends on it."""
    attention = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = lambda q, k, v, *args, **named: attention(
        q.contiguous(), k.contiguous(), v.contiguous(), *args, **named
    )
    try:
        yield
    finally:
        F.scaled_dot_product_attention = attention


class _RowMajor(TorchDispatchMode):
    """Every result is row-major. Strides of results are libtorch's choice, and those of a tensor that was
    redistributed may differ; they decide whether reshape and its like return a view or a copy."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(r.alias_info is not None for r in func._schema.returns):
            return out
        return tree_map(lambda t: t.contiguous() if isinstance(t, torch.Tensor) else t, out)


def artefact_of_error(program: Program, text: str, statement: int) -> tuple[int, str] | None:
    """What to leave out, and why, if the plain run raises too once libtorch makes other choices: the last
    attention, or the backward that found its tensors written to."""
    if _WRITTEN not in text:
        return None
    attention = re.search(r"is output 0 of ScaledDotProduct\w+", text)
    last = _last_attention(program)
    if attention and last is not None and attention[0] in _error_of(program, _attention_of_rows()):
        return last, "the error of attention depends on the kernel"
    if _WRITTEN in _error_of(program, _RowMajor()):
        return statement, "saved are views of row-major tensors, copies of others"
    return None


def _error_of(program: Program, way: contextlib.AbstractContextManager[Any]) -> str:
    """What the plain run raises within `way`; "" if it works."""
    try:
        with way:
            run_plain(program)
    except NotAProgram as raised:
        return str(raised)
    return ""


@contextlib.contextmanager
def _linear_without_views() -> Iterator[None]:
    """The result of linear is no view. libtorch flattens inputs of three dims, so there it is one: a hook
    that was registered before a write to it is not called, and is called for inputs of two dims."""
    linear = F.linear
    F.linear = lambda *args, **named: linear(*args, **named).clone()
    try:
        yield
    finally:
        F.linear = linear


@contextlib.contextmanager
def _views_replayed() -> Iterator[None]:
    """Autograd takes views of written tensors again by their ops, as it does for sharded ones, instead of
    by as_strided. The gradient that as_strided's derivative copies is then the expanded one of sum."""
    before = torch._C._is_view_replay_enabled()
    torch._C._set_view_replay_enabled(True)
    try:
        yield
    finally:
        torch._C._set_view_replay_enabled(before)


def is_another_plain_result(program: Program, found: dict[str, Any]) -> bool:
    """Whether all of `found` is what the plain run gives where libtorch itself has two ways."""
    ways: list[tuple[Callable[[], contextlib.AbstractContextManager[Any]], ...]] = [(_views_replayed,)]
    if any(_VIEWS_OR_COPIES.search(s.text) for s in program.statements):
        ways.append((_RowMajor,))
    if any("F.linear(" in s.text for s in program.statements):
        ways += [(_linear_without_views,), (_linear_without_views, _views_replayed)]
    for way in ways:
        with contextlib.ExitStack() as stack:
            for context in way:
                stack.enter_context(context())
            try:
                other = run_plain(program)
            except NotAProgram:
                continue
        if not compare.first_difference(other.values, found, other.rounded.holds):
            return True
    return False


def first_artefact(program: Program) -> tuple[int, str] | None:
    """The first such statement and what it is. Call it inside a world of one rank."""
    if (attention := _attention_by_kernel(program)) is not None:
        return attention, "the result of attention depends on the kernel"
    run = PlainRun(program)
    gradients: list[torch.UntypedStorage] = []
    for index, statement in enumerate(program.statements):
        watch = Watch(gradients)
        try:
            if statement.draws:  # on sharded tensors of one rank
                run.step(statement)
            else:
                with watch:
                    run.step(statement)
        except NotAProgram:
            return None
        if watch.has_large_angle and run.rounded.touches(statement, run.env):
            return index, "float32 rounded a large angle"
        if watch.found:
            return index, watch.found
        value = run.env.get(statement.target() or "")
        if "autograd.grad(" in statement.text and isinstance(value, torch.Tensor) and shares_elements(value):
            gradients.append(value.untyped_storage())
    return None
