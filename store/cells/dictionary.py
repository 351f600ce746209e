"""A dictionary: bytes that are trained once, never changed, and kept for as long as a body needs
them to be read.

Its id is the first four bytes of the SHA-256 of its content. So the same id means the same content
in every process, cluster and restored store. (Two contents may have one id, a chance of one in four
billion for a pair. The second one is then refused when it is added; nothing worse happens.)
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Final

import msgspec

from cellfeed.store.errors import InvalidRequest

ID_BYTES: Final = 4


@dataclass(frozen=True)
class Dictionary:
    """``content`` was trained by zstd, for bodies of ``column_name``, from ``samples`` of them."""

    column_name: str
    content: bytes
    trained_at_us: int
    samples: int

    @cached_property
    def sha256(self) -> bytes:
        return sha256(self.content).digest()

    @property
    def dictionary_id(self) -> int:
        return id_of(self.sha256)

    @property
    def name(self) -> str:
        return name_of(self.dictionary_id)


def id_of(digest: bytes) -> int:
    """The id of the content with this SHA-256."""
    return int.from_bytes(digest[:ID_BYTES])


def name_of(dictionary_id: int) -> str:
    """The id as operators see it: eight hexadecimal digits."""
    return f"{dictionary_id:08x}"


class _Exported(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    column_name: str
    trained_at_us: int
    samples: int
    sha256: str
    content: str


def to_line(dictionary: Dictionary) -> bytes:
    """One line of an export: JSON, the content in base64."""
    fields = (
        dictionary.name,
        dictionary.column_name,
        dictionary.trained_at_us,
        dictionary.samples,
        dictionary.sha256.hex(),
    )
    return msgspec.json.encode(_Exported(*fields, b64encode(dictionary.content).decode())) + b"\n"


def from_line(line: bytes) -> Dictionary:
    """The dictionary of a line that :func:`to_line` wrote. Raises InvalidRequest when it is not, or
    its content is another one."""
    try:
        exported = msgspec.json.decode(line, type=_Exported)
        found = Dictionary(
            exported.column_name,
            b64decode(exported.content, validate=True),
            exported.trained_at_us,
            exported.samples,
        )
    except ValueError as error:  # msgspec's errors are ValueErrors as well
        raise InvalidRequest(f"a line of the file is no exported dictionary: {error}") from None
    if (found.name, found.sha256.hex()) != (exported.name, exported.sha256):
        raise InvalidRequest(
            f"dictionary {exported.name} in the file is damaged: its content is not the one that"
            " was exported"
        )
    return found
