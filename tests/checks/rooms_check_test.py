"""tools/check_rooms.py passes on a right tree and fails on each planted violation."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).parents[2] / "tools/check_rooms.py"

GRAPH = """
base ->
mesh -> base   # a comment
plan -> mesh
plan/table -> plan
==== torch line ====
comm -> mesh
exec -> plan comm
"""

RIGHT = {
    "tools/rooms.txt": GRAPH,
    "tessera/tessera.h": '#include "tessera/exec/run.h"\n',
    "tessera/base/errors.h": "#include <string>\n",
    "tessera/mesh/mesh.h": '#include "tessera/base/errors.h"\n',
    "tessera/plan/plan.h": '#include "tessera/mesh/mesh.h"\n#include "tessera/base/errors.h"\n',
    "tessera/plan/table/rows.h": '#include "tessera/plan/plan.h"\n',
    "tessera/comm/group.h": '#include <ATen/core/Tensor.h>\n#include "tessera/mesh/mesh.h"\n',
    "tessera/exec/run.h": '#include "tessera/comm/group.h"\n#include "tessera/plan/plan.h"\n',
}


def check(files):
    """(passed, what it printed) for a tree of the given files."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, CHECK, root], capture_output=True, text=True, check=False
        )
        return done.returncode == 0, done.stderr


