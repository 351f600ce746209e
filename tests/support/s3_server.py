"""A real S3 server of the test's own: moto's, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

BUCKET = "backups"


@contextmanager
def s3_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Starts one with a bucket, and lets boto3 find it, here and in child processes. A client of
    it."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL_S3": f"http://{host}:{port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }.items():
            monkeypatch.setenv(name, value)
        client = boto3.client("s3")
        for bucket in client.list_buckets()["Buckets"]:
            emptied(client, bucket["Name"])
            client.delete_bucket(Bucket=bucket["Name"])
        client.create_bucket(Bucket=BUCKET)
        yield client
    finally:
        server.stop()


def emptied(client: Any, bucket: str) -> None:
    """Removes all objects."""
    for key in keys(client, bucket=bucket):
        client.delete_object(Bucket=bucket, Key=key)


def keys(client: Any, prefix: str = "", bucket: str = BUCKET) -> list[str]:
    """All keys, in order."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return sorted(each["Key"] for page in pages for each in page.get("Contents", ()))
