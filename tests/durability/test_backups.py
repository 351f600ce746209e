"""A folder of backups after every power cut of a real run: a backup that was reported, or that is
listed, is whole, and the register of erasures has what was erased before it."""

from __future__ import annotations

import pytest

from cellfeed.store.backups.check import verify
from cellfeed.store.backups.erasures import recorded_in
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.register import Register
from tests.durability.conftest import Cuts
from tests.durability.programs import ERASED_ROWS

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
        for number, backup in enumerate(listed):
            assert verify(folder.chain(backup)) == [], f"{cut}: {backup.name} is damaged"
            told = recorded_in(Register(folder.place), backup, listed[number + 1 :])
            assert {each.row_key for each in told} >= {
                row.bytes.hex() for row in ERASED_ROWS[: number + 1]
            }, f"{cut}: an erasure is lost"
        most = max(most, len(reported))
    assert most == 2
