"""The lock of a folder of backups in an object store, by the clock of the process that has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from cellfeed.store.backups.places import s3_lock
from cellfeed.store.backups.places.s3_bucket import Bucket
from cellfeed.store.backups.places.s3_lock import LEASE_S, TRUST_S, S3Lock
from cellfeed.store.errors import StorageUnavailable


class Store:
    """An object store that takes so many seconds for a write."""

    def __init__(self) -> None:
        self.now_s, self.call_s = 1_000.0, 0.0
        self.done = 0

    def put(self, key: str, content: bytes, etag: str | None) -> str:
        self.now_s += self.call_s
        self.done += 1
        return f"etag {self.done}"


def test_a_lease_is_as_long_as_since_the_renewal_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may have written it at once, and answered late: others count from then on."""
    store = Store()
    monkeypatch.setattr(s3_lock, "time", SimpleNamespace(monotonic=lambda: store.now_s))
    monkeypatch.setattr(s3_lock, "RENEW_EVERY_S", 0)
    lock = S3Lock(cast("Bucket", store), "lock", "s3://backups")
    lock._renewed_s = store.now_s
    store.call_s = TRUST_S - 1
    monkeypatch.setattr(lock._stop, "wait", lambda _: store.done == 1)
    lock._renew()
    assert store.done == 1
    lock.refuse_if_lost()
    store.now_s += 2
    assert TRUST_S < LEASE_S
    with pytest.raises(StorageUnavailable, match="the lock is lost"):
        lock.refuse_if_lost()
