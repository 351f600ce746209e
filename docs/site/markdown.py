"""Markdown from the program's own descriptions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator

_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_CODE = re.compile(r"(`[^`]*`)")
_SIGNS = re.compile(r"([*<\[\]])")


def prose(text: str) -> str:
    """A docstring as Markdown: its double backquotes and roles become code, signs stay signs."""
    plain = _ROLE.sub(r"`\1`", inspect.cleandoc(text)).replace("``", "`")
    return "".join(
        part if part.startswith("`") else _SIGNS.sub(r"\\\1", part) for part in _CODE.split(plain)
    )


def cell(text: str) -> str:
    """Text for one place of a table."""
    return " ".join(prose(text).split()).replace("|", "\\|")


def code(text: str) -> str:
    """Code for one place of a table; nothing for nothing."""
    return f"`{text}`".replace("|", "\\|") if text else ""


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Lines of a table, and nothing when it has no rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if lines:
        names = list(head)
        yield f"| {' | '.join(names)} |"
        yield f"|{' --- |' * len(names)}"
        yield from lines
        yield ""
