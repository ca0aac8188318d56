"""What a wheel holds (the install component `python`) works where it is put, without the build."""

import os
import pathlib
import runpy
import shutil
import subprocess
import sys
import sysconfig

import pytest
import torch

import tessera

SOURCES = pathlib.Path(__file__).parents[2] / "python/tessera"
BUILD = pathlib.Path(tessera.__file__).parents[2]
PROGRAM = """
import pathlib, sys
import torch, tessera
assert pathlib.Path(tessera.__file__).parent == pathlib.Path(sys.argv[1]), tessera.__file__
def total(rank):
    mesh = tessera.init_device_mesh("tp=2")
    return tessera.distribute_tensor(torch.ones(6), mesh, "S0").sum().item()
print(tessera.run_ranks(2, total))
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "tessera" in line}
print(*sorted(path for path in loaded if path.endswith(".so") or ".so." in path), sep="\\n")
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    if not (BUILD / "CMakeCache.txt").exists():
        pytest.skip("the package under test is installed already")
    package = tmp_path_factory.mktemp("site") / "tessera"
    command = ["cmake", "--install", str(BUILD), "--component", "python", "--prefix", str(package)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return package


def run(package, *arguments):
    environment = dict(os.environ, PYTHONPATH=str(package.parent))
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=package.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_holds_the_sources_the_library_and_the_command_line(package):
    found = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    kinds = (".py", ".pyi", ".typed")
    sources = {str(p.relative_to(SOURCES)) for p in SOURCES.rglob("*") if p.suffix in kinds}
    libraries = {name for name in found if name.startswith("lib/libtessera.so.")}
    assert libraries and "py.typed" in sources
    built = {"_C" + sysconfig.get_config_var("EXT_SUFFIX"), "_built_for.py", "bin/tessera"}
    assert found - libraries == sources | built


def test_it_is_imported_from_there_and_loads_nothing_of_the_build(package):
    result, *libraries = run(package, "-c", PROGRAM, str(package)).splitlines()
    assert result == "[6.0, 6.0]"
    assert any("libtessera" in path for path in libraries)
    assert all(path.startswith(str(package)) for path in libraries), libraries


def test_the_command_line_comes_with_it(package):
    assert run(package, "-m", "tessera", "--version").strip() == tessera.__version__
    shown = run(package, "-m", "tessera", "explain", "aten::mm", "tp=4", "S1 : 8x16", "S0 : 16x32")
    assert "aten::mm on tp=4" in shown


def test_another_torch_is_refused_by_its_name(package, tmp_path):
    copy = tmp_path / "tessera"
    shutil.copytree(package, copy)
    built_for = copy / "_built_for.py"
    built_for.write_text('TORCH = "2.10.1"\n', encoding="utf-8")
    found = run(copy, "-c", "try:\n  import tessera\nexcept ImportError as error:\n  print(error)")
    assert f"built for torch 2.10.1, this is {torch.__version__}" in found


def test_the_wheel_asks_for_the_torch_that_it_is_compiled_for():
    module = runpy.run_path(str(SOURCES.parent / "torch_requirement.py"))
    minor = ".".join(torch.__version__.split(".")[:2])
    assert module["dynamic_metadata"]("dependencies") == [f"torch=={minor}.*", "numpy"]
