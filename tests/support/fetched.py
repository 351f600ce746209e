"""Answers to Fetch, read back from their bytes by the schema library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kio.index import load_response_schema
from kio.serial import entity_reader

from cellfeed.bridge.gateway.wire.protocol import is_flexible


def fetched(answer: Sequence[bytes], version: int) -> Any:
    """The response in a frame that is in pieces."""
    frame = b"".join(answer)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    schema = load_response_schema(1, version)
    at = 8 + is_flexible(1, version)
    found, size = entity_reader(schema)(frame, at)
    assert at + size == len(frame)
    return found
