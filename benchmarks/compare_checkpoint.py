#!/usr/bin/env python3
"""Checkpoints beside `cp` and PyTorch's DCP, on processes of this machine.

    PYTHONPATH=build/python .venv/bin/python benchmarks/compare_checkpoint.py [-n 2] [--mib 1024]
        [--rounds 3] [--folder /tmp]

The state is 16 float32 matrices, sharded by rows. A save ends when the bytes are on the device (DCP's
default does not promise that; it is timed with and without its sync_files). `new` is to a directory that
does not exist, as most saves are; `again` replaces the one that is there, and `spare` does so by
overwriting the files of the one before (`tessera.save(..., spare=...)`). `first load` is the one after
the save: what was saved past the page cache comes from the device then, what was saved through it from
memory. The other loads read files that are in the page cache, of both. Before each call everything that
was written before is synced, so that no call pays for another's. Each figure is the median of the rounds,
which take turns, with the least and the most.

The bare lines are what the machine gives: the same bytes by the same number of processes, written from
memory by write(2) and fsync, through the page cache and past it (O_DIRECT, to a new file and over one
that is there), and read by read(2) into memory, with nothing else done. Where a save is as fast as the
better of them, the disk is the limit.
"""

from __future__ import annotations

import argparse
import mmap
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

MATRICES = 16
COLUMNS = 1024
BLOCK = 4 << 20


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", "--processes", type=int, default=2)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", default="/tmp")
    return parser.parse_args()


def copy_and_sync(source: pathlib.Path, target: pathlib.Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-r", str(source), str(target)], check=True)
    for path in target.iterdir():
        with open(path, "rb+") as file:
            os.fsync(file.fileno())


def main() -> None:
    options = arguments()
    if "RANK" not in os.environ:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
        command += [str(options.processes), "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
        environment = dict(os.environ, OMP_NUM_THREADS="1")
        sys.exit(subprocess.run(command + sys.argv, env=environment, check=False).returncode)

    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed import tensor as theirs
    from torch.distributed.device_mesh import init_device_mesh

    import tessera

    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("dp",))
    ours = tessera.mesh_from_torch(mesh)
    rows = options.mib * 1024 * 1024 // 4 // COLUMNS // MATRICES // ranks * ranks
    parts = {f"w{i}": torch.rand(rows // ranks, COLUMNS) for i in range(MATRICES)}
    mine = {name: tessera.from_local(part, ours, "S0") for name, part in parts.items()}
    other = {name: theirs.DTensor.from_local(part, mesh, [theirs.Shard(0)]) for name, part in parts.items()}
    turned = {name: tessera.zeros(rows, COLUMNS, device_mesh=ours, placements="S1") for name in parts}
    theirs_turned = {name: theirs.zeros(rows, COLUMNS, device_mesh=mesh, placements=[theirs.Shard(1)]) for name in parts}
    root = pathlib.Path(options.folder) / "tessera_compare_checkpoint"
    root.mkdir(exist_ok=True)

    def dcp_save(sync: bool) -> None:
        writer = dcp.FileSystemWriter(root / "theirs", sync_files=sync)
        dcp.save(other, storage_writer=writer)

    def removed(folder: str) -> None:
        if rank == 0:
            shutil.rmtree(root / folder, ignore_errors=True)

    bare = root / f"bare_{rank}"
    block = mmap.mmap(-1, BLOCK)  # aligned, as O_DIRECT asks for
    block.write(os.urandom(BLOCK))

    def bare_write_direct() -> None:
        file = os.open(bare, os.O_WRONLY | os.O_CREAT | os.O_DIRECT)
        for _ in range(rows * COLUMNS * 4 * MATRICES // ranks // BLOCK):
            os.write(file, block)
        os.fsync(file)
        os.close(file)

    def bare_write() -> None:
        with open(bare, "wb", buffering=0) as file:
            for part in parts.values():
                data = memoryview(part.numpy()).cast("B")
                while data:
                    data = data[file.write(data) :]
            os.fsync(file.fileno())

    def bare_read() -> None:
        with open(bare, "rb", buffering=0) as file:
            for part in parts.values():
                data = memoryview(part.numpy()).cast("B")
                while data:
                    data = data[file.readinto(data) :]

    def read_all() -> None:
        for folder in ("ours", "theirs"):
            for path in (root / folder).iterdir() if rank == 0 else []:
                subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)

    calls: list[tuple[str, Callable[[], object]]] = [
        ("bare write + fsync", bare_write),
        ("", lambda: bare.unlink()),
        ("bare write, O_DIRECT", bare_write_direct),
        ("bare overwrite, O_DIRECT", bare_write_direct),
        ("", lambda: removed("theirs")),
        ("dcp.save, new, sync_files", lambda: dcp_save(True)),
        ("dcp.save, again, sync_files", lambda: dcp_save(True)),
        ("", lambda: removed("theirs")),
        ("dcp.save, new, not synced", lambda: dcp_save(False)),
        ("dcp.save, again, not synced", lambda: dcp_save(False)),
        ("", lambda: removed("ours")),
        ("tessera.save, new", lambda: tessera.save(mine, root / "ours")),
        ("tessera.save, again", lambda: tessera.save(mine, root / "ours")),
        ("", lambda: tessera.save(mine, root / "ours", spare=root / "spare")),
        ("tessera.save, spare", lambda: tessera.save(mine, root / "ours", spare=root / "spare")),
        ("", lambda: removed("spare")),
        ("tessera, first load", lambda: tessera.load(mine, root / "ours")),
        ("dcp, first load", lambda: dcp.load(other, checkpoint_id=root / "theirs")),
        ("", read_all),
        ("cp + fsync", lambda: copy_and_sync(root / "ours", root / "copy") if rank == 0 else None),
        ("bare read", bare_read),
        ("tessera.load, same mesh", lambda: tessera.load(mine, root / "ours")),
        ("tessera.load, not verified", lambda: tessera.load(mine, root / "ours", verify=False)),
        ("dcp.load, same mesh", lambda: dcp.load(other, checkpoint_id=root / "theirs")),
        ("tessera.load, S0 to S1", lambda: tessera.load(turned, root / "ours")),
        ("dcp.load, S0 to S1", lambda: dcp.load(theirs_turned, checkpoint_id=root / "theirs")),
    ]
    times: dict[str, list[float]] = {name: [] for name, _ in calls}
    for _ in range(options.rounds):
        for name, call in calls:
            dist.barrier()
            if rank == 0:
                os.sync()
            dist.barrier()
            start = time.perf_counter()
            call()
            dist.barrier()
            times[name].append(time.perf_counter() - start)
    if rank == 0:
        size = rows * COLUMNS * 4 * MATRICES
        print(f"{size / 2**20:.0f} MiB, {ranks} processes, median of {options.rounds} (least to most)")
        for name, seconds in times.items():
            median = statistics.median(seconds)
            rate = size / median / 2**30
            if name:
                print(f"  {name:28} {median:7.3f} s ({min(seconds):.3f} to {max(seconds):.3f})  {rate:6.2f} GiB/s")
        shutil.rmtree(root)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
