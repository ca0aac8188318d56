#!/usr/bin/env python3
"""The code blocks of the documentation, and how the tests run them.

    tools/doc_blocks.py --list                  every block: page, line, language, how it is run
    tools/doc_blocks.py --cpp <page> <file>     writes the C++ blocks of a page as one source file,
                                                which tests/docs compiles and runs
    tools/doc_blocks.py --cpp-pages             the pages that have C++ blocks

A block is a fence with a language. Without marks it is run as it is. Marks are HTML comments above the
fence, which no renderer shows:

    <!-- given                code that runs before the block
    mesh = ...
    -->
    <!-- then                 code that runs after it
    assert ...
    -->
    <!-- ranks 4 -->          on four thread ranks (Python, C++)
    <!-- continues -->        after the page's previous block of this language, with its names
    <!-- definitions -->      C++: at namespace scope, visible to the page's later blocks
    <!-- raises some text --> it must fail with an error that has this text (Python)
    <!-- compiled: why -->    C++: compiled and not run
    <!-- not run: why -->     neither
    <!-- file plan.json -->   written to this file, where the page's shell blocks run
    <!-- output -->           above a ```text block: the previous block prints these lines

Python blocks run in tests/python/docs_test.py, shell blocks of a page as one script there, C++ blocks in
the program tests/docs (ctest: docs.<page>). tests/checks/doc_blocks_test.py counts what is not run.
"""

import dataclasses
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]
LANGUAGES = ("python", "cpp", "bash", "json", "cmake")
FENCE = re.compile(r"^(\s*)(```+|~~~+)\s*(\S*)")
MARKS = ("given", "then", "ranks", "continues", "definitions", "raises", "compiled", "not run", "file", "output")
MARK = re.compile(rf"({'|'.join(MARKS)})\b:?[ ]?", re.DOTALL)


@dataclasses.dataclass
class Block:
    page: str  # relative to the root
    line: int  # of the first line of code, from 1
    language: str
    code: str
    marks: dict
    expected: str = ""  # what it must print

    @property
    def ranks(self):
        return int(self.marks.get("ranks", 0))

    @property
    def name(self):
        return f"{self.page}:{self.line}"

    def how(self):
        """"run", or why not: "not run: ...", "compiled: ..."."""
        for mark in ("not run", "compiled"):
            if mark in self.marks:
                return f"{mark}: {self.marks[mark]}"
        if "file" in self.marks:
            return f"file {self.marks['file']}"
        return "run"


def pages(root=ROOT):
    """The documentation: pages whose blocks are run."""
    found = [root / "README.md", root / "CONTRIBUTING.md"]
    found += sorted(root.glob("examples/**/*.md")) + sorted(root.glob("docs/**/*.md"))
    return [page.relative_to(root).as_posix() for page in found if page.exists()]


def take_comment(lines, at):
    """The comment that begins in line `at`, and the line after it."""
    end = at
    while "-->" not in lines[end]:
        end += 1
    text = "\n".join(lines[at : end + 1])
    return text[text.index("<!--") + 4 : text.rindex("-->")].strip(), end + 1


def add_mark(marks, comment, where):
    found = MARK.match(comment)
    if not found:
        sys.exit(f"{where}: unknown mark: {comment.splitlines()[0]}")
    marks[found.group(1)] = comment[found.end() :].strip("\n")


def blocks_of_text(text, page):
    """All blocks with a language; ```text blocks marked as output become the block's `expected`."""
    lines, found, marks, at = text.splitlines(), [], {}, 0
    while at < len(lines):
        line = lines[at]
        fence = FENCE.match(line)
        if fence:
            end = at + 1
            while end < len(lines) and lines[end].strip() != fence.group(2):
                end += 1
            code = "\n".join(lines[at + 1 : end]) + "\n"
            language = fence.group(3)
            if language in LANGUAGES:
                found.append(Block(page, at + 2, language, code, marks))
            elif "output" in marks:
                found[-1].expected += code
            elif marks:
                sys.exit(f"{page}:{at + 1}: marks on a block that is not run")
            marks, at = {}, end + 1
        elif line.startswith("<!--"):
            comment, after = take_comment(lines, at)
            add_mark(marks, comment, f"{page}:{at + 1}")
            at = after
        else:
            if line.strip() and marks:
                sys.exit(f"{page}:{at + 1}: marks without a block")
            at += 1
    return found


