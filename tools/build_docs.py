#!/usr/bin/env python3
"""Builds the documentation as one offline site: build/docs/site/index.html. Called by `make docs`.

    tools/build_docs.py <folder of the package> <folder that holds torch>

Sources: docs/**/*.md, with docs/index.md as the navigation (each `## section` with a list of links is a
part of it), README.md, CONTRIBUTING.md and CHANGELOG.md, the examples with their sources, the public
headers (what tessera/tessera.h includes) through Doxygen and Breathe, the package's docstrings through
autodoc. Links that lead to a page of the site stay links, those to other files become their names. A
warning of Doxygen or Sphinx is an error: a dead link, a page outside of the navigation.
"""

import importlib
import inspect
import os
import pathlib
import re
import shutil
import subprocess
import sys

from sphinx.cmd.build import build_main

import doc_blocks
import header_text

ROOT = pathlib.Path(__file__).parents[1]
OUT = ROOT / "build/docs"
SOURCE = OUT / "source"
HEADERS = OUT / "headers"
LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
PAGES_OUTSIDE = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LANGUAGE = {".cpp": "cpp", ".h": "cpp", ".py": "python", ".sh": "bash", ".json": "json"}


def example_files():
    """(page of the site, its sources) for each example."""
    folder = ROOT / "examples"
    for entry in sorted(folder.iterdir()):
        if entry.suffix in (".cpp", ".py"):
            yield f"examples/{entry.name.replace('.', '_')}.md", [entry]
        elif entry.is_dir():
            sources = [f for f in sorted(entry.iterdir()) if f.suffix in LANGUAGE]
            yield f"examples/{entry.name}.md", sources


def site_page(path):
    """The page of the site that shows a file or folder of the tree; None if there is none."""
    relative = path.relative_to(ROOT).as_posix()
    if relative in PAGES_OUTSIDE:
        return PAGES_OUTSIDE[relative]
    if relative in ("examples", "examples/README.md"):
        return "examples/index.md"
    if relative.startswith("docs/"):
        return relative.removeprefix("docs/")
    for page, sources in example_files():
        if path in sources or page == f"{relative}.md" or relative.startswith(page.removesuffix(".md") + "/"):
            return page
    return None


def staged_links(text, origin, page):
    """Links of a file of the tree, as the site's page needs them."""

    def replace(found):
        label, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found.group(0)
        name, _, anchor = target.partition("#")
        path = (origin.parent / name).resolve()
        if not path.exists():
            sys.exit(f"{origin.relative_to(ROOT)}: link to {target}: no such file")
        to = site_page(path)
        if to is None:
            return label
        to = os.path.relpath(to, pathlib.PurePosixPath(page).parent)
        return f"[{label}]({to}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(replace, part) for part in parts)


def write(page, text):
    target = SOURCE / page
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")


def stage(origin, page):
    text = doc_blocks.without_marks(origin.read_text(encoding="utf-8"))
    write(page, staged_links(text, origin, page))


def toctree(pages, caption=""):
    lines = [f":caption: {caption}"] if caption else []
    lines += [":hidden:", ""] + [page.removesuffix(".md") for page in pages]
    return "\n```{toctree}\n" + "\n".join(lines) + "\n```\n"


def stage_index():
    """docs/index.md with a table of contents for each of its sections."""
    origin = ROOT / "docs/index.md"
    stage(origin, "index.md")
    text = (SOURCE / "index.md").read_text(encoding="utf-8")
    for title, body in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE):
        text += toctree([target for _, target in LINK.findall(body) if "://" not in target], title)
    write("index.md", text)


def stage_examples():
    stage(ROOT / "examples/README.md", "examples/index.md")
    pages = []
    for page, sources in example_files():
        readme = sources[0].parent / "README.md"
        title = sources[0].name if len(sources) == 1 else sources[0].parent.name
        text = f"# {title}\n"
        if len(sources) > 1 and readme.exists():
            stage(readme, page)
            text = (SOURCE / page).read_text(encoding="utf-8")
        for file in sources:
            heading = f"\n## {file.name}\n" if len(sources) > 1 else ""
            code = file.read_text(encoding="utf-8").rstrip()
            text += f"{heading}\n````{LANGUAGE[file.suffix]}\n{code}\n````\n"
        write(page, text)
        pages.append(pathlib.PurePosixPath(page).name)
    with (SOURCE / "examples/index.md").open("a", encoding="utf-8") as index:
        index.write(toctree(pages))


def public_headers():
    """Headers that tessera/tessera.h includes, by room."""
    text = (ROOT / "tessera/tessera.h").read_text(encoding="utf-8")
    rooms = {}
    for header in re.findall(r'^#include "(tessera/[^"]*)"', text, re.MULTILINE):
        rooms.setdefault(str(pathlib.PurePosixPath(header).parent).removeprefix("tessera/"), []).append(header)
    # Types that users name and that these headers take from others.
    rooms["sharding"].insert(0, "tessera/sharding/placement.h")
    rooms["fsdp"] += ["tessera/fsdp/control.h", "tessera/fsdp/buffers/mesh_kinds.h", "tessera/fsdp/buffers/collectives.h"]
    rooms.setdefault("cost", []).append("tessera/cost/machine.h")
    rooms["checkpoint"].insert(0, "tessera/checkpoint/state.h")
    rooms["rules/registry"].insert(0, "tessera/rules/rule.h")
    return rooms


