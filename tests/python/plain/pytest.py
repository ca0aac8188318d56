"""The few names of pytest that the tests here use, for machines that do not have it (run.py)."""

import contextlib
import importlib
import re
import types
import warnings


class Skipped(Exception):
    pass


def skip(reason="", allow_module_level=False):
    raise Skipped(reason)


def importorskip(name, reason=None):
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Skipped(reason or str(error)) from error


def fixture(function=None, *, scope="function", autouse=False, params=None):
    assert params is None, "fixtures with parameters are not known here"

    def mark(made):
        made._fixture = types.SimpleNamespace(scope=scope, autouse=autouse)
        return made

    return mark if function is None else mark(function)


def _parametrize(names, values, ids=None):
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

    def mark(function):
        cases = []
        for value in values:
            held = value.values if isinstance(value, _Param) else value
            one = (held,) if len(names) == 1 and not isinstance(value, _Param) else tuple(held)
            cases.append(dict(zip(names, one)))
        function._cases = [*getattr(function, "_cases", []), cases]
        return function

    return mark


class _Param:
    def __init__(self, *values, id=None, marks=()):
        self.values = values


param = _Param


class _SkipIf:
    def __init__(self, condition, reason=""):
        self.condition, self.reason = condition, reason

    def __call__(self, tested):
        tested._skip_if = [*getattr(tested, "_skip_if", []), self]
        return tested


class _Marks:
    parametrize = staticmethod(_parametrize)
    skipif = _SkipIf

    def __getattr__(self, name):  # a label of the project's own
        return lambda tested: tested


mark = _Marks()


class _Raised:
    value = None
    type = None

    def match(self, pattern):
        assert re.search(pattern, str(self.value)), f"{pattern!r} is not in {self.value!s}"


@contextlib.contextmanager
def raises(kind, match=None):
    raised = _Raised()
    try:
        yield raised
    except kind as error:
        raised.value, raised.type = error, type(error)
        if match is not None:
            raised.match(match)
    else:
        raise AssertionError(f"did not raise {kind}")


@contextlib.contextmanager
def warns(kind, match=None):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield caught
    texts = [str(one.message) for one in caught if issubclass(one.category, kind)]
    assert any(match is None or re.search(match, text) for text in texts), f"warned of {texts}"


class approx:
    def __init__(self, expected, rel=1e-6, abs=1e-12):
        self.expected, self.rel, self.abs = expected, rel, abs

    def __eq__(self, found):
        if isinstance(self.expected, (list, tuple)):
            pairs = zip(found, self.expected)
            return len(found) == len(self.expected) and all(self._near(*pair) for pair in pairs)
        return self._near(found, self.expected)

    def _near(self, found, expected):
        return abs(found - expected) <= max(self.abs, self.rel * abs(expected))

    def __repr__(self):
        return f"approx({self.expected})"
