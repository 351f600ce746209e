"""The id of an Avro schema: derived from its meaning, not handed out.

An id is the first four bytes of the SHA-256 of the schema's JSON, as a big-endian integer without
its sign bit. That JSON has sorted keys, no spaces and no ``doc``. So every process, machine and
restart gives a schema the same id without asking anybody. Two schemas that read bytes differently
have different ids, and a better explanation of a field changes nothing.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any


def schema_id_of(schema: object) -> int:
    """The id of a parsed Avro schema: positive and below 2**31. See the module's head for how it is
    derived."""
    return (
        int.from_bytes(
            hashlib.sha256(meaning_of(schema).encode(errors="surrogatepass")).digest()[:4], "big"
        )
        & 0x7FFFFFFF
        or 1
    )


def meaning_of(schema: object) -> str:
    """The text that ids follow from: the same for two parsed Avro schemas that differ in
    explanations only."""
    return json.dumps(
        _without_docs(schema), sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )


def _without_docs(schema: Any) -> Any:
    if isinstance(schema, dict):
        # Only an object with a type has documentation; in a default value "doc" is data.
        return {
            name: _without_docs(value)
            for name, value in schema.items()
            if name != "doc" or "type" not in schema
        }
    return [_without_docs(item) for item in schema] if isinstance(schema, list) else schema
