"""tools/check_readme.py fails on a command or link that does not exist."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
sys.dont_write_bytecode = True
import check_readme  # noqa: E402

EXAMPLE = "int main() {}\n"


def readme(commands, prose=""):
    return f"# x\n{prose}\n```bash\n{commands}\n```\n```cpp\n{EXAMPLE}```\n```cpp\nint other;\n```\n"


class ReadmeCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "Makefile").write_text("test: build\nbuild:\n", encoding="utf-8")
        (self.root / "tool.sh").write_text("", encoding="utf-8")

    def errors(self, text):
        (self.root / "README.md").write_text(text, encoding="utf-8")
        return check_readme.check(self.root)

    def test_commands_that_exist_pass(self):
        commands = "make test  # all\nmake TORCH=/x build\n./tool.sh && make -j2\n# words"
        self.assertEqual(self.errors(readme(commands)), [])

    def test_a_built_program_with_variables_before_it_passes(self):
        self.assertEqual(self.errors(readme("OMP_NUM_THREADS=1 build/bin/tessera plan")), [])

    def test_a_missing_make_target_fails(self):
        self.assertEqual(self.errors(readme("make tset")), ["make tset: no such target"])

    def test_a_missing_script_fails(self):
        self.assertEqual(self.errors(readme("tools/gone.sh")), ["tools/gone.sh: no such file"])

    def test_an_unknown_command_fails(self):
        self.assertEqual(len(self.errors(readme("tesera plan"))), 1)

    def test_a_dead_link_fails_and_addresses_are_left_alone(self):
        links = "[a](tool.sh) [b](https://example.org/x) [c](docs/gone.md#part)"
        self.assertEqual(self.errors(readme("", links)), ["link to docs/gone.md: no such file"])

    def test_a_readme_without_example_fails(self):
        self.assertEqual(self.errors("# x\n"), ["no ```cpp example"])


if __name__ == "__main__":
    unittest.main()
