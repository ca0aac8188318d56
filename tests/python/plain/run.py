#!/usr/bin/env python3
"""Runs the tests of this folder's parent without pytest, in processes that share them.

    PYTHONPATH=build/python python3 tests/python/plain/run.py [--jobs 4] [--limit 240] [--logs DIR] [cuda_test.py ...]

One process a file (worker.py), as many at a time as there are jobs; those that have no file left to begin take cases of
the file that has most of them left. Prints a line a file, each failure with its traceback, and in the end the counts
and the longest cases; exit code 1 if anything failed. With --logs the processes print to files of that folder. Test
files that need a package which is not installed are skipped.

A case that takes longer than the limit, in seconds, failed: the stacks of its threads are printed (faulthandler), its
process is killed with all that it started, and another one goes on with the next case. So it is for one that crashes.
SIGTERM ends the run: the cases in progress failed, with their stacks, and files say how many cases were not run.
"""

import argparse
import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
LONG = ("op_sweep_test.py", "compat_enable_test.py", "examples_test.py", "sharded_models_test.py")  # begin first
LOAD_LIMIT = 240  # seconds to import a test file
PROCESS_MARGIN = 20  # processes that a test starts end that much before its own limit, and their output is shown


class Ended(Exception):
    """The process of a worker ended, or had to be ended."""


