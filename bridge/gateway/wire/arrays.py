"""Arrays of a response that are written by hand, or were kept: kio takes 7 µs for an element, and a
topic may have 65,536 partitions.

kio writes the rest of the entity, with an empty array where the written one belongs.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from kio.serial import entity_writer

from cellfeed.bridge.events.varints import uvarint
from cellfeed.bridge.gateway.wire.protocol import build


def count(elements: int, flexible: bool) -> bytes:
    """The length of an array before its elements; -1 for none at all."""
    return uvarint(elements + 1) if flexible else struct.pack(">i", elements)


def entity_with_array(
    schema: type[Any],
    values: Mapping[str, Any],
    elements: Sequence[bytes],
    behind: int,
) -> bytes:
    """The entity of ``values``, whose array is empty there, with ``elements`` in it. Behind the
    array ``behind`` bytes follow: the fields after it, and the tagged fields of a flexible
    version."""
    flexible = bool(schema.__flexible__)
    buffer = BytesIO()
    entity_writer(schema)(buffer, build(schema, values))
    written = buffer.getvalue()
    end = len(written) - behind
    start = end - len(count(0, flexible))
    return b"".join((written[:start], count(len(elements), flexible), *elements, written[end:]))
