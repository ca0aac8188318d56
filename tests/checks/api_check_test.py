"""tools/check_api.py passes on right headers and fails on each planted violation."""

import importlib.util
import pathlib
import tempfile
import unittest

CHECK = pathlib.Path(__file__).parents[2] / "tools/check_api.py"
spec = importlib.util.spec_from_file_location("check_api", CHECK)
check_api = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_api)

PUBLIC = """
/// f(int) in a comment is no declaration; neither is "g(int);" in a text.
namespace torch { class Module; }
namespace tessera {
namespace mesh {
class Node;
enum class Kind { one, two };
struct TESSERA_API Options { bool wide = true; void nothing(); };
class TESSERA_API Mesh final : public Base<int> {
 public:
  int size() const;
  struct Axis { int n; };
};
TESSERA_API std::function<int(int)> make(const Options& options = {}, int n = f(1));
TESSERA_API std::ostream& operator<<(std::ostream& out, const Mesh& mesh);
TESSERA_API extern int count;
inline int twice(int n) { return 2 * n; }
inline constexpr int kSizes[] = {1, 2};
template <typename T> requires std::integral<T>
T half(T n) { return n / 2; }
using Sizes = std::vector<int>;
}  // namespace mesh
using mesh::Mesh;
}  // namespace tessera
template <>
struct std::hash<tessera::Mesh> { size_t operator()(const tessera::Mesh& mesh) const; };
"""
INTERNAL = """
namespace tessera {
class Table { int rows(); };
int look_up(const Table& table);
TESSERA_API void for_extension();
}
"""
EXPORTED = [
    "tessera::mesh::Mesh::size() const",
    "typeinfo for tessera::mesh::Mesh",
    "vtable for tessera::mesh::Mesh",
    "tessera::mesh::make(tessera::mesh::Options const&, int)",
    "tessera::mesh::operator<<(std::ostream&, tessera::mesh::Mesh const&)",
    "tessera::mesh::count[abi:cxx11]",
    "tessera::for_extension()",
]


def read(files):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in files.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return check_api.read_headers(pathlib.Path(folder))


def tree(public=PUBLIC, internal=INTERNAL):
    return {
        "tessera/tessera.h": '#include "tessera/mesh/mesh.h"\n',
        "tessera/mesh/mesh.h": public,
        "tessera/mesh/table.h": internal,
    }


class ApiCheck(unittest.TestCase):
    def setUp(self):
        self.listed = check_api.EXTENSION
        check_api.EXTENSION = {"tessera::for_extension"}

    def tearDown(self):
        check_api.EXTENSION = self.listed

    def fails_with(self, message, **files):
        errors, _ = read(tree(**files))
        self.assertEqual(len(errors), 1, errors)
        self.assertIn(message, errors[0])

    def test_right_headers_pass(self):
        errors, marked = read(tree())
        self.assertEqual(errors, [])
        self.assertEqual(
            sorted(marked),
            ["tessera::for_extension", "tessera::mesh::Mesh", "tessera::mesh::Options",
             "tessera::mesh::count", "tessera::mesh::make", "tessera::mesh::operator<<"])

    def test_each_mark_of_an_installed_header_is_needed(self):
        for line, name in (("TESSERA_API std::function", "tessera/mesh/mesh.h:14: tessera::mesh::make"),
                           ("TESSERA_API Options", "tessera/mesh/mesh.h:8: tessera::mesh::Options"),
                           ("TESSERA_API Mesh", "tessera::mesh::Mesh"),
                           ("TESSERA_API std::ostream", "tessera::mesh::operator<<"),
                           ("TESSERA_API extern", "tessera::mesh::count")):
            without = PUBLIC.replace(line, line.removeprefix("TESSERA_API "))
            self.fails_with(f"{name} is in an installed header and has no TESSERA_API", public=without)

    def test_another_header_marks_what_is_listed_alone(self):
        self.fails_with("tessera/mesh/table.h:4: tessera::look_up has TESSERA_API",
                        internal=INTERNAL.replace("int look_up", "TESSERA_API int look_up"))
        self.fails_with("tessera::for_extension is listed, but no header that is not installed marks it",
                        internal=INTERNAL.replace("TESSERA_API", ""))

    def test_a_member_is_not_marked(self):
        self.fails_with("mark a class, not its members",
                        public=PUBLIC.replace("int size()", "TESSERA_API int size()"))

    def test_the_library_exports_what_is_marked(self):
        _, marked = read(tree())
        self.assertEqual(check_api.check_library(EXPORTED, marked), [])
        for name in ("std::vector<tessera::mesh::Mesh>::push_back(tessera::mesh::Mesh const&)",
                     "at::Tensor::clone() const", "nlohmann::json::dump() const",
                     "void tessera_like::f()"):
            self.assertEqual(check_api.check_library([*EXPORTED, name], marked),
                             [f"the library exports {name}"])
        for name in ("tessera::look_up(tessera::Table const&)", "tessera::Table::rows()",
                     "typeinfo for tessera::Table"):
            self.assertEqual(check_api.check_library([*EXPORTED, name], marked),
                             [f"the library exports {name}, which no header marks"])
        for i, name in ((3, "make"), (4, "operator<<"), (5, "count")):
            errors = check_api.check_library(EXPORTED[:i] + EXPORTED[i + 1:], marked)
            self.assertEqual(len(errors), 1, errors)
            self.assertIn(f"tessera::mesh::{name} has TESSERA_API, but", errors[0])


if __name__ == "__main__":
    unittest.main()
