"""Sphinx's settings: README and the guides, as they stand, and the generated reference.

The source folder is the repository, so a link that works there works on the site.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from cellfeed import __version__  # noqa: E402

project = "cellfeed"
author = "the authors of cellfeed"
version = release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "docs.site.navigation",
    "docs.site.reference",
]
root_doc = "README"
_PAGES = ("deploy", "inside", "operate", "reference")
include_patterns = ["*.md", "docs/**.md", "examples/README.md", "tests/README.md"]
# Other folders are not walked: there are links, environments and files of tests.
exclude_patterns = [
    path.relative_to(ROOT).as_posix()
    for parent, kept in (
        (ROOT, ("docs", "examples", "tests")),
        (ROOT / "docs", _PAGES),
        (ROOT / "examples", ()),
        (ROOT / "tests", ()),
    )
    for path in parent.iterdir()
    if path.is_dir() and path.name not in kept
]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
nitpicky = True
# No page of ours describes the standard library's types, nor modules of the inside.
nitpick_ignore_regex = [
    ("py:class", r"(collections|datetime|uuid|types|typing|pathlib|contextlib)\..*"),
    ("py:class", r"RowKey"),  # UUID | str
    ("py:class", r"cellfeed\.store\.cells\.cell\.NewCell"),  # the loader's result
    ("py:mod", r"cellfeed\..*"),
]
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = f"cellfeed {version}"
html_copy_source = False
html_show_sphinx = False
