"""How Sphinx makes a site of these pages: `make docs`. Nothing is fetched from the network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import generated_pages  # noqa: E402 - it lies here

project = "Quorate"
author = "The Quorate authors"
project_copyright = f"2026 {author}"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "Quorate"
html_theme_options = {"source_edit_link": "", "source_view_link": ""}
html_copy_source = False
html_show_sourcelink = False

myst_heading_anchors = 4
# Names of the API are found by search, not in the list at the side.
toc_object_entries = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "undoc-members": False}
smartquotes = False  # readers copy quoted text into terminals
# In docstrings, `a name` is code.
default_role = "code"


def setup(app: Any) -> None:
    """Pages that are made from the code are made anew; docstrings are read as they are written."""
    app.connect("builder-inited", lambda app: generated_pages.write(HERE / "generated"))
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=400)  # before napoleon
    app.connect("doctree-read", _note_numbers)


def _as_restructured_text(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    lines[:] = generated_pages.escaped(lines)


def _note_numbers(app: Any, tree: Any) -> None:
    """Let links name anchors such as `<a id="0027"></a>`, which GitHub knows and myst does not."""
    slugs = app.env.metadata[app.env.docname].setdefault("myst_slugs", {})
    for number in re.findall(r'<a id="(\d{4}|r\d+)">', tree.astext()):
        slugs[number] = (0, number, number)
