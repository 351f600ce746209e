"""A folder of backups after every power cut of a real run: a backup that was reported, or that is
listed, is whole."""

from __future__ import annotations

import pytest

from cellfeed.store.backups.check import verify
from cellfeed.store.backups.folder import BackupFolder
from tests.durability.conftest import Cuts

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_a_finished_backup_survives_a_power_cut(cuts: Cuts) -> None:
    most = 0
    for cut in cuts("backup"):
        reported = {line.split()[1] for line in cut.said}
        place = cut.place / "backups"
        folder = BackupFolder(place)
        listed = folder.look()[0] if place.is_dir() else []
        assert reported <= {each.name for each in listed}, (
            f"{cut}: a backup that was reported is lost"
        )
        for backup in listed:
            assert verify(folder.chain(backup)) == [], f"{cut}: {backup.name} is damaged"
        most = max(most, len(reported))
    assert most == 2
