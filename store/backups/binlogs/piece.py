"""A file of an archive of binlogs: some transactions in the order of the binlog.

    line 1, 2   the head, sealed (:mod:`cellfeed.store.backups.sealed`). It has the length and the
                SHA-256 of the rest.
    the rest    the transactions as MessagePack; in an encrypted archive an age message of it.

A head names its archive, its number, and the SHA-256 of the whole piece before it. So a piece that
is missing, damaged, changed, or of another archive is found.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import msgspec

from cellfeed.store.backups.binlogs.transactions import Transaction
from cellfeed.store.backups.encryption import Identities, Recipients, identity_needed
from cellfeed.store.backups.sealed import ENCRYPTED, PLAIN, seal, unseal
from cellfeed.store.errors import DataDamaged


class PieceHead(msgspec.Struct, frozen=True):
    """``archive_id``: of the archive that it belongs to. ``before``: SHA-256 of the piece before,
    empty for the first. ``server``: whose binlog it was read from. ``begin``, ``end``: positions in
    it (GTIDs). ``ended_us``: by that server's clock; every transaction was committed before.
    ``ends``: by shard, behind the highest id of a cell in it. ``since_us``, ``gap``: as far back as
    the archive has no gap, and why not further."""

    format_version: int
    archive_id: str
    number: int
    before: str
    server: str
    begin: str
    end: str
    ended_us: int
    since_us: int
    transactions: int
    ends: dict[int, int]
    bytes: int
    sha256: str
    recipients: list[str] = []
    gap: str = ""


class Piece(msgspec.Struct, frozen=True):
    """``sha256``: of the whole file; ``content``: the rest, as it lies there."""

    head: PieceHead
    sha256: str
    content: bytes

    def transactions(self, identities: Identities | None, what: str) -> list[Transaction]:
        """Raises DataDamaged; InvalidRequest where it is encrypted and no identity fits."""
        content = self.content
        if self.head.recipients:
            if identities is None:
                raise identity_needed(what, self.head.recipients)
            identities.refuse_unless_fitting(what, self.head.recipients)
            content = identities.decrypt(content, what)
        try:
            found = msgspec.msgpack.decode(content, type=list[Transaction])
        except msgspec.MsgspecError as error:
            raise DataDamaged(f"{what} holds no transactions: {error}") from error
        if len(found) != self.head.transactions:
            raise DataDamaged(
                f"{what}: it holds {len(found)} transactions, not {self.head.transactions}"
            )
        return found


def encode_piece(
    head: PieceHead, transactions: Sequence[Transaction], recipients: Recipients | None
) -> bytes:
    """The file's content. The fields of ``head`` about the rest are filled in here."""
    rest = msgspec.msgpack.encode(transactions)
    if recipients is not None:
        rest = recipients.encrypt(rest)
    ends: dict[int, int] = {}
    for transaction in transactions:
        for each in transaction.cells:
            ends[each.shard] = max(ends.get(each.shard, 0), each.cell.added_id + 1)
    filled = msgspec.structs.replace(
        head,
        format_version=PLAIN if recipients is None else ENCRYPTED,
        transactions=len(transactions),
        ends=ends,
        bytes=len(rest),
        sha256=sha256(rest).hexdigest(),
        recipients=[] if recipients is None else list(recipients.keys),
    )
    return seal(filled) + rest


def decode_piece(content: bytes, what: str) -> Piece:
    """Raises DataDamaged; ProtectData for a format that this program does not know."""
    line, _, left = content.partition(b"\n")
    checksum, _, rest = left.partition(b"\n")
    head = unseal(line + b"\n" + checksum + b"\n", PieceHead, what)
    if (len(rest), sha256(rest).hexdigest()) != (head.bytes, head.sha256):
        raise DataDamaged(
            f"{what} is damaged: {len(rest)} bytes of transactions, not the {head.bytes} that were"
            " written (SHA-256)"
        )
    return Piece(head, sha256(content).hexdigest(), rest)
