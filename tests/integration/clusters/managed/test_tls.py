"""TLS to the server behind a managed endpoint: by its authority and its host's name, or not at
all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellfeed.store.engines.mysql.address import MySqlTls, parse_mysql_url
from cellfeed.store.engines.mysql.connections import MySqlServer
from cellfeed.store.errors import StorageUnavailable
from tests.support import local_mysql
from tests.support.certificates import Certificates, make_certificates
from tests.support.local_mysql import MySql

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("mysql-managed")]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[MySql]:
    if reason := local_mysql.why_not():
        pytest.skip(reason)
    options = (
        *local_mysql.WITHOUT_TLS,
        f"--ssl-ca={certificates.ca}",
        f"--ssl-cert={certificates.certificate}",
        f"--ssl-key={certificates.key}",
    )
    with local_mysql.running_mysql(options, user="cellfeed") as started:
        yield started


def cipher(url: str, tls: MySqlTls) -> str:
    server = MySqlServer(parse_mysql_url(url, tls=tls, managed=True))
    try:
        [(_, value)] = server.rows("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        return str(value)
    finally:
        server.close()


def test_the_servers_certificate_is_checked_by_its_authority(
    server: MySql, certificates: Certificates, tmp_path: Path
) -> None:
    assert cipher(server.url, MySqlTls(certificates.ca))
    other = make_certificates(tmp_path / "other")
    with pytest.raises(StorageUnavailable, match="certificate verify failed"):
        cipher(server.url, MySqlTls(other.ca))
    with pytest.raises(StorageUnavailable, match="certificate verify failed"):
        cipher(server.url, MySqlTls())


def test_the_certificate_must_be_of_the_host_in_the_url(
    server: MySql, certificates: Certificates
) -> None:
    url = server.url.replace("127.0.0.1", "localhost")
    with pytest.raises(StorageUnavailable, match="Hostname mismatch"):
        cipher(url, MySqlTls(certificates.ca))
    assert cipher(url, MySqlTls(certificates.ca, host_name=False))


def test_a_server_without_tls_is_refused(mysql_server: MySql, certificates: Certificates) -> None:
    with pytest.raises(StorageUnavailable, match="SSL is required"):
        cipher(mysql_server.url, MySqlTls(certificates.ca))


def test_our_own_certificate_is_shown_to_a_server_that_asks_for_it(
    server: MySql, certificates: Certificates
) -> None:
    server.sql("ALTER USER 'cellfeed'@'%' REQUIRE X509")
    try:
        with pytest.raises(StorageUnavailable, match="Access denied"):
            cipher(server.url, MySqlTls(certificates.ca))
        own = MySqlTls(certificates.ca, certificates.client_certificate, certificates.client_key)
        assert cipher(server.url, own)
    finally:
        server.sql("ALTER USER 'cellfeed'@'%' REQUIRE NONE")


def test_a_renewed_authority_counts_from_the_next_connection_on(
    server: MySql, certificates: Certificates, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    file.write_text(Path(make_certificates(tmp_path / "old").ca).read_text())
    with pytest.raises(StorageUnavailable, match="certificate verify failed"):
        cipher(server.url, MySqlTls(str(file)))
    file.write_text(Path(certificates.ca).read_text())
    assert cipher(server.url, MySqlTls(str(file)))
    file.unlink()
    with pytest.raises(StorageUnavailable, match="no TLS context can be made of"):
        cipher(server.url, MySqlTls(str(file)))
