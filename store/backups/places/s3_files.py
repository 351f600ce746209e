"""Objects as files: one that is read by ranges, and one that is written in parts."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cellfeed.store.backups.places.s3_bucket import Bucket

READ_BYTES: Final = 8 << 20
"""A request of a sequential read: large enough that its 20 to 50 ms cost little."""

PART_BYTES: Final = 16 << 20
"""Of an upload, held in memory. The store takes at most 10,000 parts of an object."""

PARTS_OF_ONE_SIZE: Final = 1_000
"""After so many the parts are twice as large: 10,000 parts have 16 TiB then, more than an object
may have."""


class S3Reading(io.RawIOBase):
    """An object, read by ranges; to be buffered."""

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        self._bucket = bucket
        self._key = key
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readall(self) -> bytes:
        at, self._at = self._at, max(self._at, self._size)
        return self._bucket.get_range(self._key, at, self._size) if at < self._size else b""

    def readinto(self, buffer: Any, /) -> int:
        into = memoryview(buffer).cast("B")
        end = min(self._at + len(into), self._size)
        if self._at >= end:
            return 0
        content = self._bucket.get_range(self._key, self._at, end)
        into[: len(content)] = content
        self._at += len(content)
        return len(content)


class S3Writing:
    """See :class:`~cellfeed.store.backups.places.contract.Writing`. The object is there when it is
    finished, and not before."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket = bucket
        self._key = key
        self._waiting = bytearray()
        self._upload: str | None = None
        self._parts = list[dict[str, Any]]()

    def write(self, content: bytes) -> None:
        self._waiting += content
        size = PART_BYTES << (len(self._parts) // PARTS_OF_ONE_SIZE)
        while len(self._waiting) >= size:
            self._send(bytes(self._waiting[:size]))
            del self._waiting[:size]

    def finish(self) -> None:
        if self._upload is None:
            self._bucket.write(self._key, bytes(self._waiting))
            return
        if self._waiting:
            self._send(bytes(self._waiting))
        self._bucket.change(
            "complete_multipart_upload",
            self._key,
            Key=self._key,
            UploadId=self._upload,
            MultipartUpload={"Parts": self._parts},
        )

    def _send(self, part: bytes) -> None:
        if self._upload is None:
            begun = self._bucket.change("create_multipart_upload", self._key, Key=self._key)
            self._upload = begun["UploadId"]
        number = len(self._parts) + 1
        sent = self._bucket.change(
            "upload_part",
            self._key,
            Key=self._key,
            UploadId=self._upload,
            PartNumber=number,
            Body=part,
        )
        self._parts.append(
            {
                "PartNumber": number,
                **{name: value for name, value in sent.items() if name in _OF_A_PART},
            }
        )


_OF_A_PART: Final = {"ETag", "ChecksumCRC32", "ChecksumCRC32C", "ChecksumCRC64NVME"}
