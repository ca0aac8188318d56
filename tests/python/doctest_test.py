"""The examples in the package's docstrings run and print what they say."""

import doctest
import importlib
import pkgutil

import pytest
import torch

import tessera

MODULES = sorted(
    found.name.removeprefix("tessera.")
    for found in pkgutil.walk_packages(tessera.__path__, "tessera.")
    if found.name not in ("tessera._C", "tessera.__main__")
)
GLOBALS = {"tessera": tessera, "torch": torch, "Shard": tessera.Shard}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def check(module, globs):
    finder = doctest.DocTestFinder(exclude_empty=True)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in finder.find(module, module.__name__, extraglobs=globs):
        runner.run(test)
    assert runner.failures == 0
    return runner.tries


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name):
    module = importlib.import_module(f"tessera.{name}")
    check(module, {**GLOBALS, **vars(module)})


def test_examples_of_the_bound_classes():
    tried = 0
    for name in ("DeviceMesh", "Machine", "Sharding"):
        runner = doctest.DocTestRunner(optionflags=FLAGS)
        text = getattr(tessera, name).__doc__
        runner.run(doctest.DocTestParser().get_doctest(text, dict(GLOBALS), name, None, 0))
        assert runner.failures == 0
        tried += runner.tries
    assert tried > 0
