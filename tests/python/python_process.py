"""Python programs as processes of their own, one or several under PyTorch's launcher."""

import os
import pathlib
import subprocess
import sys

import tessera

# PyTorch's programs abort with this at times, one run in some hundred, also without this package: a thread of
# libtorch asks for the interpreter's lock while the interpreter shuts down, which unwinds it through noexcept code.
ABORTED_AT_EXIT = "terminate called without an active exception"


def environment():
    """Processes find the modules of this folder, and this package."""
    folders = [pathlib.Path(__file__).parent, pathlib.Path(tessera.__file__).parents[1]]
    folders += [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return dict(
        os.environ,
        OMP_NUM_THREADS="1",
        CUDA_VISIBLE_DEVICES="",  # PyTorch takes a GPU a process where there is any
        PYTHONPATH=os.pathsep.join(map(str, folders)),
        TESSERA_TIMEOUT_S="60",
    )


def run_python(*words, cwd=None, code=0, attempts=3):
    """What `python words...` prints, stdout first. Fails, with the output, if it exits with another code; a program
    that aborted at its exit is run again."""
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    if done.returncode != code and ABORTED_AT_EXIT in done.stderr and attempts > 1:
        return run_python(*words, cwd=cwd, code=code, attempts=attempts - 1)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def torchrun(n, *words, cwd=None):
    """run_python on n processes."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", n]
    return run_python(*launch, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *words, cwd=cwd)
