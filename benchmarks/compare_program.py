#!/usr/bin/env python3
"""Exported programs run by this library beside Python, on the same files.

    PYTHONPATH=build/python OMP_NUM_THREADS=1 .venv/bin/python benchmarks/compare_program.py [--large]

Load and first run: each in a process of its own, wall time and peak memory, the best of several (what
else runs on the machine only adds). A run: both in this process, in turns. --large adds a model of
about 960 MB, how fast `tessera shard` splits it beside a `cp` of as many bytes, and the search for a plan
for 32 layers of Llama.
"""

from __future__ import annotations

import argparse
import json
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
AUTO_BENCH = ROOT / "build/benchmarks/auto_plan_bench"
TESSERA = ROOT / "build/bin/tessera"
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


#: Started by a small process: Linux counts what the parent held at the fork as memory of the child.
WAITER = """
import os, sys, time
start = time.perf_counter()
pid = os.fork()
if pid == 0:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.execvp(sys.argv[1], sys.argv[1:])
_, status, usage = os.wait4(pid, 0)
print(time.perf_counter() - start, usage.ru_maxrss / 1024)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def waited(command: list[str]) -> tuple[float, float]:
    """Seconds of a process, and the most memory that it had, in MiB."""
    waiter = [sys.executable, "-S", "-c", WAITER, *command]
    done = subprocess.run(waiter, capture_output=True, text=True, check=True)
    seconds, memory = map(float, done.stdout.split())
    return seconds, memory


def shard(path: str, folder: str, rounds: int = 3) -> None:
    """`tessera shard` beside `cp` of what it wrote, both without a sync, in turns."""
    plan = os.path.join(folder, "plan.json")
    modules = {"*.qkv": "colwise", "*.out": "rowwise", "*.up": "colwise", "*.down": "rowwise"}
    pathlib.Path(plan).write_text(json.dumps({"modules": modules}), encoding="utf-8")
    floor = min(waited([str(TESSERA), "inspect", str(ROOT / "tests/program/data/linear.pt2")])[1] for _ in range(3))
    for single in (False, True):
        out, copy = os.path.join(folder, "sharded"), os.path.join(folder, "copy")
        words = ["shard", path, "--mesh", "tp=2", "--plan", plan, "-o", out] + ["--single-file"] * single
        ours, theirs, memory = float("inf"), float("inf"), 0.0
        for _ in range(rounds):
            for target in (out, copy):
                subprocess.run(["rm", "-rf", target], check=True)
            seconds, peak = waited([str(TESSERA), *words])
            ours, memory = min(ours, seconds), max(memory, peak)
            theirs = min(theirs, waited(["cp", "-r", out, copy])[0])
        files = [out] if single else [os.path.join(out, name) for name in os.listdir(out)]
        size = sum(os.path.getsize(file) for file in files) / 1e6
        name = "one file" if single else "2 files"
        print(
            f"shard for 2 ranks, {name:8} {size:7.1f} MB  {ours:6.2f} s {size / ours:6.0f} MB/s, peak "
            f"{memory - floor:4.0f} MiB above the floor of {floor:.0f} | cp {theirs:6.2f} s {size / theirs:6.0f} MB/s"
        )


def plans(folder: str, layers: int = 32) -> None:
    """The search for a plan, from the descriptions of programs on meta tensors."""
    from importlib import util

    spec = util.spec_from_file_location("make", ROOT / "tests/partition/data/make.py")
    make = util.module_from_spec(spec)
    spec.loader.exec_module(make)
    make.HERE = pathlib.Path(folder)
    sizes = make.Sizes(width=4096, heads=32, key_heads=8, hidden=11008, words=32000)
    for tokens in ((1, 64), (1, 2048)):
        name = f"llama_{layers}_{tokens[0]}x{tokens[1]}"
        make.describe(name, sizes, layers, tokens)
        subprocess.run([str(AUTO_BENCH), os.path.join(folder, name + ".json")], check=True)


def a_run(run, rounds: int = 200) -> float:
    """Milliseconds."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - start)
    return best * 1e3


def compare(
    name: str, model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype, rounds: int, sharded: bool = False
) -> None:
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
        if sharded and TESSERA.exists():
            shard(path, folder)
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
        compare("9 layers, 1,280 wide", gpt(9, 1280, 25000), (1, 16), torch.int64, 2, sharded=True)
        if AUTO_BENCH.exists():
            with tempfile.TemporaryDirectory() as folder:
                plans(folder)


if __name__ == "__main__":
    main()
