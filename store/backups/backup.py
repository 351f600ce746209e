"""A backup in a folder of backups, and a folder that looks like one and is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cellfeed.store.backups.encryption import Identities, identity_needed
from cellfeed.store.backups.manifest import Manifest
from cellfeed.store.backups.marker import Marker
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.backups.private_part import unlocked


@dataclass(frozen=True)
class Backup:
    """One that is there. ``sha256``: of its manifest file. ``identities``: the keys that decrypt it
    (:func:`with_identities`)."""

    place: Place
    manifest: Manifest
    sha256: str
    identities: Identities | None = None

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def path(self) -> Path:
        """The folder of one that lies on this machine."""
        return Path(str(self.place))

    @property
    def is_locked(self) -> bool:
        """Whether it is encrypted and has no identity: its content cannot be read."""
        return self.manifest.is_encrypted and self.identities is None

    def decrypt(self, content: bytes, what: str) -> bytes:
        """A piece of it in the clear; of a plain backup as it is. Raises InvalidRequest without an
        identity, DataDamaged."""
        if not self.manifest.is_encrypted:
            return content
        if self.identities is None:
            raise identity_needed(f"backup {self.name}", self.manifest.recipients)
        return self.identities.decrypt(content, what)


@dataclass(frozen=True)
class Unreadable:
    """A folder with the name of a backup that is no whole one, and why. ``marker``: None where
    nothing proves that this program made it. ``finished``: it has a manifest, which cannot be read.
    """

    name: str
    reason: str
    marker: Marker | None
    finished: bool

    def may_follow(self, backup: Manifest) -> bool:
        """Whether it may be a later backup of the same datastore."""
        if not self.finished:
            return False
        return self.marker is None or (
            self.marker.datastore == backup.datastore and self.marker.sequence > backup.sequence
        )


def with_identities(chain: Sequence[Backup], identities: Identities | None) -> list[Backup]:
    """These backups, with all that their manifests say; plain ones as they are. Raises
    InvalidRequest where one is encrypted and no identity fits, DataDamaged."""
    opened = []
    for backup in chain:
        if not backup.is_locked:
            opened.append(backup)
            continue
        if identities is None:
            raise identity_needed(f"backup {backup.name}", backup.manifest.recipients)
        opened.append(
            replace(backup, manifest=unlocked(backup.manifest, identities), identities=identities)
        )
    return opened


def marker_of(backup: Backup) -> Marker:
    """The content of its marker, made from its manifest: a backup of format 1 has none."""
    manifest = backup.manifest
    return Marker(
        manifest.format_version,
        manifest.identity,
        manifest.name,
        manifest.datastore,
        manifest.shards,
        manifest.sequence,
        manifest.created_at_us,
    )
