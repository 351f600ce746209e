"""The archive of one cluster's binlog in a folder of backups, for one history.

    DIR/binlogs-3f9a…/          named by datastore, history and cluster: so the next process
                                finds it
        cellfeed-binlogs        the marker, written first: whose archive it is
        lock                    held by the process that archives
        piece-000000000000, …   see :mod:`cellfeed.store.backups.binlogs.piece`
        reached                 how far it is; replaced as a whole, at the latest every ten seconds

Only files of these names in a folder with a valid marker are ever removed.

Crash points: a kill between a piece and ``reached`` leaves a piece that ``reached`` does not name
yet. It follows the one before it by its SHA-256, and counts. Pieces go from the front, when backups
have made them superfluous; the last one stays.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Final

import msgspec

from cellfeed.store.backups.binlogs.piece import Piece, PieceHead, decode_piece, encode_piece
from cellfeed.store.backups.binlogs.transactions import Transaction
from cellfeed.store.backups.encryption import Recipients
from cellfeed.store.backups.places.contract import Entry, Place
from cellfeed.store.backups.sealed import PLAIN, seal, unseal
from cellfeed.store.errors import DataDamaged, ProtectData, StorageUnavailable
from cellfeed.store.histories import NO_HISTORY, History

MARKER: Final = "cellfeed-binlogs"
REACHED: Final = "reached"

_PIECE: Final = re.compile(r"piece-(\d{12})")
_STAGED: Final = re.compile(rf"\.(piece-\d{{12}}|{REACHED}|{MARKER})\.staged")


class ArchiveMarker(msgspec.Struct, frozen=True):
    """``archive_id``: random; every piece repeats it."""

    format_version: int
    archive_id: str
    name: str
    datastore: str
    shards: int
    cluster: str
    created_at_us: int
    history: History = NO_HISTORY


class Reached(msgspec.Struct, frozen=True):
    """``number``, ``sha256``: of the last piece; -1 and empty before the first. ``position``: the
    end of the archive, as GTIDs. ``at_us``: all that was acknowledged up to then, by the master's
    clock, is archived. ``since_us``: as far back as that holds. ``gap``: why not further."""

    format_version: int
    archive_id: str
    number: int
    sha256: str
    position: str
    at_us: int
    since_us: int
    gap: str = ""


class BinlogArchive:
    """See the module. Raises StorageUnavailable where the place fails."""

    def __init__(self, place: Place, marker: ArchiveMarker) -> None:
        self.place = place
        self.marker = marker

    def __str__(self) -> str:
        return f"{self.place} (binlogs of cluster {self.marker.cluster!r})"

    def numbers(self) -> list[int]:
        """Of its pieces, in order."""
        return sorted(
            int(found[1])
            for each in _entries(self.place)
            if each.is_file and (found := _PIECE.fullmatch(each.name))
        )

    def read(self, number: int) -> Piece:
        """A piece. Raises DataDamaged; ProtectData for one of another archive."""
        name = _piece_name(number)
        what = f"{self.place}/{name}"
        try:
            piece = decode_piece(self.place.read(name), what)
        except OSError as error:
            raise DataDamaged(f"{what}: {error.strerror}") from error
        if piece.head.archive_id != self.marker.archive_id:
            raise ProtectData(
                f"{what} is of archive {piece.head.archive_id}, this one is"
                f" {self.marker.archive_id}: the binlog of another cluster or of another history."
                " Move it out of the folder"
            )
        if piece.head.number != number:
            raise DataDamaged(f"{what} is piece {piece.head.number}: it must keep its name")
        return piece

    def pieces(self) -> Iterator[Piece]:
        """All of them in order. Raises DataDamaged for one that is missing or damaged."""
        before: Piece | None = None
        reached = self.reached()
        for number in self.numbers():
            if before is not None and number != before.head.number + 1:
                raise DataDamaged(f"{self}: piece {before.head.number + 1} is missing")
            piece = self.read(number)
            if before is not None and piece.head.before != before.sha256:
                raise DataDamaged(
                    f"{self}: piece {number} follows another piece {before.head.number} than the"
                    " one that is there"
                )
            if reached.number == number and reached.sha256 != piece.sha256:
                raise DataDamaged(f"{self}: piece {number} is another one than was archived")
            yield piece
            before = piece
        last = -1 if before is None else before.head.number
        if last < reached.number:
            raise DataDamaged(f"{self}: piece {last + 1} is missing")

    def reached(self) -> Reached:
        """How far it is; by its pieces where nothing else says so. Raises DataDamaged."""
        what = f"{self.place}/{REACHED}"
        try:
            found = unseal(self.place.read(REACHED), Reached, what)
        except FileNotFoundError:
            return self._by_pieces()
        except OSError as error:
            raise StorageUnavailable(f"{what}: {error.strerror}") from error
        except DataDamaged as error:
            raise DataDamaged(
                f"{error}. Remove that file: how far the archive is follows from its pieces"
            ) from error
        if found.archive_id != self.marker.archive_id:
            raise ProtectData(
                f"{what} is of archive {found.archive_id}, this one is {self.marker.archive_id}:"
                " remove that file"
            )
        return found

    def append(
        self, reached: Reached, head: PieceHead, what: Sequence[Transaction], to: Recipients | None
    ) -> Reached:
        """Adds a piece behind the last one; returns ``reached`` with that piece."""
        content = encode_piece(
            msgspec.structs.replace(
                head,
                archive_id=self.marker.archive_id,
                number=reached.number + 1,
                before=reached.sha256,
            ),
            what,
            to,
        )
        self._write(_piece_name(reached.number + 1), content)
        return msgspec.structs.replace(
            reached,
            number=reached.number + 1,
            sha256=sha256(content).hexdigest(),
            position=head.end,
        )

    def say(self, reached: Reached) -> None:
        """Writes down how far it is."""
        self._write(REACHED, seal(reached))

    def remove_pieces(self, numbers: Sequence[int]) -> None:
        """In order, so a kill leaves the rest of an archive that begins later."""
        for number in sorted(numbers):
            self._remove(_piece_name(number))

    def remove_all(self) -> None:
        """The whole archive, its marker last."""
        for each in _entries(self.place):
            if each.is_file and (
                each.name in (REACHED, "lock")
                or _PIECE.fullmatch(each.name)
                or _STAGED.fullmatch(each.name)
            ):
                self._remove(each.name)
        self._remove(MARKER)
        self.place.remove_if_empty()

    def size_bytes(self) -> int:
        """Of its pieces, as far as the place says."""
        return sum(self.place.size(_piece_name(number)) or 0 for number in self.numbers())

    def _by_pieces(self) -> Reached:
        numbers = self.numbers()
        if not numbers:
            return Reached(PLAIN, self.marker.archive_id, -1, "", "", 0, 0)
        piece = self.read(numbers[-1])
        head = piece.head
        return Reached(
            PLAIN,
            head.archive_id,
            head.number,
            piece.sha256,
            head.end,
            head.since_us,
            head.since_us,
            head.gap,
        )

    def _write(self, name: str, content: bytes) -> None:
        try:
            self.place.write(name, content)
        except OSError as error:
            raise StorageUnavailable(f"{self.place}/{name}: {error.strerror}") from error

    def _remove(self, name: str) -> None:
        try:
            self.place.remove(name)
        except OSError as error:
            raise StorageUnavailable(f"{self.place}/{name}: {error.strerror}") from error


def _entries(place: Place) -> list[Entry]:
    try:
        return place.entries()
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageUnavailable(f"{place}: {error.strerror}") from error


def _piece_name(number: int) -> str:
    return f"piece-{number:012d}"
