#!/usr/bin/env python3
"""This library beside PyTorch's DTensor, in one process, in turns, on the same shapes and meshes.

    PYTHONPATH=build/python .venv/bin/python benchmarks/compare_torch.py [--svg <file>]

Both sides are rank 0 of a world of four whose collectives complete at once (PyTorch's fake process
group, this library's fake world), so what is timed is the host's work: look-up, planning, wrapping.
Each figure is the least of several rounds, in each of which both sides take turns: what else runs
on the machine only adds. Of a first call, of which each is another, it is the median. Of a warm op
it is the time above that of the plain op on the local tensor, which takes its turn too; of a
redistribution and a first call it is all of the time; of a step of a transformer block (forward,
backward, AdamW) both.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import pathlib
import statistics
import time
import warnings
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import tensor as theirs
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import tessera

RANKS = 4
SIZE = 16


class Theirs:
    """PyTorch's DTensor."""

    name = "PyTorch DTensor"

    def __init__(self, shape: tuple[int, ...]):
        names = ("dp", "tp")[-len(shape) :]
        self.mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)

    def spread(self, full: torch.Tensor, placements: str) -> torch.Tensor:
        placed = self._placements(placements)
        return theirs.distribute_tensor(full, self.mesh, placed, src_data_rank=None)

    def redistribute(self, x: torch.Tensor, placements: str) -> torch.Tensor:
        return x.redistribute(placements=self._placements(placements))

    def spread_module(self, module: nn.Module, how: dict[str, str]) -> nn.Module:
        for path, placements in how.items():
            owner, _, name = path.rpartition(".")
            part = module.get_submodule(owner)
            part.register_parameter(
                name, nn.Parameter(self.spread(getattr(part, name).detach(), placements))
            )
        return module

    @staticmethod
    def _placements(text: str) -> list[object]:
        return [
            theirs.Replicate() if p == "R" else theirs.Shard(int(p[1:])) for p in text.split(",")
        ]


class Ours:
    """This library."""

    name = "tessera"

    def __init__(self, shape: tuple[int, ...]):
        names = ("dp", "tp")[-len(shape) :]
        self.mesh = tessera.init_device_mesh("cpu", shape, mesh_dim_names=names)

    def spread(self, full: torch.Tensor, placements: str) -> torch.Tensor:
        return tessera.distribute_tensor(full, self.mesh, placements, src_data_rank=None)

    def redistribute(self, x: torch.Tensor, placements: str) -> torch.Tensor:
        return tessera.redistribute(x, placements)

    def spread_module(self, module: nn.Module, how: dict[str, str]) -> nn.Module:
        for name, parameter in module.named_parameters():
            tessera.distribute_(parameter, self.mesh, how[name], src_data_rank=None)
        return module


def seconds(run: Callable[[], object], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - start) / times


def in_turns(runs: dict[str, Callable[[], object]], times: int, rounds: int) -> dict[str, float]:
    """The least time of one call of each, all of them once a round."""
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            taken[name].append(seconds(run, times))
    return {name: min(values) for name, values in taken.items()}


