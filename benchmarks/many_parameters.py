"""Modules of very many small parameters: what is done for each parameter, and what once for all.

    PYTHONPATH=build/python .venv/bin/python -m tessera launch -n 2 \
        .venv/bin/python benchmarks/many_parameters.py [--layers 10000]

Prints seconds on rank 0: to shard, for the first step and the median of later ones, for a full state;
beside the step of the same module on plain tensors.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

import tessera


class Scales(torch.nn.Module):
    """One parameter of 8 numbers a layer."""

    def __init__(self, layers: int):
        super().__init__()
        self.layers = torch.nn.ModuleList(Scale() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def step(module: torch.nn.Module, x: torch.Tensor) -> Callable[[], object]:
    def run() -> None:
        module.zero_grad()
        module(x).sum().backward()

    return run


def report(what: str, *values: float) -> None:
    if tessera.current_world().rank == 0:
        print(f"{what:44}", *(f"{v:8.3f}" for v in values), flush=True)


def steps(module: torch.nn.Module, x: torch.Tensor, count: int) -> tuple[float, float]:
    """The first one, and the median of the others."""
    run = step(module, x)
    first = seconds(run)
    return first, statistics.median(seconds(run) for _ in range(count))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    x = torch.ones(4, 8)
    mesh = tessera.init_device_mesh(f"dp={tessera.current_world().size}")
    report("plain: first step, step", *steps(Scales(args.layers), x, args.steps))

    whole = Scales(args.layers)
    report("fully_shard, one group, values of rank 0", seconds(lambda: tessera.fully_shard(whole, mesh, src_data_rank=0)))
    report("  first step, step", *steps(whole, x, args.steps))
    report("  full_state_dict", seconds(lambda: tessera.full_state_dict(whole)))
    own = Scales(args.layers)
    report("fully_shard, one group, values of each rank", seconds(lambda: tessera.fully_shard(own, mesh, src_data_rank=None)))

    single = Scales(args.layers)

    def shard_each() -> None:
        for layer in single.layers:
            tessera.fully_shard(layer, mesh, src_data_rank=None)

    report("fully_shard, a group a layer", seconds(shard_each))
    report("  first step, step", *steps(single, x, args.steps))

    replicated = Scales(args.layers)
    report("distribute_module", seconds(lambda: tessera.distribute_module(replicated, mesh)))
    tessera.reduce_gradients(replicated)
    batch = tessera.distribute_tensor(x, mesh, "S0")
    report("  reduce_gradients: first step, step", *steps(replicated, batch, args.steps))


if __name__ == "__main__":
    main()
