"""A row key out of the values of a record, the same in every program that follows these rules.

The name of a record is its chosen values joined by ``|``; in each value a backslash becomes two and
a ``|`` gets one before it, so that different values never make the same name. Text counts as it
stands, anything else as canonical JSON. The row key is the UUIDv5 (RFC 9562 §5.5) of that name in
:data:`ROW_KEY_NAMESPACE`. Frozen by golden vectors in
``tests/unit/cellfeed/test_load_row_keys.py``: another rule would load every file a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha1
from typing import Any, Final
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from cellfeed.store.errors import InvalidRowKey

ROW_KEY_NAMESPACE: Final = uuid5(NAMESPACE_URL, "urn:cellfeed:row-key")
"""``f0d9efc5-7322-56b1-b18b-69873e69429d``."""

_NAMESPACE_BYTES: Final = ROW_KEY_NAMESPACE.bytes
_encode: Final = msgspec.json.Encoder(order="deterministic").encode


def record_name(fields: Mapping[str, Any], names: Sequence[str]) -> str:
    """The name of a record by the fields ``names``. Raises InvalidRowKey when one is missing or
    null."""
    texts = [
        value if type(value := fields.get(name)) is str else _text(fields, name) for name in names
    ]
    joined = "|".join(texts)
    if "\\" not in joined and joined.count("|") == len(texts) - 1:
        return joined  # nothing to escape, as nearly always
    return "|".join(map(_escaped, texts))


def row_key_from(fields: Mapping[str, Any], names: Sequence[str]) -> UUID:
    """The UUIDv5 row key of a record by the fields ``names``. Raises InvalidRowKey when one is
    missing or null."""
    return UUID(bytes=row_key_bytes(record_name(fields, names)))


def row_key_bytes(name: str) -> bytes:
    """The 16 bytes of the row key of a name: :func:`uuid.uuid5`, at a third of its cost."""
    digest = sha1(_NAMESPACE_BYTES + name.encode(), usedforsecurity=False).digest()
    return b"%b%c%b%c%b" % (
        digest[:6],
        digest[6] & 0x0F | 0x50,
        digest[7:8],
        digest[8] & 0x3F | 0x80,
        digest[9:16],
    )


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if value is None:
        raise InvalidRowKey(
            f"field {name!r}, part of the row key, is {'null' if name in fields else 'missing'}"
        )
    return value if isinstance(value, str) else _encode(value).decode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("|", "\\|")
