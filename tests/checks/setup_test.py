"""tools/setup.sh on machines of made-up commands: nothing twice, the one line to run, clear ends.

Each machine is a PATH of links to real tools, less some, plus stand-ins for apt-get, sudo and id.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
NEEDED = ["g++", "make", "cmake", "ninja", "ccache", "clang-format", "python3", "ip"]
BASICS = ["bash", "cat", "dirname", "env", "ln", "true"]


class Setup(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.bin = self.root / "bin"
        self.log = self.root / "log"
        (self.root / "tools").mkdir()
        self.bin.mkdir()
        shutil.copy(ROOT / "tools/setup.sh", self.root / "tools")
        torch = self.root / "torch/lib"
        torch.mkdir(parents=True)
        (torch / "libtorch_cpu.so").touch()
        for name in BASICS:
            (self.bin / name).symlink_to(shutil.which(name))
        for name in NEEDED:
            self.stand_in(name, "true")
        self.stand_in("id", "echo 0")

    def stand_in(self, name, script):
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        path.chmod(0o755)

    def with_apt(self):
        """An apt-get that logs its call and, when asked to install cmake, does."""
        self.stand_in(
            "apt-get",
            f'echo "apt-get $*" >>{self.log}\n'
            f'case "$*" in *cmake*) ln -sf /bin/true {self.bin}/cmake ;; esac',
        )

    def run_setup(self, torch="torch"):
        """(exit status, all that it printed, calls of apt-get)"""
        environment = {"PATH": str(self.bin), "TORCH": torch, "HOME": os.environ.get("HOME", "/")}
        done = subprocess.run(
            [self.root / "tools/setup.sh"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        calls = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return done.returncode, done.stdout, calls

    def test_nothing_is_called_when_all_is_there(self):
        self.with_apt()
        self.assertEqual(self.run_setup(), (0, "", []))

    def test_root_installs_what_is_missing_and_nothing_else_and_once(self):
        self.with_apt()
        (self.bin / "cmake").unlink()
        status, printed, calls = self.run_setup()
        self.assertEqual(status, 0, printed)
        self.assertEqual(len(calls), 2)
        self.assertIn("update", calls[0])
        self.assertTrue(calls[1].endswith("--no-install-recommends cmake"), calls[1])
        self.assertEqual(self.run_setup(), (0, "", calls))

    def test_without_rights_it_prints_the_line_to_run_and_stops(self):
        self.with_apt()
        self.stand_in("id", "echo 1000")
        (self.bin / "cmake").unlink()
        status, printed, calls = self.run_setup()
        self.assertEqual((status, calls), (1, []))
        self.assertIn("sudo apt-get install -y --no-install-recommends cmake", printed)

    def test_without_rights_it_goes_on_without_what_only_saves_time(self):
        self.with_apt()
        self.stand_in("id", "echo 1000")
        (self.bin / "ccache").unlink()
        status, printed, _ = self.run_setup()
        self.assertEqual(status, 0, printed)
        self.assertIn("going on without ccache", printed)

    def test_sudo_without_a_password_is_used(self):
        self.with_apt()
        self.stand_in("id", "echo 1000")
        self.stand_in("sudo", 'shift; exec "$@"')
        (self.bin / "cmake").unlink()
        status, printed, calls = self.run_setup()
        self.assertEqual((status, len(calls)), (0, 2), printed)

    def test_a_machine_without_apt_names_what_is_missing(self):
        (self.bin / "cmake").unlink()
        status, printed, _ = self.run_setup()
        self.assertEqual(status, 1)
        self.assertIn("cannot go on without: cmake", printed)

    def test_a_machine_without_apt_that_has_all_passes(self):
        self.assertEqual(self.run_setup(), (0, "", []))

    def test_a_folder_that_is_no_torch_is_refused(self):
        status, printed, _ = self.run_setup(torch="/nowhere")
        self.assertEqual(status, 1)
        self.assertIn("TORCH=/nowhere holds no lib/libtorch_cpu.so", printed)


if __name__ == "__main__":
    unittest.main()
