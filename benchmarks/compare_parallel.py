"""One step (forward, backward, SGD) of a tensor-parallel block, by this library's parallelize_module
and by PyTorch's, on the same shapes and processes; and the plain local step with weights of a rank's
size, to separate overhead from work. With --fake 8, one rank of a world of 8 that sends nothing: what is
above the plain step is the framework alone.

    PYTHONPATH=build/python torchrun --nproc-per-node 2 benchmarks/compare_parallel.py [--width 64]
    PYTHONPATH=build/python python benchmarks/compare_parallel.py --fake 8
    ... --sequence [--overlap 4]     activations between the products sharded over the sequence
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import parallel as theirs

import tessera


class Block(nn.Module):
    def __init__(self, width: int, split: int = 1) -> None:
        super().__init__()
        own = width // split
        self.head_size = width // 8
        self.norm = nn.LayerNorm(width)
        self.wq = nn.Linear(width, own, bias=False)
        self.wk = nn.Linear(width, own, bias=False)
        self.wv = nn.Linear(width, own, bias=False)
        self.wo = nn.Linear(own, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * own, bias=False)
        self.down = nn.Linear(4 * own, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        q, k, v = (
            w(h).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for w in (self.wq, self.wk, self.wv)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.wo(y.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.mlp_norm(x))))


def plan(styles, sequence: bool, overlap: int = 1):
    options = {"overlap": overlap} if overlap > 1 else {}
    by_outputs, by_inputs = styles.ColwiseParallel(**options), styles.RowwiseParallel(**options)
    norms = {}
    if sequence:
        options["use_local_output"] = True
        by_outputs = styles.ColwiseParallel(input_layouts=layout(styles), **options)
        by_inputs = styles.RowwiseParallel(output_layouts=layout(styles), **options)
        norms = {name: styles.SequenceParallel() for name in ("norm", "mlp_norm")}
    return {
        **{name: by_outputs for name in ("wq", "wk", "wv", "up")},
        **{name: by_inputs for name in ("wo", "down")},
        **norms,
    }


def layout(styles):
    return tessera.Shard(1) if styles is tessera else tensor.Shard(1)


def milliseconds(model: nn.Module, x: torch.Tensor, steps: int) -> float:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    for _ in range(5):
        step()
    times = []
    for _ in range(steps):
        dist.barrier()
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    # With messages the median; without, the fastest step: the rest is other programs.
    return (min(times) if dist.get_backend() == "fake" else statistics.median(times)) * 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--places", type=int, default=16)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--fake", type=int, default=0, help="ranks of a world that sends nothing")
    parser.add_argument("--sequence", action="store_true")
    parser.add_argument("--overlap", type=int, default=1, help="pieces (this library alone)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.fake:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", rank=0, world_size=options.fake, store=FakeStore())
    else:
        dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    places = options.places // ranks if options.sequence else options.places
    x = torch.randn(options.batch, places, options.width)
    whole = torch.randn(options.batch, options.places, options.width)

    def parallel(library, styles, overlap=1) -> float:
        wanted = plan(styles, options.sequence, overlap)
        model = library.parallelize_module(Block(options.width), mesh, wanted)
        return milliseconds(model, x, options.steps)

    share = "plain, a rank's share"
    results = {share: milliseconds(Block(options.width, ranks), whole, options.steps)}
    results["tessera"] = parallel(tessera, tessera)
    if options.overlap > 1:
        results[f"tessera, {options.overlap} pieces"] = parallel(tessera, tessera, options.overlap)
    results["PyTorch"] = parallel(theirs, theirs)
    if dist.get_rank() == 0:
        for name, value in results.items():
            above = value - results[share]
            print(f"{name:24} {value:7.2f} ms   above the plain step {above:7.2f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
