"""The promises of places of backups, kept by a folder and by an object store on a real server."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellfeed.store.backups.places import s3, s3_files, s3_lock
from cellfeed.store.backups.places.contract import Place
from cellfeed.store.backups.places.local import LocalPlace
from cellfeed.store.backups.places.open import place_at
from cellfeed.store.backups.places.s3_bucket import Bucket
from cellfeed.store.errors import InvalidRequest, ProtectData, StorageUnavailable
from tests.support.s3_server import BUCKET, keys, s3_server
from tests.support.waiting import wait_until

S3 = f"s3://{BUCKET}/some/prefix"
FOLDER = "20260301T120000Z-3f9a"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with s3_server(monkeypatch) as found:
        yield found


@pytest.fixture(params=["local", "s3"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "local":
        (tmp_path / "backups").mkdir()
        return LocalPlace(tmp_path / "backups")
    request.getfixturevalue("client")
    return place_at(S3)


def test_p1_a_written_object_is_read_whole_and_in_ranges(root: Place) -> None:
    root.write("erasures", b"0123456789")
    assert root.read("erasures") == b"0123456789"
    assert (root.size("erasures"), root.size("other"), root.is_file("erasures")) == (10, None, True)
    assert not root.is_file("other")
    with root.open("erasures") as file:
        assert file.read(4) == b"0123"
        file.seek(7)
        assert (file.read(2), file.read(5), file.read(5)) == (b"78", b"9", b"")
    for read in (root.read, root.open):
        with pytest.raises(FileNotFoundError):
            read("other")


def test_p1_entries_are_files_and_folders_in_order(root: Place) -> None:
    root.write("b", b"")
    place = root.inside(FOLDER)
    place.make()
    place.write("state", b"x")
    assert [tuple(each) for each in root.entries()] == [(FOLDER, False), ("b", True)]
    assert [each.name for each in place.entries()] == ["state"]
    with pytest.raises(FileNotFoundError):
        root.inside("nothing").entries()


def test_p2_a_file_is_replaced(root: Place) -> None:
    for content in (b"first", b"second", b""):
        root.write("erasures", content)
        assert root.read("erasures") == content


def test_p3_an_object_that_another_process_wrote_is_not_replaced(client: Any) -> None:
    one, other = place_at(S3), place_at(S3)
    one.write("erasures", b"1")
    assert other.read("erasures") == b"1"
    one.write("erasures", b"12")
    with pytest.raises(FileExistsError):
        other.write("erasures", b"13")
    with pytest.raises(FileNotFoundError):
        other.read("erasures.copy")
    one.write("erasures.copy", b"12")
    with pytest.raises(FileExistsError):
        other.write("erasures.copy", b"13")
    assert (one.read("erasures"), one.read("erasures.copy")) == (b"12", b"12")
    client.delete_object(Bucket=BUCKET, Key="some/prefix/erasures")
    with pytest.raises(FileExistsError):
        one.write("erasures", b"123")


def test_p3_a_write_whose_answer_was_lost_is_done(client: Any) -> None:
    client.put_object(Bucket=BUCKET, Key="some/prefix/erasures", Body=b"mine")
    place = place_at(S3)
    place.write("erasures", b"mine")
    place.write("erasures", b"mine too")
    assert place.read("erasures") == b"mine too"


def test_p4_a_large_file_has_its_name_when_it_is_finished(
    root: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_files, "PART_BYTES", 5 << 20)  # less is refused by servers
    monkeypatch.setattr(s3_files, "PARTS_OF_ONE_SIZE", 1)
    pieces = [bytes([number]) * (3 << 20) for number in range(7)]
    place = root.inside(FOLDER)
    place.make()
    file = place.create("cells-0000")
    for piece in pieces:
        file.write(piece)
    if not isinstance(root, LocalPlace):
        assert place.size("cells-0000") is None
    file.finish()
    place.sync()
    with place.open("cells-0000") as opened:
        assert opened.read() == b"".join(pieces)
    small = place.create("state")
    small.write(b"x")
    small.finish()
    assert place.read("state") == b"x"


def test_p4_a_file_that_is_there_is_not_written_over(root: Place) -> None:
    root.write("state", b"theirs")
    other = place_at(str(root))
    with pytest.raises(FileExistsError):  # noqa: PT012 - one of the two
        file = other.create("state")
        file.write(b"mine")
        file.finish()
    assert other.read("state") == b"theirs"


def test_p5_a_folder_is_made_once(root: Place) -> None:
    place = root.inside(FOLDER)
    place.make()
    place.write("cellfeed-backup", b"marker")
    with pytest.raises(FileExistsError):
        place_at(str(root)).inside(FOLDER).make()


def test_removing_a_file_twice_is_no_error(root: Place) -> None:
    place = root.inside(FOLDER)
    place.make()
    place.write("state", b"x")
    for _ in range(2):
        place.remove("state")
        place.remove_rests()
        place.sync()
    assert not place.is_file("state")
    place.remove_if_empty()
    root.write("erasures", b"")
    assert [each.name for each in root.entries()] == ["erasures"]


def test_parts_of_an_upload_that_was_killed_are_removed(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_files, "PART_BYTES", 5 << 20)
    place = place_at(S3).inside(FOLDER)
    place.create("cells-0000").write(bytes(6 << 20))
    place_at(f"s3://{BUCKET}/elsewhere").create("theirs").write(bytes(6 << 20))
    call = Bucket.call

    def without_prefix(bucket: Bucket, operation: str, key: str, **arguments: Any) -> Any:
        """As of a server that does not know the prefix of this request."""
        if operation == "list_multipart_uploads":
            del arguments["Prefix"]
        return call(bucket, operation, key, **arguments)

    monkeypatch.setattr(Bucket, "call", without_prefix)
    place_at(S3).inside(FOLDER).remove_rests()
    left = [each["Key"] for each in client.list_multipart_uploads(Bucket=BUCKET)["Uploads"]]
    assert left == ["elsewhere/theirs"]


# --- the lock -------------------------------------------------------------------------------------


def test_p6_one_process_owns_the_lock(root: Place) -> None:
    other = place_at(str(root))
    for _ in range(2):
        with root.locked():
            root.write("erasures", b"x")
            with pytest.raises(InvalidRequest, match="wait until it is done"), other.locked():
                pass
        root.remove("erasures")
    with other.locked():
        pass


def test_p6_a_process_that_fails_releases_the_lock(root: Place) -> None:
    with pytest.raises(KeyError), root.locked():
        raise KeyError
    with place_at(str(root)).locked():
        pass


def test_p6_a_renewed_lock_stays(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("LEASE_S", 5.0), ("TRUST_S", 4.0), ("RENEW_EVERY_S", 0.2)):
        monkeypatch.setattr(s3_lock, name, seconds)
    with place_at(S3).locked():
        bodies: set[bytes] = set()

        def renewed() -> bool:
            bodies.add(lock_body(client))
            return len(bodies) > 30  # longer than a lease

        wait_until(renewed, "30 renewals of the lock")
        with pytest.raises(InvalidRequest), place_at(S3).locked():
            pass


def test_p6_the_lock_of_a_killed_process_falls_and_a_paused_one_changes_nothing_more(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("LEASE_S", 4.0), ("TRUST_S", 3.0), ("RENEW_EVERY_S", 3600.0)):
        monkeypatch.setattr(s3_lock, name, seconds)
    paused, next_one = place_at(S3), place_at(S3)
    paused.write("erasures", b"1")
    with pytest.raises(StorageUnavailable, match="the lock is lost"), paused.locked():  # noqa: PT012
        taken = threading.Event()

        def taken_over() -> bool:
            try:
                with next_one.locked():
                    taken.set()
                    with pytest.raises(StorageUnavailable, match="the lock is lost"):
                        paused.write("erasures", b"2")
                    with pytest.raises(StorageUnavailable, match="the lock is lost"):
                        paused.remove("erasures")
                    file = paused.inside(FOLDER).create("state")
                    with pytest.raises(StorageUnavailable, match="the lock is lost"):
                        file.finish()
            except InvalidRequest:
                return False
            return True

        wait_until(taken_over, "the lock of a paused process to fall")
        assert taken.is_set()
    assert next_one.read("erasures") == b"1"
    assert keys(client) == ["some/prefix/erasures", "some/prefix/lock"]


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_p6_a_store_that_ignores_conditions_is_refused(client: Any, header: str) -> None:
    place: Any = place_at(S3)

    def stripped(request: Any, **_: Any) -> None:
        del request.headers[header]

    place._bucket.client.meta.events.register("before-sign.s3.PutObject", stripped)
    with pytest.raises(ProtectData, match=f"ignores {header} of a write"), place.locked():
        pass


def lock_body(client: Any) -> bytes:
    content: bytes = client.get_object(Bucket=BUCKET, Key="some/prefix/lock")["Body"].read()
    return content


# --- names, and what is away ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["s3://", "s3:///prefix", "s3:/bucket/x", "s3://b/x//y"])
def test_a_url_that_names_no_backup_place_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="s3://bucket"):
        place_at(name)


def test_without_the_s3_library_the_error_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(InvalidRequest, match=r"pip install 'cellfeed\[s3\]'"):
        place_at(S3)
    assert str(place_at("backups")) == "backups"


def test_a_store_or_a_bucket_that_is_away_is_not_an_empty_place(
    client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "ATTEMPTS", 1)
    other = place_at("s3://other-bucket/prefix")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    for place in (other, place_at(S3)):
        for ask in (place.read, place.size, place.is_file, place.open):
            with pytest.raises(StorageUnavailable):
                ask("x")
        with pytest.raises(StorageUnavailable):
            place.entries()
        with pytest.raises(StorageUnavailable):
            place.write("x", b"")
