"""Python programs as processes of their own: one, or the ranks of a world."""

import atexit
import contextlib
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import uuid

import torch

import tessera

# PyTorch's programs abort with this at times, one run in some hundred, also without this package: a thread of
# libtorch asks for the interpreter's lock while the interpreter shuts down, which unwinds it through noexcept code.
ABORTED_AT_EXIT = "terminate called without an active exception"
TESSERA = pathlib.Path(tessera.__file__).parent / "bin" / "tessera"  # the command line; may be missing
TIMEOUT_S = float(os.environ.get("TESSERA_TEST_PROCESS_TIMEOUT_S", "240"))


def environment():
    """Processes find the modules of this folder, and this package."""
    folders = [pathlib.Path(__file__).parent, pathlib.Path(tessera.__file__).parents[1]]
    folders += [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return dict(
        os.environ,
        OMP_NUM_THREADS="1",
        CUDA_VISIBLE_DEVICES="",  # PyTorch takes a GPU a process where there is any
        PYTHONFAULTHANDLER="1",  # those that are late are ended by SIGABRT, which prints the stacks of their threads
        PYTHONPATH=os.pathsep.join(map(str, folders)),
        TESSERA_TIMEOUT_S="60",
    )


def run_again_if_aborted(attempt, attempts=3):
    """(code, stdout, stderr) of attempt(), which is repeated if it aborted at its exit."""
    code, out, err = attempt()
    if code != 0 and ABORTED_AT_EXIT in err and attempts > 1:
        return run_again_if_aborted(attempt, attempts - 1)
    return code, out, err


def output_within(process, timeout):
    """(code, stdout, stderr) of a process that leads a session. One that is late failed, whatever its code: it is ended
    with all processes of its session, which print the stacks of their threads first."""
    for number, seconds in ((signal.SIGABRT, timeout), (signal.SIGKILL, 10)):
        try:
            texts = process.communicate(timeout=seconds)
            late = number == signal.SIGKILL
            return process.returncode or (-signal.SIGABRT if late else 0), *texts
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
    return -signal.SIGKILL, *process.communicate(timeout=10)


def run_once(*words, cwd=None):
    """(code, stdout, stderr) of `python words...`."""
    process = subprocess.Popen(
        [sys.executable, *map(str, words)],
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    return output_within(process, TIMEOUT_S)


def run_python(*words, cwd=None, code=0):
    """What `python words...` prints, stdout first. Fails, with the output, if it exits with another code."""
    found, out, err = run_again_if_aborted(lambda: run_once(*words, cwd=cwd))
    assert found == code, out + err
    return out + err


def torchrun(n, *words, cwd=None):
    """run_python on n processes of PyTorch's launcher, which would wait for minutes for this machine's name to be
    resolved where there is no network."""
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", n, "--local-addr", "localhost"]
    return run_python(*launch, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *words, cwd=cwd)


def run_world(n, *words, cwd=None, code=0):
    """run_python on n ranks with the variables of PyTorch's launcher, as forks of one server: much faster. `code` is
    that of the first rank that did not exit with 0."""

    def attempt():
        store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        world = {
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(store.port),
            "WORLD_SIZE": str(n),
            "LOCAL_WORLD_SIZE": str(n),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_RUN_ID": uuid.uuid4().hex,
        }
        with tempfile.TemporaryDirectory() as folder:
            out, err = ([f"{folder}/{kind}.{rank}" for rank in range(n)] for kind in ("out", "err"))
            ranks = [
                {"env": {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}, "out": out[rank], "err": err[rank]}
                for rank in range(n)
            ]
            codes = ask(fork_server(), words, cwd, ranks)
            texts = ["".join(pathlib.Path(file).read_text(encoding="utf-8") for file in files) for files in (out, err)]
        return next((code for code in codes if code != 0), 0), *texts

    found, out, err = run_again_if_aborted(attempt)
    assert found == code, out + err
    return out + err


def run_example(file):
    """What `python file` prints, as a fork of an interpreter that has imported torch alone, as all examples do."""

    def attempt():
        with tempfile.TemporaryDirectory() as folder:
            texts = [pathlib.Path(folder, name) for name in ("out", "err")]
            rank = {"env": {}, "out": str(texts[0]), "err": str(texts[1])}
            (code,) = ask(fork_server("torch"), [file], None, [rank])
            return code, *(text.read_text(encoding="utf-8") for text in texts)

    code, out, err = run_again_if_aborted(attempt)
    assert code == 0, out + err
    return out


@functools.cache
def fork_server(*modules):
    server = subprocess.Popen(
        [sys.executable, pathlib.Path(__file__).with_name("fork_server.py"), *modules],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.stdin.close)
    return server


def ask(server, words, cwd, ranks):
    """The exit codes of the ranks."""
    words = [str(word) for word in words]
    request = {"words": words, "cwd": cwd and str(cwd), "timeout": TIMEOUT_S, "ranks": ranks}
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())["codes"]
