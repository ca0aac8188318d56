"""Each message that docs/troubleshooting.md quotes is one that the sources can print."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).parents[2]
PAGE = ROOT / "docs/troubleshooting.md"
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
OF_LIBTORCH = {"Cannot access data pointer of Tensor that doesn't have storage"}


def literals():
    """String literals of the sources, adjacent ones joined, with spaces around a place for a value."""
    found = []
    for folder in ("tessera", "cli", "python"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix not in (".cpp", ".h", ".py"):
                continue
            text = file.read_text(encoding="utf-8")
            text = re.sub(r"(?<=\")\s*\n\s*f?(?=\")", "", text).replace('""', "")
            found += [re.sub(r"\{[^}]*\}", " ", literal) for literal in LITERAL.findall(text)]
    return found


def quotes():
    return re.findall(r"^> (.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def fragments(quote):
    """The fixed parts of a quote that say something: at least two words."""
    parts = [part.strip() for part in quote.split("…")]
    return [part for part in parts if len(part.split()) > 1]


class Troubleshooting(unittest.TestCase):
    def test_every_quoted_message_exists(self):
        sources = literals()
        for quote in quotes():
            if quote in OF_LIBTORCH:
                continue
            self.assertTrue(fragments(quote), quote)
            for part in fragments(quote):
                self.assertTrue(any(part in literal for literal in sources), f"no source has: {part}")

    def test_a_message_that_does_not_exist_is_found(self):
        sources = literals()
        self.assertFalse(any("ranks of a world that never was" in literal for literal in sources))
        self.assertGreater(len(quotes()), 20)


if __name__ == "__main__":
    unittest.main()