class Worker:
    """A process that runs cases of one file."""

    def __init__(self, path, limit, log):
        self.limit, self.log = limit, log
        requests, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, HERE / "worker.py", path, str(requests), str(answers)],
            pass_fds=(requests, answers),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=dict(os.environ, TESSERA_TEST_PROCESS_TIMEOUT_S=str(max(1, limit - PROCESS_MARGIN))),
        )
        os.close(requests)
        os.close(answers)
        self.unread = b""

    def answer(self, limit):
        end = time.monotonic() + limit
        while b"\n" not in self.unread:
            ready, _, _ = select.select([self.answers], [], [], max(0, end - time.monotonic()))
            if not ready:
                self.kill()
                raise Ended(f"took longer than {limit} s: hung, or the limit is too low")
            piece = os.read(self.answers, 1 << 16)
            if not piece:
                raise Ended(f"the process ended with code {self.exit_code()}")
            self.unread += piece
        line, self.unread = self.unread.split(b"\n", 1)
        return json.loads(line)

    def run(self, number):
        with contextlib.suppress(BrokenPipeError):
            os.write(self.requests, b"%d\n" % number)
        return self.answer(self.limit)

    def exit_code(self):
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            return "none: it hung at its exit"

    def kill(self):
        """Prints the stacks of its threads, then ends it with all processes that it started."""
        for number in (signal.SIGABRT, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def finish(self):
        """Ends it when it has nothing to do; raises Ended if it does not exit with 0."""
        self.close()
        code = self.exit_code()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if code != 0:
            raise Ended(f"the process ended with code {code} after its tests")

    def close(self):
        for end in (self.requests, self.answers):
            with contextlib.suppress(OSError):
                os.close(end)
        self.requests = self.answers = -1


class File:
    """What is known of a test file: the names of its cases, those that no worker has taken yet, and results."""

    def __init__(self, path):
        self.path, self.workers, self.begun = path, 0, False
        self.cases, self.left, self.counts = None, [], {"passed": 0, "skipped": 0, "failed": 0}
        self.skipped, self.failures = None, []

    def loaded(self, answer):
        """Takes the first answer of a worker; further ones know nothing new."""
        if "skipped" in answer:
            self.skipped = answer["skipped"]
        elif self.cases is None:
            self.cases = answer["cases"]
            self.left = list(range(len(self.cases)))

    def fail(self, name, reason):
        self.counts["failed"] += 1
        self.failures.append(f"{self.path.name}: {name}: {reason}")

    def summary(self):
        if self.skipped is not None:
            return f"{self.path.name}: skipped: {self.skipped}"
        counts = dict(self.counts, **({"not run": len(self.left)} if self.left else {}))
        return f"{self.path.name}: " + ", ".join(f"{n} {what}" for what, n in counts.items())


class Suite:
    """All files, and what the jobs do next. One lock: cases take seconds, decisions none."""

    def __init__(self, paths, limit, logs):
        self.files = [File(path) for path in sorted(paths, key=lambda path: path.name not in LONG)]
        self.limit, self.logs, self.lock = limit, logs, threading.Lock()
        self.times, self.running, self.log_count, self.stopped = [], {}, 0, False
        self.reasons = collections.Counter()  # of skipped cases

    def next_file(self):
        """One that no job has begun, else the one with most cases left for each worker; None if there is none."""
        with self.lock:
            if self.stopped:
                return None
            chosen = next((file for file in self.files if not file.begun), None)
            if chosen is None:
                open_files = [file for file in self.files if len(file.left) > 1]
                chosen = max(open_files, key=lambda file: len(file.left) / (1 + file.workers), default=None)
            if chosen is not None:
                chosen.begun = True
                chosen.workers += 1
            return chosen

    def job(self):
        while True:
            file = self.next_file()
            if file is not None:
                self.serve(file)
            elif any(f.begun and f.cases is None and f.skipped is None and f.workers for f in self.files):
                time.sleep(0.2)  # may have cases to share once it is loaded
            else:
                return

    def serve(self, file):
        """Runs cases of the file until none is left."""
        try:
            with self.open_log(file) as log:
                while not self.run_worker(file, log):
                    pass
        finally:
            with self.lock:
                file.workers -= 1
                if file.workers == 0 and not file.left:
                    print(file.summary(), flush=True)

    def open_log(self, file):
        if self.logs is None:
            return contextlib.nullcontext()  # its process prints where this one does
        with self.lock:
            self.log_count += 1
            return open(self.logs / f"{file.path.stem}.{self.log_count}.log", "w", encoding="utf-8")

    def run_worker(self, file, log):
        """True if no case is left, False if the process ended before."""
        worker = Worker(file.path, self.limit, log)
        try:
            self.set_running(worker, file, "import")
            answer = worker.answer(LOAD_LIMIT)
            with self.lock:
                file.loaded(answer)
            while (number := self.take_case(file)) is not None:
                self.run_case(file, worker, number)
            self.set_running(worker, file, "exit")
            worker.finish()
        except Ended as ended:
            if self.stopped:
                return True
            _, name = self.running[worker]
            self.report(file, name, str(ended))
            return name in ("import", "exit") or not file.left
        finally:
            worker.close()
            with self.lock:
                del self.running[worker]
        return True

    def set_running(self, worker, file, name):
        with self.lock:
            self.running[worker] = (file, name)

    def take_case(self, file):
        with self.lock:
            return file.left.pop(0) if file.left else None

    def run_case(self, file, worker, number):
        name = file.cases[number]
        self.set_running(worker, file, name)
        begin = time.monotonic()
        answer = worker.run(number)
        with self.lock:
            self.times.append((time.monotonic() - begin, f"{file.path.name}: {name}"))
            if answer["result"] == "failed":
                file.fail(name, "failed")
            else:
                file.counts[answer["result"]] += 1
            if answer["result"] == "skipped":
                self.reasons[f"{file.path.name}: {answer['reason']}"] += 1

    def report(self, file, name, reason):
        with self.lock:
            file.fail(name, reason)
            print(file.failures[-1], flush=True)

    def stop(self, *_):
        """Ends the run at once, from a signal handler: no lock, since this thread may hold it."""
        if self.stopped:  # the second of two signals
            return
        self.stopped, running = True, list(self.running.items())
        for _, (file, name) in running:
            file.fail(name, "in progress when the run was ended")
        for number, seconds in ((signal.SIGABRT, 5), (signal.SIGKILL, 0)):  # all at once, unlike Worker.kill
            for worker, _ in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.process.pid, number)
            time.sleep(seconds)
        for file in self.files:
            if not file.begun:
                print(f"{file.path.name}: not run")
            elif file.left or any(of is file for _, (of, _) in running):
                print(file.summary())
        self.print_summary()
        os._exit(1)

    def print_summary(self):
        total = {what: sum(file.counts[what] for file in self.files) for what in ("passed", "skipped", "failed")}
        for seconds, name in sorted(self.times, reverse=True)[:10]:
            print(f"{seconds:6.1f} s  {name}")
        for reason, n in self.reasons.items():
            print(f"skipped {n} of {reason}")
        for failure in (failure for file in self.files for failure in file.failures):
            print(f"FAILED {failure}")
        print("total: " + ", ".join(f"{n} {what}" for what, n in total.items()), flush=True)
        return total["failed"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--limit", type=int, default=240, help="seconds that a case may take")
    parser.add_argument("--logs", type=pathlib.Path, help="folder for the output of the tests")
    parser.add_argument("files", nargs="*", help="of the tests; without: all")
    args = parser.parse_args()
    paths = [HERE.parent / name for name in args.files] or sorted(HERE.parent.glob("*_test.py"))
    if args.logs is not None:
        args.logs.mkdir(parents=True, exist_ok=True)
    suite = Suite(paths, args.limit, args.logs)
    signal.signal(signal.SIGTERM, suite.stop)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as jobs:
        for done in [jobs.submit(suite.job) for _ in range(args.jobs)]:
            done.result()
    sys.exit(1 if suite.print_summary() else 0)


if __name__ == "__main__":
    main()
