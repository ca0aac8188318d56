"""Every code block of the documentation is run by a test, or says why not; these are counted here."""

import collections
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
sys.dont_write_bytecode = True
import doc_blocks  # noqa: E402

# How many blocks of a page are not run. A new one needs a reason in the page and its count here.
NOT_RUN = {
    "CONTRIBUTING.md": 1,
    "README.md": 3,
    "docs/building.md": 1,
    "docs/cli.md": 2,
    "docs/fsdp.md": 1,
    "docs/gpu.md": 1,
    "docs/python.md": 1,
    "examples/gpt/README.md": 1,
}
# Compiled, and not run.
COMPILED = {"docs/concepts.md": 1, "docs/programs.md": 1}

PAGE = """# x
<!-- given
a = 1
-->
<!-- ranks 2 -->
```python
print(a)
```
<!-- output -->
```text
1
```
```
a drawing
```
<!-- not run: no time -->
```bash
sleep 100
```
"""


def counts(blocks, mark):
    return dict(collections.Counter(block.page for block in blocks if mark in block.marks))


class Blocks(unittest.TestCase):
    def test_all_but_these_are_run(self):
        blocks = doc_blocks.all_blocks()
        self.assertGreater(len(blocks), 40)
        self.assertEqual(counts(blocks, "not run"), NOT_RUN)
        self.assertEqual(counts(blocks, "compiled"), COMPILED)

    def test_what_is_not_run_says_why(self):
        for block in doc_blocks.all_blocks():
            for mark in ("not run", "compiled"):
                self.assertNotEqual(block.marks.get(mark), "", block.name)

    def test_blocks_that_no_test_can_run_are_marked(self):
        for block in doc_blocks.all_blocks():
            if block.language in ("json", "cmake"):
                self.assertNotEqual(block.how(), "run", block.name)

    def test_no_block_is_hidden_by_indentation(self):
        for page in doc_blocks.pages():
            for line in (doc_blocks.ROOT / page).read_text(encoding="utf-8").splitlines():
                fence = doc_blocks.FENCE.match(line)
                if fence and fence.group(3) in doc_blocks.LANGUAGES:
                    self.assertEqual(fence.group(1), "", f"{page}: {line}")

    def test_marks_and_output_are_read(self):
        first, second = doc_blocks.blocks_of_text(PAGE, "x.md")
        self.assertEqual((first.line, first.ranks, first.marks["given"]), (7, 2, "a = 1"))
        self.assertEqual((first.code, first.expected, first.how()), ("print(a)\n", "1\n", "run"))
        self.assertEqual(second.how(), "not run: no time")

    def test_readers_do_not_see_marks(self):
        text = doc_blocks.without_marks(PAGE)
        self.assertNotIn("<!--", text)
        self.assertIn("```python\nprint(a)", text)

    def test_an_unknown_mark_is_an_error(self):
        with self.assertRaises(SystemExit):
            doc_blocks.blocks_of_text("<!-- runs -->\n```python\n```\n", "x.md")

    def test_missing_output_is_found_in_order(self):
        self.assertEqual(doc_blocks.missing_lines("a  b\n...\nc\n", "x\na b\ny\nc\n"), [])
        self.assertEqual(doc_blocks.missing_lines("c\na b\n", "a b\nc\n"), ["a b"])

    def test_a_page_becomes_one_source(self):
        text = "```cpp\n#include <map>\nint main() { f(); }\n```\n<!-- ranks 3 -->\n```cpp\ng();\n```\n"
        source = doc_blocks.cpp_source("docs/x.md", doc_blocks.blocks_of_text(text, "docs/x.md"))
        self.assertIn("#include <map>\n", source.split("namespace")[0])
        self.assertIn("auto main_of_page() { f(); }", source)
        self.assertIn("tessera::run_ranks(3,", source)
        self.assertIn('#line 7 "docs/x.md"\ng();', source)


if __name__ == "__main__":
    unittest.main()
