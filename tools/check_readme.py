#!/usr/bin/env python3
"""Checks that the README's commands exist.

    tools/check_readme.py [<root>]   every command of a ```bash block exists: `make X` is a target, a
                                     path is a file, links lead to files

The C++ and Python blocks are run by the tests (tools/doc_blocks.py). A path under build/ is checked by its kind: only bin/tessera, examples/ and python/ are promised.
"""

import pathlib
import re
import shlex
import sys

TOOLS = {"git", "cd", "cmake", "ctest", "export", "pip", "python3", "sudo", "torchrun"}
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")
BUILT = ("build/bin/tessera", "build/examples/", "build/python", "build/lib/libtessera.so")


def blocks(text, kind):
    return [body for name, body in BLOCK.findall(text) if name == kind]


def make_targets(makefile):
    return set(re.findall(r"^([a-z][\w-]*):", makefile, re.MULTILINE))


def is_variable(word):
    return re.match(r"[A-Z_]+=", word)


def check_make(words, targets):
    names = [w for w in words if not w.startswith("-") and not is_variable(w)]
    return [f"make {name}: no such target" for name in names if name not in targets]


def check_line(line, root, targets):
    """What is wrong with one command line, as a list of texts."""
    line = re.sub(r"\s#.*|^#.*|^\$ ", "", line.strip())
    errors = []
    for command in re.split(r"&&|\||;", line):
        words = [w for w in shlex.split(command)]
        while words and is_variable(words[0]):
            words.pop(0)
        if not words:
            continue
        name = words[0]
        if name == "make":
            errors += check_make(words[1:], targets)
        elif name.startswith((".venv/",) + BUILT):
            pass
        elif "/" in name:
            if not (root / name).exists():
                errors.append(f"{name}: no such file")
        elif name not in TOOLS:
            errors.append(f"{name}: neither a make target nor a script here")
    return errors


def check(root):
    readme = (root / "README.md").read_text(encoding="utf-8")
    targets = make_targets((root / "Makefile").read_text(encoding="utf-8"))
    errors = []
    for body in blocks(readme, "bash"):
        for line in body.replace("\\\n", " ").splitlines():
            errors += check_line(line, root, targets)
    for link in LINK.findall(BLOCK.sub("", readme)):
        if "://" not in link and not (root / link).exists():
            errors.append(f"link to {link}: no such file")
    if len(blocks(readme, "cpp")) == 0:
        errors.append("no ```cpp example")
    return errors


def main():
    root = pathlib.Path(__file__).parents[1]
    if len(sys.argv) > 1:
        root = pathlib.Path(sys.argv[1])
    errors = check(root)
    for error in errors:
        print(f"README.md: {error}", file=sys.stderr)
    if errors:
        sys.exit("readme: not as it says")


if __name__ == "__main__":
    main()