class Block(nn.Module):
    """A transformer block, as any model has it; or the share of it that one of `ranks` computes."""

    def __init__(self, width: int = 64, heads: int = 4, ranks: int = 1):
        super().__init__()
        self.heads, self.size = heads // ranks, width // heads
        inner, hidden = width // ranks, 4 * width // ranks
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = (nn.Linear(width, inner) for _ in range(3))
        self.out = nn.Linear(inner, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        y = self.norm1(x)
        q, k, v = (
            part(y).view(batch, length, self.heads, self.size).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        scores = (q @ k.transpose(-2, -1)) / self.size**0.5
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, self.heads * self.size)
        x = x + self.out(y)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


COLWISE = {f"{part}.{name}": "S0" for part in ("q", "k", "v", "up") for name in ("weight", "bias")}
ROWWISE = {"out.weight": "S1", "down.weight": "S1"}


def block_step(side: type | None, x: torch.Tensor) -> Callable[[], object]:
    """A step on sharded tensors, or on the plain ones of one rank's share."""
    torch.manual_seed(0)
    block, inputs = Block(ranks=1 if side else RANKS), x
    if side:
        made = side((RANKS,))
        names = [name for name, _ in block.named_parameters()]
        made.spread_module(block, {n: COLWISE.get(n, ROWWISE.get(n, "R")) for n in names})
        inputs = made.spread(x, "R")
    optimizer = torch.optim.AdamW(block.parameters(), lr=1e-3, foreach=True)

    def step() -> None:
        block(inputs).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def warm_cases() -> dict[str, Callable[..., Callable[[], object]]]:
    """Each makes, for a function that spreads tensors, the call to be timed."""
    full = torch.randn(SIZE, SIZE)

    def unary(spread):
        x = spread(full, "S0")
        return lambda: torch.relu(x)

    def binary(spread):
        x, y = spread(full, "S0"), spread(full, "S0")
        return lambda: x + y

    def product(spread):
        x, y = spread(full, "S0"), spread(full, "R")
        return lambda: torch.mm(x, y)

    def view(spread):
        x = spread(full, "S0")
        return lambda: x.view(SIZE, 4, 4)

    def in_place(spread):
        x, y = spread(full, "S0"), spread(full, "S0")
        return lambda: x.add_(y)

    def foreach(spread):
        xs = [spread(full, "S0") for _ in range(100)]
        ys = [spread(full, "S0") for _ in range(100)]
        return lambda: torch._foreach_add(xs, ys)

    return {
        "relu": unary,
        "add": binary,
        "mm": product,
        "view": view,
        "add_ (in place)": in_place,
        "_foreach_add, 100 tensors": foreach,
    }


def measure_warm(rounds: int) -> list[tuple[str, float, float]]:
    rows = []
    sides = {"theirs": Theirs((RANKS,)), "ours": Ours((RANKS,))}
    for name, make in warm_cases().items():
        runs = {key: make(side.spread) for key, side in sides.items()}
        runs["plain"] = make(lambda x, p: x.chunk(RANKS)[0].contiguous() if p == "S0" else x)
        if name == "view":
            local = torch.randn(SIZE // RANKS, SIZE)
            runs["plain"] = lambda local=local: local.view(SIZE // RANKS, 4, 4)
        with torch.no_grad():
            took = in_turns(runs, 20 if "foreach" in name else 500, rounds)
        rows.append((name, took["theirs"] - took["plain"], took["ours"] - took["plain"]))
    for name, source, target in (
        ("redistribute S0 to R", "S0", "R"),
        ("redistribute S0 to S1", "S0", "S1"),
    ):
        full = torch.randn(SIZE, SIZE)
        runs = {}
        for key, side in sides.items():
            x = side.spread(full, source)
            runs[key] = lambda side=side, x=x, target=target: side.redistribute(x, target)
        with torch.no_grad():
            took = in_turns(runs, 100, rounds)
        rows.append((name, took["theirs"], took["ours"]))
    return rows


def measure_cold(rounds: int, mesh: tuple[int, ...]) -> tuple[float, float]:
    """The first mm of each shape: every call has a new one."""
    fresh = itertools.count(SIZE)
    placements = ("S0,R", "R,S1") if len(mesh) == 2 else ("S0", "R")
    sides = {"theirs": Theirs(mesh), "ours": Ours(mesh)}
    taken: dict[str, list[float]] = {"theirs": [], "ours": []}
    for _ in range(rounds * 4):
        size = 4 * next(fresh)
        for key, side in sides.items():
            x = side.spread(torch.randn(size, 8), placements[0])
            y = side.spread(torch.randn(8, 12), placements[1])
            with torch.no_grad():
                taken[key].append(seconds(lambda x=x, y=y: torch.mm(x, y), 1))
    return statistics.median(taken["theirs"]), statistics.median(taken["ours"])


def measure_block(rounds: int) -> list[tuple[str, float, float]]:
    """A step of forward, backward and AdamW: above one rank's share on plain tensors, and all."""
    x = torch.randn(2, 8, 64)
    sides = {"theirs": Theirs, "ours": Ours, "plain": None}
    took = in_turns({key: block_step(side, x) for key, side in sides.items()}, 3, rounds)
    a, b, plain = took["theirs"], took["ours"], took["plain"]
    return [("block step", a - plain, b - plain), ("block step, all of it", a, b)]


def measure(rounds: int) -> list[tuple[str, float, float]]:
    rows = [(f"{name}, warm", a, b) for name, a, b in measure_warm(rounds)]
    rows.append(("mm, first of its shape, 1 axis", *measure_cold(rounds, (RANKS,))))
    rows.append(("mm, first of its shape, 2 axes", *measure_cold(rounds, (2, 2))))
    return rows + measure_block(rounds)


def table(rows: list[tuple[str, float, float]]) -> str:
    lines = [f"{'microseconds':34} {'PyTorch DTensor':>16} {'tessera':>10} {'ratio':>7}"]
    for name, a, b in rows:
        lines.append(f"{name:34} {a * 1e6:16.2f} {b * 1e6:10.2f} {a / b:6.1f}x")
    return "\n".join(lines)


def chart(rows: list[tuple[str, float, float]]) -> str:
    """Bars of the ratios, as SVG."""
    width, left, line, bar = 760, 250, 26, 16
    most = max(a / b for _, a, b in rows)
    scale = (width - left - 90) / most
    height = line * len(rows) + 60
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        '<text x="12" y="24" font-size="15" font-weight="bold">'
        "How many times faster than PyTorch's DTensor (warm ops: less overhead)</text>",
    ]
    for i, (name, a, b) in enumerate(rows):
        y = 42 + i * line
        length = max(a / b * scale, 1)
        parts.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{name}</text>')
        parts.append(
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{bar}" fill="#3b7dd8"/>'
        )
        parts.append(
            f'<text x="{left + length + 6:.1f}" y="{y + 13}">{a / b:.1f}x</text>'
        )
    parts.append("</svg>\n")
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--svg", type=pathlib.Path, help="write the chart there")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    with tessera.fake_world(0, RANKS):
        rows = measure(args.rounds)
    print(table(rows))
    if args.svg:
        args.svg.write_text(chart(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
