"""A line of JSON with its own checksum: the form of a backup's manifest and of its marker.

The file has two lines: the JSON, and the SHA-256 of that line in hexadecimal digits. A file that is
cut short or changed is damaged, never something else.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, TypeVar

import msgspec

from cellfeed.store.errors import DataDamaged, ProtectData

PLAIN: Final = 2
ENCRYPTED: Final = 3

FORMATS = (1, PLAIN, ENCRYPTED)
"""The formats that this program reads. It writes the last two.

1: backups in the order of the clock, without marker, sequence, witnesses and register. 2: with all
of these. A program that reads format 1 alone would order these backups wrongly and pass over the
register, so it must refuse them. 3: the same, encrypted (:mod:`cellfeed.store.backups.encryption`).
"""

T = TypeVar("T", bound=msgspec.Struct)


def seal(content: msgspec.Struct) -> bytes:
    """The file's content."""
    line = msgspec.json.encode(content)
    return line + b"\n" + sha256(line).hexdigest().encode() + b"\n"


def unseal(content: bytes, kind: type[T], what: str) -> T:
    """Raises DataDamaged; ProtectData for a format that this program does not read. ``what``: the
    file's name in errors."""
    line, _, rest = content.partition(b"\n")
    if rest != sha256(line).hexdigest().encode() + b"\n":
        raise DataDamaged(f"{what} is damaged: its content differs from its SHA-256")
    try:
        version = msgspec.json.decode(line, type=dict[str, object]).get("format_version")
        if version not in FORMATS:
            raise ProtectData(
                f"{what}: the backup is of format {version}; this program reads formats up to"
                f" {FORMATS[-1]}: use the program that made it, or a newer one"
            )
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"{what} is damaged: {error}") from error
