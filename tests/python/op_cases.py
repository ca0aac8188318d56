"""One call of an operator on whole tensors and on shards: results, gradients, and what was written.

A case makes the call of a sample several times with different numbers: a decision that was made for
the first ones must not serve the next. After each call the arguments are compared too, whether
the call is meant to write to them (add_, out=) or not.
"""

from __future__ import annotations

import dataclasses
import pathlib
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import tessera
from torch.utils import _pytree as pytree

sys.path.insert(0, str(pathlib.Path(__file__).with_name("fuzz")))

import inputs as placing  # noqa: E402
from program import Input  # noqa: E402

SEED_OF_DRAWS = 1234
# Values are compared in the widest type an operator takes.
DTYPES = (torch.float64, torch.float32, torch.complex128, torch.int64, torch.bool)


@dataclasses.dataclass(frozen=True)
class Form:
    """How the operators are called."""

    dtypes: tuple[torch.dtype, ...] = DTYPES
    # Or "in_place": add_ instead of add; "out": into given tensors; "second": second derivatives too.
    way: str = "value"

    def dtype_of(self, op: Any) -> torch.dtype | None:
        supported = op.supported_dtypes("cpu")
        return next((dtype for dtype in self.dtypes if dtype in supported), None)

    def takes_integers(self) -> bool:
        return not (self.dtypes[0].is_floating_point or self.dtypes[0].is_complex)

    def function_of(self, op: Any) -> Any:
        """The function, or None where the operator has no such form. What is written to is a copy."""
        if self.way == "in_place":
            writes = op.get_inplace()
            return writes and (lambda first, *args, **kwargs: writes(first.clone(), *args, **kwargs))
        if self.way == "out":
            return op if op.supports_out else None
        if self.way == "second":
            return op if op.supports_gradgrad else None
        return op


def is_plain_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def leaves_memory_as_it_is(op: Any) -> bool:
    return "empty" in op.name


# Placements


def layouts_of(
    tensors: list[torch.Tensor], axes: int, limit: int, rng: random.Random, partial: bool
) -> Iterator[tuple[str, ...]]:
    """Placements for all tensors: the plainest ones first, then drawn ones; none twice. With
    `partial`, one of them at least has Partial inputs, if any can be."""
    seen = set()

    def new(layout: tuple[str, ...]) -> bool:
        return not (layout in seen or seen.add(layout))

    first = tuple(",".join(["S0" if t.dim() else "R"] + ["R"] * (axes - 1)) for t in tensors)
    if new(first):
        yield first
    if partial and any(can_be_partial(t) for t in tensors):
        chosen = drawn_layout(tensors, axes, rng, 0.7)
        if new(chosen):
            yield chosen
    for _ in range(limit * 4):
        if len(seen) >= limit:
            return
        drawn = drawn_layout(tensors, axes, rng, 0.15 if partial else 0.0)
        if new(drawn):
            yield drawn


def can_be_partial(tensor: torch.Tensor) -> bool:
    return bool(placing.reductions_of(tensor.dtype))


def drawn_layout(
    tensors: list[torch.Tensor], axes: int, rng: random.Random, partial: float
) -> tuple[str, ...]:
    layout = []
    for tensor in tensors:
        reductions = placing.reductions_of(tensor.dtype)
        reduction = rng.choice(reductions or ("sum",))  # one for all axes of a tensor
        share = partial if reductions else 0.0
        choices = ["R"] + [f"S{dim}" for dim in range(tensor.dim())]
        places = [
            f"P({reduction})" if rng.random() < share else rng.choice(choices) for _ in range(axes)
        ]
        layout.append(",".join(places))
    return tuple(layout)


def rounded(tensor: torch.Tensor) -> torch.Tensor:
    """Few bits, so that what ranks hold of a Partial adds up to the value exactly, in any order."""
    if not tensor.is_floating_point():
        return tensor
    by = 2.0**20 if tensor.dtype == torch.float64 else 2.0**8
    small = tensor.detach().abs() < 2.0**20
    new = torch.where(small, (tensor.detach() * by).round() / by, tensor.detach())
    return new.requires_grad_(tensor.requires_grad)


# Calls

LARGEST_GRAD = 1e3  # of the samples' small numbers, unless an operator divides by nearly nothing


