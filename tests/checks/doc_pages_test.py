"""Pages of the documentation: links lead somewhere, all pages are in the index, numbers that appear twice
agree."""

import pathlib
import re
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
sys.dont_write_bytecode = True
import doc_blocks  # noqa: E402

ROOT = doc_blocks.ROOT
LINK = re.compile(r"\]\(([^()\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
PAGES = doc_blocks.pages() + ["CHANGELOG.md"]


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def anchors(page):
    """The anchors of a page's headings, as GitHub and the site make them."""
    out = set()
    for heading in re.findall(r"^#+ (.*)$", FENCED.sub("", text_of(page)), re.MULTILINE):
        heading = re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower())
        out.add(heading.strip().replace(" ", "-"))
    return out


def number(pattern, page):
    found = re.search(pattern, text_of(page))
    assert found, f"{page}: no {pattern}"
    return int(found.group(1).replace(",", ""))


class Pages(unittest.TestCase):
    def test_links_lead_to_files_and_headings(self):
        for page in PAGES:
            for link in LINK.findall(FENCED.sub("", doc_blocks.without_marks(text_of(page)))):
                if "://" in link:
                    continue
                name, _, anchor = link.partition("#")
                target = (ROOT / page).parent / name if name else ROOT / page
                self.assertTrue(target.exists(), f"{page}: {link}")
                if anchor and target.suffix == ".md":
                    there = target.resolve().relative_to(ROOT).as_posix()
                    self.assertIn(anchor, anchors(there), f"{page}: {link}")

    def test_every_page_is_in_the_index(self):
        listed = {
            (ROOT / "docs" / link.partition("#")[0]).resolve() for link in LINK.findall(text_of("docs/index.md"))
        }
        for page in sorted((ROOT / "docs").glob("**/*.md")):
            if page.name != "index.md":
                self.assertIn(page, listed, f"add {page.relative_to(ROOT)} to docs/index.md")

    def test_the_number_of_rules_is_that_of_the_coverage_page(self):
        ruled = number(r"\[ruled\]\(#ruled\) \| ([\d,]+)", "docs/op_coverage.md")
        of_all = number(r"\| all \| ([\d,]+)", "docs/op_coverage.md")
        self.assertGreater(2 * ruled, of_all)  # as CHANGELOG.md says
        for page in PAGES:
            for found in re.findall(r"(\d,\d{3}) overloads", text_of(page)):
                self.assertIn(int(found.replace(",", "")), (ruled, of_all), page)

    def test_versions_of_libtorch_agree(self):
        setup = re.search(r"torch_version=(\d+\.\d+)", text_of("tools/setup.sh")).group(1)
        for page in PAGES:
            for newest in re.findall(r"2\.11 to (\d+\.\d+)", text_of(page)):
                self.assertEqual(newest, setup, page)

    def test_figures_of_the_performance_page_are_those_of_their_pages(self):
        for figure, page in (
            ("5 to 24 µs", "README.md"),
            ("7 to 15 µs", "README.md"),
            ("0.1 to 0.4 µs", "README.md"),
            ("1.7 µs", "docs/fsdp.md"),
        ):
            self.assertIn(figure, text_of("docs/performance.md"))
            self.assertIn(figure, text_of(page).replace("\n", " "))


if __name__ == "__main__":
    unittest.main()
