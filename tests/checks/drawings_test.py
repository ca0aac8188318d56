"""docs/drawings holds what tools/draw_docs.py draws."""

import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.dont_write_bytecode = True
import draw_docs  # noqa: E402


class Drawings(unittest.TestCase):
    def test_they_are_up_to_date(self):
        for name, draw in draw_docs.DRAWINGS.items():
            drawn = (ROOT / f"docs/drawings/{name}.svg").read_text(encoding="utf-8")
            self.assertEqual(drawn, draw().svg(), f"{name}: run tools/draw_docs.py")

    def test_none_is_left_over(self):
        files = {file.stem for file in (ROOT / "docs/drawings").glob("*.svg")}
        self.assertEqual(files, set(draw_docs.DRAWINGS))


if __name__ == "__main__":
    unittest.main()
