"""A folder of backups after every power cut of a real run: a backup that was reported, or that is
listed, is whole, and the register of erasures has all erasures before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellfeed.store.backups.backup import with_identities
from cellfeed.store.backups.encryption import Identities, identities_of
from cellfeed.store.backups.erasures import recorded_in
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.verify import verify
from tests.durability.conftest import Cuts
from tests.durability.disk import Cut
from tests.durability.programs import ERASED_ROWS, key_beside

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_a_finished_backup_survives_a_power_cut(cuts: Cuts) -> None:
    assert max(whole_ones(cut, None) for cut in cuts("backup")) == 2


def test_a_finished_encrypted_backup_survives_a_power_cut(cuts: Cuts, on_disk: Path) -> None:
    most, identities = 0, None
    for cut in cuts("encrypted-backup"):
        identities = identities or identities_of([key_beside(on_disk / "recorded")])
        most = max(most, whole_ones(cut, identities))
    assert most == 2


def whole_ones(cut: Cut, identities: Identities | None) -> int:
    """How many backups were reported before the cut, all of which are there and whole."""
    reported = {line.split()[1] for line in cut.said}
    place = cut.place / "backups"
    folder = BackupFolder(place)
    listed = folder.look()[0] if place.is_dir() else []
    assert reported <= {each.name for each in listed}, f"{cut}: a backup that was reported is lost"
    for number, backup in enumerate(listed):
        chain = with_identities(folder.chain(backup), identities)
        assert verify(chain) == [], f"{cut}: {backup.name} is damaged"
        register = Register(folder.place, identities=identities)
        told = recorded_in(register, chain[-1], listed[number + 1 :])
        assert {each.row_key for each in told} >= {
            row.bytes.hex() for row in ERASED_ROWS[: number + 1]
        }, f"{cut}: an erasure is lost"
    return len(reported)
