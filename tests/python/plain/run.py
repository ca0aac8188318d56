#!/usr/bin/env python3
"""Runs tests of this folder's parent without pytest.

    PYTHONPATH=build/python python3 tests/python/plain/run.py [--part 1/4] [cuda_test.py ...]

With --part only every fourth test, beginning with the first: for processes that share a long file.
Prints a line a test file and each failure with its traceback; exit code 1 if there was one. Test
files that need a package which is not installed are skipped. Knows functions `test_*`, fixtures with
`yield`, `tmp_path` and `monkeypatch`; no test classes.
"""

import importlib
import inspect
import itertools
import os
import pathlib
import sys
import tempfile
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pytest  # noqa: E402  (the one of this folder)


class MonkeyPatch:
    """setattr, setenv, delenv and chdir, undone at the end."""

    def __init__(self):
        self.undo = []

    def setattr(self, owner, name, value):
        before = getattr(owner, name)
        self.undo.append(lambda: setattr(owner, name, before))
        setattr(owner, name, value)

    def _put(self, name, value):
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    def setenv(self, name, value):
        before = os.environ.get(name)
        self.undo.append(lambda: self._put(name, before))
        self._put(name, value)

    def chdir(self, path):
        before = os.getcwd()
        self.undo.append(lambda: os.chdir(before))
        os.chdir(path)

    def delenv(self, name, raising=True):
        self.setenv(name, None)


def fixtures_of(*modules):
    found = {}
    for module in modules:
        found.update({n: f for n, f in vars(module).items() if hasattr(f, "_fixture")})
    return found


class Session:
    """The fixtures of one test: made when asked for, ended in reverse order."""

    def __init__(self, known, kept):
        self.known, self.kept, self.made, self.ends = known, kept, {}, []

    def value(self, name):
        if name in self.made:
            return self.made[name]
        if name in self.kept:
            return self.kept[name]
        if name == "tmp_path":
            folder = tempfile.TemporaryDirectory()
            self.ends.append(folder.cleanup)
            value = pathlib.Path(folder.name)
        elif name == "monkeypatch":
            value = MonkeyPatch()
            self.ends.append(lambda: [undo() for undo in reversed(value.undo)])
        else:
            return self.make(name)
        self.made[name] = value
        return value

    def make(self, name):
        if name not in self.known:
            raise pytest.Skipped(f"no fixture {name} here")
        made = self.known[name]
        value = made(**{n: self.value(n) for n in inspect.signature(made).parameters})
        if inspect.isgenerator(value):
            generator = value
            value = next(generator)
            self.ends.append(lambda: next(generator, None))
        (self.made if made._fixture.scope == "function" else self.kept)[name] = value
        return value

    def end(self):
        for end in reversed(self.ends):
            end()


def run_case(test, case, known, kept):
    session = Session(known, kept)
    try:
        for name, made in known.items():
            if made._fixture.autouse:
                session.value(name)
        asked = [n for n in inspect.signature(test).parameters if n not in case]
        test(**case, **{n: session.value(n) for n in asked})
    finally:
        session.end()


def cases_of(test):
    for held in itertools.product(*getattr(test, "_cases", [])):
        yield {name: value for one in held for name, value in one.items()}


def skip_reason(tested):
    marks = getattr(tested, "pytestmark", [])
    marks = [*(marks if isinstance(marks, list) else [marks]), *getattr(tested, "_skip_if", [])]
    return next((m.reason for m in marks if getattr(m, "condition", False)), None)


def cases_in_part(tests, part):
    """Of all tests with their cases: every count-th, beginning with the number-th, which counts from 1."""
    number, count = part
    cases = [(test, case) for test in tests for case in cases_of(test)]
    return cases[number - 1 :: count]


def run_file(path, part):
    """(passed, skipped, failed)"""
    counts = {"passed": 0, "skipped": 0, "failed": 0}
    try:
        conftest = importlib.import_module("conftest")
        module = importlib.import_module(path.stem)
    except (ModuleNotFoundError, pytest.Skipped) as missing:
        if (getattr(missing, "name", None) or "").split(".")[0] == "tessera":
            raise
        print(f"{path.name}: skipped: {missing}", flush=True)
        return counts
    known, kept = fixtures_of(conftest, module), {}
    tests = [t for n, t in vars(module).items() if n.startswith("test_") and inspect.isfunction(t)]
    for test, case in cases_in_part(tests, part):
        if skip_reason(module) or skip_reason(test):
            counts["skipped"] += 1
            continue
        try:
            run_case(test, case, known, kept)
            counts["passed"] += 1
        except pytest.Skipped:
            counts["skipped"] += 1
        except Exception:
            counts["failed"] += 1
            print(f"{path.name}: {test.__name__} {case} failed")
            traceback.print_exc(file=sys.stdout)
    print(f"{path.name}: " + ", ".join(f"{n} {what}" for what, n in counts.items()), flush=True)
    return counts


def main():
    names, part = sys.argv[1:], (1, 1)
    if names[:1] == ["--part"]:
        part = tuple(map(int, names[1].split("/")))
        names = names[2:]
    paths = [HERE.parent / n for n in names] if names else sorted(HERE.parent.glob("*_test.py"))
    failed = sum(run_file(path, part)["failed"] for path in paths)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
