#!/usr/bin/env python3
"""A training step of a 124M GPT on one GPU: this library beside PyTorch, in one run.

    benchmarks/compare_gpu.py [--shapes 8x1024,1x64] [--rounds 15] [--steps 5] [--build build]

bfloat16 parameters, fused AdamW, one rank. PyTorch's forms and this library's from Python run in
this process and take turns; benchmarks/gpu_bench of the build folder, if it was built, adds those of
C++. Prints the tables of docs/gpu.md and the one of the README: milliseconds per step (median of the
rounds) and peak memory by the allocator, then each form over the plain one of its language. Those ratios
are of times of the same round, so that a change of the machine's speed does not decide: the median, and
the quartiles between which half of the rounds are.

The memory is that of a process of its own a form (--memory-of), since forms in one process share
workspaces of cuBLAS and may free what another one left. Those of a shape run at the same time.
"""

import argparse
import dataclasses
import gc
import pathlib
import statistics
import subprocess
import sys
import time
import warnings

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORDS, WIDTH, HEADS, CONTEXT, BLOCKS = 50304, 768, 12, 1024, 12
WARM = 5


def make_model(torch):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            parts = self.qkv(self.first_norm(x)).unflatten(2, (3, -1, WIDTH // HEADS)).unbind(2)
            q, k, v = (part.transpose(1, 2) for part in parts)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).flatten(2))
            return x + self.down(functional.gelu(self.up(self.second_norm(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.position = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
            self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, words, places):
            x = self.token(words) + self.position(places)
            for block in self.blocks:
                x = block(x)
            logits = functional.linear(self.norm(x), self.token.weight)
            return functional.cross_entropy(logits.flatten(0, 1), words.flatten())

    torch.manual_seed(0)
    return Gpt().cuda().bfloat16()


def torch_form(torch, form, model, data):
    """PyTorch's plain, DTensor or FSDP2 form."""
    from torch.distributed.device_mesh import init_device_mesh

    if form == "plain":
        return model, data
    mesh = init_device_mesh("cuda", (1,), mesh_dim_names=("dp",))
    if form == "fully_shard":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh), data
    from torch.distributed.tensor import Replicate, distribute_module, distribute_tensor

    distribute_module(model, mesh)
    return model, [distribute_tensor(x, mesh, [Replicate()]) for x in data]


def own_form(form, model, data):
    """The same under this library."""
    import tessera

    mesh = tessera.init_device_mesh("cuda:dp=1")
    if form == "fully_shard":
        for block in model.blocks:
            tessera.fully_shard(block, mesh)
        return tessera.fully_shard(model, mesh) or model, data
    tessera.distribute_module(model, mesh)
    return model, [tessera.distribute_tensor(x, mesh, [tessera.Replicate()]) for x in data]


@dataclasses.dataclass
class Result:
    """Of one form: ms per step, MiB, and time over plain as (median, lower, upper quartile)."""

    time: float
    memory: float
    over: tuple | None


class Subject:
    """A model in one form, warm, with the times of its rounds."""

    def __init__(self, torch, name, shape):
        self.torch, self.name, self.times = torch, name, []
        who, form = name.split(": ")
        batch, length = map(int, shape.split("x"))
        model = make_model(torch)
        data = [torch.randint(WORDS, (batch, length), device="cuda")]
        data.append(torch.arange(length, device="cuda"))
        if who == "PyTorch":
            model, data = torch_form(torch, form, model, data)
        else:
            model, data = own_form(form, model, data)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

        def step():
            model(*data).backward()
            optimizer.step()
            optimizer.zero_grad()

        self.step = step
        for _ in range(WARM):
            step()
        torch.cuda.synchronize()

    def measure(self, steps):
        self.torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.torch.cuda.synchronize()
        self.times.append((time.perf_counter() - begin) / steps * 1000)

    def result(self, plain, memory):
        over = None
        if plain is not None:
            ratios = [own / its for own, its in zip(self.times, plain.times)]
            lower, median, upper = statistics.quantiles(ratios, n=4, method="inclusive")
            over = (median, lower, upper)
        return Result(statistics.median(self.times), memory, over)


FORMS = [
    "PyTorch: plain",
    "PyTorch: sharded",
    "PyTorch: fully_shard",
    "tessera: sharded",
    "tessera: fully_shard",
]


def peak_memories(shape):
    """MiB of each form that runs, each in a process of its own."""
    command = [sys.executable, __file__, "--shapes", shape, "--memory-of"]
    processes = {
        name: subprocess.Popen([*command, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for name in FORMS
    }
    found = {}
    for name, process in processes.items():
        out, err = process.communicate()
        if process.returncode == 0:
            found[name] = float(out.split()[-1])
        else:  # a form that does not run is part of the answer
            print(f"{shape} {name} failed: {err.strip()}"[-300:], flush=True)
    return found


def print_peak_memory(torch, name, shape):
    """Of this process, which has run nothing before."""
    subject = Subject(torch, name, shape)
    subject.step()
    torch.cuda.synchronize()
    print(torch.cuda.max_memory_allocated() / 2**20, flush=True)


def compare(torch, shape, rounds, steps):
    memories = peak_memories(shape)
    gc.collect()  # what forms of another shape left must not be freed while these are measured
    torch.cuda.empty_cache()
    subjects = [Subject(torch, name, shape) for name in memories]
    for _ in range(rounds):
        for subject in subjects:
            subject.measure(steps)
    plain = next((s for s in subjects if s.name == "PyTorch: plain"), None)
    return {s.name: s.result(plain, memories[s.name]) for s in subjects}


def compare_in_cpp(bench, shape):
    """The lines of gpu_bench, between tabs: shape, form, time, memory, and what is over plain."""
    out = subprocess.run([bench, shape], capture_output=True, text=True, check=False)
    found = {}
    for line in out.stdout.splitlines():
        parts = line.split("\t")
        if len(parts) >= 4 and parts[2].endswith(" ms"):
            over = tuple(map(float, parts[4:])) or None
            found[f"C++: {parts[1]}"] = Result(float(parts[2][:-3]), float(parts[3][:-4]), over)
        else:
            print(line[:300], flush=True)
    if out.returncode:
        print(f"gpu_bench {shape} failed: {out.stderr}"[-600:], flush=True)
    return found


ROWS = {  # of the table, in order
    "PyTorch: plain": "PyTorch: plain",
    "PyTorch: sharded": "PyTorch: every tensor a DTensor",
    "PyTorch: fully_shard": "PyTorch: `fully_shard`",
    "tessera: sharded": "tessera from Python: every tensor sharded",
    "tessera: fully_shard": "tessera from Python: `fully_shard`",
    "C++: plain": "C++: plain",
    "C++: sharded": "C++: every tensor sharded",
    "C++: fully_shard": "C++: `fully_shard`",
    "C++: plain, captured": "C++, captured: plain",
    "C++: sharded, captured": "C++, captured: every tensor sharded",
    "C++: fully_shard, captured": "C++, captured: `fully_shard`",
}


def print_table(heads, columns, rows):
    """`rows`: per name the cells, None where there is nothing; rows without any are left out."""
    print("| | " + " | ".join(heads) + " |")
    print("|---|" + "---|" * columns)
    for name, cells in rows:
        if any(cell is not None for cell in cells):
            missing = " | ".join(["-"] * (columns // len(cells)))
            print(f"| {name} | " + " | ".join(cell or missing for cell in cells) + " |")
    print(flush=True)


def time_cell(result):
    return result and f"{result.time:.1f} | {result.memory:.0f} MiB"


def over_cell(result):
    if result is None or result.over is None:
        return None
    median, lower, upper = result.over
    return f"{median:.2f} ({lower:.2f} to {upper:.2f})"


def print_tables(shapes, found):
    batches = [f"batch {shape.replace('x', ' × ')}" for shape in shapes]
    cells = {key: [found[shape].get(key) for shape in shapes] for key in ROWS}
    print_table(
        [f"{batch} | memory" for batch in batches],
        2 * len(shapes),
        [(name, list(map(time_cell, cells[key]))) for key, name in ROWS.items()],
    )
    print("Over plain, medians of rounds (and quartiles):\n")
    rows = [(n, list(map(over_cell, cells[k]))) for k, n in ROWS.items() if not k.endswith(": plain")]
    print_table(batches, len(shapes), rows)
    short = [key for key in ROWS if not key.startswith("C++")]
    print("| batch | plain | DTensor | FSDP2 | tessera, all sharded | tessera, `fully_shard` |")
    print("|---|" + "---|" * len(short))
    for shape, batch in zip(shapes, batches):
        times = [found[shape][key].time if key in found[shape] else None for key in short]
        texts = ["-" if time is None else f"{time:.1f}" for time in times]
        print(f"| {batch.removeprefix('batch ')} | " + " | ".join(texts) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="8x1024,1x64")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--build", default="build", help="folder of gpu_bench")
    parser.add_argument("--memory-of", choices=FORMS, help="only prints the peak memory of this form, in MiB")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available():
        raise SystemExit("compare_gpu: there is no GPU here")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shapes = args.shapes.split(",")
    if args.memory_of:
        dist.init_process_group("nccl", store=store, rank=0, world_size=1)
        print_peak_memory(torch, args.memory_of, shapes[0])
    else:
        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
        bench = (ROOT / args.build).resolve() / "benchmarks" / "gpu_bench"
        if not bench.exists():
            print(f"compare_gpu: without the forms of C++, there is no {bench}")
        found = {shape: compare_in_cpp(bench, shape) if bench.exists() else {} for shape in shapes}
        dist.init_process_group("nccl", store=store, rank=0, world_size=1)
        for shape in shapes:
            found[shape].update(compare(torch, shape, args.rounds, args.steps))
        print_tables(shapes, found)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
