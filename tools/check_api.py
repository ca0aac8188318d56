#!/usr/bin/env python3
"""Checks what carries TESSERA_API (tessera/base/api.h) and what the library exports.

    tools/check_api.py [<root>]                     the headers
    tools/check_api.py [<root>] --library <file>    the names that libtessera.so exports, too

In a header that is installed, which is tessera/tessera.h and whatever it includes, every class and every
function or variable that a source file defines is marked. In other headers nothing is but EXTENSION.
The library exports what is marked, members of marked classes, and no name of any other namespace.
"""

import argparse
import pathlib
import re
import subprocess
import sys

# What the Python extension uses of headers that are not installed.
EXTENSION = {
    "tessera::ProgressBar",
    "tessera::matches_path",
    "tessera::placements_in_mesh_order",
    "tessera::checkpoint::on_all_ranks",
    "tessera::comm::adopt_mesh",
    "tessera::comm::end_process_world",
    "tessera::comm::checks_collectives",
    "tessera::comm::process_environment",
    "tessera::comm::timeout_from",
    "tessera::comm::set_block_hooks",
    "tessera::dtensor::InsideComposite",
    "tessera::dtensor::as_replicated",
    "tessera::dtensor::claim",
    "tessera::dtensor::is_made_of_ops",
    "tessera::dtensor::read_whole",
    "tessera::dtensor::set_literal_test",
    "tessera::dtensor::redistribute_once",
    "tessera::dtensor::set_weight_style",
    "tessera::dtensor::with_placed_gradient",
    "tessera::fsdp::group_of_parameter",
    "tessera::fsdp::place_of_parameter",
    "tessera::parallel::anchored_style",
    "tessera::partition::PartitionedProgram",
    "tessera::partition::Plan",
    "tessera::partition::partition",
    "tessera::rules::Explanation",
    "tessera::rules::explain",
}

MARK = "TESSERA_API"
INCLUDE = re.compile(r'^#include [<"](tessera/[^>"]*)', re.MULTILINE)
NOT_CODE = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'|^#(?:\\\n|[^\n])*",
                      re.DOTALL | re.MULTILINE)
CLOSES = {"(": ")", "{": "}"}
CLASS = re.compile(r"(?:class|struct|union)\s+(?:TESSERA_API\s+)?(?:\[\[.*?\]\]\s*)?(\w+)")
OTHER = re.compile(r"(?:template|using|typedef|enum|static_assert|concept|friend|extern\s+template)\b")
INLINE = re.compile(r"\b(?:inline|constexpr|consteval|static)\b")


class Declaration:
    """A class, function or variable of a namespace that the library must export, or that is marked."""

    def __init__(self, line, name, is_class, marked):
        self.line, self.name, self.is_class, self.marked = line, name, is_class, marked


def after(text, start):
    """The place behind the bracket that closes the one at `start`."""
    opens, closes = text[start], CLOSES[text[start]]
    depth = 0
    for i in range(start, len(text)):
        depth += (text[i] == opens) - (text[i] == closes)
        if depth == 0:
            return i + 1
    return len(text)


def statements(text):
    """(offset, namespaces, declaration without its body, whether it has one), at namespace scope."""
    scopes, start, i, body = [], 0, 0, False
    head = ""
    while i < len(text):
        c = text[i]
        namespace = re.fullmatch(r"\s*(?:inline\s+)?namespace\s*([\w:]*)\s*", head) if c == "{" else None
        if namespace:
            scopes.append(namespace[1])
        elif c in CLOSES:
            end = after(text, i)
            if c == "{":
                body = True
                is_type = re.match(r"\s*(?:template\s*<[^{]*>\s*)?(?:class|struct|union|enum)\b", head)
                if not is_type and "=" not in re.sub(r"operator\W+|\(.*?\)", "", head):
                    yield start, list(scopes), head, True
                    head, body = "", False
            else:
                head += text[i:end]
            i = end
            if head == "":
                start = i
            continue
        elif c == "}":
            scopes.pop()
        elif c == ";":
            yield start, list(scopes), head, body
        else:
            head += c
            i += 1
            continue
        head, body = "", False
        i += 1
        start = i


def name_of_function(head):
    operator = re.search(r"operator\s*(\(\)|[^\s\w(]+|\w+)\s*\(", head)
    if operator:
        return "operator" + operator[1]
    flat = head
    while re.search(r"<[^<>]*>", flat):
        flat = re.sub(r"<[^<>]*>", "", flat)
    found = re.search(r"(\w+)\s*\(", flat)
    return found[1] if found else None


