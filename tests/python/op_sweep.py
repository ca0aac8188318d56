"""Every operator of PyTorch's own operator database on sharded inputs, against the plain result.

    python tests/python/op_sweep.py                      all operators, many placements
    python tests/python/op_sweep.py --ops 'nn.functional' --samples 3 --layouts 4
    python tests/python/op_sweep.py --seed 7 --share 0.1 a tenth of them, chosen by seed
    python tests/python/op_sweep.py --dtype int64        those that take integers, on integers
    python tests/python/op_sweep.py --in-place           add_ and its like instead of add

For each sample of an operator the tensors among its arguments are distributed over four thread
ranks, on one axis of four and on two of two, with placements drawn by seed from Replicate and Shard
of every dim: the database's sizes (1, 2, 3, 5, 10, 20) give even, uneven and empty parts. The result
must be that of the plain call, and so must the gradients where the operator has them.

Operators that draw random numbers must give on four ranks what they give on one, for every
placement. Those that leave memory as it is are compared by shape and type alone. What has no meaning
on sharded tensors is listed in op_exceptions.txt.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import pathlib
import random
import re
import sys
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import tessera  # before the database: it holds on to functions that tessera wraps
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

EXCEPTIONS = pathlib.Path(__file__).with_name("op_exceptions.txt")
SEED_OF_DRAWS = 1234
MESHES = ("tp=4", "dp=2,tp=2")
# Values are compared in the widest type an operator takes.
DTYPES = (torch.float64, torch.float32, torch.complex128, torch.int64, torch.bool)


@dataclasses.dataclass(frozen=True)
class Failure:
    op: str
    sample: int
    mesh: str
    layout: tuple[str, ...]
    text: str

    def line(self) -> str:
        where = f"{self.op}[{self.sample}] {self.mesh} ({' | '.join(self.layout)})"
        return f"{where}: {self.text}"


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


@dataclasses.dataclass(frozen=True)
class Form:
    """How the operators are called."""

    dtypes: tuple[torch.dtype, ...] = DTYPES
    in_place: bool = False

    def dtype_of(self, op: Any) -> torch.dtype | None:
        supported = op.supported_dtypes("cpu")
        return next((dtype for dtype in self.dtypes if dtype in supported), None)

    def function_of(self, op: Any) -> Any:
        """The function, or None where the operator has no such form. What is written to is a copy."""
        if not self.in_place:
            return op
        writes = op.get_inplace()
        return writes and (lambda first, *args, **kwargs: writes(first.clone(), *args, **kwargs))


def exceptions() -> dict[str, str]:
    """Operators that are left out, with the reason of each."""
    lines = EXCEPTIONS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split(None, 1) for line in lines if line and not line.startswith("#"))
    return {name: reason for name, reason in pairs}


def leaves_memory_as_it_is(op: Any) -> bool:
    return "empty" in op.name


def is_plain_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout == torch.strided


def samples_of(op: Any, dtype: torch.dtype, limit: int, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    random.seed(seed)
    wants_grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    return list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=wants_grad), limit))


def axis_choices(tensor: torch.Tensor) -> list[str]:
    return ["R"] + [f"S{dim}" for dim in range(tensor.dim())]


def layouts_of(
    tensors: list[torch.Tensor], axes: int, limit: int, rng: random.Random
) -> Iterator[tuple[str, ...]]:
    """Placements for all tensors: the plainest ones first, then drawn ones; none twice."""
    seen = set()

    def new(layout: tuple[str, ...]) -> bool:
        return not (layout in seen or seen.add(layout))

    first = tuple(",".join(["S0" if t.dim() else "R"] + ["R"] * (axes - 1)) for t in tensors)
    if new(first):
        yield first
    for _ in range(limit * 4):
        if len(seen) >= limit:
            return
        drawn = tuple(
            ",".join(rng.choice(axis_choices(t)) for _ in range(axes)) for t in tensors
        )
        if new(drawn):
            yield drawn


class Case:
    """One call with its expected results; run() makes it on shards."""

    def __init__(self, op: Any, function: Any, sample: Any):
        self.function = function
        self.values_count = not leaves_memory_as_it_is(op)
        self.call = (sample.input, sample.args, sample.kwargs)
        leaves, self.spec = pytree.tree_flatten(self.call)
        self.leaves = leaves
        self.places = [i for i, leaf in enumerate(leaves) if is_plain_tensor(leaf)]
        self.tensors = [leaves[i] for i in self.places]
        self.expected, self.grads, self.cotangents = self._plain(seed=1)
        self.draws = self.values_count and not self._gives_the_same_again()
        if self.draws:
            self.expected, self.grads = self._on_one_rank()

    def invoke(self, tensors: list[torch.Tensor]) -> list[Any]:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return pytree.tree_leaves(self.function(first, *args, **kwargs))

    def _gives_the_same_again(self) -> bool:
        """Several seeds: a draw among few values may come out the same."""
        try:
            for seed in range(2, 8):
                compare(self.expected, self._plain(seed)[0])
        except AssertionError:
            return False
        return True

    def _on_one_rank(self) -> tuple[list[Any], Any]:
        """What sharded tensors of a single rank give: the numbers that any ranks must draw."""
        whole = tuple("R" for _ in self.tensors)
        (result,) = tessera.run_ranks(1, lambda rank: self.on_shards("tp=1", whole))
        return result

    def _plain(self, seed: int) -> tuple[list[Any], Any, Any]:
        torch.manual_seed(seed)
        inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in self.tensors]
        out = self.invoke(inputs)
        sources = [o for o in out if isinstance(o, torch.Tensor) and o.requires_grad]
        targets = [t for t in inputs if t.requires_grad]
        if not sources or not targets:
            return [detached(o) for o in out], None, None
        generator = torch.Generator().manual_seed(1)
        cotangents = [
            torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in sources
        ]
        grads = torch.autograd.grad(sources, targets, cotangents, allow_unused=True)
        return [detached(o) for o in out], grads, cotangents

    def on_shards(self, mesh_text: str, layout: tuple[str, ...]) -> tuple[list[Any], Any]:
        """Results and gradients in full, on the calling rank."""
        tessera.manual_seed(SEED_OF_DRAWS)
        mesh = tessera.init_device_mesh(mesh_text)
        inputs = []
        for tensor, placements in zip(self.tensors, layout, strict=True):
            made = tessera.distribute_tensor(tensor.detach(), mesh, placements, src_data_rank=None)
            inputs.append(made.requires_grad_(tensor.requires_grad))
        out = self.invoke(inputs)
        results = [full(o) for o in out]
        if self.cotangents is None:
            return results, None
        sources = [o for o in out if isinstance(o, torch.Tensor) and o.requires_grad]
        whole = ["R"] * mesh.ndim
        cotangents = [
            tessera.distribute_tensor(c, mesh, whole, src_data_rank=None) for c in self.cotangents
        ]
        targets = [t for t in inputs if t.requires_grad]
        grads = torch.autograd.grad(sources, targets, cotangents, allow_unused=True)
        plain = [g for g in grads if g is not None and not tessera.is_dtensor(g)]
        assert not plain, f"a gradient of {tuple(plain[0].shape)} is plain"
        return results, [full(g) for g in grads]

    def run(self, mesh_text: str, layout: tuple[str, ...]) -> str:
        """What is wrong; empty if all is right."""

        def rank_main(rank: int) -> None:
            results, grads = self.on_shards(mesh_text, layout)
            compare(self.expected, results, values=self.values_count)
            if self.grads is not None:
                compare_grads(self.grads, grads)

        try:
            tessera.run_ranks(4, rank_main, timeout=20)
        except Exception as error:  # noqa: BLE001 - every kind counts as a failure
            return f"{type(error).__name__}: {error}"
        return ""


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


def compare(expected: list[Any], found: list[Any], values: bool = True) -> None:
    if len(expected) != len(found):
        raise AssertionError(f"{len(found)} results, expected {len(expected)}")
    for want, have in zip(expected, found, strict=True):
        if isinstance(want, torch.Tensor):
            if not isinstance(have, torch.Tensor):
                raise AssertionError(f"expected a tensor, found {have!r}")
            if not values:
                assert (have.shape, have.dtype) == (want.shape, want.dtype)
                continue
            rtol, atol = tolerances(want)
            torch.testing.assert_close(
                have, want, rtol=rtol, atol=atol, equal_nan=True, check_stride=False
            )
        elif isinstance(want, float):
            torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-6, equal_nan=True)
        elif want != have:
            raise AssertionError(f"expected {want!r}, found {have!r}")


def compare_grads(expected: Sequence[Any], found: Sequence[Any]) -> None:
    """An absent gradient is a zero one."""
    for want, have in zip(expected, found, strict=True):
        if want is None and have is None:
            continue
        zero = torch.zeros_like(want if have is None else have)
        compare([zero if want is None else want], [zero if have is None else have])


def leave_seeds_to_us() -> None:
    """Some operators of the database seed the process's generator in each call, which ranks that are
    threads of one process do not draw from."""
    common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)


def unlock_cached_properties() -> None:
    """Before Python 3.12 a cached_property holds a lock while it computes, one for all threads. A
    rank that communicates inside would wait for ranks that wait for the lock; processes never do."""

    def get(self: Any, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self
        if self.attrname not in instance.__dict__:
            instance.__dict__[self.attrname] = self.func(instance)
        return instance.__dict__[self.attrname]

    if sys.version_info < (3, 12):
        functools.cached_property.__get__ = get  # type: ignore[method-assign]


def sweep_op(
    op: Any, form: Form, samples: int, layouts: int, seed: int
) -> tuple[int, list[Failure]]:
    """How many cases ran, and those that failed."""
    dtype, function = form.dtype_of(op), form.function_of(op)
    if dtype is None or function is None:
        return 0, []
    name = name_of(op)
    op_seed = seed ^ zlib.crc32(name.encode())
    rng = random.Random(op_seed)
    ran, failures = 0, []
    for index, sample in enumerate(samples_of(op, dtype, samples, op_seed)):
        try:
            case = Case(op, function, sample)
        except Exception:  # noqa: BLE001 - the plain call itself does not work here
            continue
        for mesh in MESHES:
            axes = mesh.count("=")
            for layout in layouts_of(case.tensors, axes, layouts, rng):
                if not case.tensors:
                    break
                ran += 1
                if wrong := case.run(mesh, layout):
                    failures.append(Failure(name, index, mesh, layout, wrong))
    return ran, failures


@dataclasses.dataclass
class Totals:
    """What a sweep found."""

    operators: int = 0
    cases: int = 0
    without_cases: list[str] = dataclasses.field(default_factory=list)
    failed: dict[str, list[Failure]] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        wrong = sum(len(failures) for failures in self.failed.values())
        return (
            f"{self.operators} operators, {self.cases} cases; "
            f"{len(self.failed)} operators failed in {wrong} cases; "
            f"{len(self.without_cases)} have no case: {' '.join(self.without_cases)}"
        )


def sweep(
    seed: int,
    samples: int,
    layouts: int,
    share: float = 1.0,
    ops: str = "",
    lines: int = 1,
    form: Form = Form(),
) -> Totals:
    """Sweeps over a share of the operators, chosen by seed; prints failures as they come."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unlock_cached_properties()
    leave_seeds_to_us()
    left_out = exceptions()
    chooser = random.Random(seed)
    totals = Totals()
    for op in op_db:
        name = name_of(op)
        if chooser.random() >= share or not re.search(ops, name) or name in left_out:
            continue
        totals.operators += 1
        start = time.monotonic()
        ran, failures = sweep_op(op, form, samples, layouts, seed)
        totals.cases += ran
        if not ran:
            totals.without_cases.append(name)
        if failures:
            totals.failed[name] = failures
        if (seconds := time.monotonic() - start) > 10:
            print(f"# {name}: {seconds:.1f} s for {ran} cases", flush=True)
        for failure in failures[:lines]:
            text = failure.line().replace("\n", " ")[:400]
            print(f"FAIL {len(failures)}/{ran} {text}", flush=True)
    return totals


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default="", help="only operators whose name holds this regex")
    parser.add_argument("--samples", type=int, default=8, help="samples of each operator")
    parser.add_argument("--layouts", type=int, default=5, help="layouts of each sample and mesh")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="share of the operators")
    parser.add_argument("--lines", type=int, default=1, help="failures shown of each operator")
    parser.add_argument("--dtype", help="only operators that take this element type, on it")
    parser.add_argument("--in-place", action="store_true", help="the forms that write")
    args = parser.parse_args()
    print(f"seed {args.seed}", flush=True)
    form = Form((getattr(torch, args.dtype),) if args.dtype else DTYPES, args.in_place)
    totals = sweep(args.seed, args.samples, args.layouts, args.share, args.ops, args.lines, form)
    print(totals)
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
