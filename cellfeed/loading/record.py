"""One record of a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cellfeed.store.errors import CellfeedError


class Record(NamedTuple):
    """``line`` counts from 1 (rows, for Parquet); ``error`` says why ``fields`` is None;
    ``read_bytes`` is how far reading is. ``body``: the fields as canonical JSON. ``key_texts``: of
    fields that the row key is made from, the text that the file has."""

    line: int
    fields: dict[str, Any] | None
    read_bytes: int
    error: CellfeedError | None = None
    body: bytes = b""
    key_texts: Mapping[str, str] | None = None
