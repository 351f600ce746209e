"""NDJSON as records: one object a line, UTF-8, empty lines skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cellfeed.loading import lines
from cellfeed.loading.record import Record
from cellfeed.store.cells.canonical_json import canonical_from_json, parse
from cellfeed.store.errors import InvalidBody, InvalidRequest


def ndjson_records(path: Path) -> Iterator[Record]:
    """The records; a line that is no object is an error in its place."""
    with path.open("rb") as raw:
        line, at, longest = 0, 0, lines.LINE_BYTES_MAX
        while text := raw.readline(longest):
            line += 1
            at += len(text)
            if lines.cut_short(text):
                at += lines.skip_line(raw)
                yield Record(line, None, at, InvalidRequest(f"longer than {longest} bytes"))
            elif text := text.strip():
                try:
                    body = canonical_from_json(text)
                    yield Record(line, parse(body), at, None, body)
                except InvalidBody as error:
                    yield Record(line, None, at, error)