def room_titles():
    """What docs/architecture.md says of each room."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^(\w+(?:/\w+)*)/ {2,}(.*)$", text, re.MULTILINE))


def stage_cpp_reference(rooms):
    titles, pages = room_titles(), []
    for room, headers in sorted(rooms.items()):
        page = f"reference/cpp_{room.replace('/', '_')}.md"
        text = f"# {room}\n\n{titles.get(room, '')}\n"
        for header in headers:
            source = (ROOT / header).read_text(encoding="utf-8")
            manual, code = header_text.split_manual(source)
            # Breathe finds a file by its last name alone, and two headers are called state.h.
            name = header.replace("/", "__")
            HEADERS.mkdir(parents=True, exist_ok=True)
            (HEADERS / name).write_text(header_text.for_doxygen(code), encoding="utf-8")
            text += f"\n## {header}\n\n{header_text.to_markdown(manual)}\n"
            text += f"\n```{{doxygenfile}} {name}\n```\n"
        write(page, text)
        pages.append(pathlib.PurePosixPath(page).name)
    with (SOURCE / "reference/cpp.md").open("a", encoding="utf-8") as index:
        index.write(toctree(pages))


def run_doxygen():
    settings = OUT / "Doxyfile"
    settings.write_text(
        f"""PROJECT_NAME = tessera
INPUT = {HEADERS}
RECURSIVE = YES
FULL_PATH_NAMES = YES
STRIP_FROM_PATH = {OUT}
OUTPUT_DIRECTORY = {OUT}/doxygen
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
EXTRACT_PRIVATE = NO
HIDE_FRIEND_COMPOUNDS = YES
MARKDOWN_SUPPORT = YES
AUTOLINK_SUPPORT = NO
MACRO_EXPANSION = YES
QUIET = YES
WARN_AS_ERROR = FAIL_ON_WARNINGS
""",
        encoding="utf-8",
    )
    (OUT / "doxygen").mkdir(exist_ok=True)
    subprocess.run(["doxygen", settings], check=True)


def python_groups(tessera):
    """(module, title, names) for what the package exports, by the module that defines it."""
    home = {}
    for module in ("mesh", "placement", "tensor", "factories", "module", "fsdp", "fsdp_control",
                   "fsdp_compute_dtype", "fsdp_report", "checkpoint", "state", "ranks", "comm", "policy",
                   "rules", "program", "partition", "convert"):
        loaded = importlib.import_module(f"tessera.{module}")
        names = [name for name in tessera.__all__
                 if getattr(getattr(tessera, name), "__module__", "") == loaded.__name__]
        home[module] = (loaded.__doc__.strip().splitlines()[0].rstrip("."), names)
    covered = {name for _, names in home.values() for name in names}
    rest = [name for name in tessera.__all__ if name not in covered]
    home["_C"] = ("Values, meshes, plans and errors", rest)
    return home


def stage_python_reference():
    tessera = importlib.import_module("tessera")
    pages = []
    for module, (title, names) in python_groups(tessera).items():
        page = f"reference/python_{module.strip('_').lower()}.md"
        text = f"# {title}\n\n```{{eval-rst}}\n.. py:module:: tessera\n   :no-index:\n\n"
        for name in names:
            item = getattr(tessera, name)
            kind = "autoclass" if inspect.isclass(item) else "autofunction"
            if inspect.isclass(item) and issubclass(item, BaseException):
                kind = "autoexception"
            text += f".. {kind}:: tessera.{name}\n"
            text += "   :members:\n" if inspect.isclass(item) else ""
            text += "\n"
        write(page, text + "```\n")
        pages.append(pathlib.PurePosixPath(page).name)
    with (SOURCE / "reference/python.md").open("a", encoding="utf-8") as index:
        index.write(toctree(pages))


def stage_all():
    for folder in (SOURCE, HEADERS, OUT / "doxygen"):
        shutil.rmtree(folder, ignore_errors=True)
    for origin in sorted((ROOT / "docs").glob("**/*.md")):
        if origin.name != "index.md":
            stage(origin, origin.relative_to(ROOT / "docs").as_posix())
    for picture in sorted((ROOT / "docs").glob("**/*.svg")):
        target = SOURCE / picture.relative_to(ROOT / "docs")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, target)
    for name, page in PAGES_OUTSIDE.items():
        stage(ROOT / name, page)
        text = (SOURCE / page).read_text(encoding="utf-8")
        write(page, text.replace("](docs/", "]("))
    stage_index()
    stage_examples()
    stage_cpp_reference(public_headers())
    stage_python_reference()


def check_offline(site):
    """No page loads anything from the network: scripts, styles, fonts, pictures."""
    loads = re.compile(r"""(?:src=|<link[^>]*href=|url\(|@import )["']?https?://[^"')\s]*""")
    for file in sorted(site.rglob("*")):
        if file.suffix in (".html", ".css"):
            found = loads.search(file.read_text(encoding="utf-8"))
            if found:
                sys.exit(f"docs: {file.relative_to(site)} loads {found.group(0)}")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    # Last, so that the versions of .venv-docs come before those that torch's environment may have.
    sys.path += sys.argv[1:]
    OUT.mkdir(parents=True, exist_ok=True)
    stage_all()
    run_doxygen()
    os.environ["TESSERA_DOXYGEN_XML"] = str(OUT / "doxygen/xml")
    site = OUT / "site"
    shutil.rmtree(site, ignore_errors=True)
    options = ["-q", "-W", "--keep-going", "-E", "-b", "html", "-c", str(ROOT / "docs/site")]
    if build_main([*options, "-d", str(OUT / "doctrees"), str(SOURCE), str(site)]):
        sys.exit("docs: not built; every warning above is an error")
    check_offline(site)
    print(f"docs: {site / 'index.html'}")


if __name__ == "__main__":
    main()
