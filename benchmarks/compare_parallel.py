"""One step (forward, backward, SGD) of a tensor-parallel block, by this library's parallelize_module
and by PyTorch's, on the same shapes and processes; and the plain local step with weights of a rank's
size, to tell overhead from work.

    PYTHONPATH=build/python torchrun --nproc-per-node 2 benchmarks/compare_parallel.py [--width 64]
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import parallel as theirs

import tessera


class Block(nn.Module):
    def __init__(self, width: int, split: int = 1) -> None:
        super().__init__()
        own = width // split
        self.head_size = width // 4
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


def plan(styles):
    by_outputs, by_inputs = styles.ColwiseParallel, styles.RowwiseParallel
    return {
        **{name: by_outputs() for name in ("wq", "wk", "wv", "up")},
        **{name: by_inputs() for name in ("wo", "down")},
    }


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
    return sorted(times)[len(times) // 2] * 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=50)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
    x = torch.randn(2, 16, options.width)
    results = {
        "plain, a rank's share": milliseconds(Block(options.width, ranks), x, options.steps),
        "tessera": milliseconds(
            tessera.parallelize_module(Block(options.width), mesh, plan(tessera)), x, options.steps
        ),
        "PyTorch": milliseconds(
            theirs.parallelize_module(Block(options.width), mesh, plan(theirs)), x, options.steps
        ),
    }
    if dist.get_rank() == 0:
        base = results["plain, a rank's share"]
        for name, value in results.items():
            print(f"{name:24} {value:7.2f} ms   above the plain step {value - base:7.2f} ms")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
