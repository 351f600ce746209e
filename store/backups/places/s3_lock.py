"""The lock of a folder of backups in an object store: an object that its holder renews.

    lock    a random word of the holder and a count, or `free`.

To take the lock, a process makes the object, or replaces a free one, or one not renewed for
``LEASE_S`` by the store's own clock. All of these are conditional writes: of two, one fails. The
holder renews it every ``RENEW_EVERY_S`` from a thread. It stops trusting it ``TRUST_S`` after the
beginning of the last renewal that was answered, by its own steady clock: earlier than anybody may
take it.

A store that knows no conditions would give the lock to everybody. So each time it is acquired, two
writes that must fail are tried.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from cellfeed.store.backups.places.s3_bucket import Bucket
from cellfeed.store.errors import CellfeedError, InvalidRequest, ProtectData, StorageUnavailable

LEASE_S: Final = 60.0
TRUST_S: Final = 40.0
RENEW_EVERY_S: Final = 10.0

_FREE: Final = b"free"
_NO_ETAG: Final = '"00000000000000000000000000000000"'

_log: Final = logging.getLogger("cellfeed.backup")


class S3Lock:
    """See the module. ``place``: as errors name it."""

    def __init__(self, bucket: Bucket, key: str, place: str) -> None:
        self._bucket = bucket
        self._key = key
        self._place = place
        self._owner = secrets.token_hex(16)
        self._count = 0
        self._etag = ""
        self._renewed_s = 0.0
        self._lost = False
        self._stop = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="backup-lock", daemon=True)

    def acquire(self) -> None:
        """Raises InvalidRequest while another process has it, ProtectData for a store that knows no
        conditional writes, StorageUnavailable."""
        self._renewed_s = time.monotonic()
        try:
            self._etag = self._put(None)
        except FileExistsError:
            self._etag = self._take_over()
        self._refuse_without_conditions()
        self._renewing.start()

    def refuse_if_lost(self) -> None:
        """Raises StorageUnavailable where another process may have it by now."""
        if self._lost or time.monotonic() - self._renewed_s > TRUST_S:
            raise StorageUnavailable(
                f"{self._place}: the lock is lost: this process was paused, or the store did not"
                f" answer, for more than {TRUST_S:g} s. Nothing more is changed: try again"
            )

    def release(self) -> None:
        """Raises StorageUnavailable where it was lost meanwhile."""
        self._stop.set()
        self._renewing.join()
        self.refuse_if_lost()
        try:
            self._bucket.put(self._key, _FREE, self._etag)
        except FileExistsError as error:
            raise StorageUnavailable(
                f"{self._place}: another process has taken the lock: the outcome is not certain:"
                " try again"
            ) from error

    def release_quietly(self) -> None:
        """For a caller with an error of its own: a lock that cannot be released falls by itself."""
        try:
            self.release()
        except CellfeedError as error:
            _log.warning("%s", error)

    def _take_over(self) -> str:
        try:
            content, found = self._bucket.get(self._key)
        except FileNotFoundError as error:  # nobody removes it: it is made once
            raise StorageUnavailable(f"{self._place}: the lock was removed: try again") from error
        age_s = _age_s(found)
        refused = InvalidRequest(
            f"another backup is being made, or removed, in {self._place}: wait until it is done;"
            f" the lock of a process that was killed falls after {LEASE_S:g} s"
        )
        if content != _FREE and age_s < LEASE_S:
            raise refused
        try:
            return self._put(found["ETag"])
        except FileExistsError:
            raise refused from None

    def _refuse_without_conditions(self) -> None:
        for wrong in (None, _NO_ETAG):
            try:
                self._bucket.put(self._key, f"{self._owner} probe {wrong}".encode(), wrong)
            except FileExistsError:
                continue
            raise ProtectData(
                f"{self._place}: the store ignores"
                f" {'If-None-Match' if wrong is None else 'If-Match'} of a write, so two processes"
                " could work in one folder of backups: use a store that knows conditional writes"
            )

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_EVERY_S):
            begun_s = time.monotonic()
            try:
                self._etag = self._put(self._etag)
                self._renewed_s = begun_s
            except FileExistsError:
                self._lost = True
                return
            except CellfeedError as error:  # the next one may be answered in time
                _log.warning("the lock is not renewed: %s", error)

    def _put(self, etag: str | None) -> str:
        self._count += 1
        return self._bucket.put(self._key, f"{self._owner} {self._count}".encode(), etag)


def _age_s(found: Any) -> float:
    """How long ago an object was written, by the store's clock."""
    now = parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
    written: datetime = found["LastModified"]
    return (now - written).total_seconds()
