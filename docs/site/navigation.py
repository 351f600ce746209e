"""The site's table of contents, added to README as it is read: on GitHub it has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from sphinx.application import Sphinx

PARTS: Final = {
    "Use it": ["service-authors", "testing-triggers", "indexes", "warehouse", "lake"],
    "Kafka": ["kafka-consumers", "recipes", "exports"],
    "Operate": ["operators", "operate/*", "operate/alerts/*", "clusters", "figures"],
    "Deploy": ["deploy/*"],
    "Reference": ["reference/*"],
    "Inside": ["invariants", "inside/*"],
}
"""Heading to pages of ``docs/``; ``*`` is every page that is not named elsewhere, by its name."""

_OF_THE_ROOT: Final = [
    "examples/README",
    "ARCHITECTURE",
    "CONTRIBUTING",
    "tests/README",
    "CHANGELOG",
    "SECURITY",
]
_FIRST: Final = [
    "run",
    "watch",
    "grow",
    "back-up",
    "schedule-backups",
    "archive-binlogs",
    "encrypt-backups",
    "back-up-to-s3",
    "restore",
    "restore-to-a-moment",
    "erase",
    "scrub",
    "secure",
]
"""The operators' pages in the order in which they are needed; others follow them."""


def contents(docs: Path) -> str:
    """Table of contents for README, in MyST."""
    trees = []
    for caption, pages in PARTS.items():
        names = [name for page in pages for name in _names(docs, page)]
        trees.append(_tree(caption, [f"/docs/{name}" for name in names]))
    trees.append(_tree("Project", [f"/{name}" for name in _OF_THE_ROOT]))
    return "\n".join(trees)


def _names(docs: Path, page: str) -> list[str]:
    if not page.endswith("/*"):
        return [page]
    folder = page.removesuffix("/*")
    names = sorted(path.stem for path in (docs / folder).glob("*.md"))
    first = [name for name in (*_FIRST, "README") if name in names]
    return [f"{folder}/{name}" for name in first + [name for name in names if name not in first]]


def _tree(caption: str, names: list[str]) -> str:
    entries = "\n".join(names)
    return f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def _with_contents(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == app.config.root_doc:
        source[0] += "\n" + contents(Path(app.srcdir) / "docs")


def _begin_at_readme(app: Sphinx, error: Exception | None) -> None:
    """The address of the folder leads to the first page."""
    if error is None and app.builder.name == "html":
        (Path(app.outdir) / "index.html").write_text(
            f'<meta http-equiv="refresh" content="0; url={app.config.root_doc}.html">\n'
        )


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", _with_contents)
    app.connect("build-finished", _begin_at_readme)
    return {"parallel_read_safe": True}
