"""Every operator of PyTorch's own operator database on sharded inputs, against the plain result.

    python tests/python/op_sweep.py                      all operators, many placements
    python tests/python/op_sweep.py --ops 'nn.functional' --samples 3 --layouts 4
    python tests/python/op_sweep.py --seed 7 --share 0.1 a tenth of them, chosen by seed
    python tests/python/op_sweep.py --dtype int64        those that take integers, on integers
    python tests/python/op_sweep.py --way in_place       add_ and its like instead of add; or: out, or:
                                                         second, for second derivatives too
    python tests/python/op_sweep.py --processes 2        ranks are processes instead of threads
    make sweep                                           all ways, on threads and on two processes

For each sample of an operator the tensors among its arguments are distributed over four ranks, on one
axis of four and on two of two (processes: on one axis of two), with placements drawn by seed from
Replicate, Shard of every dim, and Partial (sum, avg, max, min): the database's sizes (1, 2, 3, 5, 10,
20) give even, uneven and empty parts. The result must be that of the plain call, so must the gradients
where the operator has them, and all arguments after the call. Then the call is made again with other
numbers (op_cases.py).

Operators that draw random numbers must give on four ranks what they give on one, for every
placement. Those that leave memory as it is are compared by shape and type alone. What has no meaning
on sharded tensors is listed in op_exceptions.txt.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import os
import pathlib
import random
import re
import subprocess
import sys
import time
import warnings
import zlib
from typing import Any

import torch

import tessera  # before the database: it holds on to functions that tessera wraps
from op_cases import DTYPES, Case, Form, layouts_of
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db

WAYS = ("value", "in_place", "out", "second")
EXCEPTIONS = pathlib.Path(__file__).with_name("op_exceptions.txt")
MESHES = ("tp=4", "dp=2,tp=2")


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


@dataclasses.dataclass(frozen=True)
class Options:
    """How much of the database, and how."""

    seed: int = 0
    samples: int = 8
    layouts: int = 5
    share: float = 1.0
    ops: str = ""
    lines: int = 1
    form: Form = Form()
    partial: bool = True


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def exceptions(*ways: str) -> dict[str, str]:
    """Operators that are left out however they are called, or called in these ways, with the reasons."""
    lines = EXCEPTIONS.read_text(encoding="utf-8").splitlines()
    pairs = (line.split(None, 1) for line in lines if line and not line.startswith("#"))
    split = ((*name.partition("@"), reason) for name, reason in pairs)
    return {name: reason for name, _, only, reason in split if only in ("", *ways)}


def samples_of(op: Any, dtype: torch.dtype, limit: int, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    random.seed(seed)
    wants_grad = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    return list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=wants_grad), limit))


def is_process_rank() -> bool:
    return "WORLD_SIZE" in os.environ


def meshes() -> tuple[str, ...]:
    return (f"tp={os.environ['WORLD_SIZE']}",) if is_process_rank() else MESHES


def run_case(case: Case, mesh: str, layout: tuple[str, ...]) -> str:
    """What is wrong; empty if all is right. As a rank of a job this ends the sweep if the ranks lost
    each other."""
    try:
        if is_process_rank():
            case.check_rank(mesh, layout)
        else:
            tessera.run_ranks(4, lambda rank: case.check_rank(mesh, layout), timeout=20)
    except Exception as error:  # noqa: BLE001 - every kind counts as a failure
        text = f"{type(error).__name__}: {error}"
        if is_process_rank() and "PeerError" in text:
            raise
        return text
    return ""


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


def cases_of(op: Any, function: Any, sample: Any, way: str) -> Any:
    """A function from "does the layout have a Partial" to the case, None where there is none: what a
    Partial holds must add up exactly, so its values are rounded first."""

    @functools.cache
    def case(partial: bool) -> Case | None:
        try:
            return Case(op, function, sample, way, exact_sums=partial)
        except Exception:  # noqa: BLE001 - the plain call itself does not work here
            return None

    return case


def sweep_op(op: Any, options: Options) -> tuple[int, list[Failure]]:
    """How many cases ran, and those that failed."""
    form = options.form
    dtype, function = form.dtype_of(op), form.function_of(op)
    if dtype is None or function is None:
        return 0, []
    name = name_of(op)
    op_seed = options.seed ^ zlib.crc32(name.encode())
    rng = random.Random(op_seed)
    ran, failures = 0, []
    for index, sample in enumerate(samples_of(op, dtype, options.samples, op_seed)):
        case_of = cases_of(op, function, sample, form.way)
        plainest = case_of(False)
        if plainest is None or not plainest.tensors:
            continue
        for mesh in meshes():
            axes = mesh.count("=")
            for layout in layouts_of(
                plainest.tensors, axes, options.layouts, rng, options.partial
            ):
                case = case_of(any("P(" in places for places in layout))
                if case is None:
                    continue
                ran += 1
                if wrong := run_case(case, mesh, layout):
                    failures.append(Failure(name, index, mesh, layout, wrong))
    return ran, failures


def sweep(options: Options) -> Totals:
    """Sweeps over a share of the operators, chosen by seed; prints failures as they come."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    unlock_cached_properties()
    leave_seeds_to_us()
    left_out = exceptions(options.form.way, "integers" if options.form.takes_integers() else "")
    chooser = random.Random(options.seed)
    totals = Totals()
    for op in op_db:
        name = name_of(op)
        chosen = chooser.random() < options.share and re.search(options.ops, name)
        if not chosen or name in left_out:
            continue
        totals.operators += 1
        start = time.monotonic()
        try:
            ran, failures = sweep_op(op, options)
        except Exception:
            print(f"FAIL {name}: the ranks lost each other", flush=True)
            raise
        totals.cases += ran
        if not ran:
            totals.without_cases.append(name)
        if failures:
            totals.failed[name] = failures
        if (seconds := time.monotonic() - start) > 10:
            print(f"# {name}: {seconds:.1f} s for {ran} cases", flush=True)
        for failure in failures[: options.lines]:
            text = failure.line().replace("\n", " ")[:400]
            print(f"FAIL {len(failures)}/{ran} {text}", flush=True)
    return totals


def sweep_on_processes(count: int, words: list[str]) -> int:
    """The same sweep as each rank of a job."""
    command = [sys.executable, "-m", "tessera", "launch", "-n", str(count), sys.executable, __file__]
    environment = dict(os.environ, TESSERA_TIMEOUT_S=os.environ.get("TESSERA_TIMEOUT_S", "60"))
    return subprocess.run([*command, *words], env=environment, check=False).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ops", default="", help="only operators whose name holds this regex")
    parser.add_argument("--samples", type=int, default=8, help="samples of each operator")
    parser.add_argument("--layouts", type=int, default=5, help="layouts of each sample and mesh")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="share of the operators")
    parser.add_argument("--lines", type=int, default=1, help="failures shown of each operator")
    parser.add_argument("--dtype", help="only operators that take this element type, on it")
    parser.add_argument("--way", choices=WAYS, default="value")
    parser.add_argument("--processes", type=int, default=0, help="ranks are processes")
    args = parser.parse_args()
    if args.processes and not is_process_rank():
        return sweep_on_processes(args.processes, sys.argv[1:])
    print(f"seed {args.seed}", flush=True)
    form = Form((getattr(torch, args.dtype),) if args.dtype else DTYPES, args.way)
    options = Options(
        args.seed, args.samples, args.layouts, args.share, args.ops, args.lines, form
    )
    totals = sweep(options)
    print(totals)
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main())
