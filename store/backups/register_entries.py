"""The entries of a register of erasures (:mod:`cellfeed.store.backups.register`), and the lines
that they are written as: JSON, a space, and the CRC-32 of the JSON in hexadecimal digits.

In a folder of encrypted backups a line is the addition of one backup: the erasures without their
row keys, and these as an age message.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from typing import Final
from zlib import crc32

import msgspec

from cellfeed.store.backups.encryption import Identities, Recipients, identity_needed
from cellfeed.store.errors import DataDamaged

HEAD: Final = b"cellfeed erasures 1\n"
ENCRYPTED_HEAD: Final = b"cellfeed erasures encrypted 1\n"
"""First lines of the two kinds."""

NOT_DONE: Final = -1
"""The added_id of an erasure that is asked for and not done yet."""


class Erasure(msgspec.Struct, frozen=True):
    """``added_id``: of the cell that marks it. ``at_us``: when it was done, or asked for."""

    datastore: str
    shards: int
    shard: int
    row_key: str
    added_id: int
    at_us: int

    @property
    def key(self) -> tuple[object, ...]:
        """Two entries with the same key are of the same erasure."""
        return (
            self.datastore,
            self.shards,
            self.row_key,
            self.added_id,
            self.at_us if self.added_id == NOT_DONE else 0,
        )

    @property
    def place(self) -> tuple[object, ...]:
        """Two entries of erasures that are done have different ones unless they are of the same
        erasure; it needs no row key."""
        return self.datastore, self.shards, self.shard, self.added_id, self.at_us


class EncryptedErasures(msgspec.Struct, frozen=True):
    """The addition of one backup. ``erasures``: without row keys; ``row_keys``: an age message to
    ``recipients``, in base64, of 16 bytes for each of them, in order."""

    erasures: list[Erasure]
    recipients: list[str]
    row_keys: str


_KINDS: Final[Mapping[bytes, type[Erasure] | type[EncryptedErasures]]] = {
    HEAD: Erasure,
    ENCRYPTED_HEAD: EncryptedErasures,
}
_KEY_BYTES: Final = 16


def encrypted(erasures: Sequence[Erasure], recipients: Recipients) -> EncryptedErasures:
    """These as one entry."""
    row_keys = recipients.encrypt(b"".join(bytes.fromhex(each.row_key) for each in erasures))
    without = [msgspec.structs.replace(each, row_key="") for each in erasures]
    return EncryptedErasures(without, list(recipients.keys), b64encode(row_keys).decode())


def decrypted(entry: EncryptedErasures, identities: Identities | None, what: str) -> list[Erasure]:
    """The erasures of an entry. Raises InvalidRequest where no identity fits, DataDamaged."""
    if identities is None:
        raise identity_needed(what, entry.recipients)
    identities.refuse_unless_fitting(what, entry.recipients)
    try:
        message = b64decode(entry.row_keys, validate=True)
    except NotBase64 as error:
        raise DataDamaged(f"{what}: its row keys are damaged: {error}") from error
    row_keys = identities.decrypt(message, what)
    if len(row_keys) != _KEY_BYTES * len(entry.erasures):
        raise DataDamaged(
            f"{what}: {len(row_keys)} bytes of row keys for {len(entry.erasures)} erasures"
        )
    return [
        msgspec.structs.replace(each, row_key=row_keys[at : at + _KEY_BYTES].hex())
        for each, at in zip(entry.erasures, range(0, len(row_keys), _KEY_BYTES), strict=True)
    ]


def line_of(entry: Erasure | EncryptedErasures) -> bytes:
    """An entry as it is written."""
    content = msgspec.json.encode(entry)
    return b"%s %08x\n" % (content, crc32(content))


def entries_of(content: bytes, path: str) -> list[Erasure | EncryptedErasures]:
    """All entries of a register. Raises DataDamaged."""
    head, _, rest = content.partition(b"\n")
    kind = _KINDS.get(head + b"\n")
    if kind is None or not content.endswith(b"\n"):
        raise DataDamaged(f"{path} is no register of erasures, or its end is missing")
    return [_entry(line, kind, path, number) for number, line in enumerate(rest.splitlines(), 2)]


def _entry(
    line: bytes, kind: type[Erasure] | type[EncryptedErasures], path: str, number: int
) -> Erasure | EncryptedErasures:
    content, _, checksum = line.rpartition(b" ")
    if checksum != b"%08x" % crc32(content):
        raise DataDamaged(
            f"{path}: line {number} is damaged: it does not have the checksum that it was written"
            " with"
        )
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"{path}: line {number} is no erasure: {error}") from error