class RoomsCheck(unittest.TestCase):
    def fails_with(self, message, files):
        passed, printed = check({**RIGHT, **files})
        self.assertFalse(passed)
        self.assertIn(message, printed)

    def test_a_right_tree_passes(self):
        self.assertEqual(check(RIGHT), (True, ""))

    def test_a_room_above_the_line_may_not_include_torch(self):
        for header in ("ATen/core/Tensor.h", "torch/torch.h", "c10/util/Exception.h"):
            self.fails_with(
                f"tessera/mesh/bad.cpp:2: {header}: mesh is above the torch line",
                {"tessera/mesh/bad.cpp": f"\n#include <{header}>\n"},
            )

    def test_an_include_that_is_not_written_in_the_graph(self):
        self.fails_with(
            "mesh may not include plan",
            {"tessera/mesh/bad.cpp": '#include "tessera/plan/plan.h"\n'},
        )

    def test_nothing_is_inherited(self):
        self.fails_with(
            "exec may not include mesh",
            {"tessera/exec/bad.cpp": '#include "tessera/mesh/mesh.h"\n'},
        )

    def test_a_room_inside_a_room_is_a_room_of_its_own(self):
        self.fails_with(
            "plan may not include plan/table",
            {"tessera/plan/bad.cpp": '#include "tessera/plan/table/rows.h"\n'},
        )
        self.fails_with(
            "plan/table may not include mesh",
            {"tessera/plan/table/bad.cpp": '#include "tessera/mesh/mesh.h"\n'},
        )
        self.fails_with(
            "exec may not include plan/table",
            {"tessera/exec/bad.cpp": '#include "tessera/plan/table/rows.h"\n'},
        )

    def test_a_folder_without_a_line_belongs_to_the_room_around_it(self):
        files = {"tessera/plan/data/x.h": '#include "tessera/mesh/mesh.h"\n'}
        self.assertEqual(check({**RIGHT, **files}), (True, ""))

    def test_a_room_without_sources(self):
        self.fails_with(
            "tessera/partition holds no source",
            {"tools/rooms.txt": GRAPH.replace("plan -> mesh", "plan -> mesh\npartition -> mesh")},
        )

    def test_angle_brackets_and_spaces_hide_nothing(self):
        self.fails_with(
            "mesh may not include comm",
            {"tessera/mesh/bad.h": "#  include <tessera/comm/group.h>\n"},
        )

    def test_a_cycle_in_the_graph(self):
        self.fails_with(
            "a cycle: mesh -> plan -> mesh",
            {"tools/rooms.txt": GRAPH.replace("mesh -> base", "mesh -> plan")},
        )

    def test_a_line_of_the_graph_that_crosses_the_torch_line(self):
        self.fails_with(
            "plan -> comm crosses the torch line",
            {"tools/rooms.txt": GRAPH.replace("plan -> mesh", "plan -> comm")},
        )

    def test_a_folder_that_the_graph_does_not_know(self):
        self.fails_with(
            "tessera/util/x.h: rooms.txt has no room util", {"tessera/util/x.h": "\n"}
        )

    def test_an_include_of_a_room_that_the_graph_does_not_know(self):
        self.fails_with(
            "rooms.txt has no room util",
            {"tessera/mesh/bad.h": '#include "tessera/util/x.h"\n'},
        )

    def test_a_room_that_the_graph_names_but_does_not_have(self):
        self.fails_with(
            "there is no room util",
            {"tools/rooms.txt": GRAPH.replace("mesh -> base", "mesh -> util")},
        )

    def test_a_comment_that_names_no_file(self):
        for name in ("mesh.h", "plan/rows.h"):
            self.fails_with(
                f"tessera/plan/table/bad.h:2: {name}: the comment names no file",
                {"tessera/plan/table/bad.h": f"\n/// See ({name}).\n"},
            )
        right = {"tessera/plan/table/good.h": "/// rows.h, plan/plan.h, mesh/mesh.h, <vector.h>\n"}
        self.assertEqual(check({**RIGHT, **right}), (True, ""))

    def test_the_umbrella_header_is_for_users(self):
        self.fails_with(
            "only users include it",
            {"tessera/exec/bad.cpp": '#include "tessera/tessera.h"\n'},
        )

    def test_paths_are_written_from_the_root(self):
        self.fails_with(
            "write the path from the root", {"tessera/mesh/bad.cpp": '#include "mesh.h"\n'}
        )

    def test_cmake_and_the_graph_agree_on_the_torch_line(self):
        rooms = ["base", "mesh", "plan", "plan/table", "comm TORCH", "exec TORCH"]
        cmake = "".join(f"tessera_room({room})\n" for room in rooms)
        self.assertEqual(check({**RIGHT, "CMakeLists.txt": cmake}), (True, ""))
        self.fails_with(
            "mesh: TORCH is not as in rooms.txt",
            {"CMakeLists.txt": cmake.replace("(mesh", "(mesh TORCH")},
        )
        self.fails_with(
            "CMakeLists.txt makes no room plan",
            {"CMakeLists.txt": cmake.replace("tessera_room(plan)\n", "")},
        )

    def test_the_map_of_the_docs_lists_the_rooms(self):
        rooms = ["base/   errors", "mesh/   ranks", "plan/   moves", "plan/table/   the moves"]
        text = "\n".join([*rooms, "──── torch line ────", "comm/   ranks", "exec/   runs plans", ""])
        self.assertEqual(check({**RIGHT, "docs/architecture.md": text}), (True, ""))
        self.fails_with(
            "the map lacks plan/table/",
            {"docs/architecture.md": text.replace("plan/table/   the moves\n", "")},
        )
        self.fails_with(
            "rooms.txt has no room sim", {"docs/architecture.md": text + "sim/   simulation\n"}
        )
        moved = text.replace("comm/   ranks\n", "").replace("base/", "comm/   ranks\nbase/")
        self.fails_with(
            "comm/ is on the other side of the torch line", {"docs/architecture.md": moved}
        )

    def test_a_room_has_a_namespace(self):
        for right in ("tessera", "tessera::plan", "tessera::plan::detail", "gloo"):
            files = {"tessera/plan/table/x.cpp": f"namespace {right} {{\n}}\n"}
            self.assertEqual(check({**RIGHT, **files}), (True, ""))
        self.fails_with(
            "tessera/plan/table/x.cpp:1: plan/table is in namespace tessera::plan",
            {"tessera/plan/table/x.cpp": "namespace tessera::mesh {\n}\n"},
        )


if __name__ == "__main__":
    unittest.main()
