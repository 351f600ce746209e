"""The parts of the reference that are made from the program: every command, the configuration, the
HTTP API.

A page of ``docs/reference/`` names its part in a comment, ``<!-- generated: commands -->``, and the
text comes in its place as the page is read. No generated text is in the repository.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from docs.site.commands import commands
from docs.site.configuration import configuration
from docs.site.http_api import http_api

PARTS: Final[dict[str, Callable[[], Iterator[str]]]] = {
    "commands": commands,
    "configuration": configuration,
    "http": http_api,
}
_MARK: Final = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def _with_parts(_app: Sphinx, docname: str, source: list[str]) -> None:
    def part(mark: re.Match[str]) -> str:
        if mark[1] not in PARTS:
            raise ExtensionError(f"{docname}: no part is named {mark[1]!r}, only {list(PARTS)}")
        return "\n".join(PARTS[mark[1]]())

    source[0] = _MARK.sub(part, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    """Called by Sphinx."""
    app.connect("source-read", _with_parts)
    return {"parallel_read_safe": True}
