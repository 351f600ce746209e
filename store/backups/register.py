"""The register of erasures of a folder of backups: every row that was ever erased, as far as any
backup there knew.

It is independent of manifests, trims and clocks: entries are added, and never removed, while
backups come and go. Each backup adds all that its store knows before it reads a cell, and the
erasures in its logs before it has a manifest. A restore erases again the rows that the register has
and the backup has not.

    line 1     the name and the version of the format.
    any other  one erasure as JSON, a space, and the CRC-32 of the JSON in hexadecimal digits.

In a folder of encrypted backups (:mod:`cellfeed.store.backups.encryption`) the first line says so,
and each later one has the additions of one backup: the erasures without their row keys, and these
as an age message. So the next backup knows the entries by shards, ids and moments, and needs no
identity. Some entries come twice: two sources know other moments of one erasure, and one that is
not done yet has no id. Readers take the first.

There are two copies, `erasures` and `erasures.copy`; each is replaced as a whole, the content on
disk before the name. A manifest records the length of the register and its SHA-256: so one that is
older than the backup, or that somebody has replaced, is found out. One good copy is enough, and the
next backup mends the other one. While none is good, nothing is restored and nothing is backed up.

Crash points: a kill between the two copies leaves one that is longer. The longer one counts, and
the next backup makes them equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from cellfeed.store.backups.encryption import Identities, Recipients
from cellfeed.store.backups.manifest import BackedRegister
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.backups.places.local import LocalPlace
from cellfeed.store.backups.register_entries import (
    ENCRYPTED_HEAD,
    HEAD,
    NOT_DONE,
    EncryptedErasures,
    Erasure,
    decrypted,
    encrypted,
    entries_of,
    line_of,
)
from cellfeed.store.errors import DataDamaged, StorageUnavailable

FILES: Final = ("erasures", "erasures.copy")


class Register:
    """See the module. ``folder``: the folder of backups; changed under its lock alone.
    ``recipients``: whom a new entry is encrypted to; ``identities``: the keys that decrypt
    entries."""

    def __init__(
        self,
        folder: Path | Place,
        recipients: Recipients | None = None,
        identities: Identities | None = None,
    ) -> None:
        self._place = LocalPlace(folder) if isinstance(folder, Path) else folder
        self._recipients = recipients
        self._identities = identities
        self._reported: set[tuple[object, ...]] = set()

    def is_there(self) -> bool:
        """Whether there is a copy of it, good or not."""
        return any(self._read(name) is not None for name in FILES)

    def is_encrypted(self) -> bool | None:
        """Whether it is one of encrypted backups; None where there is none. Raises DataDamaged."""
        content = self._content(self._copies())
        return None if content is None else content.startswith(ENCRYPTED_HEAD)

    def entries(self, recorded: Iterable[tuple[str, BackedRegister | None]] = ()) -> list[Erasure]:
        """All of it, in order. ``recorded``: as in :meth:`check`. Raises DataDamaged, and
        InvalidRequest where an entry is encrypted and no identity fits."""
        content = self.check(recorded)
        found: dict[tuple[object, ...], Erasure] = {}
        for number, line in enumerate(
            entries_of(content, self._named(FILES[0])) if content else [], 2
        ):
            for each in (
                [line]
                if isinstance(line, Erasure)
                else decrypted(line, self._identities, f"{self._named(FILES[0])}, line {number}")
            ):
                found.setdefault(each.key, each)
        return list(found.values())

    def check(self, recorded: Iterable[tuple[str, BackedRegister | None]] = ()) -> bytes | None:
        """Its content, which needs no identity; None where there is no register. ``recorded``: by
        the name of a backup the register as its manifest records it. Raises DataDamaged when no
        copy is good, or when it is not the one that these backups have recorded."""
        content = self._content(self._copies())
        for backup, recorded_as in recorded:
            if (
                recorded_as is not None
                and sha256((content or b"")[: recorded_as.bytes]).hexdigest() != recorded_as.sha256
            ):
                state = (
                    "is missing"
                    if content is None
                    else "is not the one that the backup was taken with, or an older copy of it"
                )
                raise DataDamaged(
                    f"the register of erasures {self._named(FILES[0])} {state} (backup {backup}"
                    f" records {recorded_as.bytes} bytes): rows that were erased would come back."
                    f" Bring {' and '.join(FILES)} back from a copy of the folder"
                )
        return content

    def add(self, erasures: Iterable[Erasure]) -> BackedRegister:
        """Adds those that it does not have, and makes both copies equal; returns the register's
        record for a manifest. Raises DataDamaged."""
        copies = self._copies()
        content = self._content(copies)
        present = entries_of(content, self._named(FILES[0])) if content is not None else []
        wanted = (
            _with_plain(content, present, erasures)
            if self._recipients is None
            else self._with_encrypted(content, present, erasures, self._recipients)
        )
        for name in FILES:
            if copies[name] != wanted:
                self._place.write(name, wanted)
        return BackedRegister(len(wanted), sha256(wanted).hexdigest())

    def _with_encrypted(
        self,
        content: bytes | None,
        lines: Iterable[Erasure | EncryptedErasures],
        erasures: Iterable[Erasure],
        recipients: Recipients,
    ) -> bytes:
        present = {
            each.place
            for line in lines
            for each in (line.erasures if isinstance(line, EncryptedErasures) else [line])
            if each.added_id != NOT_DONE
        }
        new = list[Erasure]()
        for each in erasures:
            if each.key not in self._reported and each.place not in present:
                new.append(each)
            self._reported.add(each.key)
        before = ENCRYPTED_HEAD if content is None else content
        if not new:
            return before
        return before + line_of(encrypted(new, recipients))

    def _named(self, name: str) -> str:
        return f"{self._place}/{name}"

    def _copies(self) -> dict[str, bytes | None]:
        return {name: self._read(name) for name in FILES}

    def _read(self, name: str) -> bytes | None:
        try:
            return self._place.read(name)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StorageUnavailable(f"{self._named(name)}: {error.strerror}") from error

    def _content(self, copies: Mapping[str, bytes | None]) -> bytes | None:
        """The longest good copy; None where there is none at all."""
        good, wrong = list[bytes](), list[str]()
        for name, content in copies.items():
            if content is None:
                continue
            try:
                entries_of(content, self._named(name))
            except DataDamaged as error:
                wrong.append(str(error))
            else:
                good.append(content)
        if not good and wrong:
            raise DataDamaged(
                f"the register of erasures is damaged: {'; '.join(wrong)}. Bring {FILES[0]} back"
                f" from a copy of {self._place}; or, if there is none and the datastore is there,"
                " move both files away and take a full backup: from that one on restores are"
                " possible again"
            )
        longest = max(good, key=len, default=None)
        if any(not (longest or b"").startswith(each) for each in good):
            raise DataDamaged(
                f"{' and '.join(map(self._named, FILES))} are two registers of erasures that"
                " differ: bring the right one back from a copy of the folder"
            )
        return longest


def _with_plain(
    content: bytes | None,
    lines: Iterable[Erasure | EncryptedErasures],
    erasures: Iterable[Erasure],
) -> bytes:
    present = {each.key for each in lines if isinstance(each, Erasure)}
    wanted = [HEAD if content is None else content]
    for each in erasures:
        if each.key not in present:
            present.add(each.key)
            wanted.append(line_of(each))
    return b"".join(wanted)
