#!/usr/bin/env python3
"""Exported programs run by this library beside Python, on the same files.

    PYTHONPATH=build/python OMP_NUM_THREADS=1 .venv/bin/python benchmarks/compare_program.py [--large]

Load and first run: each in a process of its own, wall time and peak memory, the best of several (what
else runs on the machine only adds). A run: both in this process, in turns. --large adds a model of
about 960 MB.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch
from torch import nn

import tessera

ROOT = pathlib.Path(__file__).parents[1]
BENCH = ROOT / "build/benchmarks/program_bench"
THEIRS = """
import sys, torch
module = torch.export.load(sys.argv[1]).module()
with torch.no_grad():
    module(torch.zeros([int(n) for n in sys.argv[2].split(",")], dtype=getattr(torch, sys.argv[3])))
print([line for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).chunk(3, -1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in parts)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


def gpt(layers: int, width: int, words: int) -> nn.Module:
    blocks = [Block(width, max(2, width // 64)) for _ in range(layers)]
    return nn.Sequential(nn.Embedding(words, width), *blocks, nn.Linear(width, words, bias=False))


def measured(command: list[str], rounds: int) -> tuple[float, float]:
    """Seconds of a process, and its peak memory in MiB as it says itself: the least of several."""
    seconds, memory = float("inf"), float("inf")
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    for _ in range(rounds):
        start = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        seconds = min(seconds, time.perf_counter() - start)
        memory = min(memory, int(done.stdout.split("VmHWM:")[1].split()[0]) / 1024)
    return seconds, memory


def a_run(run, rounds: int = 200) -> float:
    """Milliseconds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def compare(name: str, model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.pt2")
        x = torch.zeros(shape, dtype=dtype)
        torch.export.save(torch.export.export(model, (x,)), path)
        size = os.path.getsize(path) / 1e6
        ours = measured([str(BENCH), "once", path], rounds)
        text = str(dtype).removeprefix("torch.")
        theirs = measured([sys.executable, "-c", THEIRS, path, ",".join(map(str, shape)), text], rounds)
        mine, module = tessera.load_program(path), torch.export.load(path).module()
        with torch.no_grad():
            times = a_run(lambda: mine.run([x]), 20 * rounds), a_run(lambda: module(x), 20 * rounds)
    print(
        f"{name:28} {size:7.1f} MB  load + run {ours[0]:6.2f} s {ours[1]:6.0f} MiB | "
        f"Python {theirs[0]:6.2f} s {theirs[1]:6.0f} MiB   a run {times[0]:8.3f} ms | Python {times[1]:8.3f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--large", action="store_true", help="also a model of about 960 MB")
    options = parser.parse_args()
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    compare("mlp", mlp, (8, 64), torch.float32, 5)
    compare("2 transformer blocks", gpt(2, 64, 100), (2, 16), torch.int64, 5)
    if options.large:
        compare("9 layers, 1,280 wide", gpt(9, 1280, 25000), (1, 16), torch.int64, 2)


if __name__ == "__main__":
    main()
