"""The calls of an S3 bucket, with the errors of places
(:mod:`cellfeed.store.backups.places.contract`)."""

from __future__ import annotations

from collections.abc import Callable
from errno import EEXIST, ENOENT
from typing import Any, Final, NoReturn

from cellfeed.store.errors import StorageUnavailable

SCHEME: Final = "s3://"

READ_ATTEMPTS: Final = 3
"""Of an answer that breaks off."""


class Bucket:
    """Calls of one bucket, with the errors of places. ``etags``: of the objects that this process
    has read or written, by key."""

    def __init__(self, client: Any, name: str) -> None:
        self.client = client
        self.name = name
        self.etags: dict[str, str] = {}
        self.refuse_if_lost: Callable[[], None] = lambda: None
        """Called before each change while the folder is locked; raises where the lock was lost."""

    def call(self, operation: str, key: str, **arguments: Any) -> Any:
        """An operation of the client. Raises FileNotFoundError, FileExistsError where a condition
        does not hold, StorageUnavailable."""
        from botocore.exceptions import BotoCoreError, ClientError  # an extra of its own

        try:
            return getattr(self.client, operation)(Bucket=self.name, **arguments)
        except ClientError as error:
            self._raise(error.response, key)
        except BotoCoreError as error:
            raise StorageUnavailable(f"{self.named(key)}: {error}") from error

    def change(self, operation: str, key: str, **arguments: Any) -> Any:
        """An operation that changes something: where the lock was lost it is not sent."""
        self.refuse_if_lost()
        return self.call(operation, key, **arguments)

    def put(self, key: str, content: bytes, etag: str | None) -> str:
        """Replaces the object with that ETag, or makes one where None is; the new ETag. Raises
        FileExistsError."""
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        try:
            done = self.call("put_object", key, Key=key, Body=content, **condition)
        except FileExistsError:
            # The library may have sent it twice, and the first answer was lost.
            there, done = self.get(key)
            if there != content:
                raise
        except FileNotFoundError:
            raise FileExistsError(
                EEXIST, "another process has removed it meanwhile", self.named(key)
            ) from None
        new: str = done["ETag"]
        return new

    def write(self, key: str, content: bytes) -> None:
        """Replaces the content that this process has read or written, or makes a key that was
        missing. Raises FileExistsError."""
        self.refuse_if_lost()
        self.etags[key] = self.put(key, content, self.etags.get(key))

    def get(self, key: str, **arguments: Any) -> tuple[bytes, Any]:
        """The content of an object, and the store's answer about it."""
        from botocore.exceptions import BotoCoreError  # an extra of its own

        attempts = READ_ATTEMPTS
        while True:
            found = self.call("get_object", key, Key=key, **arguments)
            try:
                return found["Body"].read(), found
            except (BotoCoreError, OSError) as error:  # the library repeats no answer that breaks
                attempts -= 1
                if not attempts:
                    raise StorageUnavailable(f"{self.named(key)}: {error}") from error

    def get_range(self, key: str, begin: int, end: int) -> bytes:
        """Bytes from ``begin`` up to, not including, ``end``."""
        return self.get(key, Range=f"bytes={begin}-{end - 1}")[0]

    def named(self, key: str) -> str:
        return f"{SCHEME}{self.name}/{key}"

    def _raise(self, response: Any, key: str) -> NoReturn:
        status = response["ResponseMetadata"]["HTTPStatusCode"]
        code, text = response["Error"].get("Code"), response["Error"].get("Message")
        if code == "NoSuchBucket":
            raise StorageUnavailable(
                f"{self.named(key)}: there is no bucket {self.name!r}: make it, or name another one"
            )
        if status == 404:
            raise FileNotFoundError(ENOENT, "there is no such object", self.named(key))
        if status == 412 or code == "ConditionalRequestConflict":
            raise FileExistsError(
                EEXIST, "another process has written it meanwhile", self.named(key)
            )
        raise StorageUnavailable(f"{self.named(key)}: the store answers {status} {code}: {text}")
