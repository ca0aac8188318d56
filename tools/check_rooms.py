#!/usr/bin/env python3
"""Checks that rooms include each other only as tools/rooms.txt allows.

    tools/check_rooms.py [<root>]

Reads every #include of tessera/**/*.{h,cpp} and reports each one that goes against the graph, a
cycle in the graph itself, a folder that the graph does not know, a room without sources, a header
of libtorch above the torch line, a room whose side of the line differs in CMakeLists.txt, a map in
docs/architecture.md that does not list the rooms, a namespace of another room, and a source file that
a comment names and that is not there. A file belongs to the innermost room whose folder it is in:
tessera/rules/code/x.h to rules/code.
cli/, python/, tests/ and tessera/tessera.h may include everything.
"""

import pathlib
import re
import sys

TORCH = ("torch", "ATen", "c10", "caffe2")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')
ROOM = r"\w+(?:/\w+)*"
MAP_ROOM = re.compile(rf"^({ROOM})/ {{2,}}\S", re.MULTILINE)
NAMESPACE = re.compile(r"^namespace tessera::(\w+)")
# The rooms of communication are one to their users.
COMM = ("collective", "liveness", "transport", "threads", "observe", "comm")
# A source file in a comment: "merge.h", "fsdp/order/merge.h"; not of another project: <ATen/x.h>.
NAMED_FILE = re.compile(r"(?<![\w./<-])(?:[\w-]+/)*\w+\.(?:h|cpp)\b")
CMAKE_ROOM = re.compile(rf"^\s*tessera_room\(({ROOM})([^)]*)\)", re.MULTILINE)


class Graph:
    """The allowed includes: room -> set of rooms, and which rooms are below the torch line."""

    def __init__(self, text):
        self.allowed = {}
        self.below = set()
        self.errors = []
        below = False
        for number, line in enumerate(text.splitlines(), 1):
            line = line.split("#")[0].strip()
            if not line:
                continue
            if line.strip("= ") == "torch line":
                below = True
                continue
            room, arrow, targets = line.partition("->")
            room = room.strip()
            if not arrow or not re.fullmatch(ROOM, room):
                self.errors.append(f"rooms.txt:{number}: not a line of the graph: {line}")
            elif room in self.allowed:
                self.errors.append(f"rooms.txt:{number}: {room} is there twice")
            else:
                self.allowed[room] = set(targets.split())
                if below:
                    self.below.add(room)
        self._check()

    def _check(self):
        for room, targets in self.allowed.items():
            for target in sorted(targets):
                if target not in self.allowed:
                    self.errors.append(f"rooms.txt: {room} -> {target}: there is no room {target}")
                elif target in self.below and room not in self.below:
                    self.errors.append(f"rooms.txt: {room} -> {target} crosses the torch line")
        cycle = self._cycle()
        if cycle:
            self.errors.append("rooms.txt: a cycle: " + " -> ".join(cycle))

    def _cycle(self):
        done, path = set(), []

        def visit(room):
            if room in path:
                return path[path.index(room) :] + [room]
            if room in done:
                return None
            path.append(room)
            for target in sorted(self.allowed.get(room, ())):
                found = visit(target)
                if found:
                    return found
            path.pop()
            done.add(room)
            return None

        for room in self.allowed:
            found = visit(room)
            if found:
                return found
        return None

    def room_of(self, path):
        """The innermost room of "rules/code/views.h"; None if it is in no room."""
        folder = path.rpartition("/")[0]
        while folder and folder not in self.allowed:
            folder = folder.rpartition("/")[0]
        return folder or None

    def may(self, room, target):
        return target in (room, "base") or target in self.allowed[room]


def includes(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1)


def check_source(graph, room, path, shown):
    """The errors of one source; path is read, shown is how it is called in messages."""
    errors = []
    for number, header in includes(path):
        first, *rest = header.split("/")
        where = f"{shown}:{number}: {header}"
        if first in TORCH and room not in graph.below:
            errors.append(f"{where}: {room} is above the torch line")
        elif first == "tessera" and len(rest) == 1:
            errors.append(f"{where}: only users include it; include the header of a room")
        elif first == "tessera" and graph.room_of("/".join(rest)) is None:
            errors.append(f"{where}: rooms.txt has no room {rest[0]}")
        elif first == "tessera" and not graph.may(room, graph.room_of("/".join(rest))):
            errors.append(f"{where}: {room} may not include {graph.room_of('/'.join(rest))}")
        elif header.startswith(".") or (not rest and (path.parent / header).exists()):
            errors.append(f"{where}: write the path from the root, \"tessera/{room}/...\"")
    return errors


