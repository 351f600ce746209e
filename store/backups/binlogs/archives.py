"""Finds, opens and makes the archives of binlogs in a folder of backups."""

from __future__ import annotations

import re
import secrets
from hashlib import sha256
from typing import Final

from cellfeed.store.backups.binlogs.archive import MARKER, ArchiveMarker, BinlogArchive, _entries
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.backups.sealed import ENCRYPTED, PLAIN, seal, unseal
from cellfeed.store.errors import CellfeedError, ProtectData, StorageUnavailable
from cellfeed.store.histories import History

_NAME: Final = re.compile(r"binlogs-[0-9a-f]{16}")


def archive_name(datastore: str, history_id: str, cluster: str) -> str:
    """The name of the archive's folder."""
    return f"binlogs-{sha256(f'{datastore} {history_id} {cluster}'.encode()).hexdigest()[:16]}"


def open_archive(
    place: Place,
    datastore: str,
    shards: int,
    cluster: str,
    history: History,
    now_us: int,
    *,
    encrypted: bool,
) -> BinlogArchive:
    """The archive at ``place``, made where there is none; under its lock. Raises ProtectData for a
    folder that is something else, or whose pieces are encrypted when they should not be, or the
    other way round."""
    marker = _read_marker(place)
    if marker is None:
        if foreign := [each.name for each in _entries(place) if each.name != "lock"]:
            raise ProtectData(
                f"{place} is no archive of binlogs: it has {foreign[0]} and no marker. Move it out"
                " of the folder of backups"
            )
        marker = ArchiveMarker(
            ENCRYPTED if encrypted else PLAIN,
            secrets.token_hex(16),
            place.name,
            datastore,
            shards,
            cluster,
            now_us,
            history,
        )
        place.write(MARKER, seal(marker))
    if (marker.format_version == ENCRYPTED) != encrypted:
        raise ProtectData(
            f"{place}: the archive of binlogs is {'not ' if encrypted else ''}encrypted, and new"
            f" pieces would {'' if encrypted else 'not '}be: give the backups a folder of their"
            " own"
        )
    return BinlogArchive(place, marker)


def archives_in(folder: Place, datastore: str | None = None) -> list[BinlogArchive]:
    """The archives of a folder of backups, of one datastore or of all."""
    found = []
    for entry in _entries(folder):
        if _NAME.fullmatch(entry.name) and (place := folder.inside(entry.name)).is_folder():
            marker = _read_marker(place)
            if marker is not None and datastore in (None, marker.datastore):
                found.append(BinlogArchive(place, marker))
    return found


def _read_marker(place: Place) -> ArchiveMarker | None:
    """None where there is none of this folder's own."""
    try:
        if not place.is_file(MARKER):
            return None
        marker = unseal(place.read(MARKER), ArchiveMarker, f"{place}/{MARKER}")
    except StorageUnavailable:
        raise
    except (OSError, CellfeedError):
        return None
    return marker if marker.name == place.name else None
