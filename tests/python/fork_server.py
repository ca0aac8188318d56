"""Runs Python programs as forks of an interpreter that has imported torch already, which takes a tenth of the time of
new ones. A child begins as `python program.py args...` or `python -m module args...` does, with the environment and
output files that it is given, and ends as an interpreter ends.

    python fork_server.py [module...]      imports these, or PRELOADED; reads requests and writes answers, a line of JSON
                                           each:
    {"words": ["program.py", "x"], "cwd": null, "timeout": 60, "ranks": [{"env": {"RANK": "0"}, "out": "o", "err": "e"}]}
    {"codes": [0]}
"""

import gc
import importlib
import json
import os
import runpy
import signal
import sys
import time

PRELOADED = (
    "torch",
    "torch._dynamo",  # PyTorch's distribute_tensor imports it
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.experimental",
    "torch.distributed.tensor.parallel",
    "torch.testing",
)
SECONDS_AFTER_A_FAILURE = 30  # for the other ranks to end by themselves
SECONDS_TO_PRINT_STACKS = 5


def start(request, rank):
    """0 in the child."""
    child = os.fork()
    if child != 0:
        return child
    for number, path in ((0, os.devnull), (1, rank["out"]), (2, rank["err"])):
        file = os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(file, number)
        os.close(file)
    os.environ.update(rank["env"])
    if request["cwd"]:
        os.chdir(request["cwd"])
    return 0


def wait(children, timeout):
    """The exit codes. Children that are late are ended: by SIGABRT, so that they print their stacks, then by SIGKILL."""
    codes = {}
    end = time.monotonic() + timeout
    signals = [signal.SIGABRT]
    while len(codes) < len(children):
        child, status = os.waitpid(-1, os.WNOHANG)
        if child != 0:
            codes[child] = os.waitstatus_to_exitcode(status)
            if codes[child] != 0:
                end = min(end, time.monotonic() + SECONDS_AFTER_A_FAILURE)
            continue
        if time.monotonic() > end:
            number = signals.pop() if signals else signal.SIGKILL
            for late in set(children) - set(codes):
                os.kill(late, number)
            end = time.monotonic() + SECONDS_TO_PRINT_STACKS
        time.sleep(0.005)
    return [codes[child] for child in children]


def serve():
    """The words of a program, in a child; None at the end of requests."""
    for line in sys.stdin:
        request = json.loads(line)
        children = []
        for rank in request["ranks"]:
            children.append(start(request, rank))
            if children[-1] == 0:
                return request["words"]
        print(json.dumps({"codes": wait(children, request["timeout"])}), flush=True)
    return None


def run(words):
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], os.getcwd()
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv, sys.path[0] = words, os.path.dirname(os.path.abspath(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    for module in sys.argv[1:] or PRELOADED:
        importlib.import_module(module)
    gc.freeze()  # else every child visits all objects of torch at its exit, which takes longer than most programs
    program = serve()
    if program is not None:
        run(program)
