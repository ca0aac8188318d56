"""tools/check_format.sh fails on an unformatted source, in a git tree and outside one."""

import pathlib
import shutil
import subprocess
import tempfile
import unittest

TOOLS = pathlib.Path(__file__).parents[2] / "tools"
STYLE = (TOOLS.parent / ".clang-format").read_text(encoding="utf-8")
GOOD = "int f() { return 1; }\n"
BAD = "int f( ){return 1;}\n"



def is_checked():
    """Whether this machine has the version of clang-format that the check is for."""
    program = shutil.which("clang-format-14") or shutil.which("clang-format")
    if not program:
        return False
    return "version 14." in subprocess.check_output([program, "--version"], text=True)


class FormatCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.write(".clang-format", STYLE)
        self.write("tessera/good.cpp", GOOD)

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def passes(self, *arguments):
        command = [TOOLS / "check_format.sh", *arguments, self.root]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    def git(self, *arguments):
        subprocess.run(["git", *arguments], cwd=self.root, capture_output=True, check=True)

    def test_formatted_sources_pass(self):
        self.assertTrue(self.passes())

    def test_a_long_line_fails_also_in_a_comment(self):
        self.write("tessera/wide.h", "// " + "é" * 97 + "\n")
        self.assertTrue(self.passes())
        self.write("tessera/wide.h", "// " + "é" * 98 + "\n")
        self.assertFalse(self.passes())

    @unittest.skipUnless(is_checked(), "another version of clang-format")
    def test_an_unformatted_source_fails_outside_git(self):
        self.write("tessera/bad.h", BAD)
        self.assertFalse(self.passes())

    def test_build_folders_are_left_out_outside_git(self):
        self.write("build/bad.cpp", BAD)
        self.assertTrue(self.passes())

    @unittest.skipUnless(is_checked(), "another version of clang-format")
    def test_new_files_count_in_git_and_ignored_ones_do_not(self):
        self.git("init")
        self.write(".gitignore", "/out/\n")
        self.write("out/bad.cpp", BAD)
        self.assertTrue(self.passes())
        self.write("tessera/bad.cpp", BAD)
        self.assertFalse(self.passes())

    def test_a_file_that_was_tracked_and_is_gone_is_no_error(self):
        self.git("init")
        self.write("tessera/gone.cpp", BAD)
        self.git("add", ".")
        (self.root / "tessera/gone.cpp").unlink()
        self.assertTrue(self.passes())

    @unittest.skipUnless(is_checked(), "another version of clang-format")
    def test_fix_formats_in_place(self):
        self.write("tessera/bad.h", BAD)
        self.assertTrue(self.passes("--fix"))
        self.assertTrue(self.passes())
        self.assertEqual((self.root / "tessera/bad.h").read_text(encoding="utf-8"), GOOD)


if __name__ == "__main__":
    unittest.main()
