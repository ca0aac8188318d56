"""Workers that run programs, and are started again when one hangs or ends."""

from __future__ import annotations

import json
import os
import pathlib
import selectors
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

import judge
from judge import Verdict
from program import Program

HERE = pathlib.Path(__file__).parent
START_S = 180
PROGRAM_S = 120


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class World:
    """Thread ranks of one process (processes=0), or so many processes of one rank each."""

    def __init__(self, processes: int = 0, plant: str = ""):
        self.processes = processes
        self.plant = plant  # see plant.py
        self.workers: list[subprocess.Popen[str]] = []
        self.ran: list[Program] = []  # since the caches were last empty

    def run(self, programs: list[Program], reset: bool = False) -> Verdict:
        """The verdict on the last program, after the others ran in the same world."""
        if not self.workers:
            self._start()
        if reset:
            self.ran = []
        self.ran += programs
        task = {"reset": reset, "programs": [p.to_json() for p in programs]}
        text = json.dumps(task) + "\n"
        for worker in self.workers:
            try:
                worker.stdin.write(text)
                worker.stdin.flush()
            except BrokenPipeError:
                pass  # _answers sees that it ended
        verdict = judge.of_ranks(self._answers(PROGRAM_S * len(programs)))
        if verdict.kind in ("hang", "crash", "unclear"):
            self.close()
        return verdict

    def _start(self) -> None:
        environment = dict(os.environ, OMP_NUM_THREADS="1", TESSERA_FUZZ_PLANT=self.plant)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
            environment.pop(name, None)
        self.log = tempfile.TemporaryFile("w+")
        port = str(_free_port())
        for rank in range(max(1, self.processes)):
            if self.processes:
                environment.update(
                    RANK=str(rank),
                    LOCAL_RANK=str(rank),
                    WORLD_SIZE=str(self.processes),
                    MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=port,
                    TESSERA_TIMEOUT_S="60",
                )
            self.workers.append(
                subprocess.Popen(
                    [sys.executable, str(HERE / "worker.py")],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=self.log,
                    text=True,
                )
            )
        self.ran = []
        started = self._answers(START_S)
        if any(v.kind in ("hang", "crash") for v in started):
            text = self._last_words()
            self.close()
            raise RuntimeError(f"a worker did not start: {text}")

    def _answers(self, limit: float) -> list[Verdict]:
        """One line of each worker, or what happened to it."""
        until = time.monotonic() + limit
        found: dict[int, list[Verdict]] = {}
        with selectors.DefaultSelector() as waiting:
            for rank, worker in enumerate(self.workers):
                waiting.register(worker.stdout, selectors.EVENT_READ, rank)
            while len(found) < len(self.workers) and time.monotonic() < until:
                for key, _ in waiting.select(max(0.0, until - time.monotonic())):
                    line = key.fileobj.readline()
                    waiting.unregister(key.fileobj)
                    found[key.data] = self._read(line, key.data)
        missing = [Verdict("hang", f"no answer in {limit:.0f} s")]
        return [v for rank in range(len(self.workers)) for v in found.get(rank, missing)]

    def _read(self, line: str, rank: int) -> list[Verdict]:
        if not line:
            code = self.workers[rank].wait()
            return [Verdict("crash", f"exit code {code}: {self._last_words()}")]
        return [Verdict(**fields) for fields in json.loads(line)]

    def _last_words(self) -> str:
        self.log.seek(0)
        return self.log.read()[-2000:]

    def close(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
            worker.stdin.close()
            worker.stdout.close()
        self.workers = []

    def __enter__(self) -> World:
        return self

    def __exit__(self, *unused: Any) -> None:
        self.close()
