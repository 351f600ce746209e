"""The register of erasures of a folder of backups: every row that was ever erased, as far as any
backup there knew.

It is independent of manifests, trims and clocks: entries are added, and never removed, while
backups come and go. Each backup adds all that its store knows before it reads a cell, and what its
logs say before it has a manifest. A restore erases again what the register has and the backup has
not.

    line 1     the name and the version of the format
    any other  one erasure as JSON, a space, and the CRC-32 of the JSON in hexadecimal digits

There are two copies, `erasures` and `erasures.copy`; each is replaced as a whole, the content on
disk before the name. A manifest records the length of the register and its SHA-256: so one that is
older than the backup, or that somebody has replaced, is found out. One good copy is enough, and the
next backup mends the other one. While none is good, nothing is restored and nothing is backed up.

Crash points: a kill between the two copies leaves one that is longer. The longer one counts, and
the next backup makes them equal.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from cellfeed.store.backups.manifest import BackedRegister
from cellfeed.store.backups.synced import write_synced
from cellfeed.store.errors import DataDamaged, StorageUnavailable

FILES: Final = ("erasures", "erasures.copy")
_HEAD: Final = b"cellfeed erasures 1\n"

NOT_DONE: Final = -1
"""The added_id of an erasure that is asked for and not done yet."""


class Erasure(msgspec.Struct, frozen=True):
    """``added_id``: of the cell that tells of it. ``at_us``: when it was done, or asked for."""

    datastore: str
    shards: int
    shard: int
    row_key: str
    added_id: int
    at_us: int

    @property
    def key(self) -> tuple[object, ...]:
        """Two entries with the same key tell of the same erasure."""
        return (
            self.datastore,
            self.shards,
            self.row_key,
            self.added_id,
            self.at_us if self.added_id == NOT_DONE else 0,
        )


class Register:
    """See the module. ``folder``: the folder of backups; changed under its lock alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._paths = [folder / name for name in FILES]

    def is_there(self) -> bool:
        """Whether there is a copy of it, good or not."""
        return any(path.exists() for path in self._paths)

    def entries(self, recorded: Iterable[tuple[str, BackedRegister | None]] = ()) -> list[Erasure]:
        """All of it, in order. ``recorded``: by the name of a backup what its manifest says of the
        register. Raises DataDamaged when no copy is good, or when it is not the one that these
        backups have recorded."""
        content = self._content()
        for backup, told in recorded:
            if (
                told is not None
                and sha256((content or b"")[: told.bytes]).hexdigest() != told.sha256
            ):
                state = (
                    "is missing"
                    if content is None
                    else "is not the one that the backup was taken with, or an older copy of it"
                )
                raise DataDamaged(
                    f"the register of erasures {self._paths[0]} {state} (backup {backup} records"
                    f" {told.bytes} bytes): rows that were erased would come back. Bring"
                    f" {' and '.join(FILES)} back from a copy of the folder"
                )
        return _decoded(content, self._paths[0]) if content is not None else []

    def add(self, erasures: Iterable[Erasure]) -> BackedRegister:
        """Adds those that it does not have, and makes both copies equal; what a manifest records.
        Raises DataDamaged."""
        content = self._content()
        present = (
            {each.key for each in _decoded(content, self._paths[0])}
            if content is not None
            else set()
        )
        lines = [_HEAD if content is None else content]
        for each in erasures:
            if each.key not in present:
                present.add(each.key)
                lines.append(_line(each))
        wanted = b"".join(lines)
        for path in self._paths:
            if _read(path) != wanted:
                write_synced(path, wanted)
        return BackedRegister(len(wanted), sha256(wanted).hexdigest())

    def _content(self) -> bytes | None:
        """The longest good copy; None where there is none at all."""
        good, wrong = list[bytes](), list[str]()
        for path in self._paths:
            content = _read(path)
            if content is None:
                continue
            try:
                _decoded(content, path)
            except DataDamaged as error:
                wrong.append(str(error))
            else:
                good.append(content)
        if not good and wrong:
            raise DataDamaged(
                f"the register of erasures is damaged: {'; '.join(wrong)}. Bring {FILES[0]} back"
                f" from a copy of {self._folder}; or, if there is none and the datastore is there,"
                " move both files away and take a full backup: from that one on restores are"
                " possible again"
            )
        longest = max(good, key=len, default=None)
        if any(not (longest or b"").startswith(each) for each in good):
            raise DataDamaged(
                f"{' and '.join(map(str, self._paths))} are two registers of erasures that differ:"
                " bring the right one back from a copy of the folder"
            )
        return longest


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageUnavailable(f"{path}: {error.strerror}") from error


def _line(erasure: Erasure) -> bytes:
    content = msgspec.json.encode(erasure)
    return b"%s %08x\n" % (content, crc32(content))


def _decoded(content: bytes, path: Path) -> list[Erasure]:
    """Raises DataDamaged."""
    if not content.startswith(_HEAD) or not content.endswith(b"\n"):
        raise DataDamaged(f"{path} is no register of erasures, or its end is missing")
    return [
        _erasure(line, path, number)
        for number, line in enumerate(content[len(_HEAD) :].splitlines(), 2)
    ]


def _erasure(line: bytes, path: Path, number: int) -> Erasure:
    content, _, checksum = line.rpartition(b" ")
    if checksum != b"%08x" % crc32(content):
        raise DataDamaged(
            f"{path}: line {number} is damaged: it does not have the checksum that it was written"
            " with"
        )
    try:
        return msgspec.json.decode(content, type=Erasure)
    except msgspec.MsgspecError as error:
        raise DataDamaged(f"{path}: line {number} is no erasure: {error}") from error
