"""Places by the names that commands and configurations have for them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cellfeed.store.backups.places.contract import Place
from cellfeed.store.backups.places.local import LocalPlace


def place_at(name: str, inside: Callable[[str], Path] = Path) -> Place:
    """The place of `s3://bucket/prefix`, or of a folder: `inside` says where a relative one lies.
    Raises InvalidRequest, StorageUnavailable."""
    if name.startswith("s3:"):
        from cellfeed.store.backups.places.s3 import open_s3  # an extra of its own

        return open_s3(name)
    return LocalPlace(inside(name))