def noisy(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """A copy; with a seed, of numbers that differ by rounding."""
    if not seed or not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor.clone()
    signs = torch.randint(0, 2, tensor.shape, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return tensor * (1 + signs.to(tensor.dtype) * torch.finfo(tensor.dtype).eps)


def other_numbers(leaves: list[Any]) -> tuple[list[list[Any]], list[list[Any]]]:
    """The same arguments with zeros, and with other numbers: of each several to try, until the operator
    takes one. Zeros are for the first call: with them much is allowed that is wrong for others
    (x.masked_fill(m, 0) of addends)."""
    floats = [i for i, leaf in enumerate(leaves) if type(leaf) is float]
    whole = [i for i, leaf in enumerate(leaves) if type(leaf) is int]

    def changed(places: list[int], change: Any) -> list[list[Any]]:
        new = [change(leaf) if i in places else leaf for i, leaf in enumerate(leaves)]
        return [new] if places else []

    zeros = changed(floats, lambda v: 0.0) + changed(whole, lambda v: 0)
    halves = changed(floats, lambda v: v + 0.5) + changed(floats, lambda v: v * 0.5)
    return zeros, halves + changed(whole, lambda v: v + 1)


@dataclasses.dataclass
class Expected:
    """What the plain call gave."""

    leaves: list[Any]  # of all arguments; the tensors among them are replaced
    results: list[Any]
    written: list[torch.Tensor]  # the tensors among the arguments, after the call
    grads: Any
    cotangents: Any


class Case:
    """Calls with their expected results; run() makes them on shards."""

    def __init__(self, op: Any, function: Any, sample: Any, way: str, exact_sums: bool = False):
        self.function = function
        self.way = way
        self.values_count = not leaves_memory_as_it_is(op)
        leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.places = [i for i, leaf in enumerate(leaves) if is_plain_tensor(leaf)]
        self.tensors = [rounded(leaves[i]) if exact_sums else leaves[i] for i in self.places]
        self.calls = [self._plain(leaves, seed=1)]
        if self._draws(self.calls[0]):
            self._expect_what_one_rank_draws()
            return
        zeros, others = other_numbers(leaves)
        first = self._with_determined_grads(self.calls[0])
        self.calls = [*self._first_taken(zeros), first, *self._first_taken(others)]

    def _first_taken(self, tries: list[list[Any]]) -> list[Expected]:
        for leaves in tries:
            try:
                call = self._plain(leaves, seed=1)
            except Exception:  # noqa: BLE001 - not a number that the operator takes
                continue
            if not self._draws(call):  # dropout of nothing does not, of something it does
                return [self._with_determined_grads(call)]
        return []

    def invoke(self, leaves: list[Any], tensors: list[torch.Tensor], out: Any = None) -> list[Any]:
        leaves = list(leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        if out is not None:
            kwargs = {**kwargs, "out": out[0] if len(out) == 1 else tuple(out)}
        return pytree.tree_leaves(self.function(first, *args, **kwargs))

    def _draws(self, call: Expected) -> bool:
        """Whether it takes random numbers. Several seeds: a draw among few values may come out the
        same."""
        try:
            for seed in range(2, 8) if self.values_count else ():
                compare(call.results, self._plain(call.leaves, seed).results)
        except AssertionError:
            return True
        return False

    def _with_determined_grads(self, call: Expected) -> Expected:
        """Without large gradients that follow the rounding of the inputs: svd_lowrank that is asked for
        more singular values than the matrix has divides by one that is zero but for rounding."""
        if all(g is None or not g.numel() or g.abs().max() <= LARGEST_GRAD for g in call.grads or ()):
            return call
        try:
            for seed in (2, 3):
                compare_grads(call.grads, self._plain(call.leaves, seed=1, noise=seed).grads, "")
        except AssertionError:
            return dataclasses.replace(call, grads=None, cotangents=None)
        return call

    def _expect_what_one_rank_draws(self) -> None:
        """The numbers that any ranks must draw are those of a single one."""
        whole = tuple("R" for _ in self.tensors)
        (found,) = tessera.run_ranks(1, lambda rank: self.on_shards(self.calls[0], "tp=1", whole))
        results, written, grads = found
        call = self.calls[0]
        self.calls = [dataclasses.replace(call, results=results, written=written, grads=grads)]

    def _plain(self, leaves: list[Any], seed: int, noise: int = 0) -> Expected:
        """With `noise`, of inputs that are off by the last digit; it is the seed of that."""
        torch.manual_seed(seed)
        wants_grad = self.way != "out"
        inputs = [
            noisy(t.detach(), noise).requires_grad_(t.requires_grad and wants_grad) for t in self.tensors
        ]
        out = self.invoke(leaves, inputs)
        if self.way == "out":
            given = [torch.zeros_like(o) for o in out]
            self.invoke(leaves, inputs, given)  # some return None
            out = given
        results = [detached(o) for o in out]
        written = [t.detach().clone() for t in inputs]
        sources = [o for o in out if isinstance(o, torch.Tensor) and o.requires_grad]
        targets = [t for t in inputs if t.requires_grad]
        if not sources or not targets:
            return Expected(leaves, results, written, None, None)
        generator = torch.Generator().manual_seed(1)
        cotangents = [torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in sources]
        grads = self._derivatives(sources, targets, cotangents, lambda weights: weights)
        return Expected(leaves, results, written, grads, cotangents)

    def _derivatives(
        self, sources: Any, targets: Any, cotangents: Any, placed: Callable[[torch.Tensor], torch.Tensor]
    ) -> list[Any]:
        """By each of the targets; where they are asked for, followed by second derivatives."""
        again = self.way == "second"
        first = torch.autograd.grad(sources, targets, cotangents, allow_unused=True, create_graph=again)
        differentiable = [i for i, g in enumerate(first) if g is not None and g.requires_grad]
        if not differentiable:
            return [detached(g) for g in first] + [None] * (len(targets) if again else 0)
        weights = []
        for i in differentiable:
            generator = torch.Generator().manual_seed(2 + i)
            weights.append(placed(torch.randn(first[i].shape, dtype=first[i].dtype, generator=generator)))
        second = torch.autograd.grad([first[i] for i in differentiable], targets, weights, allow_unused=True)
        return [detached(g) for g in (*first, *second)]

    def on_shards(
        self, call: Expected, mesh_text: str, layout: tuple[str, ...]
    ) -> tuple[list[Any], list[Any], Any]:
        """Results, arguments after the call, and gradients in full, on the calling rank."""
        tessera.manual_seed(SEED_OF_DRAWS)
        mesh = tessera.init_device_mesh(mesh_text)
        inputs = []
        for number, (tensor, placements) in enumerate(zip(self.tensors, layout, strict=True)):
            wants_grad = tensor.requires_grad and self.way != "out"
            item = Input(f"x{number}", tuple(tensor.shape), placements, grad=wants_grad)
            inputs.append(placing.place(item, tensor.detach(), mesh, exact_sums=True))
        whole = ["R"] * mesh.ndim
        given = None
        if self.way == "out":
            given = [
                tessera.distribute_tensor(torch.zeros_like(r), mesh, whole, src_data_rank=None)
                for r in call.results
            ]
        out = self.invoke(call.leaves, inputs, given)
        if given is not None:
            returned = [o for o in out if o is not None]
            assert all(tessera.is_dtensor(o) for o in returned), "a result is plain"
            written = [full(g) for g in given][: len(returned)]
            compare([full(o) for o in returned], written, self.values_count, "out=: ")
            out = given
        results, written = [full(o) for o in out], [full(t) for t in inputs]
        if call.cotangents is None:
            return results, written, None

        def placed(whole_tensor: torch.Tensor) -> torch.Tensor:
            return tessera.distribute_tensor(whole_tensor, mesh, whole, src_data_rank=None)

        sources = [o for o in out if isinstance(o, torch.Tensor) and o.requires_grad]
        cotangents = [placed(c) for c in call.cotangents]
        targets = [t for t in inputs if t.requires_grad]
        grads = self._derivatives(sources, targets, cotangents, placed)
        plain = [g for g in grads if g is not None and not tessera.is_dtensor(g)]
        assert not plain, f"a gradient of {tuple(plain[0].shape)} is plain"
        return results, written, [full(g) for g in grads]

    def check_rank(self, mesh_text: str, layout: tuple[str, ...]) -> None:
        """As a rank of the mesh; raises if something is wrong."""
        for number, call in enumerate(self.calls):
            results, written, grads = self.on_shards(call, mesh_text, layout)
            what = f"call {number + 1} of {len(self.calls)}, with other numbers each: "
            compare(call.results, results, self.values_count, what)
            compare(call.written, written, True, what + "an argument after the call: ")
            if call.grads is not None:
                compare_grads(call.grads, grads, what + "a gradient: ")


# Comparison


def detached(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def full(value: Any) -> Any:
    with torch.no_grad():
        if tessera.is_dtensor(value):
            return tessera.full_tensor(value.detach())
        return detached(value)


def tolerances(want: torch.Tensor) -> tuple[float, float]:
    """Sums in another order are off by a little of the largest value, not of each."""
    if not (want.is_floating_point() or want.is_complex()):
        return 0, 0
    finite = want[torch.isfinite(want)].abs() if want.numel() else want
    largest = float(finite.max()) if finite.numel() else 0.0
    narrow = {torch.float32: 1e-4, torch.complex64: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}
    relative = narrow.get(want.dtype, 1e-5)
    return relative, relative / 5 * max(1.0, largest)


def compare(expected: list[Any], found: list[Any], values: bool = True, what: str = "") -> None:
    if len(expected) != len(found):
        raise AssertionError(f"{what}{len(found)} results, expected {len(expected)}")
    for want, have in zip(expected, found, strict=True):
        if isinstance(want, torch.Tensor):
            if not isinstance(have, torch.Tensor):
                raise AssertionError(f"{what}expected a tensor, found {have!r}")
            if not values:
                assert (have.shape, have.dtype) == (want.shape, want.dtype), what
                continue
            rtol, atol = tolerances(want)
            torch.testing.assert_close(
                have, want, rtol=rtol, atol=atol, equal_nan=True, check_stride=False,
                msg=lambda text: what + text,
            )
        elif isinstance(want, float):
            torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-6, equal_nan=True)
        elif want != have:
            raise AssertionError(f"{what}expected {want!r}, found {have!r}")


def compare_grads(expected: Sequence[Any], found: Sequence[Any], what: str) -> None:
    """An absent gradient is a zero one."""
    for want, have in zip(expected, found, strict=True):
        if want is None and have is None:
            continue
        zero = torch.zeros_like(want if have is None else have)
        compare([zero if want is None else want], [zero if have is None else have], True, what)
