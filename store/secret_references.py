"""Secrets in the configuration that stand elsewhere: ``${env:NAME}`` in an environment variable,
``${file:/path}`` in a file. The notation is that of Kafka's configuration providers.

The configuration keeps the reference, in the run directory as well; a secret is read where it is
used. No error shows one.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final
from urllib.parse import quote

from cellfeed.store.errors import InvalidRequest

SECRET_BYTES_MAX: Final = 64 << 10
"""A larger file is no secret: a wrong path."""

_REFERENCE: Final = re.compile(r"\$\{(env|file):([^}]*)\}")


def resolved(text: str) -> str:
    """The text with its secrets. A line's end behind that of a file is no part of it. Raises
    InvalidRequest, which names the variable or the file."""
    return _REFERENCE.sub(lambda found: _secret(found[1], found[2]), text)


def resolved_url(url: str) -> str:
    """As :func:`resolved`, each secret percent-encoded: it may have an ``@`` or a ``/``."""
    return _REFERENCE.sub(lambda found: quote(_secret(found[1], found[2]), safe=""), url)


def resolved_settings(settings: dict[str, str | int | float | bool]) -> dict[str, object]:
    """Each text of the settings as :func:`resolved`."""
    return {
        name: resolved(value) if isinstance(value, str) else value
        for name, value in settings.items()
    }


def has_reference(text: str) -> bool:
    """Whether some of the text stands elsewhere."""
    return _REFERENCE.search(text) is not None


def _secret(kind: str, place: str) -> str:
    if kind == "env":
        if place not in os.environ:
            raise InvalidRequest(f"the environment variable {place!r} is not set")
        return os.environ[place]
    path = Path(place)
    if not path.is_absolute():
        raise InvalidRequest(f"{place!r} is no absolute path: every process reads the file")
    try:
        with path.open("rb") as file:
            content = file.read(SECRET_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidRequest(f"the file {place}: {error.strerror}") from None
    if len(content) > SECRET_BYTES_MAX:
        raise InvalidRequest(f"the file {place} has more than {SECRET_BYTES_MAX} bytes: no secret")
    try:
        return content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise InvalidRequest(f"the file {place} is not text in UTF-8") from None
