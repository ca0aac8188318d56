"""Comments of the public headers, for Doxygen and as pages.

A header begins with a manual: the `///` block before its (first) namespace. Doxygen would attach it to
the namespace, together with those of all other headers, so it is taken out here and shown as text.
In comments, lines that are indented after an empty line are code or tables; this marks them for Doxygen.
"""

import re

MANUAL = re.compile(r"((?:^///.*\n)+)(?=^(?:inline )?namespace tessera)", re.MULTILINE)

FORWARD = re.compile(r"^namespace (?:torch|at|c10|c10d)\b.*?^}[^\n]*\n", re.MULTILINE | re.DOTALL)
PRIVATE = re.compile(r"^ (?:private|protected):\n.*?(?=^ public:|^};)", re.MULTILINE | re.DOTALL)
MARK = re.compile(r"\bTESSERA_API ")
HASH = re.compile(r"^template <>\s*struct std::hash<.*?^};\n", re.MULTILINE | re.DOTALL)


def split_manual(source):
    """(the manual's lines without slashes, the header without the manual)."""
    found = MANUAL.search(source)
    if not found:
        return [], source
    lines = [line[3:].removeprefix(" ") for line in found.group(1).splitlines()]
    return lines, source[: found.start()] + source[found.end() :]


def is_code(line):
    return line.startswith("  ") and line.strip() != ""


def paragraphs(lines):
    """Runs of lines: ("code" or "text", lines). Code is indented and follows an empty line, or code."""
    out, kind_before, empty_before = [], None, True
    for line in lines:
        if not line.strip():
            empty_before = True
            if out:
                out[-1][1].append("")
            continue
        kind = "text"
        if is_code(line) and (empty_before or kind_before == "code" or line.startswith("   ")):
            kind = "code"
        if kind != kind_before:
            out.append((kind, []))
        out[-1][1].append(line)
        kind_before, empty_before = kind, False
    return out


def to_markdown(lines):
    """A manual as Markdown: code in fences, the rest as it is."""
    text = ""
    for kind, body in paragraphs(lines):
        body = "\n".join(body).rstrip()
        if kind == "code":
            text += f"\n```text\n{body}\n```\n\n"
        else:
            text += re.sub(r"([*_<#\[\]])", r"\\\1", body) + "\n"
    return text


def for_doxygen(source):
    """The header with the code in its comments indented as Markdown's, without private members (Doxygen's XML has
    them whatever its settings), forward declarations of libtorch, the mark of what is exported, and
    specialisations of std::hash, whose scope Doxygen does not find."""
    for unwanted in (PRIVATE, FORWARD, MARK, HASH):
        source = unwanted.sub("", source)
    out, block = [], []

    def flush():
        if not block:
            return
        indent = re.match(r"\s*", block[0]).group(0)
        lines = [line.strip()[3:].removeprefix(" ") for line in block]
        for kind, body in paragraphs(lines):
            if kind == "code":
                out.append(f"{indent}///")
                out.extend(f"{indent}///     {line}".rstrip() for line in body)
                out.append(f"{indent}///")
            else:
                out.extend(f"{indent}/// {escaped(line)}".rstrip() for line in body)
        block.clear()

    for line in source.splitlines():
        if line.strip().startswith("///") and not line.strip().startswith("///<"):
            block.append(line)
        else:
            flush()
            out.append(line)
    flush()
    return "\n".join(out) + "\n"


def escaped(line):
    """Characters that Doxygen would read as commands, tags or links, outside of `code`."""
    parts = line.split("`")
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([\\@<>#%])", r"\\\1", parts[i])
    return "`".join(parts)
