"""Sphinx's settings for the site; tools/build_docs.py writes the sources and calls Sphinx."""

import os
import re

project = "tessera"
copyright = "the tessera authors"
author = "the tessera authors"

extensions = ["myst_parser", "sphinx.ext.autodoc", "breathe"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = False  # libtorch's types have no pages here

myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block"]

breathe_projects = {"tessera": os.environ["TESSERA_DOXYGEN_XML"]}
breathe_default_project = "tessera"
breathe_show_include = False
# Each header declares the namespaces that it adds to.
suppress_warnings = ["duplicate_declaration.cpp"]
cpp_index_common_prefix = ["tessera::"]
# libtorch's export macros and Doxygen's spelling of them.
cpp_id_attributes = ["C10_API", "TORCH_API"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
default_role = "code"
add_module_names = False

html_theme = "furo"
html_title = "tessera"
html_static_path = []
html_show_sourcelink = False
html_copy_source = False
# Summaries of search results are fetched page by page, which a browser refuses from disk.
html_show_search_summary = False
html_theme_options = {"navigation_with_keys": True}


def plain_docstring(app, what, name, obj, options, lines):
    """Docstrings are plain text: indented blocks after an empty line are code, and a name may end with
    an underscore."""
    out, in_code, empty_before = [], False, True
    for line in lines:
        indented = line.startswith("    ")
        if indented and empty_before and not in_code:
            kind = "pycon" if line.lstrip().startswith(">>>") else "python"
            out += [f".. code-block:: {kind}", ""]
            in_code = True
        elif line.strip() and not indented:
            in_code = False
        if not in_code:
            parts = line.split("`")
            parts[::2] = [re.sub(r"(\w)_(?!\w)", r"\1\\_", part).replace("*", "\\*") for part in parts[::2]]
            line = "`".join(parts)
        out.append(line)
        empty_before = not line.strip()
    lines[:] = out


def setup(app):
    app.connect("autodoc-process-docstring", plain_docstring)
