"""tools/header_text.py: what Doxygen and the reference pages get of a header."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
sys.dont_write_bytecode = True
import header_text  # noqa: E402

HEADER = """#pragma once
namespace torch::nn {
class Module;
}

/// Moves values.
///
///   move(x);
///
/// Costs nothing.
namespace tessera {

/// As in
///
///   f(1)  -> 2
class TESSERA_API A {
 public:
  int f();  ///< the next number

 private:
  int hidden_;
};

}  // namespace tessera

template <>
struct std::hash<tessera::A> {
  size_t operator()(const tessera::A&) const;
};
"""


class HeaderText(unittest.TestCase):
    def setUp(self):
        self.manual, self.code = header_text.split_manual(HEADER)

    def test_the_manual_is_taken_out(self):
        self.assertEqual(self.manual[0], "Moves values.")
        self.assertNotIn("Moves values", self.code)
        self.assertIn("namespace tessera {", self.code)

    def test_indented_lines_are_code(self):
        self.assertIn("```text\n  move(x);\n```", header_text.to_markdown(self.manual))
        self.assertIn("///       f(1)  -> 2", header_text.for_doxygen(self.code))

    def test_what_users_do_not_see_is_left_out(self):
        text = header_text.for_doxygen(self.code)
        for hidden in ("hidden_", "std::hash", "torch::nn", "TESSERA_API"):
            self.assertNotIn(hidden, text)
        self.assertIn("int f();", text)


if __name__ == "__main__":
    unittest.main()
