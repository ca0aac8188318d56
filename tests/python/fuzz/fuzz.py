"""A differential fuzzer: random programs on shards against the same programs on whole tensors.

    python tests/python/fuzz/fuzz.py --minutes 60 --jobs 16      on all cores
    python tests/python/fuzz/fuzz.py --seed 7 --programs 1       the program of one seed
    python tests/python/fuzz/fuzz.py --worlds 0,2,4              threads, two and four processes
    make fuzz SEED=1 MINUTES=60 WORLDS=0,2 JOBS=16

A program has 5 to 40 statements: views, writes in place, indexing, reductions, products, windows,
linear algebra, integers, normalisations with buffers, random numbers, hooks, optimizers, regions
without gradients. Its mesh
has one to three axes and one to eight ranks, its inputs any placements: uneven, empty, strided,
partial. Everything it computed, every gradient, optimizer state and buffer is compared on every rank.

A failure is made as short as possible and written as a Python program to --out. What ranks refuse
with a clear error (refusals.txt) is counted and left out of the program. A difference that rounding
alone makes in the plain run too (conditioning.py) is counted as undecided. So the exit code says it all:
0 if no program failed.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import subprocess
import sys
import time
import warnings

import torch

from hunt import Failure, Hunt, Totals
from worlds import World


class Report:
    """Prints failures as they are found: one of each kind in full."""

    def __init__(self, folder: pathlib.Path, most: int):
        self.folder = folder
        self.most = most
        self.seen: dict[str, int] = {}

    def __call__(self, failure: Failure) -> None:
        signature = failure.signature()
        self.seen[signature] = self.seen.get(signature, 0) + 1
        if self.seen[signature] > 1:
            print(f"AGAIN {self.seen[signature]} x {signature} (seed {failure.seed})", flush=True)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"seed{failure.seed}_{failure.world.replace(' ', '_')}.py"
        text = failure.report(path.name)
        path.write_text(text, encoding="utf-8")
        print(f"FAIL {signature}\n--- {path}\n{text}---", flush=True)

    def full(self) -> bool:
        return len(self.seen) >= self.most


def fuzz(args: argparse.Namespace) -> int:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    until = time.monotonic() + args.minutes * 60
    report = Report(args.out, args.failures)
    worlds = [World(int(n)) for n in args.worlds.split(",")]
    hunts = [Hunt(world, args.shrink_seconds, args.without) for world in worlds]
    totals = Totals()
    try:
        for i, seed in enumerate(itertools.count(args.seed, args.stride)):
            if time.monotonic() >= until or report.full() or (args.programs and i >= args.programs):
                break
            hunt = hunts[i % len(hunts)] if not args.programs else None
            for each in [hunt] if hunt else hunts:
                if failure := each.try_seed(seed):
                    report(failure)
    finally:
        for world in worlds:
            world.close()
    for hunt in hunts:
        totals.add(hunt.totals)
        print(f"{hunt.name}: {hunt.totals.programs} programs", flush=True)
    print(f"seeds {args.seed}, {args.seed + args.stride}, ... to {seed}: {totals}", flush=True)
    return 1 if report.seen else 0


def fuzz_in_jobs(args: argparse.Namespace, words: list[str]) -> int:
    """Each job takes every n-th seed."""
    jobs = [
        subprocess.Popen(
            [sys.executable, __file__, *words, "--jobs", "1"]
            + ["--seed", str(args.seed + job), "--stride", str(args.jobs)]
        )
        for job in range(args.jobs)
    ]
    try:
        return max(job.wait() for job in jobs)
    finally:
        for job in jobs:
            job.terminate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--programs", type=int, default=0, help="so many seeds, in every world")
    parser.add_argument("--worlds", default="0,2", help="0 is thread ranks, n is n processes")
    parser.add_argument("--jobs", type=int, default=1, help="fuzzers side by side")
    parser.add_argument("--stride", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--failures", type=int, default=20, help="stop after so many kinds")
    parser.add_argument("--without", default="", help="no statements that this regex matches")
    parser.add_argument("--shrink-seconds", type=float, default=90, help="for each failure")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/fuzz"))
    words = sys.argv[1:]
    args = parser.parse_args(words)
    print(f"seed {args.seed}", flush=True)
    return fuzz_in_jobs(args, words) if args.jobs > 1 else fuzz(args)


if __name__ == "__main__":
    sys.exit(main())
