#!/usr/bin/env python3
"""Async tensor parallelism on one GPU: a sequence-parallel MLP (gather, up, GELU, down, reduce_scatter),
forward and backward, with its messages in 1, 2, 4, ... pieces.

    PYTHONPATH=build/python python benchmarks/overlap_gpu.py [--ranks 2] [--pieces 1,2,4] [--width 4096]

The ranks are threads that share the GPU, so their messages are copies on streams of their own: what can
overlap is copying and multiplying on one device, not a link. All forms are made in one run and take turns.
Prints the milliseconds of a step of all ranks (median of the rounds), of the products alone (the
same matrices, nothing sent) and of the messages alone; and for each number of pieces how much of the
messages' time it hides. One piece is the style without `overlap`.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable

import torch
from torch import nn

import tessera


class Mlp(nn.Module):
    def __init__(self, width: int, hidden: int, device: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False, device=device, dtype=dtype)
        self.down = nn.Linear(hidden, width, bias=False, device=device, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x)))


def step_of(model: nn.Module, x: torch.Tensor) -> Callable[[], None]:
    grad = torch.ones_like(x)

    def step() -> None:
        model.zero_grad()
        x.grad = None
        model(x).backward(grad)

    return step


def messages_of(part: torch.Tensor, mesh: tessera.DeviceMesh) -> Callable[[], None]:
    """What a step sends: two gathers and two reductions, of the input and of the result's gradient."""
    placed = tessera.from_local(part.detach(), mesh, [tessera.Shard(1)], even=True)
    whole = tessera.redistribute(placed, [tessera.Replicate()])
    addends = tessera.from_local(tessera.to_local(whole), mesh, [tessera.Partial()])

    def step() -> None:
        for _ in range(2):
            tessera.redistribute(placed, [tessera.Replicate()])
            tessera.redistribute(addends, [tessera.Shard(1)])

    return step


def forms_of(options: argparse.Namespace, mesh: tessera.DeviceMesh) -> dict[str, Callable[[], None]]:
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    width, hidden, ranks = options.width, 4 * options.width, options.ranks
    shape = (options.batch, options.places // ranks, width)
    part = torch.randn(shape, device=options.device, dtype=dtype, requires_grad=True)
    whole = torch.randn(
        (options.batch, options.places, width), device=options.device, dtype=dtype, requires_grad=True
    )
    forms = {
        "products alone": step_of(Mlp(width, hidden // ranks, options.device, dtype), whole),
        "messages alone": messages_of(part, mesh),
    }
    layout = tessera.Shard(1)
    for pieces in options.pieces:
        plan = {
            "up": tessera.ColwiseParallel(input_layouts=layout, overlap=pieces),
            "down": tessera.RowwiseParallel(output_layouts=layout, overlap=pieces),
        }
        model = tessera.parallelize_module(Mlp(width, hidden, options.device, dtype), mesh, plan)
        forms[f"{pieces} pieces" if pieces > 1 else "1 piece"] = step_of(model, part)
    return forms


def measure(options: argparse.Namespace, together: threading.Barrier) -> dict[str, float]:
    forms = forms_of(options, tessera.init_device_mesh(f"{options.device}:tp={options.ranks}"))
    times: dict[str, list[float]] = {name: [] for name in forms}

    def run(step: Callable[[], None], count: int) -> float:
        wait(options.device, together)
        start = time.perf_counter()
        for _ in range(count):
            step()
        wait(options.device, together)
        return (time.perf_counter() - start) / count * 1000

    for step in forms.values():
        run(step, 3)
    for _ in range(options.rounds):
        for name, step in forms.items():
            times[name].append(run(step, options.steps))
    return {name: statistics.median(values) for name, values in times.items()}


def wait(device: str, together: threading.Barrier) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
    together.wait()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--pieces", default="1,2,4")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--places", type=int, default=1024)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    options.pieces = [int(pieces) for pieces in options.pieces.split(",")]
    if 1 not in options.pieces:
        options.pieces.insert(0, 1)
    together = threading.Barrier(options.ranks)
    results = tessera.run_ranks(options.ranks, lambda rank: measure(options, together))[0]
    print(f"{options.ranks} thread ranks on one {options.device}, batch {options.batch}, "
          f"{options.places} places, width {options.width}")
    for name, value in results.items():
        line = f"{name:16} {value:9.3f} ms"
        if name.endswith("pieces"):
            hidden = (results["1 piece"] - value) / results["messages alone"]
            line += f"   {value / results['1 piece']:5.2f} of one piece, {hidden:5.0%} of the messages hidden"
        print(line)


if __name__ == "__main__":
    main()