def check_list(graph, listed, file, absent, other_side):
    """The rooms that `file` lists, each with whether it is below the torch line, are those of the graph. The last two
    are the texts for a room that the list lacks or has on the other side."""
    errors = []
    for room in sorted(set(listed) | set(graph.allowed)):
        if room not in graph.allowed:
            errors.append(f"{file}: rooms.txt has no room {room}")
        elif room not in listed:
            errors.append(absent.format(room))
        elif listed[room] != (room in graph.below):
            errors.append(f"{file}: {other_side.format(room)}")
    return errors


def check_cmake(graph, text):
    """Every room of CMakeLists.txt is on the side of the torch line where the graph has it."""
    made = {name: "TORCH" in rest.split() for name, rest in CMAKE_ROOM.findall(text)}
    absent = "rooms.txt: CMakeLists.txt makes no room {}"
    return check_list(graph, made, "CMakeLists.txt", absent, "{}: TORCH is not as in rooms.txt")


def check_map(graph, text):
    """The map in docs/architecture.md has a line for each room, on its side of the torch line."""
    file = "docs/architecture.md"
    above, _, below = text.partition(" torch line ")
    mapped = {room: False for room in MAP_ROOM.findall(above)}
    mapped.update({room: True for room in MAP_ROOM.findall(below)})
    absent = file + ": the map lacks {}/"
    return check_list(graph, mapped, file, absent, "{}/ is on the other side of the torch line")


def check_namespaces(room, path, shown):
    """Names are in tessera itself, or in the namespace of the outermost room."""
    outer = room.partition("/")[0]
    own = "comm" if outer in COMM else outer
    errors = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        match = NAMESPACE.match(line)
        if match and match.group(1) != own:
            errors.append(f"{shown}:{number}: {room} is in namespace tessera::{own}")
    return errors


def check_named_files(root, path, shown):
    """A comment names a file of its own folder, or writes the path from one of the folders around it."""
    folders = [folder for folder in path.parents if root == folder or root in folder.parents]
    errors = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for name in NAMED_FILE.findall(line.partition("//")[2]):
            around = folders if "/" in name else folders[:1]
            if not any((folder / name).exists() for folder in around):
                errors.append(f"{shown}:{number}: {name}: the comment names no file")
    return errors


def check(root):
    graph = Graph((root / "tools/rooms.txt").read_text(encoding="utf-8"))
    errors = list(graph.errors)
    cmake = root / "CMakeLists.txt"
    if cmake.exists():
        errors += check_cmake(graph, cmake.read_text(encoding="utf-8"))
    architecture = root / "docs/architecture.md"
    if architecture.exists():
        errors += check_map(graph, architecture.read_text(encoding="utf-8"))
    found = set()
    for path in sorted(p for p in (root / "tessera").rglob("*") if p.suffix in (".h", ".cpp")):
        inside = path.relative_to(root / "tessera").as_posix()
        if "/" not in inside:
            continue
        room = graph.room_of(inside)
        if room is None:
            errors.append(f"tessera/{inside}: rooms.txt has no room {inside.partition('/')[0]}")
            continue
        found.add(room)
        errors += check_source(graph, room, path, path.relative_to(root))
        errors += check_namespaces(room, path, path.relative_to(root))
        errors += check_named_files(root, path, path.relative_to(root))
    for room in sorted(set(graph.allowed) - found):
        errors.append(f"rooms.txt: tessera/{room} holds no source")
    return errors


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parents[1])
    errors = check(root)
    for error in errors:
        print(error, file=sys.stderr)
    if errors:
        sys.exit(f"rooms: {len(errors)} against tools/rooms.txt")


if __name__ == "__main__":
    main()
