"""The description of a backup: ``manifest.json``, written last. A folder without one is no backup,
but the rest of one that was not finished.

The file is sealed (:mod:`cellfeed.store.backups.sealed`). It names every other file with its length
and SHA-256, so nothing of a backup can be lost, cut short or changed unnoticed. ``onto`` names the
backup that this one is an increment of: of each shard it holds the cells behind that one.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from cellfeed.store.backups.sealed import seal, unseal
from cellfeed.store.histories import NO_HISTORY, History


class BackedFile(msgspec.Struct, frozen=True):
    """A file of the backup; ``sha256`` in hexadecimal digits."""

    name: str
    bytes: int
    sha256: str


class Segment(msgspec.Struct, frozen=True):
    """A piece of a shard's log, ids from ``from_id`` up to, not including, ``below_id``: ``cells``
    cells in ``bytes`` bytes of ``file`` from ``offset`` on. ``digest``: the product's own
    (:mod:`cellfeed.store.cells.digest`) over these cells."""

    shard: int
    from_id: int
    below_id: int
    cells: int
    digest: str
    file: str
    offset: int
    bytes: int


class BackedLog(msgspec.Struct, frozen=True):
    """A shard's log as it was: the ends, the time of its last cell, and
    ``(leader epoch, first added_id)`` of each epoch that begins at or below the watermark.
    ``witness``: of its last cell (:func:`cellfeed.store.backups.base.witness_of`); empty where
    nobody knows it."""

    shard: int
    log_start: int
    watermark: int
    last_created_at_us: int
    epochs: list[tuple[int, int]]
    witness: str = ""


class BackedTurn(msgspec.Struct, frozen=True):
    """That puts of a column took the dictionary of this SHA-256."""

    column_name: str
    turn: int
    sha256: str


class BackedErasure(msgspec.Struct, frozen=True):
    """The erasure of a row, which a cell of the backup marks. ``row_key`` in hexadecimal digits.
    ``created_at_us``: of that cell; 0 in a backup of an older program."""

    shard: int
    added_id: int
    row_key: str
    created_at_us: int = 0


class BackedRegister(msgspec.Struct, frozen=True):
    """How much of the folder's register of erasures there was
    (:mod:`cellfeed.store.backups.register`): its first ``bytes`` have this SHA-256 for ever."""

    bytes: int
    sha256: str


class Reader(msgspec.Struct, frozen=True):
    """Somebody who has read a shard up to ``location``, the next id to read, as known by
    ``source``."""

    name: str
    topic: str
    shard: int
    location: int
    leader_epoch: int = -1
    source: str = ""

    def __str__(self) -> str:
        return (
            f"{self.source} {self.name} has come, in topic {self.topic}, to"
            f" {self.shard}:{self.location}"
        )


class Manifest(msgspec.Struct, frozen=True):
    """See the module. ``owners``: the shard map of a datastore on clusters (cluster name to ranges
    of shards). ``readers``: offsets that were kept outside of the datastore when the backup was
    begun. ``erasures``: those that its cells mark, for restores of older backups; None in one of an
    older program. ``identity``, ``sequence``: as the marker has them; of format 1 there is none,
    and it comes before all others. ``register``: None in format 1. ``history``: from which it was
    taken (:mod:`cellfeed.store.histories`); empty in one of an older program. ``recipients``: whom
    it is encrypted to, none of a plain one. ``private``: the encrypted fields of the manifest
    (:mod:`cellfeed.store.backups.private_part`); empty in a plain one, and once it was
    decrypted."""

    format_version: int
    name: str
    datastore: str
    shards: int
    created_at_us: int
    onto: str | None
    onto_sha256: str | None
    files: list[BackedFile]
    segments: list[Segment]
    logs: list[BackedLog]
    columns: list[str]
    turns: list[BackedTurn]
    readers: list[Reader]
    state_revision: int
    owners: dict[str, list[tuple[int, int]]] = {}
    erasures: list[BackedErasure] | None = None
    identity: str = ""
    sequence: int = 0
    register: BackedRegister | None = None
    history: History = NO_HISTORY
    recipients: list[str] = []
    private: str = ""

    @property
    def is_encrypted(self) -> bool:
        return bool(self.recipients)

    @property
    def order(self) -> tuple[int, int, str]:
        """The order of backups in a folder. The clock decides only between those of format 1, which
        have no sequence."""
        return self.sequence, self.created_at_us, self.name

    @property
    def cells(self) -> int:
        """Those that this backup itself holds."""
        return sum(segment.cells for segment in self.segments)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)


def encode_manifest(manifest: Manifest) -> bytes:
    """The file's content."""
    return seal(manifest)


def digest_of_manifest(content: bytes) -> str:
    """The digest by which an increment names the backup below it."""
    return sha256(content).hexdigest()


def decode_manifest(content: bytes, name: str) -> Manifest:
    """Raises DataDamaged; ProtectData for a format that this program does not know."""
    return unseal(content, Manifest, f"{name}: the manifest")
