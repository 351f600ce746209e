"""A folder of backups in an S3-compatible object store: `s3://bucket/prefix`, through boto3.

A file is an object, and a folder's name is a prefix of keys. So P2 and P4 hold by nature: an object
is there as a whole, durably, or not at all. P3, P5 and P6 rest on conditional writes; the lock
proves that the store knows them (:mod:`cellfeed.store.backups.places.s3_lock`).

**Away is not missing.** Only a key that the store says is not there raises FileNotFoundError. All
else that fails raises StorageUnavailable, so nothing is taken for damaged, or removed, because a
network was away.

Crash points: a killed upload of many parts has no key. The store keeps its parts, and asks money
for them, until the next backup of the datastore removes them with the rest. A process paused for
longer than its lock, amid a request, can at most make an object in a folder that was removed
meanwhile: without the other files it is no backup.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from errno import EEXIST, ENOENT
from io import BufferedReader
from typing import BinaryIO, Final

from cellfeed.store.backups.places.contract import Entry, Place, Writing
from cellfeed.store.backups.places.s3_bucket import SCHEME, Bucket
from cellfeed.store.backups.places.s3_files import READ_BYTES, S3Reading, S3Writing
from cellfeed.store.backups.places.s3_lock import S3Lock
from cellfeed.store.errors import InvalidRequest, StorageUnavailable

LOCK: Final = "lock"

CONNECT_S: Final = 5.0
ANSWER_S: Final = 20.0
ATTEMPTS: Final = 4
"""Of one request: some stores answer 503 for a moment where many keys are written."""


class S3Place:
    """See :class:`~cellfeed.store.backups.places.contract.Place`. ``prefix``: empty, or ends with
    /."""

    def __init__(self, bucket: Bucket, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix

    def __str__(self) -> str:
        return self._bucket.named(self._prefix).rstrip("/")

    @property
    def name(self) -> str:
        return self._prefix.rstrip("/").rpartition("/")[2]

    def inside(self, name: str) -> Place:
        return S3Place(self._bucket, f"{self._prefix}{name}/")

    def is_folder(self) -> bool:
        """Nothing that keys begin with is a link or a file."""
        return True

    def entries(self) -> list[Entry]:
        found = list[Entry]()
        arguments: dict[str, str] = {}
        while True:
            page = self._bucket.call(
                "list_objects_v2", self._prefix, Prefix=self._prefix, Delimiter="/", **arguments
            )
            cut = len(self._prefix)
            found += [Entry(each["Key"][cut:], True) for each in page.get("Contents", ())]
            found += [
                Entry(each["Prefix"][cut:-1], False) for each in page.get("CommonPrefixes", ())
            ]
            if not page.get("IsTruncated"):
                break
            arguments = {"ContinuationToken": page["NextContinuationToken"]}
        if not found:
            raise FileNotFoundError(ENOENT, "there is nothing", str(self))
        return sorted(each for each in found if each.name)  # some tools make a key for a folder

    def is_file(self, name: str) -> bool:
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        # A HEAD has no body, so it cannot distinguish a missing object from a missing bucket.
        key = self._key(name)
        page = self._bucket.call("list_objects_v2", key, Prefix=key, MaxKeys=1)
        sizes: dict[str, int] = {each["Key"]: each["Size"] for each in page.get("Contents", ())}
        return sizes.get(key)

    def read(self, name: str) -> bytes:
        key = self._key(name)
        try:
            content, found = self._bucket.get(key)
        except FileNotFoundError:
            self._bucket.etags.pop(key, None)
            raise
        self._bucket.etags[key] = found["ETag"]
        return content

    def open(self, name: str) -> BinaryIO:
        size = self.size(name)
        if size is None:
            raise FileNotFoundError(ENOENT, "there is no such object", f"{self}/{name}")
        return BufferedReader(S3Reading(self._bucket, self._key(name), size), READ_BYTES)

    def write(self, name: str, content: bytes) -> None:
        self._bucket.write(self._key(name), content)

    def create(self, name: str) -> Writing:
        return S3Writing(self._bucket, self._key(name))

    def remove(self, name: str) -> None:
        key = self._key(name)
        self._bucket.change("delete_object", key, Key=key)
        self._bucket.etags.pop(key, None)

    def make(self) -> None:
        """Its marker makes it: that is written only where there is none."""
        try:
            self.entries()
        except FileNotFoundError:
            return
        raise FileExistsError(EEXIST, "it is there", str(self))

    def remove_rests(self) -> None:
        while True:
            page = self._bucket.call("list_multipart_uploads", self._prefix, Prefix=self._prefix)
            uploads = [
                each for each in page.get("Uploads", ()) if each["Key"].startswith(self._prefix)
            ]
            for each in uploads:
                self._bucket.change(
                    "abort_multipart_upload",
                    each["Key"],
                    Key=each["Key"],
                    UploadId=each["UploadId"],
                )
            if not uploads or not page.get("IsTruncated"):
                return

    def remove_if_empty(self) -> None:
        """A folder without keys is not there."""

    def sync(self) -> None:
        """Every change is durable when it is answered."""

    @contextmanager
    def locked(self) -> Iterator[None]:
        lock = S3Lock(self._bucket, self._key(LOCK), str(self))
        lock.acquire()
        self._bucket.refuse_if_lost = lock.refuse_if_lost
        try:
            yield
        except BaseException:
            self._bucket.refuse_if_lost = lambda: None
            lock.release_quietly()
            raise
        self._bucket.refuse_if_lost = lambda: None
        lock.release()

    def _key(self, name: str) -> str:
        return f"{self._prefix}{name}"


def open_s3(url: str) -> S3Place:
    """The place of `s3://bucket` or `s3://bucket/prefix`. Credentials, region and endpoint are
    boto3's own: environment, shared files, or the role of the machine. Raises InvalidRequest, also
    where boto3 is not installed."""
    bucket, _, prefix = url.removeprefix(SCHEME).partition("/")
    prefix = prefix.strip("/")
    if not url.startswith(SCHEME) or not bucket or "//" in prefix:
        raise InvalidRequest(f"{url!r} is not of the form s3://bucket or s3://bucket/prefix")
    try:
        import boto3  # an extra of its own
    except ModuleNotFoundError:
        raise InvalidRequest(
            f"{url}: backups in an object store need boto3: pip install 'cellfeed[s3]'"
        ) from None
    from botocore.config import Config  # comes with boto3
    from botocore.exceptions import BotoCoreError

    settings = Config(
        connect_timeout=CONNECT_S,
        read_timeout=ANSWER_S,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
    )
    try:
        client = boto3.client("s3", config=settings)
    except (BotoCoreError, ValueError) as error:  # ValueError: an endpoint that is no URL
        raise StorageUnavailable(f"{url}: {error}") from error
    return S3Place(Bucket(client, bucket), f"{prefix}/" if prefix else "")
