"""Parts of an upload grow, so that 10,000 of them are enough for any object."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cellfeed.store.backups.places import s3_files
from cellfeed.store.backups.places.s3_bucket import Bucket
from cellfeed.store.backups.places.s3_files import S3Writing


class Uploads:
    """The calls of an upload, by the sizes of the parts."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.completed: list[int] = []

    def change(self, call: str, key: str, **given: Any) -> dict[str, Any]:
        if call == "upload_part":
            self.sizes.append(len(given["Body"]))
        if call == "complete_multipart_upload":
            self.completed = [part["PartNumber"] for part in given["MultipartUpload"]["Parts"]]
        return {"UploadId": "1", "ETag": "e"}


def test_the_size_of_parts_doubles_after_a_fixed_number_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(s3_files, "PART_BYTES", 10)
    monkeypatch.setattr(s3_files, "PARTS_OF_ONE_SIZE", 3)
    uploads = Uploads()
    writing = S3Writing(cast("Bucket", uploads), "key")
    for _ in range(125):
        writing.write(b"x")
    writing.finish()
    assert uploads.sizes == [10, 10, 10, 20, 20, 20, 35]
    assert uploads.completed == list(range(1, 8))
