"""The runner of tests without pytest (plain/run.py) names what fails, crashes and hangs, and runs all the rest."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import pytest

RUNNER = pathlib.Path(__file__).parent / "plain" / "run.py"

# The plain pytest, which the runner puts first on the path, has what these use.
TESTS = """
    import os, signal, sys, time, unittest
    import pytest

    @pytest.fixture
    def prepared(tmp_path):
        (tmp_path / "file").write_text("text")
        yield tmp_path / "file"

    def test_passes(prepared, monkeypatch):
        monkeypatch.setenv("SOME_NAME", "value")
        assert prepared.read_text() == "text"

    @pytest.mark.parametrize("n", [1, 2])
    def test_fails_in_one_case(n):
        assert "SOME_NAME" not in os.environ and n == 1

    def test_crashes():
        os.kill(os.getpid(), signal.SIGSEGV)

    def test_hangs():
        time.sleep(1000)

    def test_exits():
        sys.exit(0)

    def test_is_skipped():
        pytest.skip("for a reason")

    class TestOfUnittest(unittest.TestCase):
        def test_method(self):
            self.assertEqual(1, 1)

        def test_wrong_method(self):
            self.assertEqual(1, 2)

    def test_is_last():
        pass
"""


def run(folder, source, *options):
    """A runner of one file of tests, begun."""
    file = folder / "some_test.py"
    file.write_text(textwrap.dedent(source), encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, RUNNER, *map(str, options), file],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(os.environ, PYTHONUNBUFFERED="1"),
    )


@pytest.mark.parametrize("jobs", [1, 3])
def test_each_case_is_run_and_failures_are_named(jobs, tmp_path):
    runner = run(tmp_path, TESTS, "--limit", 3, "--jobs", jobs, "--logs", tmp_path / "logs")
    out, _ = runner.communicate(timeout=120)
    assert runner.returncode == 1
    assert "some_test.py: 4 passed, 1 skipped, 5 failed" in out, out
    for name, reason in {
        "test_fails_in_one_case n=2": "failed",
        "test_crashes": "the process ended with code -11",
        "test_hangs": "took longer than 3 s",
        "test_exits": "failed",
        "TestOfUnittest.test_wrong_method": "failed",
    }.items():
        assert f"FAILED some_test.py: {name}: {reason}" in out, out
    assert "skipped 1 of some_test.py: for a reason" in out, out
    logs = "".join(log.read_text(encoding="utf-8") for log in (tmp_path / "logs").iterdir())
    assert "in test_hangs" in logs and "in test_crashes" in logs, logs  # stacks


def test_a_file_that_needs_a_missing_package_is_skipped_and_one_that_is_wrong_fails(tmp_path):
    runner = run(tmp_path, "import no_such_package")
    assert "some_test.py: skipped: No module named 'no_such_package'" in runner.communicate(timeout=60)[0]
    assert runner.returncode == 0
    runner = run(tmp_path, "import tessera.no_such_part")
    assert "FAILED some_test.py: import: the process ended with code 1" in runner.communicate(timeout=60)[0]
    assert runner.returncode == 1


def test_a_run_that_is_ended_names_the_case_in_progress(tmp_path):
    source = """
        import time

        def test_waits():
            print("waits", flush=True)
            time.sleep(1000)

        def test_is_not_reached():
            pass
    """
    runner = run(tmp_path, source)
    for line in runner.stdout:
        if line == "waits\n":
            break
    runner.send_signal(signal.SIGTERM)
    out, _ = runner.communicate(timeout=60)
    assert runner.returncode == 1
    assert "FAILED some_test.py: test_waits: in progress when the run was ended" in out, out
    assert "some_test.py: 0 passed, 0 skipped, 1 failed, 1 not run" in out, out
    assert "in test_waits" in out, out  # its stack
