"""A worker over TLS with credentials, as both clients and plain HTTP clients meet it."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from cellfeed import AsyncClient, Client
from cellfeed.store.cells.put_result import Outcome
from cellfeed.store.errors import (
    CellfeedError,
    Forbidden,
    InvalidRequest,
    StorageUnavailable,
    Unauthenticated,
)
from cellfeed.store.http.server import credentials
from cellfeed.store.security.rights import Acl
from cellfeed.store.security.tokens import revoke_token
from cellfeed.store.security.users import allow, put_user, remove_acl
from tests.support.certificates import make_certificates
from tests.support.secured_worker import SecuredWorker, secured_worker
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredWorker]:
    with secured_worker(tmp_path_factory.mktemp("secured")) as running:
        yield running


def ask(
    worker: SecuredWorker,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
) -> tuple[int, dict[str, str], bytes]:
    context = ssl.create_default_context(cafile=worker.files.ca)
    connection = http.client.HTTPSConnection("127.0.0.1", worker.port, timeout=20, context=context)
    try:
        content = None if body is None else json.dumps(body).encode()
        connection.request(
            method, path, content, {"content-type": "application/json", **(headers or {})}
        )
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def known(worker: SecuredWorker, token: str) -> None:
    """Waits until the worker has read the token and its rights."""
    headers = {"authorization": f"Bearer {token}"}
    wait_until(
        lambda: ask(worker, "GET", "/v1/trips/shards", headers=headers)[0] not in (401, 403),
        "the worker knows the token",
    )


@pytest.fixture(scope="module")
def token(worker: SecuredWorker) -> str:
    made = worker.token(
        "writer", ("put", "column", "BASE"), ("read", "column", "BASE"), ("put", "column", "pre*")
    )
    known(worker, made)
    return made


def test_both_clients_put_and_get_with_a_token(worker: SecuredWorker, token: str) -> None:
    row = uuid4()
    with Client(worker.url, "trips", **worker.client(token)) as client:
        assert client.put_cell(row, "BASE", 1, {"n": 1}).outcome is Outcome.STORED
        found = client.get_cell(row, "BASE", 1)
        assert found is not None
        assert found.body == {"n": 1}

    async def both() -> None:
        async with AsyncClient(worker.url, "trips", **worker.client(token)) as other:
            assert (await other.put_cell(row, "BASE", 1, {"n": 1})).outcome is Outcome.EXISTS
            assert await other.get_cell(row, "BASE", 1) is not None
            with pytest.raises(Forbidden, match="no right to put column 'SECRET'"):
                await other.put_cell(row, "SECRET", 1, {})

    asyncio.run(both())


def test_a_missing_right_is_named_and_nothing_is_written(worker: SecuredWorker, token: str) -> None:
    row = uuid4()
    with Client(worker.url, "trips", **worker.client(token)) as client:
        with pytest.raises(Forbidden, match="'writer' has no right to put column 'SECRET'"):
            client.put_cell(row, "SECRET", 1, {"n": 1})
        with pytest.raises(Forbidden, match="put column"):
            client.put_cells([(row, "BASE", 1, {}), (row, "SECRET", 1, {})])
        with pytest.raises(Forbidden, match="erase datastore 'trips'"):
            client.erase_row(row)
        with pytest.raises(Forbidden, match="read datastore 'trips'"):
            client.get_row(row)
        with pytest.raises(Forbidden, match="read datastore"):
            client.follow()
        assert client.put_cell(row, "prefixed", 1, {}).outcome is Outcome.STORED
    assert worker.datastore.get_row(row).keys() == {"prefixed"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer cft_000000000000_" + "0" * 64},
        {"authorization": "Bearer x.y.z"},
        {"authorization": "Negotiate abc"},
        {"authorization": "Basic !!!"},
        {"authorization": "Basic YWxpY2U6d3Jvbmc="},
        {"authorization": "Bearer "},
    ],
)
def test_without_credentials_that_count_every_route_is_closed(
    worker: SecuredWorker, headers: dict[str, str]
) -> None:
    for method, path in (
        ("GET", "/metrics"),
        ("GET", "/health"),
        ("GET", "/schema"),
        ("GET", "/nothing"),
        ("GET", "/v1/trips/shards"),
        ("POST", "/v1/trips/cell"),
        ("POST", "/v1/trips/follow"),
    ):
        status, fields, content = ask(worker, method, path, {}, headers)
        assert (status, json.loads(content)["error"]) == (401, "unauthenticated"), path
        assert fields["www-authenticate"].startswith("Bearer ")
    status, _, content = ask(worker, "GET", "/livez", headers=headers)
    assert (status, content) == (200, b"live")


def test_two_authorization_fields_are_refused(worker: SecuredWorker, token: str) -> None:
    context = ssl.create_default_context(cafile=worker.files.ca)
    with (
        socket.create_connection(("127.0.0.1", worker.port), 20) as opened,
        context.wrap_socket(opened, server_hostname="127.0.0.1") as peer,
    ):
        peer.sendall(
            b"POST /v1/trips/cell HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
            + token.encode()
            + b"\r\nauthorization: Basic x\r\ncontent-type: application/json\r\n"
            b"content-length: 2\r\n\r\n{}"
        )
        answer = b""
        while b"}" not in answer and (piece := peer.recv(1 << 16)):
            answer += piece
        assert b"one Authorization field" in answer


def test_a_token_in_the_address_lets_nobody_in_and_is_not_repeated(
    worker: SecuredWorker, token: str
) -> None:
    for path in (f"/v1/trips/shards?access_token={token}", f"/v1/trips/shards?{token}"):
        assert ask(worker, "GET", path)[0] == 401
        headers = {"authorization": f"Bearer {token}"}
        status, _, content = ask(worker, "GET", path, headers=headers)
        assert status == 400
        assert token.rpartition("_")[2].encode()[:16] not in content


def test_a_user_comes_in_by_password_or_by_a_token_in_its_place(
    worker: SecuredWorker, token: str
) -> None:
    put_user(worker.datastore.state, "alice", "correct horse", is_new=True)
    allow(worker.datastore.state, Acl("alice", "datastore", "trips", "read"))

    def status(user: str, password: str) -> int:
        value = base64.b64encode(f"{user}:{password}".encode()).decode()
        return ask(worker, "GET", "/v1/trips/shards", headers={"authorization": f"Basic {value}"})[
            0
        ]

    wait_until(lambda: status("alice", "correct horse") == 200, "alice is known")
    assert status("alice", "wrong") == 401
    assert status("nobody", "correct horse") == 401
    assert status("writer", token) == 200
    assert status("alice", token) == 401
    put_user(worker.datastore.state, "alice", "another", is_new=False)
    wait_until(lambda: status("alice", "correct horse") == 401, "the old password is over")
    assert status("alice", "another") == 200


def test_guesses_of_passwords_take_no_places_of_requests(
    worker: SecuredWorker, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials, "CHECKS_MAX", 0)
    value = base64.b64encode(b"mallory:guess").decode()
    headers = {"authorization": f"Basic {value}"}
    assert ask(worker, "GET", "/v1/trips/shards", headers=headers)[0] == 429
    headers = {"authorization": f"Bearer {token}"}
    assert ask(worker, "GET", "/v1/trips/shards", headers=headers)[0] == 200


def test_certificates_that_do_not_fit_leave_those_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with secured_worker(tmp_path) as worker:
        made = worker.token("reader", ("read", "datastore", "trips"))
        known(worker, made)
        Path(worker.files.certificate).write_text("no certificate")
        wait_until(lambda: "those in use stay" in caplog.text, "the change was seen")
        with Client(worker.url, "trips", **worker.client(made)) as client:
            client.heads()
        other = make_certificates(tmp_path / "other")
        shutil.copy(other.key, worker.files.key)
        shutil.copy(other.certificate, worker.files.certificate)

        def changed() -> bool:
            try:
                with Client(worker.url, "trips", timeout_s=1, token=made, ssl_ca=other.ca) as one:
                    return one.heads() is not None
            except StorageUnavailable:
                return False

        wait_until(changed, "new connections have the new certificate")


def test_a_revoked_token_ends_an_open_follower_and_a_stream_of_puts(
    worker: SecuredWorker,
) -> None:
    made = worker.token("reader", ("read", "datastore", "trips"), ("put", "datastore", "trips"))
    known(worker, made)
    row = uuid4()
    with Client(worker.url, "trips", **worker.client(made)) as client:
        follower = client.follow(start="latest")
        client.put_cell(row, "BASE", 1, {})
        assert next(follower).row_key == row
        ended: list[CellfeedError] = []

        def follow() -> None:
            try:
                next(follower)
            except CellfeedError as error:
                ended.append(error)

        thread = threading.Thread(target=follow)
        thread.start()
        context = ssl.create_default_context(cafile=worker.files.ca)
        opened = socket.create_connection(("127.0.0.1", worker.port), 20)
        peer = context.wrap_socket(opened, server_hostname="127.0.0.1")
        peer.sendall(
            b"POST /v1/trips/cells HTTP/1.1\r\nhost: x\r\nauthorization: Bearer "
            + made.encode()
            + b"\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        assert peer.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        revoke_token(worker.datastore.state, made.split("_")[1])
        thread.join(20)
        assert [type(each) for each in ended] == [Unauthenticated]
        assert b"revoked" in peer.recv(1 << 16)
        peer.close()
        with pytest.raises(Unauthenticated):
            client.put_cell(row, "BASE", 2, {})


def test_a_right_that_is_taken_away_ends_a_follower(worker: SecuredWorker) -> None:
    made = worker.token("watcher", ("read", "column", "BASE"))
    known(worker, made)
    with Client(worker.url, "trips", **worker.client(made)) as client:
        follower = client.follow(column="BASE")
        allow(worker.datastore.state, Acl("watcher", "column", "BAS*", "read", "deny"))
        try:
            with pytest.raises(Forbidden, match="read column 'BASE'"):
                next(follower)
        finally:
            remove_acl(worker.datastore.state, Acl("watcher", "column", "BAS*", "read", "deny"))


def test_a_client_without_the_authority_or_with_plain_http_gets_no_answer(
    worker: SecuredWorker,
) -> None:
    for url in (worker.url, worker.url.replace("https", "http")):
        with Client(url, "trips", timeout_s=0.5) as client, pytest.raises(StorageUnavailable):
            client.heads()


def test_a_token_does_not_go_over_the_network_in_the_clear(token: str) -> None:
    with pytest.raises(InvalidRequest, match="https only") as refused:
        Client("http://feed.example:7420", "trips", token=token)
    assert token not in str(refused.value)


def test_a_token_file_is_read_again_and_a_function_is_called(
    worker: SecuredWorker, token: str, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("cft_wrong\n")
    asked: list[int] = []

    def given() -> str:
        asked.append(1)
        return token

    with Client(worker.url, "trips", token_file=path, ssl_ca=worker.files.ca) as client:
        with pytest.raises(Unauthenticated):
            client.heads()
        path.write_text(token + "\n")
        client.heads()
        path.unlink()
        with pytest.raises(InvalidRequest, match="token file"):
            client.heads()
    with Client(worker.url, "trips", token=given, ssl_ca=worker.files.ca) as client:
        client.heads()
        client.heads()
    assert len(asked) == 2
    with (
        Client(worker.url, "trips", token="a\r\nb: c", ssl_ca=worker.files.ca) as client,
        pytest.raises(InvalidRequest, match="characters"),
    ):
        client.heads()


def test_a_certificate_names_its_principal(tmp_path: Path) -> None:
    files = tmp_path / "tls" / "ca.pem"
    with secured_worker(tmp_path, client_ca=str(files), clients_need_one=False) as worker:
        mine: dict[str, Any] = {
            "ssl_ca": worker.files.ca,
            "ssl_certificate": worker.files.client_certificate,
            "ssl_key": worker.files.client_key,
        }
        with Client(worker.url, "trips", **mine) as client:
            with pytest.raises(Forbidden, match="CN=billing,O=example"):
                client.heads()
            allow(
                worker.datastore.state,
                Acl("CN=billing,O=example", "datastore", "trips", "put"),
            )
            row = uuid4()

            def stored() -> bool:
                try:
                    return client.put_cell(row, "BASE", 1, {}).outcome is not Outcome.FAILED
                except Forbidden:
                    return False

            wait_until(stored, "the right is in force")
        with (
            Client(worker.url, "trips", ssl_ca=worker.files.ca, timeout_s=5) as client,
            pytest.raises(Unauthenticated),
        ):
            client.heads()
