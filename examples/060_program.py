"""Shards an exported program over two ranks and compares what it computes with the whole one. The files are those
of `tessera shard`: `tessera run` starts them as processes, without Python."""

import pathlib
import subprocess
import sys
import tempfile

import torch

import tessera

MODEL = pathlib.Path(__file__).parent / "060_serve/model.pt2"
PLAN = pathlib.Path(__file__).parent / "060_serve/plan.json"

if __name__ == "__main__":
    tokens = torch.arange(12).view(2, 6)
    program = tessera.load_program(str(MODEL))
    (logits,) = program.run([tokens])
    print("inputs:", program.input_names, "output:", tuple(logits.shape))
    with tempfile.TemporaryDirectory() as folder:
        target = pathlib.Path(folder) / "tp2"
        tessera.shard_program(str(MODEL), "tp=2", str(PLAN), directory=str(target))
        print(sorted(file.name for file in target.iterdir()))
        command = [sys.executable, "-m", "tessera", "verify", str(MODEL), str(target)]
        subprocess.run(command, check=True)
