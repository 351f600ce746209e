"""Where a worker may listen: every other address than loopback needs TLS and credentials."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from cellfeed.store.errors import InvalidRequest, ProtectData
from cellfeed.store.http.server.listening import HttpListener, check_http_listener, listen
from cellfeed.store.security.certificates import Certificates, TlsFiles

TLS = TlsFiles("server.pem", "server.key")
WIDE = ["0.0.0.0", "::", "192.0.2.1", "::ffff:127.0.0.1", "localhost.example", "127.1", "", "::0"]


@pytest.mark.parametrize("host", WIDE)
@pytest.mark.parametrize(("tls", "authentication"), [(None, None), (TLS, False), (None, True)])
def test_beyond_loopback_nothing_listens_without_tls_and_credentials(
    host: str, tls: TlsFiles | None, authentication: bool | None
) -> None:
    with pytest.raises(ProtectData, match="not loopback"):
        listen(HttpListener(host, 0, tls, authentication), "the worker")


@pytest.mark.parametrize("host", WIDE)
def test_beyond_loopback_credentials_are_asked_for_by_themselves(host: str) -> None:
    listener = HttpListener(host, 0, TLS)
    check_http_listener(listener, "the worker")
    assert listener.needs_credentials
    assert not HttpListener().needs_credentials
    assert HttpListener(authentication=True).needs_credentials


def test_no_answer_waits_for_the_acknowledgement_of_its_first_packet() -> None:
    for bound in listen(HttpListener("localhost", 0), "the worker"):
        with bound, socket.create_connection(bound.getsockname()[:2]):
            accepted, _ = bound.accept()
            with accepted:
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_name_for_loopback_that_is_another_address_here_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def found(*_: Any, **__: Any) -> list[Any]:
        return [
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("0.0.0.0", 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    with pytest.raises(ProtectData, match=r"'localhost' is 0\.0\.0\.0"):
        listen(HttpListener("localhost"), "the worker")


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"the worker: no file '.*nowhere\.pem'"):
        Certificates(TlsFiles(str(tmp_path / "nowhere.pem"), "x"), "the worker")