def blocks_of_page(page, root=ROOT):
    return blocks_of_text((root / page).read_text(encoding="utf-8"), page)


def all_blocks(root=ROOT):
    return [block for page in pages(root) for block in blocks_of_page(page, root)]


def without_marks(text):
    """The page as readers see it: marks removed."""
    return re.sub(rf"^<!--\s*(?:{'|'.join(MARKS)})\b.*?-->\n", "", text, flags=re.DOTALL | re.MULTILINE)


def missing_lines(expected, printed):
    """The expected lines that were not printed, in order; spaces count as one, "..." skips."""
    have = [" ".join(line.split()) for line in printed.splitlines()]
    missing, at = [], 0
    for line in (" ".join(line.split()) for line in expected.splitlines()):
        if not line or line == "...":
            continue
        if line in have[at:]:
            at = have.index(line, at) + 1
        else:
            missing.append(line)
    return missing


# C++: a page becomes one source file, a namespace for the page, a function for each block.


def identifier(page):
    return "page_" + re.sub(r"\W", "_", page.removesuffix(".md").removeprefix("docs/"))


def split_includes(code):
    """(the #include lines, the code with these lines blank, so that line numbers stay)."""
    includes, rest = [], []
    for line in code.splitlines():
        is_include = line.startswith("#include")
        includes += [line] if is_include else []
        rest.append("" if is_include else line)
    return includes, "\n".join(rest) + "\n"


def cpp_function(block, code, before, after):
    """A function that runs the block: a program's main, or its statements on ranks or alone."""
    place = f'#line {block.line} "{block.page}"\n'
    if re.search(r"^int main\(", code, re.MULTILINE):
        scope = f"program_{block.line}"
        # auto: a main may end without a return statement, another function may not.
        body = re.sub(r"^int main\(", "auto main_of_page(", code, flags=re.MULTILINE)
        text = f"namespace {scope} {{\n{place}{body}}}  // namespace {scope}\n"
        return text, f"{scope}::main_of_page();"
    statements = f"{before}{{\n{place}{code}{after}\n}}"
    if block.ranks:
        run = "[[maybe_unused]] const int rank"
        statements = f"tessera::run_ranks({block.ranks}, [&]({run}) {{\n{statements}\n}});"
    return "", statements


def raw(text):
    return f'R"text({text})text"'


def cpp_source(page, blocks):
    includes, body = set(), ""
    for block in blocks:
        if "not run" in block.marks:
            continue
        found, code = split_includes(block.code)
        given, before = split_includes(block.marks.get("given", ""))
        includes.update(found + given)
        after = block.marks.get("then", "")
        if "definitions" in block.marks:
            body += f'{before}#line {block.line} "{page}"\n{code}'
            code, before = "", ""
            if not after:
                continue
        # Both parts share a scope: what is given is visible in the block.
        outside, run = cpp_function(block, code, before, after)
        body += outside
        body += f"void block_{block.line}() {{\n{run}\n}}\n"
        if "compiled" not in block.marks:
            body += (
                f'const Registered registered_{block.line}("{page}", {block.line}, block_{block.line}, '
                f"{raw(block.expected)});\n"
            )
    head = "".join(f"{line}\n" for line in sorted(includes))
    scope = identifier(page)
    return (
        f"// Made by tools/doc_blocks.py from {page}.\n"
        f'#include "tests/docs/blocks.h"\n#include <tessera/tessera.h>\n{head}\n'
        f"namespace tessera_docs::{scope} {{\nusing namespace tessera;\nnamespace {{\n{body}"
        f"}}  // namespace\n}}  // namespace tessera_docs::{scope}\n"
    )


def cpp_pages(root=ROOT):
    return [
        page
        for page in pages(root)
        if any(b.language == "cpp" and "not run" not in b.marks for b in blocks_of_page(page, root))
    ]


def main():
    if sys.argv[1:] == ["--list"]:
        for block in all_blocks():
            print(f"{block.name} {block.language} {block.how()}")
    elif sys.argv[1:] == ["--cpp-pages"]:
        print(";".join(cpp_pages()), end="")
    elif len(sys.argv) == 4 and sys.argv[1] == "--cpp":
        page = sys.argv[2]
        source = cpp_source(page, [b for b in blocks_of_page(page) if b.language == "cpp"])
        pathlib.Path(sys.argv[3]).write_text(source, encoding="utf-8")
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
