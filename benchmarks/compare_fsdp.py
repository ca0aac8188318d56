#!/usr/bin/env python3
"""A training step of the same 8-layer MLP under this library and under PyTorch, side by side.

    benchmarks/compare_fsdp.py [--widths 256,1024] [--turns 9] [--steps 5]

Each form runs on two Gloo processes of its own, so that its peak memory is its own too; all are
started first and then take turns, a few steps at a time, so that what else the machine does meets
them alike. A step's time is that of the slower of the two ranks; the table gives medians, and the
least, which other load disturbs least.

    one process             each rank by itself
    one process, then bare  and then the bytes that FSDP moves, in 24 plain collectives
    DDP, FSDP2              PyTorch's, each layer a group
    replicate, fully_shard  this library's (build/benchmarks/fully_shard_bench)
"""

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
BENCH = ROOT / "build" / "benchmarks" / "fully_shard_bench"
RANKS = 2
LAYERS = 8
BATCH = 64  # of one rank
WARM = 3

OURS = ["one process", "one process, then bare", "replicate", "fully_shard", "fully_shard, kept"]
THEIRS = ["one process", "one process, then bare", "DDP", "FSDP2", "FSDP2, kept"]


def memory(field):
    for line in open("/proc/self/status"):
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    return 0


def torch_step(form, width):
    """PyTorch's side: makes the model in the given form; returns what runs a step."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    layers = []
    for _ in range(LAYERS):
        layers += [torch.nn.Linear(width, width), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers)
    if form == "DDP":
        net = DistributedDataParallel(net)
    elif form.startswith("FSDP2"):
        mesh = init_device_mesh("cpu", (RANKS,))
        for layer in net:
            if isinstance(layer, torch.nn.Linear):
                fully_shard(layer, mesh=mesh, reshard_after_forward=form == "FSDP2")
        fully_shard(net, mesh=mesh)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, foreach=False)
    x = torch.randn(BATCH, width)
    y = torch.randn(BATCH, width)
    whole = torch.empty(width * (width + 1))
    part = torch.empty(whole.numel() // RANKS)

    def step():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
        if form.endswith("bare"):
            for _ in range(2 * LAYERS):
                dist.all_gather_into_tensor(whole, part)
            for _ in range(LAYERS):
                dist.reduce_scatter_tensor(part, whole)

    return step


def work(form, width):
    """One rank of one of PyTorch's forms, which reads commands from its input."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard  # noqa: F401  imported before memory is read

    warnings.simplefilter("ignore", FutureWarning)  # newer names for the same collectives
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    before = memory("VmRSS")
    step = torch_step(form, width)
    for _ in range(WARM):
        step()
    for line in sys.stdin:
        if line.startswith("steps "):
            times = []
            for _ in range(int(line.split()[1])):
                start = time.perf_counter()
                step()
                times.append((time.perf_counter() - start) * 1000)
            print(*times, flush=True)
        elif line.strip() == "memory":
            print(before, memory("VmHWM"), flush=True)


class Pair:
    """The two ranks of one form."""

    def __init__(self, library, form, width, port):
        if library == "tessera":
            command = [str(BENCH), "worker", form, str(width)]
        else:
            command = [sys.executable, __file__, "--worker", form, str(width)]
        self.library, self.form = library, form
        self.times = []
        self.ranks = []
        for rank in range(RANKS):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(RANKS), OMP_NUM_THREADS="1",
                       MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
            self.ranks.append(subprocess.Popen(command, env=env, stdin=subprocess.PIPE,
                                               stdout=subprocess.PIPE, text=True))

    def ask(self, line):
        for rank in self.ranks:
            rank.stdin.write(line + "\n")
            rank.stdin.flush()
        answers = []
        for rank in self.ranks:
            text = rank.stdout.readline()
            if not text:
                raise SystemExit(f"{self.library}, {self.form}: a rank ended")
            answers.append([float(word) for word in text.split()])
        return answers

    def run(self, steps):
        self.times += [max(both) for both in zip(*self.ask(f"steps {steps}"))]

    def finish(self):
        self.ms = statistics.median(self.times)
        self.least = min(self.times)
        self.before, self.peak = (max(both) for both in zip(*self.ask("memory")))
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait()


def measure(width, turns, steps):
    port = 20000 + os.getpid() % 20000
    pairs = []
    for library, forms in (("PyTorch", THEIRS), ("tessera", OURS)):
        for form in forms:
            port += 1
            pairs.append(Pair(library, form, width, port))
            pairs[-1].ask("steps 1")  # it is there
    for _ in range(turns):
        for pair in pairs:
            pair.run(steps)
    for pair in pairs:
        pair.finish()
    named = {(pair.library, pair.form): pair for pair in pairs}
    alone = named["PyTorch", "one process"]
    fsdp = named["PyTorch", "FSDP2"]
    for pair in pairs:
        print(f"| {width:5} | {pair.library:7} | {pair.form:22} | {pair.ms:8.2f} | {pair.least:8.2f} "
              f"| {pair.ms / alone.ms:8.2f} | {pair.ms / fsdp.ms:7.2f} "
              f"| {pair.peak - pair.before:9.0f} | {pair.peak:8.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worker", nargs=2, metavar=("FORM", "WIDTH"), help=argparse.SUPPRESS)
    parser.add_argument("--widths", default="256,1024")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--steps", type=int, default=5)
    args = parser.parse_args()
    if args.worker:
        work(args.worker[0], int(args.worker[1]))
        return
    if not BENCH.exists():
        raise SystemExit(f"{BENCH} is not built")
    print(f"A step of an {LAYERS}-layer MLP, two Gloo processes, float32, {BATCH} rows a rank, SGD.\n"
          "Ratios: to PyTorch in one process, and to FSDP2. Memory: MiB above what the process had "
          "before the model,\nand in all.\n\n"
          "| width | library | form                   |       ms |    least | / alone  | / FSDP2 | above     "
          "| peak     |\n"
          "|-------|---------|------------------------|----------|----------|----------|---------|-----------"
          "|----------|")
    for width in args.widths.split(","):
        measure(int(width), args.turns, args.steps)


if __name__ == "__main__":
    main()
