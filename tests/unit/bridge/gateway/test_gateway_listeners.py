"""Where a gateway may listen: beyond loopback only with TLS and authentication, and the error says
how."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from cellfeed.bridge.gateway.security.listeners import (
    Listener,
    check_listener,
    tls_context,
)
from cellfeed.store.errors import InvalidRequest, ProtectData
from cellfeed.store.security.loopback import is_loopback
from tests.support.certificates import Certificates, make_certificates

TLS: dict[str, Any] = {"certificate": "c.pem", "key": "k.pem"}


@pytest.mark.parametrize(
    "listener",
    [
        Listener(),
        Listener(host="0.0.0.0", security="sasl_tls", **TLS),
        Listener(host="::", security="tls", client_ca="a", **TLS),
        Listener(security="tls", mechanisms=(), **TLS),
        Listener(mechanisms=()),
    ],
)
def test_listeners_that_protect_the_cells_are_accepted(listener: Listener) -> None:
    check_listener(listener)


@pytest.mark.parametrize(
    "listener",
    [
        Listener(host="0.0.0.0"),
        Listener(host="10.0.0.1", security="sasl_plaintext"),
        Listener(host="::", security="tls", **TLS),
        Listener(host="localhost.example"),
        Listener(host="128.0.0.1"),
    ],
)
def test_a_listener_that_shows_every_cell_to_all_is_refused_with_the_remedy(
    listener: Listener,
) -> None:
    with pytest.raises(ProtectData, match="set security: sasl_tls"):
        check_listener(listener)


@pytest.mark.parametrize(
    "listener",
    [
        Listener(security="tls"),
        Listener(security="tls", certificate="c.pem"),
        Listener(security="sasl_tls", key="k.pem"),
        Listener(client_ca="a"),
        Listener(certificate="c.pem"),
        Listener(security="sasl_plaintext", key="k.pem"),
        Listener(security="sasl_plaintext", mechanisms=("GSSAPI",)),
        Listener(security="sasl_plaintext", mechanisms=()),
    ],
)
def test_contradicting_listener_settings_are_refused(listener: Listener) -> None:
    with pytest.raises(InvalidRequest, match="listener 'default'"):
        check_listener(listener)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_addresses_of_this_machine_alone_are_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


def tls(files: Certificates, **changed: Any) -> Listener:
    parts = {"security": "tls", "certificate": files.certificate, "key": files.key, **changed}
    return Listener(**parts)


def test_a_listener_without_tls_has_no_context() -> None:
    assert tls_context(Listener()) is None
    assert tls_context(Listener(security="sasl_plaintext")) is None


def test_a_client_needs_a_certificate_where_an_authority_is_named(
    certificates: Certificates,
) -> None:
    for security in ("tls", "sasl_tls"):
        anybody = tls_context(tls(certificates, security=security))
        known = tls_context(tls(certificates, security=security, client_ca=certificates.ca))
        assert anybody is not None
        assert known is not None
        assert (anybody.verify_mode, anybody.get_ca_certs()) == (ssl.CERT_NONE, [])
        assert known.verify_mode is ssl.CERT_REQUIRED
        assert len(known.get_ca_certs()) == 1
        assert {each.minimum_version for each in (anybody, known)} == {ssl.TLSVersion.TLSv1_2}
        assert _answers(anybody, certificates)


def _answers(context: ssl.SSLContext, certificates: Certificates) -> bool:
    """Whether a client of the authority gets a handshake to its end."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=certificates.ca).wrap_bio(
        to_client, to_server, server_hostname="127.0.0.1"
    )
    server = context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.version() is not None and server.version() is not None


@pytest.mark.parametrize("part", ["certificate", "key", "client_ca"])
def test_a_file_that_is_missing_or_no_pem_file_is_named_at_the_start(
    certificates: Certificates, tmp_path: Path, part: str
) -> None:
    with pytest.raises(InvalidRequest, match="no file '/nowhere'"):
        tls_context(tls(certificates, **{part: "/nowhere"}))
    other = tmp_path / "other.pem"
    other.write_text("no certificate")
    with pytest.raises(InvalidRequest, match="cannot be used"):
        tls_context(tls(certificates, **{part: str(other)}))


def test_a_key_of_another_certificate_is_refused(certificates: Certificates) -> None:
    with pytest.raises(InvalidRequest, match="cannot be used"):
        tls_context(tls(certificates, key=certificates.client_key))