def declarations(source):
    """What a header declares at namespace scope and a source file defines, and all that is marked."""
    text = NOT_CODE.sub(lambda found: "\n" * found[0].count("\n"), source)
    for start, scopes, head, body in statements(text):
        words = head.strip()
        marked = re.search(rf"\b{MARK}\b", words) is not None
        is_class = CLASS.match(words) if body else None
        if not words or OTHER.match(words) or (CLASS.match(words) and not body):
            continue
        if is_class:
            name = is_class[1]
        elif INLINE.search(words.split("(")[0]) or (body and not marked):
            continue
        elif "(" in words:
            name = name_of_function(words)
        elif words.startswith("extern") or marked:
            name = re.findall(r"\w+", words)[-1]
        else:
            continue
        line = text.count("\n", 0, start + len(head) - len(head.lstrip())) + 1
        yield Declaration(line, "::".join([*scopes, str(name)]), bool(is_class), marked)


def installed_headers(root):
    """Paths from the root, as cmake/install.cmake finds them."""
    found, unread = set(), ["tessera/tessera.h"]
    while unread:
        header = unread.pop()
        if header not in found:
            found.add(header)
            unread += INCLUDE.findall((root / header).read_text(encoding="utf-8"))
    return found


def read_headers(root):
    """(errors, the marked declarations by name)."""
    errors, marked, unseen = [], {}, set(EXTENSION)
    installed = installed_headers(root)
    for path in sorted((root / "tessera").rglob("*.h")):
        header = path.relative_to(root).as_posix()
        source = path.read_text(encoding="utf-8")
        marks = 0
        for found in declarations(source):
            where = f"{header}:{found.line}: {found.name}"
            if found.marked:
                marks += 1
                marked[found.name] = found
            if header in installed and not found.marked:
                errors.append(f"{where} is in an installed header and has no {MARK}")
            if header not in installed and found.marked:
                unseen.discard(found.name)
            if header not in installed and found.marked and found.name not in EXTENSION:
                errors.append(f"{where} has {MARK}, but users do not include this header; if the Python "
                              "extension needs it, add it to tools/check_api.py")
        written = len(re.findall(rf"\b{MARK}\b", NOT_CODE.sub("", source)))
        if written != marks:
            errors.append(f"{header}: {written} {MARK}, of which {marks} mark a class, function or variable "
                          "of a namespace; mark a class, not its members")
    errors += [f"tools/check_api.py: {name} is listed, but no header that is not installed marks it"
               for name in sorted(unseen)]
    return errors, marked


WHAT_FOR = re.compile(r"^(?:typeinfo name for|typeinfo for|vtable for|VTT for|construction vtable for|"
                      r"guard variable for|non-virtual thunk to|virtual thunk to|"
                      r"(?:TLS|thread-local) \w+ (?:function|routine) for) ")
QUALIFIED = re.compile(r"tessera(?:::(?:operator(?:\(\)|[^\w\s(]+|\s?\w+)|~?\w+|\{[^}]*\})"
                       r"(?:\[abi:\w+\])?)+")


def check_library(names, marked):
    """Errors of a list of exported names, demangled."""
    errors, seen = [], set()
    classes = {name for name, found in marked.items() if found.is_class}
    for name in names:
        qualified = QUALIFIED.match(WHAT_FOR.sub("", name))
        if qualified is None:
            errors.append(f"the library exports {name}")
            continue
        parts = re.sub(r"\[abi:\w+\]", "", qualified[0]).split("::")
        prefixes = {"::".join(parts[:i]) for i in range(2, len(parts) + 1)}
        seen |= prefixes
        if not prefixes & classes and "::".join(parts) not in marked:
            errors.append(f"the library exports {name}, which no header marks")
    for name, found in sorted(marked.items()):
        if not found.is_class and name not in seen:
            errors.append(f"{name} has {MARK}, but the library does not export it: nothing defines it")
    return errors


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=pathlib.Path(__file__).parents[1])
    parser.add_argument("--library")
    arguments = parser.parse_args()
    errors, marked = read_headers(arguments.root)
    if arguments.library:
        listing = subprocess.run(["nm", "-DC", "--defined-only", arguments.library], check=True,
                                 capture_output=True, text=True).stdout
        names = [line.split(" ", 2)[2] for line in listing.splitlines()]
        errors += check_library(names, marked)
        print(f"{len(names)} names exported, {len(marked)} classes and functions marked")
    for error in errors:
        print(error, file=sys.stderr)
    if errors:
        sys.exit(f"api: {len(errors)} against tessera/base/api.h")


if __name__ == "__main__":
    main()
