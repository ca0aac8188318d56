#!/usr/bin/env python3
"""Runs tests of one file, those that run.py asks for: a process of its own, since a test may crash or hang.

    worker.py FILE REQUESTS ANSWERS

The last two are file descriptors. The first answer names the cases of the file, or says why it is skipped; then each
request is the number of a case and each answer its result, a line of JSON each:

    {"cases": ["test_a", "test_b n=2"]}      {"skipped": "No module named 'expecttest'"}
    1                                        {"result": "passed"}
    2                                        {"result": "skipped", "reason": "needs a GPU"}

What fails is printed with its traceback. Knows functions `test_*`, fixtures with `yield`, `tmp_path`,
`tmp_path_factory` and `monkeypatch`, and classes of unittest.
"""

import faulthandler
import importlib
import inspect
import itertools
import json
import os
import pathlib
import sys
import tempfile
import traceback
import unittest

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


class TempPathFactory:
    """mktemp(name): a new folder, removed at the exit."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()

    def mktemp(self, name):
        path = pathlib.Path(self.folder.name) / name
        path.mkdir()
        return path


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
        elif name == "tmp_path_factory":
            self.kept[name] = TempPathFactory()
            return self.kept[name]
        else:
            return self.make(name)
        self.made[name] = value
        return value

    def make(self, name):
        if name not in self.known:
            raise LookupError(f"the runner without pytest has no fixture {name}")
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


def name_of(test, case):
    return " ".join([test.__name__, *(f"{name}={getattr(value, '__name__', value)}" for name, value in case.items())])


def methods_of(case_class):
    """The tests of a class of unittest, as functions."""

    def function_of(name):
        def run():
            result = unittest.TestResult()
            case_class(name).run(result)
            for _, text in [*result.errors, *result.failures]:
                raise AssertionError(text)
            for _, reason in result.skipped:
                raise pytest.Skipped(reason)

        run.__name__ = f"{case_class.__name__}.{name}"
        return run

    return [function_of(name) for name in unittest.defaultTestLoader.getTestCaseNames(case_class)]


def tests_of(module):
    for name, value in vars(module).items():
        if name.startswith("test_") and inspect.isfunction(value):
            yield value
        elif inspect.isclass(value) and issubclass(value, unittest.TestCase) and value.__module__ == module.__name__:
            yield from methods_of(value)


class TestFile:
    """The cases of one file, in its order."""

    def __init__(self, path):
        conftest = importlib.import_module("conftest")
        self.module = importlib.import_module(path.stem)
        self.known, self.kept = fixtures_of(conftest, self.module), {}
        self.cases = [(test, case) for test in tests_of(self.module) for case in cases_of(test)]
        assert self.cases, f"{path.name} has no tests that this runner knows"

    def run(self, number):
        """("passed" or "failed", None), or ("skipped", the reason)."""
        test, case = self.cases[number]
        reason = skip_reason(self.module) or skip_reason(test)
        if reason is not None:
            return "skipped", reason
        try:
            run_case(test, case, self.known, self.kept)
        except pytest.Skipped as skipped:
            return "skipped", str(skipped)
        except BaseException:  # a test may also call sys.exit
            print(f"{name_of(test, case)} failed")
            traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            return "failed", None
        return "passed", None


def load(path):
    """(file, None), or (None, reason) if it needs a package that is not installed."""
    try:
        return TestFile(path), None
    except (ModuleNotFoundError, pytest.Skipped) as missing:
        if (getattr(missing, "name", None) or "").split(".")[0] == "tessera":
            raise
        return None, str(missing)


def main():
    path, requests, answers = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:])
    sys.path.append(str(path.parent))
    folders = [os.environ.get("PYTHONPATH", ""), str(HERE)]  # processes of tests import test files, too
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    faulthandler.enable()  # run.py ends a test that hangs by SIGABRT

    def answer(**values):
        os.write(answers, (json.dumps(values) + "\n").encode())

    file, reason = load(path)
    if file is None:
        answer(skipped=reason)
        return
    answer(cases=[name_of(test, case) for test, case in file.cases])
    with open(requests, encoding="ascii") as lines:
        for line in lines:
            result, reason = file.run(int(line))
            answer(result=result, reason=reason)


if __name__ == "__main__":
    main()
