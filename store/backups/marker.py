"""The signs of a backup's folder among all other things that may lie beside it: its name, and a
marker in it that only this program writes.

The marker is the first file of a backup and the last one that is removed. It names the backup, its
datastore, its place in the order of the folder and a random identity, which the manifest repeats. A
copy of it in another folder proves nothing: the names differ. A folder without a valid marker and
without a valid manifest is somebody else's, and is never touched.

Crash points: a kill between the folder and its marker leaves an empty folder, which nobody
recognises; `rmdir` removes it. A kill between two files of a removal leaves the marker, so the next
one ends it.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from cellfeed.store.backups.places.contract import Entry, Place
from cellfeed.store.backups.sealed import seal, unseal
from cellfeed.store.errors import CellfeedError, StorageUnavailable

MANIFEST: Final = "manifest.json"
MARKER: Final = "cellfeed-backup"
STATE: Final = "state"
DICTIONARIES: Final = "dictionaries"

_NAME: Final = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{4}")
_OWN_FILE: Final = re.compile(
    rf"{re.escape(MANIFEST)}|{MARKER}|{STATE}|{DICTIONARIES}|cells-\d{{4,}}"
    rf"|\.({re.escape(MANIFEST)}|{MARKER}|{DICTIONARIES})\.staged"
)


class Marker(msgspec.Struct, frozen=True):
    """``sequence``: the place in the order of the folder; 0 for a backup from before there was
    one."""

    format_version: int
    identity: str
    name: str
    datastore: str
    shards: int
    sequence: int
    created_at_us: int


def is_backup_name(name: str) -> bool:
    """Whether this program gives names like it to folders of backups."""
    return _NAME.fullmatch(name) is not None


def write_marker(place: Place, marker: Marker) -> None:
    """Writes it so that it survives a power cut."""
    place.write(MARKER, seal(marker))


def read_marker(place: Place) -> Marker | None:
    """The folder's marker; None where there is none that is its own. Raises StorageUnavailable."""
    try:
        if not place.is_file(MARKER):
            return None
        marker = unseal(place.read(MARKER), Marker, f"{place.name}/{MARKER}")
    except StorageUnavailable:
        raise
    except (
        OSError,
        CellfeedError,
    ):  # of a newer program too: this program does not remove a folder that it cannot read
        return None
    return marker if marker.name == place.name else None


def foreign_entries(place: Place) -> list[str]:
    """The entries of a backup's folder that are no files of a backup: they stay there when the
    backup is removed."""
    return [each.name for each in place.entries() if not _is_own(each)]


def remove_files(root: Place, marker: Marker) -> None:
    """Removes a backup of the folder ``root`` that was recognised: its manifest first, so a
    half-removed one is no backup any more, and the marker last. Files that this program did not
    write stay, and its folder with them."""
    place = root.inside(marker.name)
    if read_marker(place) is None:
        write_marker(
            place, marker
        )  # of a backup without one: a kill must not leave a rest that nobody recognises
    place.remove(MANIFEST)
    place.sync()
    for each in place.entries():
        if _is_own(each) and each.name != MARKER:
            place.remove(each.name)
    place.remove_rests()
    place.sync()
    place.remove(MARKER)
    place.remove_if_empty()
    root.sync()


def _is_own(entry: Entry) -> bool:
    return entry.is_file and _OWN_FILE.fullmatch(entry.name) is not None
