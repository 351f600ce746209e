"""A bucket of backups after a cut at every request that changes it: power, network or the process
itself. There is no file of ours that a cut could tear: a request is done, or it is not, and the one
under way may be either."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pyrage
import pytest

from cellfeed.bridge.backups.kept_state import belongs
from cellfeed.store.backups.backup import with_identities
from cellfeed.store.backups.create import create
from cellfeed.store.backups.encryption import Recipients, identities_of
from cellfeed.store.backups.erasures import recorded_in
from cellfeed.store.backups.folder import BackupFolder
from cellfeed.store.backups.places import s3_lock
from cellfeed.store.backups.places.open import place_at
from cellfeed.store.backups.places.s3_bucket import Bucket
from cellfeed.store.backups.register import Register
from cellfeed.store.backups.taking import Source
from cellfeed.store.backups.verify import verify
from cellfeed.store.datastore import Datastore
from cellfeed.store.failpoints import FailpointReached
from tests.support.rides import rides, row_of
from tests.support.s3_server import BUCKET, s3_server

pytestmark = [pytest.mark.integration, pytest.mark.slow]

URL: Final = f"s3://{BUCKET}/trips"
READS: Final = {"get_object", "head_object", "list_objects_v2", "list_multipart_uploads"}


class Cuts:
    """Lets ``left`` changing requests pass; then nothing reaches the bucket. ``is_done``: whether
    the request under way at the cut did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.is_done = False
        call = Bucket.call

        def cut(bucket: Bucket, operation: str, key: str, **arguments: Any) -> Any:
            if self.left is not None and (operation not in READS or self.left < 0):
                self.left -= 1
                if self.left < 0:
                    if self.left == -1 and self.is_done:
                        call(bucket, operation, key, **arguments)
                    raise FailpointReached(operation)
            return call(bucket, operation, key, **arguments)

        monkeypatch.setattr(Bucket, "call", cut)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuts]:
    monkeypatch.setattr(s3_lock, "LEASE_S", 0.0)
    with s3_server(monkeypatch):
        yield Cuts(monkeypatch)


@pytest.mark.parametrize("is_encrypted", [False, True])
@pytest.mark.parametrize("is_done", [False, True])
def test_every_listed_backup_is_whole_after_a_cut_at_any_request(
    bucket: Cuts, tmp_path: Path, is_done: bool, is_encrypted: bool
) -> None:
    to = identities = None
    if is_encrypted:
        identity = pyrage.x25519.Identity.generate()
        (tmp_path / "key.txt").write_text(f"{identity}\n")
        to = Recipients([str(identity.to_public())])
        identities = identities_of([tmp_path / "key.txt"])
    bucket.is_done, reported, erased = is_done, set[str](), set[str]()
    with Datastore.open_embedded(tmp_path / "store", "trips", 2) as store:
        store.put_new_cells(rides(0, 40))
        source = Source(store.engine, belongs)
        full = create(BackupFolder(place_at(URL)), source, recipients=to)
        for cut_at in count():
            store.put_new_cells(rides(40 + cut_at, 1))
            store.erase_row(row_of(cut_at))
            bucket.left = cut_at
            try:
                made = create(BackupFolder(place_at(URL)), source, onto=full, recipients=to)
            except FailpointReached:
                made = None
            was_cut, bucket.left = bucket.left < 0, None
            folder = BackupFolder(place_at(URL))
            listed, _ = folder.look()
            reported |= {made.name} if made is not None else set()
            assert reported <= {each.name for each in listed}
            for backup in (full, *listed[-1:]):
                chain = with_identities(folder.chain(backup), identities)
                assert verify(chain) == [], f"cut at request {cut_at}"
            if made is not None:
                erased.add(row_of(cut_at).bytes.hex())
            register = Register(folder.place, identities=identities)
            told = recorded_in(register, chain[-1], [])
            assert {each.row_key for each in told} >= erased
            if not was_cut:
                break
    assert cut_at > 8, "the requests of a backup were counted"
    assert made is not None
